//! Where a JSON value ends in a text that grows.

/// A scan that goes on where it stopped. It follows brackets and strings alone.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct JsonScan {
    /// Bytes seen.
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl JsonScan {
    /// A scan of a value that begins at this byte.
    pub(super) fn from(at: usize) -> Self {
        JsonScan { at, ..JsonScan::default() }
    }

    /// Reads what the text has beyond what was read; the place after the value, where that is complete. The value is an
    /// object or an array.
    pub(super) fn end(&mut self, text: &str) -> Option<usize> {
        for &byte in text.as_bytes().get(self.at..)? {
            self.at += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.at);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Whether the text so far ends within a string.
    pub(super) fn in_string(&self) -> bool {
        self.in_string
    }
}
