// Copies keys and values from cell to cell, as they are. One workgroup per pair of cells and head.

struct Params {
    blocks: u32,
    count: u32,
    fold: u32,
    pad0: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> keys: array<Unit>;
@group(0) @binding(3) var<storage, read_write> values: array<Unit>;
//#include kv

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let i = group.y * params.fold + group.x;
    if (i >= params.count) {
        return;
    }
    let pair = pairs[i];
    for (var u = t; u < K_UNITS; u += THREADS) {
        keys[key_at(group.z, pair.y) + u * BLOCK] = keys[key_at(group.z, pair.x) + u * BLOCK];
    }
    for (var u = t; u < V_UNITS; u += THREADS) {
        values[value_at(group.z, pair.y) + u] = values[value_at(group.z, pair.x) + u];
    }
}
