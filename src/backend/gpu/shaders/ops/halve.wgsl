// Makes halves of batch rows for `matmul_halves.wgsl`: a workgroup has a row.

//#include ops/halves

struct Params {
    // Where the rows begin and their width, in vec4s; where those that are written begin, and how many there is room for.
    x: u32,
    x_stride: u32,
    dst: u32,
    dst_stride: u32,
    // Vec4s and groups of a row, and the frame's word that counts the rows.
    x_quads: u32,
    groups: u32,
    count_at: u32,
    pad0: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> frame: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

var<workgroup> largest: array<u32, THREADS>;

// Halves of four numbers, to nearest even. They are numbers of f16 already when they are packed: the language leaves the direction
// of rounding to the driver. What is below its normal numbers is left to that.
fn packed(x: vec4<f32>) -> vec2<u32> {
    let bits = bitcast<vec4<u32>>(x);
    let near = (bits + vec4<u32>(0xfffu) + ((bits >> vec4<u32>(13u)) & vec4<u32>(1u))) & vec4<u32>(0xffffe000u);
    let nan = (bits & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    let y = select(bitcast<vec4<f32>>(near), x, nan);
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
        // After the end of a row are zeros.
        let lo = select(vec4<f32>(0.0), ws[first + min(2u * quad, params.x_quads - 1u)], 2u * quad < params.x_quads);
        let hi = select(
            vec4<f32>(0.0), ws[first + min(2u * quad + 1u, params.x_quads - 1u)], 2u * quad + 1u < params.x_quads);
        let halves = vec4<u32>(packed(lo * factor), packed(hi * factor));
        ws[halves_at(params.dst, params.dst_stride, row, quad)] = bitcast<vec4<f32>>(halves);
    }
    if (thread == 0u) {
        let at = halves_at(params.dst, params.dst_stride, row, params.groups * HALVES_QUADS);
        ws[at] = vec4<f32>(bitcast<f32>((254u - exponent) << 23u), 0.0, 0.0, 0.0);
    }
}
