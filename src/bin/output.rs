//! What all commands share about talking to a person: failures, standard output, progress, interrupts, readable sizes.

use elizainference::Error;
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};

/// Why a command ends early.
pub enum Failure {
    /// It failed; the message goes to standard error.
    Error(String),
    /// The arguments do not go together; the message goes to standard error.
    Usage(String),
    /// Nobody reads the output any more.
    ClosedPipe,
    /// The user pressed Ctrl-C.
    Interrupted,
}

/// What a command returns.
pub type Outcome = Result<(), Failure>;

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        match e {
            Error::Cancelled => Failure::Interrupted,
            e => Failure::Error(e.to_string()),
        }
    }
}

/// Errors of standard output: everything else is wrapped with its path where it happens.
impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::Error(format!("Standard output: {e}")),
        }
    }
}

/// A failure with a message of the command line's own.
pub fn fail<T>(message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Error(message.into()))
}

/// A failure for arguments that do not go together.
pub fn usage<T>(message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Usage(message.into()))
}

/// Print an error as all commands do.
pub fn error(message: &str) {
    let _ = writeln!(io::stderr(), "error: {message}");
}

/// Print one JSON value on a line of standard output.
pub fn print_json(value: &serde_json::Value) -> Outcome {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

/// What the library reports, on standard error.
struct Reports;

impl log::Log for Reports {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level() && metadata.target().starts_with("elizainference")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = record.level().as_str().to_lowercase().replace("warn", "warning");
            let _ = writeln!(io::stderr(), "{level}: {}", printable(record.args()));
        }
    }

    fn flush(&self) {}
}

/// From now on the library's warnings are printed; with `verbose` all that it reports.
pub fn show_reports(verbose: bool) {
    // There is no other logger in this program.
    if log::set_logger(&Reports).is_ok() {
        log::set_max_level(if verbose { log::LevelFilter::Trace } else { log::LevelFilter::Warn });
    }
}

static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

/// From now on the first Ctrl-C only sets [`interrupted`] and calls `first`, and the second ends the program.
pub fn catch_interrupts(first: impl Fn() + Send + 'static) {
    let installed = ctrlc::set_handler(move || match INTERRUPTS.fetch_add(1, Ordering::Relaxed) {
        0 => first(),
        _ => std::process::exit(130),
    });
    // Without a handler Ctrl-C ends the program at once, which is the default everywhere.
    drop(installed);
}

/// Ctrl-C was heard: the next one is the first again.
pub fn forget_interrupts() {
    INTERRUPTS.store(0, Ordering::Relaxed);
}

/// Whether Ctrl-C was pressed.
pub fn interrupted() -> bool {
    INTERRUPTS.load(Ordering::Relaxed) > 0
}

/// A progress bar on standard error; nothing is drawn when that is no terminal.
pub fn progress(label: &'static str, length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length).with_message(label);
    match ProgressStyle::with_template("{msg} [{wide_bar}] {percent:>3}% {eta}") {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// A size such as `1.2 GiB`.
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() / 10).min(4);
    match power {
        0 => format!("{bytes} B"),
        _ => format!("{:.1} {}", bytes as f64 / f64::from(power * 10).exp2(), units[power as usize]),
    }
}

/// A count such as `1.24 B` (billions).
pub fn count(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.1} K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

/// Text from a file for a terminal: control characters are escaped.
pub fn printable(text: impl Display) -> String {
    let mut out = String::new();
    for c in text.to_string().chars() {
        match c.is_control() {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}
