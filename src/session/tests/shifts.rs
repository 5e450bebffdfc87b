//! Context shifts: which tokens are removed, which are kept, and what does not change.

use super::spans::{arm, payload};
use super::*;

/// A model that counts: after a token it says the next number, up to 200 and then again from 100.
fn counter() -> Fake {
    Fake::new(Box::new(|slot, _, row| {
        let last = *slot.last().unwrap();
        row[if (100..200).contains(&last) { last as usize + 1 } else { 100 }] = 10.0;
        Ok(())
    }))
}

fn counted(n: usize) -> Vec<Token> {
    (100..=200).cycle().take(n).collect()
}

fn shift(session: &Session, keep: u32) {
    set(session, |settings| settings.on_context_full = ContextFull::Shift { keep });
}

/// The slots after shifts by the rule itself: half of the tokens between the kept ones and the last token is removed.
fn expected_shifts(stream: &[Token], keep: usize) -> Vec<Vec<Token>> {
    let (mut held, mut shifts) = (Vec::new(), Vec::new());
    for &token in stream {
        if held.len() == CONTEXT {
            let last = held.pop().unwrap();
            held.drain(keep..keep + (held.len() - keep) / 2);
            shifts.push(held.clone());
            held.push(last);
        }
        held.push(token);
    }
    shifts
}

#[test]
fn a_full_context_shifts_and_the_generation_goes_on() {
    for keep in [0, 1, 3, 20, 60, 61] {
        let fake = counter();
        let watch = fake.watch.clone();
        let session = open(fake);
        shift(&session, keep);
        let heard = generate(&session, 300);
        assert_eq!(heard.tokens, counted(300));
        let usage = session.usage();
        assert_eq!((usage.finish_reason, usage.completion_tokens), (FinishReason::Length, 300));
        let expected = expected_shifts(&[&PROMPT[..], &heard.tokens].concat(), keep as usize);
        assert_eq!(*watch.shifts.lock(), expected, "keep {keep}");
        assert_eq!(usage.context_shifts, expected.len() as u64, "keep {keep}");
        assert!(session.usage_json().contains(&format!("\"context_shifts\":{}", expected.len())));
        // Another prompt counts from 0, and without the option the context ends.
        set(&session, |settings| settings.on_context_full = ContextFull::Stop);
        let heard = generate(&session, -1);
        assert_eq!((heard.tokens.len(), reason(&session)), (CONTEXT - PROMPT.len(), FinishReason::Context));
        assert_eq!(session.usage().context_shifts, 0);
    }
}

#[test]
fn what_a_shift_cannot_keep_is_refused_with_the_numbers() {
    let session = open(counter());
    for keep in [62, 64, 65, u32::MAX] {
        let before = session.settings().on_context_full;
        let settings = Settings { on_context_full: ContextFull::Shift { keep }, ..session.settings() };
        let error = session.configure(settings).unwrap_err();
        let text = format!("n_keep is {keep}: in a context of 64 tokens a shift can keep 61");
        assert_eq!(error, Error::InvalidArgument(text));
        assert_eq!(session.settings().on_context_full, before);
    }
    shift(&session, 61);
    assert!(matches!(session.prefill(&[7; CONTEXT + 1], -1), Err(Error::OutOfMemory(_))), "a prompt is never cut");
}

#[test]
fn a_prompt_that_fills_the_context_goes_on_too() {
    let fake = counter();
    let watch = fake.watch.clone();
    let session = open(fake);
    shift(&session, 3);
    let prompt: Vec<Token> = (1..=CONTEXT as Token).collect();
    session.prefill(&prompt, -1).unwrap();
    let (sink, receiver) = listener();
    session.generate(20, Some(0.0), None, sink).unwrap();
    assert_eq!(Heard::all(&receiver).tokens, counted(20));
    let kept: Vec<Token> = (1..=3).chain(34..=63).collect();
    assert_eq!(*watch.shifts.lock(), [kept]);
    assert_eq!(session.usage().context_shifts, 1);
    // Nothing is shifted for a token that nobody asked for.
    session.prefill(&prompt, -1).unwrap();
    let (sink, receiver) = listener();
    session.generate(0, Some(0.0), None, sink).unwrap();
    assert!(Heard::all(&receiver).tokens.is_empty());
    assert_eq!((session.usage().context_shifts, reason(&session)), (0, FinishReason::Length));
}

#[test]
fn a_span_longer_than_the_context_is_whole() {
    let run: Vec<Token> = (0..150).map(|at| 10 + at % 26).collect();
    let leaf = format!(r#"{{"name":"endless","tokens":{run:?}}}"#);
    for keep in [0, 5, 61] {
        let session = open(counter());
        shift(&session, keep);
        arm(&session, &[&leaf]);
        let heard = generate(&session, 155);
        assert_eq!((&heard.tokens[..150], &heard.tokens[150..]), (&run[..], &counted(5)[..]), "keep {keep}");
        let usage = session.usage();
        assert_eq!((usage.forced_tokens, usage.span_tokens), (150, 150));
        assert!(usage.context_shifts > 1, "{usage:?}");
    }
}

#[test]
fn penalties_look_back_on_what_the_context_holds() {
    // Without the penalty it would say 97 for ever; with it, whatever is not in the context.
    let fake = Fake::new(Box::new(|_, _, row| {
        for (token, logit) in row.iter_mut().enumerate().take(177).skip(97) {
            *logit = 200.0 - token as f32;
        }
        Ok(())
    }));
    let session = open(fake);
    shift(&session, 3);
    let params = Params { repeat_last_n: 4096, presence_penalty: 150.0, temperature: 0.0, ..Params::default() };
    set(&session, |settings| settings.params = params);
    let heard = generate(&session, 100);
    let (mut held, mut expected) = (PROMPT.to_vec(), Vec::new());
    while expected.len() < 100 {
        if held.len() == CONTEXT {
            let last = held.pop().unwrap();
            held.drain(3..3 + (held.len() - 3) / 2);
            held.push(last);
        }
        let next = (97..177).find(|token| !held.contains(token)).unwrap();
        held.push(next);
        expected.push(next);
    }
    assert_eq!(heard.tokens, expected);
}

#[test]
fn draws_after_a_shift_are_others_than_before_it() {
    // Every byte is as likely as any other, whatever was said: the draws alone tell the tokens apart.
    let session = open(Fake::new(Box::new(|_, _, row| {
        row[256..].fill(f32::NEG_INFINITY);
        Ok(())
    })));
    shift(&session, 3);
    set(&session, |settings| settings.params = Params { seed: Some(5), top_k: 0, top_p: 1.0, ..Params::default() });
    session.prefill(&PROMPT, -1).unwrap();
    let (sink, receiver) = listener();
    session.generate(400, Some(1.0), None, sink).unwrap();
    let heard = Heard::all(&receiver).tokens;
    // After the first 61 tokens each shift makes room for 30, at the same positions again.
    let rounds: Vec<&[Token]> = heard[61..].chunks_exact(30).collect();
    for (at, round) in rounds.iter().enumerate() {
        for other in &rounds[..at] {
            let same = round.iter().zip(*other).filter(|(a, b)| a == b).count();
            assert!(same < 5, "{same} of 30 draws of a round come again");
        }
    }
}

#[test]
fn a_cancel_while_a_shift_evaluates_loses_nothing() {
    let session = open(counter());
    shift(&session, 3);
    let json = payload("", &[("p", &[r#"{"name":"x","tokens":[50]}"#])]);
    session.set_trie(json.as_bytes(), Mode::Greedy).unwrap();
    let session = Arc::new(session);
    session.prefill(&PROMPT, -1).unwrap();
    let (sender, receiver) = channel();
    let (canceller, mut heard) = (session.clone(), 0);
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        heard += 1;
        if heard == 100 {
            canceller.cancel();
        }
        let _ = sender.send(Seen { token: event.token, text: event.text.into(), done: event.done });
    }));
    session.generate(-1, Some(0.0), None, sink).unwrap();
    let said = Heard::all(&receiver).tokens;
    assert_eq!((said.len(), reason(&session)), (100, FinishReason::Cancelled));
    assert_eq!(said, [&[50][..], &counted(99)].concat());
}

#[test]
fn a_pulled_generation_without_end_holds_no_more_than_was_not_taken() {
    let session = open(counter());
    shift(&session, 3);
    session.prefill(&PROMPT, -1).unwrap();
    session.generate(5000, Some(0.0), None, Sink::Queue).unwrap();
    let (mut tokens, mut text, mut said) = ([0; 7], [0; 64], Vec::new());
    loop {
        let step = session.next(None, &mut tokens, &mut text).unwrap();
        said.extend_from_slice(&tokens[..step.tokens]);
        if step.done {
            break;
        }
    }
    assert_eq!(said, counted(5000));
}
