//! What layers that keep a state claim tensors with.

use super::binder::Block;
use super::keys::MAX_WIDTH;
use super::layer::FeedForward;
use super::recurrent::{ChannelMix, DeltaNet, Kind, Mamba, Mamba2, Recurrent, Rwkv6, Rwkv7, ShortConv};
use crate::graph::{Activation, Columns, ConvSpec, Linear, NormKind, NormSpec, RecurSpec, Rule, WeightId};
use crate::{Error, Result};

/// The least width of PLaMo 2's narrow step, which is a sixteenth of the embedding's.
const LEAST_RANK: usize = 64;

/// What the norm of a head after a time mix adds to the variance.
const HEAD_EPS: f32 = 64e-5;

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
        let mut spec = ConvSpec { state: 0, weight: Some(weight), bias, taps, first: 0, channels, act };
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
            input: vec![
                self.rows("ssm_in", (n, 2 * inner), inner, inner)?,
                self.rows("ssm_in", (n, 2 * inner), 0, inner)?,
            ],
            conv: self.conv("ssm_conv1d", taps, inner, Activation::Silu)?,
            narrow: self.linear("ssm_x", inner, rank + 2 * keys)?,
            firsts: [0, rank, rank + keys],
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

    /// The layer of PLaMo 2 with a state: that of Mamba-2, with one key head, from the parts of Mamba.
    pub fn plamo2(&mut self) -> Result<Recurrent> {
        let n = self.m.h.n_embd;
        let Sizes { taps, inner, keys, heads, .. } = self.state_sizes()?;
        let (values, rank) = (inner / heads, LEAST_RANK.max(n / 16));
        let norms =
            [self.norm_of("ssm_dt_norm", rank)?, self.norm_of("ssm_b_norm", keys)?, self.norm_of("ssm_c_norm", keys)?];
        let mut spec = RecurSpec {
            state: 0,
            heads,
            keys,
            values,
            key_heads: 1,
            tiled: false,
            query: Columns::of(2, 0),
            key: Columns::of(1, 0),
            value: Columns::of(0, 0),
            step: Columns::of(3, 0),
            decay: Some(self.numbers("ssm_a", heads)?),
            bias: None,
            rule: Rule::Ssd { skip: self.numbers("ssm_d", heads)? },
        };
        let layer = Mamba {
            input: vec![self.linear("ssm_in", n, 2 * inner)?],
            conv: self.conv("ssm_conv1d", taps, inner, Activation::Silu)?,
            narrow: self.linear("ssm_x", inner, rank + 2 * keys)?,
            firsts: [2 * keys, 0, keys],
            norms: Some(norms),
            step: self.linear("ssm_dt", rank, heads)?,
            spec: {
                spec.state = self.state(spec.state_values());
                spec
            },
        };
        let output = self.linear("ssm_out", inner, n)?;
        Ok(Recurrent { kind: Kind::Mamba(Box::new(layer)), output })
    }

    /// The difference between a token's row and the one before it.
    fn shift(&mut self) -> ConvSpec {
        let channels = self.m.h.n_embd;
        let mut spec =
            ConvSpec { state: 0, weight: None, bias: None, taps: 2, first: 0, channels, act: Activation::Identity };
        spec.state = self.state(spec.state_values());
        spec
    }

    /// One of the vectors of a tensor.
    fn vector_of(&mut self, part: &str, of: usize, at: usize) -> Result<WeightId> {
        let (name, n) = (self.name(part), self.m.h.n_embd);
        self.m.table.of_vectors(&name, n, of, at)
    }

    /// Two matrices with a row of `rank` between them, and what is added to the second's result.
    fn by_way_of(&mut self, parts: [&str; 2], rank: usize, added: Option<&str>) -> Result<[Linear; 2]> {
        let n = self.m.h.n_embd;
        let [down, up] = [self.linear(parts[0], n, rank)?, self.linear(parts[1], rank, n)?];
        let bias = added.map(|part| self.numbers(part, n)).transpose()?;
        Ok([down, Linear { bias: bias.or(up.bias), ..up }])
    }

    /// The heads of a time mix: their number and width.
    fn wkv_heads(&self) -> Result<(usize, usize)> {
        let (n, width) = (self.m.h.n_embd, self.m.keys.size("wkv.head_size", MAX_WIDTH)?);
        match n.is_multiple_of(width) {
            true => Ok((n / width, width)),
            false => Err(Error::Model(format!("Key `wkv.head_size` is {width}, which does not divide the width {n}"))),
        }
    }

    /// A recurrence over keys and values of one width, whose sources are queries, keys, values, decays and what the
    /// rule names after them.
    fn wkv(&mut self, (heads, width): (usize, usize), rule: Rule) -> RecurSpec {
        let mut spec = RecurSpec {
            state: 0,
            heads,
            keys: width,
            values: width,
            key_heads: heads,
            tiled: false,
            query: Columns::of(0, 0),
            key: Columns::of(1, 0),
            value: Columns::of(2, 0),
            step: Columns::of(3, 0),
            decay: None,
            bias: None,
            rule,
        };
        spec.state = self.state(spec.state_values());
        spec
    }

    /// The norm of each head after a time mix.
    fn wkv_norm(&mut self) -> Result<NormSpec> {
        Ok(NormSpec { eps: HEAD_EPS, ..self.norm_of("time_mix_ln", self.m.h.n_embd)? })
    }

    /// The time mix of RWKV-6.
    pub fn rwkv6(&mut self) -> Result<Recurrent> {
        let (n, keys) = (self.m.h.n_embd, self.m.keys);
        let (rank, decay_rank) =
            (keys.size("time_mix_extra_dim", MAX_WIDTH)?, keys.size("time_decay_extra_dim", MAX_WIDTH)?);
        let heads = self.wkv_heads()?;
        let second = self.name("time_mix_w2.weight");
        let factors = |block: &mut Self, at: usize| -> Result<Linear> {
            let weight = block.m.table.of_stack(&second, (rank, n), 5, at)?;
            let bias = Some(block.vector_of("time_mix_lerp_fused.weight", 5, at)?);
            Ok(Linear { bias, ..Linear::plain(weight) })
        };
        let layer = Rwkv6 {
            shift: self.shift(),
            mix: self.vector_of("time_mix_lerp_x.weight", 1, 0)?,
            narrow: self.linear("time_mix_w1", n, 5 * rank)?,
            factors: [factors(self, 0)?, factors(self, 1)?, factors(self, 2)?, factors(self, 3)?, factors(self, 4)?],
            key: self.linear("time_mix_key", n, n)?,
            value: self.linear("time_mix_value", n, n)?,
            query: self.linear("time_mix_receptance", n, n)?,
            gate: self.linear("time_mix_gate", n, n)?,
            decay: self.by_way_of(
                ["time_mix_decay_w1", "time_mix_decay_w2"],
                decay_rank,
                Some("time_mix_decay.weight"),
            )?,
            spec: {
                let bonus = self.numbers("time_mix_first.weight", n)?;
                self.wkv(heads, Rule::Wkv6 { bonus })
            },
            norm: self.wkv_norm()?,
        };
        let output = self.linear("time_mix_output", n, n)?;
        Ok(Recurrent { kind: Kind::Rwkv6(Box::new(layer)), output })
    }

    /// The time mix of RWKV-7.
    pub fn rwkv7(&mut self) -> Result<Recurrent> {
        let (n, keys) = (self.m.h.n_embd, self.m.keys);
        let rank = |of: &str| keys.size(&format!("attention.{of}_lora_rank"), MAX_WIDTH);
        let (decay, rate, gate, values) = (rank("decay")?, rank("iclr")?, rank("gate")?, rank("value_residual_mix")?);
        let heads = self.wkv_heads()?;
        let mut mixes = [WeightId(0); 6];
        for (at, mix) in mixes.iter_mut().enumerate() {
            *mix = self.vector_of("time_mix_lerp_fused.weight", 6, at)?;
        }
        let first_values = match self.il {
            0 => {
                // Files have them, of any width, and nobody reads them.
                (0..3).for_each(|i| self.m.table.ignore(&format!("blk.0.time_mix_v{i}.")));
                None
            }
            _ => Some(self.by_way_of(["time_mix_v1", "time_mix_v2"], values, Some("time_mix_v0.weight"))?),
        };
        let layer = Rwkv7 {
            shift: self.shift(),
            mixes,
            query: self.linear("time_mix_receptance", n, n)?,
            key: self.linear("time_mix_key", n, n)?,
            value: self.linear("time_mix_value", n, n)?,
            decay: self.by_way_of(["time_mix_w1", "time_mix_w2"], decay, Some("time_mix_w0.weight"))?,
            rate: self.by_way_of(["time_mix_a1", "time_mix_a2"], rate, Some("time_mix_a0.weight"))?,
            gate: self.by_way_of(["time_mix_g1", "time_mix_g2"], gate, None)?,
            first_values,
            removed: self.numbers("time_mix_k_k.weight", n)?,
            rated: self.numbers("time_mix_k_a.weight", n)?,
            spec: {
                let bonus = self.numbers("time_mix_r_k.weight", n)?;
                self.wkv(heads, Rule::Wkv7 { bonus, removed: Columns::of(4, 0), rate: Columns::of(5, 0) })
            },
            norm: self.wkv_norm()?,
        };
        let output = self.linear("time_mix_output", n, n)?;
        Ok(Recurrent { kind: Kind::Rwkv7(Box::new(layer)), output })
    }

    /// The channel mix of RWKV, with a gate where the file has one.
    pub fn channel_mix(&mut self) -> Result<FeedForward> {
        let (n, n_ff) = (self.m.h.n_embd, self.n_ff()?);
        let gate = match self.has("channel_mix_receptance.weight") {
            true => {
                let mix = self.vector_of("channel_mix_lerp_r.weight", 1, 0)?;
                Some((mix, self.linear("channel_mix_receptance", n, n)?))
            }
            false => None,
        };
        Ok(FeedForward::Channels(Box::new(ChannelMix {
            shift: self.shift(),
            mix: self.vector_of("channel_mix_lerp_k.weight", 1, 0)?,
            key: self.linear("channel_mix_key", n, n_ff)?,
            value: self.linear("channel_mix_value", n_ff, n)?,
            gate,
        })))
    }
}
