// What kernels that make rows narrow are given.

struct Params {
    // Where the rows begin and their width, in vec4s; where those that are written begin, and how many there is room for.
    x: u32,
    x_stride: u32,
    dst: u32,
    dst_stride: u32,
    // Vec4s and groups of a row, the frame's word that counts the rows, and workgroups of the first of two folded dimensions.
    x_quads: u32,
    groups: u32,
    count_at: u32,
    fold: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> frame: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

// A vec4 of the row that begins at `first`; after the end of a row are zeros.
fn wide(first: u32, quad: u32) -> vec4<f32> {
    return select(vec4<f32>(0.0), ws[first + min(quad, params.x_quads - 1u)], quad < params.x_quads);
}
