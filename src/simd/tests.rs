//! Every operation of every instruction set against its definition, one lane at a time.

use super::*;
use half::{bf16, f16};

/// What the operations are tried on.
struct Inputs {
    x: [f32; LANES],
    y: [f32; LANES],
    ints: [i32; LANES],
    sets: [u32; LANES],
    /// Bytes of four lanes' codes each, below 16 in `codes`.
    bytes: [u8; 64],
    codes: [u8; 64],
    table: [u8; 16],
    /// 16-bit floats of any bits but those of infinities and NaN.
    halves: [u16; LANES],
}

impl Inputs {
    fn new() -> Inputs {
        let bytes = std::array::from_fn(|i| (i * 37 + 11) as u8);
        Inputs {
            x: std::array::from_fn(|i| (i as f32 - 7.3) * 1.37),
            y: std::array::from_fn(|i| ((i * 7 % 16) as f32 - 6.1) * 3.3),
            ints: std::array::from_fn(|i| [i32::MIN, -5, -1, 0, 3, 7, i32::MAX, 5][i * 3 % 8]),
            sets: std::array::from_fn(|i| [0u32, 1, 2, 3, 0x8000_0000, 5, 6, 4][i % 8]),
            bytes,
            codes: bytes.map(|byte| byte & 15),
            table: std::array::from_fn(|i| (i * 17 + 3) as u8),
            halves: std::array::from_fn(|i: usize| {
                (i * 4001 % 0x7c00) as u16 | if i.is_multiple_of(3) { 0x8000 } else { 0 }
            }),
        }
    }
}

/// The results of all operations, named. A number stands as its bits.
type Results = Vec<(&'static str, Vec<u32>)>;

fn floats(lanes: [f32; LANES]) -> Vec<u32> {
    lanes.map(f32::to_bits).to_vec()
}

fn words(bytes: [u8; 64]) -> Vec<u32> {
    bytes.map(u32::from).to_vec()
}

struct Everything<'a>(&'a Inputs);

impl Kernel for Everything<'_> {
    type Output = Results;

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) -> Results {
        let Inputs { x, y, ints, sets, bytes, codes, table, halves } = self.0;
        let mut out: Results = Vec::new();
        // SAFETY: every pointer is of an array that is as long as what is read or written there.
        unsafe {
            let stored = |v: S::F| {
                let mut lanes = [0f32; LANES];
                simd.store(lanes.as_mut_ptr(), v);
                floats(lanes)
            };
            let stored_bytes = |v: S::B| {
                let mut bytes = [0u8; 64];
                simd.store_bytes(bytes.as_mut_ptr(), v);
                words(bytes)
            };
            let (a, b) = (simd.load(x.as_ptr()), simd.load(y.as_ptr()));
            out.push(("splat", stored(simd.splat(x[3]))));
            out.push(("add", stored(simd.add(a, b))));
            out.push(("sub", stored(simd.sub(a, b))));
            out.push(("mul", stored(simd.mul(a, b))));
            out.push(("div", stored(simd.div(a, b))));
            out.push(("max", stored(simd.max(a, b))));
            out.push(("min", stored(simd.min(a, b))));
            // Of either sign where it is zero.
            out.push(("round", stored(simd.add(simd.round(a), simd.splat(0.0)))));
            out.push(("pow2", stored(simd.pow2(simd.round(b)))));
            out.push(("select by a comparison", stored(simd.select(simd.lt(a, b), a, b))));
            out.push(("select by bits", stored(simd.select(simd.mask(0b1010_0110_0001_1011), a, b))));
            out.push(("sum", vec![simd.sum(a).to_bits()]));
            out.push(("largest", vec![simd.largest(a).to_bits()]));

            let (signed, unsigned) = (simd.load_i8(bytes.as_ptr()), simd.load_u8(bytes.as_ptr()));
            out.push(("i8", stored(simd.to_float(signed))));
            out.push(("u8", stored(simd.to_float(unsigned))));
            out.push(("shl_int", stored(simd.to_float(simd.shl_int(signed, 7)))));
            out.push(("splat_int", stored(simd.to_float(simd.splat_int(-77)))));

            let all = simd.load_bytes(bytes.as_ptr());
            out.push(("bytes", stored_bytes(all)));
            out.push(("no bytes", stored_bytes(simd.zero_bytes())));
            out.push(("and", stored_bytes(simd.and(all, 0x35))));
            out.push(("or", stored_bytes(simd.or(all, simd.load_bytes(codes.as_ptr())))));
            out.push(("shift left", stored_bytes(simd.and(simd.shift(all, 3), 0xf8))));
            out.push(("shift right", stored_bytes(simd.and(simd.shift(all, -4), 15))));
            out.push(("lookup", stored_bytes(simd.lookup(table, simd.load_bytes(codes.as_ptr())))));

            // Any address is allowed.
            simd.prefetch(std::ptr::null());
            simd.prefetch(bytes.as_ptr());

            out.push(("f16", stored(simd.load_f16(halves.as_ptr().cast()))));
            out.push(("bf16", stored(simd.load_bf16(halves.as_ptr().cast()))));
            let mut rounded = [0u16; LANES];
            simd.store_f16(rounded.as_mut_ptr().cast(), a);
            out.push(("to f16", rounded.map(u32::from).to_vec()));

            out.push(("within", vec![u32::from(simd.within(ints.as_ptr(), -1, 7))]));
            out.push(("within all", vec![u32::from(simd.within(ints.as_ptr(), i32::MIN, i32::MAX))]));
            out.push(("intersects", vec![u32::from(simd.intersects(sets.as_ptr(), 2))]));
            out.push(("intersects the top", vec![u32::from(simd.intersects(sets.as_ptr(), 0x8000_0001))]));
            out.push(("low halves above", vec![u32::from(simd.low_above(sets.as_ptr(), 7))]));

            for bits in [2, 3, 4, 5, 6, 7, 8] {
                // The greatest codes and activations, so that sums that are too narrow overflow.
                let top = simd.and(simd.or(all, simd.and(simd.shift(all, 1), 0xfe)), ((1 << bits) - 1) as u8);
                let activations: [i8; 32] =
                    std::array::from_fn(|i: usize| if i.is_multiple_of(5) { -127 } else { 127 - i as i8 });
                let columns = [activations.as_ptr(), activations[16..].as_ptr()];
                let dot = simd.dot(bits, [simd.splat_int(5); 2], &[[top; 4]], columns);
                out.push(("dot", dot.map(|dot| stored(simd.to_float(dot))).concat()));
                let [dot] = simd.dot(bits, [simd.splat_int(5)], &[[top; 4]], [columns[1]]);
                out.push(("dot of one column", stored(simd.to_float(dot))));
            }
        }
        out
    }
}

/// [`Everything`] from the definitions.
fn naive(inputs: &Inputs, signed_bytes: bool, one_signed: bool) -> Results {
    let Inputs { x, y, ints, sets, bytes, codes, table, halves } = inputs;
    let each = |f: &dyn Fn(usize) -> f32| floats(std::array::from_fn(f));
    let each_byte = |f: &dyn Fn(usize) -> u8| words(std::array::from_fn(f));
    let bits = |f: &dyn Fn(usize) -> bool| vec![(0..LANES).fold(0, |bits, i| bits | u32::from(f(i)) << i)];
    let selected = 0b1010_0110_0001_1011;
    let mut sums = x.to_vec();
    while sums.len() > 1 {
        let (low, high) = sums.split_at(sums.len() / 2);
        sums = low.iter().zip(high).map(|(low, high)| low + high).collect();
    }
    let mut out = vec![
        ("splat", each(&|_| x[3])),
        ("add", each(&|i| x[i] + y[i])),
        ("sub", each(&|i| x[i] - y[i])),
        ("mul", each(&|i| x[i] * y[i])),
        ("div", each(&|i| x[i] / y[i])),
        ("max", each(&|i| x[i].max(y[i]))),
        ("min", each(&|i| x[i].min(y[i]))),
        ("round", each(&|i| x[i].round_ties_even() + 0.0)),
        ("pow2", each(&|i| y[i].round_ties_even().exp2())),
        ("select by a comparison", each(&|i| if x[i] < y[i] { x[i] } else { y[i] })),
        ("select by bits", each(&|i| if selected >> i & 1 == 1 { x[i] } else { y[i] })),
        ("sum", vec![sums[0].to_bits()]),
        ("largest", vec![x.iter().copied().fold(f32::MIN, f32::max).to_bits()]),
        ("i8", each(&|i| f32::from(bytes[i] as i8))),
        ("u8", each(&|i| f32::from(bytes[i]))),
        ("shl_int", each(&|i| f32::from(bytes[i] as i8) * 128.0)),
        ("splat_int", each(&|_| -77.0)),
        ("bytes", words(*bytes)),
        ("no bytes", words([0; 64])),
        ("and", each_byte(&|i| bytes[i] & 0x35)),
        ("or", each_byte(&|i| bytes[i] | codes[i])),
        ("shift left", each_byte(&|i| bytes[i] << 3)),
        ("shift right", each_byte(&|i| bytes[i] >> 4)),
        ("lookup", each_byte(&|i| table[usize::from(codes[i])])),
        ("f16", each(&|i| f16::from_bits(halves[i]).to_f32())),
        ("bf16", each(&|i| bf16::from_bits(halves[i]).to_f32())),
        ("to f16", x.iter().map(|&x| u32::from(f16::from_f32(x).to_bits())).collect()),
        ("within", bits(&|i| (-1..=7).contains(&ints[i]))),
        ("within all", bits(&|_| true)),
        ("intersects", bits(&|i| sets[i] & 2 != 0)),
        ("intersects the top", bits(&|i| sets[i] & 0x8000_0001 != 0)),
        ("low halves above", bits(&|i| sets[i] & 0xffff > 7)),
    ];
    for width in [2, 3, 4, 5, 6, 7, 8] {
        let activation = |i: usize| if i.is_multiple_of(5) { -127 } else { 127 - i as i32 };
        let code = |lane: usize, byte: usize, signed: bool| {
            let byte = bytes[4 * lane + byte];
            let code = (byte | byte << 1) & ((1u16 << width) - 1) as u8;
            if width == 8 && signed { i32::from((code ^ BYTE_ZERO) as i8) } else { i32::from(code) }
        };
        let dot = |at: usize, signed: bool| {
            let term = |lane: usize, k: usize| code(lane, k % 4, signed) * activation(at + k);
            each(&|lane| (5 + (0..16).map(|k| term(lane, k)).sum::<i32>()) as f32)
        };
        out.push(("dot", [dot(0, signed_bytes), dot(16, signed_bytes)].concat()));
        out.push(("dot of one column", dot(16, one_signed)));
    }
    out
}

/// Whether an instruction set takes 8-bit codes as signed, with several columns and with one.
struct SignedBytes;

impl Kernel for SignedBytes {
    type Output = [bool; 2];

    #[inline(always)]
    fn run<S: Vector>(self, _: S) -> [bool; 2] {
        [S::SIGNED_BYTES, S::ONE_SIGNED]
    }
}

#[test]
fn every_instruction_set_does_what_the_operations_say() {
    let inputs = Inputs::new();
    for isa in Isa::available() {
        let [signed_bytes, one_signed] = dispatch(isa, SignedBytes);
        let expected = naive(&inputs, signed_bytes, one_signed);
        let found = dispatch(isa, Everything(&inputs));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.into_iter().zip(expected) {
            assert_eq!(found, expected, "{isa:?}");
        }
    }
}

/// x·y + z rounded once, which `f32::mul_add` is not with every C library (MinGW's rounds twice). The sum of doubles is
/// rounded to odd, after which a single has the same bits as without (Boldo and Melquiond, "Emulation of a FMA and
/// correctly rounded sums: proved algorithms using rounding to odd", 2008). For numbers far from overflow.
fn fused(x: f32, y: f32, z: f32) -> f32 {
    // Exact: 24 bits times 24 bits.
    let (product, z) = (f64::from(x) * f64::from(y), f64::from(z));
    let sum = product + z;
    // What the sum lost (Knuth's TwoSum).
    let of_z = sum - product;
    let lost = (product - (sum - of_z)) + (z - of_z);
    let bits = sum.to_bits();
    let is_odd = bits & 1 == 1;
    let odd = match (lost > 0.0) == (sum > 0.0) {
        _ if lost == 0.0 || is_odd => bits,
        true => bits + 1,
        false => bits - 1,
    };
    f64::from_bits(odd) as f32
}

#[test]
fn a_fused_product_is_rounded_once() {
    let ulp = f32::EPSILON;
    assert_eq!(fused(1.0 + ulp, 1.0 - ulp, -1.0), -ulp * ulp);
    assert_eq!(fused(ulp / 2.0, 1.0 + ulp, 1.0), 1.0 + ulp);
    // So near the middle between two singles that a double is the middle, from which it would go to the even one.
    let half = |ulps: f32| (ulps / 2.0 * (ulp + ulp * ulp), 1.0 - ulp);
    for (ulps, z) in [(1.0, 1.0 + ulp), (-1.0, -1.0 - ulp), (-0.5, 1.0 - ulp / 2.0), (0.5, ulp / 2.0 - 1.0)] {
        let (x, y) = half(ulps);
        assert_eq!(fused(x, y, z), z, "{z}");
        assert_ne!((f64::from(x) * f64::from(y) + f64::from(z)) as f32, z, "{z}: nothing is shown");
    }
}

/// A fused multiply-add rounds once, another one twice; nothing else is allowed.
#[test]
fn a_multiply_add_is_rounded_once_or_twice() {
    struct MultiplyAdd<'a>(&'a Inputs);

    impl Kernel for MultiplyAdd<'_> {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<S: Vector>(self, simd: S) -> [f32; LANES] {
            let mut lanes = [0f32; LANES];
            // SAFETY: arrays of one vector.
            unsafe {
                let (x, y) = (simd.load(self.0.x.as_ptr()), simd.load(self.0.y.as_ptr()));
                simd.store(lanes.as_mut_ptr(), simd.fma(x, y, y));
            }
            lanes
        }
    }

    let inputs = Inputs::new();
    let (x, y) = (inputs.x, inputs.y);
    let (once, twice) = (std::array::from_fn(|i| fused(x[i], y[i], y[i])), std::array::from_fn(|i| x[i] * y[i] + y[i]));
    for isa in Isa::available() {
        let found = dispatch(isa, MultiplyAdd(&inputs));
        assert_eq!(found, if isa == Isa::Portable { twice } else { once }, "{isa:?}");
    }
}

/// Three blocks and as many activations of four columns, with codes of some width.
struct Many {
    bits: u32,
    zero: u8,
    codes: [[u8; 32 * LANES]; 3],
    scales: [[f32; LANES]; 2],
    minimums: [[f32; LANES]; 2],
    x: [[i8; 3 * 32]; Unpacked::COLUMNS],
    /// Of each block the scale's bits, and the negated sums of its halves and of all.
    meta: [[[i32; 4]; 3]; Unpacked::COLUMNS],
}

impl Many {
    fn new(bits: u32) -> Many {
        let top = ((1u32 << bits) - 1) as u8;
        let half = |i: usize, step: usize| f16::from_f32((i * step % 17) as f32 * 0.013 - 0.1).to_f32();
        // As of a K type: a half times a byte.
        let lanes = |step: usize| std::array::from_fn(|i| half(i, step) * (255 - i * 29 % 256) as f32);
        let x: [[i8; 96]; Unpacked::COLUMNS] = std::array::from_fn(|c| {
            std::array::from_fn(|i| {
                if c == 0 || (i + c).is_multiple_of(5) { -127 } else { ((i * 53 + c * 19) % 255) as i8 }
            })
        });
        let x = x.map(|column| column.map(|x| x.max(-127)));
        let negated = |codes: &[i8]| -codes.iter().map(|&x| i32::from(x)).sum::<i32>();
        Many {
            bits,
            zero: 1 << (bits - 1),
            // The greatest and the least among them, and at first the greatest alone, as the first column has the least
            // activations alone: sums that are too narrow overflow.
            codes: std::array::from_fn(|b| {
                std::array::from_fn(|i| match (i / 7 + b) % 3 {
                    _ if b == 0 => top,
                    0 => top,
                    1 => 0,
                    _ => (i * 37) as u8 & top,
                })
            }),
            scales: [lanes(3), lanes(5)],
            minimums: [lanes(7), lanes(11)],
            x,
            meta: std::array::from_fn(|c| {
                std::array::from_fn(|b| {
                    let block = &x[c][32 * b..][..32];
                    let sums = [negated(&block[..16]), negated(&block[16..]), negated(block)];
                    [(0.37f32 + (b + c) as f32).to_bits().cast_signed(), sums[0], sums[1], sums[2]]
                })
            }),
        }
    }

    /// The code of weight `k` of a row, less its zero point: of each vector of 64 bytes four are a row's.
    fn weight(&self, block: usize, row: usize, k: usize) -> i32 {
        i32::from(self.codes[block][64 * (k / 4) + 4 * row + k % 4]) - i32::from(self.zero)
    }

    /// By definition.
    fn naive(&self, halves: bool, minimum: bool) -> Vec<u32> {
        let mut totals = Vec::new();
        for (x, meta) in self.x.iter().zip(&self.meta) {
            for row in 0..LANES {
                let mut total = row as f32;
                for (b, meta) in meta.iter().enumerate() {
                    let dot = |from: usize, to: usize| {
                        (from..to).map(|k| self.weight(b, row, k) * i32::from(x[32 * b + k])).sum::<i32>() as f32
                    };
                    let [first, second] = if halves { [dot(0, 16), dot(16, 32)] } else { [dot(0, 32), 0.0] };
                    let mut t = first * self.scales[0][row];
                    if halves {
                        t = fused(second, self.scales[1][row], t);
                    }
                    match (minimum, halves) {
                        (true, true) => {
                            t = fused(meta[1] as f32, self.minimums[0][row], t);
                            t = fused(meta[2] as f32, self.minimums[1][row], t);
                        }
                        (true, false) => t = fused(meta[3] as f32, self.minimums[0][row], t),
                        (false, _) => {}
                    }
                    total = fused(t, f32::from_bits(meta[0].cast_unsigned()), total);
                }
                totals.push(total.to_bits());
            }
        }
        totals
    }
}

impl Kernel for &Many {
    /// The totals by `multiply` with each set of its parameters; nothing where the level does not unpack.
    type Output = Vec<(bool, bool, Vec<u32>)>;

    #[inline(always)]
    fn run<S: Vector>(self, simd: S) -> Self::Output {
        if S::UNPACKS_FROM == usize::MAX {
            return Vec::new();
        }
        let zero = if S::SIGNED_BYTES && self.bits == 8 { 0 } else { self.zero };
        let mut blocks = [Unpacked::EMPTY; 3];
        for (block, bytes) in blocks.iter_mut().zip(&self.codes) {
            (block.scales, block.minimums) = (self.scales, self.minimums);
            // SAFETY: arrays of one vector, and the codes' eight.
            unsafe {
                let start = simd.splat(-f32::from_bits(S::START.cast_unsigned()));
                let offsets = simd.mul(simd.load(block.scales[0].as_ptr()), start);
                simd.store(block.offsets.as_mut_ptr(), offsets);
                let mut codes = [[simd.zero_bytes(); 4]; 2];
                for v in 0..8 {
                    // Where 8-bit codes are signed, they lie in a panel without their zero point.
                    let raised = if S::SIGNED_BYTES && self.bits == 8 { self.zero } else { 0 };
                    let lowered: [u8; 64] = std::array::from_fn(
                        #[inline(always)]
                        |i| bytes[64 * v + i].wrapping_sub(raised),
                    );
                    codes[v / 4][v % 4] = simd.load_bytes(lowered.as_ptr());
                }
                simd.unpack(self.bits, &codes, zero, &mut block.codes);
            }
        }
        let (mut x, mut meta) = ([std::ptr::null(); Unpacked::COLUMNS], [std::ptr::null(); Unpacked::COLUMNS]);
        for c in 0..Unpacked::COLUMNS {
            (x[c], meta[c]) = (self.x[c].as_ptr(), self.meta[c].as_ptr().cast());
        }
        let mut results = Vec::new();
        macro_rules! totals {
            ($short_scales:literal, $halves:literal, $minimum:literal) => {{
                let mut total = [[0f32; LANES]; Unpacked::COLUMNS];
                for column in &mut total {
                    for (row, total) in column.iter_mut().enumerate() {
                        *total = row as f32;
                    }
                }
                // SAFETY: three blocks of each column, and totals of four.
                unsafe {
                    simd.multiply::<$short_scales, $halves, $minimum>(
                        self.bits,
                        zero,
                        &blocks,
                        x,
                        meta,
                        total.as_mut_ptr().cast(),
                    );
                }
                results.push(($halves, $minimum, total.concat().iter().map(|total| total.to_bits()).collect()));
            }};
        }
        totals!(true, false, false);
        totals!(true, false, true);
        totals!(true, true, false);
        totals!(true, true, true);
        totals!(false, false, false);
        results
    }
}

#[test]
fn unpacked_blocks_are_multiplied_as_defined() {
    let mut levels = 0;
    for isa in Isa::available() {
        for bits in 2..=8 {
            let many = Many::new(bits);
            for (halves, minimum, found) in dispatch(isa, &many) {
                assert_eq!(found, many.naive(halves, minimum), "{isa:?}, {bits} bits, {halves} {minimum}");
                levels += 1;
            }
        }
    }
    let unpacks = [Isa::Avx2, Isa::DotProd, Isa::I8mm].iter().any(|isa| isa.is_available());
    assert_eq!(levels > 0, unpacks);
}

#[test]
fn the_chosen_level_is_available_and_portable_always_is() {
    let available = Isa::available();
    assert_eq!(available[0], Isa::Portable);
    assert!(available.contains(&Isa::detect()));
    assert!(available.windows(2).all(|pair| pair[0].score() < pair[1].score()));
}

#[test]
fn a_closure_runs_on_every_level() {
    let x = Inputs::new().x;
    for isa in Isa::available() {
        let doubled = compiled_for(
            isa,
            #[inline(always)]
            || x.map(|x| 2.0 * x),
        );
        assert_eq!(doubled, x.map(|x| 2.0 * x), "{isa:?}");
    }
}
