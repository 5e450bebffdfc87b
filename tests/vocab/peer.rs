//! Vocabularies against another implementation, on random texts: every token list must be the same.
//!
//! A sample, and the whole on request (`cargo test --release --test vocab peer:: -- --ignored`): `ELIZA_PEER` names a
//! program with the commands `tokenize --model M --lines F` (one JSON object with `ids` a line), `tokenize --model M
//! --file F --ids` and `pieces --model M --out F` (the bytes of each token in hex, one a line).

use crate::testing::families;
use crate::testing::gguf_keys::Keys;
use crate::testing::random_text::{Random, text};
use crate::testing::real_vocabularies;
use elizainference::Token;
use elizainference::gguf::File;
use elizainference::vocab::Vocab;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Peer {
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Peer {
    fn find() -> Option<Self> {
        let Some(program) = std::env::var_os("ELIZA_PEER") else {
            eprintln!("skipped: ELIZA_PEER is not set");
            return None;
        };
        Some(Peer { program: program.into(), folder: tempfile::tempdir().unwrap() })
    }

    fn run(&self, model: &Path, command: &str, arguments: &[&str]) -> String {
        let mut process = Command::new(&self.program);
        let output = process.arg(command).arg("--model").arg(model).args(arguments).output().unwrap();
        assert!(output.status.success(), "{command} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        // Pieces need not be whole characters.
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_string_lossy().into_owned()
    }
}

fn ids(json: &str) -> Vec<Token> {
    let value: serde_json::Value = serde_json::from_str(json).unwrap();
    value["ids"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as Token).collect()
}

/// The texts of the tokens that have a meaning of their own, whole and cut short.
fn special_texts(vocab: &Vocab) -> Vec<String> {
    let mut out = Vec::new();
    for id in 0..vocab.n_tokens() as i32 {
        let text = vocab.token_text(id).unwrap_or_default();
        if (vocab.is_control(id) || (text.starts_with('<') && text.ends_with('>'))) && out.len() < 400 {
            out.push(text.to_string());
            out.extend(text.get(..text.len() - 1).map(String::from));
        }
    }
    out
}

/// Counts differences and shows the first few.
#[derive(Default)]
struct Tally {
    compared: usize,
    different: usize,
}

impl Tally {
    fn compare(&mut self, what: &str, vocab: &Vocab, text: &[u8], ours: &[Token], theirs: &[Token]) {
        self.compared += 1;
        if ours == theirs {
            return;
        }
        self.different += 1;
        if self.different <= 3 {
            let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
            let pieces = |ids: &[Token]| {
                let shown = ids.iter().skip(at.saturating_sub(2)).take(8);
                shown.map(|&id| vocab.token_text(id).unwrap_or_default().to_string()).collect::<Vec<_>>()
            };
            let shown = String::from_utf8_lossy(&text[..text.len().min(400)]);
            eprintln!("{what}: {shown:?}\n  ours, from token {at}: {:?}\n  peer: {:?}", pieces(ours), pieces(theirs));
        }
    }
}

/// Compare `n` one-line texts, both with special tokens added and parsed and with neither, and longer texts with line
/// breaks in `files` files.
fn compare(peer: &Peer, name: &str, vocab: &Vocab, path: &Path, n: usize, files: usize) -> Tally {
    let specials = special_texts(vocab);
    let mut random = Random(20_25);
    let mut tally = Tally::default();
    let lines: Vec<Vec<u8>> =
        (0..).map(|i| text(&mut random, &specials, false, i % 3 == 0)).filter(|t| !t.is_empty()).take(n).collect();
    let file = peer.write("lines", &lines.join(&b'\n'));
    for special in [true, false] {
        let mut arguments = vec!["--lines", file.as_str()];
        if !special {
            arguments.push("--no-special");
        }
        let answer = peer.run(path, "tokenize", &arguments);
        assert_eq!(answer.lines().count(), lines.len());
        for (line, theirs) in lines.iter().zip(answer.lines().map(ids)) {
            tally.compare(name, vocab, line, &vocab.tokenize(line, special, special).unwrap(), &theirs);
        }
    }
    for i in 0..files {
        let mut long = Vec::new();
        while long.len() < 30_000 {
            long.extend(text(&mut random, &specials, true, i % 2 == 0));
        }
        let file = peer.write("text", &long);
        let theirs = ids(&peer.run(path, "tokenize", &["--file", &file, "--ids", "--reps", "1"]));
        tally.compare(name, vocab, &long, &vocab.tokenize(&long, true, true).unwrap(), &theirs);
    }
    tally
}

#[test]
#[ignore = "needs another implementation to compare with"]
fn random_texts_have_the_same_tokens() {
    let (Some(peer), Some(shared)) = (Peer::find(), real_vocabularies::folder()) else { return };
    for (name, vocab, path) in real_vocabularies::all(&shared) {
        let tally = compare(&peer, &name, &vocab, &path, 20_000, 10);
        eprintln!("{name}: {} texts compared, {} differ", tally.compared, tally.different);
        assert_eq!(tally.different, 0, "{name}");

        let out = peer.write("pieces", b"");
        peer.run(&path, "pieces", &["--out", &out]);
        let listed = std::fs::read_to_string(out).unwrap();
        assert_eq!(listed.lines().count(), vocab.n_tokens());
        for (id, hex) in listed.lines().enumerate() {
            let mut piece = Vec::new();
            vocab.piece(id as Token, false, &mut piece);
            let ours: String = piece.iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(ours, hex, "{name}: piece of token {id}");
        }
    }
}

#[test]
fn a_sample_of_random_texts_has_the_same_tokens() {
    let (Some(peer), Some(shared)) = (Peer::find(), real_vocabularies::folder()) else { return };
    for (name, vocab, path) in real_vocabularies::all(&shared) {
        if vocab.n_tokens() < 40_000 {
            let tally = compare(&peer, &name, &vocab, &path, 300, 1);
            eprintln!("{name}: {} texts compared, {} differ", tally.compared, tally.different);
            assert_eq!(tally.different, 0, "{name}");
        }
    }
}

#[test]
#[ignore = "needs another implementation to compare with"]
fn made_vocabularies_have_the_same_tokens() {
    let Some(peer) = Peer::find() else { return };
    for (name, keys) in families::all() {
        let path = PathBuf::from(peer.write("model.gguf", &keys.bytes()));
        let vocab = Vocab::from_gguf(&keys.file()).unwrap();
        let tally = compare(&peer, name, &vocab, &path, 20_000, 10);
        eprintln!("{name}, made: {} texts compared, {} differ", tally.compared, tally.different);
        assert_eq!(tally.different, 0, "{name}");
    }
}

#[test]
#[ignore = "needs another implementation to compare with"]
fn every_character_has_the_same_words() {
    let Some(peer) = Peer::find() else { return };
    let every = || ('\u{1}'..=char::MAX).filter(|c| !['\n', '\u{2581}'].contains(c));
    let mut tokens: Vec<String> = ["[UNK]", "[CLS]", "[SEP]", "\u{2581}"].map(String::from).into();
    tokens.extend(every().map(String::from));
    for (lowercase, strip_accents) in [(true, true), (true, false), (false, true), (false, false)] {
        let keys = Keys::default()
            .string("general.architecture", "bert")
            .string("tokenizer.ggml.model", "bert")
            .strings("tokenizer.ggml.tokens", &tokens)
            .bool("tokenizer.ggml.normalizer.lowercase", lowercase)
            .bool("tokenizer.ggml.normalizer.strip_accents", strip_accents)
            .u32("tokenizer.ggml.unknown_token_id", 0)
            .u32("tokenizer.ggml.bos_token_id", 1)
            .u32("tokenizer.ggml.seperator_token_id", 2);
        let path = PathBuf::from(peer.write("model.gguf", &keys.bytes()));
        let vocab = Vocab::from_gguf(&keys.file()).unwrap();
        let (mut lines, mut text) = (Vec::new(), String::new());
        for c in every() {
            text.extend(['a', c, 'b']);
            if text.len() > 200 {
                lines.push(std::mem::take(&mut text));
            }
        }
        let file = peer.write("lines", lines.join("\n").as_bytes());
        let answer = peer.run(&path, "tokenize", &["--lines", &file, "--no-special"]);
        assert_eq!(answer.lines().count(), lines.len());
        let mut tally = Tally::default();
        for (line, theirs) in lines.iter().zip(answer.lines().map(ids)) {
            let ours = vocab.tokenize(line.as_bytes(), false, false).unwrap();
            tally.compare("every character", &vocab, line.as_bytes(), &ours, &theirs);
        }
        assert_eq!((tally.different, tally.compared > 30_000), (0, true), "{lowercase} {strip_accents}");
    }
}

/// A model file with another pre-tokenizer, and only the first merges: then whole words are tokens that merges do not
/// make.
fn with_pre(file: &[u8], pre: &str, merges: u64) -> Vec<u8> {
    let value_of = |key: &str| {
        let at = file.windows(key.len()).position(|w| w == key.as_bytes()).unwrap();
        at + key.len()
    };
    let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let pre_at = value_of("tokenizer.ggml.pre") + 4;
    let pre_end = pre_at + 8 + number(pre_at) as usize;
    let count_at = value_of("tokenizer.ggml.merges") + 8;
    let (mut at, mut kept) = (count_at + 8, count_at + 8);
    for i in 0..number(count_at) {
        at += 8 + number(at) as usize;
        if i < merges {
            kept = at;
        }
    }
    assert!(pre_end < count_at && merges <= number(count_at));
    let mut out = file[..pre_at].to_vec();
    out.extend((pre.len() as u64).to_le_bytes());
    out.extend(pre.as_bytes());
    out.extend(&file[pre_end..count_at]);
    out.extend(merges.to_le_bytes());
    out.extend(&file[count_at + 8..kept]);
    out.extend(&file[at..]);
    out
}

/// Names that came after the release compared with.
const NEWER: &[&str] = &["glm5"];

#[test]
#[ignore = "needs another implementation to compare with"]
fn every_pre_tokenizer_cuts_the_same() {
    let (Some(peer), Some(shared)) = (Peer::find(), real_vocabularies::folder()) else { return };
    let file = std::fs::read(shared.join("models/vocab/ggml-vocab-gpt-2.gguf")).unwrap();
    for pre in real_vocabularies::PRE_TOKENIZERS.iter().filter(|pre| !NEWER.contains(pre)) {
        for merges in [5_000, 50_000] {
            let path = PathBuf::from(peer.write("model.gguf", &with_pre(&file, pre, merges)));
            let vocab = Vocab::from_gguf(&File::open(&path).unwrap()).unwrap();
            let tally = compare(&peer, pre, &vocab, &path, 1_000, 1);
            eprintln!("{pre}, {merges} merges: {} texts compared, {} differ", tally.compared, tally.different);
            assert_eq!(tally.different, 0, "{pre}");
        }
    }
}
