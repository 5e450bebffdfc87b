// Reading one group of a matrix. The host repeats this text for a second matrix, with `first` replaced.

@group(0) @binding(WIDE_FIRST) var<storage, read> wide_first: array<vec4<u32>>;
//#if NARROW
@group(0) @binding(NARROW_FIRST) var<storage, read> narrow_first: array<u32>;
//#endif

fn fetch_first(tile: u32, row: u32, group: u32) -> Raw {
    var raw: Raw;
    let at = tile * params.groups + group;
    for (var i = 0u; i < QUADS; i++) {
        raw.quads[i] = wide_first[(at * QUADS + i) * TILE + row];
    }
//#if BLOCKS
    raw.block = wide_first[params.blocks_at + (at / BLOCK_GROUPS) * TILE + row];
//#endif
//#if WORDS
    for (var i = 0u; i < WORDS; i++) {
        raw.words[i] = narrow_first[(at * WORDS + i) * TILE + row];
    }
//#endif
    // Sections of 16-bit elements: two rows share a word.
//#if HALVES
    raw.bits = (narrow_first[params.halves_at + (at * TILE + row) / 2u] >> ((row & 1u) * 16u)) & 0xffffu;
//#endif
//#if BLOCK_HALVES
    let block = (at / BLOCK_GROUPS) * TILE + row;
    raw.block_bits = (narrow_first[params.block_halves_at + block / 2u] >> ((row & 1u) * 16u)) & 0xffffu;
//#endif
    return raw;
}
