//! The budget of reasoning in a generation: which tokens are forced, and what they cost.

use super::*;

/// A model that says the next letter, over and over.
fn letters() -> Fake {
    Fake::new(Box::new(|slot, _, row| {
        let last = *slot.last().unwrap();
        row[if (100..120).contains(&last) { last as usize + 1 } else { 100 }] = 10.0;
        Ok(())
    }))
}

fn budget(tokens: u32, start: &str, end: &str) -> Option<ReasoningBudget> {
    Some(ReasoningBudget { tokens, start: start.into(), end: end.into() })
}

#[test]
fn the_end_of_thinking_is_forced() {
    let session = open(letters());
    set(&session, |settings| settings.reasoning = budget(2, "fg", "!?"));
    let heard = generate(&session, 14);
    assert_eq!(heard.tokens, b"defghi!?defghi".map(Token::from));
    assert_eq!((session.usage().forced_tokens, session.usage().sampled_tokens), (2, 12));
    set(&session, |settings| settings.reasoning = budget(50, "fg", "lm"));
    assert_eq!(generate(&session, 12).tokens, b"defghijklmno".map(Token::from), "it ends by itself");
    // The prompt ends with the start.
    set(&session, |settings| settings.reasoning = budget(0, "\u{1}\u{2}\u{3}", "!"));
    assert_eq!(generate(&session, 4).tokens, b"!def".map(Token::from));
    set(&session, |settings| settings.reasoning = None);
    assert_eq!(generate(&session, 4).tokens, b"defg".map(Token::from));
}

#[test]
fn a_tag_without_tokens_is_refused() {
    let session = open(letters());
    let settings = Settings { reasoning: budget(2, "", "!"), ..session.settings() };
    let error = session.configure(settings).unwrap_err().to_string();
    assert!(error.contains("start of the reasoning budget has no tokens"), "{error}");
}
