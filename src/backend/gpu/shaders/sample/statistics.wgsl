// What steps compute of all candidates, with the same bits as the host's (`sampling/statistics.rs`), and what they measure
// of one. Texts that include this include `units.wgsl`, too.

// The rounds of sums: one for the least logit, which only the row needs; then the sum of the distances, or of what the
// entropy is made of; then that of the squares, or of the weights. XTC weighs first and counts then.
const ROUND_LEAST = 0u;
const ROUND_FIRST = 1u;
const ROUND_LAST = 2u;

fn first_round(kind: u32) -> u32 {
    let two = kind == OP_DYNAMIC || kind == OP_TYPICAL || kind == OP_XTC || kind == OP_SIGMA;
    return select(ROUND_LAST, ROUND_FIRST, two);
}

// round(e^z * -z * 2^40), ties to even.
fn moment(given: f32) -> vec2<u32> {
    let z = select(-32.0f, given, given > -32.0f);
    let power = bitcast<u32>(exp_of(z));
    let distance = bitcast<u32>(z) & 0x7fffffffu;
    let product = mul32((power & 0x7fffffu) | 0x800000u, (distance & 0x7fffffu) | 0x800000u);
    // Of 48 bits nothing is left beyond.
    let right = min(260u - (power >> 23u) - (distance >> 23u), 60u);
    let odd = shr96(vec3<u32>(product, 0u), right).x & 1u;
    return shr96(add96(add96(vec3<u32>(product, 0u), low_bits96(right - 1u)), vec3<u32>(odd, 0u, 0u)), right);
}

// The natural logarithm of a * 2^exponent.
fn exact_ln(a: vec2<u32>, exponent: i32) -> f32 {
    let length = length96(vec3<u32>(a, 0u));
    let above = bitcast<u32>(shortened(vec3<u32>(a, 0u), 1 - i32(length))) > 0x3fb504f3u;
    let power = select(length - 1u, length, above);
    let one = shl64(vec2<u32>(1u, 0u), power);
    let size = select(sub64(a, one), sub64(one, a), above);
    let rest = shortened(vec3<u32>(size, 0u), -i32(power));
    let f = select(rest, -rest, above);
    var tail = 7.0376836e-2f;
    tail = plain(plain(tail * f) + -1.151461e-1f);
    tail = plain(plain(tail * f) + 1.1676999e-1f);
    tail = plain(plain(tail * f) + -1.2420141e-1f);
    tail = plain(plain(tail * f) + 1.4249323e-1f);
    tail = plain(plain(tail * f) + -1.6668058e-1f);
    tail = plain(plain(tail * f) + 2.0000715e-1f);
    tail = plain(plain(tail * f) + -2.4999994e-1f);
    tail = plain(plain(tail * f) + 3.333333e-1f);
    let square = plain(f * f);
    let halvings = f32(i32(power) + exponent);
    let low = plain(plain(tail * plain(f * square)) + plain(halvings * -2.1219444e-4f));
    return plain(plain(f + plain(low - plain(0.5f * square))) + plain(halvings * 0.6933594f));
}

// The mean distance from the best, of weights that sum to `mass`.
fn mean_distance(moments: vec2<u32>, mass: vec2<u32>) -> f32 {
    var rest = moments;
    var quotient = vec2<u32>(0u);
    // Bits 4 to -40; the mean is below 32.
    for (var i = 0u; i < 45u + zero; i++) {
        quotient = shl64(quotient, 1u);
        rest = shl64(rest, select(0u, 1u, i > 4u));
        let divisor = shl64(mass, 4u - min(i, 4u));
        if !less64(rest, divisor) {
            rest = sub64(rest, divisor);
            quotient.x |= 1u;
        }
    }
    return shortened(vec3<u32>(quotient, 0u), -40);
}

// scale / divisor, not below the least normal number; 0 where it is infinite.
fn divided(scale: f32, divisor: f32) -> f32 {
    let over = (bitcast<u32>(scale) & 0x7fffffu) >= (bitcast<u32>(divisor) & 0x7fffffu);
    let exponent = i32(bitcast<u32>(scale) >> 23u) - i32(bitcast<u32>(divisor) >> 23u);
    if exponent > 128 || (exponent == 128 && over) {
        return 0.0f;
    }
    if exponent < -126 || (exponent == -126 && !over) {
        return 1.17549435e-38f;
    }
    return divide(scale, divisor);
}

// The factor of a dynamic temperature; 0 where one candidate is to be kept.
fn dynamic_scale(op: u32, scale: f32, count: u32, total: vec2<u32>, moments: vec2<u32>) -> f32 {
    let entropy = plain(exact_ln(total, -40) + mean_distance(moments, total));
    var raised = 0.0f;
    if entropy > 0.0f {
        raised = min(divide(entropy, exact_ln(vec2<u32>(count, 0u), 0)), 1.0f);
    }
    let exponent = number(op, 3u);
    if exponent == 0.0f {
        raised = 1.0f;
    } else if exponent != 1.0f && raised > 0.0f {
        let bits = bitcast<u32>(raised);
        let mantissa = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
        let y = plain(exponent * exact_ln(mantissa, i32(bits >> 23u) - 150));
        raised = exp_of(-abs(y));
        if y > 0.0f {
            raised = divide(1.0f, raised);
        }
    }
    let temperature = plain(number(op, 1u) + plain(number(op, 2u) * raised));
    if temperature < 1.17549435e-38f {
        return 0.0f;
    }
    return divided(scale, temperature);
}

// The distance below the best at which min-p cuts after a dynamic temperature.
fn offset_after(ln_p: f32, scale: f32) -> f32 {
    if ln_p >= 0.0f {
        return 0.0f;
    }
    let offset = divided(-ln_p, scale);
    return select(-offset, bitcast<f32>(MINUS_INFINITY_BITS + zero), offset == 0.0f);
}

// What typical sampling orders by: less for candidates whose distance from the best is nearer to the mean.
fn typical_rank(z: f32, mean: f32) -> u32 {
    let apart = -abs(plain(-z - mean));
    let none = all(weight(z) == vec2<u32>(0u));
    return rank_of(bitcast<u32>(select(apart, -GREATEST, none)));
}

// The mass at which more than p = mantissa * 2^-shift of it is reached.
fn exceeded(total: vec2<u32>, mantissa: u32, shift: u32) -> vec2<u32> {
    let product = round53(mul96(round53(vec3<u32>(total, 0u)).xy, mantissa));
    var mass = vec2<u32>(0u);
    if shift < 96u {
        mass = shr96(product, shift);
    }
    return add64(mass, vec2<u32>(1u, 0u));
}

// The mass from which on a candidate is a top choice.
fn enough(op: u32, total: vec2<u32>) -> vec2<u32> {
    return select(vec2<u32>(0u), needed(total, word(op, 2u), word(op, 3u)), word(op, 5u) != 0u);
}

// What is added up of a candidate: see the rounds. `least` is the mass of a top choice, after XTC's first round.
fn measured(kind: u32, round: u32, logit: f32, best: f32, scale: f32, units: f32, least: vec2<u32>) -> vec2<u32> {
    if kind == OP_SIGMA {
        let distance = distance_of(logit, best, units);
        return select(mul32(distance, distance), vec2<u32>(distance, 0u), round == ROUND_FIRST);
    }
    let z = below(logit, best, scale);
    if round == ROUND_FIRST && kind != OP_XTC {
        return moment(z);
    }
    let mass = weight(z);
    if round == ROUND_LAST && kind == OP_XTC {
        return vec2<u32>(select(1u, 0u, less64(mass, least)), 0u);
    }
    return mass;
}
