//! Masks against a naive oracle, which feeds every token's bytes through the matcher; forks against replays.

use crate::testing::random_text::Random;
use crate::testing::{self, real_vocabularies, schemas};
use crate::texts::{GRAMMARS, JSON, grammar, vocab};
use elizainference::Token;
use elizainference::grammar::{Grammar, GrammarState};
use elizainference::vocab::Vocab;
use std::collections::HashSet;
use std::sync::Arc;

/// The text of every token.
fn pieces(vocab: &Vocab) -> Vec<Vec<u8>> {
    let piece = |token| {
        let mut text = Vec::new();
        vocab.piece(token, true, &mut text);
        text
    };
    (0..vocab.n_tokens() as Token).map(piece).collect()
}

/// Whether a token fits, by its bytes alone.
fn fits(state: &GrammarState, vocab: &Vocab, token: Token, text: &[u8]) -> bool {
    if vocab.is_eog(token) {
        return state.may_end();
    }
    let mut ahead = state.clone();
    !text.is_empty() && ahead.advance_bytes(text, &mut |_, _| {}) == text.len()
}

/// Walks a grammar at random, with every mask that was not seen yet compared; how many were.
fn walk(grammar: &Arc<Grammar>, vocab: &Vocab, pieces: &[Vec<u8>], random: &mut Random, steps: usize) -> usize {
    let mut seen = HashSet::new();
    let mut state = GrammarState::new(grammar.clone());
    let mut history = Vec::new();
    let mut kept = Vec::new();
    for _ in 0..steps {
        let mask = state.mask().unwrap().unwrap();
        let legal: Vec<Token> = (0..pieces.len() as Token).filter(|&token| mask.allows(token)).collect();
        assert_eq!(mask.count() as usize, legal.len());
        assert_eq!(mask.few().is_some(), legal.len() <= 256);
        assert!(mask.few().is_none_or(|few| few == legal));
        if seen.insert(mask.number()) {
            for (token, text) in pieces.iter().enumerate() {
                let token = token as Token;
                assert_eq!(mask.allows(token), fits(&state, vocab, token, text), "token {token} after {history:?}");
            }
            // Accepting agrees with the mask, for legal tokens and others.
            for _ in 0..20 {
                let token = random.below(pieces.len()) as Token;
                assert_eq!(state.clone().accept(token).is_ok(), mask.allows(token), "token {token}");
            }
        }
        kept.push((history.len(), state.clone()));
        let going_on: Vec<Token> = legal.into_iter().filter(|&token| !vocab.is_eog(token)).collect();
        if going_on.is_empty() || random.below(40) == 0 {
            // Back to a state that was kept: it is what a replay gives.
            kept.truncate(1 + random.below(kept.len()));
            let (length, earlier) = kept.last().unwrap();
            history.truncate(*length);
            let mut replayed = GrammarState::new(grammar.clone());
            history.iter().for_each(|&token| replayed.accept(token).unwrap());
            state = earlier.clone();
            assert_eq!(state.mask().unwrap().unwrap().bits(), replayed.mask().unwrap().unwrap().bits());
            assert_eq!((state.may_end(), state.span()), (replayed.may_end(), replayed.span()));
            continue;
        }
        // Short tokens more often, so that walks stay in the grammar for long.
        let mut token = going_on[random.below(going_on.len())];
        for _ in 0..3 {
            let other = going_on[random.below(going_on.len())];
            if pieces[other as usize].len() < pieces[token as usize].len() {
                token = other;
            }
        }
        state.accept(token).unwrap();
        history.push(token);
    }
    seen.len()
}

/// Repetitions with and without limits, of what is plain and what can be read in several ways, inside of each other,
/// and before what an item can begin with too.
const REPETITIONS: &[&str] = &[
    r#"root ::= "\"" [^"\\]{0,7} "\"" ("," | "}")"#,
    r#"root ::= "<" [^<>]{3,9} ">" "x"?"#,
    r#"root ::= [^;]{5} ";" [^;]{4,} ";;""#,
    r#"root ::= ("(" [b-z0-9 ]{0,5} ")" ","?){2,6} ".""#,
    r#"root ::= ([a-z]+){2,6} " " [a-z ]{4,8} ".""#,
    r#"root ::= [a-z]{0,5} [a-z0-9]{4} "!""#,
    r#"root ::= ("-"? [A-Za-z0-9]){0,6} ("." ("-"? [A-Za-z0-9]){1,5}){1,5} "\"""#,
    r#"root ::= "\"" char{0,4} "\"" | "\"" char{2,9} "x" | "\"" char{6} ["0-9]
char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
"#,
    r#"root ::= "[" item{0,5} "]"
item ::= "\"" char{1,6} "\"" ","
char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
"#,
    r#"root ::= ("ab" | "abc" | "c")* [é-ü]{0,6} "d"{0,9} "." "#,
    r#"root ::= "[" [a-z]{4} "\x00" | "[" [a-z]{5} "]" | "(" [a-z]{0,6} ([0-9]{0,4} "\x00" | ")")"#,
    r#"root ::= ("" | "q"){5} [^q]{4,5} "q" | [x]{4} [^y]{0,4} "y""#,
];

fn compare(name: &str, vocab: &Arc<Vocab>, grammars: &[&str], steps: usize, seed: u64) {
    let pieces = pieces(vocab);
    let mut random = Random(seed);
    let mut masks = 0;
    for text in grammars {
        masks += walk(&grammar(text, vocab), vocab, &pieces, &mut random, steps);
    }
    println!("{name}: {} tokens, {masks} masks of {} grammars", vocab.n_tokens(), grammars.len());
}

#[test]
fn masks_are_what_every_token_s_bytes_say() {
    compare("demo", &vocab(&testing::demo()), GRAMMARS, 25, 1);
    compare("demo", &vocab(&testing::demo()), REPETITIONS, 80, 3);
}

#[test]
#[ignore = "minutes: make deep"]
fn masks_of_large_vocabularies_are_what_every_token_s_bytes_say() {
    let Some(shared) = real_vocabularies::folder() else { return };
    for name in ["llama-spm", "llama-bpe", "qwen2", "gemma-4"] {
        let vocab = vocab(&shared.join(format!("models/vocab/ggml-vocab-{name}.gguf")));
        compare(name, &vocab, GRAMMARS, 200, 2);
        compare(name, &vocab, REPETITIONS, 60, 4);
    }
}

#[test]
#[ignore = "minutes: make deep"]
fn masks_of_schemas_are_what_every_token_s_bytes_say() {
    let vocab = vocab(&testing::demo());
    let pieces = pieces(&vocab);
    let (mut random, mut masks) = (Random(5), 0);
    for case in schemas::all() {
        let grammar = elizainference::grammar::load(&case.source(), &vocab).unwrap();
        masks += walk(&grammar, &vocab, &pieces, &mut random, 60);
    }
    println!("{masks} masks of 100 schemas");
}

#[test]
fn threads_that_share_a_grammar_find_the_same_masks() {
    let vocab = vocab(&testing::demo());
    let shared = grammar(JSON, &vocab);
    let alone: Vec<Vec<u32>> = (0..8).map(|seed| bits_of_walk(&grammar(JSON, &vocab), seed)).collect();
    std::thread::scope(|scope| {
        let walks: Vec<_> = (0..8)
            .map(|seed| {
                (
                    seed,
                    scope.spawn({
                        let shared = &shared;
                        move || bits_of_walk(shared, seed)
                    }),
                )
            })
            .collect();
        for (seed, walk) in walks {
            assert_eq!(walk.join().unwrap(), alone[seed as usize]);
        }
    });
}

fn bits_of_walk(grammar: &Arc<Grammar>, seed: u64) -> Vec<u32> {
    let (mut state, mut random, mut out) = (GrammarState::new(grammar.clone()), Random(seed), Vec::new());
    for _ in 0..60 {
        let mask = state.mask().unwrap().unwrap();
        out.extend_from_slice(mask.bits());
        let legal: Vec<Token> = (0..mask.bits().len() as Token * 32).filter(|&token| mask.allows(token)).collect();
        let token = legal[random.below(legal.len())];
        state.accept(token).unwrap();
    }
    out
}
