//! Pre-tokenization: cutting a text into the words that BPE merges may not cross.
//!
//! A pre-tokenizer is a list of stages. Each cuts the words of the stage before it; no stage drops anything, so the
//! words always spell the text. The most used stages are scanners written by hand, the others patterns.

use super::pace::Pace;
use super::pattern::{Pattern, Scratch};
use super::unicode::{LETTER, MARK, NUMBER, SPACE, class, code_points, collapse, is_han, wide};
use crate::{Result, reserve};
use std::borrow::Cow;

/// One stage, as the table of pre-tokenizers names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// GPT-2's words: contractions, then letters, digits or other symbols with one space before them, white space.
    Gpt2,
    /// Words as Llama 3 and Qwen have them: contractions in any case, letters with any one symbol before them, numbers
    /// of `digits` digits, symbols with trailing line breaks, white space. `marks` counts combining marks as letters.
    Words {
        /// Digits that stay together.
        digits: usize,
        /// Combining marks belong to letter runs.
        marks: bool,
    },
    /// Kimi K2's words: as `Words`, with Chinese runs on their own and contractions kept with their word.
    Kimi,
    /// Runs of line feeds, and the text between them.
    Lines,
    /// Digit runs in groups of three, counted from the right; text before a run stays with its first group.
    DigitGroups,
    /// ASCII digits in groups of three, counted from the right.
    Thousands,
    /// Matches of a pattern over collapsed text, and the text between them.
    Pattern(&'static str),
    /// As `Pattern`, over code points: for patterns that name non-ASCII characters.
    WidePattern(&'static str),
}

#[derive(Debug)]
enum Cutter {
    Scanner(Stage),
    Pattern(Pattern),
    WidePattern(Pattern),
}

/// A pre-tokenizer, ready to run.
#[derive(Debug)]
pub(super) struct Splitter {
    cutters: Vec<Cutter>,
}

/// The forms of one text that stages look at, one element per code point.
struct Text<'t> {
    collapsed: Cow<'t, [u8]>,
    /// Code points, where a stage needs them; none for ASCII, whose collapsed form they are.
    wide: Vec<u32>,
}

/// What memory is for, in errors.
const FORMS: &str = "characters of a text";
const WORDS: &str = "words of a text";

impl Splitter {
    /// Compile the stages.
    pub(super) fn new(stages: &[Stage]) -> Result<Self> {
        let compile = |stage: &Stage| {
            Ok(match *stage {
                Stage::Pattern(notation) => Cutter::Pattern(Pattern::new(notation)?),
                Stage::WidePattern(notation) => Cutter::WidePattern(Pattern::new(notation)?),
                scanner => Cutter::Scanner(scanner),
            })
        };
        Ok(Splitter { cutters: stages.iter().map(compile).collect::<Result<_>>()? })
    }

    /// Cut a repaired text into words and hand each one to `word`, in order.
    pub(super) fn split<'t>(
        &self,
        text: &'t [u8],
        pace: &Pace<'_>,
        mut word: impl FnMut(&'t [u8]) -> Result<()>,
    ) -> Result<()> {
        let needs_wide = |c: &Cutter| matches!(c, Cutter::WidePattern(_) | Cutter::Scanner(Stage::Kimi));
        let ascii = text.is_ascii();
        let mut forms = Text { collapsed: Cow::Borrowed(text), wide: Vec::new() };
        if !ascii {
            let n = text.iter().filter(|&&b| b & 0xc0 != 0x80).count();
            let mut collapsed = reserve::list(n, FORMS)?;
            for cp in code_points(text) {
                pace.spend(1)?;
                reserve::push(&mut collapsed, collapse(cp), FORMS)?;
            }
            forms.collapsed = Cow::Owned(collapsed);
            if self.cutters.iter().any(needs_wide) {
                forms.wide = reserve::list(forms.collapsed.len(), FORMS)?;
                for cp in code_points(text) {
                    pace.spend(1)?;
                    forms.wide.push(wide(cp));
                }
            }
        }
        let mut ends = vec![forms.collapsed.len() as u32];
        for cutter in &self.cutters {
            ends = cutter.cut(&forms, &ends, pace)?;
        }

        // Words are counted in code points; walk the bytes along.
        let (mut rest, mut start) = (text, 0);
        for end in ends {
            let length = (end - start) as usize;
            let bytes = if ascii {
                length
            } else {
                let lead = |&(_, b): &(usize, &u8)| *b & 0xc0 != 0x80;
                rest.iter().enumerate().filter(lead).nth(length).map_or(rest.len(), |(i, _)| i)
            };
            pace.spend(1 + length / 16)?;
            let (this, behind) = rest.split_at(bytes);
            if !this.is_empty() {
                word(this)?;
            }
            (rest, start) = (behind, end);
        }
        Ok(())
    }
}

impl Cutter {
    /// Cut every word of `ends` (the words' ends, ascending); the new ends.
    fn cut(&self, text: &Text<'_>, ends: &[u32], pace: &Pace<'_>) -> Result<Vec<u32>> {
        let mut out = Ends { list: reserve::list(ends.len().max(text.collapsed.len() / 8), WORDS)?, offset: 0 };
        let mut scratch = Scratch::default();
        let mut start = 0;
        for end in ends.iter().map(|&end| end as usize) {
            out.offset = start;
            let piece = &text.collapsed[start..end];
            let code_points = text.wide.get(start..end).unwrap_or_default();
            match self {
                Cutter::WidePattern(pattern) if !text.wide.is_empty() => {
                    cut_matches(pattern, code_points, &mut scratch, pace, &mut out)?;
                }
                Cutter::Pattern(pattern) | Cutter::WidePattern(pattern) => {
                    cut_matches(pattern, piece, &mut scratch, pace, &mut out)?;
                }
                Cutter::Scanner(Stage::DigitGroups) => cut_digit_groups(piece, pace, &mut out)?,
                Cutter::Scanner(Stage::Thousands) => cut_thousands(piece, pace, &mut out)?,
                Cutter::Scanner(scanner) => {
                    let mut at = 0;
                    while at < piece.len() {
                        let from = at;
                        at = match *scanner {
                            Stage::Gpt2 => gpt2_word(piece, at),
                            Stage::Words { digits, marks } => {
                                word(piece, at, digits, if marks { LETTER | MARK } else { LETTER })
                            }
                            Stage::Kimi => kimi_word(piece, code_points, at),
                            _ => run_end(piece, at, |b| (b == b'\n') == (piece[at] == b'\n')),
                        };
                        pace.spend(1 + (at - from) / 4)?;
                        out.push(at)?;
                    }
                }
            }
            start = end;
        }
        Ok(out.list)
    }
}

/// The ends of words, made piece by piece.
struct Ends {
    list: Vec<u32>,
    /// Where the piece begins.
    offset: usize,
}

impl Ends {
    /// A word of the piece ends here.
    fn push(&mut self, end: usize) -> Result<()> {
        reserve::push(&mut self.list, (self.offset + end) as u32, WORDS)
    }
}

/// Push the ends of all matches and of the stretches between them.
fn cut_matches<S: Copy + Into<u32>>(
    pattern: &Pattern,
    piece: &[S],
    scratch: &mut Scratch,
    pace: &Pace<'_>,
    out: &mut Ends,
) -> Result<()> {
    scratch.forget();
    let mut at = 0;
    while let Some((first, last)) = pattern.find(piece, at, scratch, pace)? {
        if first > at {
            out.push(first)?;
        }
        // No pattern of the table has an empty match; with one, advancing past it still ends the loop.
        at = last.max(first + 1);
        out.push(at)?;
    }
    match at < piece.len() {
        true => out.push(piece.len()),
        false => Ok(()),
    }
}

#[inline]
fn run_end(text: &[u8], from: usize, member: impl Fn(u8) -> bool) -> usize {
    text[from..].iter().position(|&b| !member(b)).map_or(text.len(), |n| from + n)
}

#[inline]
fn is(text: &[u8], at: usize, classes: u8) -> bool {
    text.get(at).is_some_and(|&b| class(b) & classes != 0)
}

fn is_break(b: u8) -> bool {
    b == b'\r' || b == b'\n'
}

/// Length of an English contraction at the start of `text` (`'s 't 'm 'd 're 've 'll`), 0 if there is none.
#[inline]
fn contraction(text: &[u8], any_case: bool) -> usize {
    let &[b'\'', first, ref rest @ ..] = text else { return 0 };
    let fold = |b: u8| if any_case { b.to_ascii_lowercase() } else { b };
    match (fold(first), rest.first().map(|&b| fold(b))) {
        (b's' | b't' | b'm' | b'd', _) => 2,
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => 3,
        _ => 0,
    }
}

/// End of the white space word at `at`: all of it, less the last symbol where a word follows.
fn white_space(text: &[u8], at: usize) -> usize {
    let end = run_end(text, at, |b| class(b) & SPACE != 0);
    if end < text.len() && end > at + 1 { end - 1 } else { end.max(at + 1) }
}

/// As [`white_space`], but up to the last line break if there is one.
fn white_space_lines(text: &[u8], at: usize) -> usize {
    let end = run_end(text, at, |b| class(b) & SPACE != 0);
    match text[at..end].iter().rposition(|&b| is_break(b)) {
        Some(last) => at + last + 1,
        None => white_space(text, at),
    }
}

fn gpt2_word(text: &[u8], at: usize) -> usize {
    let n = contraction(&text[at..], false);
    if n > 0 {
        return at + n;
    }
    let first = at + usize::from(text[at] == b' ');
    for kind in [LETTER, NUMBER] {
        if is(text, first, kind) {
            return run_end(text, first, |b| class(b) & kind != 0);
        }
    }
    if first < text.len() && !is(text, first, SPACE) {
        return run_end(text, first, |b| class(b) & (SPACE | LETTER | NUMBER) == 0);
    }
    white_space(text, at)
}

fn word(text: &[u8], at: usize, digits: usize, letter: u8) -> usize {
    let n = contraction(&text[at..], true);
    if n > 0 {
        return at + n;
    }
    let number = is(text, at, NUMBER);
    if !number && !is_break(text[at]) && (is(text, at, letter) || is(text, at + 1, letter)) {
        return run_end(text, at + 1, |b| class(b) & letter != 0);
    }
    if number {
        return number_end(text, at, digits);
    }
    symbols_or_space(text, at, letter)
}

/// End of the digits at `at`, of which at most `most` stay together.
fn number_end(text: &[u8], at: usize, most: usize) -> usize {
    let limit = text.len().min(at + most);
    run_end(&text[..limit], at, |b| class(b) & NUMBER != 0)
}

/// The alternatives that follow letters and numbers: symbols with trailing line breaks, or white space.
fn symbols_or_space(text: &[u8], at: usize, letter: u8) -> usize {
    let not_symbol = SPACE | NUMBER | letter;
    let first = at + usize::from(text[at] == b' ');
    if first < text.len() && !is(text, first, not_symbol) {
        let end = run_end(text, first, |b| class(b) & not_symbol == 0);
        return run_end(text, end, is_break);
    }
    white_space_lines(text, at)
}

fn kimi_word(text: &[u8], code_points: &[u32], at: usize) -> usize {
    let han = |i: usize| code_points.get(i).is_some_and(|&cp| is_han(cp));
    let letter = |i: usize| is(text, i, LETTER) && !han(i);
    if han(at) {
        return (at..text.len()).find(|&i| !han(i)).unwrap_or(text.len());
    }
    let leads = !is_break(text[at]) && !is(text, at, LETTER | NUMBER);
    if letter(at) || (leads && letter(at + 1)) {
        let end = (at + 1..text.len()).find(|&i| !letter(i)).unwrap_or(text.len());
        return end + contraction(&text[end..], true);
    }
    if is(text, at, NUMBER) {
        return number_end(text, at, 3);
    }
    symbols_or_space(text, at, LETTER)
}

fn cut_digit_groups(piece: &[u8], pace: &Pace<'_>, out: &mut Ends) -> Result<()> {
    let (mut at, mut done) = (0, 0);
    while at < piece.len() {
        pace.spend(1)?;
        if class(piece[at]) & NUMBER == 0 {
            at += 1;
            continue;
        }
        let end = run_end(piece, at, |b| class(b) & NUMBER != 0);
        let short = (end - at) % 3;
        let first = if short == 0 { at + 3 } else { at + short };
        for group in (first..=end).step_by(3) {
            pace.spend(1)?;
            out.push(group)?;
        }
        (at, done) = (end, end);
    }
    match done < piece.len() {
        true => out.push(piece.len()),
        false => Ok(()),
    }
}

fn cut_thousands(piece: &[u8], pace: &Pace<'_>, out: &mut Ends) -> Result<()> {
    let mut at = 0;
    while at < piece.len() {
        let end = run_end(piece, at, |b| b.is_ascii_digit());
        let short = (end - at) % 3;
        for group in (at + short..end).step_by(3).filter(|&cut| cut > 0) {
            pace.spend(1)?;
            out.push(group)?;
        }
        let next = run_end(piece, end, |b| !b.is_ascii_digit());
        pace.spend(1 + (next - end) / 4)?;
        at = next;
    }
    match piece.is_empty() {
        true => Ok(()),
        false => out.push(piece.len()),
    }
}
