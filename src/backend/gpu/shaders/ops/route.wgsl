// Which experts a row goes to, and with which weights. One workgroup for EACH rows, whose results are whole vec4s; thread t has
// experts t, t + THREADS, ...

struct Params {
    logits: u32,
    route: u32,
    scale: f32,
    least: f32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> frame: array<u32>;
//#if BIAS
@group(0) @binding(3) var<storage, read> bias: array<f32>;
//#endif
//#if SOFTMAX
//#include ops/workgroup_sum
//#endif

// Of each expert the probability, and a number that grows with what it is chosen by; 0 is never chosen.
var<workgroup> p: array<f32, EXPERTS>;
var<workgroup> keys: array<u32, EXPERTS>;
var<workgroup> found: array<u32, THREADS>;
var<workgroup> result: array<f32, 2u * USED * EACH>;
//#if GROUPED
var<workgroup> group_sums: array<f32, GROUPS>;
//#endif

const LOWEST: f32 = -3.4028234663852886e38;

fn logit(row: u32, expert: u32) -> f32 {
    let at = row * EXPERTS + expert;
    return ws[params.logits + at / 4u][at % 4u];
}

// Larger for larger numbers; NaN is as low as numbers are.
fn key_of(x: f32) -> u32 {
    let nan = (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
    let bits = bitcast<u32>(max(select(x, LOWEST, nan), LOWEST));
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

//#if GROUPED
fn number_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, key >= 0x80000000u));
}
//#endif

// The one of two experts with the larger key, of equal ones the first.
fn better(a: u32, b: u32) -> u32 {
    return select(b, a, keys[a] > keys[b] || (keys[a] == keys[b] && a < b));
}

// The expert with the largest key.
fn best_of(t: u32) -> u32 {
    var best = min(t, EXPERTS - 1u);
    for (var i = t; i < EXPERTS; i += THREADS) {
        best = better(best, i);
    }
    found[t] = best;
    for (var n = THREADS / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (t < n) {
            found[t] = better(found[t], found[t + n]);
        }
    }
    workgroupBarrier();
    return found[0];
}

// Sets what a row's experts are chosen by.
fn prepare(t: u32, row: u32) {
//#if SOFTMAX
    for (var i = t; i < EXPERTS; i += THREADS) {
        keys[i] = key_of(logit(row, i));
    }
    workgroupBarrier();
    let largest = logit(row, best_of(t));
    workgroupBarrier();
    var sum = 0.0;
    for (var i = t; i < EXPERTS; i += THREADS) {
        p[i] = exp(logit(row, i) - largest);
        sum += p[i];
    }
    let all = workgroup_sum(t, sum);
//#endif
    for (var i = t; i < EXPERTS; i += THREADS) {
        let x = logit(row, i);
//#if SOFTMAX
        let value = p[i] / all;
//#endif
//#if SIGMOID
        let value = 1.0 / (1.0 + exp(clamp(-x, -80.0, 80.0)));
//#endif
//#if CHOSEN
        let value = x;
//#endif
//#if SOFTPLUS
        let e = exp(-abs(x));
        let value = sqrt(max(x, 0.0) + select(log(1.0 + e), e * (1.0 - 0.5 * e), e < 1.0e-3));
//#endif
        p[i] = value;
//#if BIAS
        keys[i] = key_of(value + bias[i]);
//#else
        keys[i] = key_of(value);
//#endif
    }
    workgroupBarrier();
//#if GROUPED
    // Groups are ordered by the sum of their two best experts.
    let size = EXPERTS / GROUPS;
    if (t < GROUPS) {
        var first = LOWEST;
        var second = LOWEST;
        for (var i = t * size; i < (t + 1u) * size; i++) {
            let x = number_of(keys[i]);
            second = max(second, min(x, first));
            first = max(first, x);
        }
        group_sums[t] = first + second;
    }
    workgroupBarrier();
    if (t < GROUPS) {
        var before = 0u;
        for (var j = 0u; j < GROUPS; j++) {
            let larger = group_sums[j] > group_sums[t] || (group_sums[j] == group_sums[t] && j < t);
            before += select(0u, 1u, larger);
        }
        if (before >= GROUPS_USED) {
            for (var i = t * size; i < (t + 1u) * size; i++) {
                keys[i] = 0u;
            }
        }
    }
    workgroupBarrier();
//#endif
}

// Makes the weights of the probabilities from place `first` on.
fn weigh(first: u32) {
//#if CHOSEN
    var largest = result[first];
    for (var u = 1u; u < USED; u++) {
        largest = max(largest, result[first + u]);
    }
    var all = 0.0;
    for (var u = 0u; u < USED; u++) {
        result[first + u] = exp(result[first + u] - largest);
        all += result[first + u];
    }
    for (var u = 0u; u < USED; u++) {
        result[first + u] /= all;
    }
//#endif
    var factor = params.scale;
//#if NORMALIZE
    var sum = 0.0;
    for (var u = 0u; u < USED; u++) {
        sum += result[first + u];
    }
    factor /= max(sum, params.least);
//#endif
    for (var u = 0u; u < USED; u++) {
        result[first + u] *= factor;
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    for (var e = 0u; e < EACH; e++) {
        let row = group.x * EACH + e;
        if (row < frame[COUNT_AT]) {
            prepare(t, row);
            for (var u = 0u; u < USED; u++) {
                let best = best_of(t);
                workgroupBarrier();
                if (t == 0u) {
                    result[2u * USED * e + u] = f32(best);
                    result[2u * USED * e + USED + u] = p[best];
                    keys[best] = 0u;
                }
                workgroupBarrier();
            }
            if (t == 0u) {
                weigh(2u * USED * e + USED);
            }
        }
        workgroupBarrier();
    }
    // Nothing after the last row's quad.
    let quads = USED * EACH / 2u;
    let end = (frame[COUNT_AT] * USED + 1u) / 2u;
    for (var i = t; i < quads && group.x * quads + i < end; i += THREADS) {
        ws[params.route + group.x * quads + i] =
            vec4<f32>(result[4u * i], result[4u * i + 1u], result[4u * i + 2u], result[4u * i + 3u]);
    }
}
