// The ends of parts of rows. One row of workgroups per row.

struct Params {
    // Of the source: its first quad, the quads of a row and of a part.
    x: u32,
    x_stride: u32,
    x_part: u32,
    dst: u32,
    dst_stride: u32,
    dst_part: u32,
    // Quads of an end, and of all ends of a row.
    kept: u32,
    quads: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < params.quads) {
        let part = id.x / params.kept + 1u;
        let before = params.kept - id.x % params.kept;
        let from = params.x + id.y * params.x_stride + part * params.x_part - before;
        ws[params.dst + id.y * params.dst_stride + part * params.dst_part - before] = ws[from];
    }
}
