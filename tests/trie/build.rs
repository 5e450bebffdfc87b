//! Payloads built from names, on every vocabulary at hand: the oracle is the tokenization of the whole text.

use crate::testing;
use crate::testing::real_vocabularies;
use std::sync::Arc;

use crate::testing::fixtures::{Kind, Weights};
use elizainference::gguf::{File, Writer};
use elizainference::trie::{Built, Mode, Shape, Surroundings, Trie, TrieState, build};
use elizainference::vocab::{Vocab, VocabKind};
use elizainference::{Error, Token};
use serde_json::Value;

const NAMES: &[&str] = &[
    "move_north",
    "move_south",
    "attack",
    "defend",
    "openDoor",
    "open door",
    "REPLY",
    "SEND_MESSAGE",
    "go-home",
    "x",
    " lead",
    "trail ",
    "naïve",
    "日本語",
    "\u{2603}\u{fe0f}",
    "🦀",
    "two\nlines",
    "\"quoted\"",
    "1234567",
    "</s>",
    "a.b()",
];

fn around<'a>(before: &'a str, after: &'a str) -> Surroundings<'a> {
    Surroundings { before, after, parse_special: false }
}

fn vocabulary(kind: Kind) -> Vocab {
    Vocab::from_gguf(&File::open(testing::fixture(kind, Weights::F32)).unwrap()).unwrap()
}

fn pieces(vocab: &Vocab, tokens: &[Token], special: bool) -> String {
    let mut bytes = Vec::new();
    tokens.iter().for_each(|&token| vocab.piece(token, special, &mut bytes));
    String::from_utf8(bytes).unwrap()
}

/// Builds, and checks all that a payload promises. Returns the names that could not be tokenized in their place.
fn checked<'a>(vocab: &Vocab, names: &[&'a str], around: Surroundings<'_>) -> (Built, Vec<&'a str>) {
    let context = || format!("{around:?}");
    let built = build(vocab, "some-model", "the path", names, around).unwrap();
    let trie = Arc::new(Trie::parse(built.json.as_bytes()).unwrap());
    assert!(trie.warnings().is_empty(), "{}", context());
    assert_eq!((trie.model_id(), trie.descriptors().len()), ("some-model", 1));
    assert_eq!(trie.descriptors()[0].path(), "the path");
    trie.check_vocab(vocab.n_tokens()).unwrap();
    assert_eq!(trie.spelling(|token, special, out| vocab.piece(token, special, out)), None, "{}", context());
    assert_eq!(built.shape, Shape::of(&trie, &trie.descriptors()[0]));

    let payload: Value = serde_json::from_str(&built.json).unwrap();
    let leaves = payload["descriptors"][0]["leaves"].as_array().unwrap();
    assert_eq!(leaves.iter().map(|leaf| leaf["name"].as_str().unwrap()).collect::<Vec<_>>(), names);
    let tokenized = |text: &str| vocab.tokenize(text.as_bytes(), false, around.parse_special).unwrap();
    let before = tokenized(around.before);
    let mut alone = Vec::new();
    for (leaf, name) in leaves.iter().zip(names) {
        let tokens: Vec<Token> = serde_json::from_value(leaf["tokens"].clone()).unwrap();
        let text = [around.before, name, around.after].concat();
        let all = [before.as_slice(), &tokens].concat();
        let whole = tokenized(&text);
        if whole.starts_with(&before) {
            assert_eq!(all, whole, "{name:?} {}", context());
        } else {
            alone.push(*name);
        }
        // After the prompt they read as the text does, but for the space that a vocabulary begins a text with.
        let read = pieces(vocab, &all, around.parse_special);
        assert!(read == text || read == format!(" {text}"), "{name:?} {} reads {read:?}", context());
        // Walked, they complete the leaf of that name.
        let mut state = TrieState::new(trie.clone(), Mode::Greedy);
        for &token in &tokens {
            assert!(state.mask().is_none_or(|legal| legal.contains(&token)));
            state.accept(token);
        }
        assert_eq!(state.node().map_or(state.leaf_name(), |node| trie.leaf(node)), Some(*name), "{}", context());
    }
    let warned = built.warnings.iter().any(|warning| warning.contains("tokenized alone"));
    assert_eq!(warned, !alone.is_empty(), "{:?}", built.warnings);
    (built, alone)
}

/// The texts before and after names.
fn places() -> impl Iterator<Item = Surroundings<'static>> {
    let before = ["", "{\"action\": \"", "Action:", "Action: ", "- ", "na", "the end.\n", "日", "x "];
    let after = ["", "\"", "\",\n", "\n", " and", "s"];
    before.into_iter().flat_map(move |before| after.map(|after| around(before, after)))
}

/// All names in many places; returns in how many a name had to be tokenized alone.
fn check_vocabulary(vocab: &Vocab) -> usize {
    places().map(|place| checked(vocab, NAMES, place).1.len()).sum()
}

/// Vocabularies that do not keep all of a text: each name is spelled, or refused for that. Returns how often a name
/// was spelled.
fn check_spelled_or_refused(vocab: &Vocab) -> usize {
    let all = places().flat_map(|place| NAMES.iter().map(move |name| (name, place)));
    let spelled = all.filter(|(name, place)| match build(vocab, "m", "p", &[name], *place) {
        Ok(built) => {
            let trie = Trie::parse(built.json.as_bytes()).unwrap();
            assert_eq!(trie.spelling(|token, special, out| vocab.piece(token, special, out)), None, "{name} {place:?}");
            true
        }
        Err(error) => {
            assert!(error.to_string().contains("cannot be spelled in this vocabulary"), "{name} {place:?}: {error}");
            false
        }
    });
    spelled.count()
}

#[test]
fn leaves_are_the_tokens_of_the_whole_text() {
    for kind in [Kind::Llama, Kind::Gemma3, Kind::Qwen3] {
        let alone = check_vocabulary(&vocabulary(kind));
        assert!(alone > 0, "{kind:?}: some texts before end inside a token");
    }
}

#[test]
fn so_they_are_in_the_vocabularies_of_real_models() {
    let Some(folder) = real_vocabularies::folder() else { return };
    for (name, vocab, _) in real_vocabularies::all(&folder) {
        if [VocabKind::Wpm, VocabKind::Ugm].contains(&vocab.kind()) {
            let spelled = check_spelled_or_refused(&vocab);
            assert!(spelled > 50, "{name}: {spelled}");
            continue;
        }
        let alone = check_vocabulary(&vocab);
        println!("{name}: {alone} names tokenized alone");
    }
}

#[test]
fn a_space_before_the_name_belongs_to_the_name() {
    // The word vocabularies here have a token for " north" and one for the space alone.
    for kind in [Kind::Llama, Kind::Qwen3] {
        let vocab = vocabulary(kind);
        let (built, alone) = checked(&vocab, &["north"], around("we run ", "."));
        assert_eq!(alone, ["north"], "{kind:?}");
        assert!(built.warnings[0].contains("\"north\" is tokenized alone"), "{:?}", built.warnings);
        let (built, alone) = checked(&vocab, &[" north"], around("we run", "."));
        assert!(alone.is_empty() && built.warnings.is_empty(), "{kind:?} {:?}", built.warnings);
        let leaf: Value = serde_json::from_str(&built.json).unwrap();
        let first = leaf["descriptors"][0]["leaves"][0]["tokens"][0].as_i64().unwrap() as Token;
        assert!(pieces(&vocab, &[first], false).starts_with(" n"), "{kind:?}: {}", built.json);
    }
}

#[test]
fn control_tokens_are_recognised_where_asked_for() {
    let vocab = vocabulary(Kind::Qwen3);
    let special = |before, after| Surroundings { before, after, parse_special: true };
    let names = ["attack", "defend"];
    let (built, alone) = checked(&vocab, &names, special("<|im_start|>assistant\n", "<|im_end|>"));
    assert!(alone.is_empty() && built.warnings.is_empty(), "{:?}", built.warnings);
    assert!(built.json.contains(",511]"), "{}", built.json);
    let (plain, _) = checked(&vocab, &names, around("<|im_start|>assistant\n", "<|im_end|>"));
    assert!(!plain.json.contains(",511]"), "{}", plain.json);
    // Such a token inside would end the generation before the leaf does.
    let (built, _) = checked(&vocab, &["a<|im_end|>b", "c"], special("", ""));
    assert!(built.warnings[0].contains("\"a<|im_end|>b\" is cut short"), "{:?}", built.warnings);
}

#[test]
fn doubtful_names_are_reported() {
    let vocab = vocabulary(Kind::Qwen3);
    let names = ["order", "order_id", "other", "order", "other", "order"];
    let built = build(&vocab, "m", "p", &names, around("", "")).unwrap();
    assert_eq!(built.warnings.len(), 2, "{:?}", built.warnings);
    assert!(built.warnings[0].starts_with("\"order\", \"other\" are given more than once"), "{:?}", built.warnings);
    assert!(built.warnings[1].starts_with("\"order\" is the beginning of another name"), "{:?}", built.warnings);
    assert!(built.warnings[1].contains("closing delimiter, the text behind"), "{:?}", built.warnings);
    assert_eq!((built.shape.leaves, built.shape.prefix_leaves.as_slice()), (3, &["order".to_owned()][..]));
    let built = build(&vocab, "m", "p", &names[..3], around("", "\"")).unwrap();
    assert!(built.warnings.is_empty() && built.shape.prefix_leaves.is_empty(), "{:?}", built.warnings);
    let built = build(&vocab, "m", "p", &["a", "a\"b"], around("", "\"")).unwrap();
    assert!(built.warnings[0].contains("that no name continues with"), "{:?}", built.warnings);
    // Many names are not all listed.
    let many: Vec<String> = (0..40).map(|n| format!("n{}", n / 2)).collect();
    let built = build(&vocab, "m", "p", &many, around("", "!")).unwrap();
    assert!(built.warnings[0].contains("\"n4\" and 15 more are given more than once"), "{:?}", built.warnings);
}

#[test]
fn what_cannot_be_built_is_refused() {
    let refused = |vocab: &Vocab, names: &[&str]| match build(vocab, "m", "p", names, around("", "")) {
        Err(Error::InvalidArgument(problem)) => problem,
        other => panic!("{other:?}"),
    };
    let vocab = vocabulary(Kind::Llama);
    assert!(refused(&vocab, &[]).contains("no names"));
    assert!(refused(&vocab, &["a", ""]).contains("A name is empty"));
    // A vocabulary of three letters, without bytes.
    let mut file = Writer::new(3);
    let tokens = ["<unk>", "a", "b", "\u{2581}"].map(String::from).to_vec();
    file.set("general.architecture", "llama").set("tokenizer.ggml.model", "llama");
    file.set("tokenizer.ggml.scores", vec![0f32; 4]).set("tokenizer.ggml.token_type", vec![2i32, 1, 1, 1]);
    file.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.unknown_token_id", 0u32);
    let poor = Vocab::from_gguf(&File::from_bytes(file.to_bytes().unwrap()).unwrap()).unwrap();
    build(&poor, "m", "p", &["ab", "ba"], around("", "")).unwrap();
    let problem = refused(&poor, &["ab", "abc"]);
    assert!(problem.starts_with("\"abc\" cannot be spelled"), "{problem}");
}

#[test]
fn the_shape_counts_choices_and_forced_tokens() {
    let json = r#"{"descriptors":[{"path":"p","leaves":[{"name":"a","tokens":[1,2,3]},{"name":"b","tokens":[1,2,4]},
        {"name":"c","tokens":[5]},{"name":"d","tokens":[5,6]}]}]}"#;
    let trie = Trie::parse(json.as_bytes()).unwrap();
    let expected = Shape {
        leaves: 4,
        nodes: 7,
        depth: 3,
        branching: 3, // the root, after 1 2, and after the leaf c
        tokens: 9,
        forced: 2, // the 2 of a and of b
        prefix_leaves: vec!["c".into()],
    };
    assert_eq!(Shape::of(&trie, &trie.descriptors()[0]), expected);
}

#[test]
fn a_delimiter_behind_all_names_of_a_descriptor_is_no_misspelling() {
    let piece = |token: Token, special: bool, out: &mut Vec<u8>| {
        let text = ["RE", "PLY", "STOP", "\"", ",", "<eos>", " "][token as usize];
        out.extend_from_slice(if token == 5 && !special { "" } else { text }.as_bytes());
    };
    let verdict = |descriptors: &[&[(&str, &[Token])]]| {
        let leaf = |(name, tokens): &(&str, &[Token])| serde_json::json!({"name": name, "tokens": tokens});
        let one = |(number, leaves): (usize, &&[(&str, &[Token])])| {
            let leaves: Vec<_> = leaves.iter().map(leaf).collect();
            serde_json::json!({"path": number.to_string(), "leaves": leaves})
        };
        let descriptors: Vec<_> = descriptors.iter().enumerate().map(one).collect();
        Trie::parse(serde_json::json!({"descriptors": descriptors}).to_string().as_bytes()).unwrap().spelling(piece)
    };
    assert_eq!(verdict(&[&[("REPLY", &[0, 1, 3]), ("STOP", &[2, 3])], &[("STOP", &[2])]]), None);
    assert_eq!(verdict(&[&[("REPLY", &[0, 1, 3, 5]), ("STOP", &[6, 2, 3, 5])]]), None);
    assert_eq!(verdict(&[&[("<eos>", &[5, 3]), ("STOP", &[2, 3])]]), None);
    let other = verdict(&[&[("REPLY", &[0, 1, 3]), ("STOP", &[2, 4])]]).unwrap();
    assert!(other.starts_with("descriptors[0].leaves[1] is named \"STOP\""), "{other}");
    let none = verdict(&[&[("REPLY", &[0, 1, 3])], &[("REPLY", &[0, 1]), ("STOP", &[2, 3])]]).unwrap();
    assert!(none.starts_with("descriptors[1].leaves[1]"), "each descriptor has its own: {none}");
    assert!(verdict(&[&[("REPLY", &[2, 3])]]).is_some());
}
