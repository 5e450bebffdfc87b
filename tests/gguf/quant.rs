//! Decoding against blocks that the Python package `gguf` decoded (committed in `quant_blocks.txt`, and fresh random
//! ones where the package is installed), and encoding against bounds that follow from each format.

use elizainference::quant::{TensorType, dequantize, quantize};
use std::io::Write;
use std::process::{Command, Stdio};

pub const DECODED: [TensorType; 28] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ4_NL,
    TensorType::MXFP4,
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

/// Those that the Python package does not decode.
const UNKNOWN_TO_PYTHON: [TensorType; 2] = [TensorType::Q1_0, TensorType::Q2_0];

const ENCODED: [TensorType; 8] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q5_0,
    TensorType::Q4_0,
    TensorType::Q4_K,
    TensorType::Q6_K,
];

/// SplitMix64: a fixed stream of test data.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Roughly normal, standard deviation 1.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }
}

pub fn decode(ty: TensorType, blocks: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; blocks.len() / ty.block_bytes() * ty.block_len()];
    dequantize(ty, blocks, &mut out).unwrap();
    out
}

fn encode(ty: TensorType, x: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    quantize(ty, x, &mut out).unwrap();
    out
}

fn there_and_back(ty: TensorType, x: &[f32]) -> Vec<f32> {
    decode(ty, &encode(ty, x))
}

fn rms_error(a: &[f32], b: &[f32]) -> f64 {
    let sum: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    (sum / a.len() as f64).sqrt()
}

/// Equal bit by bit, except that any NaN equals any other.
pub fn assert_same(ty: TensorType, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{ty}");
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{ty} weight {i}: {a:e} but {b:e}");
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn committed_blocks_decode_exactly() {
    let mut seen = Vec::new();
    for line in include_str!("quant_blocks.txt").lines().filter(|l| !l.starts_with('#')) {
        let mut fields = line.split(' ');
        let (name, block, weights) = (fields.next().unwrap(), fields.next().unwrap(), fields.next().unwrap());
        let ty = *DECODED.iter().find(|t| t.name() == name).unwrap();
        assert_same(ty, &decode(ty, &from_hex(block)), &floats(&from_hex(weights)));
        seen.push(ty);
    }
    for ty in DECODED.into_iter().filter(|ty| !UNKNOWN_TO_PYTHON.contains(ty)) {
        assert!(seen.contains(&ty), "{ty} has no committed block");
    }
}

/// Blocks small enough to decode by hand.
#[test]
fn blocks_worked_out_by_hand() {
    // d = 0.5 (f16 0x3800), code bytes 0x0f + 16·j: weight j is lo = 15 - 8 = 7 halves, weight 16 + j is (j - 8)
    // halves.
    let mut q4_0 = vec![0x00, 0x38];
    q4_0.extend((0..16).map(|j| 0x0f | j << 4));
    let y = decode(TensorType::Q4_0, &q4_0);
    assert!(y[..16].iter().all(|v| *v == 3.5));
    assert_eq!(y[16..], [-4.0, -3.5, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]);

    // d = 2, codes 127, -128, 1, -1, then zeros.
    let mut q8_0 = vec![0x00, 0x40, 0x7f, 0x80, 0x01, 0xff];
    q8_0.resize(34, 0);
    assert_eq!(decode(TensorType::Q8_0, &q8_0)[..5], [254.0, -256.0, 2.0, -2.0, 0.0]);

    // Q4_K: d = 1, dmin = 1; scales of sub-blocks 0..4 are 1, minimums 3; sub-block 4: low nibbles scale 2, min 5,
    // top bits of scale from byte 0 (0b10 -> 32), of min from byte 4 (0b01 -> 16). All codes 9.
    let mut q4_k = vec![0x00, 0x3c, 0x00, 0x3c];
    q4_k.extend([0b1000_0001, 1, 1, 1, 0b0100_0011, 3, 3, 3, 0x52, 0, 0, 0]);
    q4_k.resize(144, 0x99);
    let y = decode(TensorType::Q4_K, &q4_k);
    assert!(y[..128].iter().all(|v| *v == 9.0 - 3.0));
    assert!(y[128..160].iter().all(|v| *v == 34.0 * 9.0 - 21.0));
    assert!(y[160..].iter().all(|v| *v == 0.0));

    // Q6_K: d = 1, scale of group g is g - 8, all codes 0b10_0001 = 33, that is 1.
    let mut q6_k = vec![0x11; 128];
    q6_k.extend([0b1010_1010; 64]);
    q6_k.extend((0..16).map(|g: i8| (g - 8) as u8));
    q6_k.extend([0x00, 0x3c]);
    for (i, v) in decode(TensorType::Q6_K, &q6_k).iter().enumerate() {
        assert_eq!(*v, (i / 16) as f32 - 8.0, "weight {i}");
    }

    // MXFP4 with exponent 128: 2^(128 - 128) times the doubled E2M1 values.
    let mut mxfp4 = vec![128];
    mxfp4.extend((0..16).map(|j| j | j << 4));
    let y = decode(TensorType::MXFP4, &mxfp4);
    let e2m1 = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];
    assert_eq!(y[..16], e2m1);
    assert_eq!(y[16..], e2m1);

    // NVFP4: scales 1, 2^-9 (the smallest), 448 (the largest) and none; the low halves of 8 bytes are the first 8
    // weights.
    let mut nvfp4 = vec![0x38, 0x01, 0x7e, 0x7f];
    nvfp4.extend((0..4).flat_map(|_| (0..8).map(|j| j | (j + 8) << 4)));
    let y = decode(TensorType::NVFP4, &nvfp4);
    for (y, scale) in y.chunks(16).zip([1.0, 1.0 / 512.0, 448.0, 0.0]) {
        assert_eq!(y, e2m1.map(|x| x / 2.0 * scale));
    }

    // Q1_0, d = 0.5: bit 0 is minus, bit 1 plus, from the lowest bit on.
    let mut q1_0 = vec![0x00, 0x38];
    q1_0.extend([0b1010_0110; 16]);
    let y = decode(TensorType::Q1_0, &q1_0);
    assert!(y.chunks(8).all(|y| y == [-0.5, 0.5, 0.5, -0.5, -0.5, 0.5, -0.5, 0.5]));

    // Q2_0, d = 2: two bits less one, from the lowest bits on.
    let mut q2_0 = vec![0x00, 0x40];
    q2_0.extend([0b11_01_10_00; 16]);
    let y = decode(TensorType::Q2_0, &q2_0);
    assert!(y.chunks(4).all(|y| y == [-2.0, 2.0, 0.0, 4.0]));
}

/// What `python3` prints for a script and its standard input, or `None` where the packages are missing.
fn python(script: &str, args: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let known = Command::new("python3").args(["-c", "import gguf, numpy"]).stderr(Stdio::null()).status();
    if !known.is_ok_and(|s| s.success()) {
        return None;
    }
    let mut child = Command::new("python3")
        .args(["-W", "ignore", "-c", script])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feed = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    feed.join().unwrap().unwrap();
    assert!(output.status.success(), "python3 failed");
    Some(output.stdout)
}

#[test]
fn random_blocks_decode_as_the_python_package_decodes_them() {
    let script = "import sys, numpy as np, gguf.quants as q, gguf\n\
        b = np.frombuffer(sys.stdin.buffer.read(), np.uint8)\n\
        t = gguf.GGMLQuantizationType[sys.argv[1]]\n\
        b = b.view(np.float32) if t == 0 else b.view(np.float16) if t == 1 else b\n\
        sys.stdout.buffer.write(q.dequantize(b, t).astype(np.float32).tobytes())";
    for ty in DECODED.into_iter().filter(|ty| !UNKNOWN_TO_PYTHON.contains(ty)) {
        let blocks = Random(ty as u64).bytes(ty.block_bytes() * 600);
        let Some(out) = python(script, &[ty.name()], &blocks) else {
            eprintln!("skipped: python3 with the packages gguf and numpy is not installed");
            return;
        };
        assert_same(ty, &decode(ty, &blocks), &floats(&out));
    }
}

/// A bound on the root mean square error over `x`, from the steps that the format has for its range.
fn worst_rms(ty: TensorType, x: &[f32]) -> f64 {
    let largest = f64::from(x.iter().fold(0f32, |m, v| m.max(v.abs())));
    let range = f64::from(x.iter().fold(0f32, |m, v| m.max(*v)) - x.iter().fold(0f32, |m, v| m.min(*v)));
    match ty {
        TensorType::F32 => 0.0,
        TensorType::F16 => largest / 2048.0,
        TensorType::BF16 => largest / 256.0,
        // Half a step, and the rounding of the scale to 11 bits.
        TensorType::Q8_0 => largest / 127.0 * 0.51,
        // A whole step where the positive end has a level less.
        TensorType::Q5_0 => largest / 16.0,
        TensorType::Q4_0 => largest / 8.0,
        // Half a step of the sub-block, of the 6-bit scale (over 15 codes) and of the 6-bit minimum.
        TensorType::Q4_K => range / 15.0 / 2.0 + range / 63.0 / 2.0 + largest / 63.0 / 2.0,
        // A step at the positive end, and half a step of the 8-bit scale over 32 codes.
        TensorType::Q6_K => largest / 32.0 + largest / 128.0 / 2.0,
        _ => unreachable!(),
    }
}

#[test]
fn encoding_keeps_to_the_error_of_its_format() {
    let mut random = Random(7);
    for ty in ENCODED {
        let n = ty.block_len().max(32);
        for round in 0..300 {
            let size = 10f32.powf(random.unit() * 6.0 - 4.0);
            let shift = if round % 3 == 0 { random.normal() } else { 0.0 };
            let x: Vec<f32> = (0..n).map(|_| (random.normal() + shift) * size).collect();
            let y = there_and_back(ty, &x);
            let (error, bound) = (rms_error(&x, &y), worst_rms(ty, &x));
            assert!(error <= bound, "{ty} round {round}: error {error:e} above {bound:e}");
        }
    }
}

/// Encoding what a format can represent exactly loses nothing, where the scale is unique.
#[test]
fn representable_blocks_survive() {
    for (ty, lowest, highest) in [(TensorType::Q8_0, -127, 127), (TensorType::Q4_0, -8, 7), (TensorType::Q5_0, -16, 15)]
    {
        let mut random = Random(11);
        for _ in 0..100 {
            let d = half::f16::from_f32(random.unit() + 0.01).to_f32();
            let levels = (highest - lowest + 1) as u64;
            let mut x: Vec<f32> = (0..32).map(|_| (lowest + (random.next() % levels) as i32) as f32 * d).collect();
            x[5] = lowest as f32 * d;
            assert_eq!(there_and_back(ty, &x), x, "{ty}");
        }
    }
}

#[test]
fn zeros_stay_zeros_and_signs_survive() {
    for ty in ENCODED {
        let n = 256;
        assert!(there_and_back(ty, &vec![0.0; n]).iter().all(|v| *v == 0.0), "{ty}");
        for value in [1.0f32, -1.0, 3e4, -3e4] {
            let y = there_and_back(ty, &vec![value; n]);
            assert!(y.iter().all(|v| (v / value - 1.0).abs() < 0.01), "{ty}: {value} became {}", y[0]);
            // One weight among zeros.
            let mut x = vec![0.0; n];
            x[n - 1] = value;
            let y = there_and_back(ty, &x);
            // In Q4_K a zero beside a negative weight is code · scale - minimum, which may miss by the scale's
            // rounding.
            let slack = if ty == TensorType::Q4_K { value.abs() / 1000.0 } else { 0.0 };
            assert!(y[..n - 1].iter().all(|v| v.abs() <= slack), "{ty}");
            assert!((y[n - 1] / value - 1.0).abs() < 0.01, "{ty}: {value} became {}", y[n - 1]);
        }
    }
}

/// Below the smallest scale everything becomes zero or one smallest step; nothing becomes large, infinite or NaN.
#[test]
fn denormals_do_no_harm() {
    for ty in ENCODED {
        for size in [f32::from_bits(1), f32::MIN_POSITIVE, 1e-20, 1e-12, 1e-9, 6e-8, 1e-6] {
            let x: Vec<f32> = (0..256).map(|i| size * (i as f32 / 128.0 - 1.0)).collect();
            let y = there_and_back(ty, &x);
            // The smallest f16 is 2^-24: one step of it is the most by which a weight can be off.
            let bound = worst_rms(ty, &x).max(2f64.powi(-24));
            let error = rms_error(&x, &y);
            assert!(error <= bound, "{ty} at {size:e}: error {error:e} above {bound:e}");
        }
    }
}

#[test]
fn values_a_type_cannot_hold_are_refused_by_index() {
    for ty in ENCODED {
        let mut out = vec![1, 2, 3];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0; 256];
            x[77] = bad;
            let error = quantize(ty, &x, &mut out).unwrap_err().to_string();
            assert!(error.contains("Weight 77 "), "{ty}: {error}");
        }
        if ty != TensorType::F32 {
            let error = quantize(ty, &[f32::MAX; 256], &mut out).unwrap_err().to_string();
            assert!(error.contains("Weight 0 "), "{ty}: {error}");
        }
        assert_eq!(out, [1, 2, 3], "{ty} appended to its output before it failed");
    }
    // The largest weights that each type takes come back finite and near.
    for (ty, largest) in [
        (TensorType::F16, 65519.0),
        (TensorType::BF16, f32::from_bits(0x7f7f_7fff)),
        (TensorType::Q8_0, 127.0 * 65504.0),
        (TensorType::Q5_0, 16.0 * 65504.0),
        (TensorType::Q4_0, 8.0 * 65504.0),
        (TensorType::Q4_K, 63.0 * 65504.0),
        (TensorType::Q6_K, 32.0 * 127.0 * 65504.0),
    ] {
        let x: Vec<f32> = (0..256).map(|i| largest * if i % 5 == 0 { -1.0 } else { 1.0 }).collect();
        for (a, b) in x.iter().zip(there_and_back(ty, &x)) {
            assert!((b / a - 1.0).abs() < 0.15, "{ty}: {a} became {b}");
        }
    }
}

#[test]
fn lengths_and_types_are_checked() {
    for ty in DECODED {
        assert!(dequantize(ty, &[], &mut []).is_ok());
        let (bytes, weights) = (2 * ty.block_bytes(), 2 * ty.block_len());
        for (bytes, weights) in [(bytes - 1, weights), (bytes, weights - 1), (bytes, 0)] {
            let error = dequantize(ty, &vec![0; bytes], &mut vec![0.0; weights]).unwrap_err().to_string();
            assert!(error.contains(ty.name()), "{error}");
        }
    }
    for &ty in TensorType::ALL.iter().filter(|ty| !DECODED.contains(ty)) {
        let blocks = vec![0; ty.block_bytes()];
        let error = dequantize(ty, &blocks, &mut vec![0.0; ty.block_len()]).unwrap_err().to_string();
        assert!(error.starts_with("Not supported") && error.contains(ty.name()), "{error}");
        assert!(dequantize(ty, &[], &mut []).is_err());
    }
    for &ty in TensorType::ALL.iter().filter(|ty| !ENCODED.contains(ty)) {
        let error = quantize(ty, &[0.0; 256], &mut Vec::new()).unwrap_err().to_string();
        assert!(error.starts_with("Not supported") && error.contains(ty.name()), "{error}");
    }
    let error = quantize(TensorType::Q4_K, &[0.0; 255], &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("255") && error.contains("Q4_K"), "{error}");
}

/// Root mean square errors beside those of llama.cpp's own quantisers, where its library is at hand
/// (`PEER_LLAMA_DIR` names the folder with `libggml-base.so`).
#[test]
fn errors_are_no_worse_than_the_peers() {
    let library = std::env::var("PEER_LLAMA_DIR").map(|dir| format!("{dir}/libggml-base.so"));
    let Some(library) = library.ok().filter(|p| std::path::Path::new(p).exists()) else {
        eprintln!("skipped: PEER_LLAMA_DIR does not name a folder with libggml-base.so");
        return;
    };
    let script = "import sys, ctypes as c\n\
        x = sys.stdin.buffer.read(); n = len(x) // 4\n\
        f = c.CDLL(sys.argv[1]).ggml_quantize_chunk; f.restype = c.c_size_t\n\
        f.argtypes = [c.c_int, c.c_void_p, c.c_void_p, c.c_int64, c.c_int64, c.c_int64, c.c_void_p]\n\
        out = c.create_string_buffer(n * 4)\n\
        size = f(int(sys.argv[2]), x, out, 0, n // 256, 256, None)\n\
        sys.stdout.buffer.write(out.raw[:size])";
    type Sample = fn(&mut Random) -> f32;
    let samples: [(&str, Sample); 4] = [
        ("normal", |r| r.normal() * 0.02),
        ("uniform", |r| r.unit() - 0.5),
        ("heavy-tailed", |r| r.normal().powi(3) * 0.01),
        ("shifted", |r| r.normal() * 0.02 + 0.03),
    ];
    let mut worse = Vec::new();
    for ty in [TensorType::Q8_0, TensorType::Q5_0, TensorType::Q4_0, TensorType::Q4_K, TensorType::Q6_K] {
        for (name, sample) in samples {
            let mut random = Random(ty as u64);
            let x: Vec<f32> = (0..256 * 400).map(|_| sample(&mut random)).collect();
            let input: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
            let Some(theirs) = python(script, &[&library, &(ty as u32).to_string()], &input) else {
                eprintln!("skipped: python3 with the packages gguf and numpy is not installed");
                return;
            };
            let (ours, theirs) = (rms_error(&x, &there_and_back(ty, &x)), rms_error(&x, &decode(ty, &theirs)));
            let line = format!("{ty:5} {name:12}: ours {ours:.6e}, peer {theirs:.6e}, ratio {:.4}", ours / theirs);
            eprintln!("{line}");
            if ours > theirs {
                worse.push(line);
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}
