// The rows that the frame names as output rows, one after the other. One row of workgroups per output row.

struct Params {
    x: u32,
    dst: u32,
    quads: u32,
    pad0: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> frame: array<u32>;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < params.quads) {
        let row = frame[FRAME_OUTPUTS + id.y];
        ws[params.dst + id.y * params.quads + id.x] = ws[params.x + row * params.quads + id.x];
    }
}
