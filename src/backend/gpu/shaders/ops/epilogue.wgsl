// What products do with their sums: factor, bias, gate, residual, store.

//#if BIAS_FIRST
@group(0) @binding(BIND_BIAS_FIRST) var<storage, read> bias_first: array<vec4<f32>>;
//#endif
//#if BIAS_SECOND
@group(0) @binding(BIND_BIAS_SECOND) var<storage, read> bias_second: array<vec4<f32>>;
//#endif
//#if ACTIVATED
//#include ops/activate
//#endif

// Four columns of the first matrix's product, with its factor and bias.
fn first_of(quad: u32, sum: vec4<f32>) -> vec4<f32> {
    var value = sum;
//#if SCALE_FIRST
    value *= params.scale_first;
//#endif
//#if BIAS_FIRST
    value += bias_first[params.first_row / 4u + quad];
//#endif
    return value;
}

//#if GATED
fn second_of(quad: u32, sum: vec4<f32>) -> vec4<f32> {
    var value = sum;
//#if SCALE_SECOND
    value *= params.scale_second;
//#endif
//#if BIAS_SECOND
    value += bias_second[params.first_row / 4u + quad];
//#endif
    return value;
}
//#endif

//#if HEADS
// The head of a row of the slice.
fn head_of(row: u32) -> u32 {
    return (params.first_row + min(row, params.rows - 1u)) / params.stack_rows;
}
//#endif

// Four columns of an output row, of their sums: of two matrices where one gates the other. Rows beyond the run's and columns
// beyond the slice's are left alone.
//#if GATED
fn store(row: u32, quad: u32, first: vec4<f32>, second: vec4<f32>) {
//#else
fn store(row: u32, quad: u32, first: vec4<f32>) {
//#endif
    if (row >= frame[params.count_at] || quad * 4u >= params.rows) {
        return;
    }
    var value = first_of(quad, first);
//#if GATED
    value = gated(value, second_of(quad, second));
//#else
//#if ACTIVATED
    value = gated(value, vec4<f32>(1.0));
//#endif
//#endif
//#if HEADS
    let part = head_of(quad * 4u);
    let within = params.first_row / 4u + quad - part * params.stack_rows / 4u;
    let at = row * params.dst_stride + part * params.part_dst + within;
//#else
    let at = row * params.dst_stride + quad;
//#endif
    if (params.residual != NONE) {
        value += ws[params.residual + at];
    }
    ws[params.dst + at] = value;
}
