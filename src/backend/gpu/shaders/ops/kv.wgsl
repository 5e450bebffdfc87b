// Where a layer's keys and values are, see ops/kv_cache.rs. The kernel declares `keys` as an array of Key and `values` as one of
// Value, and has the number of blocks of cells in `params.blocks`.

//#if K_F32
alias Key = vec4<f32>;
//#endif
//#if K_F16
alias Key = vec2<u32>;
//#endif
//#if K_Q8
alias Key = u32;
//#endif
//#if V_F32
alias Value = vec4<f32>;
//#endif
//#if V_F16
alias Value = vec2<u32>;
//#endif
//#if V_Q8
alias Value = u32;
//#endif

// The first unit of a cell's key; the next ones follow at every BLOCK units.
fn key_at(head: u32, cell: u32) -> u32 {
    return (head * params.blocks + cell / BLOCK) * K_UNITS * BLOCK + cell % BLOCK;
}

// The first unit of a cell's value; the next ones follow at once.
fn value_at(head: u32, cell: u32) -> u32 {
    return (head * params.blocks * BLOCK + cell) * V_UNITS;
}

// The four numbers of a unit, in Q8_0 before their scale.
fn key_numbers(unit: Key) -> vec4<f32> {
//#if K_F32
    return unit;
//#endif
//#if K_F16
    return vec4<f32>(unpack2x16float(unit.x), unpack2x16float(unit.y));
//#endif
//#if K_Q8
    return vec4<f32>(unpack4xI8(unit));
//#endif
}

fn value_numbers(unit: Value) -> vec4<f32> {
//#if V_F32
    return unit;
//#endif
//#if V_F16
    return vec4<f32>(unpack2x16float(unit.x), unpack2x16float(unit.y));
//#endif
//#if V_Q8
    return vec4<f32>(unpack4xI8(unit));
//#endif
}
