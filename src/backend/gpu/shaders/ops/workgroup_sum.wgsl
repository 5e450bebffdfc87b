// The sum of one number per thread, in an order that depends on THREADS (a power of two) alone.

var<workgroup> sums: array<f32, THREADS>;

fn workgroup_sum(t: u32, x: f32) -> f32 {
    workgroupBarrier();
    sums[t] = x;
    for (var n = THREADS / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if (t < n) {
            sums[t] += sums[t + n];
        }
    }
    workgroupBarrier();
    return sums[0];
}
