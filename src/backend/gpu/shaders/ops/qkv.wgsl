// From rows of queries, and of keys and values, to attention's inputs: queries normalised and rotated in place, keys normalised,
// rotated and stored, values stored. One workgroup per head and row; QUERIES and KEYS say whose heads there are.

struct Params {
    // The first quads of the queries and of the keys, and those of a row of each.
    q: u32,
    q_stride: u32,
    kv: u32,
    kv_stride: u32,
    blocks: u32,
    query_eps: f32,
    key_eps: f32,
    value_eps: f32,
    magnitude: f32,
    pad0: u32,
    pad1: u32,
    pad2: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> frame: array<u32>;
//#if ROPE
@group(0) @binding(BIND_TURNS) var<storage, read> turns: array<vec2<u32>>;
//#endif
//#if KEYS
@group(0) @binding(BIND_KEYS) var<storage, read_write> keys: array<Key>;
@group(0) @binding(BIND_VALUES) var<storage, read_write> values: array<Value>;
//#endif
//#if SUMS
//#include ops/workgroup_sum
//#endif
//#include ops/head

//#if V_NORM
fn value_normed(t: u32, x: vec4<f32>) -> vec4<f32> {
    return x * inverseSqrt(workgroup_sum(t, dot(x, x)) / f32(4u * DV4) + params.value_eps);
}
//#endif

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    var head = group.x;
//#if OUTPUTS
    let record = FRAME_ROWS + 4u * frame[FRAME_OUTPUTS + group.y];
//#else
    let record = FRAME_ROWS + 4u * group.y;
//#endif
    let position = bitcast<i32>(frame[record + 1u]);
    var x = vec4<f32>(0.0);
//#if QUERIES
    if (head < N_HEAD) {
        let at = params.q + group.y * params.q_stride + head * DK4 + t;
        if (t < DK4) {
            x = ws[at];
        }
        x = query_prepared(t, head, x, position);
        if (t < DK4) {
            ws[at] = x;
        }
        return;
    }
    head -= N_HEAD;
//#endif
//#if KEYS
    let cell = frame[record + 3u];
    let row = params.kv + group.y * params.kv_stride;
    if (head < N_HEAD_KV) {
        if (t < DK4) {
            x = ws[row + head * DK4 + t];
        }
        x = key_prepared(t, head, x, position);
        store_key(t, head, cell, x);
//#if PREFIX
        x = select(vec4<f32>(0.0), x, t < DV4);
//#if V_NORM
        x = value_normed(t, x);
//#endif
        store_value(t, head, cell, x);
//#endif
        return;
    }
//#if !PREFIX
    let i = head - N_HEAD_KV;
    if (t < DV4) {
//#if OWN_VALUES
        x = ws[row + N_HEAD_KV * DK4 + i * DV4 + t];
//#else
        x = ws[row + i * DK4 + t];
//#endif
    }
//#if V_NORM
    x = value_normed(t, x);
//#endif
    store_value(t, i, cell, x);
//#endif
//#endif
}
