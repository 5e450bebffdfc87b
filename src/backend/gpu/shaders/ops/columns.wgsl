// The same columns of each part of a row, in the same place of each part of another. One row of workgroups per row.

struct Params {
    // The first of the columns in the first row, the values of a row and of a part.
    x: u32,
    x_stride: u32,
    x_part: u32,
    dst: u32,
    dst_stride: u32,
    dst_part: u32,
    // Columns of a part, and of all parts of a row.
    width: u32,
    all: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < params.all) {
        let part = id.x / params.width;
        let column = id.x % params.width;
        let source = params.x + id.y * params.x_stride + part * params.x_part + column;
        ws[params.dst + id.y * params.dst_stride + part * params.dst_part + column] = ws[source];
    }
}
