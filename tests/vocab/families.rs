//! WordPiece, Unigram, RWKV and PLaMo-2 against lists, against slow obvious tokenizers, and against broken files.

use crate::testing::families::{self, charsmap};
use crate::testing::gguf_keys::Keys;
use crate::testing::random_text::{self, Random};
use crate::testing::real_vocabularies;
use elizainference::trie::{self, Surroundings};
use elizainference::vocab::{Vocab, VocabKind};
use elizainference::{Error, Token};

fn load(keys: Keys) -> Vocab {
    Vocab::from_gguf(&keys.file()).unwrap()
}

fn spelled(vocab: &Vocab, ids: &[Token]) -> Vec<u8> {
    let mut out = Vec::new();
    ids.iter().for_each(|&id| vocab.piece(id, true, &mut out));
    out
}

fn texts(vocab: &Vocab, text: &str) -> Vec<String> {
    let ids = vocab.tokenize(text.as_bytes(), false, false).unwrap();
    ids.iter().map(|&id| vocab.token_text(id).unwrap().to_string()).collect()
}

#[test]
fn listed_texts_have_their_tokens_and_pieces() {
    let Some(shared) = real_vocabularies::folder() else { return };
    let mut kinds = Vec::new();
    for (name, vocab, path) in real_vocabularies::all(&shared) {
        let Ok(json) = std::fs::read(path.with_extension("gguf.json")) else { continue };
        kinds.push(vocab.kind());
        for case in serde_json::from_slice::<Vec<serde_json::Value>>(&json).unwrap() {
            let text = case["text"].as_str().unwrap();
            let ids = |key: &str| -> Vec<Token> { serde_json::from_value(case[key].clone()).unwrap() };
            assert_eq!(vocab.tokenize(text.as_bytes(), false, false).unwrap(), ids("ids"), "{name}: {text:?}");
            assert_eq!(vocab.tokenize(text.as_bytes(), true, true).unwrap(), ids("with_special"), "{name}: {text:?}");
            let pieces: Vec<String> = serde_json::from_value(case["pieces"].clone()).unwrap();
            for (id, listed) in ids("ids").into_iter().zip(pieces) {
                match String::from_utf8(spelled(&vocab, &[id])) {
                    Ok(piece) => assert_eq!(piece, listed, "{name}: token {id}"),
                    Err(_) => assert!(listed.contains('\u{fffd}'), "{name}: token {id}"),
                }
            }
        }
    }
    for kind in [VocabKind::Wpm, VocabKind::Ugm, VocabKind::Rwkv, VocabKind::Plamo2] {
        assert!(kinds.contains(&kind), "no lists for {kind:?}");
    }
}

/// Token texts with their scores, of random letters.
fn random_tokens(random: &mut Random, letters: &str, most: usize) -> Vec<(String, f32)> {
    let letters: Vec<char> = letters.chars().collect();
    let mut out: Vec<(String, f32)> = Vec::new();
    for _ in 0..most {
        let text: String = (0..1 + random.below(4)).map(|_| letters[random.below(letters.len())]).collect();
        if !out.iter().any(|(other, _)| *other == text) {
            // Few values, so that sums are equal at times.
            out.push((text, -(random.below(8) as f32)));
        }
    }
    out
}

/// A way to cut a text: its sum and its tokens.
type Cut = (f64, Vec<Token>);

/// All ways to cut a text; `unknown` is the token and score of a character, where no token is exactly this one.
fn all_cuts(text: &str, tokens: &[(String, Token, f64)], unknown: &dyn Fn(char, bool) -> Option<Cut>) -> Vec<Cut> {
    let Some(first) = text.chars().next() else { return vec![(0.0, Vec::new())] };
    let mut heads: Vec<(usize, Cut)> = tokens
        .iter()
        .filter(|(token, ..)| text.starts_with(token))
        .map(|(token, id, score)| (token.len(), (*score, vec![*id])))
        .collect();
    let is_token = tokens.iter().any(|(token, ..)| *token == first.to_string());
    heads.extend(unknown(first, is_token).map(|cut| (first.len_utf8(), cut)));
    let mut all = Vec::new();
    for (len, (score, ids)) in heads {
        let rests = all_cuts(&text[len..], tokens, unknown);
        all.extend(rests.into_iter().map(|(rest, behind)| (score + rest, [ids.clone(), behind].concat())));
    }
    all
}

#[test]
fn unigram_takes_the_largest_sum_of_all() {
    let mut random = Random(11);
    for _ in 0..300 {
        let made = random_tokens(&mut random, "abé漢", 10);
        let mut all: Vec<(String, f32)> = vec![("<unk>".into(), 0.0), ("</s>".into(), 0.0)];
        all.extend(made);
        let names: Vec<&str> = all.iter().map(|(text, _)| text.as_str()).collect();
        let scores: Vec<f32> = all.iter().map(|(_, score)| *score).collect();
        let mut types = vec![1; all.len()];
        (types[0], types[1]) = (2, 3);
        let keys = Keys::default()
            .string("tokenizer.ggml.model", "t5")
            .strings("tokenizer.ggml.tokens", &names)
            .floats("tokenizer.ggml.scores", &scores)
            .integers("tokenizer.ggml.token_type", &types)
            .u32("tokenizer.ggml.unknown_token_id", 0);
        let vocab = load(keys);
        let worst = scores[2..].iter().copied().fold(f32::MAX, f32::min);
        let tokens: Vec<(String, Token, f64)> =
            (0..).zip(&all).skip(2).map(|(id, (text, score))| (text.clone(), id, f64::from(*score))).collect();
        for _ in 0..6 {
            let text: String = (0..random.below(9)).map(|_| ['a', 'b', 'é', '漢'][random.below(4)]).collect();
            let unknown = |_, is_token: bool| (!is_token).then(|| (f64::from(worst) - 10.0, vec![0]));
            let cuts = all_cuts(&text, &tokens, &unknown);
            let best = cuts.iter().map(|(sum, _)| *sum).fold(f64::MIN, f64::max);
            let length = |id: Token| if id == 0 { 1 } else { all[id as usize].0.chars().count() };
            // Of equal sums that with the longest last token, of those that with the longest before it, and so on.
            let expected = cuts.into_iter().filter(|(sum, _)| *sum == best).map(|(_, ids)| ids);
            let mut expected =
                expected.max_by_key(|ids| ids.iter().rev().map(|&id| length(id)).collect::<Vec<_>>()).unwrap();
            expected.dedup_by(|a, b| *a == 0 && *b == 0);
            assert_eq!(vocab.tokenize(text.as_bytes(), false, false).unwrap(), expected, "{text} in {all:?}");
        }
    }
}

#[test]
fn plamo2_takes_the_smallest_cost_of_all() {
    let mut random = Random(12);
    for _ in 0..300 {
        let mut all: Vec<(String, f32)> = ["<unk>", "<s>", "</s>", "<pad>"].map(|text| (text.into(), 0.0)).into();
        all.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 0.0)));
        all.extend(random_tokens(&mut random, "abé漢", 10));
        let names: Vec<&str> = all.iter().map(|(text, _)| text.as_str()).collect();
        let scores: Vec<f32> = all.iter().map(|(_, score)| *score).collect();
        let mut types = vec![1; all.len()];
        types[..4].copy_from_slice(&[2, 3, 3, 3]);
        types[4..260].fill(6);
        let keys = Keys::default()
            .string("tokenizer.ggml.model", "plamo2")
            .strings("tokenizer.ggml.tokens", &names)
            .floats("tokenizer.ggml.scores", &scores)
            .integers("tokenizer.ggml.token_type", &types);
        let vocab = load(keys);
        let tokens: Vec<(String, Token, f64)> =
            (0..).zip(&all).skip(260).map(|(id, (text, score))| (text.clone(), id, f64::from(*score))).collect();
        for _ in 0..6 {
            let text: String = (0..random.below(9)).map(|_| ['a', 'b', 'é', '漢'][random.below(4)]).collect();
            let bytes = |c: char, _: bool| {
                let bytes = c.to_string().into_bytes();
                Some((-1000.0, bytes.into_iter().map(|byte| 4 + Token::from(byte)).collect()))
            };
            let cuts = all_cuts(&text, &tokens, &bytes);
            let best = cuts.iter().map(|(sum, _)| *sum).fold(f64::MIN, f64::max);
            let length = |&id: &Token| if id < 260 { 1 } else { all[id as usize].0.len() };
            // Of equal costs that with the longest first token, of those that with the longest after it, and so on.
            let expected = cuts.into_iter().filter(|(sum, _)| *sum == best).map(|(_, ids)| ids);
            let expected = expected.max_by_key(|ids| ids.iter().map(length).collect::<Vec<_>>()).unwrap();
            assert_eq!(vocab.tokenize(text.as_bytes(), false, false).unwrap(), expected, "{text} in {all:?}");
            assert_eq!(vocab.detokenize(&expected, false, false).unwrap(), text.as_bytes());
        }
    }
}

/// The longest of the tokens that a text begins with.
fn longest<'t>(tokens: &'t [(Vec<u8>, Token)], text: &[u8]) -> Option<&'t (Vec<u8>, Token)> {
    tokens.iter().filter(|(token, _)| text.starts_with(token)).max_by_key(|(token, id)| (token.len(), *id))
}

#[test]
fn rwkv_takes_the_longest_token_at_each_byte() {
    let vocab = load(families::rwkv());
    let tokens: Vec<(Vec<u8>, Token)> = (0..vocab.n_tokens() as Token).map(|id| (spelled(&vocab, &[id]), id)).collect();
    let mut random = Random(13);
    for i in 0..300 {
        // User-defined tokens are found first, so they are no part of the texts.
        let mut text = random_text::text(&mut random, &[], true, i % 2 == 0);
        text.retain(|byte| !b"[~".contains(byte));
        let (mut expected, mut rest) = (Vec::new(), text.as_slice());
        while !rest.is_empty() {
            let (token, id) = longest(&tokens, rest).unwrap();
            expected.push(*id);
            rest = &rest[token.len()..];
        }
        let ids = vocab.tokenize(&text, false, false).unwrap();
        assert_eq!(ids, expected, "{}", String::from_utf8_lossy(&text));
        assert_eq!(vocab.detokenize(&ids, false, true).unwrap(), text);
    }
    assert_eq!(
        vocab.tokenize("漢".as_bytes(), true, true).unwrap(),
        vocab.tokenize("漢".as_bytes(), false, true).unwrap()
    );
}

#[test]
fn rwkv_pieces_may_be_parts_of_a_character() {
    let vocab = load(families::rwkv());
    // One token has the first two bytes of this character and of another; the last byte is a token of its own.
    let ids = vocab.tokenize("\u{6f3a}".as_bytes(), false, false).unwrap();
    assert_eq!(ids.iter().map(|&id| spelled(&vocab, &[id])).collect::<Vec<_>>(), [vec![0xe6, 0xbc], vec![0xba]]);
    assert_eq!(vocab.detokenize(&ids, true, true).unwrap(), "\u{6f3a}".as_bytes());
    assert_eq!(vocab.detokenize(&ids[..1], true, true).unwrap(), [0xe6, 0xbc]);
}

#[test]
fn rwkv_skips_bytes_that_begin_no_token() {
    let keys = Keys::default()
        .string("tokenizer.ggml.model", "rwkv")
        .strings("tokenizer.ggml.tokens", &["<s>", "a", "bcd", r"\x62", "b"])
        .u32("tokenizer.ggml.unknown_token_id", 0);
    let vocab = load(keys);
    let ids = |text: &str| vocab.tokenize(text.as_bytes(), false, false).unwrap();
    assert_eq!(ids("abcda"), [1, 2, 1]);
    assert_eq!(ids("abca"), [1, 4, 0, 1], "of tokens with the same bytes the last");
    assert_eq!(ids("<s>"), [0]);
}

#[test]
fn word_piece_takes_the_longest_tokens_of_a_word() {
    let vocab = load(families::wpm());
    let tokens: Vec<(Vec<u8>, Token)> =
        (0..vocab.n_tokens() as Token).map(|id| (vocab.token_text(id).unwrap().as_bytes().to_vec(), id)).collect();
    let mut random = Random(14);
    let parts =
        ["the", "hav", "ing", "er", "s", "x", "é", "E\u{301}", "漢", "한", " ", "  ", ".", "Z", "aaaa", "\u{ad}"];
    for _ in 0..2000 {
        let text: String = (0..random.below(12)).map(|_| parts[random.below(parts.len())]).collect();
        // Only what stands in the parts: white space and punctuation, no general rule.
        let plain = text.to_lowercase().replace(['é'], "e").replace(['\u{301}', '\u{ad}'], "").replace('한', "ᄒ");
        let apart = plain.replace('.', " . ").replace('漢', " 漢 ");
        let mut expected = Vec::new();
        for word in apart.split_whitespace() {
            let word = format!("▁{word}");
            let (mut ids, mut rest) = (Vec::new(), word.as_bytes());
            while let Some((token, id)) = longest(&tokens, rest).filter(|_| !rest.is_empty()) {
                ids.push(*id);
                rest = &rest[token.len()..];
            }
            expected.extend(if rest.is_empty() { ids } else { vec![1] });
        }
        let found = vocab.tokenize(text.as_bytes(), true, false).unwrap();
        assert_eq!(found, [vec![2], expected, vec![3]].concat(), "{text:?}");
    }
}

#[test]
fn words_are_written_as_the_keys_say() {
    let with = |lowercase: bool, strip: bool| {
        let vocab = families::wpm().bool("tokenizer.ggml.normalizer.lowercase", lowercase);
        load(vocab.bool("tokenizer.ggml.normalizer.strip_accents", strip))
    };
    assert_eq!(texts(&with(true, true), "A É 한"), ["▁a", "▁e", "[UNK]"]);
    assert_eq!(texts(&load(families::wpm()), "A É é e\u{301}\u{302}"), ["▁a", "▁e", "▁e", "▁e"]);
    assert_eq!(texts(&with(true, false), "A É"), ["▁a", "▁é"]);
    assert_eq!(texts(&with(false, false), "A é"), ["▁A", "▁é"]);
    assert_eq!(texts(&with(false, true), "A É"), ["▁A", "▁E"]);
    let vocab = load(families::wpm());
    assert_eq!(vocab.tokenize(b"the [SEP]a", true, true).unwrap().len(), 5);
    let ids = vocab.tokenize(b"the , a .", true, false).unwrap();
    assert_eq!(vocab.detokenize(&ids, true, false).unwrap(), b" the, a.", "no spaces before punctuation");
    assert!(vocab.add_bos() && vocab.add_eos());
}

#[test]
fn unigram_merges_spaces_and_replaces_characters() {
    let vocab = load(families::ugm(true));
    assert_eq!(texts(&vocab, " the \n\t man\u{3000} "), ["▁the", "▁man"]);
    assert_eq!(texts(&vocab, ""), Vec::<String>::new());
    assert_eq!(texts(&vocab, " \u{200b} "), Vec::<String>::new());
    assert_eq!(spelled(&vocab, &vocab.tokenize("½Ａe\u{301}".as_bytes(), false, false).unwrap()), " 1/2Aé".as_bytes());
    assert_eq!(vocab.tokenize(b"the", true, false).unwrap().last(), Some(&1));
    assert_eq!(vocab.detokenize(&vocab.tokenize(b"the man", false, false).unwrap(), false, false).unwrap(), b"the man");
    assert_eq!(texts(&vocab, "ǆ! ǆ"), ["ǆ!", "▁", "<unk>"], "what begins a user-defined token is not replaced");
    let inside = |text: &[u8]| vocab.tokenize_inside(text, false, &|| false).unwrap();
    assert_eq!(spelled(&vocab, &inside(b"the man")), b"the man");
    assert_eq!(spelled(&vocab, &inside(b"  the man ")), b" the man");
    let spaced = load(families::ugm(false));
    assert_eq!(spelled(&spaced, &spaced.tokenize(b" the  man ", false, false).unwrap()), b"  the  man ");
}

#[test]
fn tries_are_built_or_refused_with_the_reason() {
    let around = Surroundings { before: "and say ", after: "\n", ..Surroundings::default() };
    for (name, keys) in families::all() {
        let vocab = load(keys);
        let build = |names: &[&str], around| trie::build(&vocab, "m", "p", names, around);
        let alone = Surroundings::default();
        let built = build(&["the man", "over", "have"], alone).unwrap();
        assert_eq!(built.shape.leaves, 3, "{name}");
        // What these vocabularies do not give back is refused: a line feed, capitals, two spaces.
        let exact = [VocabKind::Rwkv, VocabKind::Plamo2].contains(&vocab.kind());
        for (names, around) in [(["the"], around), (["the  man"], alone), (["\u{200b}the"], alone)] {
            match build(&names, around) {
                Ok(_) => assert!(exact, "{name}: {names:?}"),
                Err(Error::InvalidArgument(what)) => {
                    assert!(!exact && what.contains("cannot be spelled"), "{name}: {what}");
                }
                Err(error) => panic!("{name}: {error}"),
            }
        }
        let marked = |text: &str| vocab.tokenize_marked(text, '\u{fdd0}', &|| false).unwrap();
        let of_text = marked("a <\u{fdd0}s> <|plamo:\u{fdd0}eos|> [\u{fdd0}SEP] </\u{fdd0}s> b");
        let text = &of_text[usize::from(vocab.add_bos())..of_text.len() - usize::from(vocab.add_eos())];
        assert!(text.iter().all(|&id| !vocab.is_control(id)), "{name}: a control token of a host's text: {text:?}");
    }
}

#[test]
fn broken_files_are_refused_by_key_and_token() {
    let model = |name: &str| Keys::default().string("tokenizer.ggml.model", name);
    let tokens = |keys: Keys, texts: &[&str]| keys.strings("tokenizer.ggml.tokens", texts);
    let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let plamo2 = |lacking: usize| {
        let texts: Vec<&String> = bytes.iter().enumerate().filter(|(i, _)| *i != lacking).map(|(_, t)| t).collect();
        let types = vec![6; texts.len()];
        model("plamo2").strings("tokenizer.ggml.tokens", &texts).integers("tokenizer.ggml.token_type", &types)
    };
    let unigram = || tokens(model("t5"), &["<unk>", "</s>", "a"]).u32("tokenizer.ggml.unknown_token_id", 0);
    let mapped = |map: Vec<u8>| unigram().bytes_array("tokenizer.ggml.precompiled_charsmap", &map);
    let array = |nodes: &[u32], texts: &[u8]| {
        let nodes: Vec<u8> = nodes.iter().flat_map(|node| node.to_le_bytes()).collect();
        [&(nodes.len() as u32).to_le_bytes(), nodes.as_slice(), texts].concat()
    };
    // The node for `a` is at 1 ^ b'a', and its children's base is its own.
    let circle = |node: u32| {
        let mut nodes = [0; 256];
        (nodes[0], nodes[1 ^ usize::from(b'a')]) = (1 << 10, node | u32::from(b'a'));
        nodes
    };
    let back = (1 ^ u32::from(b'a') ^ 1) << 10;
    let far = 1 << 30 | 1 << 9 | 1 << 8;
    let map = || charsmap([("a", "b"), ("漢", "c")]);
    let mut unterminated = map();
    unterminated.pop();
    let cut_short = |keep: usize| map()[..keep].to_vec();
    let (key, all) = ("tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.tokens");
    let wpm = || tokens(model("bert"), &["[UNK]", "[CLS]", "▁a"]);
    let cases: Vec<(Keys, Vec<&str>)> = vec![
        (wpm().u32("tokenizer.ggml.unknown_token_id", 0), vec!["tokenizer.ggml.bos_token_id", "missing"]),
        (wpm().u32("tokenizer.ggml.bos_token_id", 1), vec!["tokenizer.ggml.seperator_token_id", "missing"]),
        (
            wpm().u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.seperator_token_id", 1),
            vec!["tokenizer.ggml.unknown_token_id", "missing"],
        ),
        (wpm().floats("tokenizer.ggml.scores", &[1.0]), vec!["tokenizer.ggml.scores", "1 entries for 3 tokens"]),
        (wpm().string("tokenizer.ggml.normalizer.lowercase", "x"), vec!["tokenizer.ggml.normalizer.lowercase"]),
        (tokens(model("t5"), &["a", "b"]), vec!["tokenizer.ggml.unknown_token_id"]),
        (unigram().floats("tokenizer.ggml.scores", &[1.0]), vec!["tokenizer.ggml.scores", "1 entries for 3 tokens"]),
        (unigram().floats("tokenizer.ggml.scores", &[1.0, f32::NEG_INFINITY, 0.0]), vec!["entry 1", "infinite"]),
        (unigram().string(key, "x"), vec![key]),
        (mapped(vec![1, 2]), vec![key, "2 bytes"]),
        (mapped(cut_short(100)), vec![key, "in a map of 96 bytes"]),
        (mapped(array(&[0], b"")[..7].to_vec()), vec![key, "nodes of 4 bytes in a map of 3"]),
        (mapped([&3u32.to_le_bytes()[..], &[0; 9]].concat()), vec![key, "nodes of 3 bytes"]),
        (mapped(array(&circle(far), b"x\0")), vec![key, "is named"]),
        (mapped(unterminated), vec![key, "no text of at most 128 bytes at 2"]),
        (mapped(charsmap([("a", "b".repeat(129).as_str())])), vec![key, "no text of at most 128 bytes at 0"]),
        (tokens(model("rwkv"), &["a", r"b\"]), vec![all, "entry 1", "backslash"]),
        (tokens(model("rwkv"), &[r"\x4", "a"]), vec![all, "entry 0", "within"]),
        (tokens(model("rwkv"), &[r"\x4G", "a"]), vec![all, "entry 0", "digits"]),
        (tokens(model("rwkv"), &["a", "b"]), vec![all, "byte 0"]),
        (plamo2(65), vec![all, "<0x41>"]),
        (plamo2(0).floats("tokenizer.ggml.scores", &[0.0]), vec!["tokenizer.ggml.scores", "1 entries for 255 tokens"]),
        (tokens(model("plamo2"), &["a", "b"]), vec![all, "<0x00>"]),
    ];
    for (keys, parts) in cases {
        let error = Vocab::from_gguf(&keys.file()).err().expect(parts[0]).to_string();
        for part in parts {
            assert!(error.contains(part), "{error:?} does not name {part:?}");
        }
    }
    assert!(Vocab::from_gguf(&plamo2(256).file()).is_ok() && Vocab::from_gguf(&mapped(map()).file()).is_ok());
    // A circle is walked for as many bytes as a part may have.
    let round = load(mapped(array(&circle(back | 1 << 8), b"a\0")));
    assert_eq!(round.tokenize("a".repeat(1280).as_bytes(), false, false).unwrap(), [2; 10]);
}
