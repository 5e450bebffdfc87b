// From rows of queries, and of keys and values, to attention's inputs: queries normalised and rotated in place, keys normalised,
// rotated and stored, values stored. One workgroup per head and row; QUERIES and KEYS say whose heads there are.

struct Params {
    // The first quad of the queries, and those of a row; the same of the keys.
    q: u32,
    q_stride: u32,
    blocks: u32,
    kv: u32,
    kv_stride: u32,
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
//#if KEYS
@group(0) @binding(3) var<storage, read_write> keys: array<Key>;
@group(0) @binding(4) var<storage, read_write> values: array<Value>;
//#endif
//#include ops/prepare

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    var head = group.x;
//#if OUTPUTS
    let record = FRAME_ROWS + 4u * frame[FRAME_OUTPUTS + group.y];
//#else
    let record = FRAME_ROWS + 4u * group.y;
//#endif
    let position = bitcast<i32>(frame[record + 1u]);
//#if QUERIES
    if (head < N_HEAD) {
        var x = vec4<f32>(0.0);
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
        write_key(t, head, row, cell, position);
        return;
    }
//#if !PREFIX
    write_value(t, head - N_HEAD_KV, row, cell);
//#endif
//#endif
}
