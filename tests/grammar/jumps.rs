//! Forced text, as bytes and as tokens.

use crate::testing;
use crate::texts::vocab;
use elizainference::Token;
use elizainference::grammar::{Grammar, GrammarOptions, GrammarState, JumpAhead, Rules};
use elizainference::vocab::Vocab;
use std::sync::Arc;

fn state(text: &str, vocab: &Arc<Vocab>, jump_ahead: JumpAhead) -> GrammarState {
    let options = GrammarOptions { jump_ahead, ..GrammarOptions::default() };
    GrammarState::new(Grammar::new(Rules::parse(text, "root").unwrap(), vocab, options).unwrap())
}

fn forced(state: &mut GrammarState) -> String {
    let mut out = Vec::new();
    state.forced(&mut out).unwrap();
    String::from_utf8_lossy(&out).into_owned()
}

fn text_of(vocab: &Vocab, tokens: &[Token]) -> String {
    let mut out = Vec::new();
    tokens.iter().for_each(|&token| vocab.piece(token, true, &mut out));
    String::from_utf8_lossy(&out).into_owned()
}

#[test]
fn forced_bytes_end_at_choices_and_ends() {
    let vocab = vocab(&testing::demo());
    for (grammar, before, wanted) in [
        ("root ::= \"{\\\"a\\\":\" [0-9]+ \"}\"", "", "{\"a\":"),
        ("root ::= \"abc\" | \"abd\"", "", "ab"),
        ("root ::= \"abc\" | \"abd\"", "abd", ""),
        ("root ::= \"ab\" \"c\"?", "", "ab"),
        ("root ::= \"ab\" \"c\"?", "ab", ""),
        ("root ::= \"日本\" | \"日曜\"", "", "日\u{FFFD}"),
        ("root ::= [^\"]* \"\\\"\"", "", ""),
        ("root ::= \"a\" [b] (\"c\" | \"c\" \"c\")", "", "abc"),
        ("root ::=", "", ""),
        ("", "", ""),
    ] {
        let mut state = state(grammar, &vocab, JumpAhead::Bytes);
        assert_eq!(state.advance_bytes(before.as_bytes(), &mut |_, _| {}), before.len());
        assert_eq!(forced(&mut state), wanted, "{grammar}");
    }
}

#[test]
fn runs_of_tokens_fit_and_hold_back_one_token_at_most() {
    let vocab = vocab(&testing::demo());
    let whole = "root ::= \"once upon a time there was a little girl\" ";
    for (rest, held) in [("[.!]", false), ("[a-z]* \".\"", true), ("(\" named\" | \"s\")", true), ("", false)] {
        let mut state = state(&format!("{whole}{rest}"), &vocab, JumpAhead::Bytes);
        let mut tokens = Vec::new();
        state.forced_tokens(&[], &mut tokens).unwrap();
        let text = "once upon a time there was a little girl";
        let spelled = text_of(&vocab, &tokens);
        assert!(text.starts_with(&spelled) && !tokens.is_empty(), "{rest}: {spelled}");
        // Where the last token could be a longer one, it is left to the model.
        let all = vocab.tokenize_inside(text.as_bytes(), false, &|| false).unwrap();
        assert!(tokens.len() + 1 >= all.len() && tokens.len() <= all.len(), "{rest}");
        assert!(held || tokens == all, "{rest}: {spelled}");
        if let Some(&last) = all.get(tokens.len()) {
            let longer = state.clone().also(&tokens).longer(&vocab, last);
            assert!(longer, "{rest}: held back without need");
        }
        tokens.iter().for_each(|&token| state.accept(token).unwrap());
    }
}

#[test]
fn runs_of_tokens_end_with_whole_characters() {
    let vocab = vocab(&testing::demo());
    // 本 and 曜 begin with the same byte.
    let mut state = state("root ::= \"a日本\" | \"a日曜\"", &vocab, JumpAhead::Bytes);
    let mut tokens = Vec::new();
    state.forced_tokens(&[], &mut tokens).unwrap();
    assert!("a日".starts_with(&text_of(&vocab, &tokens)), "{tokens:?}");
}

trait Ahead {
    fn also(self, tokens: &[Token]) -> Self;
    fn longer(self, vocab: &Vocab, last: Token) -> bool;
}

impl Ahead for GrammarState {
    fn also(mut self, tokens: &[Token]) -> Self {
        tokens.iter().for_each(|&token| self.accept(token).unwrap());
        self
    }

    /// Whether a token that begins as `last` and is longer is legal.
    fn longer(mut self, vocab: &Vocab, last: Token) -> bool {
        let mask = self.mask().unwrap().unwrap();
        let begin = text_of(vocab, &[last]);
        let goes_on = |token: Token| text_of(vocab, &[token]).strip_prefix(&begin).is_some_and(|rest| !rest.is_empty());
        (0..vocab.n_tokens() as Token).any(|token| mask.allows(token) && goes_on(token))
    }
}

#[test]
fn single_legal_tokens_are_those_of_a_decode_without_jumps() {
    let vocab = vocab(&testing::demo());
    let mut ahead = state("root ::= \"1\" \"2\" (\"345\" | \"346\") \"7\"", &vocab, JumpAhead::Tokens);
    let mut tokens = Vec::new();
    ahead.forced_tokens(&[], &mut tokens).unwrap();
    let mut plain = state("root ::= \"1\" \"2\" (\"345\" | \"346\") \"7\"", &vocab, JumpAhead::Off);
    let mut none = Vec::new();
    plain.forced_tokens(&[], &mut none).unwrap();
    assert!(none.is_empty());
    for &token in &tokens {
        assert_eq!(plain.mask().unwrap().unwrap().few(), Some(&[token][..]));
        plain.accept(token).unwrap();
    }
    assert_ne!(plain.mask().unwrap().unwrap().count(), 1);
    // Nothing was moved.
    assert_eq!(ahead.advance_bytes(b"123467", &mut |_, _| {}), 6);
}

#[test]
fn tokens_before_a_run_are_tokenized_with_it_where_that_changes_none_of_them() {
    let vocab = vocab(&testing::demo());
    let text = "there was a little girl named Lily";
    let all = vocab.tokenize_inside(text.as_bytes(), false, &|| false).unwrap();
    for split in 1..all.len() {
        let (tail, rest) = all.split_at(split);
        let literal = text_of(&vocab, rest);
        let mut state = state(&format!("root ::= \"{literal}\""), &vocab, JumpAhead::Bytes);
        let mut tokens = Vec::new();
        state.forced_tokens(tail, &mut tokens).unwrap();
        assert_eq!(text_of(&vocab, &tokens), literal);
        tokens.iter().for_each(|&token| state.accept(token).unwrap());
        assert!(state.must_end().unwrap());
    }
}
