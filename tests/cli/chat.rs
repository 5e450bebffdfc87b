//! `chat`: a conversation over pipes, and in a terminal as a person has it.

use crate::program::{PROGRAM, failure, text};
use crate::testing::{fixture_folder, script};
use std::io::Write;
use std::process::{Command, Stdio};

/// What the program prints for these lines.
fn conversation(more: &[&str], lines: &str) -> String {
    let model = script::write(&fixture_folder());
    let mut child = Command::new(PROGRAM)
        .args(["chat", "-m", text(&model), "--seed", "1"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn lines_are_turns() {
    assert_eq!(conversation(&[], "hi\n"), "Hm\nHello there.\n");
    assert_eq!(conversation(&["--thinking", "off"], "hi\n\nhi\n/quit\nhi\n"), "Hello there.\nHello there.\n");
    assert_eq!(conversation(&[], "/thinking off\n//hi\n/nothing\n/reset\n"), "Hello there.\n");
    let help = conversation(&[], "/help\n");
    assert!(["/reset", "/system", "/thinking", "/quit", "Ctrl-C"].iter().all(|word| help.contains(word)), "{help}");
    assert_eq!(conversation(&["-n", "3"], "long\n"), " la la la\n");
}

#[test]
fn tools_are_called_and_answers_chosen() {
    let tools = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tools.path(), r#"[{"type": "function", "function": {"name": "look", "parameters": {}}}]"#).unwrap();
    let called = conversation(&["--tools", text(tools.path())], "look\n/result blue\n/result\n");
    assert_eq!(called, "[calls look {\"at\": \"sky\"}]\n".repeat(3));
    assert_eq!(conversation(&["--choices", "yes,no"], "hi\n").lines().count(), 1);
    let chosen = conversation(&["--choices", "yes", "--choices", "perhaps"], "hi\n");
    assert!(chosen == "yes\n" || chosen == "perhaps\n", "{chosen:?}");
    assert!(failure(2, &["chat", "-m", "x.gguf", "--choices", "a,"]).contains("--choices"));
    let error = failure(1, &["chat", "-m", text(&crate::testing::demo())]);
    assert!(error.contains("tokenizer.chat_template"), "{error}");
}

/// A program in a terminal.
#[cfg(unix)]
struct Terminal {
    pty: std::sync::Arc<pty_process::blocking::Pty>,
    child: std::process::Child,
    shown: std::sync::Arc<(parking_lot::Mutex<String>, parking_lot::Condvar)>,
    /// Up to where what was shown is read.
    read: usize,
}

#[cfg(unix)]
impl Terminal {
    fn start(args: &[&str]) -> Self {
        use std::io::Read;
        let (pty, pts) = pty_process::blocking::open().unwrap();
        pty.resize(pty_process::Size::new(24, 80)).unwrap();
        let command =
            pty_process::blocking::Command::new(PROGRAM).args(args).env("TERM", "xterm").env_remove("NO_COLOR");
        let child = command.spawn(pts).unwrap();
        let pty = std::sync::Arc::new(pty);
        let shown = std::sync::Arc::<(parking_lot::Mutex<String>, parking_lot::Condvar)>::default();
        let (from, to) = (pty.clone(), shown.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // At the program's end reading fails, or there is nothing more.
            while let Ok(n @ 1..) = (&*from).read(&mut bytes) {
                to.0.lock().push_str(&String::from_utf8_lossy(&bytes[..n]));
                to.1.notify_all();
            }
        });
        Terminal { pty, child, shown, read: 0 }
    }

    fn types(&self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is shown, after what was waited for before; what came up to it.
    #[track_caller]
    fn shows(&mut self, wanted: &str) -> String {
        let mut shown = self.shown.0.lock();
        loop {
            if let Some(at) = shown[self.read..].find(wanted) {
                let end = self.read + at + wanted.len();
                let text = shown[self.read..end].to_string();
                self.read = end;
                return text;
            }
            let late = self.shown.1.wait_for(&mut shown, std::time::Duration::from_secs(120)).timed_out();
            assert!(!late, "no {wanted:?} in {:?}", &shown[self.read..]);
        }
    }
}

/// Two turns, an interrupt, a resize, the line before again, an end.
#[test]
#[cfg(unix)]
fn a_person_talks_in_a_terminal() {
    let model = script::write(&fixture_folder());
    let mut terminal = Terminal::start(&["chat", "-m", text(&model), "--seed", "1"]);
    terminal.shows("/help lists commands");
    terminal.shows("> ");
    terminal.types("hi\r");
    assert!(terminal.shows("Hm\u{1b}[0m").contains("\u{1b}[2m"), "what the model thinks is dim");
    terminal.shows("Hello there.\r\n");
    terminal.shows("[stop: ");
    terminal.shows(", 0 of them kept;");
    terminal.shows("> ");

    // The second turn keeps the tokens of the first up to where the prompts part.
    terminal.types("how longx\u{7f}\r");
    terminal.shows(" la la la");
    terminal.types("\u{3}");
    terminal.shows("[interrupted]\r\n");
    let told = terminal.shows(" of them kept;");
    assert!(!told.contains(", 0 of"), "{told:?}");
    terminal.shows("> ");

    terminal.pty.resize(pty_process::Size::new(10, 40)).unwrap();
    terminal.types("\u{3}");
    terminal.shows("Ctrl-D or /quit ends");
    terminal.shows("> ");
    terminal.types(&"many words ".repeat(12));
    terminal.shows("words");
    terminal.types("\r");
    terminal.shows("Hello there.\r\n");
    terminal.shows("> ");
    terminal.types("/thinking off\r");
    terminal.shows("> ");
    // The line before that.
    terminal.types("\u{1b}[A\u{1b}[A\r");
    let told = terminal.shows("Hello there.\r\n");
    assert!(told.contains("many words") && !told.contains("Hm"), "{told:?}");
    terminal.shows("> ");
    terminal.types("\u{4}");
    assert!(terminal.child.wait().unwrap().success());
}
