//! Any text as a grammar, and a walk through what could be read: masks agree with what is accepted, and what is written
//! out is read again.
#![no_main]

use elizainference::Token;
use elizainference::gguf::File;
use elizainference::grammar::{Grammar, GrammarOptions, GrammarState, Rules, Trigger, load};
use elizainference::vocab::Vocab;
use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::sync::{Arc, LazyLock};

static VOCAB: LazyLock<Arc<Vocab>> = LazyLock::new(|| {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo.gguf");
    Arc::new(Vocab::from_gguf(&File::open(&demo).unwrap()).unwrap())
});

fuzz_target!(|data: &[u8]| {
    let (text, walk) = data.split_at(data.len() - data.len() / 8);
    if text.first() == Some(&b'{') {
        let _ = load(text, &VOCAB);
        return;
    }
    let text = String::from_utf8_lossy(text);
    let Ok(rules) = Rules::parse(&text, "root") else { return };
    if !text.is_empty() {
        Rules::parse(&rules.to_gbnf(), "root").unwrap();
    }
    let lazy = walk.first().is_some_and(|byte| byte % 8 == 0);
    let triggers = vec![Trigger::Word("a".into()), Trigger::Pattern("[b-d](e)?".into()), Trigger::Token(300)];
    let options = GrammarOptions { lazy, triggers, ..GrammarOptions::default() };
    let Ok(grammar) = Grammar::new(rules, &VOCAB, options) else { return };
    let mut state = GrammarState::new(grammar);
    let mut forced = Vec::new();
    for (index, &step) in walk.iter().enumerate().take(64) {
        let Ok(mask) = state.mask() else { return };
        let earlier = state.clone();
        let token = match mask.as_ref().and_then(|mask| mask.few()) {
            Some(few) if !few.is_empty() && step < 220 => few[usize::from(step) % few.len()],
            _ => (usize::from(step) * 37 + index) as Token % VOCAB.n_tokens() as Token,
        };
        let accepted = state.accept(token);
        if let Some(mask) = &mask {
            assert_eq!(accepted.is_ok(), mask.allows(token), "{text:?}: token {token}");
        }
        forced.clear();
        if state.forced_tokens(&[token], &mut forced).is_err() {
            return;
        }
        let mut ahead = state.clone();
        forced.iter().for_each(|&token| ahead.accept(token).unwrap());
        if step % 16 == 0 {
            state = earlier;
        }
    }
});
