// Draws from the row, by id: first the chunk, then the token in it. Takes the best where the chain asks for no more.
//#include sample_common
//#include sample_best
//#include sample_sums

var<workgroup> mode: u32;
// The chunk that the draw falls into, and what of the share is left before it; then the token.
var<workgroup> chosen: u32;
var<workgroup> left: vec2<u32>;

fn greedy(lid: u32) {
    let row = best_of_row(lid);
    if lid != 0u {
        return;
    }
    if row.nan != 0xffffffffu {
        publish_failure(STATUS_NAN, row.nan);
    } else if row.rank == RANK_DEAD {
        publish_failure(STATUS_NONE, 0u);
    } else {
        let reported = min(1u, spec[spec_at + SPEC_REPORT]);
        if reported == 1u {
            report(0u, row.token, row.rank, bitcast<f32>(spec[spec_at + SPEC_SCALE]), 1.0f);
        }
        publish(row.token, 0.0f, weight(0.0f), 1u, reported);
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    enter(group.y);
    let path = path_of();
    if path == PATH_GREEDY {
        greedy(lid);
        return;
    }
    if path != PATH_DIRECT && path != PATH_SELECT && path != PATH_ROW {
        return;
    }
    if lid == 0u {
        mode = state[state_at + STATE_MODE];
    }
    workgroupBarrier();
    if mode == MODE_FAILED && lid == 0u {
        publish_failure(state[state_at + STATE_STATUS], state[state_at + STATE_TOLD]);
    }
    if mode != MODE_DRAW {
        return;
    }
    let best = logit_of(state[state_at + STATE_BEST]);
    let cut = vec2<u32>(state[state_at + STATE_CUT], state[state_at + STATE_CUT + 1u]);
    let scale = bitcast<f32>(state[state_at + STATE_SCALE]);
    let reported = state[state_at + STATE_REPORTED];
    var mass = vec2<u32>(0u);
    var count = 0u;
    if lid < GROUPS && lid * frame.chunk < frame.n_vocab {
        let at = work_at + lid * PARTIAL_WORDS;
        mass = vec2<u32>(work[at + 3u], work[at + 4u]);
        count = work[at + 5u];
    }
    sum_up_to(lid, vec2<u32>(count, 0u));
    let kept = sums[THREADS - 1u].x;
    let up_to = sum_up_to(lid, mass);
    let total = sums[THREADS - 1u];
    let share = share_of(total, random_bits());
    let before = sub64(up_to, mass);
    if less64(share, up_to) && !less64(share, before) {
        chosen = lid;
        left = sub64(share, before);
    }
    workgroupBarrier();
    let start = chosen * frame.chunk;
    let end = min(start + frame.chunk, frame.n_vocab);
    let rest = left;
    let run = (frame.chunk + THREADS - 1u) / THREADS;
    let first = start + lid * run;
    let last = min(first + run, end);
    mass = vec2<u32>(0u);
    for (var token = first; token < last; token++) {
        let rank = finite_rank(rank_at(token));
        if !less64(cut, vec2<u32>(token, rank)) {
            mass = add64(mass, weight(below(logit_of(rank), best, scale)));
        }
    }
    var reached = sub64(sum_up_to(lid, mass), mass);
    if !less64(rest, reached) && less64(rest, add64(reached, mass)) {
        for (var token = first; token < last; token++) {
            let rank = finite_rank(rank_at(token));
            if !less64(cut, vec2<u32>(token, rank)) {
                let z = below(logit_of(rank), best, scale);
                reached = add64(reached, weight(z));
                if less64(rest, reached) {
                    publish(token, z, total, kept, reported);
                    break;
                }
            }
        }
    }
    for (var i = lid; i < reported; i += THREADS) {
        let at = state_at + STATE_REPORT + 4u * i;
        let z = below(logit_of(state[at + 3u]), best, scale);
        state[at + 2u] = bitcast<u32>(float64(weight(z)) / float64(total));
    }
}
