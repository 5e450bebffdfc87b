// Logits' distances from the best as integers, and what is that many standard deviations below it: the same bits as the
// host's (`sampling/statistics.rs`).

fn length96(a: vec3<u32>) -> u32 {
    if a.z > 0u {
        return 96u - countLeadingZeros(a.z);
    }
    return select(32u - countLeadingZeros(a.x), 64u - countLeadingZeros(a.y), a.y > 0u);
}

// count in 0..64
fn shl64(a: vec2<u32>, count: u32) -> vec2<u32> {
    let bits = count & 31u;
    // Two shifts, since a shift by 32 is not one.
    let shifted = vec2<u32>(a.x << bits, (a.y << bits) | ((a.x >> 1u) >> (31u - bits)));
    return select(shifted, vec2<u32>(0u, shifted.x), count >= 32u);
}

// a * 2^exponent without the bits after the first 24.
fn shortened(a: vec3<u32>, exponent: i32) -> f32 {
    let length = length96(a);
    var mantissa = a.x << (24u - min(length, 24u));
    if length > 24u {
        mantissa = shr96(a, length - 24u).x;
    }
    let bits = (mantissa & 0x7fffffu) | (u32(126 + i32(length) + exponent) << 23u);
    return bitcast<f32>(select(bits, 0u, length == 0u));
}

// Half the distance of two logits: no difference is infinite.
fn half_range(best: f32, lowest: f32) -> f32 {
    return plain(plain(best * 0.5f) - plain(lowest * 0.5f));
}

// Units per half of a logit, of which the greatest distance has 2^21 to 2^22; 0 where all logits are about equal.
fn units_of(best: f32, lowest: f32) -> f32 {
    let range = half_range(best, lowest);
    let exponent = bitcast<u32>(range) >> 23u;
    return select(0.0f, bitcast<f32>((275u - exponent) << 23u), range >= 8.6736174e-19f);
}

// The distance of a logit from the best in units.
fn distance_of(logit: f32, best: f32, units: f32) -> u32 {
    return bitcast<u32>(plain(plain(half_range(best, logit) * units) + 8388608.0f)) & 0x7fffffu;
}

// The logit that is `times` standard deviations below the best of `count`, the least of which is `least`: from the sum of
// their distances and that of the squares.
fn lowest_within(
    times: f32,
    best: f32,
    least: f32,
    count: u32,
    sum: vec2<u32>,
    squares: vec2<u32>,
) -> f32 {
    let units = units_of(best, least);
    if units == 0.0f {
        return -GREATEST;
    }
    let high = mul96(sum, sum.y);
    let square = add96(mul96(sum, sum.x), vec3<u32>(0u, high.xy));
    let scaled = mul96(squares, count);
    let low = sub64(scaled.xy, square.xy);
    let variance = vec3<u32>(low, scaled.z - square.z - select(0u, 1u, less64(scaled.xy, square.xy)));
    if all(variance == vec3<u32>(0u)) {
        return best;
    }
    // 47 or 48 bits, by an even shift, have a root of 24.
    let length = i32(length96(variance));
    let shift = (length - 47) - ((length - 47) & 1);
    var part = variance.xy;
    if shift > 0 {
        part = shr96(variance, u32(shift));
    } else {
        part = shl64(part, u32(-shift));
    }
    var root = 0u;
    for (var bit = 0x800000u + zero; bit > 0u; bit >>= 1u) {
        let next = root | bit;
        root = select(next, root, less64(part, mul32(next, next)));
    }
    let distance = plain(times * divide(shortened(vec3<u32>(root, 0u, 0u), shift / 2), f32(count)));
    let range = half_range(best, least);
    if distance >= plain(range * units) {
        return -GREATEST;
    }
    let unit = bitcast<f32>(((bitcast<u32>(range) >> 23u) - 21u) << 23u);
    let lowest = plain(plain(best * 0.5f) - plain(distance * unit)) * 2.0f;
    return max(min(lowest, best), -GREATEST);
}
