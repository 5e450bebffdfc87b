enable f16;
enable wgpu_cooperative_matrix;
// Products of many rows by matrix instructions, of blocks of BLOCK by BLOCK numbers: a workgroup computes ROWS_OUT rows of the
// matrix (of both, when gated) for ROWS batch rows, which `halve.wgsl` made halves of. Weights become halves here; sums are f32.
//
// Each step along K brings STEP groups of 32 weights of ROWS rows, and the same columns of the batch rows, into workgroup memory.
// Four subgroups have EACH times EACH blocks of sums each: of SIDE batch rows times SIDE rows of weights, of which, when gated,
// every other block is of the second matrix. Where a workgroup has more subgroups, the others do the last one's work again.

//#include ops/weights
//#include ops/epilogue
//#include ops/halves

const WORKERS: u32 = 4u;
// Rows of a subgroup, and its blocks of them.
const SIDE: u32 = ROWS / 2u;
const EACH: u32 = SIDE / BLOCK;
const COLUMNS: u32 = STEP * 32u;
// With eight more, rows of a block are not in the same banks.
const STRIDE: u32 = COLUMNS + 8u;

//#include blocks

var<workgroup> w_tile: array<f16, ROWS * STRIDE>;
var<workgroup> x_tile: array<f16, ROWS * STRIDE>;
// Of each subgroup the sums of two blocks side by side; the last ones are of those that do work again.
var<workgroup> sums: array<f32, (WORKERS + 1u) * 2u * BLOCK * BLOCK>;

fn fetch(side: u32, tile: u32, row: u32, group: u32) -> Raw {
//#if GATED
    if (side == 1u) {
        return fetch_second(tile, row, group);
    }
//#endif
    return fetch_first(tile, row, group);
}

//#if F16
// A driver may take halves below the normal ones for zero.
fn keep_eight(at: u32, words: vec4<u32>) {
    keep_four(at, vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)));
    keep_four(at + 4u, vec4<f32>(unpack2x16float(words.z), unpack2x16float(words.w)));
}
//#endif

fn keep_four(at: u32, x: vec4<f32>) {
    let y = vec4<f16>(x);
    w_tile[at] = y.x;
    w_tile[at + 1u] = y.y;
    w_tile[at + 2u] = y.z;
    w_tile[at + 3u] = y.w;
}

// The weights of a row, of one group. Groups after the last are that one, with no weight.
fn load_weights(loaded: u32, part: u32, first_tile: u32, first_group: u32) {
//#if GATED
    let side = loaded / BLOCK % 2u;
    let row = loaded / (2u * BLOCK) * BLOCK + loaded % BLOCK;
//#else
    let side = 0u;
    let row = loaded;
//#endif
    // Tiles after the last are computed as that one, and not stored.
    let tile = min(first_tile + row / TILE, (params.rows - 1u) / TILE);
    let group = min(first_group + part, params.groups - 1u);
    let raw = fetch(side, tile, row % TILE, group);
    let inside = first_group + part < params.groups;
    let at = loaded * STRIDE + part * 32u;
//#if F16
    let none = vec4<u32>(0u);
    keep_eight(at, select(none, raw.quads[0], inside));
    keep_eight(at + 8u, select(none, raw.quads[1], inside));
    keep_eight(at + 16u, select(none, raw.quads[2], inside));
    keep_eight(at + 24u, select(none, raw.quads[3], inside));
//#else
    let w = values(unpack(raw, group));
    let factor = select(0.0, 1.0, inside);
    keep_four(at, w.lo[0] * factor);
    keep_four(at + 4u, w.lo[1] * factor);
    keep_four(at + 8u, w.lo[2] * factor);
    keep_four(at + 12u, w.lo[3] * factor);
    keep_four(at + 16u, w.hi[0] * factor);
    keep_four(at + 20u, w.hi[1] * factor);
    keep_four(at + 24u, w.hi[2] * factor);
    keep_four(at + 28u, w.hi[3] * factor);
//#endif
}

// Eight columns of a batch row.
fn load_row(row: u32, quad: u32, first_row: u32, first_group: u32) {
    let from_row = min(first_row + row, max(frame[params.count_at], 1u) - 1u);
    let from_quad = min(first_group * HALVES_QUADS + quad, params.groups * HALVES_QUADS - 1u);
    let words = bitcast<vec4<u32>>(ws[halves_at(params.x, params.x_stride, from_row, from_quad)]);
    let at = row * STRIDE + quad * 8u;
    for (var i = 0u; i < 4u; i++) {
        let two = vec2<f16>(unpack2x16float(words[i]));
        x_tile[at + 2u * i] = two.x;
        x_tile[at + 2u * i + 1u] = two.y;
    }
}

// Stores what two blocks of each subgroup came to, the pair of this number of these batch rows of the subgroup.
fn store_blocks(thread: u32, first_row: u32, row: u32, first_tile: u32, pair: u32) {
//#if GATED
    let wide = 1u;
//#else
    let wide = 2u;
//#endif
    for (var i = thread; i < WORKERS * BLOCK * wide * BLOCK / 4u; i += THREADS) {
        let quad = i % (BLOCK / 4u);
        let part = i / (BLOCK / 4u) % wide;
        let line = i / (BLOCK / 4u) / wide % BLOCK;
        let worker = i / (BLOCK / 4u) / wide / BLOCK;
        let to = first_row + worker / 2u * SIDE + row + line;
        let within = min(to, max(frame[params.count_at], 1u) - 1u);
        let factor = ws[halves_at(params.x, params.x_stride, within, params.groups * HALVES_QUADS)].x;
        let at = (worker * 2u + part) * BLOCK * BLOCK + line * BLOCK + quad * 4u;
        let first = vec4<f32>(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]) * factor;
        let block = (worker % 2u * (EACH / 2u) + pair) * wide + part;
        let column = first_tile * (TILE / 4u) + block * (BLOCK / 4u) + quad;
//#if GATED
        let next = at + BLOCK * BLOCK;
        let second = vec4<f32>(sums[next], sums[next + 1u], sums[next + 2u], sums[next + 3u]) * factor;
        store(to, column, first, second);
//#else
        store(to, column, first);
//#endif
    }
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
) {
    let first_tile = (id.y + id.z * params.fold) * (ROWS_OUT / TILE);
    let first_row = id.x * ROWS;
    fill_table(thread);
    let worker = min(subgroup, WORKERS - 1u);
    let x_at = worker / 2u * SIDE * STRIDE;
    let w_at = worker % 2u * SIDE * STRIDE;

    var all: array<Sums, EACH * EACH>;
    for (var group = 0u; group < params.groups; group += STEP) {
        for (var i = thread; i < ROWS * STEP; i += THREADS) {
            load_weights(i % ROWS, i / ROWS, first_tile, group);
        }
        for (var i = thread; i < ROWS * STEP * HALVES_QUADS; i += THREADS) {
            load_row(i % ROWS, i / ROWS, first_row, group);
        }
        workgroupBarrier();
        for (var k = 0u; k < COLUMNS; k += BLOCK) {
            var right: array<Right, EACH>;
            for (var i = 0u; i < EACH; i++) {
                right[i] = coopLoad<Right>(&w_tile[w_at + i * BLOCK * STRIDE + k], STRIDE);
            }
            for (var line = 0u; line < EACH; line++) {
                let left = coopLoadT<Left>(&x_tile[x_at + line * BLOCK * STRIDE + k], STRIDE);
                for (var i = 0u; i < EACH; i++) {
                    all[line * EACH + i] = coopMultiplyAdd(left, right[i], all[line * EACH + i]);
                }
            }
        }
        workgroupBarrier();
    }

    let own = min(subgroup, WORKERS) * 2u * BLOCK * BLOCK;
    for (var i = 0u; i < EACH * EACH; i += 2u) {
        coopStoreT(all[i], &sums[own], BLOCK);
        coopStoreT(all[i + 1u], &sums[own + BLOCK * BLOCK], BLOCK);
        workgroupBarrier();
        store_blocks(thread, first_row, i / EACH * BLOCK, first_tile, i % EACH / 2u);
        workgroupBarrier();
    }
}
