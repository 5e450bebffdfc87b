// Sums over the invocations of a workgroup.

var<workgroup> sums: array<vec2<u32>, THREADS>;

// The sum up to and with this invocation; the whole one stands in sums[THREADS - 1] until the next call.
fn sum_up_to(lid: u32, value: vec2<u32>) -> vec2<u32> {
    workgroupBarrier();
    sums[lid] = value;
    workgroupBarrier();
    for (var distance = 1u; distance < THREADS; distance <<= 1u) {
        var other = vec2<u32>(0u);
        if lid >= distance {
            other = sums[lid - distance];
        }
        workgroupBarrier();
        sums[lid] = add64(sums[lid], other);
        workgroupBarrier();
    }
    return sums[lid];
}

// The sum of f32 numbers, added in the order of the invocations.
fn sum_floats(lid: u32, value: f32) -> f32 {
    workgroupBarrier();
    sums[lid] = vec2<u32>(bitcast<u32>(value), 0u);
    workgroupBarrier();
    if lid == 0u {
        var sum = 0.0f;
        for (var i = 0u; i < THREADS; i++) {
            sum += bitcast<f32>(sums[i].x);
        }
        sums[0].y = bitcast<u32>(sum);
    }
    workgroupBarrier();
    let all = bitcast<f32>(sums[0].y);
    workgroupBarrier();
    return all;
}

// The factor of dynamic temperature: 1 / T of the entropy of `count` candidates that weigh `total`, with the sum of
// e^z * z. 0 where one candidate is to be kept.
fn dynamic_scale(op: u32, scale: f32, count: u32, total: vec2<u32>, moment: f32) -> f32 {
    let entropy = ln_of(total) - moment / (float64(total) / 1099511627776.0f);
    let share = max(entropy, 0.0f) / log(f32(count));
    var raised = 1.0f;
    if number(op, 3u) != 0.0f {
        raised = select(0.0f, pow(share, number(op, 3u)), share > 0.0f);
    }
    let temperature = number(op, 1u) + (number(op, 2u) - number(op, 1u)) * raised;
    let next = scale / max(temperature, 1.0e-30f);
    return select(0.0f, clamp(next, 1.17549435e-38f, GREATEST), temperature > 0.0f && next < GREATEST);
}
