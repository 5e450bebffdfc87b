// Activations of x times columns of y, with or without something to add. With ONE x is one value a row. One row of workgroups
// per row; dst may be any of the three.

struct Params {
    x: u32,
    // The first quad of y's columns, and those of a row of y.
    y: u32,
    y_stride: u32,
    residual: u32,
    dst: u32,
    quads: u32,
    pad0: u32,
    pad1: u32,
    // Numbers of an activation.
    curve: vec4<f32>,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
//#include ops/activate

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < params.quads) {
        let i = id.y * params.quads + id.x;
        let y = ws[params.y + id.y * params.y_stride + id.x];
//#if ONE
        var value = gated(vec4<f32>(ws[params.x + id.y / 4u][id.y % 4u]), y);
//#else
        var value = gated(ws[params.x + i], y);
//#endif
//#if RESIDUAL
        value += ws[params.residual + i];
//#endif
        ws[params.dst + i] = value;
    }
}
