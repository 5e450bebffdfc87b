//! Streams saved wherever they stop and restored in another session: they go on as if nothing had been between.

use crate::testing;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::has_gpu;
use crate::testing::rng::Stream;
use elizainference::session::{EngineOptions, Event, FinishReason, KvType, Mode, OpenOptions, Session, Sink, SpanEnd};
use elizainference::{Error, Token};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;

const PROMPT: [Token; 6] = [1, 40, 300, 77, 410, 150];
const MODES: [Mode; 3] = [Mode::Greedy, Mode::Sampled, Mode::ScoreLeaves];

fn open(gpu_layers: i32, context: u32) -> Session {
    let path = testing::fixture(Kind::Llama, Weights::F32);
    let kv_type = KvType::F32;
    let engine = EngineOptions { context, kv_type, slots: 2, threads: 1, gpu_layers, ..EngineOptions::default() };
    let session = Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap();
    let mut settings = session.settings();
    settings.ignore_eos = true;
    settings.params.seed = Some(11);
    session.configure(settings).unwrap();
    for slot in [-1, 0, 1] {
        session.set_chain(slot, Some("penalties=8,1.3,0.1,0.1;top_k=40;temp=1.2".parse().unwrap())).unwrap();
    }
    session
}

/// What a generation says; it is cancelled when it has said `cancel_at` tokens.
fn listen(session: &Arc<Session>, max_new_tokens: i32, cancel_at: Option<usize>) -> Vec<Token> {
    let (sender, receiver) = channel();
    let (canceller, mut count) = (session.clone(), 0);
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        if !event.done {
            count += 1;
            let _ = sender.send(event.token);
            if Some(count) == cancel_at {
                canceller.cancel();
            }
        }
    }));
    session.generate(max_new_tokens, None, None, sink).unwrap();
    let said = receiver.iter().collect();
    assert_eq!(session.take_error(), None);
    said
}

fn payload(leaves: &[Vec<Token>]) -> String {
    let leaves: Vec<String> =
        leaves.iter().enumerate().map(|(at, tokens)| format!(r#"{{"name":"{at}","tokens":{tokens:?}}}"#)).collect();
    format!(r#"{{"descriptors":[{{"path":"p","leaves":[{}]}}]}}"#, leaves.join(","))
}

/// Leaves of a few letters: some begin others, many share their beginning, and runs without a choice stand between.
fn random_leaves(seed: u64) -> Vec<Vec<Token>> {
    let stream = Stream::new(seed, "saved tries");
    (0..1 + stream.below(0, 9))
        .map(|leaf| {
            let at = 100 * (leaf + 1);
            (0..1 + stream.below(at, 8)).map(|i| 259 + stream.below(at + 1 + i, 2 + i % 3) as Token).collect()
        })
        .collect()
}

/// Every place at which a span and what follows can be cut, in every mode, by the limit and by a cancel.
fn cut_everywhere(gpu_layers: i32, tries: u64, tokens: i32) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    let (first, second) = (Arc::new(open(gpu_layers, 128)), Arc::new(open(gpu_layers, 128)));
    for (seed, mode) in (0..tries).flat_map(|seed| MODES.map(|mode| (seed, mode))) {
        let json = payload(&random_leaves(seed));
        for session in [&first, &second] {
            session.set_trie(json.as_bytes(), mode).unwrap();
        }
        first.prefill(&PROMPT, 0).unwrap();
        let expected = listen(&first, tokens, None);
        assert_eq!(expected.len(), tokens as usize);
        for cut in 0..tokens {
            let name = format!("trie {seed}, {mode:?}, cut at {cut}, {gpu_layers} layers on the GPU");
            first.prefill(&PROMPT, 0).unwrap();
            let cancelled = cut > 0 && seed % 2 == 1;
            let begun = match cancelled {
                true => listen(&first, -1, Some(cut as usize)),
                false => listen(&first, cut, None),
            };
            let reason = if cancelled { FinishReason::Cancelled } else { FinishReason::Length };
            assert_eq!((begun.as_slice(), first.status().finish_reason), (&expected[..cut as usize], reason), "{name}");
            first.save_slot(-1, &path).unwrap();
            assert_eq!(second.restore_slot(0, &path).unwrap(), PROMPT.len() + cut as usize, "{name}");
            let rest = listen(&second, tokens - cut, None);
            assert_eq!([begun, rest].concat(), expected, "{name}");
        }
    }
}

#[test]
fn a_span_goes_on_from_every_place() {
    cut_everywhere(0, 16, 14);
}

#[test]
fn a_span_goes_on_from_every_place_on_a_gpu() {
    if has_gpu() {
        cut_everywhere(-1, 4, 12);
    }
}

#[test]
fn a_stream_is_saved_and_restored_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    let session = Arc::new(open(0, 128));
    let json = payload(&random_leaves(3));
    for mode in MODES {
        session.set_trie(json.as_bytes(), mode).unwrap();
        session.prefill(&PROMPT, 1).unwrap();
        let expected = listen(&session, 12, None);
        session.prefill(&PROMPT, 1).unwrap();
        let mut said = Vec::new();
        for _ in 0..12 {
            session.save_slot(1, &path).unwrap();
            session.restore_slot(1, &path).unwrap();
            said.extend(listen(&session, 1, None));
        }
        assert_eq!(said, expected, "{mode:?}");
    }
}

/// The session as a save and a failed restore leave it: as it was.
fn goes_on(session: &Arc<Session>, expected: &[Token]) {
    assert_eq!(listen(session, expected.len() as i32, None), expected);
}

/// The problem of a refused restore, and at which place of the file.
fn refusal(session: &Session, path: &Path) -> (String, String) {
    let error = session.restore_slot(0, path).unwrap_err();
    assert_eq!(session.status().error.as_ref(), Some(&error));
    assert_eq!(session.take_error().as_ref(), Some(&error));
    match error {
        Error::SavedSlot { path: named, place, problem } if named == path => (place, problem),
        other => panic!("{other}"),
    }
}

#[test]
fn a_constraint_in_force_needs_its_trie() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("inside");
    let leaves = [vec![259, 260, 261, 262], vec![259, 260, 270, 271]];
    let session = Arc::new(open(0, 128));
    session.set_trie(payload(&leaves).as_bytes(), Mode::Greedy).unwrap();
    session.prefill(&PROMPT, 0).unwrap();
    let begun = listen(&session, 1, None);
    assert_eq!(begun, [259]);
    session.save_slot(0, &path).unwrap();

    let other = Arc::new(open(0, 128));
    other.prefill(&PROMPT, 0).unwrap();
    let expected = listen(&other, 4, None);
    other.prefill(&PROMPT, 0).unwrap();
    let (place, problem) = refusal(&other, &path);
    assert!(place == "constraint" && problem.contains("none is set"), "{place} {problem}");
    goes_on(&other, &expected);
    other.set_trie(payload(&leaves[..1]).as_bytes(), Mode::Greedy).unwrap();
    let (place, problem) = refusal(&other, &path);
    assert!(place == "constraint" && problem.contains("saved with the token trie"), "{place} {problem}");
    other.set_trie(payload(&leaves).as_bytes(), Mode::Sampled).unwrap();
    let (place, problem) = refusal(&other, &path);
    assert!(place == "constraint" && problem.contains("mode 0"), "{place} {problem}");
    // The same names in another text are the same trie.
    other.set_trie(payload(&leaves).replace(':', " : ").as_bytes(), Mode::Greedy).unwrap();
    other.restore_slot(0, &path).unwrap();
    assert_eq!(listen(&other, 1, None), [260]);
    // Arming, setting and clearing after a restore do what they always do.
    other.restore_slot(0, &path).unwrap();
    other.arm_trie(Some("p")).unwrap();
    assert_eq!(listen(&other, 2, None), [259, 260], "from the root");
    other.restore_slot(0, &path).unwrap();
    other.clear_trie().unwrap();
    listen(&other, 2, None);
}

/// A leaf chosen as a whole does not outlive the trie that it is of.
#[test]
fn what_was_chosen_is_forgotten_with_its_trie() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chosen");
    let session = Arc::new(open(0, 128));
    session.set_trie(payload(&[vec![259, 260, 261], vec![262, 263, 264]]).as_bytes(), Mode::ScoreLeaves).unwrap();
    session.prefill(&PROMPT, 0).unwrap();
    let begun = listen(&session, 1, None);
    session.save_slot(0, &path).unwrap();
    session.restore_slot(0, &path).unwrap();
    session.set_trie(payload(&[vec![300, 301]]).as_bytes(), Mode::ScoreLeaves).unwrap();
    // Scores are those after the token that was not evaluated yet.
    let scores = session.score_trie().unwrap();
    assert_eq!(listen(&session, 2, None), [300, 301]);
    session.prefill(&[PROMPT.as_slice(), &begun].concat(), 0).unwrap();
    assert_eq!(session.score_trie().unwrap(), scores);
    // And without asking for them first.
    session.clear_trie().unwrap();
    session.set_trie(payload(&[vec![259, 260, 261], vec![262, 263, 264]]).as_bytes(), Mode::ScoreLeaves).unwrap();
    session.restore_slot(0, &path).unwrap();
    session.set_trie(payload(&[vec![300, 301], vec![302]]).as_bytes(), Mode::ScoreLeaves).unwrap();
    let said = listen(&session, 2, None);
    session.prefill(&[PROMPT.as_slice(), &begun].concat(), 1).unwrap();
    assert_eq!(listen(&session, 2, None)[0], said[0]);
}

#[test]
fn a_stream_that_nothing_held_arms_the_trie_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["free", "released"].map(|name| folder.path().join(name));
    let session = Arc::new(open(0, 128));
    session.prefill(&PROMPT, 0).unwrap();
    let free = listen(&session, 3, None);
    session.save_slot(0, &paths[0]).unwrap();
    session.set_trie(payload(&[vec![259]]).as_bytes(), Mode::Greedy).unwrap();
    session.prefill(&PROMPT, 0).unwrap();
    let released = listen(&session, 3, None);
    session.save_slot(0, &paths[1]).unwrap();
    let behind = {
        session.restore_slot(0, &paths[1]).unwrap();
        listen(&session, 3, None)
    };
    let other = Arc::new(open(0, 128));
    other.set_trie(payload(&[vec![280, 281]]).as_bytes(), Mode::Greedy).unwrap();
    for path in &paths {
        other.restore_slot(0, path).unwrap();
        assert_eq!(listen(&other, 2, None), [280, 281]);
    }
    other.clear_trie().unwrap();
    other.restore_slot(0, &paths[1]).unwrap();
    assert_eq!(listen(&other, 3, None), behind);
    other.prefill(&PROMPT, 1).unwrap();
    let expected = listen(&other, 6, None);
    other.restore_slot(0, &paths[0]).unwrap();
    assert_eq!([free, listen(&other, 3, None)].concat(), expected);
    assert_eq!(released[0], 259);
}

#[test]
fn prompts_reuse_what_was_restored_and_slots_are_apart() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["zero", "one"].map(|name| folder.path().join(name));
    let session = Arc::new(open(0, 128));
    let longer = [PROMPT.as_slice(), &[9, 8, 7]].concat();
    session.prefill(&PROMPT, 0).unwrap();
    session.prefill(&longer, 1).unwrap();
    let expected = listen(&session, 5, None);
    session.prefill(&longer, 1).unwrap();
    // The slot of the last prefill and another one; the generate that was possible still is.
    session.save_slot(0, &paths[0]).unwrap();
    session.save_slot(-1, &paths[1]).unwrap();
    goes_on(&session, &expected);

    let other = Arc::new(open(0, 128));
    assert_eq!(other.restore_slot(-1, &paths[0]).unwrap(), PROMPT.len());
    let usage = other.usage();
    assert_eq!((usage.prompt_tokens, usage.prompt_tokens_reused), (6, 6));
    assert_eq!(usage.forward_passes, 1, "the last position's row is saved with the slot of the last prefill alone");
    assert_eq!(other.prefill(&longer, 0).unwrap(), longer.len());
    assert_eq!(other.usage().prompt_tokens_reused, PROMPT.len() as u64);
    assert_eq!(listen(&other, 5, None), expected);
    assert_eq!(other.restore_slot(1, &paths[1]).unwrap(), longer.len());
    assert_eq!(other.usage().forward_passes, 0);
    assert_eq!(listen(&other, 5, None), expected);
}

#[test]
fn ends_of_all_kinds_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    let session = Arc::new(open(0, 32));
    // Full contexts, in the middle of a run: there is room elsewhere.
    let leaf: Vec<Token> = (0..40).map(|i| 259 + i).collect();
    let large = Arc::new(open(0, 128));
    for one in [&session, &large] {
        one.set_trie(payload(std::slice::from_ref(&leaf)).as_bytes(), Mode::Greedy).unwrap();
    }
    session.prefill(&PROMPT, 0).unwrap();
    let begun = listen(&session, -1, None);
    assert_eq!((begun.len(), session.status().finish_reason), (26, FinishReason::Context));
    session.save_slot(0, &path).unwrap();
    large.restore_slot(0, &path).unwrap();
    assert_eq!([begun, listen(&large, 14, None)].concat(), leaf);
    // Back again there is no room, whether the tokens were evaluated or not.
    large.save_slot(0, &path).unwrap();
    assert_eq!(refusal(&session, &path).0, "tokens");
    // Where the context was full there is none left.
    large.restore_slot(0, &path).unwrap();
    session.prefill(&PROMPT, 0).unwrap();
    listen(&session, -1, None);
    session.save_slot(0, &path).unwrap();
    session.restore_slot(0, &path).unwrap();
    assert!(listen(&session, -1, None).is_empty());
    assert_eq!(session.status().finish_reason, FinishReason::Context);
    // After a span that ended the generation.
    let mut settings = large.settings();
    settings.on_span_end = SpanEnd::Stop;
    large.configure(settings).unwrap();
    large.set_trie(payload(&[vec![259, 260]]).as_bytes(), Mode::Greedy).unwrap();
    large.prefill(&PROMPT, 0).unwrap();
    assert_eq!(listen(&large, 5, None), [259, 260]);
    large.save_slot(0, &path).unwrap();
    large.restore_slot(0, &path).unwrap();
    let behind = listen(&large, 3, None);
    large.clear_trie().unwrap();
    large.prefill(&[PROMPT.as_slice(), &[259, 260]].concat(), 0).unwrap();
    assert_eq!(listen(&large, 3, None), behind);
}

#[test]
fn calls_out_of_order_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("slot");
    let session = Arc::new(open(0, 64));
    let argument = |outcome: Result<(), Error>| matches!(outcome, Err(Error::InvalidArgument(_)));
    assert!(argument(session.save_slot(-1, &path)) && argument(session.save_slot(2, &path)));
    assert!(argument(session.restore_slot(2, &path).map(drop)));
    assert!(matches!(session.restore_slot(0, &path), Err(Error::Io { .. })));
    assert!(!path.exists());
    session.prefill(&PROMPT, 0).unwrap();
    let (sender, receiver) = channel();
    let (inside, file) = (session.clone(), path.clone());
    let sink = Sink::Callback(Box::new(move |_: Event<'_>| {
        let _ = sender.send((inside.save_slot(0, &file), inside.restore_slot(0, &file)));
    }));
    session.generate(2, None, None, sink).unwrap();
    for (saved, restored) in receiver {
        assert!(matches!(saved, Err(Error::Busy(_))) && matches!(restored, Err(Error::Busy(_))));
    }
    // A note of somebody else's.
    session.save_slot(0, &path).unwrap();
    session.close();
    assert!(matches!(session.save_slot(0, &path), Err(Error::Busy(_))));
}

/// The note is JSON of a checked file, but whoever forges the checksum too gets no further.
#[test]
fn l2_a_forged_note_is_refused() {
    use sha2::{Digest, Sha256};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    let session = Arc::new(open(0, 64));
    session.set_trie(payload(&[vec![259, 260, 261], vec![262, 263]]).as_bytes(), Mode::ScoreLeaves).unwrap();
    session.prefill(&PROMPT, 0).unwrap();
    let begun = listen(&session, 1, None);
    session.save_slot(0, &path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let number = |at: usize| u32::from_le_bytes(whole[at..at + 4].try_into().unwrap()) as usize;
    let at = 64 + 4 * (number(48) + number(56));
    let (note, rest) = whole[at..].split_at(number(60));
    let note = String::from_utf8(note.to_vec()).unwrap();
    let pending = format!("\"pending\":{begun:?}");
    assert!(note.contains(&pending) && note.contains("\"chosen\":["), "{note}");
    for (from, to) in [
        (pending.as_str(), "\"pending\":[512]"),
        (pending.as_str(), "\"pending\":[-1]"),
        (pending.as_str(), "\"waiting\":[1]"),
        (note.as_str(), "no JSON"),
        (note.as_str(), ""),
        ("\"chosen\":[", "\"chosen\":[5,"),
        ("\"ended\":false", "\"ended\":1"),
        // L2: with these the constraint would be gone after one token, which nothing holds.
        ("\"ended\":false", "\"ended\":true"),
        ("\"counted\":1", "\"counted\":4294967295"),
    ] {
        let forged = note.replacen(from, to, 1);
        assert_ne!(forged, note, "{from}");
        let mut bytes = [&whole[..at], forged.as_bytes(), &rest[..rest.len() - 32]].concat();
        bytes[60..64].copy_from_slice(&(forged.len() as u32).to_le_bytes());
        bytes.extend(Sha256::digest(&bytes));
        std::fs::write(&path, bytes).unwrap();
        let place = if to.contains("counted") { "constraint" } else { "note" };
        assert_eq!(refusal(&session, &path).0, place, "{to}");
    }
}
