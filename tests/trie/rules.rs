//! The token trie through its public face: the payload's rules, the compiled shape, every transition of the state.

use std::sync::Arc;

use elizainference::trie::{Accept, MAX_DESCRIPTORS, Mode, Trie, TrieState};
use elizainference::{Error, Token};

/// A leaf: name and tokens.
type Leaf<'a> = (&'a str, &'a [Token]);

/// A payload of one descriptor.
fn payload(leaves: &[Leaf<'_>]) -> String {
    payload_of(&[("action", leaves)])
}

fn payload_of(descriptors: &[(&str, &[Leaf<'_>])]) -> String {
    let descriptors: Vec<_> = descriptors
        .iter()
        .map(|(path, leaves)| {
            let leaves: Vec<_> =
                leaves.iter().map(|(name, tokens)| serde_json::json!({"name": name, "tokens": tokens})).collect();
            serde_json::json!({"path": path, "leaves": leaves})
        })
        .collect();
    serde_json::json!({"modelId": "some-model", "descriptors": descriptors}).to_string()
}

fn trie(leaves: &[Leaf<'_>]) -> Arc<Trie> {
    Arc::new(Trie::parse(payload(leaves).as_bytes()).unwrap())
}

fn state(leaves: &[Leaf<'_>]) -> TrieState {
    TrieState::new(trie(leaves), Mode::Greedy)
}

fn refused(json: &str) -> (String, String) {
    match Trie::parse(json.as_bytes()) {
        Err(Error::Trie { place, problem }) => (place, problem),
        other => panic!("{json}: {other:?}"),
    }
}

// Row "refused, with a message naming the place".

#[test]
fn bad_payloads_are_refused_with_their_place() {
    let leaf = r#"{"name":"A","tokens":[1]}"#;
    for (json, place, problem) in [
        ("", "payload", "malformed JSON"),
        ("{", "payload", "malformed JSON"),
        ("null", "payload", "expected an object"),
        ("[]", "payload", "expected an object"),
        ("{}", "payload", "`descriptors` is missing"),
        (r#"{"modelId":"m"}"#, "payload", "`descriptors` is missing"),
        (r#"{"modelId":5,"descriptors":[]}"#, "modelId", "expected a string"),
        (r#"{"modelId":null,"descriptors":[]}"#, "modelId", "expected a string"),
        (r#"{"descriptors":{}}"#, "descriptors", "expected a list of descriptors"),
        (r#"{"descriptors":[]}"#, "descriptors", "no leaf"),
        (r#"{"descriptors":[5]}"#, "descriptors[0]", "expected a descriptor"),
        (r#"{"descriptors":[{"path":"a"}]}"#, "descriptors[0]", "`leaves` is missing"),
        (r#"{"descriptors":[{"leaves":[]}]}"#, "descriptors[0]", "`path` is missing"),
        (r#"{"descriptors":[{"path":7,"leaves":[]}]}"#, "descriptors[0].path", "expected a string"),
        (r#"{"descriptors":[{"path":"a","leaves":"x"}]}"#, "descriptors[0].leaves", "expected a list of leaves"),
        (r#"{"descriptors":[{"path":"a","leaves":[[]]}]}"#, "descriptors[0].leaves[0]", "expected a leaf"),
        (
            r#"{"descriptors":[{"path":"a","leaves":[{"tokens":[1]}]}]}"#,
            "descriptors[0].leaves[0]",
            "`name` is missing",
        ),
        (
            r#"{"descriptors":[{"path":"a","leaves":[{"name":"x"}]}]}"#,
            "descriptors[0].leaves[0]",
            "`tokens` is missing",
        ),
        (
            r#"{"descriptors":[{"path":"a","leaves":[{"name":true,"tokens":[1]}]}]}"#,
            "descriptors[0].leaves[0].name",
            "expected a string",
        ),
        (
            r#"{"descriptors":[{"path":"a","leaves":[{"name":"x","tokens":3}]}]}"#,
            "descriptors[0].leaves[0].tokens",
            "expected a list of token ids",
        ),
        (r#"{"descriptors":[{"path":"a","leaves":[]}]}"#, "descriptors", "no leaf"),
        (r#"{"descriptors":[{"path":"a","leaves":[{"name":"x","tokens":[]}]}]}"#, "descriptors", "no leaf"),
        (&format!(r#"{{"descriptors":[{{"path":"a","leaves":[{leaf}]}}]}} x"#), "payload", "malformed JSON"),
        (
            &format!(r#"{{"descriptors":[{{"path":"a","leaves":[{leaf},]}}]}}"#),
            "descriptors[0].leaves[1]",
            "malformed JSON",
        ),
    ] {
        let (got_place, got_problem) = refused(json);
        assert_eq!(got_place, place, "{json}: {got_problem}");
        assert!(got_problem.contains(problem), "{json}: {got_problem}");
    }
    for (token, problem) in [
        ("-1", "-1"),
        ("2147483648", "2147483648"),
        ("99999999999999999999", "expected a token id"),
        ("1.0", "1.0"),
        ("1e3", "expected a token id"),
        ("\"1\"", "expected a token id"),
        ("null", "expected a token id"),
        ("[1]", "expected a token id"),
    ] {
        let leaves = format!(r#"[{leaf},{{"name":"B","tokens":[3,{token}]}}]"#);
        let json = format!(r#"{{"descriptors":[{{"path":"a","leaves":[{leaf}]}},{{"path":"b","leaves":{leaves}}}]}}"#);
        let (place, got) = refused(&json);
        assert_eq!(place, "descriptors[1].leaves[1].tokens[1]");
        assert!(got.contains(problem) && got.contains("line 1 column"), "{token}: {got}");
    }
    assert!(Trie::parse(b"{\"descriptors\":[{\"path\":\"\xff\",\"leaves\":[]}]}").is_err());
    assert!(Trie::parse(r#"{"descriptors":[{"path":"\ud800","leaves":[]}]}"#.as_bytes()).is_err());
}

#[test]
fn duplicate_keys_are_refused() {
    for (json, place) in [
        (r#"{"modelId":"a","modelId":"a","descriptors":[]}"#, "modelId"),
        (r#"{"descriptors":[],"descriptors":[]}"#, "descriptors"),
        (r#"{"descriptors":[{"path":"a","path":"b","leaves":[]}]}"#, "descriptors[0].path"),
        (r#"{"descriptors":[{"path":"a","leaves":[],"leaves":[]}]}"#, "descriptors[0].leaves"),
        (
            r#"{"descriptors":[{"path":"a","leaves":[{"name":"x","name":"x","tokens":[1]}]}]}"#,
            "descriptors[0].leaves[0].name",
        ),
        (
            r#"{"descriptors":[{"path":"a","leaves":[{"name":"x","tokens":[1],"tokens":[1]}]}]}"#,
            "descriptors[0].leaves[0].tokens",
        ),
    ] {
        let (got, problem) = refused(json);
        assert_eq!(got, place);
        assert!(problem.contains("duplicate key"), "{problem}");
    }
}

#[test]
fn two_descriptors_with_one_path_are_refused() {
    let json = payload_of(&[("a", &[("X", &[1])]), ("b", &[("Y", &[2])]), ("a", &[("Z", &[3])])]);
    let (place, problem) = refused(&json);
    assert_eq!(place, "descriptors[2].path");
    assert!(problem.contains("descriptors[0]"), "{problem}");
}

#[test]
fn limits_are_refused() {
    let many: Vec<String> = (0..=MAX_DESCRIPTORS).map(|i| format!(r#"{{"path":"{i}","leaves":[]}}"#)).collect();
    let (place, problem) = refused(&format!(r#"{{"descriptors":[{}]}}"#, many.join(",")));
    assert_eq!(place, format!("descriptors[{MAX_DESCRIPTORS}]"));
    assert!(problem.contains("more than 4096"), "{problem}");
    // A trie of more nodes than allowed from few enough tokens: no two leaves share a first token.
    let half: Vec<String> = (0..550_000).map(|i| format!(r#"{{"name":"","tokens":[{i},1]}}"#)).collect();
    let (place, problem) = refused(&format!(r#"{{"descriptors":[{{"path":"p","leaves":[{}]}}]}}"#, half.join(",")));
    assert_eq!(place, "descriptors[0]");
    assert!(problem.contains("1048576 nodes"), "{problem}");
    let long = vec!["7"; (1 << 22) + 1].join(",");
    let json = format!(r#"{{"descriptors":[{{"path":"p","leaves":[{{"name":"","tokens":[{long}]}}]}}]}}"#);
    let (place, problem) = refused(&json);
    assert_eq!(place, "descriptors[0].leaves[0].tokens[4194304]");
    assert!(problem.contains("more than 4194304 tokens"), "{problem}");
    let (place, problem) = refused(&" ".repeat((64 << 20) + 1));
    assert_eq!(place, "payload");
    assert!(problem.contains("67108864"), "{problem}");
    // A long wrong value is not repeated in full.
    let (_, problem) = refused(&format!(r#"{{"descriptors":"{}"}}"#, "é".repeat(5000)));
    assert!(problem.len() < 400 && problem.contains("line 1"), "{problem}");
}

#[test]
fn ids_outside_the_vocabulary_are_named() {
    let json = payload_of(&[("a", &[("X", &[1, 9])]), ("b", &[("E", &[]), ("Y", &[2, 30, 40]), ("Z", &[2, 50])])]);
    let trie = Trie::parse(json.as_bytes()).unwrap();
    assert_eq!(trie.max_token(), 50);
    trie.check_vocab(51).unwrap();
    for (n_vocab, place) in [
        (50, "descriptors[1].leaves[2].tokens[1]"),
        (40, "descriptors[1].leaves[1].tokens[2]"),
        (9, "descriptors[0].leaves[0].tokens[1]"),
    ] {
        match trie.check_vocab(n_vocab) {
            Err(Error::Trie { place: got, problem }) => {
                assert_eq!(got, place);
                assert!(problem.contains(&format!("{n_vocab} tokens")), "{problem}");
            }
            other => panic!("{other:?}"),
        }
    }
}

// Rows "warned" and "also".

#[test]
fn unknown_keys_are_ignored_and_empty_things_left_out() {
    let json = r#"{"version":[{"descriptors":1}],"descriptors":[
        {"path":"empty","leaves":[{"name":"x","tokens":[]}],"path2":{}},
        {"leaves":[{"extra":null,"tokens":[4],"name":"A"},{"name":"B","tokens":[]}],"path":"full"}]}"#;
    let trie = Trie::parse(json.as_bytes()).unwrap();
    assert_eq!(trie.model_id(), "");
    assert_eq!(trie.descriptors().len(), 1);
    assert_eq!(trie.descriptors()[0].path(), "full");
    assert_eq!(trie.warnings().len(), 1);
    assert!(trie.warnings()[0].starts_with("descriptors[0]"), "{:?}", trie.warnings());
    assert_eq!(Trie::parse(payload(&[("A", &[1])]).as_bytes()).unwrap().model_id(), "some-model");
}

#[test]
fn spelling_is_checked_in_payload_order() {
    let pieces = ["", "RE", "PLY", " STOP", "<eos>", "TO"];
    let piece = |token: Token, special: bool, out: &mut Vec<u8>| {
        if token != 4 || special {
            out.extend_from_slice(pieces[token as usize].as_bytes());
        }
    };
    // Right: plain, after a space, with a hidden special token, as a special token itself.
    let right = trie(&[("REPLY", &[1, 2]), ("STOP", &[3]), ("TO", &[5, 4]), ("<eos>", &[4])]);
    assert_eq!(right.spelling(piece), None);
    let wrong = trie(&[("REPLY", &[1, 2]), ("STOP", &[3, 5]), ("TO", &[1])]);
    let verdict = wrong.spelling(piece).unwrap();
    assert!(verdict.contains("descriptors[0].leaves[1]"), "{verdict}");
    assert!(verdict.contains("\"STOP\"") && verdict.contains("\" STOPTO\""), "{verdict}");
}

// Row "shape".

#[test]
fn shared_prefixes_are_merged_breadth_first() {
    let trie = trie(&[("D", &[20, 5]), ("A", &[10, 20, 30]), ("B", &[10, 20, 40]), ("C", &[10])]);
    let root = trie.descriptors()[0].root();
    assert_eq!(root, 0);
    assert_eq!(trie.nodes(), 7);
    assert_eq!(trie.children(root), [10, 20]);
    assert_eq!(trie.child_nodes(root), [1, 2]);
    let ten = trie.child(root, 10).unwrap();
    let twenty = trie.child(ten, 20).unwrap();
    assert_eq!(trie.children(twenty), [30, 40]);
    assert_eq!((trie.leaf(ten), trie.leaf(twenty)), (Some("C"), None));
    assert_eq!(trie.leaf(trie.child(twenty, 40).unwrap()), Some("B"));
    assert_eq!(trie.child(root, 15), None);
    for node in trie.descriptors()[0].nodes().skip(1) {
        assert!(trie.parent(node) < node);
        assert_eq!(trie.child(trie.parent(node), trie.token(node)), Some(node));
    }
    assert_eq!((trie.descriptors()[0].leaves(), trie.descriptors()[0].depth()), (4, 3));
    assert!(trie.bytes() > 7 * 4 * 5);
}

#[test]
fn of_two_names_with_one_path_the_smaller_stays() {
    let merged = trie(&[("ZULU", &[7, 8]), ("ALPHA", &[7, 8])]);
    assert_eq!(merged.descriptors()[0].leaves(), 1);
    let node = merged.child(merged.child(0, 7).unwrap(), 8).unwrap();
    assert_eq!(merged.leaf(node), Some("ALPHA"));
    // Compared as the hosts do, by UTF-16 code units: the surrogates of U+1F600 come before U+FF5E.
    let merged = trie(&[("\u{ff5e}", &[1]), ("\u{1f600}", &[1])]);
    assert_eq!(merged.leaf(merged.child(0, 1).unwrap()), Some("\u{1f600}"));
}

/// Structure cases of the hosts' own trie tests.
#[test]
fn the_hosts_structure_cases() {
    let shared = trie(&[("A", &[10, 20, 30]), ("B", &[10, 20, 40])]);
    assert_eq!(shared.nodes(), 5); // root, two shared nodes, two ends
    let inner = shared.child(shared.child(0, 10).unwrap(), 20).unwrap();
    assert!(!shared.is_leaf(inner));
    let prefix = trie(&[("A", &[1, 2]), ("B", &[1, 2, 3])]);
    let inner = prefix.child(prefix.child(0, 1).unwrap(), 2).unwrap();
    assert!(prefix.is_leaf(inner) && !prefix.children(inner).is_empty());
    let end = prefix.child(inner, 3).unwrap();
    assert!(prefix.is_leaf(end) && prefix.children(end).is_empty());
    let sparse = trie(&[("EMPTY", &[]), ("FULL", &[12, 34])]);
    assert_eq!(sparse.descriptors()[0].leaves(), 1);
    assert_eq!(sparse.leaf(sparse.child(sparse.child(0, 12).unwrap(), 34).unwrap()), Some("FULL"));
    // Two turns: a closed first one, then one with more actions.
    let first = trie(&[("REPLY", &[1]), ("STOP", &[2])]);
    assert_eq!((first.descriptors()[0].leaves(), first.child(0, 3)), (2, None));
    let second = trie(&[("REPLY", &[1]), ("SEND_A", &[3, 4, 5]), ("SEND_B", &[3, 4, 6]), ("STOP", &[2])]);
    assert_eq!(second.descriptors()[0].leaves(), 4);
    let three_four = second.child(second.child(0, 3).unwrap(), 4).unwrap();
    assert_eq!(second.children(three_four), [5, 6]);
    assert!(first.bytes() < second.bytes());
    let path = Trie::parse(payload_of(&[("parameters.agentType", &[("A", &[1])])]).as_bytes()).unwrap();
    assert_eq!(path.descriptors()[0].path(), "parameters.agentType");
}

// Row "state".

#[test]
fn a_child_moves_and_a_childless_leaf_releases() {
    let mut state = state(&[("A", &[1, 2]), ("B", &[1, 3])]);
    assert!(state.is_armed() && !state.inside());
    assert_eq!(state.mask(), Some(&[1][..]));
    assert_eq!(state.forced(), Some(1));
    assert_eq!(state.accept(1), Accept::Moved);
    assert!(state.inside());
    assert_eq!((state.mask(), state.forced()), (Some(&[2, 3][..]), None));
    assert_eq!(state.accept(3), Accept::Leaf);
    assert_eq!(state.leaf_name(), Some("B"));
    assert!(!state.is_armed() && !state.inside());
    assert_eq!((state.mask(), state.forced()), (None, None));
    assert_eq!(state.accept(1), Accept::Ignored);
    state.rearm();
    assert_eq!((state.leaf_name(), state.mask()), (None, Some(&[1][..])));
}

#[test]
fn at_a_leaf_with_children_anything_is_legal() {
    let leaves: &[Leaf<'_>] = &[("ORDER", &[1, 2]), ("ORDER_ID", &[1, 2, 3])];
    let mut continued = state(leaves);
    assert_eq!([1, 2].map(|token| continued.accept(token)), [Accept::Moved, Accept::Moved]);
    assert!(continued.is_armed() && continued.inside());
    assert_eq!((continued.mask(), continued.forced()), (None, None));
    let mut ended = continued.clone();
    assert_eq!(continued.accept(3), Accept::Leaf);
    assert_eq!(continued.leaf_name(), Some("ORDER_ID"));
    assert_eq!(ended.accept(99), Accept::EndedAtLeaf);
    assert_eq!(ended.leaf_name(), Some("ORDER"));
    assert!(!ended.is_armed());
}

#[test]
fn a_token_off_the_trie_arms_the_root_again() {
    let mut state = state(&[("A", &[1, 2, 3])]);
    assert_eq!(state.accept(9), Accept::Rearmed);
    assert_eq!(state.accept(1), Accept::Moved);
    assert_eq!(state.accept(3), Accept::Rearmed);
    assert!(state.is_armed() && !state.inside());
    assert_eq!([1, 2, 3].map(|token| state.accept(token)), [Accept::Moved, Accept::Moved, Accept::Leaf]);
}

#[test]
fn replayed_prompts_change_nothing() {
    let mut state = state(&[("A", &[1, 2]), ("B", &[1, 3])]);
    // Created, nothing applied: a prompt goes by, whatever its tokens.
    for token in [1, 2, 9, 1] {
        assert_eq!(state.accept_replay(token), Accept::Ignored);
        assert!(!state.inside() && state.is_armed());
    }
    state.note_apply();
    let mut copy = state.clone(); // the flag travels
    assert_eq!(state.accept_replay(1), Accept::Moved);
    // Inside the span every token counts, applied or not.
    assert_eq!(state.accept_replay(2), Accept::Leaf);
    assert_eq!(copy.accept_replay(9), Accept::Rearmed);
    // The flag is used up by an accept, and forgotten by arming.
    assert_eq!(copy.accept_replay(1), Accept::Ignored);
    copy.note_apply();
    copy.rearm();
    assert_eq!(copy.accept_replay(1), Accept::Ignored);
    copy.note_apply();
    copy.arm(None).unwrap();
    assert_eq!(copy.accept_replay(1), Accept::Ignored);
    copy.note_apply();
    assert_eq!(copy.accept(1), Accept::Moved);
    assert_eq!(copy.accept_replay(8), Accept::Rearmed);
    assert_eq!(copy.accept_replay(1), Accept::Ignored);
}

// Row "several descriptors".

#[test]
fn one_descriptor_is_armed_at_a_time() {
    let json = payload_of(&[("a", &[("A", &[1])]), ("none", &[]), ("b", &[("B", &[2])]), ("c", &[("C", &[3])])]);
    let mut state = TrieState::new(Arc::new(Trie::parse(json.as_bytes()).unwrap()), Mode::Sampled);
    assert_eq!(state.mode(), Mode::Sampled);
    let masks = |state: &TrieState| state.mask().unwrap().to_vec();
    assert_eq!(masks(&state), [1]);
    assert_eq!(state.accept(1), Accept::Leaf);
    assert!(!state.is_armed()); // the next one is not armed by itself
    for expected in [2, 3, 1, 2] {
        state.arm(None).unwrap();
        assert_eq!(masks(&state), [expected]);
    }
    state.arm(Some("c")).unwrap();
    assert_eq!(state.accept(3), Accept::Leaf);
    state.rearm(); // the one armed last
    assert_eq!(masks(&state), [3]);
    let error = state.arm(Some("none")).unwrap_err().to_string();
    assert!(error.contains("\"none\"") && error.contains("\"a\", \"b\", \"c\""), "{error}");
    assert_eq!(masks(&state), [3]);
    assert_eq!(state.descriptor().unwrap().path(), "c");
}

// Row "life": end-of-generation tokens are masked like any other, unless part of a leaf.

#[test]
fn an_end_token_is_legal_only_as_part_of_a_leaf() {
    const EOG: Token = 2;
    let without = state(&[("A", &[5, 6])]);
    assert!(!without.mask().unwrap().contains(&EOG));
    let mut with = state(&[("A", &[5, EOG])]);
    with.accept(5);
    assert_eq!(with.forced(), Some(EOG));
    assert_eq!(with.accept(EOG), Accept::Leaf);
}

// Row "safety net".

#[test]
fn a_constraint_that_never_completes_is_let_go() {
    let mut short = state(&[("A", &[1, 2])]);
    for count in 1..500 {
        assert_eq!(short.accept(9), Accept::Rearmed, "{count}");
    }
    let mut rearmed = short.clone();
    assert_eq!(short.accept(1), Accept::NetReleased);
    assert!(!short.is_armed() && short.leaf_name().is_none());
    // Arming starts the count anew; a leaf completed by the last token counted is completed.
    rearmed.rearm();
    for _ in 0..498 {
        assert_eq!(rearmed.accept(9), Accept::Rearmed);
    }
    assert_eq!([1, 2].map(|token| rearmed.accept(token)), [Accept::Moved, Accept::Leaf]);
    // A deeper leaf stretches the net to its own depth.
    let deep: Vec<Token> = (0..700).collect();
    let mut state = state(&[("DEEP", &deep), ("A", &[9000])]);
    for &token in &deep[..699] {
        assert_eq!(state.accept(token), Accept::Moved);
    }
    let mut off = state.clone();
    assert_eq!(state.accept(699), Accept::Leaf);
    assert_eq!(off.accept(5), Accept::NetReleased);
    // Replayed tokens are not counted.
    let mut replayed = self::state(&[("A", &[1])]);
    for _ in 0..2000 {
        assert_eq!(replayed.accept_replay(7), Accept::Ignored);
    }
    assert!(replayed.is_armed());
}

#[test]
fn modes_have_fixed_numbers() {
    let modes = [Mode::Greedy, Mode::Sampled, Mode::ScoreLeaves];
    for (number, mode) in (0..).zip(modes) {
        assert_eq!(mode as i32, number);
        assert_eq!(Mode::from_number(number), Ok(mode));
    }
    assert!(Mode::from_number(-1).is_err() && Mode::from_number(3).is_err());
}
