// Quantises batch rows for `matmul_int8.wgsl`: a thread has 32 values of a row.

//#include ops/int8
//#include ops/narrow

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = id.x * ROWS + thread % ROWS;
    let group = (id.y + id.z * params.fold) * (THREADS / ROWS) + thread / ROWS;
    if (row >= frame[params.count_at] || group >= params.groups) {
        return;
    }
    let first = params.x + row * params.x_stride;
    var values: array<vec4<f32>, 8>;
    var size = vec4<f32>(0.0);
    for (var i = 0u; i < 8u; i++) {
        values[i] = wide(first, group * 8u + i);
        size = max(size, abs(values[i]));
    }
    let most = max(max(size.x, size.y), max(size.z, size.w));
    // A group of zeros has zeros for codes, whatever its scale is.
    let factor = select(127.0 / most, 0.0, most == 0.0);
    var codes: array<vec4<u32>, 2>;
    var sums: vec2<f32>;
    for (var i = 0u; i < 8u; i++) {
        let rounded = round(values[i] * factor);
        codes[i / 4u][i % 4u] = pack4xI8(vec4<i32>(rounded));
        sums[i / 4u] += rounded.x + rounded.y + rounded.z + rounded.w;
    }
    let at = int8_at(params.dst, params.dst_stride, row, group);
    ws[at] = bitcast<vec4<f32>>(codes[0]);
    ws[at + params.dst_stride] = bitcast<vec4<f32>>(codes[1]);
    ws[at + 2u * params.dst_stride] = vec4<f32>(most / 127.0, sums, 0.0);
}
