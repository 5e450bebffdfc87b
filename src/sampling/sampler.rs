//! One stream's sampler: a checked chain, its history and all the memory it will need.

use super::chain::Chain;
use super::passes::Passes;
use super::pool::{Buffers, LIST, Pool};
use super::steps::{Stage, greedy, skip_before_argmax, top_k};
use super::{draw, random};
use crate::backend::{ChainStep, Legal, SampleResult, SampleSpec, mask_place};
use crate::gguf::shown;
use crate::simd::Isa;
use crate::trie::{Mode, TrieState};
use crate::{Error, Result, Token};

/// The most candidates [`Sampler::keep_candidates`] keeps.
pub const MAX_KEPT_CANDIDATES: usize = LIST / 2;

/// Odd, and far from what people take for seeds and differences of seeds.
const NEXT_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a trie's state allows next; `None` when anything is.
pub fn legal_of(state: &TrieState) -> Option<Legal<'_>> {
    state.mask().map(|tokens| Legal { tokens, greedy: state.mode() != Mode::Sampled })
}

/// What [`Sampler::sample`] found.
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
    buffers: Buffers,
    keep: usize,
    last: Sampled,
}

impl Sampler {
    /// A sampler for rows of `n_vocab` logits.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the step of the chain that cannot be used: a token outside the vocabulary, a
    /// number that is NaN or out of range, a step behind one that takes the token.
    pub fn new(chain: &Chain, n_vocab: usize, seed: u64) -> Result<Sampler> {
        if n_vocab == 0 || n_vocab > Token::MAX as usize {
            return Err(Error::InvalidArgument(format!("A vocabulary of {n_vocab} tokens cannot be sampled")));
        }
        chain.check_order()?;
        let mut stages = Vec::with_capacity(chain.steps.len() + 1);
        let place = mask_place(&chain.steps);
        for (index, step) in chain.steps.iter().enumerate() {
            stages.extend((place == Some(index)).then(Stage::mask));
            let stage = Stage::new(step, n_vocab).map_err(|error| match error {
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
        Ok(Sampler {
            stages,
            n_vocab,
            first_seed: seed,
            seed,
            buffers: Buffers::new(n_vocab, Passes(Isa::detect())),
            keep: 0,
            last: Sampled::default(),
        })
    }

    /// Asks for the best `count` candidates with every token, up to [`MAX_KEPT_CANDIDATES`]. Costs a further pass where
    /// the chain left more than a few thousand.
    pub fn keep_candidates(&mut self, count: usize) {
        self.keep = count.min(MAX_KEPT_CANDIDATES);
        self.last.candidates.clear();
        self.last.candidates.reserve_exact(self.keep);
    }

    /// Samples one token.
    ///
    /// `logits` is the full row and is used as scratch; -inf marks what is no candidate, several +inf share the
    /// probability. `banned` tokens are taken out first, unless they are legal. With `legal` only those tokens win;
    /// with it, and the mask's place before all truncations, only their entries of the row are read. If no legal token
    /// is a candidate, the one with the smallest id is taken. `position` is the number of tokens in front of the one
    /// sampled; with the seed it decides the draw.
    ///
    /// # Errors
    /// [`Error::NanLogits`] naming the first token of those read whose logit is NaN; [`Error::InvalidArgument`] when
    /// every logit is -inf, or for a row or legal tokens that do not fit the vocabulary. Nothing is taken note of then.
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
            if legal.is_none_or(|legal| legal.tokens.binary_search(&token).is_err()) {
                pool.adjust(token, |_| f32::NEG_INFINITY);
            }
        }
        let random = random::bits(self.seed, position, random::DRAW);
        take(&self.stages, pool, legal, random, self.keep, &mut self.last)
    }

    /// Samples one token from what a device has left of a row: follows the last `rest` steps of [`Self::spec`], those
    /// that the device does not ([`SampleSpec::split`]). The token is the one that [`Self::sample`] comes to with the
    /// whole row.
    ///
    /// `candidates` are tokens with their logits after the device's biases and penalties, before temperature, in any
    /// order. `legal` is what the device was given; where it is followed greedily, [`SampleSpec::greedy_from`] must
    /// allow it.
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
        let Some((done, rest)) = self.stages.len().checked_sub(rest).and_then(|at| self.stages.split_at_checked(at))
        else {
            let problem = format!("{rest} steps to go of a sampler chain of {}", self.stages.len());
            return Err(Error::InvalidArgument(problem));
        };
        let mut pool = Pool::of(candidates, self.n_vocab, &mut self.buffers)?;
        // The logits are those before temperature, so its factor is still to be found.
        for stage in done.iter().filter(|stage| matches!(stage.step, ChainStep::Temperature(_))) {
            stage.apply(&mut pool, legal)?;
        }
        let random = random::bits(self.seed, position, random::DRAW);
        take(rest, pool, legal, random, self.keep, &mut self.last)
    }

    /// The chain as a device follows it, with `banned` taken out first.
    pub fn spec(&self, banned: &[Token]) -> SampleSpec {
        let ban = (!banned.is_empty()).then(|| ChainStep::Ban(banned.to_vec()));
        let steps = ban.into_iter().chain(self.stages.iter().map(|stage| stage.step.clone())).collect();
        SampleSpec { steps, seed: self.seed, candidates: self.keep as u32 }
    }

    /// Takes over what a device sampled, for [`Sampler::last`].
    pub fn note(&mut self, result: &SampleResult, candidates: &[(Token, f32, f32)]) {
        (self.last.token, self.last.logprob, self.last.prob) = (result.token, result.logprob, result.prob);
        self.last.candidates.clear();
        self.last.candidates.extend(candidates.iter().take(self.keep));
    }

    /// Hands out [`Sampler::last`] in place of `other`, whose memory the next one goes into.
    pub fn swap_last(&mut self, other: &mut Sampled) {
        std::mem::swap(&mut self.last, other);
        self.last.candidates.clear();
        self.last.candidates.reserve_exact(self.keep);
    }

    /// Takes note of a token of the stream, sampled or not: the penalties look back on it.
    pub fn accept(&mut self, token: Token) {
        for stage in &mut self.stages {
            stage.accept(token);
        }
    }

    /// Forgets the accepted tokens, and draws for the `nth` time over the same positions: 0 is what a new sampler does.
    pub fn restart(&mut self, nth: u64) {
        self.seed = self.first_seed.wrapping_add(nth.wrapping_mul(NEXT_SEED));
        for stage in &mut self.stages {
            stage.reset();
        }
    }

    /// What the last successful [`Self::sample`] found.
    pub fn last(&self) -> &Sampled {
        &self.last
    }

    /// The seed in use.
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

/// Follows the steps and draws with these random bits; `last` takes what was found and the best `keep` candidates.
fn take(
    stages: &[Stage],
    mut pool: Pool<'_>,
    legal: Option<Legal<'_>>,
    random: u32,
    keep: usize,
    last: &mut Sampled,
) -> Result<Token> {
    for stage in stages {
        stage.apply(&mut pool, legal)?;
    }
    if legal.is_some_and(|legal| legal.greedy) {
        greedy::apply(&mut pool)?;
    }
    let drawn = draw::apply(&mut pool, random)?;
    (last.prob, last.logprob) = draw::probability(&pool, drawn.one.logit, drawn.total);
    last.token = drawn.one.token;
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
