// The best candidate of what the invocations of a workgroup have seen, and the first NaN.

var<workgroup> shared_rank: atomic<u32>;
var<workgroup> shared_token: atomic<u32>;
var<workgroup> shared_nan: atomic<u32>;

fn best_of_group(lid: u32, mine: Best) -> Best {
    if lid == 0u {
        atomicStore(&shared_rank, RANK_DEAD);
        atomicStore(&shared_token, 0xffffffffu);
        atomicStore(&shared_nan, 0xffffffffu);
    }
    workgroupBarrier();
    atomicMin(&shared_rank, mine.rank);
    atomicMin(&shared_nan, mine.nan);
    workgroupBarrier();
    let rank = atomicLoad(&shared_rank);
    if mine.rank == rank {
        atomicMin(&shared_token, mine.token);
    }
    workgroupBarrier();
    return Best(rank, atomicLoad(&shared_token), atomicLoad(&shared_nan));
}
