// Copies keys and values to the batch's cells from those that the rows' positions name, as they are. One workgroup per row
// and head.

struct Params {
    blocks: u32,
    pad0: u32,
    pad1: u32,
    pad2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> frame: array<u32>;
@group(0) @binding(2) var<storage, read_write> keys: array<Key>;
@group(0) @binding(3) var<storage, read_write> values: array<Value>;
//#include ops/kv

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let record = FRAME_ROWS + 4u * group.x;
    let source = frame[record + 1u];
    let cell = frame[record + 3u];
    if (cell == NO_CELL) {
        return;
    }
    for (var u = t; u < K_UNITS; u += THREADS) {
        keys[key_at(group.y, cell) + u * BLOCK] = keys[key_at(group.y, source) + u * BLOCK];
    }
    for (var u = t; u < V_UNITS; u += THREADS) {
        values[value_at(group.y, cell) + u] = values[value_at(group.y, source) + u];
    }
}
