//! The odd cases of a constrained span.

use super::spans::{arm, payload, wants};
use super::*;

const X: &str = r#"{"name":"x","tokens":[120]}"#;

fn leaf(name: &str, tokens: &[Token]) -> String {
    format!(r#"{{"name":"{name}","tokens":{tokens:?}}}"#)
}

/// A run without a choice that is longer than the context.
fn endless() -> String {
    leaf("endless", &(0..100).map(|at| Token::from(b'a' + at % 26)).collect::<Vec<_>>())
}

/// Generates, and cancels from the callback of this token.
fn generate_and_cancel(session: &Arc<Session>, at: usize) -> Heard {
    session.prefill(&PROMPT, -1).unwrap();
    let (sender, receiver) = channel();
    let (canceller, mut heard) = (session.clone(), 0);
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        heard += 1;
        if heard == at {
            canceller.cancel();
        }
        let _ = sender.send(Seen { token: event.token, text: event.text.into(), done: event.done });
    }));
    session.generate(-1, Some(0.0), None, sink).unwrap();
    Heard::all(&receiver)
}

#[test]
fn a_single_leaf_of_a_single_token_needs_no_pass() {
    let fake = wants("!?");
    let watch = fake.watch.clone();
    let session = open(fake);
    arm(&session, &[X]);
    set(&session, |settings| settings.on_span_end = SpanEnd::Stop);
    let heard = generate(&session, -1);
    assert_eq!((heard.text().as_str(), reason(&session)), ("x", FinishReason::Span));
    assert!(watch.batches.lock().is_empty(), "nothing was evaluated behind the prompt");
    set(&session, |settings| settings.on_span_end = SpanEnd::Continue);
    assert_eq!(generate(&session, 2).text(), "x?");
    assert_eq!(watch.batches.lock().as_slice(), [[120]]);
}

#[test]
fn one_name_may_have_two_paths_and_two_names_one() {
    let session = open(wants("wz!"));
    set(&session, |settings| settings.on_span_end = SpanEnd::Stop);
    let word = |name: &str| leaf(name, &[HELLO]);
    // One word, whole and in letters: either may be taken.
    let spelled = leaf("Hello", &[72, 101, 108, 108, 111]);
    arm(&session, &[&word("Hello"), &spelled]);
    let heard = generate(&session, -1);
    assert_eq!((heard.text().as_str(), heard.tokens.len()), ("Hello", 5), "of equals the smaller token");
    arm(&session, &[&word("Hello"), &word("Hello"), &word("Other")]);
    assert_eq!(generate(&session, -1).tokens, [HELLO]);
}

#[test]
fn bytes_that_split_a_character_are_held_back_until_it_is_whole() {
    // A snowman and a comet, which differ in the last of three bytes.
    let names = [leaf("\u{2603}", &[0xE2, 0x98, 0x83]), leaf("\u{2604}", &[0xE2, 0x98, 0x84])];
    let session = open(say([0, 0, 0x84, WORLD]));
    arm(&session, &names.each_ref().map(String::as_str));
    let heard = generate(&session, -1);
    assert_eq!(heard.tokens, [0xE2, 0x98, 0x84, WORLD]);
    assert_eq!(heard.texts, ["", "", "\u{2604}", " world", ""]);
    // Cut inside the character: its bytes come as a replacement character with the end.
    let heard = generate(&session, 2);
    assert_eq!((heard.texts, reason(&session)), (vec!["".into(), "".into(), "\u{FFFD}".into()], FinishReason::Length));
    // A leaf may also end inside one: what follows freely completes it.
    arm(&session, &[&leaf("half", &[0xE2, 0x98])]);
    assert_eq!(generate(&session, -1).texts, ["", "", "\u{2604}", " world", ""]);
}

#[test]
fn an_end_token_in_a_leaf_ends_the_generation_wherever_it_stands() {
    let session = open(wants("ab"));
    for (tokens, said) in [(vec![EOG], vec![]), (vec![114, EOG, 101], vec![114]), (vec![EOG, 114], vec![])] {
        arm(&session, &[&leaf("r", &tokens)]);
        let heard = generate(&session, -1);
        assert_eq!((heard.tokens, reason(&session)), (said, FinishReason::Stop), "{tokens:?}");
        assert_eq!(heard.texts.concat().len(), session.usage().completion_tokens as usize, "never delivered");
    }
    // As one child among others it is taken where the model wants it, and only there.
    let either = [leaf("a", &[97, EOG]), leaf("ab", &[97, 98])];
    let either = either.each_ref().map(String::as_str);
    arm(&session, &either);
    assert_eq!(generate(&session, 2).text(), "ab");
    let session = open(wants("a"));
    arm(&session, &either);
    assert_eq!((generate(&session, -1).text().as_str(), reason(&session)), ("a", FinishReason::Stop));
}

#[test]
fn a_context_that_ends_inside_a_run_ends_the_generation_there() {
    let fake = wants("");
    let watch = fake.watch.clone();
    let session = open(fake);
    arm(&session, &[&endless()]);
    let room = CONTEXT - PROMPT.len();
    for _ in 0..2 {
        let heard = generate(&session, -1);
        assert_eq!((heard.tokens.len(), reason(&session)), (room, FinishReason::Context));
        assert!(heard.text().starts_with("abcdefghijklmnopqrstuvwxyzab"), "from the root again: {}", heard.text());
        assert_eq!(session.usage().forced_tokens as usize, room);
    }
    assert!(watch.batches.lock().is_empty(), "a run at the end is not evaluated");
    // One short of the end: the run is evaluated with the last position at which there is room for a choice.
    let fits: Vec<Token> = (0..room as Token - 1).map(|_| 97).collect();
    arm(&session, &[&leaf(&"a".repeat(room - 1), &fits)]);
    set(&session, |settings| settings.ignore_eos = true);
    let heard = generate(&session, -1);
    assert_eq!((heard.tokens.len(), reason(&session)), (room, FinishReason::Context));
    assert_eq!(watch.batches.lock().as_slice(), [fits]);
}

#[test]
fn a_cancel_inside_a_run_stops_it_and_the_next_prompt_begins_the_span_again() {
    let fake = wants("");
    let watch = fake.watch.clone();
    let session = Arc::new(open(fake));
    arm(&session, &[&endless()]);
    for at in [1, 5, 30] {
        let heard = generate_and_cancel(&session, at);
        assert_eq!((heard.tokens.len(), reason(&session)), (at, FinishReason::Cancelled));
        assert!(heard.text().chars().zip(('a'..='z').cycle()).all(|(said, expected)| said == expected));
        assert!(watch.batches.lock().is_empty(), "slot and prompt are still the same");
        // What was said may become a part of the next prompt, but the span begins anew.
        let longer = [PROMPT.as_slice(), &heard.tokens].concat();
        session.prefill(&longer, -1).unwrap();
        let (sink, receiver) = listener();
        session.generate(3, Some(0.0), None, sink).unwrap();
        assert_eq!(Heard::all(&receiver).text(), "abc");
    }
}

#[test]
fn a_refused_or_cancelled_prompt_leaves_the_span_where_it_was() {
    let session = open(wants("zz"));
    arm(&session, &[X]);
    assert!(session.prefill(&[0; CONTEXT + 1], -1).is_err());
    assert_eq!(generate(&session, 2).text(), "xz");
    // Set again while idle after a prompt: the new trie counts for the generation that follows.
    session.prefill(&PROMPT, -1).unwrap();
    session.set_trie(payload("", &[("p", &[&leaf("y", &[121])])]).as_bytes(), Mode::Greedy).unwrap();
    let (sink, receiver) = listener();
    session.generate(1, Some(0.0), None, sink).unwrap();
    assert_eq!(Heard::all(&receiver).text(), "y");
}
