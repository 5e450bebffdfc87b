// Biases, penalties and DRY on the row itself, by one workgroup: each token that is named is looked up once.
//#include sample/dry

var<workgroup> window: array<u32, WINDOW>;

fn scatter(lid: u32, op: u32) {
    if word(op, 0u) == OP_BIAS {
        for (var i = lid; i < word(op, 2u); i += THREADS) {
            let at = word(op, 1u) + 2u * i;
            let token = spec[at];
            var first = i == 0u;
            if i > 0u {
                first = spec[at - 2u] != token;
            }
            // A ban does not hold for what a mask allows.
            if first && (word(op, 3u) == 0u || !is_child(token)) {
                logits[row_at + token] = biased(op, i, token, logits[row_at + token]);
            }
        }
    } else if word(op, 0u) == OP_PENALTIES {
        let length = window_of(op);
        workgroupBarrier();
        for (var i = lid; i < length; i += THREADS) {
            window[i] = token_back(i);
        }
        workgroupBarrier();
        for (var i = lid; i < length; i += THREADS) {
            // The latest occurrence applies all of them.
            let token = window[i];
            var count = 1u;
            var later = false;
            for (var j = 0u; j < length; j++) {
                let same = window[j] == token;
                later = later || (same && j < i);
                count += select(0u, 1u, same && j > i);
            }
            if !later && token < frame.n_vocab {
                logits[row_at + token] = penalized(op, count, logits[row_at + token]);
            }
        }
    } else if word(op, 0u) == OP_DRY {
        let length = select(0u, window_of(op), find_repetitions(lid, op));
        for (var i = lid; i < length; i += THREADS) {
            let token = token_back(i);
            var later = false;
            for (var j = 0u; j < i && !later; j++) {
                later = token_back(j) == token;
            }
            if !later && token < frame.n_vocab {
                logits[row_at + token] = dried(op, token, logits[row_at + token]);
            }
        }
    }
    storageBarrier();
    workgroupBarrier();
}
