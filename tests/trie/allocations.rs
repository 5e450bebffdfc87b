//! Following a trie allocates nothing once the state is made.

use crate::testing::allocator::allocations;
use elizainference::Token;
use elizainference::trie::{Accept, Mode, Trie, TrieState};
use std::sync::Arc;

#[test]
fn trie_transitions_allocate_nothing() {
    let json = r#"{"descriptors":[
        {"path":"a","leaves":[{"name":"A","tokens":[1,2]},{"name":"B","tokens":[1,2,3]},{"name":"C","tokens":[1,4]}]},
        {"path":"b","leaves":[{"name":"D","tokens":[5]}]}]}"#;
    let mut state = TrieState::new(Arc::new(Trie::parse(json.as_bytes()).unwrap()), Mode::Greedy);
    let spent = allocations(|| {
        for _ in 0..100 {
            assert_eq!([1, 2, 9].map(|token| state.accept(token)), [Accept::Moved, Accept::Moved, Accept::EndedAtLeaf]);
            assert_eq!(state.leaf_name(), Some("A"));
            state.arm(None).unwrap();
            let mut copy = state.clone();
            assert_eq!((copy.accept_replay(5), copy.accept(4)), (Accept::Ignored, Accept::Rearmed));
            assert_eq!((state.forced(), state.mask().map(<[Token]>::len)), (Some(5), Some(1)));
            assert_eq!((state.accept(5), state.accept(5)), (Accept::Leaf, Accept::Ignored));
            state.arm(Some("a")).unwrap();
            (0..499).for_each(|_| assert_eq!(state.accept(8), Accept::Rearmed));
            assert_eq!(state.accept(8), Accept::NetReleased);
            state.rearm();
        }
    });
    assert_eq!(spent, 0);
}
