// One head in the hands of a workgroup: thread t holds values 4t to 4t + 3, threads beyond the head zeros. With ROPE the kernel
// declares `turns`, the frequencies of a rotary embedding; with KEYS the cache. Every function is called by all threads.

//#if ROPE
//#include ops/rope_angle

var<workgroup> line: array<f32, 4u * THREADS>;

// The head with ROT values, from FIRST on, rotated by a position's angles (RoPE).
fn turned(t: u32, x: vec4<f32>, position: i32, magnitude: f32) -> vec4<f32> {
    workgroupBarrier();
    for (var e = 0u; e < 4u; e++) {
        line[4u * t + e] = x[e];
    }
    workgroupBarrier();
    var y = x;
    for (var e = 0u; e < 4u; e++) {
        // Wraps to a large number before FIRST.
        let i = 4u * t + e - FIRST;
        if (i < ROT) {
//#if NEOX
            let pair = i % (ROT / 2u);
            let other = pair + ROT / 2u;
            let first = line[FIRST + pair];
            let second = line[FIRST + other];
//#else
            let pair = i / 2u;
            let other = i | 1u;
            let first = line[FIRST + other - 1u];
            let second = line[FIRST + other];
//#endif
            let cs = rope_angle(position, turns[pair]) * magnitude;
            y[e] = select(first * cs.x - second * cs.y, first * cs.y + second * cs.x, i == other);
        }
    }
    return y;
}
//#endif

//#if KEYS
//#include ops/kv

//#if Q8
var<workgroup> largest: array<u32, THREADS>;

// Quants and the bits of their group's scale.
fn quantized(t: u32, x: vec4<f32>) -> vec2<u32> {
    // Magnitudes compare like their bits, with infinity and NaN on top.
    let bits = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    workgroupBarrier();
    largest[t] = max(max(bits.x, bits.y), max(bits.z, bits.w));
    workgroupBarrier();
    var most = 0u;
    for (var i = t & ~7u; i <= (t | 7u); i++) {
        most = max(most, largest[i]);
    }
    if (most >= 0x7f800000u) {
        return vec2<u32>(0u, 0x7fc00000u);
    }
    let scale = bitcast<f32>(most) / 127.0;
    if (scale < 1.0e-30) {
        return vec2<u32>(0u, 0u);
    }
    let quants = clamp(round(x * (1.0 / scale)), vec4<f32>(-127.0), vec4<f32>(127.0));
    return vec2<u32>(pack4xI8(vec4<i32>(quants)), bitcast<u32>(scale));
}
//#endif

//#if F16
//#include ops/near_half

// A number beyond the range becomes the largest finite one; NaN stays.
fn halves(x: vec4<f32>) -> vec2<u32> {
    let finite = clamp(near_half(x), vec4<f32>(-65504.0), vec4<f32>(65504.0));
    let y = select(finite, x, is_nan(x));
    return vec2<u32>(pack2x16float(y.xy), pack2x16float(y.zw));
}
//#endif

fn load_key(t: u32, head: u32, cell: u32) -> vec4<f32> {
    if (t >= DK4) {
        return vec4<f32>(0.0);
    }
    let at = key_at(head, cell);
    let x = key_numbers(keys[at + t * BLOCK]);
//#if K_Q8
    return x * bitcast<f32>(keys[at + (DK4 + t / 8u) * BLOCK]);
//#else
    return x;
//#endif
}

fn store_key(t: u32, head: u32, cell: u32, x: vec4<f32>) {
    let at = key_at(head, cell);
//#if K_Q8
    let unit = quantized(t, x);
    if (t < DK4) {
        keys[at + t * BLOCK] = unit.x;
        if (t % 8u == 0u) {
            keys[at + (DK4 + t / 8u) * BLOCK] = unit.y;
        }
    }
//#endif
//#if K_F16
    if (t < DK4) {
        keys[at + t * BLOCK] = halves(x);
    }
//#endif
//#if K_F32
    if (t < DK4) {
        keys[at + t * BLOCK] = x;
    }
//#endif
}

//#if VALUES
fn store_value(t: u32, head: u32, cell: u32, x: vec4<f32>) {
    let at = value_at(head, cell);
//#if V_Q8
    let unit = quantized(t, x);
    if (t < DV4) {
        values[at + t] = unit.x;
        if (t % 8u == 0u) {
            values[at + DV4 + t / 8u] = unit.y;
        }
    }
//#endif
//#if V_F16
    if (t < DV4) {
        values[at + t] = halves(x);
    }
//#endif
//#if V_F32
    if (t < DV4) {
        values[at + t] = x;
    }
//#endif
}
//#endif
//#endif
