//! Opening a model beside other work, and model files that somebody changes while they are open: what a host may do in
//! its progress callback, who waits for whom, and errors in place of signals.

use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::split;
use elizainference::engine::{self, EngineOptions};
use elizainference::gguf::File;
use elizainference::session::{Event, OpenOptions, Session, Sink};
use elizainference::{Error, Result, Token};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};

const PROMPT: [Token; 6] = [1, 40, 300, 77, 410, 150];

/// Far longer than anything here takes: what is not over by then hangs.
const LONG: Duration = Duration::from_secs(60);

type Progress = Box<dyn FnMut(f32) -> bool + Send>;

fn options(threads: u32) -> EngineOptions {
    EngineOptions { context: 256, slots: 2, threads, ..EngineOptions::default() }
}

fn open(path: &Path, progress: Option<Progress>) -> Result<Session> {
    Session::open(OpenOptions { path: path.into(), engine: options(2), progress, ..OpenOptions::default() })
}

/// Tokens after the prompt, the likeliest ones.
fn greedy(session: &Session) -> Result<Vec<Token>> {
    session.prefill(&PROMPT, 0)?;
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        let _ = sender.send(event.token);
    }));
    session.generate(8, Some(0.0), Some(1.0), sink)?;
    let tokens = receiver.iter().collect();
    session.take_error().map_or(Ok(tokens), Err)
}

/// Do it on another thread; a panic here where it hangs.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let running = thread::spawn(move || sender.send(work()));
    match receiver.recv_timeout(LONG) {
        Ok(done) => done,
        Err(RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Err(RecvTimeoutError::Disconnected) => std::panic::resume_unwind(running.join().unwrap_err()),
    }
}

/// A copy of a fixture, as old as a file usually is.
fn copy(folder: &Path, kind: Kind) -> PathBuf {
    let path = folder.join(format!("{kind:?}.gguf"));
    std::fs::copy(fixture(kind, Weights::F32), &path).unwrap();
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(hour_ago).unwrap();
    path
}

#[test]
fn m1_a_progress_callback_may_open_prefill_and_wait_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path(), Kind::Llama);
    let other = open(&fixture(Kind::Gemma3, Weights::Q8_0), None).unwrap();
    let expected = greedy(&other).unwrap();
    let other = Arc::new(other);
    let (sender, heard) = channel();
    let hear = {
        let (path, other, mut first) = (path.clone(), other.clone(), true);
        move |done: f32| {
            if done > 0.0 && std::mem::take(&mut first) {
                let same = open(&path, None).err().unwrap();
                let another = greedy(&open(&fixture(Kind::Qwen3, Weights::Q8_0), None).unwrap()).is_ok();
                let here = greedy(&other);
                // As a host does that has its user interface do it and waits.
                let there = thread::scope(|scope| scope.spawn(|| greedy(&other)).join().unwrap());
                sender.send((same, another, here, there)).unwrap();
            }
            true
        }
    };
    let opened = in_time("a progress callback that opens", {
        let path = path.clone();
        move || open(&path, Some(Box::new(hear)))
    });
    greedy(&opened.unwrap()).unwrap();
    let (same, another, here, there) = heard.recv().unwrap();
    assert!(matches!(&same, Error::Busy(text) if text.contains(path.to_str().unwrap())), "{same}");
    assert!(another);
    assert_eq!((here, there), (Ok(expected.clone()), Ok(expected)));
}

#[test]
fn m1_while_a_host_takes_its_time_over_a_load_others_generate_and_are_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path(), Kind::Llama);
    let session = Arc::new(open(&fixture(Kind::Gemma3, Weights::Q8_0), None).unwrap());
    let mut settings = session.settings();
    settings.ignore_eos = true;
    session.configure(settings).unwrap();
    session.prefill(&PROMPT, 0).unwrap();
    let (sender, events): (Sender<bool>, Receiver<bool>) = channel();
    let (told, mut first) = (session.clone(), true);
    let hear = move |done: f32| {
        if done > 0.0 && std::mem::take(&mut first) {
            let sender = sender.clone();
            let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
                let _ = sender.send(event.done);
            }));
            told.generate(200, Some(0.0), Some(1.0), sink).unwrap();
            (0..50).for_each(|_| assert!(!events.recv_timeout(LONG).unwrap()));
            told.cancel();
            let after = (0..).find(|_| events.recv_timeout(LONG).unwrap());
            assert!(after < Some(150), "the generation went on to its end");
        }
        true
    };
    in_time("a load", move || open(&path, Some(Box::new(hear)))).unwrap();
}

/// An open of `path` that waits in its first progress until it is told whether to go on.
fn slow_open(path: &Path) -> (Receiver<()>, Sender<bool>, thread::JoinHandle<Result<Session>>) {
    let ((began, begins), (answer, answers)) = (channel(), channel());
    let (path, mut first) = (path.to_path_buf(), true);
    let hear = move |_| {
        if std::mem::take(&mut first) {
            began.send(()).unwrap();
            return answers.recv_timeout(LONG).unwrap();
        }
        true
    };
    (begins, answer, thread::spawn(move || open(&path, Some(Box::new(hear)))))
}

#[test]
fn m1_who_waits_for_a_load_of_another_can_give_up_and_takes_over_where_that_one_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path(), Kind::Llama);
    let (begins, answer, first) = slow_open(&path);
    begins.recv_timeout(LONG).unwrap();
    let given_up = in_time("a second open", {
        let (path, mut calls) = (path.clone(), 0);
        move || {
            open(
                &path,
                Some(Box::new(move |_| {
                    calls += 1;
                    calls < 3
                })),
            )
        }
    });
    assert_eq!(given_up.err(), Some(Error::Cancelled));
    // Another one waits, which is told by its host's being asked.
    let (sender, asked) = channel();
    let third = thread::spawn({
        let path = path.clone();
        move || {
            open(
                &path,
                Some(Box::new(move |_| {
                    let _ = sender.send(());
                    true
                })),
            )
        }
    });
    asked.recv_timeout(LONG).unwrap();
    answer.send(false).unwrap();
    assert_eq!(first.join().unwrap().err(), Some(Error::Cancelled));
    greedy(&in_time("the one that takes over", move || third.join().unwrap()).unwrap()).unwrap();
}

#[test]
fn m1_eight_hosts_that_open_one_file_share_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path(), Kind::Llama);
    let open = || engine::open_model(&path, &options(2), None).unwrap();
    let models: Vec<_> = thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(models.iter().all(|model| Arc::ptr_eq(model, &models[0])));
}

/// One model while nothing changes; another as soon as any part does. A slot that was saved with the first is not for
/// the second.
#[test]
fn a_model_in_several_files_is_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = split::split(&File::open(fixture(Kind::Llama, Weights::F32)).unwrap(), folder.path(), 3);
    let first = engine::open_model(&path, &options(2), None).unwrap();
    assert!(Arc::ptr_eq(&first, &engine::open_model(&path, &options(2), None).unwrap()));
    let session = open(&path, None).unwrap();
    assert_eq!(greedy(&session), greedy(&open(&fixture(Kind::Llama, Weights::F32), None).unwrap()));
    let saved = folder.path().join("saved");
    session.save_slot(0, &saved).unwrap();
    session.restore_slot(1, &saved).unwrap();

    // A part that is replaced: an open after it has another model.
    let last = split::path(folder.path(), 3, 3);
    let mut bytes = std::fs::read(&last).unwrap();
    let near_end = bytes.len() - 64;
    bytes[near_end] ^= 1;
    std::fs::remove_file(&last).unwrap();
    std::fs::write(&last, bytes).unwrap();
    let second = engine::open_model(&path, &options(2), None).unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert_ne!(first.identity().unwrap(), second.identity().unwrap());
    let refused = open(&path, None).unwrap().restore_slot(1, &saved);
    assert!(matches!(refused, Err(Error::SavedSlot { .. })), "{refused:?}");
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Truncate,
    Rewrite,
    Delete,
    Replace,
}

/// Windows does not tell that an open file was deleted.
const CHANGES: &[Change] = match cfg!(windows) {
    true => &[Change::Truncate, Change::Rewrite],
    false => &[Change::Truncate, Change::Rewrite, Change::Delete, Change::Replace],
};

fn change(path: &Path, how: Change) {
    match how {
        Change::Truncate => std::fs::File::options().write(true).open(path).unwrap().set_len(4096).unwrap(),
        Change::Rewrite => {
            let bytes = vec![7; std::fs::metadata(path).unwrap().len() as usize];
            // In place, as copying over a file does it.
            std::io::Write::write_all(&mut std::fs::File::options().write(true).open(path).unwrap(), &bytes).unwrap();
        }
        Change::Delete => std::fs::remove_file(path).unwrap(),
        Change::Replace => {
            let other = path.with_extension("new");
            std::fs::copy(path, &other).unwrap();
            std::fs::rename(other, path).unwrap();
        }
    }
}

/// The error that names the file and says what happened to it.
fn check<T>(what: &str, how: Change, path: &Path, result: Result<T>) {
    let Err(error) = result else { panic!("{what}: no error") };
    let text = error.to_string();
    let happened = match how {
        Change::Truncate | Change::Rewrite => "was changed after it was opened",
        Change::Delete | Change::Replace => "was deleted or replaced after it was opened",
    };
    assert!(matches!(error, Error::Io { .. }) && text.contains(happened), "{what}: {text}");
    assert!(text.contains(path.to_str().unwrap()), "{what}: {text}");
}

/// gemma3's and qwen3's output matrix is the embedding; llama has a table of its own, which stays in the file.
const KINDS: [(Kind, bool); 2] = [(Kind::Llama, false), (Kind::Qwen3, true)];

#[test]
fn m4_a_file_that_is_changed_while_it_is_opened_is_an_error() {
    let bystander = open(&fixture(Kind::Gemma3, Weights::Q8_0), None).unwrap();
    let expected = greedy(&bystander).unwrap();
    for (kind, _) in KINDS {
        for &how in CHANGES {
            let folder = tempfile::tempdir().unwrap();
            let path = copy(folder.path(), kind);
            let (file, mut first) = (path.clone(), true);
            let hear = move |_: f32| {
                if std::mem::take(&mut first) {
                    change(&file, how);
                }
                true
            };
            let opened = open(&path, Some(Box::new(hear)));
            check(&format!("{kind:?}, {how:?}"), how, &path, opened.and_then(|session| greedy(&session)));
            assert_eq!(greedy(&bystander), Ok(expected.clone()));
        }
    }
}

#[test]
fn m4_a_file_that_is_changed_between_two_tokens_is_an_error() {
    let bystander = open(&fixture(Kind::Gemma3, Weights::Q8_0), None).unwrap();
    let undisturbed = greedy(&bystander).unwrap();
    for (kind, tied) in KINDS {
        for &how in CHANGES {
            let folder = tempfile::tempdir().unwrap();
            let path = copy(folder.path(), kind);
            let session = open(&path, None).unwrap();
            let expected = greedy(&session).unwrap();
            change(&path, how);
            let what = format!("{kind:?}, {how:?}");
            let after = greedy(&session);
            match tied {
                // Nothing is looked up in the file any more.
                true => assert_eq!(after, Ok(expected), "{what}"),
                false => check(&what, how, &path, after),
            }
            assert_eq!(greedy(&bystander), Ok(undisturbed.clone()));
            // Without its table the session cannot go on, and says so every time.
            if !tied {
                check(&what, how, &path, greedy(&session));
            }
            drop(session);
            let path = copy(folder.path(), kind);
            greedy(&open(&path, None).unwrap()).unwrap();
        }
    }
}

#[test]
fn m4_a_file_that_is_changed_before_a_save_or_a_restore_is_an_error() {
    for (kind, _) in KINDS {
        for &how in CHANGES {
            let folder = tempfile::tempdir().unwrap();
            let (saved, again) = (folder.path().join("saved"), folder.path().join("again"));
            let path = copy(folder.path(), kind);
            let before = open(&path, None).unwrap();
            before.prefill(&PROMPT, 0).unwrap();
            before.save_slot(0, &saved).unwrap();
            drop(before);
            // Of another engine's model: what tells a model from others is read when it is first asked for.
            let session = open(&path, None).unwrap();
            session.prefill(&PROMPT, 0).unwrap();
            change(&path, how);
            let what = format!("{kind:?}, {how:?}");
            check(&format!("{what}, save"), how, &path, session.save_slot(0, &again));
            check(&format!("{what}, restore"), how, &path, session.restore_slot(1, &saved));
            assert!(!again.exists(), "{what}");
        }
    }
}

#[test]
fn a_file_that_has_a_name_is_read_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path(), Kind::Llama);
    let session = open(&path, None).unwrap();
    let expected = greedy(&session);
    assert!(expected.is_ok(), "{expected:?}");
    std::fs::rename(&path, folder.path().join("moved")).unwrap();
    assert_eq!(greedy(&session), expected);

    std::fs::hard_link(folder.path().join("moved"), folder.path().join("second name")).unwrap();
    change(&folder.path().join("moved"), Change::Delete);
    assert_eq!(greedy(&session), expected);
}
