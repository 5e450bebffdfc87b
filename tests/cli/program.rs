//! The program run as a person or a script runs it: its output, its exit code.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_eliza-inference");

pub fn run(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).env("RUST_BACKTRACE", "1").stdin(Stdio::null()).output().unwrap()
}

/// Standard output of a run that must succeed and keep standard error to itself.
#[track_caller]
pub fn stdout(args: &[&str]) -> String {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{args:?}: {:?}, {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
pub fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

/// Standard error of a run that must end with this exit code and print nothing else.
#[track_caller]
pub fn failure(code: i32, args: &[&str]) -> String {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
    assert!(output.stdout.is_empty() && !errors.contains("panicked") && !errors.contains("backtrace"), "{errors}");
    errors
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs with this variable set: exit code, standard output, standard error.
pub fn limited(variable: (&str, &str), args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(PROGRAM).args(args).env(variable.0, variable.1).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A plan of what `generate` opens.
pub const PLAN: [&str; 4] = ["plan", "--json", "--slots", "1"];
