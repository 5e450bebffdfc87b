// What is done to a query head before attention. The host repeats this text for key heads, with `query` replaced.

//#if QUERY_WEIGHT
@group(0) @binding(BIND_QUERY_WEIGHT) var<storage, read> query_weight: array<vec4<f32>>;
//#endif
//#if QUERY_BIAS
@group(0) @binding(BIND_QUERY_BIAS) var<storage, read> query_bias: array<vec4<f32>>;
//#endif

//#if QUERY_NORM
// The first QUERY_QUADS quads of a head, normalised.
fn query_normed(t: u32, head: u32, x: vec4<f32>) -> vec4<f32> {
    let mine = t < QUERY_QUADS;
    var y = select(vec4<f32>(0.0), x, mine);
//#if QUERY_LAYER
    let mean = workgroup_sum(t, dot(y, vec4<f32>(1.0))) / f32(4u * QUERY_QUADS);
    y = select(vec4<f32>(0.0), y - mean, mine);
//#endif
    y *= inverseSqrt(workgroup_sum(t, dot(y, y)) / f32(4u * QUERY_QUADS) + params.query_eps);
//#if QUERY_EACH
    let at = head * DK4 + t;
//#else
    let at = t;
//#endif
//#if QUERY_WEIGHT
    if (mine) {
        y *= query_weight[at];
    }
//#endif
//#if QUERY_BIAS
    if (mine) {
        y += query_bias[at];
    }
//#endif
    return select(x, y, mine);
}
//#endif

fn query_prepared(t: u32, head: u32, plain: vec4<f32>, position: i32) -> vec4<f32> {
    var x = plain;
//#if ROPE
//#if NORM_LAST
    x = turned(t, x, position, params.magnitude);
//#endif
//#endif
//#if QUERY_NORM
    x = query_normed(t, head, x);
//#endif
//#if ROPE
//#if !NORM_LAST
    x = turned(t, x, position, params.magnitude);
//#endif
//#endif
    return x;
}
