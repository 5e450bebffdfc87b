// Products of few rows: COLUMNS batch rows at once.
//
// A thread is one row of a tile and one of K_LANES lanes along K. Neighbouring threads are neighbouring rows: together
// they read whole lines of the weights, and all read the same activations, which is one access for the hardware. Each
// has SIDES x COLUMNS sums: for a gated product a side is a matrix (gate, up), otherwise the sides are tiles next to
// each other, so that activations are read once for several rows. At the end the lanes are added up through workgroup
// memory, in a fixed order; no subgroups are needed, because no lane ever reduces across rows.
//
// With NORM the input is x * norm / sqrt(mean(x^2) + eps): the sum of squares is taken along the way and its root
// multiplied in at the end.

//#include weights
//#include epilogue

//#if NORM
@group(0) @binding(BIND_NORM) var<storage, read> norm: array<vec4<f32>>;
var<workgroup> squares: array<f32, COLUMNS * THREADS>;
//#endif
var<workgroup> sums: array<f32, SIDES * COLUMNS * THREADS>;

fn fetch(side: u32, first_tile: u32, row: u32, group: u32) -> Raw {
//#if GATED
    if (side == 1u) {
        return fetch_second(min(first_tile, params.tiles - 1u), row, group);
    }
    return fetch_first(min(first_tile, params.tiles - 1u), row, group);
//#else
    return fetch_first(min(first_tile + side, params.tiles - 1u), row, group);
//#endif
}

// Behind the row's end, where all weights are zero, its last values are as good as any; what stands there may be NaN.
fn inside(quad: u32) -> u32 {
//#if RAGGED
    return min(quad, params.x_quads - 1u);
//#else
    return quad;
//#endif
}

fn x_group(start: u32, group: u32) -> Numbers {
    let q = group * 8u;
    return Numbers(
        mat4x4<f32>(
            ws[start + inside(q)], ws[start + inside(q + 1u)],
            ws[start + inside(q + 2u)], ws[start + inside(q + 3u)]),
        mat4x4<f32>(
            ws[start + inside(q + 4u)], ws[start + inside(q + 5u)],
            ws[start + inside(q + 6u)], ws[start + inside(q + 7u)]));
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

fn dots(a: mat4x4<f32>, b: mat4x4<f32>) -> f32 {
    return dot(a[0], b[0]) + dot(a[1], b[1]) + dot(a[2], b[2]) + dot(a[3], b[3]);
}

//#if OFFSET
fn sum_of(a: mat4x4<f32>) -> f32 {
    return dot(a[0] + a[1] + a[2] + a[3], vec4<f32>(1.0));
}
//#endif

// Four rows of a side, all lanes along K.
fn total(side: u32, column: u32, quad: u32) -> vec4<f32> {
    var value = vec4<f32>();
    for (var k = 0u; k < K_LANES; k++) {
        let at = (side * COLUMNS + column) * THREADS + k * TILE + quad * 4u;
        value += vec4<f32>(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
    }
    return value;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_tile = (id.x + id.y * params.fold) * OUT_TILES;
    let row = thread % TILE;
    let columns = select(min(frame[ROW_COUNT], params.columns), 1u, COLUMNS == 1u);

    // One column's sums are kept at hand; those of more columns in the workgroup's memory, where each thread has places
    // of its own, so that the loop over columns needs no copy of its body for each.
    var one: array<f32, SIDES>;
    var one_square = 0.0;
    for (var i = thread; i < SIDES * COLUMNS * THREADS; i += THREADS) {
        sums[i] = 0.0;
    }
//#if NORM
    for (var i = thread; i < COLUMNS * THREADS; i += THREADS) {
        squares[i] = 0.0;
    }
//#endif
    for (var group = thread / TILE; group < params.groups; group += K_LANES) {
        var w: array<Weights, SIDES>;
        for (var side = 0u; side < SIDES; side++) {
            w[side] = unpack(fetch(side, first_tile, row, group), group);
        }
//#if NORM
        let factors = norm_group(group);
//#endif
        for (var column = 0u; column < columns; column++) {
            let start = params.x + column * params.x_stride;
            var x = x_group(start, group);
//#if NORM
            x = Numbers(times(x.lo, factors.lo), times(x.hi, factors.hi));
            // The eight threads of a lane share the eight vec4s of a group.
            let quad = group * 8u + row;
            let own = ws[start + inside(quad)];
            let square = select(0.0, dot(own, own), quad < params.x_quads);
            if (COLUMNS == 1u) {
                one_square += square;
            } else {
                squares[column * THREADS + thread] += square;
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
        squares[thread] = one_square;
//#endif
    }
    workgroupBarrier();
//#if NORM
    if (thread < COLUMNS * TILE) {
        let at = thread / TILE * THREADS + row;
        var value = 0.0;
        for (var k = 0u; k < K_LANES; k++) {
            value += squares[at + k * TILE];
        }
        squares[at] = value;
    }
    workgroupBarrier();
//#endif

    // A vec4 of a column each: OUT_TILES tiles of two.
    let column = thread / (OUT_TILES * 2u);
    let quad = thread % (OUT_TILES * 2u);
    if (column >= COLUMNS) {
        return;
    }
    var factor = 1.0;
//#if NORM
    var square_sum = 0.0;
    for (var i = 0u; i < TILE; i++) {
        square_sum += squares[column * THREADS + i];
    }
    factor = inverseSqrt(square_sum / f32(params.x_quads * 4u) + params.real);
//#endif
//#if GATED
    let value = activate(factor * total(0u, column, quad)) * (factor * total(1u, column, quad));
//#else
    let value = factor * total(quad / 2u, column, quad % 2u);
//#endif
    store(column, first_tile * 2u + quad, value);
}
