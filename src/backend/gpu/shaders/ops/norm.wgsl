// Norms of parts of rows, with or without something to add. One workgroup per row and part; dst may be x or the residual.

struct Params {
    x: u32,
    x_stride: u32,
    residual: u32,
    dst: u32,
    dst_stride: u32,
    // Of a part.
    quads: u32,
    eps: f32,
    // From the factors of a part to those of the next; 0 where all have the same.
    own: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
//#if WEIGHT
@group(0) @binding(BIND_WEIGHT) var<storage, read> weight: array<vec4<f32>>;
//#endif
//#if BIAS
@group(0) @binding(BIND_BIAS) var<storage, read> bias: array<vec4<f32>>;
//#endif
//#include ops/workgroup_sum

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let part = group.y * params.quads;
    let x = params.x + group.x * params.x_stride + part;
    let to = group.x * params.dst_stride + part;
    let count = f32(4u * params.quads);
//#if LAYER
    var sum = 0.0;
    for (var i = t; i < params.quads; i += THREADS) {
        sum += dot(ws[x + i], vec4<f32>(1.0));
    }
    let mean = workgroup_sum(t, sum) / count;
//#endif
    var squares = 0.0;
    for (var i = t; i < params.quads; i += THREADS) {
//#if LAYER
        let v = ws[x + i] - mean;
//#else
        let v = ws[x + i];
//#endif
        squares += dot(v, v);
    }
    let scale = inverseSqrt(workgroup_sum(t, squares) / count + params.eps);
    for (var i = t; i < params.quads; i += THREADS) {
//#if LAYER
        var y = (ws[x + i] - mean) * scale;
//#else
        var y = ws[x + i] * scale;
//#endif
//#if WEIGHT
        y *= weight[group.y * params.own + i];
//#endif
//#if BIAS
        y += bias[group.y * params.own + i];
//#endif
//#if RESIDUAL
        y += ws[params.residual + to + i];
//#endif
        ws[params.dst + to + i] = y;
    }
}
