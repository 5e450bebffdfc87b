// What is left of rows above a threshold, which is so many standard deviations (over n - 1) above their mean. One workgroup per
// row; dst may be x.

struct Params {
    x: u32,
    dst: u32,
    quads: u32,
    deviations: f32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
//#include ops/workgroup_sum

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = group.x * params.quads;
    let count = f32(4u * params.quads);
    var sum = 0.0;
    for (var i = t; i < params.quads; i += THREADS) {
        sum += dot(ws[params.x + row + i], vec4<f32>(1.0));
    }
    let mean = workgroup_sum(t, sum) / count;
    var squares = 0.0;
    for (var i = t; i < params.quads; i += THREADS) {
        let v = ws[params.x + row + i] - mean;
        squares += dot(v, v);
    }
    let threshold = mean + params.deviations * sqrt(workgroup_sum(t, squares) / (count - 1.0));
    for (var i = t; i < params.quads; i += THREADS) {
        let above = ws[params.x + row + i] - threshold;
        ws[params.dst + row + i] = select(above, vec4<f32>(0.0), above < vec4<f32>(0.0));
    }
}
