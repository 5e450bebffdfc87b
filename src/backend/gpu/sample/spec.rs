//! A chain as words for the kernels.
//!
//! Everything that is known when the chain is set is computed here, with the host's own arithmetic: the factor of a
//! temperature, the distance at which min-p cuts, a bias times the temperature before it, how often XTC acts. The
//! kernels use only additions, products and comparisons, and so have the same bits as the host's sampler.

use super::layout::*;
use crate::backend::{
    Breakers, ChainStep, Dry, DynamicRange, MAX_XTC_THRESHOLD, SampleSpec, deviations, mask_place, xtc_limit,
};
use crate::{Error, Result, Token};

/// The most candidates that are reported with a token.
pub const MAX_CANDIDATES: u32 = REPORT as u32;

/// The most candidates that are returned to the host.
pub const MAX_HANDED_OVER: u32 = LIST as u32;

/// How many steps, from the first on, the device can run: those that [`Builder::push`] translates, in any order, except
/// where logits change after a dynamic temperature, or there are more than 14 steps.
pub fn supported(ops: &[ChainStep]) -> usize {
    let mut dynamic = false;
    let fits = |(index, op): (usize, &ChainStep)| {
        dynamic |= matches!(op, ChainStep::DynamicTemperature { .. });
        let has_kernel = !matches!(Builder::default().push(op), Err(Error::Unsupported(_)));
        // One place is for the mask, one for the argmax under it; what ends the chain needs none.
        let ends = matches!(op, ChainStep::Draw | ChainStep::HandOver(_));
        has_kernel && !(dynamic && op.adjusts()) && (index < MAX_OPS - 2 || ends)
    };
    ops.iter().enumerate().map(fits).position(|fits| !fits).unwrap_or(ops.len())
}

/// The part of a chain for the device, and how many of its steps that covers ([`SampleSpec::split`]); `None` where more
/// candidates are to be reported than it can.
pub fn split(spec: &SampleSpec) -> Option<(SampleSpec, usize)> {
    if spec.candidates > MAX_CANDIDATES {
        return None;
    }
    spec.split(supported(&spec.steps), MAX_HANDED_OVER)
}

type Words = [u32; OP_WORDS];

/// A chain as the kernels read it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Compiled {
    /// The path of a row without mask.
    pub(super) path: u32,
    /// Whether no step before the mask removes candidates.
    pub(super) trie_first: bool,
    /// The first step that is not a change of single tokens' logits; those before it apply to the row.
    first: usize,
    first_scale: f32,
    /// The temperature's factor at the end.
    scale: f32,
    /// The factor at the first top-p, by which the bins are weighed.
    mass_scale: Option<f32>,
    ops: Vec<Words>,
    /// The steps under a mask that is followed greedily.
    forced: Vec<Words>,
    /// Biases as (token, bits), by token; of DRY the losses by length, and its breakers.
    tables: Vec<u32>,
    seed: u64,
    candidates: u32,
    /// The most candidates that are handed over; 0 where a token is sampled.
    hands_over: u32,
    /// How many standard deviations the first step keeps; 0 where it is another step.
    spreads: f32,
    /// Whether a mask of bits applies as the row is read, after all changes of logits: where the chain runs, and where
    /// the mask is followed greedily.
    reads_masked: [bool; 2],
}

impl Compiled {
    /// The most candidates that are handed over.
    pub(super) fn hands_over(&self) -> u32 {
        self.hands_over
    }

    /// Whether a step samples a token, and so advances the position.
    pub(super) fn samples(&self) -> bool {
        self.hands_over == 0
    }

    /// Whether any step runs before the bins are filled; `forced` under a mask that is followed greedily.
    pub(super) fn adjusts(&self, forced: bool) -> bool {
        if forced { self.forced.len() > 2 } else { self.first > 0 }
    }

    /// Whether a mask of bits applies as the row is read.
    pub(super) fn reads_masked(&self, greedy: bool) -> bool {
        self.reads_masked[usize::from(greedy)]
    }

    /// Words of [`Self::tables`].
    pub(super) fn table_words(&self) -> usize {
        self.tables.len()
    }

    /// Writes the sequence's part of `spec`, whose tables begin at its word `tables_at`.
    pub(super) fn write(&self, head: &mut [u32], tables: &mut [u32], tables_at: usize) {
        head.fill(0);
        head[SPEC_PATH] = self.path;
        head[SPEC_OPS] = self.ops.len() as u32;
        head[SPEC_FIRST] = self.first as u32;
        head[SPEC_FORCED_OPS] = self.forced.len() as u32;
        head[SPEC_SEED] = self.seed as u32;
        head[SPEC_SEED + 1] = (self.seed >> 32) as u32;
        head[SPEC_REPORT] = self.candidates;
        head[SPEC_HAND_OVER] = self.hands_over;
        let [sampled, greedy] = self.reads_masked.map(u32::from);
        head[SPEC_READS_MASKED] = sampled | greedy << 1;
        head[SPEC_SPREADS] = self.spreads.to_bits();
        head[SPEC_TRIE_FIRST] = u32::from(self.trie_first);
        head[SPEC_MASSES] = u32::from(self.mass_scale.is_some());
        let mass_scale = self.mass_scale.unwrap_or(1.0);
        head[SPEC_MASS_SCALE] = mass_scale.to_bits();
        // 64 bins a nat near the best; where the temperature spreads the weights, it spreads the bins.
        head[SPEC_BIN_SCALE] = (64.0 * mass_scale.min(1.0)).to_bits();
        head[SPEC_SCALE] = self.scale.to_bits();
        head[SPEC_FIRST_SCALE] = self.first_scale.to_bits();
        for (program, ops) in [&self.ops, &self.forced].into_iter().enumerate() {
            let at = SPEC_OPS_AT + program * MAX_OPS * OP_WORDS;
            for (op, words) in head[at..].chunks_exact_mut(OP_WORDS).zip(ops) {
                op.copy_from_slice(words);
                let places: &[usize] = match words[0] {
                    OP_BIAS => &[1],
                    OP_DRY => &[2, 4, 6],
                    _ => &[],
                };
                places.iter().for_each(|&place| op[place] += tables_at as u32);
            }
        }
        tables.copy_from_slice(&self.tables);
    }
}

/// Checks a chain and encodes it as words.
///
/// # Errors
/// [`Error::InvalidArgument`] for a step that cannot be used, [`Error::Unsupported`] for one that the device cannot
/// follow.
pub(super) fn compile(spec: &SampleSpec, n_vocab: usize) -> Result<Compiled> {
    let fits = supported(&spec.steps);
    if fits < spec.steps.len() {
        return Err(Error::Unsupported(format!("Step {} of a sampler chain on the GPU", fits + 1)));
    }
    if spec.candidates > MAX_CANDIDATES {
        return Err(Error::InvalidArgument(format!(
            "{} candidates asked for, above {MAX_CANDIDATES}",
            spec.candidates
        )));
    }
    let tries = spec.steps.iter().filter(|op| **op == ChainStep::Trie).count();
    if tries > 1 {
        return Err(Error::InvalidArgument("Sampler chain with two places for the mask".into()));
    }
    let mut builder = Builder { n_vocab, scale: 1.0, ..Builder::default() };
    let place = mask_place(&spec.steps);
    for (index, step) in spec.steps.iter().enumerate() {
        if place == Some(index) {
            builder.push(&ChainStep::Trie)?;
        }
        if step.ends() && index + 1 < spec.steps.len() {
            return Err(Error::InvalidArgument("Sampler chain with steps behind the one that takes the token".into()));
        }
        builder.push(step)?;
    }
    if place == Some(spec.steps.len()) {
        builder.push(&ChainStep::Trie)?;
    }
    Ok(builder.finish(spec))
}

#[derive(Default)]
struct Builder {
    n_vocab: usize,
    ops: Vec<Words>,
    forced: Vec<Words>,
    tables: Vec<u32>,
    /// 1 / temperature so far, as the host sampler computes it.
    scale: f32,
    /// Whether the factor is only known on the device.
    dynamic: bool,
    /// Whether one candidate is left.
    single: bool,
    hands_over: u32,
}

impl Builder {
    fn push(&mut self, op: &ChainStep) -> Result<()> {
        match *op {
            ChainStep::Ban(ref tokens) => {
                let known = tokens.iter().filter(|&&token| self.knows(token));
                let biases: Vec<_> = known.map(|&token| (token, f32::NEG_INFINITY)).collect();
                self.bias(&biases, true)
            }
            ChainStep::LogitBias(ref biases) => self.bias(biases, false),
            ChainStep::Penalties { last_n, repeat, frequency, presence } if last_n <= WINDOW as i32 => {
                let finite = repeat.is_finite() && frequency.is_finite() && presence.is_finite();
                if !finite || repeat <= 0.0 {
                    let problem = format!("Penalties {repeat}, {frequency}, {presence} of a sampler chain");
                    return Err(Error::InvalidArgument(problem));
                }
                if last_n > 0 {
                    let words = |temperature: f32| {
                        let [a, b, c, d] = [repeat, frequency, presence, temperature].map(f32::to_bits);
                        [OP_PENALTIES, last_n as u32, a, b, c, d, 0, 0]
                    };
                    self.ops.push(words(1.0 / self.scale));
                    self.forced.push(words(1.0));
                    self.single = false;
                }
                Ok(())
            }
            ChainStep::Dry(ref dry, ref breakers)
                if dry.last_n <= WINDOW as i32 && (dry.breakers.is_empty() || breakers.is_some()) =>
            {
                checked("DRY's multiplier", dry.multiplier.is_finite(), dry.multiplier)?;
                checked("DRY's base", dry.base.is_finite(), dry.base)?;
                if dry.acts() {
                    self.dry(dry, breakers.as_deref().unwrap_or(&Breakers::default()));
                }
                Ok(())
            }
            ChainStep::TopK(..=0) | ChainStep::Draw => Ok(()),
            ChainStep::TopK(1) | ChainStep::Greedy => {
                self.argmax();
                Ok(())
            }
            ChainStep::TopK(k) => {
                self.truncate([OP_TOP_K, k as u32, 0, 0, 0, 0, 0, 0]);
                Ok(())
            }
            ChainStep::TopP { p, min_keep } => {
                checked("Top-p", !p.is_nan(), p)?;
                if p < 1.0 {
                    let (mantissa, shift) = parts(p.max(0.0));
                    // The last word is read where the factor of the bins' weights is chosen.
                    self.truncate([OP_TOP_P, mantissa, shift, min_keep, 0, 0, 0, self.scale.to_bits()]);
                }
                Ok(())
            }
            ChainStep::MinP { p, min_keep } => {
                checked("Min-p", !p.is_nan(), p)?;
                if p > 0.0 {
                    let ln = p.ln();
                    self.truncate([OP_MIN_P, (ln / self.scale).to_bits(), min_keep, ln.to_bits(), 0, 0, 0, 0]);
                }
                Ok(())
            }
            ChainStep::TopNSigma(n) => {
                checked("Top-n-sigma", !n.is_nan(), n)?;
                if n > 0.0 {
                    // The third word is set where the step turns out to be the first.
                    self.truncate([OP_SIGMA, deviations(n).to_bits(), 0, 0, 0, 0, 0, 0]);
                }
                Ok(())
            }
            ChainStep::Typical { p, min_keep } => {
                checked("Typical-p", !p.is_nan(), p)?;
                if p < 1.0 {
                    let (mantissa, shift) = parts(p.max(0.0));
                    self.truncate([OP_TYPICAL, mantissa, shift, min_keep, 0, 0, 0, 0]);
                }
                Ok(())
            }
            ChainStep::Xtc { probability, threshold, min_keep } => {
                checked("Probability of XTC", !probability.is_nan(), probability)?;
                checked("Threshold of XTC", !threshold.is_nan(), threshold)?;
                if let Some(limit) = xtc_limit(probability).filter(|_| threshold <= MAX_XTC_THRESHOLD) {
                    let (mantissa, shift) = parts(threshold.max(0.0));
                    self.truncate([OP_XTC, limit, mantissa, shift, min_keep, u32::from(threshold > 0.0), 0, 0]);
                }
                Ok(())
            }
            ChainStep::Temperature(temperature) => {
                checked("Temperature", temperature.is_finite(), temperature)?;
                self.temperature(temperature);
                Ok(())
            }
            ChainStep::DynamicTemperature { temperature, range, exponent } => {
                checked("Temperature", temperature.is_finite(), temperature)?;
                checked("Range of temperature", range.is_finite(), range)?;
                checked("Exponent of temperature", exponent.is_finite(), exponent)?;
                if range > 0.0 {
                    let DynamicRange { low, width, exponent } = DynamicRange::new(temperature, range, exponent);
                    self.truncate([OP_DYNAMIC, low.to_bits(), width.to_bits(), exponent.to_bits(), 0, 0, 0, 0]);
                    self.dynamic |= !self.single;
                } else {
                    self.temperature(temperature);
                }
                Ok(())
            }
            ChainStep::Trie => {
                self.ops.push([OP_TRIE, 0, 0, 0, 0, 0, 0, 0]);
                self.forced.push([OP_TRIE, 0, 0, 0, 0, 0, 0, 0]);
                self.single = false;
                Ok(())
            }
            ChainStep::HandOver(most) => {
                let bound = |words: &Words| words[0] == OP_TOP_K && words[1] <= most;
                if most > MAX_HANDED_OVER || !self.ops.iter().any(bound) {
                    let problem = format!("Sampler chain that may leave more than {most} candidates to hand over");
                    return Err(Error::InvalidArgument(problem));
                }
                self.hands_over = most;
                Ok(())
            }
            // What else there is, the host does.
            ref op => Err(Error::Unsupported(format!("`{}` of a sampler chain on the GPU", op.name()))),
        }
    }

    fn knows(&self, token: Token) -> bool {
        usize::try_from(token).is_ok_and(|id| id < self.n_vocab)
    }

    fn bias(&mut self, biases: &[(Token, f32)], unless_legal: bool) -> Result<()> {
        for &(token, bias) in biases {
            if !self.knows(token) {
                return Err(Error::InvalidArgument(format!("Logit bias for token {token} of {}", self.n_vocab)));
            }
            checked("Logit bias", !bias.is_nan() && bias < f32::INFINITY, bias)?;
        }
        if biases.is_empty() {
            return Ok(());
        }
        let mut sorted = biases.to_vec();
        sorted.sort_by_key(|one| one.0);
        let mut table = |temperature: f32| {
            let start = self.tables.len() as u32;
            for &(token, bias) in &sorted {
                self.tables.extend([token as u32, (bias * temperature).to_bits()]);
            }
            [OP_BIAS, start, sorted.len() as u32, u32::from(unless_legal), 0, 0, 0, 0]
        };
        let plain = table(1.0);
        self.forced.push(plain);
        self.ops.push(if self.scale == 1.0 { plain } else { table(1.0 / self.scale) });
        self.single = false;
        Ok(())
    }

    fn dry(&mut self, dry: &Dry, breakers: &Breakers) {
        let heads_at = self.tables.len() as u32;
        for head in breakers.heads() {
            self.tables.extend([head.token as u32, head.tail.start, head.tail.len() as u32]);
        }
        let tails_at = self.tables.len() as u32;
        self.tables.extend(breakers.tails().iter().map(|&token| token as u32));
        let mut words = |temperature: f32| {
            let losses_at = self.tables.len() as u32;
            // A repetition leaves out one token of the window at least.
            self.tables.extend((0..dry.last_n as u32).map(|length| (dry.loss(length) * temperature).to_bits()));
            let (allowed, n_heads) = (dry.allowed_length.cast_unsigned(), breakers.heads().len() as u32);
            [OP_DRY, dry.last_n as u32, losses_at, allowed, heads_at, n_heads, tails_at, 0]
        };
        let plain = words(1.0);
        self.forced.push(plain);
        self.ops.push(if self.scale == 1.0 { plain } else { words(1.0 / self.scale) });
        self.single = false;
    }

    fn truncate(&mut self, words: Words) {
        if !self.single {
            self.ops.push(words);
        }
    }

    /// Keeps the best, which no truncation right before takes out.
    fn argmax(&mut self) {
        if self.single {
            return;
        }
        let free = |words: &Words| !matches!(words[0], OP_TOP_K | OP_TOP_P | OP_MIN_P | OP_SIGMA | OP_SCALE);
        let from = self.ops.iter().rposition(free).map_or(0, |at| at + 1);
        let scales: Vec<Words> = self.ops.drain(from..).filter(|words| words[0] == OP_SCALE).collect();
        self.ops.extend(scales);
        self.ops.push([OP_TOP_K, 1, 0, 0, 0, 0, 0, 0]);
        self.single = true;
    }

    fn temperature(&mut self, temperature: f32) {
        let scale = self.scale / temperature;
        if temperature <= 0.0 || !scale.is_finite() {
            return self.argmax();
        }
        if self.dynamic {
            self.ops.push([OP_SCALE_BY, temperature.to_bits(), 0, 0, 0, 0, 0, 0]);
        } else if temperature != 1.0 {
            self.scale = scale.max(f32::MIN_POSITIVE);
            self.ops.push([OP_SCALE, self.scale.to_bits(), 0, 0, 0, 0, 0, 0]);
        }
    }

    fn finish(mut self, spec: &SampleSpec) -> Compiled {
        let adjusts = |words: &Words| matches!(words[0], OP_BIAS | OP_PENALTIES | OP_DRY);
        let passes = |words: &Words| matches!(words[0], OP_SCALE | OP_TRIE);
        let lead = self.ops.iter().position(|words| !adjusts(words) && !passes(words)).unwrap_or(self.ops.len());
        let first = self.ops[..lead].iter().rposition(adjusts).map_or(0, |at| at + 1);
        let scaled = self.ops[..first].iter().rfind(|words| words[0] == OP_SCALE);
        let first_scale = scaled.map_or(1.0, |words| f32::from_bits(words[1]));
        let trie = self.ops[..lead].iter().position(|words| words[0] == OP_TRIE);
        let rest = &mut self.ops[first..];
        let mut spreads = 0.0;
        if let Some(words) = rest.iter_mut().find(|words| !passes(words)).filter(|words| words[0] == OP_SIGMA) {
            words[2] = 1;
            spreads = f32::from_bits(words[1]);
        }
        // Bins are of use until a step needs all candidates or changes their logits.
        let needs_all = |words: &Words| adjusts(words) || matches!(words[0], OP_DYNAMIC | OP_TYPICAL);
        let binned = rest.iter().position(needs_all).unwrap_or(rest.len());
        let mut mass_scale = None;
        for words in rest[..binned].iter_mut().filter(|words| words[0] == OP_TOP_P) {
            words[4] = u32::from(*mass_scale.get_or_insert(words[7]) == words[7]);
        }
        let steps: Vec<&Words> = rest.iter().filter(|words| !passes(words)).collect();
        let path = match steps[..] {
            _ if self.hands_over > 0 => PATH_SELECT,
            [[OP_TOP_K, 1, ..]] => PATH_GREEDY,
            _ if spec.candidates == 0 && steps.iter().all(|words| words[0] == OP_MIN_P && words[2] < 2) => PATH_DIRECT,
            _ => PATH_SELECT,
        };
        // The mask applies there even if its place is after the steps of the device's part.
        if !self.forced.iter().any(|words| words[0] == OP_TRIE) {
            self.forced.push([OP_TRIE, 0, 0, 0, 0, 0, 0, 0]);
        }
        // The candidates that are handed over come from a list.
        let masked_last = self.hands_over == 0 && self.forced.last().is_some_and(|words| words[0] == OP_TRIE);
        self.forced.push([OP_TOP_K, 1, 0, 0, 0, 0, 0, 0]);
        Compiled {
            path,
            trie_first: trie.is_some(),
            reads_masked: [trie.is_some_and(|at| at >= first), masked_last],
            first,
            first_scale,
            scale: self.scale,
            mass_scale: mass_scale.map(f32::from_bits),
            ops: self.ops,
            forced: self.forced,
            tables: self.tables,
            seed: spec.seed,
            candidates: spec.candidates,
            hands_over: self.hands_over,
            spreads,
        }
    }
}

fn checked(what: &str, usable: bool, value: f32) -> Result<()> {
    if usable { Ok(()) } else { Err(Error::InvalidArgument(format!("{what} {value} of a sampler chain"))) }
}

/// A number of 0..1 as mantissa · 2^-shift.
pub(super) fn parts(p: f32) -> (u32, u32) {
    let (exponent, fraction) = (p.to_bits() >> 23, p.to_bits() & 0x007f_ffff);
    if exponent == 0 { (fraction, 149) } else { (fraction | 0x0080_0000, 150 - exponent) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn path(ops: &[ChainStep], candidates: u32) -> u32 {
        compile(&SampleSpec { steps: ops.to_vec(), seed: 1, candidates }, 100).unwrap().path
    }

    #[test]
    fn the_shortest_path_is_taken() {
        let bias = || ChainStep::LogitBias(vec![(3, 1.0)]);
        let (top_k, top_p) = (ChainStep::TopK(40), ChainStep::TopP { p: 0.9, min_keep: 0 });
        let min_p = |min_keep| ChainStep::MinP { p: 0.1, min_keep };
        let warm = ChainStep::Temperature(0.7);
        for (ops, expected) in [
            (vec![], PATH_DIRECT),
            (vec![warm.clone()], PATH_DIRECT),
            (vec![min_p(0), warm.clone(), min_p(1)], PATH_DIRECT),
            (vec![min_p(2)], PATH_SELECT),
            (vec![ChainStep::Greedy], PATH_GREEDY),
            (vec![ChainStep::TopK(1), top_p.clone()], PATH_GREEDY),
            (vec![bias(), top_k.clone(), warm.clone(), top_p.clone(), ChainStep::Temperature(0.0)], PATH_GREEDY),
            (vec![ChainStep::Greedy], PATH_GREEDY),
            (vec![top_k.clone(), bias(), ChainStep::Greedy], PATH_SELECT),
            (vec![top_k.clone()], PATH_SELECT),
            (vec![ChainStep::TopK(0), ChainStep::TopP { p: 1.0, min_keep: 3 }, ChainStep::Draw], PATH_DIRECT),
        ] {
            assert_eq!(path(&ops, 0), expected, "{ops:?}");
            let reporting = if expected == PATH_DIRECT { PATH_SELECT } else { expected };
            assert_eq!(path(&ops, 5), reporting, "{ops:?}");
        }
    }

    #[test]
    fn masks_of_bits_are_read_through_where_nothing_changes_logits_after_them() {
        let bias = || ChainStep::LogitBias(vec![(3, 1.0)]);
        for (steps, expected) in [
            (vec![], [true, true]),
            (vec![bias(), ChainStep::TopK(40)], [true, true]),
            (vec![ChainStep::Trie, bias(), ChainStep::TopK(40)], [false, false]),
            (vec![ChainStep::TopK(40), bias()], [true, false]),
            (vec![ChainStep::TopK(40), ChainStep::Trie], [false, true]),
            (vec![ChainStep::Trie, ChainStep::TopK(40), ChainStep::HandOver(40)], [true, false]),
        ] {
            let compiled = compile(&SampleSpec { steps, seed: 1, candidates: 0 }, 100).unwrap();
            assert_eq!(compiled.reads_masked, expected, "{:?}", compiled.ops);
        }
    }

    #[test]
    fn what_cannot_be_followed_is_told() {
        let penalties = |last_n| ChainStep::Penalties { last_n, repeat: 1.1, frequency: 0.0, presence: 0.0 };
        let dynamic = ChainStep::DynamicTemperature { temperature: 1.0, range: 0.5, exponent: 1.0 };
        let xtc = |threshold| ChainStep::Xtc { probability: 0.5, threshold, min_keep: 0 };
        let typical = |p| ChainStep::Typical { p, min_keep: 0 };
        assert_eq!(supported(&[ChainStep::TopNSigma(1.0), typical(0.9), xtc(0.1), ChainStep::Draw]), 4);
        assert_eq!(supported(&[penalties(1024), penalties(1025)]), 1);
        assert_eq!(supported(&[dynamic.clone(), ChainStep::TopK(3), penalties(1)]), 2);
        let dry = |last_n, breakers| ChainStep::Dry(Dry { multiplier: 1.0, last_n, ..Dry::default() }, breakers);
        let found = || Some(Arc::new(Breakers::default()));
        assert_eq!(supported(&[dry(1024, found()), dry(1025, found())]), 1);
        assert_eq!(supported(&[dry(64, None)]), 0, "breakers that are not found yet");
        assert_eq!(supported(&[dynamic.clone(), dry(64, found())]), 1);
        assert_eq!(supported(&vec![ChainStep::TopK(3); 20]), 14);
        assert_eq!(supported(&[ChainStep::Trie, dynamic, ChainStep::Draw]), 3);
        let over = |most| vec![ChainStep::TopK(9), ChainStep::HandOver(most)];
        assert_eq!(supported(&[vec![ChainStep::TopK(3); 14], over(9)[1..].to_vec()].concat()), 15);
        // Bans outside the vocabulary are none.
        let bans = vec![ChainStep::Ban(vec![-1, 100, Token::MAX])];
        let compiled = compile(&SampleSpec { steps: bans, ..SampleSpec::default() }, 100).unwrap();
        assert_eq!((compiled.adjusts(false), compiled.table_words()), (false, 0));
        for ops in [
            vec![penalties(2000)],
            over(8),
            vec![ChainStep::TopK(5000), ChainStep::HandOver(5000)],
            vec![ChainStep::TopP { p: 0.5, min_keep: 0 }, ChainStep::HandOver(40)],
            vec![ChainStep::HandOver(40)],
            vec![ChainStep::TopK(3), ChainStep::HandOver(40), ChainStep::Draw],
            vec![ChainStep::Penalties { last_n: 3, repeat: 0.0, frequency: 0.0, presence: 0.0 }],
            vec![ChainStep::Dry(Dry { multiplier: f32::NAN, ..Dry::default() }.with(&["none"]), None)],
            vec![ChainStep::TopP { p: f32::NAN, min_keep: 0 }],
            vec![ChainStep::MinP { p: f32::NAN, min_keep: 0 }],
            vec![ChainStep::TopNSigma(f32::NAN)],
            vec![typical(f32::NAN)],
            vec![xtc(f32::NAN)],
            vec![ChainStep::Temperature(f32::INFINITY)],
            vec![ChainStep::LogitBias(vec![(100, 1.0)])],
            vec![ChainStep::LogitBias(vec![(-1, 1.0)])],
            vec![ChainStep::LogitBias(vec![(1, f32::INFINITY)])],
            vec![ChainStep::Trie, ChainStep::Trie],
            vec![ChainStep::Draw, ChainStep::TopK(3)],
        ] {
            assert!(compile(&SampleSpec { steps: ops.clone(), ..SampleSpec::default() }, 100).is_err(), "{ops:?}");
        }
        let many = SampleSpec { candidates: 65, ..SampleSpec::default() };
        assert!(compile(&many, 100).is_err());
    }

    #[test]
    fn candidates_to_hand_over_come_from_a_list() {
        let part = |steps: &[ChainStep]| {
            let steps = [steps, &[ChainStep::HandOver(40)]].concat();
            compile(&SampleSpec { steps, ..SampleSpec::default() }, 100).unwrap()
        };
        for ops in [vec![ChainStep::TopK(1)], vec![ChainStep::Temperature(0.0)], vec![ChainStep::TopK(40)]] {
            let part = part(&ops);
            assert_eq!((part.path, part.hands_over(), part.samples()), (PATH_SELECT, 40, false), "{ops:?}");
            // The mask applies after the device's part, except where it is greedy.
            assert!(!part.trie_first && part.ops.iter().all(|words| words[0] != OP_TRIE), "{ops:?}");
            assert!(part.forced.iter().any(|words| words[0] == OP_TRIE), "{ops:?}");
        }
        assert!(part(&[ChainStep::Trie, ChainStep::TopK(40)]).trie_first);
    }

    #[test]
    fn parts_make_the_number() {
        for p in [0.0, f32::from_bits(1), f32::MIN_POSITIVE, 0.05, 0.5, 0.95, 0.999_999_9] {
            let (mantissa, shift) = parts(p);
            assert_eq!(f64::from(mantissa) * 2f64.powi(-(shift as i32)), f64::from(p));
        }
    }
}
