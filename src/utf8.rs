//! Text from bytes that come in pieces.

/// Replaces bytes that are no character.
const REPLACEMENT: &str = "\u{FFFD}";

/// Moves from `raw` to `text` whatever is decided; with `last` that is everything. What stays is the beginning of a
/// character. Bytes that can never become one turn into U+FFFD, one for each maximal broken sequence, as
/// `String::from_utf8_lossy` does over the whole.
pub(crate) fn assemble(raw: &mut Vec<u8>, last: bool, text: &mut String) {
    let mut used = 0;
    for chunk in raw.utf8_chunks() {
        text.push_str(chunk.valid());
        used += chunk.valid().len();
        let broken = chunk.invalid();
        if broken.is_empty() {
            continue;
        }
        let at_end = used + broken.len() == raw.len();
        let may_go_on = at_end && std::str::from_utf8(broken).is_err_and(|error| error.error_len().is_none());
        if may_go_on && !last {
            break;
        }
        text.push_str(REPLACEMENT);
        used += broken.len();
    }
    raw.drain(..used);
}
