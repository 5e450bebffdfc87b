//! Any saved place in a token trie: refused, or a state that is saved again as what was restored, and walks as any
//! other.
#![no_main]
#![allow(dead_code)]

mod input;

use elizainference::trie::{Mode, SavedState, Trie, TrieState};
use input::Input;
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

const PAYLOADS: [&str; 3] = [
    r#"{"descriptors":[{"path":"p","leaves":[{"name":"a","tokens":[1]},{"name":"b","tokens":[2,3]},
        {"name":"c","tokens":[2,4,5]}]},
        {"path":"q","leaves":[{"name":"a","tokens":[1]},{"name":"aa","tokens":[1,1]}]}]}"#,
    r#"{"descriptors":[{"path":"","leaves":[{"name":"x","tokens":[0]}]}]}"#,
    r#"{"descriptors":[{"path":"p","leaves":[{"name":"","tokens":[3,2,1,0]},{"name":"y","tokens":[3,2]}]}]}"#,
];
const MODES: [Mode; 3] = [Mode::Greedy, Mode::Sampled, Mode::ScoreLeaves];

static TRIES: LazyLock<Vec<(Arc<Trie>, String)>> = LazyLock::new(|| {
    let hexadecimal = |trie: &Trie| trie.digest().iter().map(|byte| format!("{byte:02x}")).collect();
    let tries = PAYLOADS.iter().map(|payload| Arc::new(Trie::parse(payload.as_bytes()).unwrap()));
    tries.map(|trie| (trie.clone(), hexadecimal(&trie))).collect()
});

fn tokens(input: &mut Input<'_>) -> String {
    if input.below(4) == 0 {
        return "null".into();
    }
    let list = (0..input.below(5)).map(|_| match input.below(16) {
        0 => input.number() as i32,
        _ => i32::from(input.byte() % 6),
    });
    format!("{:?}", list.collect::<Vec<_>>())
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (trie, digest) = &TRIES[input.below(TRIES.len())];
    let mut armed = TrieState::new(trie.clone(), input.pick(&MODES));
    let json = match input.below(8) {
        0 => String::from_utf8_lossy(input.0).into_owned(),
        _ => {
            let digest = if input.below(16) == 0 { "00" } else { digest };
            let mode = if input.below(8) == 0 { input.byte() as i32 } else { armed.mode() as i32 };
            let (path, at, completed) = (input.pick(&["p", "q", "", "r"]), tokens(&mut input), tokens(&mut input));
            let counted = input.number();
            let places = format!(r#""descriptor":"{path}","at":{at},"completed":{completed}"#);
            format!(r#"{{"trie":"{digest}","mode":{mode},{places},"counted":{counted}}}"#)
        }
    };
    let Ok(saved) = serde_json::from_str::<SavedState>(&json) else { return };
    let Ok(mut state) = armed.restored(&saved) else { return };
    assert_eq!(state.saved(), saved);
    assert_eq!(state.is_armed(), saved.is_armed());
    for _ in 0..20 {
        let token = match state.mask() {
            Some(legal) if input.below(8) > 0 => legal[input.below(legal.len())],
            _ => input.number() as i32,
        };
        state.accept(token);
        // Wherever it stands, it can be saved and restored.
        assert_eq!(armed.restored(&state.saved()).unwrap().saved(), state.saved());
    }
    armed.rearm();
});
