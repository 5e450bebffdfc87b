//! A step of a grammar whose states are known allocates nothing.

use crate::testing::{self, allocator::allocations};
use crate::texts::{JSON, grammar, vocab};
use elizainference::grammar::GrammarState;

#[test]
fn masks_and_tokens_of_known_states_allocate_nothing() {
    let vocab = vocab(&testing::demo());
    let tokens = vocab.tokenize_inside(br#"{"a":[1,"bc d",{"e":-2.5e3}],"f":null}"#, false, &|| false).unwrap();
    let mut state = GrammarState::new(grammar(JSON, &vocab));
    let mut follow = || {
        state.rearm();
        for &token in &tokens {
            assert!(state.mask().unwrap().unwrap().allows(token));
            state.accept(token).unwrap();
        }
        assert!(state.may_end() && state.must_end().unwrap());
    };
    follow();
    let spent = allocations(|| (0..20).for_each(|_| follow()));
    assert_eq!(spent, 0);
}
