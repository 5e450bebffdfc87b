// cap tanh(x / cap). One row of workgroups per row; dst may be x.

alias Pack = vec4<f32>;
alias PackU = vec4<u32>;

struct Params {
    x: u32,
    dst: u32,
    quads: u32,
    cap: f32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
//#include ops/tanh

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < params.quads) {
        let i = id.y * params.quads + id.x;
        ws[params.dst + i] = params.cap * tanh_of(ws[params.x + i] / params.cap);
    }
}
