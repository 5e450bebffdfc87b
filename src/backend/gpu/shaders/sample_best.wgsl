// The best candidate of what the invocations of a workgroup have seen, and the first NaN.

var<workgroup> shared_rank: atomic<u32>;
var<workgroup> shared_token: atomic<u32>;
var<workgroup> shared_nan: atomic<u32>;

struct Best {
    rank: u32,
    token: u32,
    nan: u32,
}

const NOTHING = Best(RANK_DEAD, 0xffffffffu, 0xffffffffu);

fn seen(best: Best, token: u32) -> Best {
    let bits = logits[row_at + token];
    let rank = rank_of(bits);
    var next = best;
    if rank_is_nan(rank) {
        next.nan = min(next.nan, token);
    } else if finite_rank(rank) < best.rank {
        next.rank = finite_rank(rank);
        next.token = token;
    }
    return next;
}

fn best_of_all(lid: u32, mine: Best) -> Best {
    if lid == 0u {
        atomicStore(&shared_rank, RANK_DEAD);
        atomicStore(&shared_token, 0xffffffffu);
        atomicStore(&shared_nan, 0xffffffffu);
    }
    workgroupBarrier();
    if mine.rank < RANK_DEAD {
        atomicMin(&shared_rank, mine.rank);
    }
    if mine.nan != 0xffffffffu {
        atomicMin(&shared_nan, mine.nan);
    }
    workgroupBarrier();
    let rank = atomicLoad(&shared_rank);
    if mine.rank == rank && rank < RANK_DEAD {
        atomicMin(&shared_token, mine.token);
    }
    workgroupBarrier();
    let all = Best(rank, atomicLoad(&shared_token), atomicLoad(&shared_nan));
    workgroupBarrier();
    return all;
}

// What the workgroups of the statistics have left.
fn best_of_row(lid: u32) -> Best {
    var mine = NOTHING;
    if lid * frame.chunk < frame.n_vocab && lid < GROUPS {
        let at = work_at + lid * PARTIAL_WORDS;
        mine = Best(work[at], work[at + 1u], work[at + 2u]);
    }
    return best_of_all(lid, mine);
}
