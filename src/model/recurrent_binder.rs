//! What layers that keep a state claim tensors with.

use super::binder::Block;
use super::keys::MAX_WIDTH;
use super::recurrent::{DeltaNet, Kind, Mamba, Mamba2, Recurrent, ShortConv};
use crate::Result;
use crate::graph::{Activation, Columns, ConvSpec, Linear, NormKind, NormSpec, RecurSpec, Rule, WeightId};

/// The keys of state space models.
struct Sizes {
    /// Rows that a convolution meets.
    taps: usize,
    /// Width of the inner row.
    inner: usize,
    /// Keys of a head.
    keys: usize,
    /// Heads, or in Mamba the width of the narrow step.
    heads: usize,
    /// Groups of heads that share keys.
    groups: usize,
}

impl Block<'_, '_> {
    /// The sizes of a layer with a state, by their keys.
    fn state_sizes(&self) -> Result<Sizes> {
        let keys = self.m.keys;
        let size = |key| keys.size(key, MAX_WIDTH);
        Ok(Sizes {
            taps: size("ssm.conv_kernel")?,
            inner: size("ssm.inner_size")?,
            keys: size("ssm.state_size")?,
            heads: size("ssm.time_step_rank")?,
            groups: keys.count("ssm.group_count", MAX_WIDTH)?.max(1),
        })
    }

    /// A state of so many numbers.
    fn state(&mut self, values: usize) -> usize {
        self.m.states.push(values);
        self.m.states.len() - 1
    }

    /// A convolution of `channels` columns, with a bias where the file has one.
    fn conv(&mut self, part: &str, taps: usize, channels: usize, act: Activation) -> Result<ConvSpec> {
        let stem = self.name(part);
        let weight = self.m.table.numbers(&format!("{stem}.weight"), taps.saturating_mul(channels))?;
        let bias = self.m.table.optional_vector(&format!("{stem}.bias"), channels)?;
        let mut spec = ConvSpec { state: 0, weight, bias, taps, first: 0, channels, act };
        spec.state = self.state(spec.state_values());
        Ok(spec)
    }

    /// Neighbouring rows of a matrix.
    fn rows(&mut self, part: &str, (n_in, of): (usize, usize), first: usize, n_out: usize) -> Result<Linear> {
        let name = format!("{}.weight", self.name(part));
        self.m.table.rows(&name, n_in, of, first, n_out).map(Linear::plain)
    }

    /// All numbers of a tensor of any shape.
    fn numbers(&mut self, part: &str, n: usize) -> Result<WeightId> {
        let name = self.name(part);
        self.m.table.numbers(&name, n)
    }

    /// A short convolution between gates.
    pub fn short_conv(&mut self) -> Result<Recurrent> {
        let (n, taps) = (self.m.h.n_embd, self.m.keys.size("shortconv.l_cache", MAX_WIDTH)?);
        let mut part = |i: usize| self.rows("shortconv.in_proj", (n, 3 * n), i * n, n);
        let (b, c, x) = (part(0)?, part(1)?, part(2)?);
        let conv = self.conv("shortconv.conv", taps, n, Activation::Identity)?;
        let output = self.linear("shortconv.out_proj", n, n)?;
        Ok(Recurrent { kind: Kind::ShortConv(ShortConv { b, c, x, conv }), output })
    }

    /// A gated delta net; `tiled` where a head reads key head h mod their number.
    pub fn delta_net(&mut self, tiled: bool) -> Result<Recurrent> {
        let n = self.m.h.n_embd;
        let Sizes { taps, inner, keys, heads, groups } = self.state_sizes()?;
        let values = inner / heads;
        let key_width = keys.saturating_mul(groups);
        let channels = key_width.saturating_mul(2).saturating_add(inner);
        let split = self.has("ssm_alpha.weight");
        let scalars = match split {
            true => vec![self.linear("ssm_alpha", n, heads)?, self.linear("ssm_beta", n, heads)?],
            false => vec![self.linear("ssm_ba", n, 2 * heads)?],
        };
        let write = if split { Columns::of(1, heads) } else { Columns::of(2, 0) };
        let mut spec = RecurSpec {
            state: 0,
            heads,
            keys,
            values,
            key_heads: groups,
            tiled,
            query: Columns::of(0, 0),
            key: Columns::of(0, key_width),
            value: Columns::of(0, 2 * key_width),
            step: Columns::of(1, 0),
            decay: Some(self.numbers("ssm_a", heads)?),
            bias: Some(self.numbers("ssm_dt.bias", heads)?),
            rule: Rule::Delta { write, eps: self.m.h.norm_eps },
        };
        let layer = DeltaNet {
            qkv: self.linear("attn_qkv", n, channels)?,
            conv: self.conv("ssm_conv1d", taps, channels, Activation::Silu)?,
            scalars,
            spec: {
                spec.state = self.state(spec.state_values());
                spec
            },
            norm: self.norm_of("ssm_norm", values)?,
            gate: self.linear("attn_gate", n, inner)?,
        };
        let output = self.linear("ssm_out", inner, n)?;
        Ok(Recurrent { kind: Kind::DeltaNet(Box::new(layer)), output })
    }

    /// A layer of Mamba-2, with a norm where the file has one.
    pub fn mamba2(&mut self) -> Result<Recurrent> {
        let n = self.m.h.n_embd;
        let Sizes { taps, inner, keys, heads, groups } = self.state_sizes()?;
        let values = inner / heads;
        let key_width = keys.saturating_mul(groups);
        let channels = key_width.saturating_mul(2).saturating_add(inner);
        let all = inner.saturating_add(channels).saturating_add(heads);
        let mut spec = RecurSpec {
            state: 0,
            heads,
            keys,
            values,
            key_heads: groups,
            tiled: false,
            query: Columns::of(0, inner + key_width),
            key: Columns::of(0, inner),
            value: Columns::of(0, 0),
            step: Columns::of(1, channels),
            decay: Some(self.numbers("ssm_a", heads)?),
            bias: Some(self.numbers("ssm_dt.bias", heads)?),
            rule: Rule::Ssd { skip: self.numbers("ssm_d", heads)? },
        };
        let norm = match self.has("ssm_norm.weight") {
            true => {
                let weight = Some(self.numbers("ssm_norm.weight", inner)?);
                Some((NormSpec { kind: NormKind::Rms, weight, bias: None, eps: self.m.h.norm_eps }, groups))
            }
            false => None,
        };
        let layer = Mamba2 {
            z: self.rows("ssm_in", (n, all), 0, inner)?,
            input: self.rows("ssm_in", (n, all), inner, channels + heads)?,
            conv: self.conv("ssm_conv1d", taps, channels, Activation::Silu)?,
            spec: {
                spec.state = self.state(spec.state_values());
                spec
            },
            norm,
        };
        let output = self.linear("ssm_out", inner, n)?;
        Ok(Recurrent { kind: Kind::Mamba2(Box::new(layer)), output })
    }

    /// A layer of Mamba; `bare_norms` where the narrow step, keys and queries are normalised without weights.
    pub fn mamba(&mut self, bare_norms: bool) -> Result<Recurrent> {
        let n = self.m.h.n_embd;
        let Sizes { taps, inner, keys, heads: rank, .. } = self.state_sizes()?;
        let norms = match (bare_norms, self.has("ssm_dt_norm.weight")) {
            (true, _) => Some([self.m.bare_norm(); 3]),
            (false, true) => Some([
                self.norm_of("ssm_dt_norm", rank)?,
                self.norm_of("ssm_b_norm", keys)?,
                self.norm_of("ssm_c_norm", keys)?,
            ]),
            (false, false) => None,
        };
        let mut spec = RecurSpec {
            state: 0,
            heads: 1,
            keys,
            values: inner,
            key_heads: 1,
            tiled: false,
            query: Columns::of(2, 0),
            key: Columns::of(1, 0),
            value: Columns::of(0, 0),
            step: Columns::of(3, 0),
            decay: Some(self.numbers("ssm_a", inner.saturating_mul(keys))?),
            bias: None,
            rule: Rule::Scan { skip: self.numbers("ssm_d", inner)? },
        };
        let layer = Mamba {
            z: self.rows("ssm_in", (n, 2 * inner), inner, inner)?,
            x: self.rows("ssm_in", (n, 2 * inner), 0, inner)?,
            conv: self.conv("ssm_conv1d", taps, inner, Activation::Silu)?,
            narrow: self.linear("ssm_x", inner, rank + 2 * keys)?,
            norms,
            step: self.linear("ssm_dt", rank, inner)?,
            spec: {
                spec.state = self.state(spec.state_values());
                spec
            },
        };
        let output = self.linear("ssm_out", inner, n)?;
        Ok(Recurrent { kind: Kind::Mamba(Box::new(layer)), output })
    }
}
