// Turns the keys of the batch's cells by the angles of their rows' positions. One workgroup per row and head.

struct Params {
    blocks: u32,
    pad0: u32,
    pad1: u32,
    pad2: u32,
}

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
    // The keys hold the embedding's magnitude already.
    store_key(t, group.y, cell, turned(t, load_key(t, group.y, cell), delta, 1.0));
}
