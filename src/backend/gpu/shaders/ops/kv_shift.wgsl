// Turns the keys of the batch's cells by the angles of their rows' positions. One workgroup per row and head.

struct Params {
    blocks: u32,
    pad0: u32,
    pad1: u32,
    pad2: u32,
}

//#if FACTORS
// Factors that a norm after the rotation left on the keys.
@group(0) @binding(4) var<storage, read> factors: array<vec4<f32>>;
//#endif

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> turns: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> frame: array<u32>;
@group(0) @binding(3) var<storage, read_write> keys: array<Key>;
//#include ops/head

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let record = FRAME_ROWS + 4u * group.x;
    let delta = bitcast<i32>(frame[record + 1u]);
    let cell = frame[record + 3u];
    if (cell == NO_CELL) {
        return;
    }
    var x = load_key(t, group.y, cell);
//#if FACTORS
    var factor = vec4<f32>(1.0);
    if (t < DK4) {
        factor = factors[t];
    }
    // A factor of zero leaves zeros, which turn to zeros.
    x /= select(factor, vec4<f32>(1.0), factor == vec4<f32>(0.0));
    // The keys hold the embedding's magnitude already.
    x = turned(t, x, delta, 1.0) * factor;
//#else
    x = turned(t, x, delta, 1.0);
//#endif
    store_key(t, group.y, cell, x);
}
