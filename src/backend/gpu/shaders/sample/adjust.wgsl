// The biases and penalties before all other steps.
//#include sample/common
//#include sample/scatter

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    enter(group.y);
    let path = path_of();
    if path != PATH_GREEDY && path != PATH_DIRECT && path != PATH_SELECT {
        return;
    }
    // Under a mask that is followed greedily all but the mask and the argmax.
    let count = select(spec[spec_at + SPEC_FIRST], ops_count() - 2u, forced());
    for (var i = 0u; i < count; i++) {
        scatter(lid, op_at(i));
    }
}
