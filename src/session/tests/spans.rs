//! The token trie's life in a session.

use super::*;

const RED: &str = r#"{"name":"red","tokens":[114,101,100]}"#;
const REED: &str = r#"{"name":"reed","tokens":[114,101,101,100]}"#;
const RE: &str = r#"{"name":"re","tokens":[114,101]}"#;
const X: &str = r#"{"name":"x","tokens":[120]}"#;

pub(super) fn payload(model: &str, descriptors: &[(&str, &[&str])]) -> String {
    let descriptors: Vec<String> = descriptors
        .iter()
        .map(|(path, leaves)| format!(r#"{{"path":"{path}","leaves":[{}]}}"#, leaves.join(",")))
        .collect();
    format!(r#"{{"modelId":"{model}","descriptors":[{}]}}"#, descriptors.join(","))
}

pub(super) fn arm(session: &Session, leaves: &[&str]) {
    session.set_trie(payload("", &[("p", leaves)]).as_bytes(), Mode::Greedy).unwrap();
}

/// A model that wants `text` after the prompt whatever was forced before, at a lower level "d" and "x".
pub(super) fn wants(text: &str) -> Fake {
    let text = text.to_owned();
    Fake::new(Box::new(move |slot, _, row| {
        row[usize::from(b'd')] = 2.0;
        row[usize::from(b'x')] = 1.0;
        let wanted = text.as_bytes().get(slot.len() - PROMPT.len());
        row[wanted.map_or(EOG as usize, |&byte| byte.into())] = 10.0;
        Ok(())
    }))
}

#[test]
fn a_span_takes_only_its_leaves_then_generation_goes_on_freely() {
    let fake = wants("blue!");
    let watch = fake.watch.clone();
    let session = open(fake);
    arm(&session, &[RED, REED]);
    let heard = generate(&session, -1);
    assert_eq!(heard.text(), "rede!", "of d and e, d is likelier here; then the model's own 4th byte");
    assert_eq!(reason(&session), FinishReason::Stop);
    let usage = session.usage();
    assert_eq!((usage.completion_tokens, usage.forced_tokens), (5, 2));
    let batches = watch.batches.lock();
    assert_eq!(
        batches[0],
        [114, 101],
        "the forced run is evaluated at once, with the position where there is a choice"
    );
    assert_eq!(usage.forward_passes, 1 + 1 + 3, "the prompt, the run, then d, e and the mark");
}

#[test]
fn the_end_of_a_span_can_end_the_generation() {
    // A leaf without children: its last token belongs to the span.
    let session = open(wants("red and"));
    set(&session, |settings| settings.on_span_end = SpanEnd::Stop);
    arm(&session, &[RED]);
    let heard = generate(&session, -1);
    assert_eq!((heard.text().as_str(), reason(&session)), ("red", FinishReason::Span));
    assert_eq!(session.usage().forced_tokens, 3);

    // A leaf with children: the token that ends it is neither emitted nor kept.
    for (text, expected) in [("re!", "re"), ("red", "red"), ("re", "re")] {
        let fake = wants(text);
        let watch = fake.watch.clone();
        let session = open(fake);
        set(&session, |settings| settings.on_span_end = SpanEnd::Stop);
        arm(&session, &[RE, RED]);
        let heard = generate(&session, -1);
        assert_eq!((heard.text().as_str(), reason(&session)), (expected, FinishReason::Span), "{text}");
        assert!(watch.batches.lock().concat().iter().all(|&token| token != Token::from(b'!')));
    }
    let session = open(wants("re!?"));
    arm(&session, &[RE, RED]);
    let heard = generate(&session, -1);
    assert_eq!((heard.text().as_str(), reason(&session)), ("re!?", FinishReason::Stop), "continue emits it");
}

#[test]
fn end_of_generation_is_masked_inside_a_span_and_ends_both_where_a_leaf_has_it() {
    let session = open(wants(""));
    arm(&session, &[RED, X]);
    assert_eq!(generate(&session, 1).text(), "x", "masked: the likeliest child is taken");
    let leaf = format!(r#"{{"name":"r","tokens":[114,{EOG}]}}"#);
    arm(&session, &[&leaf]);
    let heard = generate(&session, -1);
    assert_eq!((heard.tokens, reason(&session)), (vec![114], FinishReason::Stop));
    assert_eq!(session.usage().completion_tokens, 1);
    // A leaf with children is complete, so the model may end there.
    let session = open(wants("re"));
    arm(&session, &[RE, RED]);
    assert_eq!((generate(&session, -1).text().as_str(), reason(&session)), ("re", FinishReason::Stop));
}

#[test]
fn suppressed_tokens_are_taken_only_where_the_trie_asks_for_them() {
    let session = open(say([HELLO, NEVER]));
    assert_eq!(generate(&session, 2).tokens, [HELLO, 0], "the next best, of equals the first");
    let leaf = format!(r#"{{"name":"Hellonever","tokens":[{HELLO},{NEVER}]}}"#);
    arm(&session, &[&leaf]);
    assert_eq!(generate(&session, 2).tokens, [HELLO, NEVER]);
}

#[test]
fn ignore_eos_bans_it_except_where_the_trie_asks_for_it() {
    let session = open(say([HELLO]));
    set(&session, |settings| settings.ignore_eos = true);
    let heard = generate(&session, 5);
    assert_eq!((heard.tokens.len(), reason(&session)), (5, FinishReason::Length));
    assert!(!heard.tokens.contains(&EOG));
    let leaf = format!(r#"{{"name":"r","tokens":[114,{EOG}]}}"#);
    arm(&session, &[&leaf]);
    assert_eq!((generate(&session, 5).tokens, reason(&session)), (vec![114], FinishReason::Stop));
}

#[test]
fn forced_tokens_count_towards_the_limit_and_a_prefill_arms_again() {
    let session = open(wants("zzz"));
    arm(&session, &[RED]);
    for _ in 0..2 {
        assert_eq!((generate(&session, 2).text().as_str(), reason(&session)), ("re", FinishReason::Length));
    }
    assert_eq!(generate(&session, 0).text(), "");
}

#[test]
fn one_descriptor_is_armed_at_a_time() {
    let session = open(wants("   "));
    let two = payload("tiny", &[("first", &[RED]), ("second", &[X])]);
    session.set_trie(two.as_bytes(), Mode::Sampled).unwrap();
    assert_eq!(generate(&session, 1).text(), "r");
    session.arm_trie(Some("second")).unwrap();
    assert_eq!(generate(&session, 1).text(), "x");
    assert_eq!(generate(&session, 1).text(), "x", "the one armed last stays");
    session.arm_trie(None).unwrap();
    assert_eq!(generate(&session, 1).text(), "r", "the next in order, from the start again");
    let unknown = session.arm_trie(Some("third"));
    assert!(matches!(&unknown, Err(Error::InvalidArgument(problem)) if problem.contains("first")), "{unknown:?}");
    assert_eq!(generate(&session, 1).text(), "r", "a failed arm changes nothing");
    session.clear_trie().unwrap();
    assert_eq!(generate(&session, 1).text(), " ");
    assert!(session.arm_trie(None).is_err());
    session.clear_trie().unwrap();
}

#[test]
fn a_failed_set_bars_generate_until_a_set_or_a_clear_succeeds() {
    let session = open(wants("zzz"));
    arm(&session, &[RED]);
    let refused = session.set_trie(b"{", Mode::Greedy).unwrap_err();
    session.prefill(&PROMPT, -1).unwrap();
    for _ in 0..2 {
        assert_eq!(session.generate(1, None, None, Sink::Queue), Err(refused.clone()));
    }
    let mut buffers = ([0; 4], [0; 64]);
    assert_eq!(session.next(None, &mut buffers.0, &mut buffers.1), Err(refused));
    session.clear_trie().unwrap();
    assert_eq!(generate(&session, 1).text(), "z");
    let outside = payload("", &[("p", &[r#"{"name":"n","tokens":[999999]}"#])]);
    let refused = session.set_trie(outside.as_bytes(), Mode::Greedy).unwrap_err();
    session.prefill(&PROMPT, -1).unwrap();
    assert_eq!(session.generate(1, None, None, Sink::Queue), Err(refused));
    arm(&session, &[RED]);
    assert_eq!(generate(&session, 1).text(), "r");
}

#[test]
fn strictness_refuses_foreign_payloads() {
    let session = open(wants("zzz"));
    let foreign = payload("another-model", &[("p", &[RED])]);
    let misspelt = payload("tiny", &[("p", &[r#"{"name":"blue","tokens":[114,101,100]}"#])]);
    for json in [&foreign, &misspelt] {
        set(&session, |settings| settings.strict_trie = false);
        session.set_trie(json.as_bytes(), Mode::Greedy).unwrap();
        set(&session, |settings| settings.strict_trie = true);
        assert!(matches!(session.set_trie(json.as_bytes(), Mode::Greedy), Err(Error::Trie { .. })));
    }
    session.set_trie(payload("tiny", &[("p", &[RED])]).as_bytes(), Mode::Greedy).unwrap();
}

#[test]
fn l5_a_set_that_came_while_a_generation_ran_bars_nothing_later() {
    let session = Arc::new(open(say([HELLO])));
    let json = payload("", &[("p", &[X])]);
    let stop = Arc::new(AtomicBool::new(false));
    let setter = thread::spawn({
        let (session, stop) = (session.clone(), stop.clone());
        move || {
            while !stop.load(Ordering::Relaxed) {
                let outcome = session.set_trie(json.as_bytes(), Mode::Greedy);
                assert!(outcome.is_ok() || is_busy(outcome));
            }
        }
    });
    // Generations begin and end as fast as the lock allows, also between a set's looks at the session.
    let mut barred = None;
    for at in 1..=200_000 {
        let mut state = session.shared.lock();
        state.phase = if at % 2 == 0 { Phase::Idle } else { Phase::Generating };
        barred = barred.or_else(|| state.check_constraint().err());
    }
    stop.store(true, Ordering::Relaxed);
    setter.join().unwrap();
    assert_eq!(barred, None);
    session.clear_trie().unwrap();
    assert_eq!(generate(&session, -1).tokens, [HELLO]);
}
