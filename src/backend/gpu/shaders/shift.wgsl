// Turns the keys of cells whose position changes, by the angles of the change. One workgroup per cell and head.

struct Params {
    blocks: u32,
    pad0: u32,
    pad1: u32,
    pad2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> turns: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> deltas: array<i32>;
@group(0) @binding(3) var<storage, read_write> keys: array<Unit>;
//#include head

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let cell = group.x * BLOCK + group.y;
    let delta = deltas[cell];
    if (delta == 0) {
        return;
    }
    // The keys hold the embedding's magnitude already.
    store_key(t, group.z, cell, turned(t, load_key(t, group.z, cell), delta, 1.0));
}
