enable f16;
enable wgpu_cooperative_matrix;
// Two times the product of two matrices of BLOCK by BLOCK small integers, as matrix instructions compute it.

const COUNT: u32 = BLOCK * BLOCK;
// Subgroups that a workgroup may have: each leaves its result in a place of its own.
const PLACES: u32 = THREADS / 4u;

//#include blocks

// The left matrix by rows, the right one by columns, then the result by rows.
@group(0) @binding(0) var<storage, read_write> numbers: array<f32>;

var<workgroup> left: array<f16, COUNT>;
var<workgroup> right: array<f16, COUNT>;
var<workgroup> sums: array<f32, PLACES * COUNT>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(subgroup_id) subgroup: u32) {
    for (var i = thread; i < COUNT; i += THREADS) {
        left[i] = f16(numbers[i]);
        right[i] = f16(numbers[COUNT + i]);
    }
    workgroupBarrier();
    let a = coopLoadT<Left>(&left[0], BLOCK);
    let b = coopLoad<Right>(&right[0], BLOCK);
    var c = coopMultiplyAdd(a, b, Sums());
    c = coopMultiplyAdd(a, b, c);
    coopStoreT(c, &sums[min(subgroup, PLACES - 1u) * COUNT], BLOCK);
    workgroupBarrier();
    for (var i = thread; i < COUNT; i += THREADS) {
        numbers[2u * COUNT + i] = sums[i];
    }
}
