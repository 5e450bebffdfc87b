// Where a layer's keys and values lie, see kv.rs. The kernel declares `keys` and `values` as arrays of Unit, and has the
// number of blocks of cells in `params.blocks`.

//#if F32
alias Unit = vec4<f32>;
//#endif
//#if F16
alias Unit = vec2<u32>;
//#endif
//#if Q8
alias Unit = u32;
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
fn numbers(unit: Unit) -> vec4<f32> {
//#if F32
    return unit;
//#endif
//#if F16
    return vec4<f32>(unpack2x16float(unit.x), unpack2x16float(unit.y));
//#endif
//#if Q8
    return vec4<f32>(unpack4xI8(unit));
//#endif
}
