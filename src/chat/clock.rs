//! The time that `strftime_now` tells.

use chrono::{Local, NaiveDateTime};
use std::fmt::Write;

/// A moment in local time; by default the moment in which it is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Now(Option<NaiveDateTime>);

impl Now {
    /// Reads a fixed moment, `2025-02-03T04:05:06`.
    ///
    /// # Errors
    /// The text is no such moment.
    pub fn parse(text: &str) -> Result<Self, String> {
        let moment = NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S");
        moment.map(|m| Now(Some(m))).map_err(|e| format!("`{text}` is no time like 2025-02-03T04:05:06: {e}"))
    }

    /// The moment by C's `strftime`.
    pub(super) fn format(self, format: &str) -> Result<String, String> {
        let moment = self.0.unwrap_or_else(|| Local::now().naive_local());
        let mut out = String::new();
        write!(out, "{}", moment.format(format)).map_err(|_| format!("`{format}` is no format of strftime"))?;
        Ok(out)
    }
}
