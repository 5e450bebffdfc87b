// What is done to a row's heads before attention, one in the hands of a workgroup as in ops/head. The host adds the text of
// ops/head_norm for queries (`query_prepared`) and for keys.

//#if ROPE
@group(0) @binding(BIND_TURNS) var<storage, read> turns: array<vec2<u32>>;
//#endif
//#if SUMS
//#include ops/workgroup_sum
//#endif
//#include ops/head

//#if KEYS
//#if V_NORM
fn value_normed(t: u32, x: vec4<f32>) -> vec4<f32> {
    return x * inverseSqrt(workgroup_sum(t, dot(x, x)) / f32(4u * DV4) + params.value_eps);
}
//#endif

// A key to its cell; `row` is the first quad of the row's keys.
fn write_key(t: u32, head: u32, row: u32, cell: u32, position: i32) {
    var x = vec4<f32>(0.0);
    if (t < DK4) {
        x = ws[row + head * DK4 + t];
    }
    x = key_prepared(t, head, x, position);
    store_key(t, head, cell, x);
//#if PREFIX
    x = select(vec4<f32>(0.0), x, t < DV4);
//#if V_NORM
    x = value_normed(t, x);
//#endif
    store_value(t, head, cell, x);
//#endif
}

//#if !PREFIX
// A value to its cell; `row` is as above.
fn write_value(t: u32, head: u32, row: u32, cell: u32) {
    var x = vec4<f32>(0.0);
    if (t < DV4) {
//#if OWN_VALUES
        x = ws[row + N_HEAD_KV * DK4 + head * DV4 + t];
//#else
        x = ws[row + head * DK4 + t];
//#endif
    }
//#if V_NORM
    x = value_normed(t, x);
//#endif
    store_value(t, head, cell, x);
}
//#endif
//#endif
