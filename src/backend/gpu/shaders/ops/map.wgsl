// A function of each value, with or without something to add: x times a number or the column's own, cap tanh(x / cap), or x limited
// to ± a number. One row of workgroups per row; dst may be x or the residual.

//#if SOFTCAP
alias Pack = vec4<f32>;
alias PackU = vec4<u32>;
//#endif

struct Params {
    x: u32,
    residual: u32,
    dst: u32,
    quads: u32,
    number: f32,
    pad0: u32,
    pad1: u32,
    pad2: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
//#if FACTORS
@group(0) @binding(2) var<storage, read> factors: array<vec4<f32>>;
//#endif
//#if SOFTCAP
//#include ops/tanh
//#endif

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < params.quads) {
        let i = id.y * params.quads + id.x;
        let x = ws[params.x + i];
//#if SOFTCAP
        var y = params.number * tanh_of(x / params.number);
//#endif
//#if SCALE
        var y = x * params.number;
//#endif
//#if FACTORS
        var y = x * factors[id.x];
//#endif
//#if CLAMP
        // NaN stays.
        let nan = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
        var y = select(clamp(x, vec4<f32>(-params.number), vec4<f32>(params.number)), x, nan);
//#endif
//#if RESIDUAL
        y += ws[params.residual + i];
//#endif
        ws[params.dst + i] = y;
    }
}
