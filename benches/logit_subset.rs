//! A branching step of a span: decoding a token with only the children's logits against decoding it with all of them.
//!
//! `cargo bench --bench logit_subset [-- MODEL.gguf …]`; without a model it runs on a fixture. Two threads; steps
//! alternate, so that both see the same machine. `children` are 30 tokens spread over the vocabulary.
#![allow(clippy::unwrap_used)]

#[path = "../tests/testing/mod.rs"]
mod testing;

use elizainference::Token;
use elizainference::engine::{self, Engine, EngineOptions};
use std::path::PathBuf;
use std::time::Instant;
use testing::fixture;
use testing::fixtures::{Kind, Weights};
use testing::judge::NEVER;
use testing::rng::Stream;

const PAIRS: usize = 60;
const CHILDREN: u64 = 30;

fn main() {
    let mut models: Vec<PathBuf> =
        std::env::args().skip(1).filter(|a| !a.starts_with("--")).map(PathBuf::from).collect();
    if models.is_empty() {
        models.push(fixture(Kind::Llama, Weights::Q8_0));
    }
    println!("{:<28} {:>10} {:>12} {:>8}   medians of {PAIRS} alternating pairs", "model", "all", "children", "ratio");
    for path in models {
        let options = EngineOptions { context: 512, threads: 2, ..EngineOptions::default() };
        let mut engine = Engine::new(engine::open_model(&path, &options, None).unwrap(), &options).unwrap();
        let slot = engine.take_slot(0).unwrap();
        let (n_vocab, dice) = (engine.model().n_vocab() as u64, Stream::new(1, "children"));
        let mut children: Vec<Token> = (0..CHILDREN).map(|i| dice.below(i, n_vocab) as Token).collect();
        children.sort_unstable();
        children.dedup();
        let prompt: Vec<Token> = (0..32).map(|i| dice.below(100 + i, n_vocab) as Token).collect();
        engine.prefill(slot, &prompt, &NEVER).unwrap();
        let mut times = [Vec::new(), Vec::new()];
        for pair in 0..PAIRS + 3 {
            for side in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
                let listed: &[Token] = if side == 0 { &[] } else { &children };
                let token = dice.below(1000 + pair as u64, n_vocab) as Token;
                let began = Instant::now();
                std::hint::black_box(engine.next_logits(slot, &[token], listed, &NEVER).unwrap());
                let seconds = began.elapsed().as_secs_f64();
                engine.truncate(slot, prompt.len());
                // The first ones warm up.
                if pair >= 3 {
                    times[side].push(seconds);
                }
            }
        }
        let [all, few] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        println!("{name:<28} {:>7.2} ms {:>9.2} ms {:>8.2}", all * 1e3, few * 1e3, few / all);
    }
}
