// Products of few rows: one, or up to COLUMNS batch rows at once.
//
// A thread is one row of a tile and one of K_LANES lanes along K. Neighbouring threads are neighbouring rows: together
// they read whole lines of the weights, and all read the same activations, which is one access for the hardware. Each
// has SIDES x COLUMNS sums: for a gated product a side is a matrix (gate, up), otherwise the sides are tiles next to
// each other, so that activations are read once for several rows. With AHEAD the weights of a thread's next group are read
// before those of this one are used, so that reads are under way all the time. At the end the lanes are added up through
// workgroup memory, in a fixed order; no subgroups are needed, because no lane ever reduces across rows.
//
// With NORM the input is one row, x * norm / sqrt(mean(x^2) + eps). The workgroup keeps CHUNK vec4s of x * norm at a time in
// its memory: one thread computes each, the threads of all rows read it. The sum of squares is taken along the way and
// its root multiplied in at the end.
//
// With ADDED the input is x + y * added / sqrt(mean(y^2) + eps) to begin with: every workgroup first sums the squares of y,
// and the first one stores the sum.

//#include ops/weights
//#include ops/epilogue

//#if ADDED
@group(0) @binding(BIND_ADDED) var<storage, read> added: array<vec4<f32>>;
// On y.
var<private> y_factor: f32;
//#endif
//#if NORM
@group(0) @binding(BIND_NORM) var<storage, read> norm: array<vec4<f32>>;
var<workgroup> normed: array<vec4<f32>, CHUNK>;
//#if OFFSET
// The sum of each.
var<workgroup> normed_sums: array<f32, CHUNK>;
//#endif
const VALUES: u32 = SIDES + 1u;
//#else
const VALUES: u32 = SIDES * COLUMNS;
//#endif

//#include ops/lanes

// For each side and column, then (with NORM) for the squares, a sum of each thread.
var<workgroup> sums: array<f32, VALUES * THREADS>;

fn fetch(side: u32, first_tile: u32, row: u32, group: u32) -> Raw {
    // Tiles after the last are computed as that one, and not stored.
    let last_tile = (params.rows - 1u) / TILE;
//#if GATED
    if (side == 1u) {
        return fetch_second(min(first_tile, last_tile), row, group);
    }
    return fetch_first(min(first_tile, last_tile), row, group);
//#else
    return fetch_first(min(first_tile + side, last_tile), row, group);
//#endif
}

//#if HEADS
// The head whose matrix the workgroup multiplies.
var<private> head: u32;
//#endif

//#if NORM
// The row before its norm.
fn input_at(quad: u32) -> vec4<f32> {
//#if ADDED
    return ws[params.x + quad] + ws[params.y + quad] * y_factor * added[quad];
//#else
    return ws[params.x + quad];
//#endif
}

fn x_of(column: u32, group: u32) -> Numbers {
    let q = group % (CHUNK / 8u) * 8u;
    return Numbers(
        mat4x4<f32>(normed[q], normed[q + 1u], normed[q + 2u], normed[q + 3u]),
        mat4x4<f32>(normed[q + 4u], normed[q + 5u], normed[q + 6u], normed[q + 7u]));
}

//#if OFFSET
fn sums_of(x: Numbers, group: u32) -> vec2<f32> {
    let q = group % (CHUNK / 8u) * 8u;
    return vec2<f32>(
        normed_sums[q] + normed_sums[q + 1u] + normed_sums[q + 2u] + normed_sums[q + 3u],
        normed_sums[q + 4u] + normed_sums[q + 5u] + normed_sums[q + 6u] + normed_sums[q + 7u]);
}
//#endif
//#else
fn x_at(column: u32, quad: u32) -> vec4<f32> {
//#if HEADS
    return ws[params.x + column * params.x_stride + head * params.part_x + inside(quad)];
//#else
    return ws[params.x + column * params.x_stride + inside(quad)];
//#endif
}

fn x_of(column: u32, group: u32) -> Numbers {
    return x_group(column, group);
}

//#if OFFSET
fn sums_of(x: Numbers, group: u32) -> vec2<f32> {
    return vec2<f32>(sum_of(x.lo), sum_of(x.hi));
}
//#endif
//#endif

// The TILE sums that are left of a value.
fn all_of(value: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < TILE; i++) {
        sum += sums[value * THREADS + i];
    }
    return sum;
}

// What is on a column's sums.
fn factor_of(column: u32) -> f32 {
//#if NORM
    return inverseSqrt(all_of(SIDES) / f32(params.x_quads * 4u) + params.real);
//#else
    return 1.0;
//#endif
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    var first_tile = (id.x + id.y * params.fold) * OUT_TILES;
//#if LISTED
    // Each workgroup computes the tiles of one listed row, unless that is another slice's.
    var elsewhere = false;
    if (frame[FRAME_N_LISTED] > 0u) {
        let listed = frame[FRAME_LISTED + id.x] - params.first_row;
        elsewhere = listed >= params.rows;
        first_tile = listed / (OUT_TILES * TILE) * OUT_TILES;
    }
//#endif
//#if HEADS
    head = head_of(first_tile * TILE);
//#endif
    fill_table(thread);
    let row = thread % TILE;
    let columns = select(min(frame[params.count_at], params.columns), 1u, COLUMNS == 1u);

//#if ADDED
    var y_square = 0.0;
    for (var i = thread; i < params.x_quads; i += THREADS) {
        let y = ws[params.y + i];
        y_square += dot(y, y);
    }
    sums[thread] = y_square;
    add_lanes(thread, 1u);
    y_factor = inverseSqrt(all_of(0u) / f32(params.x_quads * 4u) + params.y_eps);
    workgroupBarrier();
    if (params.sum != NONE && id.x == 0u && id.y == 0u) {
        for (var i = thread; i < params.x_quads; i += THREADS) {
            ws[params.sum + i] = input_at(i);
        }
    }
//#endif

//#if LISTED
    if (elsewhere) {
        return;
    }
//#endif

    // One column's sums are kept at hand; those of more columns in the workgroup's memory, where each thread has places
    // of its own, so that the loop over columns needs no copy of its body for each.
    var one: array<f32, SIDES>;
    if (COLUMNS > 1u) {
        for (var i = thread; i < VALUES * THREADS; i += THREADS) {
            sums[i] = 0.0;
        }
    }
    var group = thread / TILE;
    var raw: array<Raw, SIDES>;
//#if AHEAD
    if (group < params.groups) {
        for (var side = 0u; side < SIDES; side++) {
            raw[side] = fetch(side, first_tile, row, group);
        }
    }
//#endif
//#if NORM
    var square = 0.0;
    for (var first = 0u; first < params.x_quads; first += CHUNK) {
        // Every thread is done with what is there.
        workgroupBarrier();
        let count = min(params.groups * 8u - first, CHUNK);
        for (var i = thread; i < count; i += THREADS) {
            let quad = first + i;
            var x = vec4<f32>(0.0);
            if (quad < params.x_quads) {
                x = input_at(quad);
                square += dot(x, x);
                x *= norm[quad];
            }
            normed[i] = x;
//#if OFFSET
            normed_sums[i] = x.x + x.y + x.z + x.w;
//#endif
        }
        workgroupBarrier();
        let end = (first + count) / 8u;
//#else
        let end = params.groups;
//#endif
        for (; group < end; group += K_LANES) {
//#if AHEAD
            let now = raw;
            let next = group + K_LANES;
            if (next < params.groups) {
                for (var side = 0u; side < SIDES; side++) {
                    raw[side] = fetch(side, first_tile, row, next);
                }
            }
//#else
            for (var side = 0u; side < SIDES; side++) {
                raw[side] = fetch(side, first_tile, row, group);
            }
            let now = raw;
//#endif
            var w: array<Weights, SIDES>;
            for (var side = 0u; side < SIDES; side++) {
                w[side] = unpack(now[side], group);
            }
            for (var column = 0u; column < columns; column++) {
                let x = x_of(column, group);
//#if OFFSET
                let x_sum = sums_of(x, group);
//#endif
                for (var side = 0u; side < SIDES; side++) {
                    var part = w[side].scale.x * dots(w[side].q.lo, x.lo) + w[side].scale.y * dots(w[side].q.hi, x.hi);
//#if OFFSET
                    part += dot(w[side].offset, x_sum);
//#endif
                    if (COLUMNS == 1u) {
                        one[side] += part;
                    } else {
                        sums[(side * COLUMNS + column) * THREADS + thread] += part;
                    }
                }
            }
        }
//#if NORM
    }
    sums[SIDES * THREADS + thread] = square;
//#endif
    if (COLUMNS == 1u) {
        for (var side = 0u; side < SIDES; side++) {
            sums[side * THREADS + thread] = one[side];
        }
    }
    add_lanes(thread, VALUES);

//#if ONE
    if (thread * 4u < COLUMNS) {
        var value = vec4<f32>(0.0);
        for (var i = 0u; i < min(COLUMNS, 4u); i++) {
            value[i] = factor_of(4u * thread + i) * sums[(4u * thread + i) * THREADS];
        }
        store_ones(4u * thread, value);
    }
//#else
    // A vec4 of a column each: OUT_TILES tiles of two.
    let column = thread / (OUT_TILES * 2u);
    let quad = thread % (OUT_TILES * 2u);
    if (column >= COLUMNS) {
        return;
    }
    let factor = factor_of(column);
//#if GATED
    let first = factor * four_of(column, quad);
    store(column, first_tile * 2u + quad, first, factor * four_of(COLUMNS + column, quad));
//#else
    store(column, first_tile * 2u + quad, factor * four_of(quad / 2u * COLUMNS + column, quad % 2u));
//#endif
//#endif
}
