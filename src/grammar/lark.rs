//! Grammars in llguidance's dialect of Lark, followed by llguidance: what rules alone cannot say (regular expressions
//! that are intersected or negated, JSON schemas inside of a grammar, special tokens by name, numbers of tokens).
//!
//! llguidance knows a vocabulary as a trie of its own, built at the first such grammar: control tokens begin there with
//! its marker, and the end of a generation is one token more than the vocabulary has.

use super::mask::{Mask, set};
use super::matcher::Matcher;
use super::vocabulary::Tree;
use crate::gguf::shown;
use crate::vocab::Vocab;
use crate::{Error, Result, Token, reserve};
use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::earley::{SlicedBiasComputer, regexvec::LexerStats};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{ParserFactory, TokenParser};
use parking_lot::Mutex;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest grammar, in bytes.
const MAX_TEXT_BYTES: usize = 256 << 10;
/// The most lines with a definition: each may refer to the one before, and llguidance resolves them by recursion.
const MAX_DEFINITIONS: usize = 2000;
/// The most of them that define a terminal: each may be a part of the next one's pattern, which takes long to compile.
const MAX_TERMINALS: usize = 500;
/// The most brackets inside of each other.
const MAX_DEPTH: usize = 100;
/// The stack of the thread that compiles a grammar: enough for chains of [`MAX_DEFINITIONS`].
const STACK_BYTES: usize = 256 << 20;
/// The most states of a grammar's lexer, of 1 to 2 KiB each.
const MAX_LEXER_STATES: usize = 50_000;
/// The longest run of forced bytes. The rest of a longer one is forced again after it.
const MAX_RUN: usize = 256;
/// The longest token that its trie takes.
const MAX_TOKEN_BYTES: usize = 1000;
/// The most nodes that its trie takes, and tokens.
const MAX_NODES: usize = 4_000_000;

fn refused(problem: impl std::fmt::Display) -> Error {
    Error::InvalidArgument(format!("Grammar: lark: {problem}"))
}

/// What llguidance says, in one line: without the lines of the grammar that it quotes.
fn said(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    let is_quoted = |line: &str| {
        let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.starts_with(" | ") || matches!(line, "" | "^" | "<non-verbose/>")
    };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !is_quoted(line)).collect();
    shown(&lines.join(" "))
}

fn limit(error: impl std::fmt::Display) -> Error {
    Error::OutOfMemory(format!("Grammar: lark: {}", said(error)))
}

/// What llguidance asks of a tokenizer.
struct Tokens(TokTrie);

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(text)
    }

    /// Forced text is tokenized as this library does it.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// What llguidance made of a vocabulary, once for all grammars of it.
fn factory(vocab: &Vocab, tree: &Tree) -> Result<Arc<ParserFactory>> {
    // The lock is held while one is built, so that it is built once.
    let mut known = tree.factory.lock();
    if let Some(factory) = &*known {
        return Ok(factory.clone());
    }
    let (n_vocab, n_nodes) = (tree.n_vocab, tree.nodes.len());
    if n_vocab.max(n_nodes) > MAX_NODES {
        let problem = format!("the vocabulary has {n_vocab} tokens with {n_nodes} different beginnings");
        return Err(refused(format!("{problem}, at most {MAX_NODES}")));
    }
    let mut texts: Vec<Vec<u8>> = reserve::list(tree.n_vocab + 1, "texts of tokens")?;
    for token in 0..tree.n_vocab as Token {
        let text = if tree.has(token) { tree.text(token) } else { &[] };
        let marker: &[u8] = if vocab.is_control(token) { &[TokTrie::SPECIAL_TOKEN_MARKER] } else { &[] };
        // No character begins with the marker.
        let is_known = !text.is_empty() && text.len() <= MAX_TOKEN_BYTES && text[0] != TokTrie::SPECIAL_TOKEN_MARKER;
        texts.push(if is_known { [marker, text].concat() } else { Vec::new() });
    }
    texts.push(Vec::new());
    let trie = TokTrie::from(&TokRxInfo::new(texts.len() as u32, tree.n_vocab as u32), &texts);
    let environment: TokEnv = Arc::new(Tokens(trie));
    let slices = SlicedBiasComputer::general_slices();
    let made = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices);
    let mut made = made.map_err(|error| Error::Internal(format!("Grammar: lark: {}", said(error))))?;
    made.quiet();
    let limits = made.limits_mut();
    (limits.max_lexer_states, limits.verbose_errors) = (MAX_LEXER_STATES, false);
    Ok(known.insert(Arc::new(made)).clone())
}

/// A grammar that llguidance compiled.
pub(super) struct CompiledLark {
    tree: Arc<Tree>,
    environment: TokEnv,
    starts: Mutex<Starts>,
    /// Whether it refers to special tokens.
    pub(super) has_tokens: bool,
    masks: AtomicU64,
}

/// Parsers at the start of a grammar.
struct Starts {
    /// What one of its clones finds out of the lexer helps the others. Where one goes beyond a limit of the lexer, that
    /// stays so for all.
    shared: TokenParser,
    /// One with a lexer of its own that nothing follows.
    fresh: TokenParser,
}

impl Starts {
    /// What is known of the lexer; `None` after a failure of llguidance's own.
    fn lexer(&self) -> Option<LexerStats> {
        catch_unwind(AssertUnwindSafe(|| Ok(self.shared.parser.lexer_stats()))).ok()
    }
}

impl CompiledLark {
    /// # Errors
    /// [`Error::InvalidArgument`] with llguidance's own words for what it refuses; [`Error::OutOfMemory`].
    pub(super) fn new(text: &str, vocab: &Arc<Vocab>) -> Result<CompiledLark> {
        check_size(text)?;
        let tree = Tree::of(vocab)?;
        let factory = factory(vocab, &tree)?;
        let environment = factory.tok_env().clone();
        let grammar = TopLevelGrammar::from_lark(text.to_owned());
        let compile = move || catch_unwind(AssertUnwindSafe(|| factory.create_parser(grammar)));
        let thread = std::thread::Builder::new().name("eliza-grammar".into()).stack_size(STACK_BYTES).spawn(compile);
        let thread =
            thread.map_err(|error| Error::OutOfMemory(format!("Grammar: no thread to compile it: {error}")))?;
        let made = thread.join().map_err(|_| refused("llguidance failed"))?;
        let mut fresh = made.map_err(|error| refused(said(error)))?;
        fresh.grammar_warnings().iter().for_each(|warning| log::warn!("Grammar: lark: {}", shown(warning)));
        let has_tokens = fresh.parser.grammar().lexer_spec().special_token_rx.is_some();
        let starts = Mutex::new(Starts { shared: fresh.deep_clone(), fresh });
        Ok(CompiledLark { tree, environment, starts, has_tokens, masks: AtomicU64::new(0) })
    }

    /// Bytes of memory that its lexer takes now.
    pub(super) fn bytes(&self) -> usize {
        self.starts.lock().lexer().map_or(0, |lexer| lexer.num_bytes)
    }

    /// How many states of its lexer are known.
    pub(super) fn states(&self) -> u64 {
        self.starts.lock().lexer().map_or(0, |lexer| lexer.num_states as u64)
    }

    /// How many masks were computed.
    pub(super) fn masks(&self) -> u64 {
        self.masks.load(Ordering::Relaxed)
    }

    /// Whether a token is a special one, whose text is none of a grammar's characters.
    fn is_special(&self, token: Token) -> bool {
        self.environment.tok_trie().is_special_token(token as TokenId)
    }

    /// llguidance's own, at the start of the grammar.
    fn matcher(&self) -> llguidance::Matcher {
        let mut starts = self.starts.lock();
        if starts.lexer().is_none_or(|lexer| lexer.error) {
            starts.shared = starts.fresh.deep_clone();
        }
        llguidance::Matcher::new(Ok(starts.shared.clone()))
    }
}

/// Refuses what would take llguidance's recursion deeper than the stack of the thread that compiles it.
fn check_size(text: &str) -> Result<()> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(refused(format!("{} bytes, at most {MAX_TEXT_BYTES}", text.len())));
    }
    let definitions = || text.lines().filter(|line| line.contains(':'));
    let is_terminal = |line: &&str| line.trim_start_matches([' ', '\t', '_', '!', '?']).starts_with(char::is_uppercase);
    for (count, most, what) in [
        (definitions().count(), MAX_DEFINITIONS, "definition"),
        (definitions().filter(is_terminal).count(), MAX_TERMINALS, "terminal's definition"),
    ] {
        if count > most {
            return Err(refused(format!("{count} lines with a {what}, at most {most}")));
        }
    }
    let mut depth = 0usize;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            let line = text.as_bytes()[..index].iter().filter(|&&byte| byte == b'\n').count() + 1;
            return Err(refused(format!("line {line}: more than {MAX_DEPTH} brackets inside of each other")));
        }
    }
    Ok(())
}

/// A place in a grammar that llguidance follows.
#[derive(Clone)]
pub(super) struct LarkMatcher {
    lark: Arc<CompiledLark>,
    matcher: llguidance::Matcher,
    may_end: bool,
    /// Of this place, if it was asked for.
    mask: Option<Arc<Mask>>,
}

impl LarkMatcher {
    /// At the start of the grammar.
    pub(super) fn new(lark: Arc<CompiledLark>) -> LarkMatcher {
        let matcher = lark.matcher();
        let mut made = LarkMatcher { lark, matcher, may_end: false, mask: None };
        made.arrive();
        made
    }

    /// Takes note of a new place.
    fn arrive(&mut self) {
        self.mask = None;
        self.may_end = self.matcher.is_accepting().unwrap_or(false);
    }

    /// The token of the byte that all legal tokens begin with, where that is a text's.
    fn forced_byte(&mut self) -> Result<Option<Token>> {
        if self.may_end {
            return Ok(None);
        }
        let mask = self.mask()?;
        let tree = &self.lark.tree;
        let Some([first, others @ ..]) = mask.few() else { return Ok(None) };
        let byte = |token: Token| if self.lark.is_special(token) { None } else { tree.text(token).first() };
        let Some(begin) = byte(*first) else { return Ok(None) };
        if others.iter().any(|&other| byte(other) != Some(begin)) {
            return Ok(None);
        }
        let single = tree.find(std::slice::from_ref(begin)).map(|node| tree.tokens(node));
        Ok(single.and_then(|tokens| tokens.iter().copied().find(|&token| mask.allows(token))))
    }

    /// Whether any token below the node of `token` in the vocabulary's trie is legal.
    fn allows_longer(&mut self, token: Token) -> Result<bool> {
        let mask = self.mask()?;
        let tree = &self.lark.tree;
        let Some(node) = tree.find(tree.text(token)) else { return Ok(false) };
        let below = node + 1..tree.nodes[node].end as usize;
        Ok(below.flat_map(|node| tree.tokens(node)).any(|&token| mask.allows(token)))
    }
}

impl Matcher for LarkMatcher {
    fn restart(&mut self) {
        self.matcher = self.lark.matcher();
        self.arrive();
    }

    fn mask(&mut self) -> Result<Arc<Mask>> {
        if let Some(mask) = &self.mask {
            return Ok(mask.clone());
        }
        let tree = &self.lark.tree;
        let found = match self.matcher.compute_mask_or_eos() {
            Ok(found) => Some(found),
            // None of the vocabulary's tokens spells what must come next.
            Err(_) if self.matcher.stop_reason() == StopReason::NoExtensionBias => None,
            Err(error) => return Err(limit(error)),
        };
        let mut bits = reserve::filled(0u32, tree.n_vocab.div_ceil(32), "words of a mask")?;
        if let Some(found) = found {
            // The token after the last one says that the text may end. Others are those of the trie.
            bits.iter_mut().zip(found.as_slice()).zip(&tree.all).for_each(|((to, from), all)| *to = from & all);
        }
        if self.may_end {
            tree.eog.iter().for_each(|&token| set(&mut bits, token));
        }
        self.lark.masks.fetch_add(1, Ordering::Relaxed);
        let mask = Arc::new(Mask::new(bits));
        self.mask = Some(mask.clone());
        Ok(mask)
    }

    fn follow_token(&mut self, token: Token) -> Result<bool> {
        let fits = self.matcher.try_consume_tokens(&[token as TokenId]).map_err(limit)? == 1;
        if fits {
            self.arrive();
        }
        Ok(fits)
    }

    /// Byte by byte where the vocabulary has a token for each, else by the longest tokens.
    fn follow_text(&mut self, text: &[u8]) -> Result<bool> {
        let tree = self.lark.tree.clone();
        let mut ahead = self.clone();
        let mut rest = text;
        while let Some(byte) = rest.first() {
            let single = tree.find(std::slice::from_ref(byte)).and_then(|node| tree.tokens(node).first().copied());
            let Some(token) = single.or_else(|| tree.longest(rest)) else { return Ok(false) };
            if !ahead.follow_token(token)? {
                return Ok(false);
            }
            rest = &rest[tree.text(token).len()..];
        }
        *self = ahead;
        Ok(true)
    }

    fn may_end(&self) -> bool {
        self.may_end
    }

    fn has_no_next(&self) -> bool {
        self.matcher.stop_reason() == StopReason::NoExtension
    }

    /// Byte by byte: what llguidance says is forced has no end where the grammar has none.
    fn forced(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let mut ahead: Option<LarkMatcher> = None;
        for _ in 0..MAX_RUN {
            let Some(token) = ahead.as_mut().unwrap_or(self).forced_byte()? else { break };
            if !ahead.get_or_insert_with(|| self.clone()).follow_token(token)? {
                break;
            }
            reserve::extend(out, self.lark.tree.text(token), "bytes of forced text")?;
        }
        Ok(())
    }

    fn may_go_on(&self, run: &[Token]) -> Result<bool> {
        let Some((&last, before)) = run.split_last() else { return Ok(false) };
        let mut ahead = self.clone();
        for &token in before {
            if !ahead.follow_token(token)? {
                return Ok(true);
            }
        }
        ahead.allows_longer(last)
    }

    fn mark(&self) -> u32 {
        0
    }

    fn mark_of(&self, _: u8) -> u32 {
        0
    }
}
