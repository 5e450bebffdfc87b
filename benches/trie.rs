//! What a token trie costs by itself: a step inside a span, setting a payload for the first time and again.
//!
//! `cargo bench --bench trie`. 200 names (of `tools/peer/actions_200.txt` in `ELIZA_SHARED` or `../shared`, else made
//! up) as tokens of the vocabularies that are there, else of a fixture. Each figure is the median over rounds.
#![allow(clippy::unwrap_used)]

#[path = "../tests/testing/mod.rs"]
mod testing;

use elizainference::gguf::File;
use elizainference::sampling::{Chain, Sampler, legal_of};
use elizainference::session::{EngineOptions, Mode, OpenOptions, Session};
use elizainference::trie::{Surroundings, Trie, TrieState, build, cache};
use elizainference::vocab::Vocab;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use testing::fixture;
use testing::fixtures::{Kind, Weights};
use testing::rng::Stream;

const SIZES: [usize; 2] = [151_936, 262_144];
const ROUNDS: usize = 101;

fn names() -> Vec<String> {
    let listed = testing::shared().and_then(|dir| std::fs::read_to_string(dir.join("tools/peer/actions_200.txt")).ok());
    match listed {
        Some(text) => text.lines().map(str::to_owned).collect(),
        None => (0..200).map(|n| format!("{}_{n}", ["move", "attack", "open", "say"][n % 4])).collect(),
    }
}

/// The vocabularies to tokenize the names with.
fn vocabularies() -> Vec<(String, PathBuf)> {
    let shared = testing::shared().into_iter().flat_map(|dir| {
        ["qwen2", "llama-bpe", "gemma-4"]
            .map(|name| (name.to_owned(), dir.join(format!("models/vocab/ggml-vocab-{name}.gguf"))))
    });
    let mut found: Vec<_> = shared.filter(|(_, path)| path.is_file()).collect();
    found.push(("fixture".to_owned(), fixture(Kind::Llama, Weights::Q8_0)));
    found
}

/// The median microseconds of `ROUNDS` calls; `before` prepares each, outside the time taken.
fn median<S, R>(state: &mut S, mut before: impl FnMut(&mut S, usize), mut call: impl FnMut(&mut S) -> R) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            before(state, round);
            let start = Instant::now();
            black_box(call(black_box(state)));
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The same of a call that needs nothing.
fn median_of<R>(mut call: impl FnMut() -> R) -> f64 {
    median(&mut (), |(), _| (), |()| call())
}

fn line(what: &str, microseconds: f64, bound: f64) {
    let verdict = if microseconds <= bound { "ok" } else { "MISSED" };
    println!("  {what:<62}{microseconds:>9.3} us   at most {bound:>5} us   {verdict}");
}

/// One walk along every leaf: walking alone, then with the mask applied to a row and a token chosen where there is a
/// choice, as a session does it.
fn steps(trie: &Arc<Trie>) {
    let descriptor = &trie.descriptors()[0];
    let paths: Vec<_> = descriptor.nodes().filter(|&node| trie.is_leaf(node)).map(|leaf| trie.path_to(leaf)).collect();
    let tokens: usize = paths.iter().map(Vec::len).sum();
    let mut state = TrieState::new(trie.clone(), Mode::Greedy);
    let walk = median_of(|| {
        for path in &paths {
            state.rearm();
            for &token in path {
                black_box(state.forced());
                black_box(state.accept(token));
            }
        }
    });
    line("walk and accept, per token", walk / tokens as f64, 1.0);
    for size in SIZES.into_iter().filter(|&size| size > trie.max_token() as usize) {
        let stream = Stream::new(3, "logits");
        let row: Vec<f32> = (0..size as u64).map(|i| stream.normal(i) * 2.5).collect();
        let chain: Chain = "top_k=40;top_p=0.95;min_p=0.05;temp=0.8".parse().unwrap();
        let mut sampler = Sampler::new(&chain, size, 1).unwrap();
        let mut at_work = (row.clone(), state.clone());
        let all = median(
            &mut at_work,
            |(scratch, _), _| scratch.copy_from_slice(&row),
            |(scratch, state)| {
                for path in &paths {
                    state.rearm();
                    for (at, &token) in path.iter().enumerate() {
                        if black_box(state.forced()).is_none() {
                            let legal = legal_of(state);
                            black_box(sampler.sample(scratch, legal, &[], at as u32).unwrap());
                        }
                        black_box(state.accept(token));
                    }
                }
            },
        );
        line(&format!("walk, mask, choose, accept, per token, {size} logits"), all / tokens as f64, 1.0);
        let first = median(
            &mut at_work,
            |(scratch, state), _| {
                scratch.copy_from_slice(&row);
                state.rearm();
            },
            |(scratch, state)| sampler.sample(scratch, legal_of(state), &[], 0).unwrap(),
        );
        let children = trie.children(descriptor.root()).len();
        line(&format!("the root alone, {children} children, {size} logits"), first, 1.0);
    }
}

fn main() {
    let names = names();
    let mut fixture_payload = String::new();
    for (name, path) in vocabularies() {
        let vocab = Arc::new(Vocab::from_gguf(&File::open(&path).unwrap()).unwrap());
        let around = Surroundings { before: "{\"action\": \"", after: "\"", parse_special: false };
        let json = build(&vocab, "", "action", &names, around).unwrap().json;
        println!("{name}: {} names, payload of {} bytes", names.len(), json.len());
        // Spaces in front make another payload of the same leaves.
        let other = |payload: &mut String, round: usize| *payload = " ".repeat(1 + round) + &json;
        let parse = median_of(|| Trie::parse(json.as_bytes()).unwrap());
        line("  parse and compile", parse, 300.0);
        let trie = Trie::parse(json.as_bytes()).unwrap();
        let spell = |trie: &Trie| trie.spelling(|token, special, out| vocab.piece(token, special, out));
        line("  spelling", median_of(|| spell(&trie)), 300.0);
        let set = |json: &str| {
            let trie = cache::load(json.as_bytes(), |_| Ok(())).unwrap();
            trie.check_vocab(vocab.n_tokens()).unwrap();
            let piece = |vocab: &Vocab, token, special, out: &mut Vec<u8>| vocab.piece(token, special, out);
            assert_eq!(cache::spelling(&trie, &vocab, piece), None);
            TrieState::new(trie, Mode::Greedy)
        };
        line("set for the first time, without a session", median(&mut String::new(), other, |json| set(json)), 300.0);
        line("set again, without a session", median_of(|| set(&json)), 10.0);
        steps(&Arc::new(trie));
        fixture_payload = json;
    }
    let engine = EngineOptions { context: 64, slots: 1, threads: 1, ..EngineOptions::default() };
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let session = Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap();
    println!("in a session on the fixture");
    let other = |payload: &mut String, round: usize| *payload = " ".repeat(1000 + round) + &fixture_payload;
    let set = |json: &str| session.set_trie(json.as_bytes(), Mode::Greedy).unwrap();
    line("set_trie for the first time", median(&mut String::new(), other, |json| set(json)), 300.0);
    line("set_trie again", median_of(|| set(&fixture_payload)), 10.0);
}
