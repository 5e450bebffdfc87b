// Products with the matrices of the experts that rows chose. The matrices lie one after the other in one matrix (in two, where
// one gates the other). With GATED a workgroup computes a tile of one of a row's experts, else of the sum over all of them.
//
// A slice has whole tiles: what an expert has in another slice is left to that one's dispatch.

//#include ops/weights
//#include ops/lanes
//#if GATED
//#include ops/activate
//#endif

//#if SCALE_FIRST
@group(0) @binding(BIND_SCALE_FIRST) var<storage, read> scale_first: array<f32>;
//#endif
//#if SCALE_SECOND
@group(0) @binding(BIND_SCALE_SECOND) var<storage, read> scale_second: array<f32>;
//#endif
//#if BIAS_FIRST
@group(0) @binding(BIND_BIAS_FIRST) var<storage, read> bias_first: array<vec4<f32>>;
//#endif
//#if BIAS_SECOND
@group(0) @binding(BIND_BIAS_SECOND) var<storage, read> bias_second: array<vec4<f32>>;
//#endif

// Of each side, a sum of each thread.
var<workgroup> sums: array<f32, SIDES * THREADS>;

fn x_at(first: u32, quad: u32) -> vec4<f32> {
    return ws[first + inside(quad)];
}

// A number of a row's route: its experts, then their weights.
fn routed(row: u32, i: u32) -> f32 {
    let at = row * 2u * params.used + i;
    return ws[params.route + at / 4u][at % 4u];
}

// The weight of a row's expert, where it is on this product.
fn weight_of(row: u32, choice: u32) -> f32 {
//#if WEIGHTED
    return routed(row, params.used + choice);
//#else
    return 1.0;
//#endif
}

// The row of the first matrix at which a tile of an expert begins.
fn first_row_of(expert: u32, tile: u32) -> u32 {
    return params.stack + expert * params.stack_rows + tile * TILE;
}

//#if GATED
fn second_row_of(expert: u32, tile: u32) -> u32 {
    return params.second_stack + expert * params.second_rows + tile * TILE;
}
//#endif

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    fill_table(thread);
    let tile = id.x + id.y * params.fold;
    if (tile * (TILE / 4u) >= params.part_dst) {
        return;
    }
//#if GATED
    let row = id.z / params.used;
    let begin = id.z % params.used;
    let end = begin + 1u;
//#else
    let row = id.z;
    let begin = 0u;
    let end = params.used;
//#endif
    let lane = thread % TILE;

    var parts: array<f32, SIDES>;
    for (var choice = begin; choice < end; choice++) {
        let expert = u32(routed(row, choice));
        // Wraps to a large number where the rows are before this slice.
        let at = first_row_of(expert, tile) - params.first_row;
        if (at >= params.rows) {
            continue;
        }
//#if GATED
        let x = params.x + row * params.x_stride;
        let other = second_row_of(expert, tile) - params.first_row;
//#else
        let x = params.x + row * params.x_stride + choice * params.part_x;
//#endif
        var own: array<f32, SIDES>;
        for (var group = thread / TILE; group < params.groups; group += K_LANES) {
            let numbers = x_group(x, group);
//#if OFFSET
            let x_sum = vec2<f32>(sum_of(numbers.lo), sum_of(numbers.hi));
//#endif
            for (var side = 0u; side < SIDES; side++) {
//#if GATED
                var raw: Raw;
                if (side == 1u) {
                    raw = fetch_second(other / TILE, lane, group);
                } else {
                    raw = fetch_first(at / TILE, lane, group);
                }
                let w = unpack(raw, group);
//#else
                let w = unpack(fetch_first(at / TILE, lane, group), group);
//#endif
                var part = w.scale.x * dots(w.q.lo, numbers.lo) + w.scale.y * dots(w.q.hi, numbers.hi);
//#if OFFSET
                part += dot(w.offset, x_sum);
//#endif
                own[side] += part;
            }
        }
        let weight = weight_of(row, choice);
        var factor = weight;
//#if SCALE_FIRST
        factor *= scale_first[expert];
//#endif
        parts[0] += factor * own[0];
//#if GATED
        factor = weight;
//#if SCALE_SECOND
        factor *= scale_second[expert];
//#endif
        parts[1] += factor * own[1];
//#endif
    }
    for (var side = 0u; side < SIDES; side++) {
        sums[side * THREADS + thread] = parts[side];
    }
    add_lanes(thread, SIDES);

    if (thread >= TILE / 4u) {
        return;
    }
    let quad = tile * (TILE / 4u) + thread;
//#if GATED
    let expert = u32(routed(row, begin));
    let at = first_row_of(expert, tile);
    if (at - params.first_row >= params.rows) {
        return;
    }
    var gate = four_of(0u, thread);
    var up = four_of(1u, thread);
//#if BIAS_FIRST
    gate += bias_first[at / 4u + thread];
//#endif
//#if BIAS_SECOND
    up += bias_second[second_row_of(expert, tile) / 4u + thread];
//#endif
    ws[params.dst + row * params.dst_stride + begin * params.part_dst + quad] = gated(gate, up);
//#else
    var value = four_of(0u, thread);
//#if BIAS_FIRST
    for (var choice = begin; choice < end; choice++) {
        let at = first_row_of(u32(routed(row, choice)), tile);
        if (at - params.first_row < params.rows) {
            value += weight_of(row, choice) * bias_first[at / 4u + thread];
        }
    }
//#endif
    let to = row * params.dst_stride + quad;
    if (params.residual != NONE) {
        value += ws[params.residual + to];
    }
    ws[params.dst + to] = value;
//#endif
}
