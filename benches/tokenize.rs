//! Tokenizing 1 MiB of what makes tokenizers slow, beside 1 MiB of prose: for every pre-tokenizer and every other kind
//! the worst text, how many times the time of prose it takes, and the longest time between two looks at the cancel.
//!
//! `cargo bench --bench tokenize [-- NAME]...`
#![allow(clippy::unwrap_used)]

#[path = "../tests/testing/families.rs"]
mod families;
#[path = "../tests/testing/gguf_keys.rs"]
mod gguf_keys;
#[path = "../tests/testing/long_texts.rs"]
mod long_texts;

use elizainference::vocab::Vocab;
use std::cell::Cell;
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;
const ALLOWED: f64 = 20.0;

/// The time of a text, and the longest time in it without a look at the cancel.
fn time(vocab: &Vocab, text: &[u8]) -> (Duration, Duration) {
    let begun = Instant::now();
    let (last, longest) = (Cell::new(begun), Cell::new(Duration::ZERO));
    let look = || {
        let now = Instant::now();
        longest.set(longest.get().max(now - last.replace(now)));
        false
    };
    std::hint::black_box(vocab.tokenize_unless(text, false, true, &look).unwrap());
    look();
    (begun.elapsed(), longest.get())
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let names = long_texts::PRE_TOKENIZERS.iter().map(|pre| (*pre, long_texts::bpe(pre)));
    let all = names.chain([("SPM", long_texts::spm())]).chain(families::all());
    let (prose, texts) = (long_texts::prose(BYTES), long_texts::hard(BYTES));
    println!("{:<26} {:>9} {:>7} {:>9}  worst text", "pre-tokenizer", "prose", "worst", "no look");
    let mut worst_of_all = 0f64;
    for (name, keys) in all.filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| w == name)) {
        let vocab = Vocab::from_gguf(&keys.file()).unwrap();
        let usual = (0..3).map(|_| time(&vocab, &prose).0).min().unwrap();
        let mut worst = (0.0, "");
        let mut blind = Duration::ZERO;
        for (what, text) in &texts {
            let (mut taken, longest) = time(&vocab, text);
            if taken > usual * 8 {
                taken = taken.min(time(&vocab, text).0); // a busy machine is no property of the text
            }
            let ratio = taken.as_secs_f64() / usual.as_secs_f64();
            worst = if ratio > worst.0 { (ratio, what.as_str()) } else { worst };
            blind = blind.max(longest);
        }
        println!("{name:<26} {:>6.1} ms {:>6.1}x {:>6.1} ms  {}", ms(usual), worst.0, ms(blind), worst.1);
        worst_of_all = worst_of_all.max(worst.0);
    }
    println!("at most {worst_of_all:.1}x prose; {ALLOWED}x are allowed");
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
