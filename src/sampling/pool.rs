//! The candidates that are left while a chain runs.
//!
//! They are either in the row itself (other tokens have -inf) or, once a truncation left few, in a short list in
//! ascending id order. All buffers belong to the stream's sampler and are reserved once.

use super::candidate::Candidate;
use super::order::Order;
use super::passes::{self, BINS, BLOCK, Passes};
use super::select::{key_logit, key_token};
use super::weigh::weight;
use crate::backend::LegalTokens;
use crate::{Error, Result, Token};

/// The most candidates in the list; more stay in the row.
pub(super) const LIST: usize = 4096;

/// Everything a pool writes to.
pub(super) struct Buffers {
    pub(super) passes: Passes,
    pub(super) list: Vec<Candidate>,
    pub(super) keys: Vec<u64>,
    pub(super) bins: Box<[u64; BINS]>,
    /// Per block of the row, valid while the pool is scanned.
    pub(super) maxima: Vec<f32>,
    pub(super) masses: Vec<u64>,
    /// Whether llama.cpp's generator draws, so that the order of its list matters, and its length.
    pub(super) llama: bool,
    /// The candidates in the order of llama.cpp's list, only where it matters.
    pub(super) arranged: Vec<Candidate>,
}

impl Buffers {
    /// Buffers for rows of `n_vocab` logits, and for llama.cpp's generator where `llama` says so.
    pub(super) fn new(n_vocab: usize, passes: Passes, llama: bool) -> Buffers {
        let blocks = n_vocab.div_ceil(BLOCK);
        Buffers {
            passes,
            list: Vec::with_capacity(LIST),
            keys: Vec::with_capacity(LIST.max(blocks)),
            bins: Box::new([0; BINS]),
            maxima: vec![0.0; blocks],
            masses: vec![0; blocks],
            llama,
            arranged: Vec::with_capacity(if llama { n_vocab } else { 0 }),
        }
    }
}

/// The candidates of one token to be sampled.
pub(super) struct Pool<'a> {
    n_vocab: usize,
    /// Empty where the candidates were in the list from the start.
    pub(super) row: &'a mut [f32],
    pub(super) buffers: &'a mut Buffers,
    /// Whether the candidates are in the list.
    pub(super) in_list: bool,
    /// Whether `best` and the block maxima describe the row (or `best` the list).
    scanned: bool,
    best: f32,
    /// 1 / temperature; logits are kept as they were before it.
    pub(super) scale: f32,
    /// The temperature.
    pub(super) divisor: f32,
    pub(super) order: Order,
    /// How many candidates llama.cpp's list has, where tokens at -inf count; `None` where none of those are in it.
    listed: Option<usize>,
}

impl<'a> Pool<'a> {
    pub(super) fn new(row: &'a mut [f32], buffers: &'a mut Buffers) -> Pool<'a> {
        buffers.list.clear();
        let listed = Some(row.len());
        Pool {
            n_vocab: row.len(),
            row,
            buffers,
            in_list: false,
            scanned: false,
            best: 0.0,
            scale: 1.0,
            divisor: 1.0,
            order: Order::Id,
            listed,
        }
    }

    /// A pool of the candidates that a device has left of a row, in any order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more than [`LIST`].
    pub(super) fn of(
        candidates: impl IntoIterator<Item = (Token, f32)>,
        n_vocab: usize,
        buffers: &'a mut Buffers,
    ) -> Result<Pool<'a>> {
        let mut pool = Pool { n_vocab, in_list: true, ..Pool::new(&mut [], buffers) };
        let list = &mut pool.buffers.list;
        for (token, logit) in candidates {
            if list.len() == LIST {
                return Err(Error::InvalidArgument(format!("More than {LIST} candidates to go on with")));
            }
            list.push(Candidate { token, logit });
        }
        list.sort_unstable_by_key(|one| one.token);
        let listed = Some(list.len());
        pool.listed = listed;
        Ok(pool)
    }

    /// Makes sure that the candidates hold no NaN and at least one of them is left; from here on the logits are finite:
    /// +inf becomes the greatest finite number, so several of them share the probability.
    ///
    /// # Errors
    /// [`Error::NanLogits`] naming the first token whose logit is NaN, [`Error::InvalidArgument`] when none is left.
    pub(super) fn scan(&mut self) -> Result<()> {
        if self.survey()? {
            return Ok(());
        }
        Err(Error::InvalidArgument(
            "No token can be sampled: every candidate's logit is -inf (biases, bans and the model's own counted)"
                .into(),
        ))
    }

    /// Finds the best logit; returns whether there is any candidate.
    fn survey(&mut self) -> Result<bool> {
        if !self.scanned {
            if self.in_list {
                self.scan_list()?;
            } else {
                self.scan_row()?;
            }
            self.scanned = true;
        }
        Ok(self.best > f32::NEG_INFINITY)
    }

    fn scan_row(&mut self) -> Result<()> {
        let passes = self.buffers.passes;
        let maxima = &mut self.buffers.maxima;
        if passes.block_maxima(self.row, maxima) {
            let token = self.row.iter().position(|x| x.is_nan()).unwrap_or_default();
            return Err(Error::NanLogits { row: 0, token });
        }
        self.best = maxima.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        if self.best == f32::INFINITY {
            self.best = f32::MAX;
            for (block, max) in
                self.row.chunks_mut(BLOCK).zip(maxima.iter_mut()).filter(|(_, max)| **max == f32::INFINITY)
            {
                block.iter_mut().for_each(|x| *x = x.min(f32::MAX));
                *max = f32::MAX;
            }
        }
        Ok(())
    }

    fn scan_list(&mut self) -> Result<()> {
        self.best = f32::NEG_INFINITY;
        for one in &mut self.buffers.list {
            if one.logit.is_nan() {
                return Err(Error::NanLogits { row: 0, token: one.token as usize });
            }
            one.logit = one.logit.min(f32::MAX);
            self.best = self.best.max(one.logit);
        }
        self.buffers.list.retain(|one| one.logit > f32::NEG_INFINITY);
        Ok(())
    }

    /// The greatest logit, after [`Self::scan`].
    pub(super) fn best(&self) -> f32 {
        self.best
    }

    /// The weight of a candidate with this logit.
    pub(super) fn weight(&self, logit: f32) -> u64 {
        weight((logit - self.best) * self.scale)
    }

    /// Changes the logit of one token, if it is still there. `change` gets and returns the logit before temperature.
    pub(super) fn adjust(&mut self, token: Token, change: impl FnOnce(f32) -> f32) {
        let logit = if self.in_list {
            let list = &mut self.buffers.list;
            list.binary_search_by_key(&token, |one| one.token)
                .ok()
                .and_then(|at| list.get_mut(at))
                .map(|one| &mut one.logit)
        } else {
            usize::try_from(token).ok().and_then(|id| self.row.get_mut(id))
        };
        if let Some(logit) = logit {
            *logit = change(*logit);
            self.scanned = false;
        }
    }

    /// Replaces all logits and undoes the temperature. `change` gets a candidate's place, which is [`Self::place`] of
    /// its token, and its logit, and returns a finite one. The order of llama.cpp's list stays.
    pub(super) fn replace(&mut self, mut change: impl FnMut(usize, f32) -> f32) {
        if self.in_list {
            self.buffers.list.iter_mut().enumerate().for_each(|(at, one)| one.logit = change(at, one.logit));
        } else {
            let row = self.row.iter_mut().enumerate().filter(|(_, logit)| **logit > f32::NEG_INFINITY);
            row.for_each(|(at, logit)| *logit = change(at, *logit));
        }
        (self.scanned, self.scale, self.divisor) = (false, 1.0, 1.0);
    }

    /// The place of a candidate in the list or the row; `None` for a token that is none.
    pub(super) fn place(&self, token: Token) -> Option<usize> {
        match self.in_list {
            true => self.buffers.list.binary_search_by_key(&token, |one| one.token).ok(),
            false => usize::try_from(token).ok().filter(|&id| self.row.get(id).is_some_and(|x| *x > f32::NEG_INFINITY)),
        }
    }

    /// The logit of a candidate; `None` for a token that is none.
    pub(super) fn logit(&self, token: Token) -> Option<f32> {
        let at = self.place(token)?;
        if self.in_list { self.buffers.list.get(at).map(|one| one.logit) } else { self.row.get(at).copied() }
    }

    /// The number of candidates. Where llama.cpp's generator draws, its list counts, in which there are tokens at -inf.
    pub(super) fn size(&self) -> usize {
        if self.buffers.llama
            && let Some(listed) = self.listed
        {
            return listed;
        }
        let mut size = 0;
        self.each(|_, _| size += 1);
        size
    }

    /// Notes that llama.cpp's list has at most so many candidates from here on.
    pub(super) fn list_at_most(&mut self, most: usize) {
        self.listed = self.listed.map(|listed| listed.min(most));
    }

    /// Notes that llama.cpp's list loses so many candidates.
    pub(super) fn list_less(&mut self, fewer: usize) {
        self.listed = self.listed.map(|listed| listed.saturating_sub(fewer));
    }

    /// Notes that llama.cpp's list has none but the candidates from here on.
    pub(super) fn list_alive(&mut self) {
        self.listed = None;
    }

    /// Keeps one candidate only.
    pub(super) fn keep_one(&mut self, one: Candidate) {
        self.buffers.list.clear();
        self.buffers.list.push(one);
        self.in_list = true;
        self.scanned = true;
        self.best = one.logit;
    }

    /// The blocks of the row that may hold a candidate with at least this logit, each with its first token.
    pub(super) fn blocks(&self, at_least: f32) -> impl Iterator<Item = (usize, &[f32])> {
        self.row
            .chunks(BLOCK)
            .zip(&self.buffers.maxima)
            .enumerate()
            .filter(move |(_, (_, max))| **max >= at_least)
            .map(|(block, (logits, _))| (block * BLOCK, logits))
    }

    /// How many candidates [`Self::cut`] would keep.
    pub(super) fn count(&self, cut: u64) -> usize {
        let (logit, last) = (key_logit(cut), key_token(cut));
        if self.in_list {
            return self.buffers.list.iter().filter(|one| one.key() <= cut).count();
        }
        let kept = |(first, block): (usize, &[f32])| {
            block
                .iter()
                .enumerate()
                .filter(|(at, x)| **x > logit || (**x == logit && first + at <= last as usize))
                .count()
        };
        self.blocks(logit).map(kept).sum()
    }

    /// Keeps the candidates whose key is at most `cut`. Up to [`LIST`] of them are in the list afterwards.
    pub(super) fn cut(&mut self, cut: u64) {
        if self.in_list {
            self.buffers.list.retain(|one| one.key() <= cut);
            return;
        }
        let (logit, last) = (key_logit(cut), key_token(cut));
        self.in_list = self.collect(logit, f32::INFINITY, last);
        if self.in_list {
            return;
        }
        let passes = self.buffers.passes;
        let (ties_stay, ties_go) = self.row.split_at_mut((last as usize).saturating_add(1).min(self.row.len()));
        passes.raise(ties_stay, logit);
        passes.raise(ties_go, logit.next_up());
        for (max, block) in self.buffers.maxima.iter_mut().zip(self.row.chunks(BLOCK)) {
            if *max < logit {
                *max = f32::NEG_INFINITY;
            } else if *max == logit {
                *max = block.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
            }
        }
    }

    /// Calls `each` with every candidate, by id.
    pub(super) fn each(&self, mut each: impl FnMut(Token, f32)) {
        match self.in_list {
            true => self.buffers.list.iter().for_each(|one| each(one.token, one.logit)),
            false => {
                let row = (0..).zip(self.row.iter()).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
                row.for_each(|(token, &logit)| each(token, logit));
            }
        }
    }

    /// The sum of all candidates' weights, after [`Self::scan`].
    pub(super) fn mass(&mut self) -> u64 {
        if self.in_list {
            return self.buffers.list.iter().map(|one| self.weight(one.logit)).sum();
        }
        self.buffers.passes.block_masses(self.row, self.best, self.scale, &mut self.buffers.masses)
    }

    /// Keeps the candidates, of which there must be one, for which `keep` says so. Up to [`LIST`] of them are in the
    /// list afterwards.
    pub(super) fn retain(&mut self, keep: impl Fn(Token, f32) -> bool) {
        self.scanned = false;
        if self.in_list {
            self.buffers.list.retain(|one| keep(one.token, one.logit));
            return;
        }
        let (list, mut fits) = (&mut self.buffers.list, true);
        list.clear();
        for (token, logit) in (0..).zip(self.row.iter_mut()).filter(|(_, logit)| **logit > f32::NEG_INFINITY) {
            if !keep(token, *logit) {
                *logit = f32::NEG_INFINITY;
            } else if list.len() < LIST {
                list.push(Candidate { token, logit: *logit });
            } else {
                fits = false;
            }
        }
        self.in_list = fits;
    }

    /// Collects the row's candidates with logits in `low..=high`, of those equal to `low` only the ones up to token
    /// `last`, into the list, if they fit; returns whether they did. The candidates are still in the row.
    pub(super) fn collect(&mut self, low: f32, high: f32, last: Token) -> bool {
        let buffers = &mut *self.buffers;
        // A token at -inf is no candidate.
        buffers.passes.between(self.row, &buffers.maxima, low.max(f32::MIN), high, last, &mut buffers.list)
    }

    /// Keeps the candidates among `legal`. If there are none, the smallest of `legal` is kept, so that a constraint
    /// always leaves a candidate.
    ///
    /// # Errors
    /// [`Error::NanLogits`] for a legal token whose logit is NaN, [`Error::InvalidArgument`] when `legal` is empty or
    /// not within the vocabulary.
    pub(super) fn restrict(&mut self, legal: LegalTokens<'_>) -> Result<()> {
        let first = legal.first(self.n_vocab)?;
        self.scanned = false;
        match legal {
            _ if self.in_list => self.buffers.list.retain(|one| legal.allows(one.token)),
            LegalTokens::List(tokens) if tokens.len() <= LIST => self.list_only(tokens.iter().copied()),
            LegalTokens::List(tokens) => self.clear_others(tokens),
            LegalTokens::Mask { bits, .. } if count_of(bits) <= LIST => {
                self.list_only(tokens_of(bits));
            }
            LegalTokens::Mask { bits, .. } => passes::mask(self.row, bits),
        }
        if !self.survey()? {
            self.keep_one(Candidate { token: first, logit: 0.0 });
        }
        Ok(())
    }

    /// Moves the candidates among `tokens` (ascending, at most [`LIST`]) from the row to the list.
    fn list_only(&mut self, tokens: impl Iterator<Item = Token>) {
        let list = &mut self.buffers.list;
        list.clear();
        let candidates = tokens.filter_map(|token| {
            let logit = *self.row.get(token as usize)?;
            (logit > f32::NEG_INFINITY || logit.is_nan()).then_some(Candidate { token, logit })
        });
        list.extend(candidates);
        self.in_list = true;
    }

    /// Removes all but `tokens` (ascending) from the row.
    fn clear_others(&mut self, tokens: &[Token]) {
        let mut next = 0;
        for &token in tokens {
            if let Some(between) = self.row.get_mut(next..token as usize) {
                between.fill(f32::NEG_INFINITY);
            }
            next = token as usize + 1;
        }
        if let Some(after) = self.row.get_mut(next..) {
            after.fill(f32::NEG_INFINITY);
        }
    }

    /// Called before logits change: the order stays that of the old ones.
    pub(super) fn keep_order(&mut self) {
        if self.buffers.llama && self.order != Order::Id {
            self.arrange();
            self.order = Order::Arranged;
        }
    }

    /// Writes the candidates that are left to [`Buffers::arranged`], in their order.
    pub(super) fn arrange(&mut self) {
        let Buffers { list, arranged, .. } = &mut *self.buffers;
        if self.order == Order::Arranged {
            let row = &*self.row;
            let now = |one: &Candidate| match self.in_list {
                true => list.binary_search_by_key(&one.token, |one| one.token).ok().map(|at| list[at].logit),
                false => row.get(one.token as usize).copied().filter(|logit| *logit > f32::NEG_INFINITY),
            };
            arranged.retain_mut(|one| now(one).map(|logit| one.logit = logit).is_some());
            // A mask may have left a token that was no candidate.
            if !arranged.is_empty() {
                return;
            }
        }
        arranged.clear();
        match self.in_list {
            true => arranged.extend_from_slice(list),
            false => {
                let row = (0..).zip(self.row.iter()).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
                arranged.extend(row.map(|(token, &logit)| Candidate { token, logit }));
            }
        }
        match self.order {
            Order::Id | Order::Arranged => {}
            Order::Logit => arranged.sort_unstable_by_key(|one| one.key()),
        }
    }
}

fn count_of(bits: &[u32]) -> usize {
    bits.iter().map(|word| word.count_ones() as usize).sum()
}

/// The tokens of a mask, ascending.
fn tokens_of(bits: &[u32]) -> impl Iterator<Item = Token> {
    let words = (0..).step_by(32).zip(bits).filter(|(_, word)| **word != 0);
    words.flat_map(|(first, &word)| {
        let mut left = word;
        std::iter::from_fn(move || {
            let bit = left.trailing_zeros();
            (left != 0).then(|| {
                left &= left - 1;
                first + bit as Token
            })
        })
    })
}
