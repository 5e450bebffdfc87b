//! Memory that a vocabulary and a text ask for: where there is none, an error, and never more than a multiple of what
//! was given.

use crate::testing::allocator::{most_held, with_refused};
use crate::testing::families;
use crate::testing::gguf_keys::Keys;
use crate::testing::long_texts;
use elizainference::Error;
use elizainference::trie::{self, Surroundings, Trie};
use elizainference::vocab::Vocab;

/// Smaller allocations are a program's own business: those of a text, and those of a vocabulary, which has tables.
const OF_A_TEXT: usize = 2 << 10;
const OF_A_VOCABULARY: usize = 12 << 10;

/// Runs `work` with its first large allocation refused, then its second, and so on until nothing is refused any more:
/// every failure must be an error that says so. Returns how many there were.
#[track_caller]
fn refused_one_by_one<T>(large: usize, work: impl Fn() -> Result<T, Error>) -> usize {
    for nth in 1.. {
        let (done, reached) = with_refused(large, nth, &work);
        match done {
            Ok(_) if !reached => return nth - 1,
            Ok(_) => panic!("allocation {nth} was refused, and nobody noticed"),
            Err(Error::OutOfMemory(_)) => {}
            Err(error) => panic!("allocation {nth}: {error}"),
        }
    }
    unreachable!()
}

#[test]
fn a_vocabulary_without_memory_is_an_error() {
    let joining = [long_texts::bpe("deepseek-v3"), long_texts::bpe("gemma4"), long_texts::spm()];
    for keys in joining.into_iter().chain(families::all().map(|(_, keys)| keys)) {
        let file = keys.file();
        let refusals = refused_one_by_one(OF_A_VOCABULARY, || Vocab::from_gguf(&file));
        assert!(refusals > 2, "only {refusals} allocations were large");
    }
}

#[test]
fn a_text_without_memory_is_an_error() {
    let text = "the man who was <|im_start|>[[ 12345 漢字 \u{301}\u{301}  \u{ff} don't a b c".repeat(200);
    let long = "a".repeat(20_000) + &" ".repeat(20_000) + "1";
    for pre in long_texts::PRE_TOKENIZERS {
        let vocab = Vocab::from_gguf(&long_texts::bpe(pre).file()).unwrap();
        for text in [text.as_bytes(), long.as_bytes(), &text.as_bytes()[3..9001]] {
            let refusals = refused_one_by_one(OF_A_TEXT, || vocab.tokenize(text, true, true));
            assert!(refusals > 1, "{pre}: only {refusals} allocations were large");
        }
        let tokens = vocab.tokenize(text.as_bytes(), true, true).unwrap();
        assert!(refused_one_by_one(OF_A_TEXT, || vocab.detokenize(&tokens, false, true)) > 0);
    }
    for (name, keys) in [("SPM", long_texts::spm())].into_iter().chain(families::all()) {
        let vocab = Vocab::from_gguf(&keys.file()).unwrap();
        for text in [&text, &long] {
            let refusals = refused_one_by_one(OF_A_TEXT, || vocab.tokenize(text.as_bytes(), true, true));
            assert!(refusals > 1, "{name}: only {refusals} allocations were large");
        }
    }
}

/// A BPE vocabulary of the bytes that has one more token, of this type.
fn with_token(text: &str, kind: i32, model: &str) -> Keys {
    let mut tokens: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut types = vec![6; tokens.len()];
    tokens.push(text.into());
    types.push(kind);
    Keys::default()
        .string("tokenizer.ggml.model", model)
        .string("tokenizer.ggml.pre", "qwen2")
        .strings("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &types)
        .floats("tokenizer.ggml.scores", &vec![0.0; tokens.len()])
        .strings("tokenizer.ggml.merges", &["a b"])
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 0)
}

const MARKED: i32 = 256;

#[test]
fn h1_a_piece_is_bounded_by_its_text() {
    // Every kind of token, and texts around the lengths at which something changes.
    for (model, kind) in [("gpt2", 1), ("gpt2", 3), ("gpt2", 4), ("llama", 1), ("llama", 3), ("llama", 4)] {
        for characters in [1, 2, 85, 86, 1000, 21_845] {
            let text = "漢".repeat(characters);
            let file = with_token(&text, kind, model).file();
            let (vocab, held) = most_held(|| Vocab::from_gguf(&file).unwrap());
            let mut piece = Vec::new();
            vocab.piece(MARKED, true, &mut piece);
            assert_eq!(vocab.max_piece_bytes(), piece.len().max(1), "{model} {kind} {characters}");
            assert!(piece.len() <= 68 << 10, "{model} {kind} {characters}: {} bytes", piece.len());
            assert!(held < (1 << 20) + 100 * text.len(), "{model} {kind} {characters}: {held} bytes");
            let twice = vocab.detokenize(&[MARKED, MARKED], false, true).unwrap();
            assert!(twice.ends_with(&piece) && twice.len() <= 2 * piece.len());
        }
        // The issue's own: 64,000 ideographs, and 1 MiB.
        for (text, bytes) in [("漢".repeat(64_000), "192000"), ("a".repeat(1 << 20), "1048576")] {
            let error = Vocab::from_gguf(&with_token(&text, kind, model).file()).err().unwrap().to_string();
            for part in ["tokenizer.ggml.tokens", "entry 256", bytes, "65536"] {
                assert!(error.contains(part), "`{part}` is missing in: {error}");
            }
        }
    }
}

#[test]
fn h1_a_character_that_stands_for_no_byte_is_spelled_as_elsewhere() {
    let piece = |text: &str| {
        let vocab = Vocab::from_gguf(&with_token(text, 1, "gpt2").file()).unwrap();
        let mut piece = Vec::new();
        vocab.piece(MARKED, false, &mut piece);
        String::from_utf8(piece).unwrap()
    };
    assert_eq!(piece("ab漢c"), "ab[UNK_BYTE_0xe6bca2ab漢c]c");
    assert_eq!(piece(&"Ġ".repeat(1000)), " ".repeat(1000), "long, and of bytes alone");
    let long = "漢".repeat(86);
    assert_eq!(piece(&long), long, "too long to be written for each of its characters");
}

#[test]
fn h1_a_trie_over_long_pieces_needs_little_memory() {
    let vocab = Vocab::from_gguf(&with_token(&"漢".repeat(85), 1, "gpt2").file()).unwrap();
    let length = vocab.max_piece_bytes();
    assert!(length > 20_000);
    // 100,000 tokens that would spell 2 GB.
    let tokens = vec![MARKED.to_string(); 100_000].join(",");
    let json = format!(r#"{{"descriptors":[{{"path":"p","leaves":[{{"name":"[","tokens":[{tokens}]}}]}}]}}"#);
    let trie = Trie::parse(json.as_bytes()).unwrap();
    let (told, held) = most_held(|| trie.spelling(|token, special, out| vocab.piece(token, special, out)));
    assert!(told.unwrap().contains("its tokens spell"));
    assert!(held < 4 << 20, "{held} bytes");
    let (_, spelled) = most_held(|| {
        trie::build(&vocab, "", "p", &["漢".repeat(85 * 40)], Surroundings::default()).map(drop).unwrap_err()
    });
    assert!(spelled < 8 << 20, "{spelled} bytes");
}

#[test]
fn a_text_takes_memory_by_its_length() {
    const BYTES: usize = 1 << 16;
    let mut worst = (0, String::new());
    let names = long_texts::PRE_TOKENIZERS.iter().map(|pre| (*pre, long_texts::bpe(pre)));
    for (name, keys) in names.chain([("SPM", long_texts::spm())]).chain(families::all()) {
        let vocab = Vocab::from_gguf(&keys.file()).unwrap();
        for (what, text) in long_texts::hard(BYTES) {
            let held = most_held(|| vocab.tokenize(&text, false, true).unwrap()).1 / text.len();
            worst = if held > worst.0 { (held, format!("{name}: {what}")) } else { worst };
        }
    }
    println!("at most {} bytes for each of the text: {}", worst.0, worst.1);
    assert!(worst.0 <= 160, "{} bytes for each byte of {}", worst.0, worst.1);
}
