// Numbers rounded to the 11 significant bits of f16, to nearest even: packing leaves the direction to the driver. What is below or
// above the range of f16, and NaN, is the caller's to look after.
fn near_half(x: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(x);
    let near = (bits + vec4<u32>(0xfffu) + ((bits >> vec4<u32>(13u)) & vec4<u32>(1u))) & vec4<u32>(0xffffe000u);
    return bitcast<vec4<f32>>(near);
}

fn is_nan(x: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
}
