//! Recurrences as their formulas say, slow and in double precision: what the kernels of both backends must give.

use crate::graph::{Columns, RecurSpec, Rule, WeightId};
use std::ops::Range;

/// A recurrence with small sizes, all its inputs in the rows of one source.
pub struct Case {
    /// The recurrence.
    pub spec: RecurSpec,
    /// Values of a row of the source.
    pub width: usize,
    /// The rows.
    pub source: Vec<f32>,
    /// [`RecurSpec::decay`].
    pub decay: Vec<f32>,
    /// [`RecurSpec::bias`].
    pub bias: Vec<f32>,
    /// The rule's own vector.
    pub own: Vec<f32>,
}

/// Every rule, for [`Case::new`].
#[cfg(test)]
pub const RULES: [Rule; 5] = [
    Rule::Delta { write: Columns { src: 0, first: 0 }, eps: 0.0 },
    Rule::Ssd { skip: WeightId(0) },
    Rule::Scan { skip: WeightId(0) },
    Rule::Wkv6 { bonus: WeightId(0) },
    Rule::Wkv7 { bonus: WeightId(0), removed: Columns { src: 0, first: 0 }, rate: Columns { src: 0, first: 0 } },
];

/// The shape of a case.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Heads.
    pub heads: usize,
    /// Key indices of a head.
    pub keys: usize,
    /// Value indices of a head.
    pub values: usize,
    /// Heads of keys; as many as heads where a rule has key indices of its own.
    pub key_heads: usize,
    /// [`RecurSpec::tiled`].
    pub tiled: bool,
}

/// Numbers that repeat late.
fn numbers(n: usize, seed: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|i| (((i * 37 + seed * 101) % 83) as f32 / 41.0 - 1.0) * scale).collect()
}

impl Case {
    /// Rows for a rule like this one; its columns and weights are other ones.
    pub fn new(like: Rule, shape: Shape, rows: usize) -> Case {
        let Shape { heads, keys, values, key_heads, tiled } = shape;
        let (k, v) = (key_heads * keys, heads * values);
        let at = |first| Columns::of(0, first);
        let weight = WeightId(0);
        let (steps, own) = match like {
            Rule::Delta { .. } | Rule::Ssd { .. } => (heads, heads),
            Rule::Scan { .. } => (v, v),
            Rule::Wkv6 { .. } | Rule::Wkv7 { .. } => (k, k),
        };
        let after = 2 * k + v + steps;
        let rule = match like {
            Rule::Delta { .. } => Rule::Delta { write: at(after), eps: 1e-6 },
            Rule::Wkv7 { .. } => Rule::Wkv7 { bonus: weight, removed: at(after), rate: at(after + k) },
            other => other,
        };
        let decays = if matches!(rule, Rule::Scan { .. }) { v * keys } else { heads };
        let width = (after + 2 * k.max(heads)).next_multiple_of(4);
        let (query, key, value, step) = (at(0), at(k), at(2 * k), at(2 * k + v));
        let (decay, bias) = (Some(weight), Some(weight));
        Case {
            spec: RecurSpec {
                state: 0,
                heads,
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
                rule,
            },
            width,
            source: numbers(rows * width, 1, 0.9),
            decay: numbers(decays, 2, 1.0).iter().map(|x| -0.1 - x.abs()).collect(),
            bias: numbers(heads, 3, 0.5),
            own: numbers(own, 4, 1.0),
        }
    }

    /// A state for each head, [key][value].
    pub fn zeros(&self) -> Vec<Vec<Vec<f64>>> {
        vec![vec![vec![0f64; self.spec.values]; self.spec.keys]; self.spec.heads]
    }

    /// Head, key and value of the number of a state at this place: there are blocks of 16 values, each with 16 values
    /// for each key; of [`Rule::Scan`] with the keys of each value.
    #[cfg(feature = "gpu")]
    pub fn entry(&self, at: usize) -> [usize; 3] {
        let (keys, values) = (self.spec.keys, self.spec.values);
        let (block, i) = (at / (keys * 16), at % (keys * 16));
        let (key, lane) = match self.spec.rule {
            Rule::Scan { .. } => (i % keys, i / keys),
            _ => (i / 16, i % 16),
        };
        [block * 16 / values, key, block * 16 % values + lane]
    }

    /// Takes the states through these rows; returns the results.
    pub fn through(&self, rows: Range<usize>, states: &mut [Vec<Vec<f64>>]) -> Vec<f64> {
        let spec = &self.spec;
        let (keys, values) = (spec.keys, spec.values);
        let mut out = Vec::new();
        for row in self.source[rows.start * self.width..rows.end * self.width].chunks_exact(self.width) {
            let (row, mut after) = (row.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), Vec::new());
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
                        let step = softplus(part(spec.step, h, 1)[0] + f64::from(self.bias[h]));
                        let w = (step * f64::from(self.decay[h])).exp();
                        let beta = 1.0 / (1.0 + (-part(write, h, 1)[0]).exp());
                        for j in 0..values {
                            let known = w * sum(state, &k, j);
                            (0..keys).for_each(|i| state[i][j] = w * state[i][j] + k[i] * beta * (v[j] - known));
                            out.push(sum(state, &q, j) / (keys as f64).sqrt());
                        }
                    }
                    Rule::Ssd { .. } => {
                        let step = softplus(part(spec.step, h, 1)[0] + f64::from(self.bias[h]));
                        let w = (step * f64::from(self.decay[h])).exp();
                        for j in 0..values {
                            (0..keys).for_each(|i| state[i][j] = w * state[i][j] + k[i] * step * v[j]);
                            out.push(sum(state, &q, j) + f64::from(self.own[h]) * v[j]);
                        }
                    }
                    Rule::Scan { .. } => {
                        for j in 0..values {
                            let at = h * values + j;
                            let step = softplus(part(spec.step, at, 1)[0]);
                            for i in 0..keys {
                                let w = (step * f64::from(self.decay[at * keys + i])).exp();
                                state[i][j] = w * state[i][j] + k[i] * step * v[j];
                            }
                            out.push(sum(state, &q, j) + f64::from(self.own[at]) * v[j]);
                        }
                    }
                    Rule::Wkv6 { .. } => {
                        let step = part(spec.step, h * keys, keys);
                        let own: f64 = (0..keys).map(|i| q[i] * k[i] * f64::from(self.own[h * keys + i])).sum();
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
                        let own: f64 = (0..keys).map(|i| q[i] * k[i] * f64::from(self.own[h * keys + i])).sum();
                        after.extend(v.iter().map(|v| own * v));
                    }
                }
            }
            out.extend(after);
        }
        out
    }
}
