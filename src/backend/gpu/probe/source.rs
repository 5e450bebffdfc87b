//! Matrices of every type, made of random numbers, and the expected products with them.
//!
//! For the probes of a model's kernels and for the tests of all kernels. The weights are those of `quant::dequantize`,
//! sums and norms are computed in `f64`.

use crate::Result;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::ops::narrow::Narrow;
use crate::backend::gpu::weights::layout::GROUP;
use crate::backend::gpu::weights::matrix::{Loader, Matrix, Stored};
use crate::graph::Activation;
use crate::quant::{TensorType, dequantize, put_halves};

/// A small deterministic generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 30) as f32 - 1.0
    }

    pub fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// An f16 of at most this size; one in eight is subnormal, as the scales of ordinary matrices are.
    fn half(&mut self, size: f32) -> half::f16 {
        let size = if self.next().is_multiple_of(8) { 5e-5 } else { size };
        half::f16::from_f32(self.unit() * size)
    }
}

/// The greatest factor on a block's minimum.
fn minimum_steps(ty: TensorType) -> f64 {
    match ty {
        TensorType::Q4_1 | TensorType::Q5_1 => 1.0,
        TensorType::Q4_K | TensorType::Q5_K => 63.0,
        TensorType::Q2_K => 15.0,
        _ => 0.0,
    }
}

/// Random codes, scales of ordinary size and both signs.
pub struct Source {
    pub ty: TensorType,
    pub n_in: usize,
    pub n_out: usize,
    /// The bytes as in a file.
    pub bytes: Vec<u8>,
    /// The weights that they decode to.
    pub weights: Vec<f32>,
    /// The largest offset of a weight.
    offset: f64,
}

impl Source {
    /// A matrix of `n_out` rows of `n_in` weights from this seed.
    pub fn new(seed: u64, ty: TensorType, n_in: usize, n_out: usize) -> Result<Source> {
        let mut random = Random((seed << 32) + ty as u64 * 1000 + (n_in + n_out) as u64);
        let size = 0.01;
        let mut bytes = Vec::new();
        for _ in 0..n_in * n_out / ty.block_len() {
            let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| random.next() as u8).collect();
            match ty {
                TensorType::F32 => block.copy_from_slice(&random.unit().to_le_bytes()),
                TensorType::F16 => block.copy_from_slice(&random.half(1.0).to_le_bytes()),
                TensorType::BF16 => block.copy_from_slice(&half::bf16::from_f32(random.unit()).to_le_bytes()),
                TensorType::MXFP4 => block[0] = 120 + (random.next() % 8) as u8,
                _ => {
                    put_halves(ty, &mut block, || random.half(size));
                }
            }
            bytes.extend(block);
        }
        let mut weights = vec![0.0; n_in * n_out];
        dequantize(ty, &bytes, &mut weights)?;
        Ok(Source { ty, n_in, n_out, bytes, weights, offset: minimum_steps(ty) * f64::from(size) })
    }

    /// The matrix on a device.
    pub fn load(&self, gpu: &Gpu) -> Result<Matrix> {
        let mut ignored = |_| Ok(());
        Loader::new(gpu, &mut ignored).matrix("probe", self.ty, self.n_in, &[Stored::Here(&self.bytes)])
    }

    /// Every product with `rows` rows of `x`, with its tolerance: in any order of summation no term is rounded more
    /// than `n_in` times in the sum, and 64 times in scales, lanes and ends; an offset is a term of its own.
    pub fn product(&self, x: &[f32], rows: usize) -> Vec<(f64, f64)> {
        self.product_of(x, rows, None)
    }

    /// As [`Source::product`], of a kernel that makes rows narrow: weights that become halves are rounded, in a
    /// direction that the driver chooses.
    pub fn product_of(&self, x: &[f32], rows: usize, narrow: Option<Narrow>) -> Vec<(f64, f64)> {
        let half = if narrow == Some(Narrow::Halves) { 2f64.powi(-10) } else { 0.0 };
        let unit = (self.n_in + 64) as f64 * 2f64.powi(-24) + half;
        let mut all = Vec::with_capacity(rows * self.n_out);
        for x in x.chunks_exact(self.n_in).take(rows) {
            for w in self.weights.chunks_exact(self.n_in) {
                let (mut sum, mut size) = (0.0, 0.0);
                for (&w, &x) in w.iter().zip(x) {
                    let (w, x) = (f64::from(w), f64::from(x));
                    sum += w * x;
                    size += (w.abs() + 2.0 * self.offset) * x.abs();
                }
                all.push((sum, size * unit));
            }
        }
        all
    }
}

/// Rows of `n_in` values that become bytes without rounding: multiples of 1/128 up to 127/128, which is in each group.
pub fn coded(x: &[f32], n_in: usize) -> Vec<f32> {
    let group = |x: &[f32]| {
        let mut codes: Vec<f32> = x.iter().map(|x| (x * 127.0).round() / 128.0).collect();
        codes[x.len() / 2] = (127.0f32 / 128.0).copysign(x[0]);
        codes
    };
    x.chunks_exact(n_in).flat_map(|row| row.chunks(GROUP).flat_map(group)).collect()
}

/// `x` divided by its root mean square, times `norm`.
pub fn normed(x: &[f32], norm: &[f32], eps: f32) -> Vec<f32> {
    let row = |x: &[f32]| {
        let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
        let factor = 1.0 / (mean + f64::from(eps)).sqrt();
        x.iter().zip(norm).map(|(&x, &n)| (f64::from(x) * f64::from(n) * factor) as f32).collect::<Vec<_>>()
    };
    x.chunks_exact(norm.len()).flat_map(row).collect()
}

/// The activation with its tolerance, given its argument with the tolerance of that.
fn activation(act: Activation, (x, off): (f64, f64)) -> (f64, f64) {
    let unit = 2f64.powi(-23);
    let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
    // exp(z) may be off by (3 + 2 |z|) units, and z by four roundings.
    let exp = |z: f64| match sigmoid(z) * (1.0 - sigmoid(z)) * (3.0 + 6.0 * z.abs()) {
        exp if exp.is_finite() => exp,
        _ => 0.0,
    };
    let times_sigmoid = |z: f64| {
        // The slope is at most 1.13.
        (x * sigmoid(z), 1.13 * off + x.abs() * unit * (exp(z) + 8.0 * sigmoid(z)))
    };
    match act {
        Activation::Identity => (x, off),
        Activation::Silu => times_sigmoid(x),
        Activation::Gelu => times_sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)),
        Activation::ClampedSwiglu => times_sigmoid(1.702 * x),
        Activation::Sigmoid => (sigmoid(x), off / 4.0 + unit * (exp(x) + 8.0 * sigmoid(x))),
        Activation::Relu => (x.max(0.0), off),
        Activation::Relu2 => {
            let most = x.abs() + off;
            (x.max(0.0) * x.max(0.0), 2.0 * most * off + unit * 4.0 * most * most)
        }
        Activation::Xielu { positive, negative, linear, eps } => {
            let [p, n, b, eps] = [positive, negative, linear, eps].map(f64::from);
            let most = x.abs() + off;
            let y = if x > 0.0 { p * x * x } else { n * (x.min(eps).exp() - 1.0 - x) };
            let slope = 2.0 * p.abs() * most + n.abs() + b.abs();
            let roundings = 4.0 * p.abs() * most * most + n.abs() * (8.0 + 4.0 * most) + 4.0 * b.abs() * most;
            (y + b * x, slope * off + unit * roundings)
        }
    }
}

/// What an activation of `x` makes of `y`, with its tolerance, given both with theirs.
pub fn gated(act: Activation, x: (f64, f64), y: (f64, f64)) -> (f64, f64) {
    let (x, y) = match act {
        Activation::ClampedSwiglu => ((x.0.min(7.0), x.1), (y.0.clamp(-7.0, 7.0) + 1.0, y.1 + 2f64.powi(-21))),
        _ => (x, y),
    };
    let ((act, act_off), (y, y_off)) = (activation(act, x), y);
    (act * y, act_off * (y.abs() + y_off) + act.abs() * y_off + (act * y).abs() * 2f64.powi(-23))
}
