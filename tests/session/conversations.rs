//! Prompts warmed up, pinned slots, and conversations kept in a folder.

use crate::testing;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::tokens;
use elizainference::session::{EngineOptions, Event, KvType, OpenOptions, Session, Sink, StoreOptions};
use elizainference::{Error, Token};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const KINDS: [Kind; 3] = [Kind::Llama, Kind::Gemma3, Kind::Qwen35];
const CHILD: &str = "ELIZA_TEST_STORE";

fn open_kind(kind: Kind, slots: u32, store: Option<StoreOptions>) -> Session {
    let path = testing::fixture(kind, Weights::F32);
    let kv_type = KvType::F32;
    let engine = EngineOptions { context: 1024, kv_type, slots, threads: 1, n_batch: 32, ..EngineOptions::default() };
    let session = Session::open(OpenOptions { path, engine, store, ..OpenOptions::default() }).unwrap();
    let mut settings = session.settings();
    settings.ignore_eos = true;
    session.configure(settings).unwrap();
    session
}

fn open(directory: &Path, max_bytes: u64) -> Session {
    open_kind(Kind::Llama, 2, Some(StoreOptions { directory: directory.into(), max_bytes }))
}

/// The likeliest tokens; `heard` is called after each.
fn say(session: &Session, n: i32, mut heard: impl FnMut() + Send + 'static) -> Vec<Token> {
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        if !event.done {
            let _ = sender.send(event.token);
            heard();
        }
    }));
    session.generate(n, Some(0.0), None, sink).unwrap();
    let said = receiver.iter().collect();
    assert_eq!(session.take_error(), None);
    said
}

/// What a session of its own says after a prompt.
fn fresh(kind: Kind, prompt: &[Token], n: i32) -> Vec<Token> {
    let session = open_kind(kind, 1, None);
    session.prefill(prompt, 0).unwrap();
    say(&session, n, || ())
}

fn wait_until_warm(session: &Session) {
    while session.prewarms() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_warm_prompt_is_not_evaluated_again() {
    for kind in KINDS {
        let session = open_kind(kind, 4, None);
        let (system, other) = (tokens(200, "system"), tokens(100, "other"));
        session.prewarm(&system, 0).unwrap();
        session.prewarm(&other, 1).unwrap();
        session.pin_slot(0, true).unwrap();
        wait_until_warm(&session);
        assert_eq!((session.usage().prompt_tokens, session.status().busy), (0, false), "{kind:?}");
        for (begin, what) in [(&system, "a question"), (&system, "another"), (&other, "one more")] {
            let prompt = [begin, &tokens(20, what)[..]].concat();
            session.prefill(&prompt, -1).unwrap();
            let usage = session.usage();
            let evaluated = (prompt.len() - begin.len()) as u64;
            assert_eq!(
                (usage.prompt_tokens_reused, usage.evaluated_tokens),
                (begin.len() as u64, evaluated),
                "{kind:?}"
            );
            assert_eq!(usage.prompt_tokens_restored, 0);
            assert!(kind == Kind::Gemma3 || (usage.snapshots > 0) == (kind == Kind::Qwen35), "{kind:?}");
            assert_eq!(say(&session, 8, || ()), fresh(kind, &prompt, 8), "{kind:?}, {what}");
        }
        // What is there already changes nothing.
        session.prewarm(&system[..150], 0).unwrap();
        session.prewarm(&system, -1).unwrap();
        wait_until_warm(&session);
        session.prefill(&[&system[..], &[300]].concat(), 2).unwrap();
        assert_eq!(session.usage().evaluated_tokens, 1, "{kind:?}");
        assert_eq!(session.take_error(), None);
    }
}

#[test]
fn a_prewarm_waits_for_a_generation_and_gives_way_to_a_prompt() {
    let session = Arc::new(open_kind(Kind::Llama, 2, None));
    let (long, prompt) = (tokens(900, "long"), tokens(30, "prompt"));
    let expected = fresh(Kind::Llama, &prompt, 12);
    session.prefill(&prompt, 0).unwrap();
    session.prewarm(&long, 1).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(session.prewarms(), 1, "a prompt waits for its generate");
    let (inside, (sender, receiver)) = (session.clone(), channel());
    let heard = move || {
        let _ = sender.send((inside.prewarm(&[5, 6], 1), inside.prewarms()));
    };
    let said = say(&session, 12, heard);
    assert_eq!(said, expected);
    let inside: Vec<_> = receiver.iter().collect();
    assert!(inside.iter().all(|(asked, _)| asked.is_ok()));
    assert_eq!(inside.last().map(|&(_, waiting)| waiting), Some(13));
    // Each prompt ends the prewarm that runs, and only that.
    for turn in 0..20 {
        let text = tokens(30 + turn, "turn");
        session.prewarm(&long, 1).unwrap();
        session.prefill(&text, 0).unwrap();
        assert_eq!(session.usage().prompt_tokens, 30 + turn as u64);
        assert_eq!(say(&session, 3, || ()), fresh(Kind::Llama, &text, 3));
    }
    session.prefill(&long, 1).unwrap();
    assert_eq!(say(&session, 3, || ()), fresh(Kind::Llama, &long, 3));
    wait_until_warm(&session);
    assert_eq!(session.take_error(), None);
}

#[test]
fn prewarms_that_cannot_be_are_refused() {
    let session = open_kind(Kind::Llama, 2, None);
    let invalid = |outcome: Result<(), Error>| matches!(outcome, Err(Error::InvalidArgument(_)));
    assert!(
        invalid(session.prewarm(&[], 0)) && invalid(session.prewarm(&[1, -1], 0)) && invalid(session.prewarm(&[1], 2))
    );
    assert!(invalid(session.pin_slot(-1, true)) && invalid(session.pin_slot(2, true)));
    assert!(matches!(session.prewarm(&tokens(1025, "long"), 0), Err(Error::OutOfMemory(_))));
    assert!(matches!(session.take_error(), Some(Error::OutOfMemory(_))));
    session.prefill(&[5], 0).unwrap();
    for _ in 0..64 {
        session.prewarm(&[5, 6], 1).unwrap();
    }
    assert!(matches!(session.prewarm(&[5, 6], 1), Err(Error::Busy(_))));
    // An error that comes later is not lost: both slots are pinned, and no other is left.
    let session = open_kind(Kind::Llama, 2, None);
    session.pin_slot(0, true).unwrap();
    session.pin_slot(1, true).unwrap();
    session.prewarm(&[5, 6], -1).unwrap();
    wait_until_warm(&session);
    assert!(matches!(session.take_error(), Some(Error::InvalidArgument(problem)) if problem.contains("pinned")));
    session.close();
    assert!(matches!(session.prewarm(&[5, 6], 0), Err(Error::Busy(_))));
}

/// The slot of the last stream may be the only one.
#[test]
fn what_is_saved_after_a_prewarm_is_what_the_slot_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    let session = open_kind(Kind::Llama, 1, None);
    session.prefill(&tokens(40, "first"), 0).unwrap();
    say(&session, 5, || ());
    let warm = tokens(60, "warm");
    session.prewarm(&warm, -1).unwrap();
    wait_until_warm(&session);
    session.save_slot(-1, &path).unwrap();
    assert_eq!(session.restore_slot(0, &path).unwrap(), 60);
    session.prefill(&warm, 0).unwrap();
    assert_eq!(say(&session, 5, || ()), fresh(Kind::Llama, &warm, 5));
}

#[test]
fn conversations_are_kept_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    for kind in KINDS {
        let store = || Some(StoreOptions { directory: folder.path().join(format!("{kind:?}")), max_bytes: 0 });
        let prompt = tokens(150, "system");
        let (mut text, expected) = {
            let session = open_kind(kind, 2, store());
            session.prefill(&prompt, 0).unwrap();
            let said = say(&session, 6, || ());
            session.persist("user 1/häuser", -1).unwrap();
            let text = [&prompt[..], &said].concat();
            session.prefill(&text, 0).unwrap();
            (text, say(&session, 6, || ()))
        };
        let session = open_kind(kind, 2, store());
        assert_eq!(session.resume("user 2", -1), Ok(0));
        assert_eq!(session.resume("user 1/häuser", -1), Ok(text.len()));
        assert_eq!(session.usage().prompt_tokens_restored, text.len() as u64 - 1, "one was not evaluated yet");
        assert_eq!(say(&session, 6, || ()), expected, "{kind:?}: without a prompt");
        session.resume("user 1/häuser", 1).unwrap();
        text.extend(tokens(10, "more"));
        session.prefill(&text, 1).unwrap();
        let usage = session.usage();
        // The other slot went on from there, and has one token more.
        let held = text.len() as u64 - 10;
        assert_eq!((usage.prompt_tokens_reused, usage.prompt_tokens_restored), (held, held - 1), "{kind:?}");
        assert_eq!(usage.evaluated_tokens, 10);
        assert_eq!(say(&session, 6, || ()), fresh(kind, &text, 6), "{kind:?}");
        assert_eq!((session.forget("user 1/häuser"), session.forget("user 1/häuser")), (Ok(true), Ok(false)));
        assert_eq!(session.resume("user 1/häuser", -1), Ok(0));
    }
}

fn slots_of(folder: &Path) -> Vec<u64> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    files
        .filter(|file| file.path().extension().is_some_and(|end| end == "slot"))
        .map(|file| file.metadata().unwrap().len())
        .collect()
}

#[test]
fn a_limited_store_forgets_what_was_used_the_longest_time_ago() {
    let folder = tempfile::tempdir().unwrap();
    let session = open(folder.path(), 0);
    session.prefill(&tokens(40, "text"), 0).unwrap();
    session.persist("a", 0).unwrap();
    let bytes = slots_of(folder.path())[0];
    let pause = || std::thread::sleep(Duration::from_millis(20));
    let limited = open(folder.path(), 3 * bytes + bytes / 2);
    limited.prefill(&tokens(40, "text"), 0).unwrap();
    for key in ["b", "c"] {
        pause();
        limited.persist(key, 0).unwrap();
    }
    pause();
    assert_eq!(limited.resume("a", 1), Ok(40));
    pause();
    // `b` is now the one that was used the longest time ago.
    limited.persist("d", 0).unwrap();
    assert_eq!(["a", "b", "c", "d"].map(|key| limited.forget(key).unwrap()), [true, false, true, true]);
    // One that is larger than the whole limit leaves what is there.
    limited.persist("a", 0).unwrap();
    limited.prefill(&tokens(400, "long"), 0).unwrap();
    let refused = limited.persist("a", 0).unwrap_err().to_string();
    assert!(refused.contains("where the store is limited to"), "{refused}");
    assert_eq!(limited.resume("a", 1), Ok(40));
}

#[test]
fn without_a_store_or_with_a_bad_key_there_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let none = open_kind(Kind::Llama, 1, None);
    assert!(matches!(none.resume("a", 0), Err(Error::InvalidArgument(problem)) if problem.contains("without a store")));
    let session = open(&folder.path().join("new/deep"), 0);
    for key in [String::new(), "k".repeat(4097)] {
        assert!(matches!(session.persist(&key, 0), Err(Error::InvalidArgument(_))));
        assert!(matches!(session.take_error(), Some(Error::InvalidArgument(problem)) if problem.contains("key")));
    }
    assert!(matches!(session.persist("a", 0), Err(Error::InvalidArgument(problem)) if problem.contains("empty")));
    // Another model's conversation is refused, and stays.
    session.prefill(&tokens(40, "text"), 0).unwrap();
    session.persist("a", 0).unwrap();
    let directory = folder.path().join("new/deep");
    let other = open_kind(Kind::Gemma3, 1, Some(StoreOptions { directory: directory.clone(), max_bytes: 0 }));
    assert!(matches!(other.resume("a", 0), Err(Error::SavedSlot { place, .. }) if place.starts_with("model")));
    assert_eq!(session.resume("a", 1), Ok(40));
    // A file where the folder should be.
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let path = testing::fixture(Kind::Llama, Weights::F32);
    let store = Some(StoreOptions { directory: file.clone(), max_bytes: 0 });
    let refused = Session::open(OpenOptions { path, store, ..OpenOptions::default() }).err().unwrap();
    assert!(matches!(refused, Error::Io { path, .. } if path == file));
}

/// What other processes do to the folder of `CHILD`; does nothing in a run of its own.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let limit = std::env::var("ELIZA_TEST_LIMIT").map_or(0, |limit| limit.parse().unwrap());
    let session = open(&folder, limit);
    if std::env::var_os("ELIZA_TEST_FULL").is_some() {
        session.prefill(&tokens(600, "long"), 0).unwrap();
        let full = session.persist("a", 0).unwrap_err();
        assert!(matches!(&full, Error::Io { path, .. } if path.starts_with(&folder)), "{full}");
        return;
    }
    for turn in 0.. {
        // Two lengths: whole files of either may be found.
        session.prefill(&tokens(300 + 300 * (turn % 2), "text"), 0).unwrap();
        session.persist(["a", "b", "c"][turn % 3], 0).unwrap();
    }
}

fn child_in(folder: &Path, before: &str, environment: &[(&str, &str)]) -> Child {
    let test = std::env::current_exe().unwrap();
    Command::new("sh")
        .args(["-c", &format!("{before} exec \"$0\" --exact conversations::child"), test.to_str().unwrap()])
        .env(CHILD, folder)
        .envs(environment.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[cfg(unix)]
#[test]
fn a_process_that_is_killed_leaves_whole_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut found = 0;
    for turn in 0..12 {
        let mut child = child_in(folder.path(), "", &[]);
        std::thread::sleep(Duration::from_millis(150 + 23 * turn));
        child.kill().unwrap();
        child.wait().unwrap();
        let session = open(folder.path(), 0);
        for key in ["a", "b", "c"] {
            let n = session.resume(key, 0).unwrap();
            assert!([0, 300, 600].contains(&n), "{n}");
            found += usize::from(n > 0);
        }
        let left = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name());
        assert_eq!(left.filter(|name| name.to_str().unwrap().starts_with('.')).count(), 0, "temporary files");
    }
    assert!(found > 0);
}

#[cfg(unix)]
#[test]
fn two_processes_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let session = open(folder.path(), 0);
    session.prefill(&tokens(600, "text"), 0).unwrap();
    session.persist("mine", 0).unwrap();
    let most = slots_of(folder.path())[0];
    let limit = (3 * most).to_string();
    let mut children = [0, 1].map(|_| child_in(folder.path(), "", &[("ELIZA_TEST_LIMIT", &limit)]));
    let mut found = 0;
    for _ in 0..60 {
        for key in ["a", "b", "c"] {
            // Between finding a file and opening it another process may remove it.
            match session.resume(key, 0) {
                Ok(n) => found += usize::from(n > 0),
                Err(error) => assert!(matches!(error, Error::Io { .. }), "{error}"),
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    for child in &mut children {
        assert_eq!(child.try_wait().unwrap(), None, "it goes on");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(found > 0);
    // A file of each process may be above the limit, where both made room at the same time.
    assert!(slots_of(folder.path()).iter().sum::<u64>() <= 4 * most);
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_what_was_kept() {
    let folder = tempfile::tempdir().unwrap();
    let session = open(folder.path(), 0);
    session.prefill(&tokens(40, "text"), 0).unwrap();
    session.persist("a", 0).unwrap();
    // Writing beyond 64 KiB fails, as on a full disk.
    let mut child = child_in(folder.path(), "trap '' XFSZ; ulimit -f 128;", &[("ELIZA_TEST_FULL", "1")]);
    assert!(child.wait().unwrap().success());
    assert_eq!(session.resume("a", 0), Ok(40));
    assert_eq!(slots_of(folder.path()).len(), 1);
    let all = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(all, 2, "the conversation and the lock");
}
