// Products of many rows by integer dot products: a workgroup computes ROWS_OUT rows of the matrix (of both, when gated) for
// ROWS_IN batch rows, which `quantize.wgsl` made bytes of; each thread 4 x EACH of them.
//
// Each step along K brings STEP groups of 32 weights of every row, as bytes with their scales, and the same columns of the batch
// rows into workgroup memory. Rows that a thread computes together are LANES apart there, so that threads next to each other
// read neighbours.

//#include ops/weights
//#include ops/epilogue
//#include ops/int8

// Rows of weights in a step's group; threads along the rows of the matrix and along those of the batch.
const LOADED: u32 = SIDES * ROWS_OUT;
const LANES_OUT: u32 = ROWS_OUT / 4u;
const LANES_IN: u32 = ROWS_IN / EACH;

var<workgroup> w_codes: array<vec4<u32>, STEP * LOADED * 2u>;
var<workgroup> w_scale: array<f32, STEP * LOADED * SCALES>;
//#if OFFSET
var<workgroup> w_offset: array<f32, STEP * LOADED * SCALES>;
//#endif
var<workgroup> x_codes: array<vec4<u32>, STEP * ROWS_IN * 2u>;
var<workgroup> x_line: array<vec4<f32>, STEP * ROWS_IN>;

fn fetch(side: u32, tile: u32, row: u32, group: u32) -> Raw {
//#if GATED
    if (side == 1u) {
        return fetch_second(tile, row, group);
    }
//#endif
    return fetch_first(tile, row, group);
}

// What a thread brings of a step: the weights of a row, of one group. Groups after the last are that one, with no weight.
fn fetch_weights(thread: u32, first_tile: u32, first_group: u32) -> Raw {
    let row = thread % ROWS_OUT;
    // Tiles after the last are computed as that one, and not stored.
    let tile = min(first_tile + row / TILE, (params.rows - 1u) / TILE);
    let group = min(first_group + thread / LOADED, params.groups - 1u);
    return fetch(thread % LOADED / ROWS_OUT, tile, row % TILE, group);
}

fn keep_weights(thread: u32, raw: Raw, first_group: u32) {
    let group = first_group + thread / LOADED;
    let c = codes(raw, group);
    let factor = select(0.0, 1.0, group < params.groups);
    let row = thread % ROWS_OUT;
    let first = thread / ROWS_OUT * 2u * ROWS_OUT;
    let place = first + row % 4u * LANES_OUT + row / 4u;
    w_codes[place] = c.lo;
    w_codes[place + ROWS_OUT] = c.hi;
//#if TWO_SCALES
    w_scale[first + row] = c.scale.x * factor;
    w_scale[first + ROWS_OUT + row] = c.scale.y * factor;
//#else
    w_scale[thread] = c.scale.x * factor;
//#endif
//#if OFFSET
//#if TWO_SCALES
    w_offset[first + row] = c.offset.x * factor;
    w_offset[first + ROWS_OUT + row] = c.offset.y * factor;
//#else
    w_offset[thread] = c.offset.x * factor;
//#endif
//#endif
}

// The codes and the line of a batch row, of one group.
struct Quantized {
    lo: vec4<u32>,
    hi: vec4<u32>,
    line: vec4<f32>,
}

fn fetch_row(thread: u32, first_row: u32, first_group: u32) -> Quantized {
    if (thread >= STEP * ROWS_IN) {
        return Quantized();
    }
    let row = min(first_row + thread % ROWS_IN, max(frame[params.count_at], 1u) - 1u);
    let group = min(first_group + thread / ROWS_IN, params.groups - 1u);
    let at = int8_at(params.x, params.x_stride, row, group);
    return Quantized(
        bitcast<vec4<u32>>(ws[at]), bitcast<vec4<u32>>(ws[at + params.x_stride]), ws[at + 2u * params.x_stride]);
}

fn keep_row(thread: u32, x: Quantized) {
    if (thread >= STEP * ROWS_IN) {
        return;
    }
    let row = thread % ROWS_IN;
    let place = row % EACH * LANES_IN + row / EACH;
    let first = thread / ROWS_IN * 2u * ROWS_IN;
    x_codes[first + place] = x.lo;
    x_codes[first + ROWS_IN + place] = x.hi;
    x_line[thread / ROWS_IN * ROWS_IN + place] = x.line;
}

fn dot_16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// The scales of four rows of the matrix.
fn scale_of(at: u32) -> vec4<f32> {
    return vec4<f32>(w_scale[at], w_scale[at + 1u], w_scale[at + 2u], w_scale[at + 3u]);
}

//#if OFFSET
fn offset_of(at: u32) -> vec4<f32> {
    return vec4<f32>(w_offset[at], w_offset[at + 1u], w_offset[at + 2u], w_offset[at + 3u]);
}
//#endif

// Adds the products of a step's group, of one side, to sums of EACH batch rows, as vec4s over four rows of the matrix. The
// halves of the group come one after the other, so that a thread holds 16 weights of its rows at a time.
fn multiply(k: u32, side: u32, w_lane: u32, x_lane: u32, sum: ptr<function, array<vec4<f32>, EACH>>) {
//#if TWO_SCALES
    var products: array<vec4<f32>, EACH>;
//#else
    var products: array<vec4<i32>, EACH>;
//#endif
    for (var half = 0u; half < 2u; half++) {
        let first = ((k * SIDES + side) * 2u + half) * ROWS_OUT;
        let w_0 = w_codes[first + w_lane];
        let w_1 = w_codes[first + LANES_OUT + w_lane];
        let w_2 = w_codes[first + 2u * LANES_OUT + w_lane];
        let w_3 = w_codes[first + 3u * LANES_OUT + w_lane];
        for (var i = 0u; i < EACH; i++) {
            let x = x_codes[(k * 2u + half) * ROWS_IN + i * LANES_IN + x_lane];
            let dots = vec4<i32>(dot_16(w_0, x), dot_16(w_1, x), dot_16(w_2, x), dot_16(w_3, x));
//#if TWO_SCALES
            products[i] = products[i] + scale_of(first + w_lane * 4u) * vec4<f32>(dots);
//#if OFFSET
            let line = x_line[k * ROWS_IN + i * LANES_IN + x_lane];
            products[i] = products[i] + offset_of(first + w_lane * 4u) * line[1u + half];
//#endif
//#else
            products[i] += dots;
//#endif
        }
    }
    for (var i = 0u; i < EACH; i++) {
        let line = x_line[k * ROWS_IN + i * LANES_IN + x_lane];
//#if TWO_SCALES
        (*sum)[i] = (*sum)[i] + products[i] * line.x;
//#else
        let at = (k * SIDES + side) * ROWS_OUT + w_lane * 4u;
        var product = scale_of(at) * vec4<f32>(products[i]);
//#if OFFSET
        product = product + offset_of(at) * (line.y + line.z);
//#endif
        (*sum)[i] = (*sum)[i] + product * line.x;
//#endif
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_tile = (id.y + id.z * params.fold) * (ROWS_OUT / TILE);
    let first_row = id.x * ROWS_IN;
    fill_table(thread);
    let w_lane = thread % LANES_OUT;
    let x_lane = thread / LANES_OUT;

    var first: array<vec4<f32>, EACH>;
//#if GATED
    var second: array<vec4<f32>, EACH>;
//#endif
//#if AHEAD
    // The next step's are on their way while one is multiplied.
    var raw = fetch_weights(thread, first_tile, 0u);
    var x = fetch_row(thread, first_row, 0u);
//#endif
    for (var group = 0u; group < params.groups; group += STEP) {
//#if !AHEAD
        let raw = fetch_weights(thread, first_tile, group);
        let x = fetch_row(thread, first_row, group);
//#endif
        keep_weights(thread, raw, group);
        keep_row(thread, x);
        workgroupBarrier();
//#if AHEAD
        raw = fetch_weights(thread, first_tile, group + STEP);
        x = fetch_row(thread, first_row, group + STEP);
//#endif
        for (var k = 0u; k < STEP; k++) {
            multiply(k, 0u, w_lane, x_lane, &first);
//#if GATED
            multiply(k, 1u, w_lane, x_lane, &second);
//#endif
        }
        workgroupBarrier();
    }

    for (var i = 0u; i < EACH; i++) {
        let row = first_row + x_lane * EACH + i;
        let quad = first_tile * (TILE / 4u) + w_lane;
//#if GATED
        store(row, quad, first[i], second[i]);
//#else
        store(row, quad, first[i]);
//#endif
    }
}
