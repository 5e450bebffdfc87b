// A recurrence: the state of a head goes through rows one after the other; DELTA, SSD, SCAN, WKV6 and WKV7 choose what
// a row does to it. One workgroup takes LANES columns of a head's state through one strand of rows. A thread has every
// PARTS-th key of a column.
//
// Where a strand begins after a row of the batch, in a tree, the state goes through all rows before it again. So
// results do not depend on the batch.

struct Params {
    // Columns: the first of them in the first row, and the values of a row.
    query: vec2<u32>,
    key: vec2<u32>,
    value: vec2<u32>,
    step: vec2<u32>,
    // DELTA: how strongly is written. WKV7: the removed direction, and its rate.
    more: vec2<u32>,
    rate: vec2<u32>,
    dst: vec2<u32>,
    heads: u32,
    key_heads: u32,
    // Value indices of a head.
    values: u32,
    eps: f32,
    // Whether head h reads key head h mod key_heads.
    tiled: u32,
    pad0: u32,
}

const LANES: u32 = 16u;
const PARTS: u32 = THREADS / LANES;
const OWN: u32 = (KEYS + PARTS - 1u) / PARTS;

@group(0) @binding(0) var<storage, read_write> ws: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> frame: array<u32>;
// Of each cell and head blocks of LANES columns: for each key LANES columns, with SCAN for each column its keys.
@group(0) @binding(3) var<storage, read_write> state: array<f32>;
//#if DECAY
@group(0) @binding(BIND_DECAY) var<storage, read> decay: array<f32>;
//#endif
//#if BIAS
@group(0) @binding(BIND_BIAS) var<storage, read> bias: array<f32>;
//#endif
//#if OWN_VECTOR
@group(0) @binding(BIND_OWN) var<storage, read> own: array<f32>;
//#endif

var<workgroup> sums: array<vec4<f32>, THREADS>;
// The thread's part of the state.
var<private> s: array<f32, OWN>;

// The sum over the threads of a column.
fn total(t: u32, x: vec4<f32>) -> vec4<f32> {
    workgroupBarrier();
    sums[t] = x;
    workgroupBarrier();
    var sum = sums[t % LANES];
    for (var part = 1u; part < PARTS; part++) {
        sum += sums[part * LANES + t % LANES];
    }
    return sum;
}

// Where columns begin in a row.
fn at(columns: vec2<u32>, row: u32) -> u32 {
    return columns.x + row * columns.y;
}

// ln(1 + e^x); the series of ln((1 + z) / (1 - z)), where z is at most 1/3, loses no digits near 1.
fn softplus(x: f32) -> f32 {
    let e = exp(-min(abs(x), 80.0));
    let z = e / (2.0 + e);
    let u = z * z;
    let series = 1.0 + u * (1.0 / 3.0 + u * (0.2 + u * (1.0 / 7.0 + u * (1.0 / 9.0 + u * (1.0 / 11.0 + u / 13.0)))));
    return max(x, 0.0) + 2.0 * z * series;
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(clamp(-x, -80.0, 80.0)));
}

// Takes the state through a row. `value` is the column's number among those of all heads.
fn advance(row: u32, head: u32, value: u32, t: u32, writes: bool) {
    let part = t / LANES;
    let key_head = select(head / (params.heads / params.key_heads), head % params.key_heads, params.tiled != 0u);
    let key = at(params.key, row) + key_head * KEYS;
    let query = at(params.query, row) + key_head * KEYS;
    let v = ws[at(params.value, row) + value];
//#if BY_HEAD
    var step = ws[at(params.step, row) + head];
//#if BIAS
    step += bias[head];
//#endif
    step = softplus(step);
    let w = exp(step * decay[head]);
//#endif
//#if SCAN
    let step = softplus(ws[at(params.step, row) + value]);
//#endif
//#if BY_KEY
    let steps = at(params.step, row) + head * KEYS;
//#endif
//#if WKV7
    let removed = at(params.more, row) + head * KEYS;
    let rate = at(params.rate, row) + head * KEYS;
//#endif
//#if !STEPPED
    // Sums over keys before the row changes the state.
    var before = vec4<f32>(0.0);
    for (var j = 0u; j < OWN; j++) {
        let i = j * PARTS + part;
        if (i < KEYS) {
            let k = ws[key + i];
            let q = ws[query + i];
//#if DELTA
            before += vec4<f32>(s[j] * k, k * k, q * q, 0.0);
//#endif
//#if WKV6
            before += vec4<f32>(s[j] * q, k * q * own[head * KEYS + i], 0.0, 0.0);
//#endif
//#if WKV7
            before += vec4<f32>(s[j] * ws[removed + i], k * q * own[head * KEYS + i], 0.0, 0.0);
//#endif
        }
    }
    before = total(t, before);
//#endif
//#if DELTA
    let lengths = max(sqrt(before.yz), vec2<f32>(params.eps));
    let write = sigmoid(ws[at(params.more, row) + head]);
    let added = (v - w * before.x / lengths.x) * (write / lengths.x);
//#endif
//#if STEPPED
    let added = step * v;
//#endif
//#if BY_KEY
    let added = v;
//#endif
    var read = 0.0;
    for (var j = 0u; j < OWN; j++) {
        let i = j * PARTS + part;
        if (i < KEYS) {
//#if BY_HEAD
            let kept = s[j] * w;
//#endif
//#if SCAN
            let kept = s[j] * exp(step * decay[value * KEYS + i]);
//#endif
//#if WKV6
            let kept = s[j] * exp(-exp(min(ws[steps + i], 80.0)));
//#endif
//#if WKV7
            let kept = s[j] * exp(-0.606531 * sigmoid(ws[steps + i])) - ws[removed + i] * ws[rate + i] * before.x;
//#endif
            s[j] = fma(ws[key + i], added, kept);
            read = fma(s[j], ws[query + i], read);
        }
    }
//#if WKV6
    read = before.x + before.y * v;
//#else
    read = total(t, vec4<f32>(read, 0.0, 0.0, 0.0)).x;
//#endif
//#if DELTA
    read /= lengths.y * sqrt(f32(KEYS));
//#endif
//#if SSD
    read += own[head] * v;
//#endif
//#if SCAN
    read += own[value] * v;
//#endif
    if (writes && part == 0u) {
        ws[at(params.dst, row) + value] = read;
//#if WKV7
        ws[at(params.dst, row) + params.heads * params.values + value] = before.y * v;
//#endif
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let head = group.y;
    let lane = t % LANES;
    let part = t / LANES;
    let value = head * params.values + group.x * LANES + lane;
    // The thread's place in a cell's state, and from one of its keys to the next.
    let block = (head * params.values + group.x * LANES) * KEYS;
//#if SCAN
    let place = block + lane * KEYS + part;
    let stride = PARTS;
//#else
    let place = block + part * LANES + lane;
    let stride = PARTS * LANES;
//#endif
    let cell_values = params.heads * params.values * KEYS;
    let strand = FRAME_STATES + 4u * group.z;
    let first = frame[strand + 2u];
    let last = first + frame[strand + 3u] - 1u;
    var replayed = 0u;
    var before = frame[FRAME_STATES + 4u * first];
    while (before < AFTER_CELL) {
        before = frame[FRAME_STATES + 4u * before];
        replayed++;
    }
    for (var j = 0u; j < OWN; j++) {
        s[j] = 0.0;
        if (before != NO_STATE && j * PARTS + part < KEYS) {
            s[j] = state[(before - AFTER_CELL) * cell_values + place + j * stride];
        }
    }
    for (var left = replayed; left > 0u; left--) {
        var row = first;
        for (var steps = left; steps > 0u; steps--) {
            row = frame[FRAME_STATES + 4u * row];
        }
        advance(row, head, value, t, false);
    }
    for (var row = first; row <= last; row++) {
        advance(row, head, value, t, true);
    }
    let to = frame[FRAME_STATES + 4u * last + 1u];
    if (to != NO_STATE) {
        for (var j = 0u; j < OWN; j++) {
            if (j * PARTS + part < KEYS) {
                state[to * cell_values + place + j * stride] = s[j];
            }
        }
    }
}
