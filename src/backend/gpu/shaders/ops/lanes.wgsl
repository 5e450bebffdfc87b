// What kernels share in which a thread is one row of a tile and one of K_LANES lanes along K. The kernel has `x_at`,
// which reads its input, unless it is NORM, and declares `sums`, a sum of each thread for each of its values.

//#if !NORM
// After the row's end all weights are zero, so its last values are read again; memory after the row may be NaN.
fn inside(quad: u32) -> u32 {
//#if RAGGED
    return min(quad, params.x_quads - 1u);
//#else
    return quad;
//#endif
}

fn x_group(which: u32, group: u32) -> Numbers {
    let q = group * 8u;
    return Numbers(
        mat4x4<f32>(x_at(which, q), x_at(which, q + 1u), x_at(which, q + 2u), x_at(which, q + 3u)),
        mat4x4<f32>(x_at(which, q + 4u), x_at(which, q + 5u), x_at(which, q + 6u), x_at(which, q + 7u)));
}

//#if OFFSET
fn sum_of(a: mat4x4<f32>) -> f32 {
    return dot(a[0] + a[1] + a[2] + a[3], vec4<f32>(1.0));
}
//#endif
//#endif

fn dots(a: mat4x4<f32>, b: mat4x4<f32>) -> f32 {
    return dot(a[0], b[0]) + dot(a[1], b[1]) + dot(a[2], b[2]) + dot(a[3], b[3]);
}

// Adds up the lanes of so many values, so that TILE sums of each are left.
fn add_lanes(thread: u32, values: u32) {
    workgroupBarrier();
    for (var i = thread; i < values * TILE; i += THREADS) {
        let at = i / TILE * THREADS + i % TILE;
        var value = 0.0;
        for (var k = 0u; k < K_LANES; k++) {
            value += sums[at + k * TILE];
        }
        sums[at] = value;
    }
    workgroupBarrier();
}

// Four rows' sums of a value, when lanes have been added up.
fn four_of(value: u32, quad: u32) -> vec4<f32> {
    let at = value * THREADS + quad * 4u;
    return vec4<f32>(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
}
