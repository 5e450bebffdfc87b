//! Tests in processes of their own: those that measure the whole process, or need another environment.

use std::process::Command;

/// Set in processes that [`of`] starts.
const CHILD: &str = "ELIZA_TEST_CHILD";

/// Whether this process is one that [`of`] started.
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// A process of this test binary that runs one test, whose path is `test`, and nothing else.
pub fn of(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
    command
}

/// Runs such a process to its end, and fails if its test fails or is not found.
#[track_caller]
pub fn run(command: &mut Command) {
    let done = command.output().unwrap();
    let [out, errors] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    println!("{out}");
    eprintln!("{errors}");
    assert!(done.status.success() && out.contains("test result: ok. 1 passed"), "{command:?}: {}", done.status);
}
