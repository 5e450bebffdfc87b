// Rows of a table at the batch's tokens or positions, times a factor, with or without something to add. One thread per group; a slice writes the rows that it holds.

//#include ops/weights

//#if TOKEN
@group(0) @binding(BIND_SAMPLED) var<storage, read> sampled: array<u32>;
//#endif

fn put(row: u32, quad: u32, value: vec4<f32>) {
    if (quad < params.x_quads) {
        let at = row * params.dst_stride + quad;
//#if RESIDUAL
        ws[params.dst + at] = params.real * value + ws[params.residual + at];
//#else
        ws[params.dst + at] = params.real * value;
//#endif
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    fill_table(thread);
    let row = id.y;
    let group = id.x * THREADS + thread;
    if (row >= frame[params.count_at] || group >= params.groups) {
        return;
    }
//#if TOKEN
    var token = frame[FRAME_ROWS + 4u * row];
    if (token >= SAMPLED_TOKEN) {
        token = sampled[~token];
    }
//#else
//#if POSITION
    let token = frame[FRAME_ROWS + 4u * row + 1u];
//#else
    let token = 0u;
//#endif
//#endif
    // Wraps to a large number where the token's row is before this slice.
    let own_row = token - params.first_row;
    if (own_row >= params.rows) {
        return;
    }
    let w = values(unpack(fetch_first(own_row / TILE, own_row % TILE, group), group));
    let quad = group * 8u;
    put(row, quad, w.lo[0]);
    put(row, quad + 1u, w.lo[1]);
    put(row, quad + 2u, w.lo[2]);
    put(row, quad + 3u, w.lo[3]);
    put(row, quad + 4u, w.hi[0]);
    put(row, quad + 5u, w.hi[1]);
    put(row, quad + 6u, w.hi[2]);
    put(row, quad + 7u, w.hi[3]);
}
