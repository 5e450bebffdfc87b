enable f16;
enable wgpu_cooperative_matrix;
// Two and three times the product of two matrices of BLOCK by BLOCK small integers, as matrix instructions compute it, with all
// that the kernels ask of them: arrays of sums that begin as zeros, and sums that go through workgroup memory.

const COUNT: u32 = BLOCK * BLOCK;
// Subgroups that a workgroup may have: each leaves its result in a place of its own.
const PLACES: u32 = THREADS / 4u;

//#include blocks

// The left matrix by rows, the right one by columns, then the results by rows.
@group(0) @binding(0) var<storage, read_write> numbers: array<f32>;

var<workgroup> left: array<f16, COUNT>;
var<workgroup> right: array<f16, COUNT>;
var<workgroup> sums: array<f32, PLACES * 2u * COUNT>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(subgroup_id) subgroup: u32) {
    for (var i = thread; i < COUNT; i += THREADS) {
        left[i] = f16(numbers[i]);
        right[i] = f16(numbers[COUNT + i]);
    }
    workgroupBarrier();
    let own = min(subgroup, PLACES - 1u) * 2u * COUNT;
    var all: array<Sums, 2>;
    for (var k = 0u; k < 2u; k++) {
        let a = coopLoadT<Left>(&left[0], BLOCK);
        let b = coopLoad<Right>(&right[0], BLOCK);
        for (var i = 0u; i < 2u; i++) {
            all[i] = coopMultiplyAdd(a, b, all[i]);
        }
    }
    for (var i = 0u; i < 2u; i++) {
        coopStoreT(all[i], &sums[own + i * COUNT], BLOCK);
    }
    workgroupBarrier();
    all[1] = coopLoadT<Sums>(&sums[own + COUNT], BLOCK);
    all[1] = coopMultiplyAdd(coopLoadT<Left>(&left[0], BLOCK), coopLoad<Right>(&right[0], BLOCK), all[1]);
    coopStoreT(all[1], &sums[own + COUNT], BLOCK);
    workgroupBarrier();
    for (var i = thread; i < 2u * COUNT; i += THREADS) {
        numbers[2u * COUNT + i] = sums[i];
    }
}
