//! A token trie made of any bytes, and a walk through what parsed.
#![no_main]

use elizainference::trie::{Mode, Trie, TrieState};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

fuzz_target!(|data: &[u8]| {
    let (json, walk) = data.split_at(data.len() - data.len() / 8);
    let Ok(trie) = Trie::parse(json) else { return };
    let mut state = TrieState::new(Arc::new(trie), Mode::Greedy);
    for &step in walk {
        let token = match state.mask() {
            Some(legal) if step < 200 => legal[usize::from(step) % legal.len()],
            _ => i32::from(step),
        };
        state.accept(token);
    }
});
