// Numbers of the sampler: everything here gives the same bits as the host's sampler on every driver.
//
// A driver may fuse a product with a sum, or regroup sums. `plain` puts an exclusive-or with a zero that only the device
// knows after each operation, so that every product and every sum is rounded by itself, as on the host.
// 64-bit integers are vec2(low, high), 96-bit ones vec3. A key is vec2(token, rank): smaller keys come first.

var<private> zero: u32;

const INFINITY_BITS = 0x7f800000u;
const MINUS_INFINITY_BITS = 0xff800000u;
// Ranks fall as logits rise: of -inf, of +inf, of the greatest finite number, of what no candidate is beyond.
const RANK_DEAD = 0xff800000u;
const RANK_INFINITY = 0x007fffffu;
const RANK_GREATEST = 0x00800000u;
const END = vec2<u32>(0xffffffffu, 0xff7fffffu);
const GREATEST = 3.40282347e38f;

fn plain(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) ^ zero);
}

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn less64(a: vec2<u32>, b: vec2<u32>) -> bool {
    // Without branches, as everywhere here.
    return (a.y < b.y) | ((a.y == b.y) & (a.x < b.x));
}

fn float64(a: vec2<u32>) -> f32 {
    return f32(a.y) * 4294967296.0f + f32(a.x);
}

fn mul32(a: u32, b: u32) -> vec2<u32> {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let low = a0 * b0;
    let cross = a0 * b1;
    let other = a1 * b0;
    let middle = (low >> 16u) + (cross & 0xffffu) + (other & 0xffffu);
    return vec2<u32>(
        (low & 0xffffu) | (middle << 16u),
        a1 * b1 + (cross >> 16u) + (other >> 16u) + (middle >> 16u),
    );
}

fn mul96(a: vec2<u32>, b: u32) -> vec3<u32> {
    let low = mul32(a.x, b);
    let high = mul32(a.y, b);
    let middle = low.y + high.x;
    return vec3<u32>(low.x, middle, high.y + select(0u, 1u, middle < high.x));
}

fn add96(a: vec3<u32>, b: vec3<u32>) -> vec3<u32> {
    let low = add64(a.xy, b.xy);
    return vec3<u32>(low, a.z + b.z + select(0u, 1u, less64(low, a.xy)));
}

// The lowest `count` bits set, count in 0..=96.
fn low_bits96(count: u32) -> vec3<u32> {
    let in_word = min(vec3<u32>(count) - min(vec3<u32>(0u, 32u, 64u), vec3<u32>(count)), vec3<u32>(32u));
    let some = (vec3<u32>(1u) << (in_word & vec3<u32>(31u))) - vec3<u32>(1u);
    return select(some, vec3<u32>(0xffffffffu), in_word == vec3<u32>(32u));
}

// The lower 64 bits of a >> count, count in 0..96.
fn shr96(a: vec3<u32>, count: u32) -> vec2<u32> {
    var v = a;
    if count >= 64u {
        v = vec3<u32>(a.z, 0u, 0u);
    } else if count >= 32u {
        v = vec3<u32>(a.y, a.z, 0u);
    }
    let bits = count & 31u;
    // Two shifts, since a shift by 32 is not one.
    return vec2<u32>(
        (v.x >> bits) | ((v.y << 1u) << (31u - bits)),
        (v.y >> bits) | ((v.z << 1u) << (31u - bits)),
    );
}

// To 53 significant bits, ties to even: what a conversion to double precision keeps.
fn round53(a: vec3<u32>) -> vec3<u32> {
    var length = 32u - countLeadingZeros(a.x);
    if a.z > 0u {
        length = 96u - countLeadingZeros(a.z);
    } else if a.y > 0u {
        length = 64u - countLeadingZeros(a.y);
    }
    if length <= 53u {
        return a;
    }
    let drop = length - 53u;
    let even = shr96(a, drop).x & 1u;
    let nudged = add96(add96(a, low_bits96(drop - 1u)), vec3<u32>(even, 0u, 0u));
    return nudged & ~low_bits96(drop);
}

// The mass that top-p with p = mantissa * 2^-shift is to reach, computed in double precision as the host does: at least 1.
fn needed(total: vec2<u32>, mantissa: u32, shift: u32) -> vec2<u32> {
    let product = round53(mul96(round53(vec3<u32>(total, 0u)).xy, mantissa));
    if shift >= 96u || all(product == vec3<u32>(0u)) {
        return vec2<u32>(1u, 0u);
    }
    let mass = shr96(add96(product, low_bits96(shift)), shift);
    return select(mass, vec2<u32>(1u, 0u), all(mass == vec2<u32>(0u)));
}

// floor(total * (random + 0.5) / 2^32)
fn share_of(total: vec2<u32>, random: u32) -> vec2<u32> {
    let high = select(vec3<u32>(0u), vec3<u32>(0u, total), (random >> 31u) == 1u);
    return shr96(add96(mul96(total, (random << 1u) | 1u), high), 33u);
}

fn threefry(key: vec2<u32>, counter: vec2<u32>) -> vec2<u32> {
    var keys = array<u32, 3>(key.x, key.y, 0x1bd11bdau ^ key.x ^ key.y);
    var rotations = array<vec4<u32>, 2>(vec4<u32>(13u, 15u, 26u, 6u), vec4<u32>(17u, 29u, 16u, 24u));
    var x = counter + key;
    for (var group = 0u; group < 5u; group++) {
        let turn = rotations[group & 1u];
        for (var i = 0u; i < 4u; i++) {
            x.x += x.y;
            x.y = ((x.y << turn[i]) | (x.y >> (32u - turn[i]))) ^ x.x;
        }
        x += vec2<u32>(keys[(group + 1u) % 3u], keys[(group + 2u) % 3u] + group + 1u);
    }
    return x;
}

fn rank_of(bits: u32) -> u32 {
    let one_zero = select(bits, 0u, bits == 0x80000000u);
    return select(one_zero, 0x7fffffffu ^ one_zero, (one_zero >> 31u) == 0u);
}

fn bits_of(rank: u32) -> u32 {
    return select(0x7fffffffu ^ rank, rank, (rank >> 31u) == 1u);
}

fn logit_of(rank: u32) -> f32 {
    return bitcast<f32>(bits_of(rank));
}

fn rank_is_nan(rank: u32) -> bool {
    return (rank < RANK_INFINITY) | (rank > RANK_DEAD);
}

// +inf becomes the greatest finite number.
fn finite_rank(rank: u32) -> u32 {
    return select(rank, RANK_GREATEST, rank == RANK_INFINITY);
}

fn is_finite(bits: u32) -> bool {
    return (bits & INFINITY_BITS) != INFINITY_BITS;
}

// e^z for z in -32..=0; below, e^-32.
fn exp_of(given: f32) -> f32 {
    let z = select(-32.0f, given, given > -32.0f);
    let shifted = plain(plain(z * 1.4426950408889634f) + 12582912.0f);
    let n = plain(shifted - 12582912.0f);
    let r = plain(plain(z - plain(n * 0.6933594f)) - plain(n * -2.1219444e-4f));
    var tail = 1.9875691e-4f;
    tail = plain(plain(tail * r) + 1.3982e-3f);
    tail = plain(plain(tail * r) + 8.333452e-3f);
    tail = plain(plain(tail * r) + 4.1665796e-2f);
    tail = plain(plain(tail * r) + 1.6666665e-1f);
    tail = plain(plain(tail * r) + 0.5f);
    let power = bitcast<f32>((bitcast<u32>(shifted) << 23u) + 0x3f800000u);
    return plain(plain(plain(tail * plain(r * r)) + r) + 1.0f) * power;
}

// round(e^z * 2^40), ties to even.
fn weight(z: f32) -> vec2<u32> {
    let bits = bitcast<u32>(exp_of(z));
    let exponent = bits >> 23u;
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    let left = max(exponent, 110u) - 110u;
    let large = vec2<u32>(mantissa << left, (mantissa >> 1u) >> (31u - left));
    let right = clamp(110u - min(exponent, 109u), 1u, 25u);
    let whole = mantissa >> right;
    let rest = mantissa & ((1u << right) - 1u);
    let half = 1u << (right - 1u);
    let up = (rest > half) | ((rest == half) & ((whole & 1u) == 1u));
    let small = vec2<u32>(whole + select(0u, 1u, up), 0u);
    return select(small, large, exponent >= 110u);
}

// The distance from the best, in units of the temperature.
fn below(logit: f32, best: f32, scale: f32) -> f32 {
    return plain(plain(logit - best) * scale);
}

// The logit at which min-p cuts; `offset` is ln(p) times the temperature.
fn lowest_of(best: f32, offset: f32) -> f32 {
    // -inf is not computed with.
    let sum = select(-GREATEST, plain(best + offset), is_finite(bitcast<u32>(offset)));
    return max(min(sum, best), -GREATEST);
}

// a / b for positive finite numbers, rounded to nearest even; a driver's own division may be off by more.
fn divide(a: f32, b: f32) -> f32 {
    let exponents = vec2<u32>(bitcast<u32>(a), bitcast<u32>(b)) >> vec2<u32>(23u);
    let mantissas = (vec2<u32>(bitcast<u32>(a), bitcast<u32>(b)) & vec2<u32>(0x7fffffu)) | vec2<u32>(0x800000u);
    let smaller = mantissas.x < mantissas.y;
    var rest = select(mantissas.x, mantissas.x << 1u, smaller);
    let exponent = i32(exponents.x) - i32(exponents.y) + select(127, 126, smaller);
    if any(exponents == vec2<u32>(0u)) || exponent <= 0 || exponent >= 255 {
        return a / b;
    }
    // 24 bits and one more, which rounds.
    var quotient = 0u;
    for (var i = 0u; i < 25u + zero; i++) {
        quotient <<= 1u;
        if rest >= mantissas.y {
            rest -= mantissas.y;
            quotient |= 1u;
        }
        rest <<= 1u;
    }
    let up = (quotient & 1u) == 1u && (rest > 0u || (quotient & 2u) == 2u);
    // A carry out of the mantissa raises the exponent, which is then right.
    return bitcast<f32>((u32(exponent) << 23u) + ((quotient >> 1u) & 0x7fffffu) + select(0u, 1u, up));
}

// The natural logarithm of total / 2^40, for total >= 2^40.
fn ln_of(total: vec2<u32>) -> f32 {
    let value = float64(total);
    let bits = bitcast<u32>(value);
    var exponent = f32(i32(bits >> 23u) - 167);
    var mantissa = bitcast<f32>((bits & 0x7fffffu) | 0x3f800000u);
    if mantissa > 1.4142135f {
        mantissa *= 0.5f;
        exponent += 1.0f;
    }
    let s = (mantissa - 1.0f) / (mantissa + 1.0f);
    let s2 = s * s;
    let series = 2.0f * s * (1.0f + s2 * (0.33333333f + s2 * (0.2f + s2 * (0.14285714f + s2 * 0.11111111f))));
    return exponent * 0.69314718f + series;
}
