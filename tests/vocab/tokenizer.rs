//! Vocabularies against the token lists that are kept beside them, against slow obvious tokenizers, and against
//! broken files.

use crate::testing::families;
use crate::testing::gguf_keys::Keys;
use crate::testing::long_texts;
use crate::testing::random_text;
use crate::testing::real_vocabularies;
use elizainference::vocab::{Vocab, VocabKind};
use elizainference::{Error, Token};
use proptest::prelude::*;
use std::cell::Cell;
use std::sync::LazyLock;

#[test]
fn listed_texts_have_their_listed_tokens() {
    let Some(shared) = real_vocabularies::folder() else { return };
    let vocabularies = real_vocabularies::all(&shared);
    assert!(vocabularies.len() >= 8, "only {} vocabularies", vocabularies.len());
    for (name, vocab, path) in vocabularies {
        let read = |extension: &str| std::fs::read_to_string(path.with_extension(extension)).ok();
        let (Some(texts), Some(lists)) = (read("gguf.inp"), read("gguf.out")) else {
            eprintln!("skipped: {name} has no lists");
            continue;
        };
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let mut compared = 0;
        for (text, list) in texts.iter().zip(lists.lines()) {
            let expected: Vec<Token> = list.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(vocab.tokenize(text.as_bytes(), false, false).unwrap(), expected, "{name}: {text:?}");
            compared += 1;
        }
        assert!(compared > 40, "{name}: only {compared} texts");
    }
}

/// The characters that byte-level BPE writes bytes with, by byte.
fn byte_chars() -> Vec<char> {
    let plain = |b: &u32| (0x21..=0x7e).contains(b) || (0xa1..=0xac).contains(b) || (0xae..=0xff).contains(b);
    let mut others = (0x100..).filter_map(char::from_u32);
    (0..256).map(|b| if plain(&b) { char::from_u32(b).unwrap() } else { others.next().unwrap() }).collect()
}

const MERGES: &[&str] = &[
    "b c",
    "a b",
    "ab c",
    "a bc",
    "c d",
    "abc d",
    "d e",
    "Ġ a",
    "a a",
    "aa aa",
    "aa a",
    "Ġ Ġ",
    "ĠĠ ĠĠ",
    "Ã ©",
    "e e",
    "Ġ ab",
    "cd e",
    "aaaa aa",
];

/// Byte-level BPE: 256 byte tokens and one for each merge but the last, which makes no token.
fn bpe_keys(pre: &str) -> Keys {
    let mut tokens: Vec<String> = byte_chars().into_iter().map(String::from).collect();
    for merge in &MERGES[..MERGES.len() - 1] {
        let joined = merge.replace(' ', "");
        if !tokens.contains(&joined) {
            tokens.push(joined);
        }
    }
    Keys::default()
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.tokens", &tokens)
        .strings("tokenizer.ggml.merges", MERGES)
}

const PIECES: &[(&str, f32)] = &[
    ("▁", -3.0),
    ("a", -4.0),
    ("b", -4.0),
    ("c", -5.0),
    ("d", -5.0),
    ("ab", -1.0),
    ("bc", -1.0),
    ("cd", -2.5),
    ("abc", -0.5),
    ("▁a", -1.0),
    ("▁ab", -2.0),
    ("aa", -1.5),
    ("aaa", -1.5),
    ("▁▁", -2.0),
    ("▁▁▁▁", -1.0),
    ("é", -6.0),
    ("dab", 0.25),
    ("bb", -1.0),
];

/// SPM: unknown, begin, end, 256 bytes, and the pieces above.
fn spm_keys() -> Keys {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into();
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    let mut scores = vec![0.0; tokens.len()];
    let mut types = vec![2, 3, 3];
    types.resize(tokens.len(), 6);
    for (text, score) in PIECES {
        tokens.push(text.to_string());
        scores.push(*score);
        types.push(1);
    }
    Keys::default()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &tokens)
        .floats("tokenizer.ggml.scores", &scores)
        .integers("tokenizer.ggml.token_type", &types)
}

static BPE: LazyLock<Vocab> = LazyLock::new(|| Vocab::from_gguf(&bpe_keys("qwen2").file()).unwrap());
static SPM: LazyLock<Vocab> = LazyLock::new(|| Vocab::from_gguf(&spm_keys().file()).unwrap());

fn token_by_text(vocab: &Vocab, text: &str) -> Option<Token> {
    (0..vocab.n_tokens() as Token).find(|&id| vocab.token_text(id) == Some(text))
}

/// Join the best pair, over and over; `rank` gives a pair's place, lower first, and the leftmost of equals wins.
fn slow_joins(mut parts: Vec<String>, rank: impl Fn(&str, &str) -> Option<f32>) -> Vec<String> {
    loop {
        let mut best: Option<(f32, usize)> = None;
        for i in 1..parts.len() {
            if let Some(r) = rank(&parts[i - 1], &parts[i])
                && best.is_none_or(|(b, _)| r < b)
            {
                best = Some((r, i));
            }
        }
        let Some((_, i)) = best else { return parts };
        let right = parts.remove(i);
        parts[i - 1] += &right;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn bpe_joins_in_the_order_of_the_merges(word in "[a-e]{1,40}") {
        let parts = slow_joins(word.chars().map(String::from).collect(), |l, r| {
            MERGES.iter().position(|m| *m == format!("{l} {r}")).map(|i| i as f32)
        });
        let mut expected = Vec::new();
        for part in parts {
            match token_by_text(&BPE, &part) {
                Some(id) => expected.push(id),
                // Only the last merge makes no token; its bytes are tokens.
                None => expected.extend(part.chars().map(|c| token_by_text(&BPE, &c.to_string()).unwrap())),
            }
        }
        prop_assert_eq!(BPE.tokenize(word.as_bytes(), false, false).unwrap(), expected);
    }

    #[test]
    fn spm_joins_by_score(text in "[abcd é漢]{1,40}") {
        let escaped = format!(" {text}").replace(' ', "▁");
        let score = |text: &str| PIECES.iter().find(|(t, _)| *t == text).map(|(_, s)| *s);
        let parts = slow_joins(escaped.chars().map(String::from).collect(), |l, r| Some(-score(&format!("{l}{r}"))?));
        let mut expected = Vec::new();
        for part in parts {
            match token_by_text(&SPM, &part) {
                Some(id) => expected.push(id),
                None => expected.extend(part.bytes().map(|b| token_by_text(&SPM, &format!("<0x{b:02X}>")).unwrap())),
            }
        }
        prop_assert_eq!(SPM.tokenize(text.as_bytes(), false, false).unwrap(), expected);
    }

    #[test]
    fn text_comes_back(text in "(\\PC|[abc éa'\n\t]){0,60}") {
        let ids = BPE.tokenize(text.as_bytes(), true, true).unwrap();
        prop_assert_eq!(BPE.detokenize(&ids, true, true).unwrap(), text.as_bytes());
        let spaced = text.replace('▁', "_");
        let ids = SPM.tokenize(spaced.as_bytes(), true, false).unwrap();
        prop_assert_eq!(ids[0], 1);
        prop_assert_eq!(SPM.detokenize(&ids[1..], false, false).unwrap(), spaced.as_bytes());
    }

    #[test]
    fn any_bytes_have_tokens(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let mended = String::from_utf8_lossy(&bytes);
        let ids = BPE.tokenize(&bytes, false, true).unwrap();
        if mended.as_bytes() == bytes {
            prop_assert_eq!(BPE.detokenize(&ids, false, true).unwrap(), bytes.clone());
        }
        // A space and U+2581 are one to this family, and a broken character takes bytes of the one after it along, an
        // escaped space even; so only this much is sure.
        let ids = SPM.tokenize(&bytes, false, false).unwrap();
        if !bytes.contains(&b' ') && !bytes.windows(3).any(|w| w == "▁".as_bytes()) {
            prop_assert_eq!(SPM.detokenize(&ids, false, true).unwrap(), bytes.clone(), "bytes pass as they are");
        }
    }
}

/// Pre-tokenizers that write spaces as U+2581 and other characters as they are.
const ESCAPED: &[&str] = &["gemma4", "granite-embed-multi-311m", "sarvam-moe"];

#[test]
fn every_pre_tokenizer_keeps_the_text() {
    let mut random = random_text::Random(3);
    for pre in real_vocabularies::PRE_TOKENIZERS {
        let vocab = Vocab::from_gguf(&bpe_keys(pre).u32("tokenizer.ggml.bos_token_id", 0).file()).unwrap();
        assert_eq!(vocab.kind(), VocabKind::Bpe);
        if ESCAPED.contains(pre) {
            continue; // they have no tokens for these bytes
        }
        for _ in 0..300 {
            let text = random_text::text(&mut random, &[], true, false);
            let pieces = |ids: Vec<Token>| {
                let mut out = Vec::new();
                ids.iter().for_each(|&id| vocab.piece(id, true, &mut out));
                out
            };
            let back = pieces(vocab.tokenize(&text, false, true).unwrap());
            assert_eq!(back, text, "{pre}: {}", String::from_utf8_lossy(&text));
        }
    }
}

#[test]
fn long_runs_are_no_trouble() {
    for run in ["a", " ", "\n", "!", "1", "A", "é", "漢", "'s", "a1 ", "\u{a0}"] {
        let text = run.repeat(100_000 / run.len());
        for pre in [
            "llama-bpe",
            "gpt-2",
            "deepseek-v3",
            "deepseek-llm",
            "gpt-4o",
            "superbpe",
            "afmoe",
            "exaone-moe",
            "default",
        ] {
            let keys = bpe_keys(pre).u32("tokenizer.ggml.bos_token_id", 0);
            let vocab = Vocab::from_gguf(&keys.file()).unwrap();
            let mut back = Vec::new();
            vocab
                .tokenize(text.as_bytes(), false, true)
                .unwrap()
                .iter()
                .for_each(|&id| vocab.piece(id, true, &mut back));
            assert!(back == text.as_bytes(), "{pre} {run:?}");
        }
        assert!(
            SPM.detokenize(&SPM.tokenize(text.as_bytes(), false, true).unwrap(), false, true).unwrap()
                == text.as_bytes(),
            "{run:?}"
        );
    }
}

/// How often tokenizing asks whether it is cancelled: a count of the steps that it takes.
fn steps(vocab: &Vocab, text: &[u8]) -> usize {
    let looks = Cell::new(0);
    let look = || {
        looks.set(looks.get() + 1);
        false
    };
    vocab.tokenize_unless(text, false, true, &look).unwrap();
    looks.get()
}

#[test]
fn m5_l1_no_text_takes_more_than_20_times_the_steps_of_prose() {
    const BYTES: usize = 1 << 17;
    let (prose, texts) = (long_texts::prose(BYTES), long_texts::hard(BYTES));
    let names = long_texts::PRE_TOKENIZERS.iter().map(|pre| (*pre, long_texts::bpe(pre)));
    for (name, keys) in names.chain([("SPM", long_texts::spm())]).chain(families::all()) {
        let vocab = Vocab::from_gguf(&keys.file()).unwrap();
        let usual = steps(&vocab, &prose);
        assert!(usual >= 8, "{name}: {usual} looks at the cancel are too few to count by");
        for (what, text) in &texts {
            let found = steps(&vocab, text);
            assert!(found <= 20 * usual, "{name}, {what}: {found} looks at the cancel, {usual} in prose");
        }
    }
}

#[test]
fn l1_many_lengths_of_special_tokens_cost_no_more_than_one() {
    // Each begins in every place of the text and none ends there.
    let specials: Vec<String> = (1..1500).map(|n| format!("a{}", "b".repeat(n))).collect();
    let longer: Vec<String> = (1..1500).map(|n| format!("{}b", "a".repeat(n))).collect();
    let vocab = |texts: &[String]| {
        let specials: Vec<(&str, i32)> = texts.iter().map(|text| (text.as_str(), 4)).collect();
        with_specials(&specials, |keys| keys)
    };
    let text = "a".repeat(1 << 17);
    let usual = steps(&vocab(&specials[..1]), text.as_bytes());
    for many in [specials, longer] {
        let found = steps(&vocab(&many), text.as_bytes());
        assert!(found <= 2 * usual, "{found} looks at the cancel, {usual} with one special token");
    }
}

#[test]
fn a_cancel_ends_tokenizing_at_the_next_look() {
    let text = long_texts::prose(1 << 20);
    for vocab in [&*BPE, &*SPM] {
        let all = steps(vocab, &text);
        assert!(all > 100, "{all} looks in 1 MiB");
        for wanted in [1, 2, all / 2, all] {
            let looks = Cell::new(0);
            let look = || {
                looks.set(looks.get() + 1);
                looks.get() == wanted
            };
            let ended = vocab.tokenize_unless(&text, true, true, &look);
            assert_eq!((ended, looks.get()), (Err(Error::Cancelled), wanted));
        }
    }
}

/// A vocabulary with special tokens of all kinds: `(text, token type)` after the 256 bytes and the merges.
fn with_specials(specials: &[(&str, i32)], more: impl Fn(Keys) -> Keys) -> Vocab {
    let mut tokens: Vec<String> = byte_chars().into_iter().map(String::from).collect();
    let mut types = vec![1; tokens.len()];
    for (text, kind) in specials {
        tokens.push(text.to_string());
        types.push(*kind);
    }
    let keys = Keys::default()
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "qwen2")
        .strings("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &types)
        .strings("tokenizer.ggml.merges", &["a b"]);
    Vocab::from_gguf(&more(keys).file()).unwrap()
}

#[test]
fn special_tokens_are_cut_out() {
    let vocab = with_specials(&[("<x>", 3), ("<x><y>", 3), ("[[", 4), ("aa", 4), ("aaa", 4), ("plain", 1)], |k| k);
    let [x, xy, brackets, aa, aaa] = [256, 257, 258, 259, 260];
    let ids = |text: &str, parse: bool| vocab.tokenize(text.as_bytes(), false, parse).unwrap();
    assert_eq!(ids("<x><y><x>", true), [xy, x], "the longest takes its bytes first");
    assert_eq!(ids("aaaaa", false), [aaa, aa], "user-defined tokens always count");
    assert_eq!(ids("[[<x>", false)[0], brackets);
    assert!(!ids("<x>", false).contains(&x));
    assert_eq!(ids("<x", true).len(), 2);
    assert_eq!(ids("plain", true).len(), 5, "a normal token is not special");
    assert_eq!(vocab.detokenize(&[x, aa, xy], false, false).unwrap(), b"aa");
    assert_eq!(vocab.detokenize(&[x, aa, xy], false, true).unwrap(), b"<x>aa<x><y>");
    assert!(vocab.is_control(x) && !vocab.is_control(aa));
    assert_eq!(vocab.max_piece_bytes(), 6);
}

#[test]
fn white_space_beside_some_special_tokens_is_theirs() {
    let vocab = with_specials(&[("<|a|>", 3), ("</s>", 3), ("<s>", 3)], |k| k.string("general.name", "My Phi-3"));
    let a = b'a' as Token;
    assert_eq!(vocab.tokenize(b"a <|a|> \n a", false, true).unwrap(), [a, b' ' as Token, 256, a]);
    assert_eq!(vocab.tokenize(b"<s> a", false, true).unwrap(), [258, b' ' as Token, a]);
    let vocab = with_specials(&[("[MASK]", 3)], |k| k.string("general.name", "Modern-BERT"));
    assert_eq!(vocab.tokenize(b"a \t[MASK] a", false, true).unwrap(), [a, 256, b' ' as Token, a]);
}

#[test]
fn end_tokens_are_found_and_excepted() {
    let eog = |specials: &[(&str, i32)]| {
        let vocab = with_specials(specials, |k| k.u32("tokenizer.ggml.eos_token_id", 5));
        let found: Vec<String> =
            vocab.eog_tokens().iter().map(|&id| vocab.token_text(id).unwrap().to_string()).collect();
        (found, vocab)
    };
    let eos = byte_chars()[5].to_string();
    let (found, vocab) = eog(&[("<|im_end|>", 1), ("<|file_sep|>", 3), ("<|fim_pad|>", 3), ("other", 3)]);
    assert_eq!(found, [eos.as_str(), "<|im_end|>", "<|file_sep|>", "<|fim_pad|>"]);
    assert!(vocab.is_control(256) && vocab.is_eog(256) && !vocab.is_eog(259));
    assert_eq!((vocab.eot(), vocab.special().fim_sep), (Some(256), Some(257)));

    let (found, vocab) = eog(&[("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3), ("<|channel|>", 3)]);
    assert_eq!(found, [eos.as_str(), "<|return|>", "<|call|>"]);
    assert_eq!(vocab.detokenize(&[256, 259, 257], false, false).unwrap(), b"<|end|><|channel|>");

    let (found, vocab) = eog(&[("</s>", 3), ("<|tool_response>", 3)]);
    assert_eq!(found, [eos.as_str(), "<|tool_response>"]);
    assert!(!vocab.is_control(256));
}

#[test]
fn begin_and_end_are_added_as_the_file_says() {
    let keys = || spm_keys();
    let load = |keys: Keys| Vocab::from_gguf(&keys.file()).unwrap();
    let ids = |v: &Vocab, special| v.tokenize(b"ab", special, false).unwrap();
    let [space_ab, ab] = [token_by_text(&SPM, "▁ab").unwrap(), token_by_text(&SPM, "ab").unwrap()];
    assert_eq!(ids(&SPM, true), [1, space_ab]);
    assert_eq!(SPM.tokenize(b"", true, false).unwrap(), [1]);
    let vocab = load(keys().bool("tokenizer.ggml.add_space_prefix", false).bool("tokenizer.ggml.add_eos_token", true));
    assert_eq!(ids(&vocab, true), [1, ab, 2]);
    assert_eq!(ids(&vocab, false), [ab]);
    assert_eq!(vocab.detokenize(&[1, ab, 2], true, true).unwrap(), b"ab");
    assert_eq!(vocab.detokenize(&[1, ab, 2], false, true).unwrap(), b"<s>ab</s>");
    let vocab = load(keys().bool("tokenizer.ggml.add_bos_token", false));
    assert!(!vocab.add_bos() && !vocab.add_eos());
    assert_eq!(ids(&vocab, true), [space_ab]);
    assert_eq!(vocab.detokenize(&[space_ab], false, false).unwrap(), b"ab", "the space put before a text is taken off");
    assert_eq!(vocab.detokenize(&[ab, space_ab], false, false).unwrap(), b"ab ab");
}

#[test]
fn ids_outside_the_vocabulary_have_no_text() {
    for id in [-1, Token::MIN, Token::MAX, SPM.n_tokens() as Token] {
        let mut out = Vec::new();
        SPM.piece(id, true, &mut out);
        assert!(out.is_empty() && SPM.token_text(id).is_none() && !SPM.is_eog(id) && !SPM.is_control(id));
    }
    assert_eq!(token_by_text(&BPE, "aaaaaa"), None, "texts that only merges name are no tokens");
    assert_eq!(BPE.token_text(BPE.n_tokens() as Token), None);
}

#[test]
fn a_special_id_out_of_range_leaves_the_default() {
    let vocab = Vocab::from_gguf(&spm_keys().u32("tokenizer.ggml.eos_token_id", 9_999_999).file()).unwrap();
    assert_eq!(vocab.eos(), Some(2));
}

#[test]
fn token_types_default_to_normal() {
    let vocab = Vocab::from_gguf(&bpe_keys("gpt-2").file()).unwrap();
    assert!((0..vocab.n_tokens() as Token).all(|id| !vocab.is_control(id)));
    assert_eq!(vocab.bos(), Some(11));
}

#[test]
fn a_model_without_texts_has_ids_only() {
    let keys = Keys::default()
        .string("tokenizer.ggml.model", "none")
        .string("general.architecture", "x")
        .u32("x.vocab_size", 7);
    let vocab = Vocab::from_gguf(&keys.file()).unwrap();
    assert_eq!((vocab.kind(), vocab.n_tokens()), (VocabKind::None, 7));
    assert!(
        vocab.tokenize(b"abc", true, true).unwrap().is_empty()
            && vocab.detokenize(&[1], true, true).unwrap().is_empty()
    );
}

#[test]
fn broken_files_are_refused_by_key() {
    let model = |name: &str| Keys::default().string("tokenizer.ggml.model", name);
    let two = ["a", "b"];
    let gpt2 = || model("gpt2").string("tokenizer.ggml.pre", "gpt-2").strings("tokenizer.ggml.tokens", &two);
    let llama = || model("llama").strings("tokenizer.ggml.tokens", &two);
    let cases: Vec<(Keys, &[&str])> = vec![
        (Keys::default(), &["tokenizer.ggml.model", "missing"]),
        (model("klingon"), &["tokenizer.ggml.model", "klingon"]),
        (model("llama"), &["tokenizer.ggml.tokens", "missing"]),
        (
            model("llama").strings("tokenizer.ggml.tokens", &["a", "b", "a"]),
            &["tokenizer.ggml.tokens", "`a`", "entry 2", "entry 0"],
        ),
        (llama().floats("tokenizer.ggml.scores", &[1.0]), &["tokenizer.ggml.scores", "1 entries for 2 tokens"]),
        (llama().floats("tokenizer.ggml.scores", &[1.0, f32::NAN]), &["tokenizer.ggml.scores", "entry 1"]),
        (llama().strings("tokenizer.ggml.scores", &two), &["tokenizer.ggml.scores"]),
        (llama().integers("tokenizer.ggml.token_type", &[1]), &["tokenizer.ggml.token_type", "1 entries for 2 tokens"]),
        (
            llama().integers("tokenizer.ggml.tokens2", &[]).string("tokenizer.ggml.eos_token_id", "x"),
            &["tokenizer.ggml.eos_token_id"],
        ),
        (llama().string("tokenizer.ggml.add_bos_token", "yes"), &["tokenizer.ggml.add_bos_token"]),
        (gpt2(), &["tokenizer.ggml.merges", "missing"]),
        (gpt2().strings("tokenizer.ggml.merges", &["a b", "ab"]), &["tokenizer.ggml.merges", "entry 1", "`ab`"]),
        (gpt2().strings("tokenizer.ggml.merges", &["a "]), &["tokenizer.ggml.merges", "entry 0"]),
        (
            gpt2().strings("tokenizer.ggml.merges", &two[..0]).bool("tokenizer.ggml.add_bos_token", true),
            &["tokenizer.ggml.bos_token_id"],
        ),
        (model("gpt2").string("tokenizer.ggml.pre", "klingon"), &["tokenizer.ggml.pre", "`klingon`"]),
        (model("llama").string("tokenizer.ggml.tokens", "a"), &["tokenizer.ggml.tokens"]),
        (model("llama").strings("tokenizer.ggml.tokens", &["a".repeat(65_537)]), &["entry 0", "65537", "65536"]),
    ];
    for (keys, parts) in cases {
        let error = Vocab::from_gguf(&keys.file()).err().expect(parts[0]).to_string();
        for part in parts {
            assert!(error.contains(part), "{error:?} does not name {part:?}");
        }
    }
    for kind in ["hybriddna", "whitespace"] {
        let error = Vocab::from_gguf(&model(kind).file()).err();
        assert!(matches!(&error, Some(Error::Unsupported(what)) if what.contains(kind)), "{kind}: {error:?}");
    }
    let error = Vocab::from_gguf(&model("gpt2").string("tokenizer.ggml.pre", "mmbert").file()).err();
    assert!(matches!(&error, Some(Error::Unsupported(what)) if what.contains("mmbert")), "{error:?}");
}

#[test]
fn l6_errors_quote_a_file_in_short_and_escaped() {
    let model = |name: &str| Keys::default().string("tokenizer.ggml.model", name);
    let bad = "\u{1b}[31m".to_string() + &"x".repeat(60_000);
    let gpt2 = |pre: &str| model("gpt2").string("tokenizer.ggml.pre", pre);
    let tokens = "tokenizer.ggml.tokens";
    for keys in [
        model(&bad),
        gpt2(&bad),
        model("llama").strings(tokens, &[&bad, &bad]),
        gpt2("gpt-2").strings(tokens, &["a"]).strings("tokenizer.ggml.merges", &[&bad]),
        model("llama").strings(tokens, &["a"]).string("tokenizer.ggml.eos_token_id", &bad),
        model("none").string("general.architecture", &bad).string(&format!("{bad}.vocab_size"), &bad),
    ] {
        let error = Vocab::from_gguf(&keys.file()).err().unwrap().to_string();
        assert!(error.len() < 400 && !error.contains('\u{1b}'), "{} bytes: {:?}", error.len(), error.get(..400));
    }
}

#[test]
fn empty_texts_get_a_name() {
    let keys = Keys::default()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &["<unk>", "<s>", "", "a"]);
    let vocab = Vocab::from_gguf(&keys.file()).unwrap();
    assert_eq!(vocab.token_text(2), Some("[EMPTY_2]"));
}
