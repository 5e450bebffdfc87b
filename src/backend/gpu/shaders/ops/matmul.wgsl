// Products of many rows: a workgroup computes ROWS_OUT rows of the matrix (of both, when gated) for ROWS_IN batch rows,
// each thread 4 x EACH of them.
//
// Each step along K brings one group of 32 weights of every row, as numbers, and the same columns of the activations
// into workgroup memory, row by row in vec4s. A row's eight vec4s are in an order of its own (`place`), so that
// neither the threads that write rows next to each other nor those that read rows four apart meet in a bank.

//#include ops/weights
//#include ops/epilogue

const QUADS_IN: u32 = 8u;
const LOADED: u32 = SIDES * ROWS_OUT;

var<workgroup> w_tile: array<vec4<f32>, LOADED * QUADS_IN>;
var<workgroup> x_tile: array<vec4<f32>, ROWS_IN * QUADS_IN>;

fn place(row: u32, quad: u32) -> u32 {
    return row * QUADS_IN + (quad ^ ((row ^ (row >> 2u)) & 7u));
}

fn fetch(side: u32, tile: u32, row: u32, group: u32) -> Raw {
//#if GATED
    if (side == 1u) {
        return fetch_second(tile, row, group);
    }
//#endif
    return fetch_first(tile, row, group);
}

fn load_weights(loaded: u32, first_tile: u32, group: u32) {
    let side = loaded / ROWS_OUT;
    let row = loaded % ROWS_OUT;
    // Tiles after the last are computed as that one, and not stored.
    let tile = min(first_tile + row / TILE, (params.rows - 1u) / TILE);
    let w = values(unpack(fetch(side, tile, row % TILE, group), group));
    w_tile[place(loaded, 0u)] = w.lo[0];
    w_tile[place(loaded, 1u)] = w.lo[1];
    w_tile[place(loaded, 2u)] = w.lo[2];
    w_tile[place(loaded, 3u)] = w.lo[3];
    w_tile[place(loaded, 4u)] = w.hi[0];
    w_tile[place(loaded, 5u)] = w.hi[1];
    w_tile[place(loaded, 6u)] = w.hi[2];
    w_tile[place(loaded, 7u)] = w.hi[3];
}

//#if HEADS
// The head whose matrix the workgroup multiplies.
var<private> head: u32;
//#endif

// After the last row and after a row's end, where all weights are zero, values inside are read instead; memory
// there may be NaN.
fn x_at(row: u32, quad: u32) -> vec4<f32> {
    let inside = min(row, max(frame[params.count_at], 1u) - 1u);
//#if HEADS
    let first = params.x + head * params.part_x;
//#else
    let first = params.x;
//#endif
//#if RAGGED
    return ws[first + inside * params.x_stride + min(quad, params.x_quads - 1u)];
//#else
    return ws[first + inside * params.x_stride + quad];
//#endif
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_tile = (id.y + id.z * params.fold) * (ROWS_OUT / TILE);
    let first_row = id.x * ROWS_IN;
//#if HEADS
    head = head_of(first_tile * TILE);
//#endif
    fill_table(thread);
    let w_four = thread % (ROWS_OUT / 4u);
    let x_first = thread / (ROWS_OUT / 4u) * EACH;

    // Of each side EACH batch rows, as vec4s over four rows of the matrix.
    var sum: array<vec4<f32>, SIDES * EACH>;
    for (var group = 0u; group < params.groups; group++) {
        for (var i = thread; i < LOADED; i += THREADS) {
            load_weights(i, first_tile, group);
        }
        for (var i = thread; i < ROWS_IN * QUADS_IN; i += THREADS) {
            let row = i / QUADS_IN;
            let quad = i % QUADS_IN;
            x_tile[place(row, quad)] = x_at(first_row + row, group * QUADS_IN + quad);
        }
        workgroupBarrier();
        let quads = min(QUADS_IN, params.x_quads - group * QUADS_IN);
        for (var k = 0u; k < quads; k++) {
            for (var side = 0u; side < SIDES; side++) {
                let at = side * ROWS_OUT + w_four * 4u;
                let w = transpose(mat4x4<f32>(
                    w_tile[place(at, k)], w_tile[place(at + 1u, k)],
                    w_tile[place(at + 2u, k)], w_tile[place(at + 3u, k)]));
                for (var i = 0u; i < EACH; i++) {
                    let x = x_tile[place(x_first + i, k)];
                    // In this order each of the four is one multiply-add.
                    sum[side * EACH + i] = sum[side * EACH + i] + x.x * w[0] + x.y * w[1] + x.z * w[2] + x.w * w[3];
                }
            }
        }
        workgroupBarrier();
    }

//#if ONE
    if (first_tile == 0u && w_four == 0u) {
        store_ones(first_row + x_first, vec4<f32>(sum[0].x, sum[1].x, sum[2].x, sum[3].x));
    }
//#else
    for (var i = 0u; i < EACH; i++) {
//#if GATED
        store(first_row + x_first + i, first_tile * (TILE / 4u) + w_four, sum[i], sum[EACH + i]);
//#else
        store(first_row + x_first + i, first_tile * (TILE / 4u) + w_four, sum[i]);
//#endif
    }
//#endif
}
