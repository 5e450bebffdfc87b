// A row, then parts of another row, scaled to the length of the first. One workgroup per row and part.

struct Params {
    x: u32,
    y: u32,
    dst: u32,
    // Of y, and of a part of x.
    quads: u32,
    parts: u32,
    pad0: u32,
    pad1: u32,
    pad2: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
//#include ops/workgroup_sum

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let x = params.x + (group.x * params.parts + group.y) * params.quads;
    let y = params.y + group.x * params.quads;
    let to = params.dst + group.x * (params.parts + 1u) * params.quads;
    var have = 0.0;
    var want = 0.0;
    for (var i = t; i < params.quads; i += THREADS) {
        have += dot(ws[x + i], ws[x + i]);
        want += dot(ws[y + i], ws[y + i]);
    }
    have = workgroup_sum(t, have);
    want = workgroup_sum(t, want);
    var factor = 0.0;
    if (have > 0.0) {
        factor = sqrt(want / have);
    }
    for (var i = t; i < params.quads; i += THREADS) {
        if (group.y == 0u) {
            ws[to + i] = ws[y + i];
        }
        ws[to + (group.y + 1u) * params.quads + i] = ws[x + i] * factor;
    }
}
