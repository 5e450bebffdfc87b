// An activation of x that gates y; the flags IDENTITY, RELU, RELU2, XIELU, SIGMOID, CLAMPED, TIMES_SIGMOID and GELU choose
// it. The kernel has the numbers of a curve in `params.curve`.

fn gated(x: vec4<f32>, y: vec4<f32>) -> vec4<f32> {
//#if IDENTITY
    return x * y;
//#endif
//#if RELU
    return max(x, vec4<f32>(0.0)) * y;
//#endif
//#if RELU2
    let positive = max(x, vec4<f32>(0.0));
    return positive * positive * y;
//#endif
//#if XIELU
    let above = params.curve.x * x * x;
    let below = params.curve.y * (exp(min(x, vec4<f32>(params.curve.w))) - 1.0 - x);
    return (select(below, above, x > vec4<f32>(0.0)) + params.curve.z * x) * y;
//#endif
//#if SIGMOID
    return y / (1.0 + exp(clamp(-x, vec4<f32>(-80.0), vec4<f32>(80.0))));
//#endif
//#if CLAMPED
    let a = min(x, vec4<f32>(7.0));
    let b = clamp(y, vec4<f32>(-7.0), vec4<f32>(7.0)) + 1.0;
    return a / (1.0 + exp(clamp(-1.702 * a, vec4<f32>(-80.0), vec4<f32>(80.0)))) * b;
//#endif
//#if TIMES_SIGMOID
    // x · sigmoid(z) with z = x for SiLU; the tanh form of GELU is the same with a cubic z. Nothing here overflows: far out
    // on the positive side the result is x, on the negative side x by 5e34.
//#if GELU
    let c = clamp(x, vec4<f32>(-30.0), vec4<f32>(30.0));
    let z = 1.5957691216057308 * (c + 0.044715 * c * c * c);
//#else
    let z = x;
//#endif
    return x / (1.0 + exp(clamp(-z, vec4<f32>(-80.0), vec4<f32>(80.0)))) * y;
//#endif
}
