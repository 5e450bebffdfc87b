// What products do with their sums: gate, bias, residual, store.

//#if BIAS
@group(0) @binding(BIND_BIAS) var<storage, read> bias: array<vec4<f32>>;
//#endif

//#if GATED
// x · sigmoid(z) with z = x for SiLU; the tanh form of GELU is the same with a cubic z. Nothing here overflows: far out
// on the positive side the result is x, on the negative side x by 5e34.
fn activate(x: vec4<f32>) -> vec4<f32> {
//#if GELU
    let c = clamp(x, vec4<f32>(-30.0), vec4<f32>(30.0));
    let z = 1.5957691216057308 * (c + 0.044715 * c * c * c);
//#else
    let z = x;
//#endif
    return x / (1.0 + exp(clamp(-z, vec4<f32>(-80.0), vec4<f32>(80.0))));
}
//#endif

// Four columns of an output row. Rows beyond the run's and columns beyond the slice's are left alone.
fn store(row: u32, quad: u32, sum: vec4<f32>) {
    if (row >= frame[params.count_at] || quad * 4u >= params.rows) {
        return;
    }
    var value = sum;
//#if BIAS
    value += bias[params.first_row / 4u + quad];
//#endif
    let at = row * params.dst_stride + quad;
    if (params.residual != NONE) {
        value += ws[params.residual + at];
    }
    ws[params.dst + at] = value;
}
