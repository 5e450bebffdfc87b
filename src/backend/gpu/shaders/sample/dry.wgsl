// DRY: what tokens lose for the repetitions that they would prolong. The words of the step are its kind, the window, where the
// losses by length begin, the allowed length, where the heads of breakers begin and how many they are, where their tails begin.
// A head is a token, its tail's place and length; they are by token, of one token the longest tail first.

// The last breaker's head, counted from the last token, and the length of its tail.
var<workgroup> broken: atomic<u32>;

fn head_word(op: u32, head: u32, index: u32) -> u32 {
    return spec[word(op, 4u) + 3u * head + index];
}

fn is_head_of(op: u32, head: u32, token: u32) -> bool {
    return head < word(op, 5u) && head_word(op, head, 0u) == token;
}

// The first head of a token, or that of a later one.
fn head_of(op: u32, token: u32) -> u32 {
    var low = 0u;
    var high = word(op, 5u);
    while low < high {
        let middle = (low + high) / 2u;
        let after = head_word(op, middle, 0u) < token;
        low = select(low, middle + 1u, after);
        high = select(middle, high, after);
    }
    return low;
}

// Whether the token alone is a breaker.
fn is_breaker(op: u32, token: u32) -> bool {
    var single = false;
    for (var head = head_of(op, token); is_head_of(op, head, token); head++) {
        single = head_word(op, head, 2u) == 0u;
    }
    return single;
}

// How many of the last `length` tokens came since a breaker ended; for all invocations.
fn since_breaker(lid: u32, op: u32, length: u32) -> u32 {
    if lid == 0u {
        atomicStore(&broken, length << 8u);
    }
    workgroupBarrier();
    for (var back = lid; back < length; back += THREADS) {
        let token = token_back(back);
        for (var head = head_of(op, token); is_head_of(op, head, token); head++) {
            let tail = word(op, 6u) + head_word(op, head, 1u);
            let size = head_word(op, head, 2u);
            var same = size <= back;
            for (var i = 0u; i < size && same; i++) {
                same = token_back(back - 1u - i) == spec[tail + i];
            }
            if same {
                atomicMin(&broken, (back << 8u) | size);
                break;
            }
        }
    }
    workgroupBarrier();
    let last = atomicLoad(&broken);
    workgroupBarrier();
    return (last >> 8u) - (last & 0xffu);
}

// Where it is noted how many tokens up to the one `back` places before the last are those at the end, too. No candidates are
// there while logits change.
fn repeated_at(back: u32) -> u32 {
    return work_at + CANDIDATES_AT + back;
}

// Notes that for all tokens of the window, up to the last breaker; for all invocations. Whether any can be long enough.
fn find_repetitions(lid: u32, op: u32) -> bool {
    let length = window_of(op);
    let since = since_breaker(lid, op, length);
    let allowed = bitcast<i32>(word(op, 3u));
    if i32(length) <= allowed || i32(since) < allowed {
        return false;
    }
    for (var back = lid + 1u; back < length; back += THREADS) {
        var same = 0u;
        while same < since && back + same < length && token_back(same) == token_back(back + same) {
            same++;
        }
        work[repeated_at(back)] = same;
    }
    storageBarrier();
    workgroupBarrier();
    return true;
}

// A logit after DRY, where there are repetitions: the longest that the token would prolong counts.
fn dried(op: u32, token: u32, bits: u32) -> u32 {
    let length = window_of(op);
    let allowed = bitcast<i32>(word(op, 3u));
    var longest = -1;
    for (var back = 1u; back < length; back++) {
        let same = i32(work[repeated_at(back)]);
        if token_back(back - 1u) == token && same >= allowed {
            longest = max(longest, same);
        }
    }
    if longest < 0 || !is_finite(bits) || is_breaker(op, token) {
        return bits;
    }
    return bitcast<u32>(plain(bitcast<f32>(bits) - bitcast<f32>(spec[word(op, 2u) + u32(longest)])));
}
