//! Recurrences and convolutions over the rows of a sequence, see [`RecurSpec`] and
//! [`ConvSpec`](crate::graph::ConvSpec).
//!
//! A head's state is kept in blocks of 16 value indices, each block by itself for all rows: a number for each key
//! index, 16 value indices side by side; of [`Rule::Scan`] a number for each value index, its keys side by side. A
//! block does not depend on the others, and rows are taken one after the other, so results do not depend on how a
//! sequence is cut.

use super::norm::sum_of_squares;
use super::vecmath::{exp, times_sigmoid};
use crate::graph::{Activation, Columns, MAX_KEYS, MAX_TAPS, RecurSpec, Rule};
use crate::simd::{Isa, Kernel, LANES, Vector, dispatch};
use std::ops::Range;

/// The vectors of a recurrence; empty where its rule has none.
#[derive(Clone, Copy, Default)]
pub struct Vectors<'a> {
    /// [`RecurSpec::decay`].
    pub decay: &'a [f32],
    /// [`RecurSpec::bias`].
    pub bias: &'a [f32],
    /// The rule's own: skip or bonus.
    pub own: &'a [f32],
}

/// One block of a head: what takes it through rows.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    /// The recurrence.
    pub spec: &'a RecurSpec,
    /// Its vectors, as long as the specification says.
    pub vectors: Vectors<'a>,
    /// Of each source where row 0 begins, and the values of a row.
    pub sources: &'a [(*const f32, usize)],
    /// The same of the result.
    pub out: (*mut f32, usize),
    /// The head.
    pub head: usize,
    /// The block's first value index.
    pub value: usize,
}

impl Block<'_> {
    /// Numbers of a block's state.
    pub fn state_values(spec: &RecurSpec) -> usize {
        spec.keys * LANES
    }

    /// Takes the block's state through these rows.
    ///
    /// # Safety
    /// The sources have these rows with the columns of [`RecurSpec::inputs`], the result has room for them; nobody else
    /// uses the state, [`Block::state_values`] numbers, or these columns of the result.
    pub unsafe fn run(&self, isa: Isa, rows: Range<usize>, state: *mut f32) {
        dispatch(isa, Through { block: *self, rows, state });
    }

    /// Where the columns of a row begin, from `offset` on.
    #[inline(always)]
    unsafe fn at(&self, columns: Columns, row: usize, offset: usize) -> *const f32 {
        let (base, width) = self.sources[columns.src];
        // SAFETY: the promise of `run`.
        unsafe { base.add(row * width + columns.first + offset) }
    }

    /// The key and the query of a row.
    #[inline(always)]
    unsafe fn key_and_query(&self, row: usize) -> [&[f32]; 2] {
        let (spec, keys) = (self.spec, self.spec.keys);
        let first = spec.key_head(self.head) * keys;
        // SAFETY: the promise of `run`.
        [spec.key, spec.query].map(|c| unsafe { std::slice::from_raw_parts(self.at(c, row, first), keys) })
    }

    /// Columns of the head's key indices.
    #[inline(always)]
    unsafe fn by_key(&self, columns: Columns, row: usize) -> &[f32] {
        // SAFETY: the promise of `run`.
        unsafe { std::slice::from_raw_parts(self.at(columns, row, self.head * self.spec.keys), self.spec.keys) }
    }

    /// The head's step after softplus.
    #[inline(always)]
    unsafe fn step(&self, row: usize) -> f32 {
        // SAFETY: the promise of `run`.
        let step = unsafe { *self.at(self.spec.step, row, self.head) };
        softplus(step + self.vectors.bias.get(self.head).copied().unwrap_or(0.0))
    }

    #[inline(always)]
    unsafe fn delta<S: Vector>(&self, simd: S, row: usize, state: *mut f32, (write, eps): (Columns, f32)) {
        // SAFETY: the promise of `run`.
        unsafe {
            let [k, q] = self.key_and_query(row);
            let [k_length, q_length] = [k, q].map(|x| sum_of_squares(simd, x, 0.0).sqrt().max(eps));
            let w = (self.step(row) * self.vectors.decay[self.head]).exp();
            let beta = 1.0 / (1.0 + (-*self.at(write, row, self.head)).exp());
            let v = simd.load(self.at(self.spec.value, row, self.head * self.spec.values + self.value));
            let known = simd.mul(product(simd, state, k), simd.splat(w / k_length));
            let new = simd.mul(simd.sub(v, known), simd.splat(beta / k_length));
            let w = simd.splat(w);
            let read = updated(simd, state, q, |i, s| simd.fma(simd.splat(k[i]), new, simd.mul(s, w)));
            self.put(simd, row, simd.mul(read, simd.splat(1.0 / (q_length * (k.len() as f32).sqrt()))));
        }
    }

    #[inline(always)]
    unsafe fn ssd<S: Vector>(&self, simd: S, row: usize, state: *mut f32) {
        // SAFETY: the promise of `run`.
        unsafe {
            let [k, q] = self.key_and_query(row);
            let step = self.step(row);
            let w = simd.splat((step * self.vectors.decay[self.head]).exp());
            let v = simd.load(self.at(self.spec.value, row, self.head * self.spec.values + self.value));
            let new = simd.mul(v, simd.splat(step));
            let read = updated(simd, state, q, |i, s| simd.fma(simd.splat(k[i]), new, simd.mul(s, w)));
            self.put(simd, row, simd.fma(v, simd.splat(self.vectors.own[self.head]), read));
        }
    }

    #[inline(always)]
    unsafe fn scan<S: Vector>(&self, simd: S, row: usize, state: *mut f32) {
        // SAFETY: the promise of `run`.
        unsafe {
            let ([k, q], keys) = (self.key_and_query(row), self.spec.keys);
            let mut results = [0f32; LANES];
            for (i, result) in results.iter_mut().enumerate() {
                let value = self.head * self.spec.values + self.value + i;
                let x = *self.at(self.spec.value, row, value);
                let step = softplus(*self.at(self.spec.step, row, value));
                let new = simd.splat(step * x);
                let mut read = simd.splat(0.0);
                for at in (0..keys).step_by(LANES) {
                    let place = state.add(i * keys + at);
                    let decay = simd.load(self.vectors.decay.as_ptr().add(value * keys + at));
                    let w = exp(simd, simd.mul(decay, simd.splat(step)));
                    let s = simd.fma(simd.load(k.as_ptr().add(at)), new, simd.mul(simd.load(place), w));
                    simd.store(place, s);
                    read = simd.fma(s, simd.load(q.as_ptr().add(at)), read);
                }
                *result = simd.sum(read) + self.vectors.own[value] * x;
            }
            self.put(simd, row, simd.load(results.as_ptr()));
        }
    }

    #[inline(always)]
    unsafe fn wkv6<S: Vector>(&self, simd: S, row: usize, state: *mut f32) {
        // SAFETY: the promise of `run`.
        unsafe {
            let [k, q] = self.key_and_query(row);
            let bonus = &self.vectors.own[self.head * k.len()..];
            let own = weighted(k, q, bonus);
            let v = simd.load(self.at(self.spec.value, row, self.head * self.spec.values + self.value));
            let decays =
                decays(simd, self.by_key(self.spec.step, row), |x| exp(simd, simd.sub(simd.splat(0.0), exp(simd, x))));
            let read = product(simd, state, q);
            updated(simd, state, q, |i, s| simd.fma(simd.splat(k[i]), v, simd.mul(s, simd.splat(decays[i]))));
            self.put(simd, row, simd.fma(v, simd.splat(own), read));
        }
    }

    #[inline(always)]
    unsafe fn wkv7<S: Vector>(&self, simd: S, row: usize, state: *mut f32, [removed, rate]: [Columns; 2]) {
        // SAFETY: the promise of `run`.
        unsafe {
            let [k, q] = self.key_and_query(row);
            let [removed, rate] = [removed, rate].map(|columns| self.by_key(columns, row));
            let v = simd.load(self.at(self.spec.value, row, self.head * self.spec.values + self.value));
            let decays = decays(simd, self.by_key(self.spec.step, row), |x| {
                exp(simd, simd.mul(times_sigmoid(simd, simd.splat(1.0), x), simd.splat(-0.606_531)))
            });
            let old = product(simd, state, removed);
            let read = updated(simd, state, q, |i, s| {
                let kept = simd.fma(simd.splat(-(removed[i] * rate[i])), old, simd.mul(s, simd.splat(decays[i])));
                simd.fma(simd.splat(k[i]), v, kept)
            });
            self.put(simd, row, read);
            let own = weighted(k, q, &self.vectors.own[self.head * k.len()..]);
            let (base, width) = self.out;
            let at = (self.spec.heads + self.head) * self.spec.values + self.value;
            simd.store(base.add(row * width + at), simd.mul(v, simd.splat(own)));
        }
    }

    #[inline(always)]
    unsafe fn put<S: Vector>(&self, simd: S, row: usize, result: S::F) {
        let (base, width) = self.out;
        // SAFETY: the promise of `run`.
        unsafe { simd.store(base.add(row * width + self.head * self.spec.values + self.value), result) }
    }
}

/// k · (weight ⊙ q).
fn weighted(k: &[f32], q: &[f32], weight: &[f32]) -> f32 {
    k.iter().zip(q).zip(weight).map(|((k, q), w)| k * q * w).sum()
}

/// ln(1 + e^x), x itself above 20.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// A function of each of a head's steps.
#[inline(always)]
fn decays<S: Vector>(simd: S, steps: &[f32], function: impl Fn(S::F) -> S::F) -> [f32; MAX_KEYS] {
    let (mut from, mut to) = ([0f32; MAX_KEYS], [0f32; MAX_KEYS]);
    from[..steps.len()].copy_from_slice(steps);
    for at in (0..steps.len()).step_by(LANES) {
        // SAFETY: both arrays are a whole number of vectors.
        unsafe { simd.store(to.as_mut_ptr().add(at), function(simd.load(from.as_ptr().add(at)))) };
    }
    to
}

/// Partial sums over key indices.
const SUMS: usize = 4;

/// Sᵀ x of a block.
#[inline(always)]
unsafe fn product<S: Vector>(simd: S, state: *const f32, x: &[f32]) -> S::F {
    let mut sums = [simd.splat(0.0); SUMS];
    for (i, &x) in x.iter().enumerate() {
        // SAFETY: the block has a vector for each key index.
        let s = unsafe { simd.load(state.add(i * LANES)) };
        sums[i % SUMS] = simd.fma(s, simd.splat(x), sums[i % SUMS]);
    }
    simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3]))
}

/// Replaces each vector of a block by a function of it, and returns Sᵀ q of the result.
#[inline(always)]
unsafe fn updated<S: Vector>(simd: S, state: *mut f32, q: &[f32], new: impl Fn(usize, S::F) -> S::F) -> S::F {
    let mut sums = [simd.splat(0.0); SUMS];
    for (i, &q) in q.iter().enumerate() {
        // SAFETY: the block has a vector for each key index.
        unsafe {
            let place = state.add(i * LANES);
            let s = new(i, simd.load(place));
            simd.store(place, s);
            sums[i % SUMS] = simd.fma(s, simd.splat(q), sums[i % SUMS]);
        }
    }
    simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3]))
}

struct Through<'a> {
    block: Block<'a>,
    rows: Range<usize>,
    state: *mut f32,
}

impl Kernel for Through<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let Through { block, rows, state } = self;
        // SAFETY: the promise of `Block::run`.
        unsafe {
            match block.spec.rule {
                Rule::Delta { write, eps } => rows.for_each(|row| block.delta(simd, row, state, (write, eps))),
                Rule::Ssd { .. } => rows.for_each(|row| block.ssd(simd, row, state)),
                Rule::Scan { .. } => rows.for_each(|row| block.scan(simd, row, state)),
                Rule::Wkv6 { .. } => rows.for_each(|row| block.wkv6(simd, row, state)),
                Rule::Wkv7 { removed, rate, .. } => rows.for_each(|row| block.wkv7(simd, row, state, [removed, rate])),
            }
        }
    }
}

/// Channels of a convolution that are taken together, at most.
pub const CHANNELS: usize = 64;

/// A convolution of some neighbouring channels, at most [`CHANNELS`].
pub struct Conv<'a> {
    /// For each channel its taps; none for the difference of the row before.
    pub weight: Option<&'a [f32]>,
    /// Added per channel.
    pub bias: Option<&'a [f32]>,
    /// What follows, [`Activation::Silu`] or [`Activation::Identity`].
    pub act: Activation,
}

impl Conv<'_> {
    /// Computes `rows` rows: `taps(row)` gives what each tap meets, null for zeros, `out(row)` where the result goes.
    ///
    /// # Safety
    /// All pointers are of a number for each channel, and nobody else uses the results.
    pub unsafe fn run(
        &self,
        isa: Isa,
        channels: usize,
        rows: Range<usize>,
        taps: impl Fn(usize) -> [*const f32; MAX_TAPS],
        out: impl Fn(usize) -> *mut f32,
    ) {
        dispatch(isa, Convolved { conv: self, channels, rows, taps, out });
    }
}

struct Convolved<'a, T, O> {
    conv: &'a Conv<'a>,
    channels: usize,
    rows: Range<usize>,
    taps: T,
    out: O,
}

impl<T: Fn(usize) -> [*const f32; MAX_TAPS], O: Fn(usize) -> *mut f32> Kernel for Convolved<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) {
        let Convolved { conv, channels, rows, taps, out } = self;
        let n = conv.weight.map_or(2, |weight| weight.len() / channels);
        let mut weight = [[0f32; CHANNELS]; MAX_TAPS];
        match conv.weight {
            Some(all) => {
                for (c, own) in all.chunks_exact(n).enumerate() {
                    own.iter().zip(&mut weight).for_each(|(&w, column)| column[c] = w);
                }
            }
            None => (weight[0], weight[1]) = ([1.0; CHANNELS], [-1.0; CHANNELS]),
        }
        for row in rows {
            let (met, out) = (taps(row), out(row));
            for c in (0..channels).step_by(LANES) {
                // SAFETY: the promise of `Conv::run`; channels are a whole number of vectors.
                unsafe {
                    let mut sum = conv.bias.map_or(simd.splat(0.0), |bias| simd.load(bias.as_ptr().add(c)));
                    for (x, weight) in met[..n].iter().zip(&weight).filter(|(x, _)| !x.is_null()) {
                        sum = simd.fma(simd.load(x.add(c)), simd.load(weight.as_ptr().add(c)), sum);
                    }
                    if conv.act == Activation::Silu {
                        sum = times_sigmoid(simd, sum, sum);
                    }
                    simd.store(out.add(c), sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::known_recurrence::{Case, RULES, Shape};

    const HEADS: usize = 4;
    const ROWS: usize = 7;

    /// All blocks through all rows, cut after `cut` of them.
    fn fast(isa: Isa, case: &Case, cut: usize) -> Vec<f32> {
        let spec = &case.spec;
        let width = spec.width();
        let mut out = vec![f32::NAN; ROWS * width];
        let sources = [(case.source.as_ptr(), case.width)];
        let vectors = Vectors { decay: &case.decay, bias: &case.bias, own: &case.own };
        for head in 0..spec.heads {
            for value in (0..spec.values).step_by(LANES) {
                let (mut state, out) = (vec![0f32; Block::state_values(spec)], (out.as_mut_ptr(), width));
                let block = Block { spec, vectors, sources: &sources, out, head, value };
                // SAFETY: sources and result have the rows, the state is this block's.
                unsafe {
                    block.run(isa, 0..cut, state.as_mut_ptr());
                    block.run(isa, cut..ROWS, state.as_mut_ptr());
                }
            }
        }
        out
    }

    #[test]
    fn blocks_give_what_the_formulas_say() {
        for isa in Isa::available() {
            for shape in [(16, 16, 4, false), (32, 48, 2, true), (128, 64, 2, false), (64, 16, 1, false)] {
                for (i, rule) in RULES.into_iter().enumerate() {
                    let (keys, values, key_heads, tiled) = shape;
                    // Channels of their own keys, and heads of theirs.
                    let (key_heads, tiled) = if i >= 3 { (HEADS, false) } else { (key_heads, tiled) };
                    let case = Case::new(rule, Shape { heads: HEADS, keys, values, key_heads, tiled }, ROWS);
                    let (got, expected) = (fast(isa, &case, 3), case.through(0..ROWS, &mut case.zeros()));
                    let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                    for (i, (a, b)) in got.iter().zip(&expected).enumerate() {
                        let off = (f64::from(*a) - b).abs();
                        assert!(off <= 2e-5 * largest, "{isa:?} {rule:?} {shape:?} number {i}: {a} for {b}");
                    }
                    assert_eq!(got, fast(isa, &case, 6), "{isa:?} {rule:?} {shape:?}: cut elsewhere");
                }
            }
        }
    }
}
