// RMS norm of rows, with or without something to add. One workgroup per row; dst may be x or the residual.

struct Params {
    x: u32,
    residual: u32,
    dst: u32,
    quads: u32,
    eps: f32,
    pad0: u32,
    pad1: u32,
    pad2: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
//#include ops/workgroup_sum

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = group.x * params.quads;
    var squares = 0.0;
    for (var i = t; i < params.quads; i += THREADS) {
        let v = ws[params.x + row + i];
        squares += dot(v, v);
    }
    let scale = inverseSqrt(workgroup_sum(t, squares) / f32(4u * params.quads) + params.eps);
    for (var i = t; i < params.quads; i += THREADS) {
        var y = ws[params.x + row + i] * scale * weight[i];
//#if RESIDUAL
        y += ws[params.residual + row + i];
//#endif
        ws[params.dst + row + i] = y;
    }
}
