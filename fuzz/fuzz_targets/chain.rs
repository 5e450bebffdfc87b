//! A chain's text: refused, or understood the same when its own text form is read back.
#![no_main]

use elizainference::sampling::Chain;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(chain) = text.parse::<Chain>() else { return };
    let written = chain.to_string();
    let again: Chain = written.parse().unwrap_or_else(|e| panic!("{written}: {e}"));
    assert_eq!(again.to_string(), written);
});
