// The best candidate of each chunk of the row, and the least where a step asks for it. Makes the bins ready, too.
//#include sample/common
//#include sample/best
//#include sample/group_best

var<workgroup> shared_least: atomic<u32>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    enter(group.y);
    let path = path_of();
    if path != PATH_GREEDY && path != PATH_DIRECT && path != PATH_SELECT {
        return;
    }
    let start = group.x * frame.chunk;
    let end = min(start + frame.chunk, frame.n_vocab);
    if lid == 0u {
        atomicStore(&shared_least, 0u);
    }
    let spreads = spec[spec_at + SPEC_SPREADS] != 0u;
    var mine = NOTHING;
    var least = 0u;
    for (var token = start + lid; token < end; token += THREADS) {
        mine = seen(mine, token);
        if spreads {
            least = max(least, alive_or_first(token));
        }
    }
    let best = best_of_group(lid, mine);
    if spreads {
        atomicMax(&shared_least, least);
        workgroupBarrier();
    }
    if lid == 0u {
        let at = work_at + group.x * PARTIAL_WORDS;
        work[at] = best.rank;
        work[at + 1u] = best.token;
        work[at + 2u] = best.nan;
        work[at + 6u] = atomicLoad(&shared_least);
    }
    if path == PATH_SELECT && group.x == 0u {
        for (var i = lid; i < BINS_WORDS; i += THREADS) {
            atomicStore(&bins[bins_at + i], 0u);
        }
    }
}
