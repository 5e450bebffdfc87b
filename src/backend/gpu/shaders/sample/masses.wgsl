// Weighs what is left of each chunk of the row.
//#include sample/common
//#include sample/best
//#include sample/sums

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    enter(group.y);
    let path = path_of();
    if path != PATH_DIRECT && path != PATH_SELECT && path != PATH_ROW {
        return;
    }
    var cut = END;
    var best: f32;
    var scale = bitcast<f32>(spec[spec_at + SPEC_SCALE]);
    if path == PATH_DIRECT {
        let row = best_of_row();
        let failed = row.nan != 0xffffffffu || row.rank == RANK_DEAD;
        best = logit_of(row.rank);
        for (var i = spec[spec_at + SPEC_FIRST]; i < ops_count(); i++) {
            if word(op_at(i), 0u) == OP_MIN_P {
                let lowest = lowest_of(best, number(op_at(i), 1u));
                cut.y = min(cut.y, rank_of(bitcast<u32>(lowest)));
            }
        }
        if group.x == 0u && lid == 0u {
            state[state_at + STATE_MODE] = select(MODE_DRAW, MODE_FAILED, failed);
            state[state_at + STATE_STATUS] = select(STATUS_NONE, STATUS_NAN, row.nan != 0xffffffffu);
            state[state_at + STATE_TOLD] = row.nan;
            state[state_at + STATE_BEST] = row.rank;
            state[state_at + STATE_CUT] = cut.x;
            state[state_at + STATE_CUT + 1u] = cut.y;
            state[state_at + STATE_SCALE] = bitcast<u32>(scale);
            state[state_at + STATE_REPORTED] = 0u;
        }
        if failed {
            return;
        }
    } else {
        if state[state_at + STATE_MODE] != MODE_DRAW {
            return;
        }
        best = logit_of(state[state_at + STATE_BEST]);
        cut = vec2<u32>(state[state_at + STATE_CUT], state[state_at + STATE_CUT + 1u]);
        scale = bitcast<f32>(state[state_at + STATE_SCALE]);
    }
    let start = group.x * frame.chunk;
    let end = min(start + frame.chunk, frame.n_vocab);
    var count = 0u;
    var mass = vec2<u32>(0u);
    for (var token = start + lid; token < end; token += THREADS) {
        let rank = finite_rank(rank_at(token));
        let stays = !less64(cut, vec2<u32>(token, rank));
        let added = weight(below(logit_of(rank), best, scale));
        count += select(0u, 1u, stays);
        mass = add64(mass, select(vec2<u32>(0u), added, stays));
    }
    sum_up_to(lid, Sum(mass, count));
    if lid == 0u {
        let all = sum_of_all();
        let at = work_at + group.x * PARTIAL_WORDS;
        work[at + 3u] = all.mass.x;
        work[at + 4u] = all.mass.y;
        work[at + 5u] = all.count;
    }
}
