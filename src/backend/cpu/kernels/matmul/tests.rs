//! Every format on every available instruction set, against an `f64` product over `quant::dequantize`.

use super::*;
use crate::quant::{dequantize, halves, put_halves};

const TYPES: [TensorType; 28] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::IQ4_NL,
    TensorType::MXFP4,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ1_S,
    TensorType::IQ1_M,
    TensorType::IQ2_XXS,
    TensorType::IQ2_XS,
    TensorType::IQ2_S,
    TensorType::IQ3_XXS,
    TensorType::IQ3_S,
    TensorType::IQ4_XS,
    TensorType::TQ1_0,
    TensorType::TQ2_0,
    TensorType::NVFP4,
    TensorType::Q1_0,
    TensorType::Q2_0,
];

/// A small deterministic generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// Uniform in -1..1.
    fn unit(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 30) as f32 - 1.0
    }
}

/// The largest whole number that multiplies a block's minimum field.
fn minimum_steps(ty: TensorType) -> f64 {
    match ty {
        TensorType::Q2_K => 15.0,
        TensorType::Q4_K | TensorType::Q5_K => 63.0,
        _ => 1.0,
    }
}

/// A matrix, packed and dequantised.
struct Matrix {
    ty: TensorType,
    n_in: usize,
    n_out: usize,
    panels: PackedMatrix,
    source: Vec<u8>,
    values: Vec<f32>,
}

impl Matrix {
    /// From source bytes.
    fn new(ty: TensorType, n_in: usize, n_out: usize, source: Vec<u8>) -> Matrix {
        let mut panels = PackedMatrix::new(ty, n_in, n_out).unwrap();
        let all = panels.n_panels();
        panels.pack(&source, 0..all).unwrap();
        let mut values = vec![0.0; n_in * n_out];
        dequantize(ty, &source, &mut values).unwrap();
        Matrix { ty, n_in, n_out, panels, source, values }
    }

    /// Random codes and scales of ordinary size and both signs.
    fn random(ty: TensorType, n_in: usize, n_out: usize) -> Matrix {
        let mut random = Random(ty as u64 * 1000 + (n_in + n_out) as u64);
        let mut source = Vec::new();
        for _ in 0..n_in * n_out / ty.block_len() {
            let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| random.next() as u8).collect();
            let half = half::f16::from_f32;
            match ty {
                TensorType::F32 => block.copy_from_slice(&random.unit().to_le_bytes()),
                TensorType::F16 => block.copy_from_slice(&half(random.unit()).to_le_bytes()),
                TensorType::BF16 => block.copy_from_slice(&half::bf16::from_f32(random.unit()).to_le_bytes()),
                TensorType::MXFP4 => block[0] = 120 + (random.next() % 8) as u8,
                _ => {
                    put_halves(ty, &mut block, || half(random.unit() * 0.01));
                }
            }
            source.extend(block);
        }
        Matrix::new(ty, n_in, n_out, source)
    }

    /// Every block the byte `code` throughout, with this scale (and minimum) in half-precision bits.
    fn uniform(ty: TensorType, n_in: usize, n_out: usize, code: u8, scale: u16) -> Matrix {
        let mut block = vec![code; ty.block_bytes()];
        put_halves(ty, &mut block, || half::f16::from_bits(scale));
        if ty == TensorType::MXFP4 {
            block[0] = scale as u8;
        }
        Matrix::new(ty, n_in, n_out, block.repeat(n_in * n_out / ty.block_len()))
    }

    /// A bound of the minimum's magnitude in the block of weight `k` of row `row`.
    fn minimum(&self, row: usize, k: usize) -> f64 {
        let Some(at) = halves(self.ty).get(1) else { return 0.0 };
        let block = (row * self.n_in + k) / self.ty.block_len() * self.ty.block_bytes();
        let bits = [self.source[block + at], self.source[block + at + 1]];
        half::f16::from_le_bytes(bits).to_f64().abs() * minimum_steps(self.ty)
    }

    /// Activation rows as the matrix takes them, and the values they stand for after quantisation.
    fn activations(&self, isa: Isa, x: &[f32]) -> (Vec<u32>, usize, Vec<f64>) {
        if self.panels.activation_kind() == ActivationKind::F32 {
            let exact = x.iter().map(|&x| f64::from(x)).collect();
            return (x.iter().map(|x| x.to_bits()).collect(), self.n_in * 4, exact);
        }
        let row_bytes = activations::row_bytes(self.n_in);
        let mut rows = Vec::new();
        let mut values = Vec::new();
        for x in x.chunks(self.n_in) {
            let mut row = vec![0u8; row_bytes];
            activations::quantize_row(isa, x, &mut row);
            for k in 0..self.n_in {
                let meta = self.n_in + k / 32 * 16;
                let scale = f32::from_ne_bytes(row[meta..meta + 4].try_into().unwrap());
                values.push(f64::from(scale) * f64::from(row[k] as i8));
            }
            rows.extend(row.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())));
        }
        (rows, row_bytes, values)
    }

    /// All rows times all columns; `out[c * n_out + row]`.
    fn multiply(&self, isa: Isa, rows: &[u32], row_bytes: usize) -> Vec<f32> {
        let count = rows.len() * 4 / row_bytes;
        let mut out = vec![f32::NAN; count * self.n_out];
        let x = Columns { data: rows.as_ptr().cast(), row_bytes, count };
        // SAFETY: the matrix is packed, `rows` holds `count` rows, `out` as many columns of `n_out`.
        unsafe { matmul(isa, &self.panels, 0..self.panels.n_panels(), x, out.as_mut_ptr(), self.n_out, false) };
        out
    }

    /// Compares with the exact product, over the activations as quantised and as they were.
    fn check(&self, isa: Isa, x: &[f32]) {
        let (rows, row_bytes, quantised) = self.activations(isa, x);
        let out = self.multiply(isa, &rows, row_bytes);
        let unit = f64::from(f32::EPSILON) / 2.0;
        for (c, (values, exact)) in quantised.chunks(self.n_in).zip(x.chunks(self.n_in)).enumerate() {
            // An activation is off by half a step of its block, and rounding its scale moves it a little more.
            let steps: Vec<f64> = exact
                .chunks(32)
                .map(|block| block.iter().fold(0f64, |a, &x| a.max(f64::from(x).abs())) / 127.0)
                .collect();
            for row in 0..self.n_out {
                let (mut product, mut original, mut size, mut loss) = (0.0, 0.0, 0.0, 0.0);
                for k in 0..self.n_in {
                    let w = f64::from(self.values[row * self.n_in + k]);
                    product += w * values[k];
                    original += w * f64::from(exact[k]);
                    // Scaled code and minimum are summed apart, so each counts with its own size.
                    size += (w.abs() + 2.0 * self.minimum(row, k)) * values[k].abs();
                    if self.panels.activation_kind() == ActivationKind::Q8 {
                        loss += w.abs() * steps[k / 32] * (0.5 + 1e-4);
                    }
                }
                // A quantised block is rounded at most 8 times before it joins a chain of two roundings a block; a
                // float product twice, in a chain of two roundings for every second weight.
                let roundings = if self.panels.activation_kind() == ActivationKind::Q8 {
                    8.0 + 2.0 * (self.n_in / 32) as f64
                } else {
                    4.0 + self.n_in as f64
                };
                // Below the normal range a rounding is off by half of the smallest number, at most.
                let bound = roundings * (unit * size + f64::from(f32::from_bits(1)));
                let got = f64::from(out[c * self.n_out + row]);
                let place = || format!("{} on {}, row {row}, column {c}", self.ty, isa.name());
                assert!((got - product).abs() <= bound, "{}: {got} for {product}, bound {bound}", place());
                assert!((got - original).abs() <= bound + loss, "{}: {got} for {original}, {loss}", place());
            }
        }
    }
}

fn random_columns(n_in: usize, count: usize) -> Vec<f32> {
    let mut random = Random(n_in as u64);
    (0..n_in * count).map(|_| random.unit() * 3.0).collect()
}

/// Row lengths worth a test: one block, several, and no multiple of 256 where the type allows it.
fn lengths(ty: TensorType) -> &'static [usize] {
    match ty.block_len() {
        256 => &[256, 768],
        128 => &[128, 384],
        64 => &[64, 192, 576],
        32 => &[32, 96, 544],
        _ => &[1, 2, 7, 300],
    }
}

#[test]
fn products_are_exact_up_to_f32_summation() {
    for ty in TYPES {
        for &n_in in lengths(ty) {
            for n_out in [1, 5, 16, 17, 33] {
                let matrix = Matrix::random(ty, n_in, n_out);
                for isa in Isa::available() {
                    matrix.check(isa, &random_columns(n_in, 3));
                }
            }
        }
    }
}

#[test]
fn extreme_codes_and_scales() {
    // Half-precision scales: zero, the smallest subnormal, one, the largest.
    for ty in TYPES.into_iter().filter(|&ty| put_halves(ty, &mut [0; 292], || half::f16::ONE)) {
        for code in [0x00, 0x7f, 0x80, 0xff, 0x88] {
            for scale in [0x0000, 0x0001, 0x3c00, 0x7bff] {
                let matrix = Matrix::uniform(ty, 256, 17, code, scale);
                for isa in Isa::available() {
                    let columns =
                        [[1.0; 256], [-1.0; 256], std::array::from_fn(|k| if k % 2 == 0 { 1.0 } else { -1.0 })];
                    matrix.check(isa, columns.as_flattened());
                }
            }
        }
    }
    for exponent in [0, 1, 2, 127, 200] {
        let matrix = Matrix::uniform(TensorType::MXFP4, 64, 3, 0x97, exponent);
        for isa in Isa::available() {
            matrix.check(isa, &random_columns(64, 2));
        }
    }
}

#[test]
fn a_result_does_not_depend_on_what_is_computed_beside_it() {
    const COLUMNS: usize = 33;
    for ty in TYPES {
        let n_in = *lengths(ty).last().unwrap();
        let matrix = Matrix::random(ty, n_in, 33);
        for isa in Isa::available() {
            let (rows, row_bytes, _) = matrix.activations(isa, &random_columns(n_in, COLUMNS));
            let words = row_bytes / 4;
            let alone: Vec<f32> = rows.chunks(words).flat_map(|row| matrix.multiply(isa, row, row_bytes)).collect();
            for count in 1..=COLUMNS {
                let together = matrix.multiply(isa, &rows[..count * words], row_bytes);
                assert!(together == alone[..count * 33], "{ty} on {}, {count} columns", isa.name());
            }
            for (column, row) in rows.chunks(words).enumerate().take(3) {
                let wanted = [32, 31, 0, 3, 3, 17, 15, 16];
                let mut some = [0.0; 8];
                // SAFETY: plain integers viewed as bytes.
                let bytes = unsafe { std::slice::from_raw_parts(row.as_ptr().cast(), row_bytes) };
                gather_rows(isa, &matrix.panels, &wanted, bytes, &mut some).unwrap();
                for (row, value) in wanted.into_iter().zip(some) {
                    assert_eq!(value.to_bits(), alone[column * 33 + row as usize].to_bits());
                }
            }
        }
    }
}

#[test]
fn a_range_of_panels_writes_its_rows_and_nothing_else() {
    for ty in [TensorType::Q4_K, TensorType::F16] {
        let matrix = Matrix::random(ty, 256, 40);
        for isa in Isa::available() {
            let (rows, row_bytes, _) = matrix.activations(isa, &random_columns(256, 5));
            let whole = matrix.multiply(isa, &rows, row_bytes);
            for (panels, written) in [(0..1, 0..16), (1..3, 16..40), (2..3, 32..40), (1..1, 0..0)] {
                for accumulate in [false, true] {
                    let stride = 43;
                    let mut out = vec![7.5f32; 5 * stride];
                    let x = Columns { data: rows.as_ptr().cast(), row_bytes, count: 5 };
                    // SAFETY: packed panels, five activation rows, five columns of 43 results.
                    unsafe { matmul(isa, &matrix.panels, panels.clone(), x, out.as_mut_ptr(), stride, accumulate) };
                    for (at, value) in out.into_iter().enumerate() {
                        let (column, row) = (at / stride, at % stride);
                        let expected = match (written.contains(&row), accumulate) {
                            (true, false) => whole[column * 40 + row],
                            (true, true) => 7.5 + whole[column * 40 + row],
                            (false, _) => 7.5,
                        };
                        assert_eq!(value, expected, "{ty} on {}, row {row}, column {column}", isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn rows_dequantise_to_the_numbers_of_the_source() {
    for ty in TYPES {
        for &n_in in lengths(ty) {
            let matrix = Matrix::random(ty, n_in, 19);
            for isa in Isa::available() {
                for (row, expected) in matrix.values.chunks(n_in).enumerate() {
                    let mut out = vec![f32::NAN; n_in];
                    matrix.panels.dequantize_row_on(isa, row, &mut out).unwrap();
                    assert_eq!(out, expected, "{ty} on {}, row {row}", isa.name());
                }
            }
        }
    }
}

#[test]
fn panels_packed_in_parts_by_threads_equal_the_whole() {
    let matrix = Matrix::random(TensorType::Q5_K, 512, 100);
    let parts = PackedMatrix::new(TensorType::Q5_K, 512, 100).unwrap();
    std::thread::scope(|scope| {
        for range in [0..2, 2..3, 3..7] {
            let rows = parts.rows_of(&range);
            let (parts, source) =
                (&parts, &matrix.source[rows.start * parts.row_bytes()..rows.end * parts.row_bytes()]);
            // SAFETY: the ranges are disjoint and nobody reads before the scope ends.
            scope.spawn(move || unsafe { parts.pack_shared(source, range) }.unwrap());
        }
    });
    for row in 0..100 {
        let mut out = vec![f32::NAN; 512];
        parts.dequantize_row(row, &mut out).unwrap();
        assert_eq!(out, matrix.values[row * 512..][..512]);
    }
}

#[test]
fn bad_activations_reach_the_result() {
    let matrix = Matrix::random(TensorType::Q8_0, 64, 16);
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = random_columns(64, 1);
            x[40] = bad;
            let (rows, row_bytes, _) = matrix.activations(isa, &x);
            assert!(matrix.multiply(isa, &rows, row_bytes).iter().all(|y| !y.is_finite()), "{bad} on {}", isa.name());
        }
    }
}

#[test]
fn impossible_requests_are_refused_by_name() {
    let refused = |ty, n_in, n_out| PackedMatrix::new(ty, n_in, n_out).err().map(|error| error.to_string()).unwrap();
    assert!(refused(TensorType::Q4_K, 128, 4).contains("4 rows of 128 weights of type Q4_K"));
    assert!(refused(TensorType::Q8_0, 0, 4).contains("of 0 weights"));
    assert!(refused(TensorType::Q8_K, 256, 1).contains("Q8_K"));
    assert!(refused(TensorType::F32, usize::MAX / 4, 1 << 20).contains("F32"));
    let mut panels = PackedMatrix::new(TensorType::Q8_0, 64, 20).unwrap();
    assert!(panels.pack(&[0; 100], 0..1).unwrap_err().to_string().contains("100 bytes for 16 rows of 68 bytes"));
    assert!(panels.pack(&[0; 1360], 0..3).unwrap_err().to_string().contains("0..3 of 2"));
    panels.pack(&[0; 1360], 0..2).unwrap();
    assert!(panels.dequantize_row(20, &mut [0.0; 64]).is_err());
    let row = vec![0u32; activations::row_bytes(64) / 4];
    // SAFETY: plain integers viewed as bytes.
    let bytes: &[u8] = unsafe { std::slice::from_raw_parts(row.as_ptr().cast(), row.len() * 4) };
    assert!(gather_rows(Isa::Portable, &panels, &[20], bytes, &mut [0.0]).is_err());
    assert!(gather_rows(Isa::Portable, &panels, &[1, 2], bytes, &mut [0.0]).is_err());
    assert!(gather_rows(Isa::Portable, &panels, &[1], &bytes[..64], &mut [0.0]).is_err());
}
