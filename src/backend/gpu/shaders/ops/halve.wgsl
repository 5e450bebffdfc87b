// Makes halves of batch rows for `matmul_halves.wgsl`: a workgroup has a row.

//#include ops/halves
//#include ops/narrow
//#include ops/near_half

var<workgroup> largest: array<u32, THREADS>;

fn packed(x: vec4<f32>) -> vec2<u32> {
    let y = select(near_half(x), x, is_nan(x));
    return vec2<u32>(pack2x16float(y.xy), pack2x16float(y.zw));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = id.x;
    if (row >= frame[params.count_at]) {
        return;
    }
    let first = params.x + row * params.x_stride;
    var most = 0u;
    for (var quad = thread; quad < params.x_quads; quad += THREADS) {
        // Magnitudes compare like their bits.
        let size = bitcast<vec4<u32>>(ws[first + quad]) & vec4<u32>(0x7fffffffu);
        most = max(most, max(max(size.x, size.y), max(size.z, size.w)));
    }
    largest[thread] = most;
    for (var n = THREADS / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (thread < n) {
            largest[thread] = max(largest[thread], largest[thread + n]);
        }
    }
    workgroupBarrier();
    // 2^(13 - exponent of the largest), and one over that; of a row of zeros both are there, too.
    let exponent = clamp(267u - (largest[0] >> 23u), 14u, 240u);
    let factor = bitcast<f32>(exponent << 23u);
    for (var quad = thread; quad < params.groups * HALVES_QUADS; quad += THREADS) {
        let halves = vec4<u32>(packed(wide(first, 2u * quad) * factor), packed(wide(first, 2u * quad + 1u) * factor));
        ws[halves_at(params.dst, params.dst_stride, row, quad)] = bitcast<vec4<f32>>(halves);
    }
    if (thread == 0u) {
        let at = halves_at(params.dst, params.dst_stride, row, params.groups * HALVES_QUADS);
        ws[at] = vec4<f32>(bitcast<f32>((254u - exponent) << 23u), 0.0, 0.0, 0.0);
    }
}
