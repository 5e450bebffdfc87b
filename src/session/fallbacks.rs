//! Several models in the place of one: where one cannot be used, the next answers.
//!
//! Every prompt is given to the first model that can be opened, has room for it and does not fail. A generation whose
//! model fails before it chose a token goes on with the next model, from the same prompt; after a token it fails, since
//! the rest of another model's answer would be no answer. A model that failed is not asked again for a while. Models
//! after the first are opened when they are needed. All have one vocabulary, so that tokens mean the same everywhere.

use super::decoder::{Decoder, EngineSlot, PassTime};
use super::draft::same_vocabulary;
#[cfg(feature = "remote")]
use super::on_server::Connected;
use super::shared::{Job, Prewarm};
use super::{ModelInfo, OpenOptions, RemoteOptions, Session, Settings, about};
use crate::backend::{Legal, SampleSpec, SampledRow};
use crate::engine::{
    self, EmbedOptions, Embeddings, Engine, EngineOptions, EngineStats, LeafScore, Prefill, SavedSlot, Speculation,
};
use crate::gguf::File;
use crate::remote::is_address;
use crate::trie::{Descriptor, Trie};
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a model that failed is not asked.
const PAUSE: Duration = Duration::from_secs(30);

/// A model that was opened.
struct Opened {
    decoder: Box<dyn Decoder>,
    vocab: Arc<Vocab>,
    file: File,
    info: ModelInfo,
    settings: Settings,
}

impl Opened {
    fn open(path: &Path, wanted: &Wanted, hear: &mut (dyn FnMut(f32) -> bool + Send)) -> Result<Opened> {
        if is_address(path) {
            return Opened::connect(path, wanted);
        }
        let model = engine::open_model(path, &wanted.engine, Some(&mut *hear))?;
        let engine = Engine::open(model.clone(), &wanted.engine, Some(&mut *hear))?;
        let (mut info, settings) = about(&engine, &wanted.engine);
        info.path = path.into();
        let decoder = Box::new(EngineSlot::new(engine, None)?);
        Ok(Opened { decoder, vocab: model.vocab().clone(), file: model.file().clone(), info, settings })
    }

    #[cfg(feature = "remote")]
    fn connect(path: &Path, wanted: &Wanted) -> Result<Opened> {
        let Connected { slot, vocab, file, info, settings } =
            Connected::open(path, &wanted.engine, wanted.remote.clone())?;
        Ok(Opened { decoder: Box::new(slot), vocab, file, info, settings })
    }

    #[cfg(not(feature = "remote"))]
    fn connect(path: &Path, _: &Wanted) -> Result<Opened> {
        Err(super::no_servers(path))
    }
}

/// How models are opened.
struct Wanted {
    engine: EngineOptions,
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "read where there are servers"))]
    remote: RemoteOptions,
}

/// One of the models.
struct Member {
    path: PathBuf,
    decoder: Option<Box<dyn Decoder>>,
    failed: Option<Instant>,
}

/// The models, and which of them has the prompt.
struct Fallbacks {
    wanted: Wanted,
    members: Vec<Member>,
    at: usize,
    vocab: Arc<Vocab>,
    /// The prompt and its slot, until it is known that no other model takes it.
    prompt: Option<(i32, Vec<Token>)>,
    cancel: Option<Arc<AtomicBool>>,
}

impl Session {
    /// Opens the first model that can be, with those after it in its place where it fails.
    pub(super) fn open_fallbacks(options: OpenOptions) -> Result<Session> {
        let OpenOptions { path, fallback, engine, draft, vocab_only, store, mut remote, mut progress } = options;
        let refused = match () {
            () if draft.is_some() => Some("a draft model"),
            () if store.is_some() => Some("a store of conversations"),
            () if engine.shares()? => Some("an engine that others share"),
            () => None,
        };
        if let Some(what) = refused {
            return Err(Error::Unsupported(format!("fallback: models in each other's place cannot have {what}")));
        }
        let paths: Vec<PathBuf> = std::iter::once(path).chain(fallback).collect();
        if remote.vocab.is_none() {
            remote.vocab = paths.iter().find(|path| !is_address(path)).cloned();
        }
        if vocab_only {
            let path = paths.into_iter().next().unwrap_or_default();
            return Session::open(OpenOptions { path, vocab_only, remote, ..OpenOptions::default() });
        }
        let wanted = Wanted { engine, remote };
        let mut hear = |done: f32| progress.as_mut().is_none_or(|heard| heard(done));
        let mut first = None;
        for (at, path) in paths.iter().enumerate() {
            match Opened::open(path, &wanted, &mut hear) {
                Ok(opened) => {
                    let member = |path: PathBuf| Member { path, decoder: None, failed: None };
                    let mut members: Vec<Member> = paths.into_iter().map(member).collect();
                    members[..at].iter_mut().for_each(|member| member.failed = Some(Instant::now()));
                    members[at].decoder = Some(opened.decoder);
                    let vocab = opened.vocab.clone();
                    let models = Fallbacks { wanted, members, at, vocab, prompt: None, cancel: None };
                    return Session::start(models, opened.vocab, opened.file, opened.info, opened.settings);
                }
                Err(error) if !is_passed_on(&error) => return Err(error),
                Err(error) => {
                    log::warn!("{} cannot be used: {error}", path.display());
                    first.get_or_insert(error);
                }
            }
        }
        Err(first.unwrap_or_else(|| Error::InvalidArgument("there is no model to open".into())))
    }
}

/// Whether another model may do what this error ended.
fn is_passed_on(error: &Error) -> bool {
    !matches!(error, Error::Cancelled | Error::InvalidArgument(_))
}

impl Fallbacks {
    fn now(&self) -> Option<&dyn Decoder> {
        self.members.get(self.at)?.decoder.as_deref()
    }

    fn now_mut(&mut self) -> Result<&mut (dyn Decoder + 'static)> {
        let decoder = self.members.get_mut(self.at).and_then(|member| member.decoder.as_deref_mut());
        decoder.ok_or_else(|| Error::Internal("none of the models has the prompt".into()))
    }

    /// The model with this number, opened where it was not.
    fn open(&mut self, at: usize) -> Result<&mut (dyn Decoder + 'static)> {
        let Fallbacks { wanted, members, vocab, cancel, .. } = self;
        let member = &mut members[at];
        if member.decoder.is_none() {
            let is_cancelled = || cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Acquire));
            let mut opened = Opened::open(&member.path, wanted, &mut |_| !is_cancelled())?;
            same_vocabulary(vocab, &opened.vocab, &member.path)?;
            if let Some(cancel) = cancel {
                opened.decoder.watch(cancel);
            }
            member.decoder = Some(opened.decoder);
        }
        self.at = at;
        self.now_mut()
    }

    /// What the first of the models from `from` on makes of it that does not fail; those that failed a short while ago
    /// come last.
    fn first<T>(&mut self, from: usize, mut ask: impl FnMut(&mut dyn Decoder) -> Result<T>) -> Result<T> {
        let pauses = |member: &Member| member.failed.is_some_and(|failed| failed.elapsed() < PAUSE);
        let (ready, later): (Vec<usize>, Vec<usize>) =
            (from..self.members.len()).partition(|&at| !pauses(&self.members[at]));
        let mut first = None;
        for at in ready.into_iter().chain(later) {
            let asked = match self.open(at) {
                Ok(decoder) => ask(decoder),
                Err(error) => Err(error),
            };
            match asked {
                Err(error) if is_passed_on(&error) => self.note(at, error, &mut first),
                done => {
                    if done.is_ok() {
                        self.members[at].failed = None;
                    }
                    return done;
                }
            }
        }
        Err(first.unwrap_or_else(|| Error::Internal("there is no model to ask".into())))
    }

    fn note(&mut self, at: usize, error: Error, first: &mut Option<Error>) {
        let member = &mut self.members[at];
        log::warn!("{} cannot be used: {error}", member.path.display());
        // Another prompt may have room, and another request may be one that this model answers.
        if !matches!(error, Error::OutOfMemory(_) | Error::Unsupported(_)) {
            member.failed = Some(Instant::now());
        }
        first.get_or_insert(error);
    }
}

impl Decoder for Fallbacks {
    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.cancel = Some(cancel.clone());
        self.members.iter_mut().filter_map(|member| member.decoder.as_mut()).for_each(|one| one.watch(cancel));
    }

    fn model(&self) -> Option<&Path> {
        self.members.get(self.at).map(|member| &*member.path)
    }

    fn prefill(&mut self, slot_id: i32, tokens: &[Token], cancel: &AtomicBool) -> Result<Prefill> {
        self.prompt = Some((slot_id, tokens.to_vec()));
        self.first(0, |decoder| decoder.prefill(slot_id, tokens, cancel))
    }

    fn fall_back(&mut self, error: &Error, cancel: &AtomicBool) -> Result<bool> {
        let Some((slot_id, tokens)) = self.prompt.clone().filter(|_| is_passed_on(error)) else { return Ok(false) };
        let next = self.at + 1;
        if next >= self.members.len() {
            return Ok(false);
        }
        self.note(self.at, error.clone(), &mut None);
        self.first(next, |decoder| decoder.prefill(slot_id, &tokens, cancel)).map(|_| true)
    }

    fn embed(&mut self, texts: &[Vec<Token>], options: &EmbedOptions, cancel: &AtomicBool) -> Result<Embeddings> {
        self.first(0, |decoder| decoder.embed(texts, options, cancel))
    }

    fn restore(&mut self, slot_id: i32, saved: SavedSlot, ready: bool, cancel: &AtomicBool) -> Result<()> {
        self.prompt = None;
        self.now_mut()?.restore(slot_id, saved, ready, cancel)
    }

    fn prewarm(&mut self, warm: &Prewarm, cancel: &Arc<AtomicBool>, replaces: &mut dyn FnMut()) -> Result<()> {
        self.now_mut()?.prewarm(warm, cancel, replaces)
    }

    fn pin(&mut self, slots: u32) {
        self.members.iter_mut().filter_map(|member| member.decoder.as_mut()).for_each(|one| one.pin(slots));
    }

    fn samples_itself(&self) -> bool {
        self.now().is_some_and(Decoder::samples_itself)
    }

    fn limits_itself(&self) -> bool {
        self.now().is_some_and(Decoder::limits_itself)
    }

    fn reached_limit(&self) -> bool {
        self.now().is_some_and(Decoder::reached_limit)
    }

    fn begin(&mut self, job: &Job, pending: usize) -> Result<()> {
        self.now_mut()?.begin(job, pending)
    }

    fn append(&mut self, tokens: &[Token], cancel: &AtomicBool) -> Result<()> {
        self.now_mut()?.append(tokens, cancel)
    }

    fn exclude(&mut self, tokens: &[Token]) {
        if let Ok(decoder) = self.now_mut() {
            decoder.exclude(tokens);
        }
    }

    fn logits(&mut self, tokens: &[Token], listed: &[Token], cancel: &AtomicBool) -> Result<&mut [f32]> {
        self.now_mut()?.logits(tokens, listed, cancel)
    }

    fn can_guess(&self) -> bool {
        self.now().is_some_and(Decoder::can_guess)
    }

    fn has_ahead(&self, tokens: &[Token]) -> bool {
        self.now().is_some_and(|decoder| decoder.has_ahead(tokens))
    }

    fn logits_ahead(&mut self, tokens: &[Token], guesses: &mut Vec<Token>, cancel: &AtomicBool) -> Result<&mut [f32]> {
        self.now_mut()?.logits_ahead(tokens, guesses, cancel)
    }

    fn pass_time(&self) -> Option<PassTime> {
        self.now()?.pass_time()
    }

    fn shift(&mut self, keep: usize, pending: &mut Vec<Token>, cancel: &AtomicBool) -> Result<usize> {
        self.now_mut()?.shift(keep, pending, cancel)
    }

    fn start_sampling(&mut self, spec: &SampleSpec) -> Result<usize> {
        self.now_mut()?.start_sampling(spec)
    }

    fn has_sampler(&self) -> bool {
        self.now().is_some_and(Decoder::has_sampler)
    }

    fn sample(
        &mut self,
        tokens: &[Token],
        legal: Option<Legal<'_>>,
        speculation: Speculation<'_>,
        cancel: &AtomicBool,
    ) -> Result<&SampledRow> {
        self.now_mut()?.sample(tokens, legal, speculation, cancel)
    }

    fn hold_trie(&mut self, trie: &Arc<Trie>) -> Result<()> {
        self.now_mut()?.hold_trie(trie)
    }

    fn score(&mut self, trie: &Trie, descriptor: &Descriptor, cancel: &AtomicBool) -> Result<Vec<LeafScore>> {
        self.now_mut()?.score(trie, descriptor, cancel)
    }

    fn last_logits(&mut self, n: usize, cancel: &AtomicBool, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        self.now_mut()?.last_logits(n, cancel, each)
    }

    fn is_current(&self, slot_id: i32) -> Result<bool> {
        self.now().map_or(Ok(false), |decoder| decoder.is_current(slot_id))
    }

    fn save(&mut self, slot_id: i32, path: &Path, note: &[u8], cancel: &AtomicBool) -> Result<()> {
        self.now_mut()?.save(slot_id, path, note, cancel)
    }

    fn saved_bytes(&mut self, slot_id: i32, note: usize) -> Result<u64> {
        self.now_mut()?.saved_bytes(slot_id, note)
    }

    fn open_saved(&self, path: &Path, cancel: &AtomicBool) -> Result<SavedSlot> {
        let none = || Error::Internal("none of the models has the prompt".into());
        self.now().ok_or_else(none)?.open_saved(path, cancel)
    }

    fn rollback(&mut self) -> Result<()> {
        self.now_mut()?.rollback()
    }

    fn tokens(&self) -> &[Token] {
        self.now().map_or(&[], Decoder::tokens)
    }

    fn room(&self) -> usize {
        self.now().map_or(0, Decoder::room)
    }

    fn stats(&self) -> EngineStats {
        // Counters of all, so that differences of two readings hold when the model changes between them.
        let mut all = EngineStats::default();
        self.members.iter().filter_map(|member| member.decoder.as_ref()).for_each(|one| all.add(&one.stats()));
        all
    }
}
