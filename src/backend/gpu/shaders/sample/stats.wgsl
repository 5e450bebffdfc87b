// The best candidate of each chunk of the row. Makes the bins ready, too.
//#include sample/common
//#include sample/best
//#include sample/group_best

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    enter(group.y);
    let path = path_of();
    if path != PATH_GREEDY && path != PATH_DIRECT && path != PATH_SELECT {
        return;
    }
    let start = group.x * frame.chunk;
    let end = min(start + frame.chunk, frame.n_vocab);
    var mine = NOTHING;
    for (var token = start + lid; token < end; token += THREADS) {
        mine = seen(mine, token);
    }
    let best = best_of_group(lid, mine);
    if lid == 0u {
        let at = work_at + group.x * PARTIAL_WORDS;
        work[at] = best.rank;
        work[at + 1u] = best.token;
        work[at + 2u] = best.nan;
    }
    if path == PATH_SELECT && group.x == 0u {
        for (var i = lid; i < BINS_WORDS; i += THREADS) {
            atomicStore(&bins[bins_at + i], 0u);
        }
    }
}
