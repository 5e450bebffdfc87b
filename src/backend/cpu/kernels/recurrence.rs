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
    use crate::graph::WeightId;

    /// Numbers that repeat late.
    fn numbers(n: usize, seed: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|i| (((i * 37 + seed * 101) % 83) as f32 / 41.0 - 1.0) * scale).collect()
    }

    fn wide(x: &[f32]) -> Vec<f64> {
        x.iter().map(|&x| f64::from(x)).collect()
    }

    struct Case {
        spec: RecurSpec,
        rows: usize,
        source: Vec<f32>,
        decay: Vec<f32>,
        bias: Vec<f32>,
        own: Vec<f32>,
    }

    const HEADS: usize = 4;
    const ROWS: usize = 7;

    fn case(rule: usize, (keys, values, key_heads, tiled): (usize, usize, usize, bool)) -> Case {
        let (k, v) = (key_heads * keys, HEADS * values);
        let at = |first| Columns::of(0, first);
        let (query, key, value, step) = (at(0), at(k), at(2 * k), at(2 * k + v));
        let steps = [HEADS, HEADS, v, k, k][rule];
        let after = 2 * k + v + steps;
        let weight = WeightId(0);
        let rule_of = [
            Rule::Delta { write: at(after), eps: 1e-6 },
            Rule::Ssd { skip: weight },
            Rule::Scan { skip: weight },
            Rule::Wkv6 { bonus: weight },
            Rule::Wkv7 { bonus: weight, removed: at(after), rate: at(after + k) },
        ];
        let width = after + 2 * k.max(HEADS);
        let (state, decay, bias) = (0, Some(weight), Some(weight));
        let rule_spec = rule_of[rule];
        let spec = RecurSpec {
            state,
            heads: HEADS,
            keys,
            values,
            key_heads,
            tiled,
            query,
            key,
            value,
            step,
            decay,
            bias,
            rule: rule_spec,
        };
        let decays = if rule == 2 { v * keys } else { HEADS };
        let decay = numbers(decays, 2, 1.0).iter().map(|x| -0.1 - x.abs()).collect();
        let own = numbers([HEADS, HEADS, v, k, k][rule], 4, 1.0);
        Case { spec, rows: ROWS, source: numbers(ROWS * width, 1, 0.9), decay, bias: numbers(HEADS, 3, 0.5), own }
    }

    /// Every formula written out, in double precision: a state for each head, [key][value].
    fn slow(case: &Case) -> Vec<f64> {
        let Case { spec, rows, .. } = case;
        let (keys, values, width) = (spec.keys, spec.values, case.source.len() / case.rows);
        let mut states = vec![vec![vec![0f64; values]; keys]; spec.heads];
        let mut out = Vec::new();
        for row in case.source.chunks(width).take(*rows) {
            let (row, mut after) = (wide(row), Vec::new());
            let part = |columns: Columns, first: usize, n: usize| row[columns.first + first..][..n].to_vec();
            for (h, state) in states.iter_mut().enumerate() {
                let kh = spec.key_head(h);
                let (mut q, mut k) = (part(spec.query, kh * keys, keys), part(spec.key, kh * keys, keys));
                let v = part(spec.value, h * values, values);
                let softplus = |x: f64| x.exp().ln_1p();
                let sum =
                    |state: &Vec<Vec<f64>>, x: &[f64], j: usize| (0..keys).map(|i| state[i][j] * x[i]).sum::<f64>();
                match spec.rule {
                    Rule::Delta { write, eps } => {
                        for x in [&mut q, &mut k] {
                            let length = x.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::from(eps));
                            x.iter_mut().for_each(|x| *x /= length);
                        }
                        let step = softplus(part(spec.step, h, 1)[0] + f64::from(case.bias[h]));
                        let w = (step * f64::from(case.decay[h])).exp();
                        let beta = 1.0 / (1.0 + (-part(write, h, 1)[0]).exp());
                        for j in 0..values {
                            let known = w * sum(state, &k, j);
                            (0..keys).for_each(|i| state[i][j] = w * state[i][j] + k[i] * beta * (v[j] - known));
                            out.push(sum(state, &q, j) / (keys as f64).sqrt());
                        }
                    }
                    Rule::Ssd { .. } => {
                        let step = softplus(part(spec.step, h, 1)[0] + f64::from(case.bias[h]));
                        let w = (step * f64::from(case.decay[h])).exp();
                        for j in 0..values {
                            (0..keys).for_each(|i| state[i][j] = w * state[i][j] + k[i] * step * v[j]);
                            out.push(sum(state, &q, j) + f64::from(case.own[h]) * v[j]);
                        }
                    }
                    Rule::Scan { .. } => {
                        for j in 0..values {
                            let at = h * values + j;
                            let step = softplus(part(spec.step, at, 1)[0]);
                            for i in 0..keys {
                                let w = (step * f64::from(case.decay[at * keys + i])).exp();
                                state[i][j] = w * state[i][j] + k[i] * step * v[j];
                            }
                            out.push(sum(state, &q, j) + f64::from(case.own[at]) * v[j]);
                        }
                    }
                    Rule::Wkv6 { .. } => {
                        let step = part(spec.step, h * keys, keys);
                        let own: f64 = (0..keys).map(|i| q[i] * k[i] * f64::from(case.own[h * keys + i])).sum();
                        for j in 0..values {
                            out.push(sum(state, &q, j) + own * v[j]);
                            (0..keys).for_each(|i| state[i][j] = (-step[i].exp()).exp() * state[i][j] + k[i] * v[j]);
                        }
                    }
                    Rule::Wkv7 { removed, rate, .. } => {
                        let [step, removed, rate] = [spec.step, removed, rate].map(|c| part(c, h * keys, keys));
                        for j in 0..values {
                            let old = sum(state, &removed, j);
                            for i in 0..keys {
                                let w = (-0.606_531 / (1.0 + (-step[i]).exp())).exp();
                                state[i][j] = w * state[i][j] - removed[i] * rate[i] * old + k[i] * v[j];
                            }
                            out.push(sum(state, &q, j));
                        }
                        let own: f64 = (0..keys).map(|i| q[i] * k[i] * f64::from(case.own[h * keys + i])).sum();
                        after.extend(v.iter().map(|v| own * v));
                    }
                }
            }
            out.extend(after);
        }
        out
    }

    /// All blocks through all rows, cut after `cut` of them.
    fn fast(isa: Isa, case: &Case, cut: usize) -> Vec<f32> {
        let spec = &case.spec;
        let width = spec.width();
        let mut out = vec![f32::NAN; case.rows * width];
        let sources = [(case.source.as_ptr(), case.source.len() / case.rows)];
        let vectors = Vectors { decay: &case.decay, bias: &case.bias, own: &case.own };
        for head in 0..spec.heads {
            for value in (0..spec.values).step_by(LANES) {
                let (mut state, out) = (vec![0f32; Block::state_values(spec)], (out.as_mut_ptr(), width));
                let block = Block { spec, vectors, sources: &sources, out, head, value };
                // SAFETY: sources and result have the rows, the state is this block's.
                unsafe {
                    block.run(isa, 0..cut, state.as_mut_ptr());
                    block.run(isa, cut..case.rows, state.as_mut_ptr());
                }
            }
        }
        out
    }

    #[test]
    fn blocks_give_what_the_formulas_say() {
        for isa in Isa::available() {
            for shape in [(16, 16, 4, false), (32, 48, 2, true), (128, 64, 2, false), (64, 16, 1, false)] {
                for rule in 0..5 {
                    // Channels of their own keys, and heads of theirs.
                    let shape = if rule >= 3 { (shape.0, shape.1, HEADS, false) } else { shape };
                    let case = case(rule, shape);
                    let (got, expected) = (fast(isa, &case, 3), slow(&case));
                    let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                    for (i, (a, b)) in got.iter().zip(&expected).enumerate() {
                        let off = (f64::from(*a) - b).abs();
                        assert!(off <= 2e-5 * largest, "{isa:?} rule {rule} {shape:?} number {i}: {a} for {b}");
                    }
                    assert_eq!(got, fast(isa, &case, 6), "{isa:?} rule {rule} {shape:?}: cut elsewhere");
                }
            }
        }
    }
}
