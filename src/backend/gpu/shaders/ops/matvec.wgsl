// Products of few rows: one, or up to COLUMNS batch rows at once.
//
// A thread is one row of a tile and one of K_LANES lanes along K. Neighbouring threads are neighbouring rows: together
// they read whole lines of the weights, and all read the same activations, which is one access for the hardware. Each
// has SIDES x COLUMNS sums: for a gated product a side is a matrix (gate, up), otherwise the sides are tiles next to
// each other, so that activations are read once for several rows. At the end the lanes are added up through workgroup
// memory, in a fixed order; no subgroups are needed, because no lane ever reduces across rows.
//
// With NORM the input is x * norm / sqrt(mean(x^2) + eps): the sum of squares is taken along the way and its root
// multiplied in at the end.
//
// With ADDED the input is x + y * added / sqrt(mean(y^2) + eps) to begin with: every workgroup first sums the squares of y,
// and the first one stores the sum.

//#include ops/weights
//#include ops/epilogue

//#if ADDED
@group(0) @binding(BIND_ADDED) var<storage, read> added: array<vec4<f32>>;
// Of each column, the factor of y.
var<workgroup> factors: array<f32, COLUMNS>;
//#endif
//#if NORM
@group(0) @binding(BIND_NORM) var<storage, read> norm: array<vec4<f32>>;
const VALUES: u32 = (SIDES + 1u) * COLUMNS;
//#else
const VALUES: u32 = SIDES * COLUMNS;
//#endif

//#include ops/lanes

// For each side and column, then (with NORM) for the squares of each column, a sum of each thread.
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

fn x_at(column: u32, quad: u32) -> vec4<f32> {
//#if HEADS
    let at = column * params.x_stride + head * params.part_x + inside(quad);
//#else
    let at = column * params.x_stride + inside(quad);
//#endif
//#if ADDED
    return ws[params.x + at] + ws[params.y + at] * factors[column] * added[inside(quad)];
//#else
    return ws[params.x + at];
//#endif
}

//#if NORM
fn norm_group(group: u32) -> Numbers {
    let q = group * 8u;
    return Numbers(
        mat4x4<f32>(norm[inside(q)], norm[inside(q + 1u)], norm[inside(q + 2u)], norm[inside(q + 3u)]),
        mat4x4<f32>(norm[inside(q + 4u)], norm[inside(q + 5u)], norm[inside(q + 6u)], norm[inside(q + 7u)]));
}

fn times(a: mat4x4<f32>, b: mat4x4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]);
}
//#endif

// The TILE sums that are left of a value.
fn all_of(value: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < TILE; i++) {
        sum += sums[value * THREADS + i];
    }
    return sum;
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
    let row = thread % TILE;
    let columns = select(min(frame[params.count_at], params.columns), 1u, COLUMNS == 1u);

//#if ADDED
    for (var column = 0u; column < columns; column++) {
        var square = 0.0;
        for (var i = thread; i < params.x_quads; i += THREADS) {
            let y = ws[params.y + column * params.x_stride + i];
            square += dot(y, y);
        }
        sums[column * THREADS + thread] = square;
    }
    add_lanes(thread, COLUMNS);
    if (thread < COLUMNS) {
        factors[thread] = inverseSqrt(all_of(thread) / f32(params.x_quads * 4u) + params.y_eps);
    }
    workgroupBarrier();
    if (params.sum != NONE && id.x == 0u && id.y == 0u) {
        for (var column = 0u; column < columns; column++) {
            for (var i = thread; i < params.x_quads; i += THREADS) {
                ws[params.sum + column * params.x_stride + i] = x_at(column, i);
            }
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
    var one_square = 0.0;
    if (COLUMNS > 1u) {
        for (var i = thread; i < VALUES * THREADS; i += THREADS) {
            sums[i] = 0.0;
        }
    }
    for (var group = thread / TILE; group < params.groups; group += K_LANES) {
        var w: array<Weights, SIDES>;
        for (var side = 0u; side < SIDES; side++) {
            w[side] = unpack(fetch(side, first_tile, row, group), group);
        }
//#if NORM
        let norms = norm_group(group);
//#endif
        for (var column = 0u; column < columns; column++) {
            var x = x_group(column, group);
//#if NORM
            x = Numbers(times(x.lo, norms.lo), times(x.hi, norms.hi));
            // The eight threads of a lane share the eight vec4s of a group.
            let quad = group * 8u + row;
            let own = x_at(column, quad);
            let square = select(0.0, dot(own, own), quad < params.x_quads);
            if (COLUMNS == 1u) {
                one_square += square;
            } else {
                sums[(SIDES * COLUMNS + column) * THREADS + thread] += square;
            }
//#endif
//#if OFFSET
            let x_sum = vec2<f32>(sum_of(x.lo), sum_of(x.hi));
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
    if (COLUMNS == 1u) {
        for (var side = 0u; side < SIDES; side++) {
            sums[side * THREADS + thread] = one[side];
        }
//#if NORM
        sums[SIDES * THREADS + thread] = one_square;
//#endif
    }
    add_lanes(thread, VALUES);

    // A vec4 of a column each: OUT_TILES tiles of two.
    let column = thread / (OUT_TILES * 2u);
    let quad = thread % (OUT_TILES * 2u);
    if (column >= COLUMNS) {
        return;
    }
    var factor = 1.0;
//#if NORM
    factor = inverseSqrt(all_of(SIDES * COLUMNS + column) / f32(params.x_quads * 4u) + params.real);
//#endif
//#if GATED
    let first = factor * four_of(column, quad);
    store(column, first_tile * 2u + quad, first, factor * four_of(COLUMNS + column, quad));
//#else
    store(column, first_tile * 2u + quad, factor * four_of(quad / 2u * COLUMNS + column, quad % 2u));
//#endif
}
