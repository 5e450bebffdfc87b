//! One stream's sampler: a checked chain, its history and all the memory that it needs.

use super::chain::Chain;
use super::mt19937::Mt19937;
use super::order::Order;
use super::passes::Passes;
use super::pool::{Buffers, LIST, Pool};
use super::steps::{Setup, Stage, greedy, skip_before_argmax, top_k};
use super::{draw, random};
use crate::backend::{ChainStep, Generator, Legal, SampleResult, SampleSpec, mask_place};
use crate::gguf::shown;
use crate::simd::Isa;
use crate::trie::{Mode, TrieState};
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use std::sync::Arc;

/// The most candidates that [`Sampler::keep_candidates`] keeps.
pub const MAX_KEPT_CANDIDATES: usize = LIST / 2;

/// Added to the seed for each restart: odd, and far from usual seeds and differences of seeds.
const NEXT_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The token mask of a trie's state; `None` where any token is legal.
pub fn legal_of(state: &TrieState) -> Option<Legal<'_>> {
    state.mask().map(|tokens| Legal::list(tokens, state.mode() != Mode::Sampled))
}

/// The result of [`Sampler::sample`].
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token; -1 before the first.
    pub token: Token,
    /// The natural logarithm of `prob`.
    pub logprob: f32,
    /// The token's probability among the candidates that the chain left.
    pub prob: f32,
    /// The best candidates that the chain left, best first, each as (token, logit, probability); the logit is that
    /// after biases, penalties and temperature. Only when asked for ([`Sampler::keep_candidates`]).
    pub candidates: Vec<(Token, f32, f32)>,
}

impl Default for Sampled {
    /// Before the first token.
    fn default() -> Self {
        Sampled { token: -1, logprob: 0.0, prob: 0.0, candidates: Vec::new() }
    }
}

/// Samples the tokens of one stream. Everything is reserved by [`Sampler::new`]; sampling allocates nothing.
pub struct Sampler {
    stages: Vec<Stage>,
    n_vocab: usize,
    first_seed: u64,
    seed: u64,
    /// llama.cpp's, where the chain asks for it.
    generator: Option<Box<Mt19937>>,
    buffers: Buffers,
    keep: usize,
    last: Sampled,
}

impl Sampler {
    /// A sampler for rows of `n_vocab` logits, of a chain that needs no texts of tokens.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the step of the chain that cannot be used: a token outside the vocabulary, a
    /// number that is NaN or out of range, a step after one that chooses the token, one that needs the vocabulary (a
    /// breaker of DRY, infill). [`Error::OutOfMemory`].
    pub fn new(chain: &Chain, n_vocab: usize, seed: u64) -> Result<Sampler> {
        Sampler::of(chain, n_vocab, seed, None)
    }

    /// A sampler of any chain, for rows of `n_vocab` logits of a model with this vocabulary. The first with a list of
    /// breakers for DRY looks at every token's text, some 100 ms for 150,000 tokens; later ones share the result.
    ///
    /// # Errors
    /// As [`Sampler::new`].
    pub fn with_vocab(chain: &Chain, n_vocab: usize, seed: u64, vocab: &Arc<Vocab>) -> Result<Sampler> {
        Sampler::of(chain, n_vocab, seed, Some(vocab))
    }

    fn of(chain: &Chain, n_vocab: usize, seed: u64, vocab: Option<&Arc<Vocab>>) -> Result<Sampler> {
        if n_vocab == 0 || n_vocab > Token::MAX as usize {
            return Err(Error::InvalidArgument(format!("A vocabulary of {n_vocab} tokens cannot be sampled")));
        }
        chain.check_order()?;
        let mut stages = Vec::with_capacity(chain.steps.len() + 1);
        let place = mask_place(&chain.steps);
        let setup = Setup { n_vocab, vocab, seed, generator: chain.generator() };
        let llama = setup.generator == Generator::Mt19937;
        for (index, step) in chain.steps.iter().enumerate() {
            stages.extend((place == Some(index)).then(Stage::mask));
            let stage = Stage::new(step, &setup).map_err(|error| match error {
                Error::InvalidArgument(problem) => {
                    let step = shown(&step.to_string());
                    Error::InvalidArgument(format!("Sampler chain, step {} (`{step}`): {problem}", index + 1))
                }
                other => other,
            })?;
            stages.extend(stage);
        }
        stages.extend((place == Some(chain.steps.len())).then(Stage::mask));
        skip_before_argmax(&mut stages);
        let at = stages.iter().position(|stage| stage.draws() || stage.step.ends()).unwrap_or(stages.len());
        if llama {
            stages.insert(at, Stage::rng());
        }
        Ok(Sampler {
            stages,
            n_vocab,
            first_seed: seed,
            seed,
            generator: llama.then(|| Box::new(Mt19937::new(seed as u32))),
            buffers: Buffers::new(n_vocab, Passes(Isa::detect()), llama),
            keep: 0,
            last: Sampled::default(),
        })
    }

    /// Keeps the most probable `count` candidates with every token, up to [`MAX_KEPT_CANDIDATES`]. Costs a further pass
    /// over the row where the chain left more than a few thousand.
    pub fn keep_candidates(&mut self, count: usize) {
        self.keep = count.min(MAX_KEPT_CANDIDATES);
        self.last.candidates.clear();
        self.last.candidates.reserve_exact(self.keep);
    }

    /// Samples one token.
    ///
    /// `logits` is the whole row, one per token of the vocabulary, and is changed; -inf marks a token that is no
    /// candidate, several +inf share the probability. `banned` tokens are removed first, unless they are legal. With a
    /// mask (`legal`) only its tokens may be drawn; where the mask applies before all truncations, only their entries
    /// of the row are read. If no legal token is a candidate, the one with the smallest id is chosen. `position` is the
    /// number of tokens before the sampled one; with the seed it determines the draw. A step with a memory of what was
    /// drawn (mirostat, adaptive-p) and llama.cpp's generator go on with every call; the token is meant to be accepted.
    ///
    /// # Errors
    /// [`Error::NanLogits`] naming the first token of those read whose logit is NaN; [`Error::InvalidArgument`] when
    /// every logit is -inf, or for a row or legal tokens that do not fit the vocabulary. The sampler is unchanged then.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        legal: Option<Legal<'_>>,
        banned: &[Token],
        position: u32,
    ) -> Result<Token> {
        if logits.len() != self.n_vocab {
            return Err(Error::InvalidArgument(format!(
                "A row of {} logits for a vocabulary of {} tokens",
                logits.len(),
                self.n_vocab
            )));
        }
        let mut pool = Pool::new(logits, &mut self.buffers);
        for &token in banned {
            if legal.is_none_or(|legal| !legal.tokens.allows(token)) {
                pool.adjust(token, |_| f32::NEG_INFINITY);
            }
        }
        let (draw, generator) = ((self.seed, position), self.generator.as_deref_mut());
        take(&mut self.stages, pool, legal, draw, generator, self.keep, &mut self.last)
    }

    /// The token that [`Self::sample`] would likely choose from such a row of another model: the same draw. Nothing is
    /// noted of it; where a call of `sample` would be remembered, it is the token with the greatest logit. `None` where
    /// the row has no candidate.
    pub fn propose(&mut self, logits: &mut [f32], banned: &[Token], position: u32) -> Option<Token> {
        if self.generator.is_none() && !self.stages.iter().any(Stage::learns) {
            return self.sample(logits, None, banned, position).ok();
        }
        likeliest(logits)
    }

    /// Samples one token from the candidates that a device has left of a row: runs the last `rest` steps of
    /// [`Self::spec`], those that the device does not run ([`SampleSpec::split`]). The token is that of
    /// [`Self::sample`] with the whole row.
    ///
    /// `candidates` are tokens with their logits after the device's biases and penalties, before temperature, in any
    /// order. `legal` is the device's mask; where it is greedy, [`SampleSpec::greedy_from`] must allow it.
    ///
    /// # Errors
    /// As [`Self::sample`]; [`Error::InvalidArgument`] for more than 4096 candidates or more steps than there are.
    pub fn resume(
        &mut self,
        rest: usize,
        candidates: impl IntoIterator<Item = (Token, f32)>,
        legal: Option<Legal<'_>>,
        position: u32,
    ) -> Result<Token> {
        let steps = self.stages.len();
        let Some((done, rest)) = steps.checked_sub(rest).and_then(|at| self.stages.split_at_mut_checked(at)) else {
            let problem = format!("{rest} steps to go of a sampler chain of {steps}");
            return Err(Error::InvalidArgument(problem));
        };
        let mut pool = Pool::of(candidates, self.n_vocab, &mut self.buffers)?;
        for stage in done {
            match stage.step {
                // The logits are those before temperature, so the factor of the device's temperatures is applied here.
                ChainStep::Temperature(_) => stage.apply(&mut pool, legal, (self.seed, position))?,
                ChainStep::TopK(_) | ChainStep::TopP { .. } => pool.order = Order::Logit,
                _ => {}
            }
        }
        let (draw, generator) = ((self.seed, position), self.generator.as_deref_mut());
        take(rest, pool, legal, draw, generator, self.keep, &mut self.last)
    }

    /// The chain for a device, with `banned` removed first.
    pub fn spec(&self, banned: &[Token]) -> SampleSpec {
        let ban = (!banned.is_empty()).then(|| ChainStep::Ban(banned.to_vec()));
        let steps = ban.into_iter().chain(self.stages.iter().map(|stage| stage.step.clone())).collect();
        SampleSpec { steps, seed: self.seed, candidates: self.keep as u32 }
    }

    /// Records a device's result for [`Sampler::last`].
    pub fn note(&mut self, result: &SampleResult, candidates: &[(Token, f32, f32)]) {
        (self.last.token, self.last.logprob, self.last.prob) = (result.token, result.logprob, result.prob);
        self.last.candidates.clear();
        self.last.candidates.extend(candidates.iter().take(self.keep));
    }

    /// Swaps [`Sampler::last`] with `other`, whose memory the next result uses.
    pub fn swap_last(&mut self, other: &mut Sampled) {
        std::mem::swap(&mut self.last, other);
        self.last.candidates.clear();
        self.last.candidates.reserve_exact(self.keep);
    }

    /// Appends a token of the stream, sampled or not, to the history of the penalties and of DRY.
    pub fn accept(&mut self, token: Token) {
        for stage in &mut self.stages {
            stage.accept(token);
        }
    }

    /// Clears the history, and uses other draws for the same positions: those of the `nth` restart. 0 is a new sampler;
    /// with another number what mirostat and adaptive-p know of drawn tokens stays, and llama.cpp's generator goes on.
    pub fn restart(&mut self, nth: u64) {
        self.seed = self.first_seed.wrapping_add(nth.wrapping_mul(NEXT_SEED));
        if nth > 0 {
            return self.stages.iter_mut().for_each(Stage::clear);
        }
        self.stages.iter_mut().for_each(|stage| stage.reset(self.seed));
        if let Some(generator) = &mut self.generator {
            **generator = Mt19937::new(self.seed as u32);
        }
    }

    /// The result of the last successful [`Self::sample`].
    pub fn last(&self) -> &Sampled {
        &self.last
    }

    /// The seed in use.
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

/// The token with the greatest logit, of several the first; none where there is no number.
pub fn likeliest(logits: &[f32]) -> Option<Token> {
    let numbers = logits.iter().enumerate().filter(|(_, logit)| !logit.is_nan());
    numbers.reduce(|best, one| if one.1 > best.1 { one } else { best }).map(|(token, _)| token as Token)
}

/// Runs the steps and draws with the random bits of this seed and position, or with the generator where there is one;
/// the result and the best `keep` candidates are written to `last`.
fn take(
    stages: &mut [Stage],
    mut pool: Pool<'_>,
    legal: Option<Legal<'_>>,
    (seed, position): (u64, u32),
    generator: Option<&mut Mt19937>,
    keep: usize,
    last: &mut Sampled,
) -> Result<Token> {
    for stage in stages.iter_mut() {
        stage.apply(&mut pool, legal, (seed, position))?;
    }
    let forced = legal.is_some_and(|legal| legal.greedy);
    if forced {
        greedy::apply(&mut pool)?;
    }
    let selects = stages.last().is_some_and(|stage| stage.step.selects());
    let drawn = match generator.filter(|_| !forced) {
        Some(generator) => draw::along_the_list(&mut pool, generator, selects)?,
        None => draw::apply(&mut pool, random::bits(seed, position, random::DRAW))?,
    };
    (last.prob, last.logprob) = draw::probability(&pool, drawn.one.logit, drawn.total);
    last.token = drawn.one.token;
    if !forced {
        stages.iter_mut().for_each(|stage| stage.drawn(&pool, last.token, drawn.probability));
    }
    last.candidates.clear();
    if keep > 0 {
        report(&mut pool, drawn.total, keep, &mut last.candidates)?;
    }
    Ok(last.token)
}

/// Writes the best `count` candidates, best first.
fn report(pool: &mut Pool<'_>, total: u64, count: usize, out: &mut Vec<(Token, f32, f32)>) -> Result<()> {
    top_k::apply(pool, count)?;
    pool.buffers.list.sort_unstable_by_key(|one| one.key());
    let entry = |logit: f32| (logit * pool.scale, draw::probability(pool, logit, total).0);
    out.extend(pool.buffers.list.iter().map(|one| {
        let (logit, probability) = entry(one.logit);
        (one.token, logit, probability)
    }));
    Ok(())
}
