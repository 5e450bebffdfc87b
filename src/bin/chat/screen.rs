//! An answer on standard output: what the model thinks is dim, where that is a terminal.

use console::style;
use elizainference::chat::{Part, ToolCall};
use std::io::{self, Write};
use std::mem::discriminant;

pub struct Screen {
    /// The part that was shown last.
    last: Option<Part>,
}

impl Screen {
    pub fn new() -> Self {
        Screen { last: None }
    }

    pub fn show(&mut self, part: &Part) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.last.as_ref().is_some_and(|last| discriminant(last) != discriminant(part)) {
            writeln!(out)?;
        }
        match part {
            Part::Answer { text } => write!(out, "{text}")?,
            Part::Reasoning { text } => write!(out, "{}", style(text).dim())?,
            Part::ToolCall(ToolCall { name, arguments, .. }) => write!(out, "[calls {name} {arguments}]")?,
        }
        self.last = Some(part.clone());
        out.flush()
    }

    pub fn end(&mut self) -> io::Result<()> {
        match self.last.take() {
            Some(_) => writeln!(io::stdout().lock()),
            None => Ok(()),
        }
    }
}
