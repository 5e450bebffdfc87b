//! Random texts against llama.cpp, byte by byte (`cargo test --release --test grammar -- --ignored`): `ELIZA_PEER`
//! names a program with the command `grammar_check --model M --lines F`, whose lines hold a grammar and a text in hex.

use crate::testing::random_text::Random;
use crate::testing::{self, peer};
use crate::texts::{GRAMMARS, Pieces, grammar, vocab};
use elizainference::Token;
use elizainference::grammar::{GrammarState, Rules};
use elizainference::vocab::Vocab;
use std::process::Command;

const TEXTS: usize = 10_000;

/// More grammars: those of `GRAMMARS`, put together.
fn grammars() -> Vec<String> {
    let simple: Vec<&str> =
        GRAMMARS.iter().copied().filter(|text| !text.contains("\n") && !text.contains("root?")).collect();
    let mut all: Vec<String> = GRAMMARS.iter().map(|&text| text.to_owned()).collect();
    let mut random = Random(7);
    while all.len() < 80 {
        let mut pick = |name: &str| simple[random.below(simple.len())].replace("root", name);
        let shape = ["a b", "a | b", "\"<\" a \">\" b?", "(a \",\"){0,3} b"][all.len() % 4];
        let text = format!("root ::= {shape}\n{}\n{}", pick("a"), pick("b"));
        // A repetition of what may be empty is refused, here as there.
        if Rules::parse(&text, "root").is_ok() {
            all.push(text);
        }
    }
    all
}

/// A text that the grammar accepts for a while, then perhaps some bytes that it need not.
fn text(state: &mut GrammarState, vocab: &Vocab, random: &mut Random) -> Vec<u8> {
    state.rearm();
    let mut out = Vec::new();
    for _ in 0..random.below(16) {
        let mask = state.mask().unwrap().unwrap();
        let legal: Vec<Token> =
            (0..vocab.n_tokens() as Token).filter(|&token| mask.allows(token) && !vocab.is_eog(token)).collect();
        if legal.is_empty() {
            break;
        }
        let token = legal[random.below(legal.len())];
        state.accept(token).unwrap();
        vocab.piece(token, true, &mut out);
    }
    if random.below(2) == 0 {
        let alphabet = b"abcxyz019 \"'{}[](),.:-\\\n<>!\xC3\xA9\xE6\x97\xA5";
        out.extend((0..random.below(4)).map(|_| alphabet[random.below(alphabet.len())]));
    }
    out
}

#[test]
#[ignore = "needs the peer: make deep"]
fn random_texts_are_judged_as_llama_cpp_does_but_for_broken_characters() {
    let (Some(program), Some(model)) = (peer::program(), testing::stories260k()) else { return };
    let vocab = vocab(&model);
    let pieces = Pieces::of(&vocab);
    let all = grammars();
    let mut random = Random(3);
    let mut states: Vec<GrammarState> = all.iter().map(|text| GrammarState::new(grammar(text, &vocab))).collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut cases = Vec::new();
    for index in 0..TEXTS {
        let of = index % all.len();
        cases.push((of, text(&mut states[of], &vocab, &mut random)));
    }
    let lines: Vec<String> =
        cases.iter().map(|(of, text)| format!("{}\t{}", hex(all[*of].as_bytes()), hex(text))).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lines.txt");
    std::fs::write(&file, lines.join("\n") + "\n").unwrap();
    let run = Command::new(program)
        .args(["grammar_check", "--model"])
        .arg(&model)
        .arg("--lines")
        .arg(&file)
        .env("GGML_NO_BACKTRACE", "1")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&run.stdout).into_owned();
    let verdicts: Vec<serde_json::Value> = out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(verdicts.len(), cases.len(), "the peer ended early: {}", String::from_utf8_lossy(&run.stderr));
    let (mut wrong, mut broken) = (Vec::new(), 0);
    for ((of, text), verdict) in cases.iter().zip(&verdicts) {
        let state = &mut states[*of];
        state.rearm();
        let ours = pieces.feed_bytes(state, text);
        let ours = (ours as u64, ours == text.len() && state.may_end());
        let theirs = (verdict["ok_bytes"].as_u64().unwrap_or(u64::MAX), verdict["complete"].as_bool().unwrap_or(false));
        if ours == theirs {
            continue;
        }
        // Both must have gone wrong inside of, or directly after, a character that is not whole.
        let at = ours.0.min(theirs.0) as usize;
        let from = at.saturating_sub(3);
        if text[from..text.len().min(at + 2)].iter().any(|byte| *byte >= 0x80) {
            broken += 1;
        } else {
            wrong.push(format!(
                "{:?} on {:?}: {ours:?}, llama.cpp {theirs:?}",
                all[*of],
                String::from_utf8_lossy(text)
            ));
        }
    }
    println!(
        "{} texts of {} grammars, {broken} of them judged differently at broken characters",
        cases.len(),
        all.len()
    );
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong[..wrong.len().min(10)].join("\n"));
}
