// The best candidate of a row, and the first NaN.

struct Best {
    rank: u32,
    token: u32,
    nan: u32,
}

const NOTHING = Best(RANK_DEAD, 0xffffffffu, 0xffffffffu);

fn seen(best: Best, token: u32) -> Best {
    let rank = rank_at(token);
    let nan = rank_is_nan(rank);
    let better = !nan & (finite_rank(rank) < best.rank);
    return Best(
        select(best.rank, finite_rank(rank), better),
        select(best.token, token, better),
        select(best.nan, min(best.nan, token), nan),
    );
}

// What the workgroups of the statistics have left; of no legal candidate the one that is kept, from here on in the row, too. Every invocation looks through all of it: the reads do not wait for
// each other, and no barrier is needed.
fn best_of_row() -> Best {
    var best = NOTHING;
    for (var group = 0u; group * frame.chunk < frame.n_vocab; group++) {
        let at = work_at + group * PARTIAL_WORDS;
        // Groups go up by token, so of equal ones the first stays.
        let better = work[at] < best.rank;
        best = Best(
            select(best.rank, work[at], better),
            select(best.token, work[at + 1u], better),
            min(best.nan, work[at + 2u]),
        );
    }
    if masked_at != 0u && best.rank == RANK_DEAD && best.nan == 0xffffffffu {
        lone = children[child_at + CHILD_FIRST];
        return Best(rank_of(0u), lone, 0xffffffffu);
    }
    return best;
}

// The rank of a candidate, 0 for what is none.
fn alive_or_first(token: u32) -> u32 {
    let rank = rank_at(token);
    return select(finite_rank(rank), 0u, rank == RANK_DEAD || rank_is_nan(rank));
}

// The least candidate's rank, where the statistics have it.
fn least_of_row() -> u32 {
    var least = 0u;
    for (var group = 0u; group * frame.chunk < frame.n_vocab; group++) {
        least = max(least, work[work_at + group * PARTIAL_WORDS + 6u]);
    }
    return select(least, rank_of(0u), lone != 0xffffffffu);
}
