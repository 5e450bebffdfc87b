//! A model on a server as a decoder.
//!
//! The server samples, so one request gives many tokens: a generation takes them from one answer as long as they are
//! what it goes on with. Another request begins where the answer is over or the generation took another way: after a
//! span, after tokens that the budget of reasoning forced. Every token is checked against trie or grammar here, because
//! servers ignore what they do not know. Tokens that a trie forces at the end of a leaf are not waited for.

use super::constraint::Constraint;
use super::decoder::Decoder;
use super::shared::{Job, Prewarm};
use super::{ContextFull, ModelInfo, OpenOptions, RemoteOptions, Session, Settings};
use crate::backend::{ChainStep, Legal, SampleResult, SampleSpec, SampledRow};
use crate::engine::{EmbedOptions, Embeddings, EngineOptions, EngineStats, LeafScore, Prefill, SavedSlot, Speculation};
use crate::gguf::{File, Writer};

use crate::grammar::{self, GrammarState};
use crate::model;
use crate::remote::{Answer, Hold, Knob, Part, Prompt, Request, Server, logprobs};
use crate::trie::{Descriptor, Mode, Node, Trie};
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Types of tokens in a vocabulary.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
/// Context in tokens where neither the host nor the server nor the vocabulary's file says one.
const DEFAULT_CONTEXT: usize = 4096;
/// Bytes of a prompt and its answer where the server tokenizes: what it cannot take it refuses.
const TEXT: usize = 1 << 20;
/// Slots where the host chooses no number; those of a server are only names.
const SLOTS: u32 = 16;

impl Session {
    /// Connects to the server whose address is in the place of the model's path.
    ///
    /// # Errors
    /// The server's errors; those of the vocabulary's file; [`Error::InvalidArgument`] without one;
    /// [`Error::Unsupported`] for what needs the weights here.
    pub(super) fn open_remote(options: OpenOptions) -> Result<Session> {
        let OpenOptions { path: address, engine, draft, vocab_only, store, remote, .. } = options;
        let needs = |what: &str| {
            let problem = format!("{}: {what} works with a model on this machine", address.display());
            Err(Error::Unsupported(problem))
        };
        if draft.is_some() {
            return needs("a draft model");
        }
        if store.is_some() {
            return needs("a store of conversations");
        }
        if vocab_only {
            let none = || Error::InvalidArgument(format!("{}: there is no vocabulary to open", address.display()));
            return Session::open_vocab(&remote.vocab.ok_or_else(none)?);
        }
        let Connected { slot, vocab, file, info, settings } = Connected::open(&address, &engine, remote)?;
        Session::start(slot, vocab, file, info, settings)
    }
}

/// The vocabulary where the server tokenizes: the bytes, and an end.
fn bytes() -> Result<File> {
    // Byte-level vocabularies write a byte as a character: those that print as themselves, others from 256 on.
    let prints = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut others = (256..).filter_map(char::from_u32);
    let character = |byte: u32| if prints(byte) { char::from_u32(byte) } else { others.next() };
    let mut tokens: Vec<String> = (0..256).filter_map(character).map(String::from).collect();
    let end = tokens.len() as u32;
    tokens.push("<|end|>".into());
    let kinds: Vec<i32> = (0..=end).map(|token| if token == end { CONTROL } else { NORMAL }).collect();
    let mut file = Writer::new(3);
    file.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "gpt-2").set("tokenizer.ggml.tokens", tokens);
    file.set("tokenizer.ggml.token_type", kinds).set("tokenizer.ggml.merges", Vec::<String>::new());
    file.set("tokenizer.ggml.add_bos_token", false).set("tokenizer.ggml.eos_token_id", end);
    File::from_bytes(file.to_bytes()?)
}

/// A server with its vocabulary, and that one's file.
pub(super) struct Connected {
    pub slot: RemoteSlot,
    pub vocab: Arc<Vocab>,
    pub file: File,
    pub info: ModelInfo,
    pub settings: Settings,
}

impl Connected {
    /// Connects to the server at an address.
    pub fn open(address: &Path, engine: &EngineOptions, remote: RemoteOptions) -> Result<Connected> {
        let path = remote.vocab.clone();
        let file = path.as_deref().map_or_else(bytes, File::open)?;
        let vocab = Arc::new(Vocab::from_gguf(&file).map_err(|error| error.in_file(file.path()))?);
        let server = Server::connect(address, remote)?;
        if let Some(path) = &path {
            server.check_vocab(&vocab, path)?;
        }
        let facts = server.facts().clone();
        let trained = model::Facts::of(&file).context.and_then(|n| usize::try_from(n).ok());
        let asked = (engine.context > 0).then_some(engine.context as usize);
        let context = match path {
            Some(_) => facts.context.or(asked).or(trained).unwrap_or(DEFAULT_CONTEXT),
            None => TEXT,
        };
        let ids = std::iter::once(facts.model.clone()).chain(model::names(&file)).collect();
        log::info!("Connected to {}: model {}, context {context}", facts.address, facts.model);
        let info = ModelInfo {
            path: address.into(),
            ids,
            n_vocab: vocab.n_tokens(),
            generates: true,
            train_context: trained.unwrap_or(context) as u32,
            context: context as u32,
            slots: if engine.slots == 0 { SLOTS } else { engine.slots },
            parallel: 1,
            device: facts.address.clone(),
            device_reason: "the model is on this server".into(),
            server: Some(facts),
            ..ModelInfo::default()
        };
        let mut settings = Settings::default();
        for unused in settings.params.apply_metadata(&file) {
            log::warn!("{}: {unused}", file.path().display());
        }
        // Defaults are what the server has; what a host asks for is refused where it is missing.
        if !server.has(Knob::TopK) {
            settings.params.top_k = 0;
        }
        if !server.has(Knob::MinP) {
            settings.params.min_p = 0.0;
        }
        let as_text = path.is_none();
        Ok(Connected { slot: RemoteSlot::new(server, vocab.clone(), context, as_text), vocab, file, info, settings })
    }
}

/// What the answer is held to, and how far it has come.
enum Held {
    Nothing,
    Trie(Arc<Trie>, Node),
    Grammar(GrammarState),
}

/// An answer that a generation takes tokens from.
struct Current {
    answer: Answer,
    held: Held,
    /// Tokens of texts that came without.
    ready: VecDeque<Token>,
    /// The token that was given last, until it is a token of the slot.
    given: Option<Token>,
    /// Tokens that it may still have.
    left: usize,
    /// Whether one token was asked for, after which there is another request.
    single: bool,
}

impl Current {
    /// Whether the server ends it by itself, with no choice before that.
    fn is_nearly_over(&self) -> bool {
        match &self.held {
            Held::Trie(trie, node) => {
                let mut end = *node;
                while let ([child], false) = (trie.child_nodes(end), trie.is_leaf(end)) {
                    end = *child;
                }
                self.left == 0 || trie.children(end).is_empty()
            }
            _ => self.left == 0,
        }
    }
}

/// What a generation asked for.
#[derive(Default)]
struct Wanted {
    constraint: Constraint,
    steps: Vec<ChainStep>,
    seed: u64,
    most: Option<u64>,
    stop_at_span_end: bool,
    /// Tokens before the first of the generation.
    start: usize,
}

/// The text of bytes.
fn text_of(tokens: &[Token]) -> Result<String> {
    let mut bytes: Vec<u8> = Vec::with_capacity(tokens.len());
    // Control tokens have no text.
    bytes.extend(tokens.iter().filter_map(|&token| u8::try_from(token).ok()));
    String::from_utf8(bytes).map_err(|error| Error::InvalidArgument(format!("the text for the server: {error}")))
}

/// A prompt as its text, where there is one.
fn prompt<'a>(text: &'a Option<String>, tokens: &'a [Token]) -> Prompt<'a> {
    text.as_deref().map_or(Prompt::Tokens(tokens), Prompt::Text)
}

/// The texts of all names of a trie of bytes that go on from a node.
fn names_after(trie: &Trie, from: Node) -> Result<Vec<String>> {
    let (mut names, mut open) = (Vec::new(), vec![(from, Vec::new())]);
    while let Some((node, path)) = open.pop() {
        if trie.is_leaf(node) && node != from {
            names.push(text_of(&path)?);
        }
        for (&token, &child) in trie.children(node).iter().zip(trie.child_nodes(node)) {
            open.push((child, [&path[..], &[token]].concat()));
        }
    }
    Ok(names)
}

/// A prompt and what was generated after it, on a server.
pub(super) struct RemoteSlot {
    server: Server,
    vocab: Arc<Vocab>,
    context: usize,
    /// Whether the server tokenizes, and tokens here are bytes.
    as_text: bool,
    /// Whether the server's limit of tokens ended the answer.
    reached_limit: bool,
    tokens: Vec<Token>,
    wanted: Wanted,
    current: Option<Current>,
    /// The answer before, whose end is read before the next request, so that its connection can be used again.
    ending: Option<Answer>,
    /// Tokens that must not come next.
    without: Vec<Token>,
    row: SampledRow,
    cached: u64,
}

impl RemoteSlot {
    fn new(server: Server, vocab: Arc<Vocab>, context: usize, as_text: bool) -> RemoteSlot {
        let (tokens, without) = (Vec::new(), Vec::new());
        let (wanted, row) = (Wanted::default(), SampledRow::default());
        RemoteSlot {
            server,
            vocab,
            context,
            as_text,
            reached_limit: false,
            tokens,
            wanted,
            current: None,
            ending: None,
            without,
            row,
            cached: 0,
        }
    }

    fn unsupported<T>(&self, what: &str) -> Result<T> {
        let address = &self.server.facts().address;
        Err(Error::Unsupported(format!("{address}: {what} needs the model on this machine")))
    }

    /// Appends tokens of the stream. Those that the answer has next are taken from it.
    fn follow(&mut self, tokens: &[Token]) -> Result<()> {
        for &token in tokens {
            let another = self.current.as_mut().is_some_and(|current| current.given.take() != Some(token));
            if another {
                // Under a trie only this token is legal, so that it is what the answer has.
                let forced = matches!(&self.current, Some(Current { held: Held::Trie(..), .. }));
                match if forced { self.next()? } else { None } {
                    None => self.current = None,
                    Some(next) if next == token => {}
                    Some(next) => return Err(self.not_held(next)),
                }
            }
            self.tokens.push(token);
        }
        Ok(())
    }

    /// The next token of the answer; `None` where it is over and another request goes on.
    fn next(&mut self) -> Result<Option<Token>> {
        let Some(mut current) = self.current.take() else { return Ok(None) };
        let part = match current.ready.pop_front() {
            Some(token) => Part::Token(token),
            None => current.answer.part()?,
        };
        self.cached = current.answer.cached().unwrap_or(self.cached);
        match part {
            Part::Text(text) => {
                current.ready.extend(self.vocab.tokenize_inside(text.as_bytes(), false, &|| false)?);
                self.current = Some(current);
                self.next()
            }
            Part::Token(token) => {
                if usize::try_from(token).map_or(true, |id| id >= self.vocab.n_tokens()) {
                    let n = self.vocab.n_tokens();
                    let problem = format!("the server answered with token {token}, and the vocabulary has {n}");
                    return Err(self.server.problem(problem));
                }
                let held = match &mut current.held {
                    Held::Nothing => true,
                    Held::Grammar(state) => state.accept(token).is_ok(),
                    Held::Trie(trie, node) => match trie.child(*node, token) {
                        Some(child) => {
                            *node = child;
                            true
                        }
                        None if self.vocab.is_eog(token) => return self.ended(current, false),
                        None => false,
                    },
                };
                if !held {
                    return Err(self.not_held(token));
                }
                current.left = current.left.saturating_sub(1);
                self.current = Some(current);
                Ok(Some(token))
            }
            Part::End { by_length } => self.ended(current, by_length),
        }
    }

    /// After the last token of an answer: a token that stands for its end, or `None` for another request.
    fn ended(&mut self, current: Current, by_length: bool) -> Result<Option<Token>> {
        match current.held {
            Held::Trie(trie, node) if trie.is_leaf(node) => {
                let children = trie.children(node);
                if self.wanted.stop_at_span_end && !children.is_empty() {
                    return Ok(Some(self.no_child(children)));
                }
                self.without.extend_from_slice(children);
                Ok(None)
            }
            Held::Trie(..) => Err(self.server.problem("the answer ended within a name of the trie")),
            _ if current.single => Ok(None),
            // Tokens of texts are counted otherwise there than here.
            _ if by_length && (self.as_text || !self.server.tells_tokens()) => {
                self.reached_limit = true;
                Ok(self.vocab.eog_tokens().first().copied())
            }
            _ if by_length => {
                let problem = format!("the server ended the answer after {} tokens in all", self.tokens.len());
                Err(self.server.problem(problem))
            }
            Held::Grammar(state) if !state.may_end() => {
                Err(self.server.problem("the answer ended before the grammar does"))
            }
            _ => match self.vocab.eog_tokens().first() {
                Some(&token) => Ok(Some(token)),
                None => Err(self.server.problem("the answer ended, and the vocabulary has no token for that")),
            },
        }
    }

    /// A token that ends a span at a leaf with these children; it is not kept.
    fn no_child(&self, children: &[Token]) -> Token {
        let none = |token: &Token| children.binary_search(token).is_err();
        let ids = 0..self.vocab.n_tokens() as Token;
        self.vocab.eog_tokens().iter().copied().find(none).or_else(|| ids.into_iter().find(none)).unwrap_or(-1)
    }

    fn not_held(&self, token: Token) -> Error {
        let mut text = Vec::new();
        self.vocab.piece(token, true, &mut text);
        let text = String::from_utf8_lossy(&text);
        let problem = format!("the server did not hold to the constraint: it answered token {token} ({text:?})");
        self.server.problem(problem)
    }

    /// Begins another answer after the tokens so far.
    fn request(&mut self) -> Result<()> {
        if self.as_text && !self.without.is_empty() {
            return self.needs_vocab("text after a name that others begin with");
        }
        let (trie, guide) = match &self.wanted.constraint {
            Constraint::Trie(trie) if self.without.is_empty() => (self.node_now(trie.trie(), trie.node()), None),
            Constraint::Grammar(walk) if self.tokens.len() == self.wanted.start => {
                let Some(spell) = self.server.spelling() else {
                    let address = &self.server.facts().address;
                    return Err(Error::Unsupported(format!("{address}: this kind of server has no grammars")));
                };
                if self.as_text && walk.state().grammar().has_tokens() {
                    return self.needs_vocab("a grammar with whole tokens");
                }
                let text = grammar::to_gbnf(walk.source(), &self.vocab, spell)?;
                (None, (!text.is_empty()).then(|| (text, walk.state().clone())))
            }
            _ => (None, None),
        };
        let single = !self.without.is_empty();
        let given = (self.tokens.len() - self.wanted.start) as u64;
        let left = self.wanted.most.map_or(u64::MAX, |most| most.saturating_sub(given));
        let texts = match (&trie, self.as_text) {
            (Some((trie, node)), true) => names_after(trie, *node)?,
            _ => Vec::new(),
        };
        let text = self.spelled(&self.tokens)?;
        let (steps, ignore_eos) = self.steps()?;
        let max_tokens = if self.as_text {
            self.wanted.most.map_or(self.server.facts().context.unwrap_or(DEFAULT_CONTEXT), |most| most as usize)
        } else if single {
            1
        } else {
            self.room().min(left.try_into().unwrap_or(usize::MAX)).max(1)
        };
        let greedy = |trie: &crate::trie::TrieState| trie.mode() != Mode::Sampled;
        let request = Request {
            prompt: prompt(&text, &self.tokens),
            max_tokens,
            chain: &steps,
            ignore_eos,
            greedy: trie.is_some() && self.wanted.constraint.trie().is_some_and(greedy),
            seed: self.wanted.seed.wrapping_add(given),
            hold: match (&trie, &guide) {
                (Some(_), _) if self.as_text => Hold::Texts(&texts),
                (Some((trie, node)), _) => Hold::Trie(trie, *node),
                (_, Some((text, _))) => Hold::Grammar(text),
                _ => Hold::Nothing,
            },
            without: &self.without,
        };
        if let Some(ending) = self.ending.take() {
            ending.end();
        }
        let answer = self.server.complete(&request)?;
        let held = match (trie, guide) {
            (Some((trie, node)), _) => Held::Trie(trie, node),
            (_, Some((_, state))) => Held::Grammar(state),
            _ => Held::Nothing,
        };
        self.without.clear();
        self.current = Some(Current { answer, held, ready: VecDeque::new(), given: None, left: max_tokens, single });
        Ok(())
    }

    /// The chain, and whether the answer's end is to be ignored. Without a vocabulary no other token can be named.
    fn steps(&self) -> Result<(Vec<ChainStep>, bool)> {
        if !self.as_text {
            return Ok((self.wanted.steps.clone(), false));
        }
        let (mut steps, mut ignore_eos) = (Vec::new(), false);
        for step in &self.wanted.steps {
            match step {
                ChainStep::Ban(tokens) if tokens == self.vocab.eog_tokens() => ignore_eos = true,
                ChainStep::Ban(_) | ChainStep::LogitBias(_) => return self.needs_vocab("a bias of tokens"),
                other => steps.push(other.clone()),
            }
        }
        Ok((steps, ignore_eos))
    }

    /// The text of tokens, where texts are what is sent.
    fn spelled(&self, tokens: &[Token]) -> Result<Option<String>> {
        self.as_text.then(|| text_of(tokens)).transpose()
    }

    fn needs_vocab<T>(&self, what: &str) -> Result<T> {
        let address = &self.server.facts().address;
        Err(Error::Unsupported(format!("{address}: {what} needs the option vocab")))
    }

    /// The node of the trie after the tokens of the generation, from the node at its beginning on; `None` where the
    /// span is over.
    fn node_now(&self, trie: &Arc<Trie>, from: Option<Node>) -> Option<(Arc<Trie>, Node)> {
        let mut node = from?;
        for &token in &self.tokens[self.wanted.start..] {
            node = trie.child(node, token)?;
        }
        (!trie.children(node).is_empty()).then(|| (trie.clone(), node))
    }
}

impl Decoder for RemoteSlot {
    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.server.watch(cancel);
    }

    fn samples_itself(&self) -> bool {
        true
    }

    fn limits_itself(&self) -> bool {
        self.as_text
    }

    fn reached_limit(&self) -> bool {
        self.reached_limit
    }

    fn begin(&mut self, job: &Job, pending: usize) -> Result<()> {
        if matches!(job.on_context_full, ContextFull::Shift { .. }) {
            return self.unsupported("a context shift");
        }
        self.rollback()?;
        self.reached_limit = false;
        self.without.clear();
        self.wanted.constraint = job.constraint.clone();
        self.wanted.start = self.tokens.len() + pending;
        (self.wanted.most, self.wanted.stop_at_span_end) = (job.max_new_tokens, job.stop_at_span_end);
        Ok(())
    }

    fn prefill(&mut self, _: i32, tokens: &[Token], _: &AtomicBool) -> Result<Prefill> {
        if tokens.len() >= self.context {
            let problem = format!("a prompt of {} tokens in a context of {}", tokens.len(), self.context);
            return Err(Error::OutOfMemory(problem));
        }
        (self.current, self.cached) = (None, 0);
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        Ok(Prefill { tokens: tokens.len(), ..Prefill::default() })
    }

    fn prewarm(&mut self, warm: &Prewarm, cancel: &Arc<AtomicBool>, _: &mut dyn FnMut()) -> Result<()> {
        let text = self.spelled(&warm.tokens)?;
        let before = self.server.watch(cancel);
        let warmed = self.server.warm(prompt(&text, &warm.tokens));
        self.server.watch(&before);
        warmed
    }

    fn logits(&mut self, _: &[Token], _: &[Token], _: &AtomicBool) -> Result<&mut [f32]> {
        self.unsupported("a row of logits")
    }

    fn append(&mut self, tokens: &[Token], _: &AtomicBool) -> Result<()> {
        self.follow(tokens)
    }

    fn start_sampling(&mut self, spec: &SampleSpec) -> Result<usize> {
        if spec.candidates > 0 {
            return self.unsupported("the list of candidates");
        }
        (self.wanted.steps, self.wanted.seed) = (spec.steps.clone(), spec.seed);
        Ok(spec.steps.len())
    }

    fn exclude(&mut self, tokens: &[Token]) {
        self.current = None;
        self.without.extend_from_slice(tokens);
    }

    fn sample(
        &mut self,
        tokens: &[Token],
        _: Option<Legal<'_>>,
        _: Speculation<'_>,
        _: &AtomicBool,
    ) -> Result<&SampledRow> {
        self.follow(tokens)?;
        // After a whole leaf nothing more comes.
        let whole = |held: &Held| matches!(held, Held::Trie(trie, node) if trie.children(*node).is_empty());
        self.current.take_if(|current| whole(&current.held));
        let token = loop {
            if self.current.is_none() {
                self.request()?;
            }
            if let Some(token) = self.next()? {
                break token;
            }
        };
        if let Some(current) = &mut self.current {
            current.given = Some(token);
        }
        let position = self.tokens.len() as u32;
        let (logprob, prob) = (f32::NAN, f32::NAN);
        self.row.result = SampleResult { token, logprob, prob, kept: 0, position, reported: 0, problem: None };
        Ok(&self.row)
    }

    fn score(&mut self, trie: &Trie, descriptor: &Descriptor, _: &AtomicBool) -> Result<Vec<LeafScore>> {
        if self.as_text {
            return self.needs_vocab("a score of names");
        }
        let deepest = descriptor.depth() as usize;
        if deepest > self.room() {
            let problem = format!("A leaf of {deepest} tokens in a context with room for {}", self.room());
            return Err(Error::OutOfMemory(problem));
        }
        let nodes = descriptor.nodes();
        let edges = logprobs(&self.server, &self.tokens, trie, nodes.clone())?;
        let edge = |node: Node| edges.get((node - nodes.start) as usize).copied().unwrap_or(f64::NEG_INFINITY);
        let score = |node: Node| {
            let (mut logprob, mut at, mut tokens) = (0.0, node, 0);
            while at != trie.parent(at) {
                (logprob, at, tokens) = (logprob + edge(at), trie.parent(at), tokens + 1);
            }
            let on: f64 = trie.child_nodes(node).iter().map(|&child| edge(child).exp()).sum();
            LeafScore { node, tokens, logprob: logprob + (-on.min(1.0)).ln_1p() }
        };
        Ok(nodes.clone().filter(|&node| trie.is_leaf(node)).map(score).collect())
    }

    fn last_logits(&mut self, _: usize, _: &AtomicBool, _: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        self.unsupported("a row of logits")
    }

    fn embed(&mut self, texts: &[Vec<Token>], options: &EmbedOptions, _: &AtomicBool) -> Result<Embeddings> {
        if options.pooling.is_some() {
            return self.unsupported("a choice of pooling");
        }
        let spelled: Vec<Option<String>> = texts.iter().map(|text| self.spelled(text)).collect::<Result<_>>()?;
        let prompts: Vec<Prompt<'_>> = spelled.iter().zip(texts).map(|(text, tokens)| prompt(text, tokens)).collect();
        let mut rows = self.server.embed(&prompts, options.dimensions)?;
        let width = rows.first().map_or(0, Vec::len);
        let keep = if options.dimensions == 0 { width } else { options.dimensions };
        if keep > width {
            let problem = format!("dimensions is {keep}, and a row has {width} numbers");
            return Err(Error::InvalidArgument(problem));
        }
        for row in &mut rows {
            row.truncate(keep);
            if options.normalize {
                let length = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
                row.iter_mut().filter(|_| length > 0.0).for_each(|x| *x = (f64::from(*x) / length) as f32);
            }
        }
        Ok(Embeddings { width: keep, texts: rows })
    }

    fn is_current(&self, _: i32) -> Result<bool> {
        self.unsupported("a saved slot")
    }

    fn saved_bytes(&mut self, _: i32, _: usize) -> Result<u64> {
        self.unsupported("a saved slot")
    }

    fn save(&mut self, _: i32, _: &Path, _: &[u8], _: &AtomicBool) -> Result<()> {
        self.unsupported("a saved slot")
    }

    fn open_saved(&self, _: &Path, _: &AtomicBool) -> Result<SavedSlot> {
        self.unsupported("a saved slot")
    }

    fn rollback(&mut self) -> Result<()> {
        let ending = self.current.take().filter(Current::is_nearly_over).map(|current| current.answer);
        self.ending = ending.or(self.ending.take());
        Ok(())
    }

    fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    fn room(&self) -> usize {
        self.context.saturating_sub(self.tokens.len())
    }

    fn stats(&self) -> EngineStats {
        EngineStats { requests: self.server.requests(), cached: self.cached, ..EngineStats::default() }
    }
}
