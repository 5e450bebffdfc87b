// Goes on through a trie from the token that was sampled last: prepares the frame, the mask and the history for the next
// pass, and counts the workgroups of its kernels; none where the walk is over.
//
// One invocation decides; all of the workgroup's write lists and counts. A run of more than WALK_ROWS tokens takes several
// passes, of which the last one samples.

struct Node {
    // The first child; the others follow it.
    first: u32,
    children: u32,
    token: u32,
    // Rows from this node's token to the next choice, 0 where none follows.
    run: u32,
}

// A number of workgroups: how it is counted, and with which numbers.
struct Counted {
    kind: u32,
    times: u32,
    by: u32,
}

@group(0) @binding(0) var<storage, read_write> frame: array<u32>;
@group(0) @binding(1) var<storage, read> trie: array<Node>;
@group(0) @binding(2) var<storage, read_write> walk: array<u32>;
@group(0) @binding(3) var<storage, read_write> children: array<u32>;
@group(0) @binding(4) var<storage, read_write> state: array<u32>;
@group(0) @binding(5) var<storage, read> out: array<u32>;
@group(0) @binding(6) var<storage, read> counted: array<Counted>;
@group(0) @binding(7) var<storage, read_write> args: array<u32>;

var<workgroup> rows: u32;
var<workgroup> listed: u32;
var<workgroup> first_listed: u32;

fn over() {
    walk[WALK_GOING] = 0u;
}

// Notes what was sampled and finds the child; the run after it is what is left to do then.
fn take_sampled() {
    let sequence = walk[WALK_SEQUENCE];
    let at = RESULTS_AT + sequence * RESULT_WORDS;
    let node = walk[WALK_NODE];
    // The first result is that of the step before the walk.
    let count = walk[WALK_SAMPLED];
    if count > 0u {
        let log = WALK_LOG + (count - 1u) * WALK_LOG_WORDS;
        for (var i = 0u; i < RESULT_WORDS; i++) {
            walk[log + i] = out[at + i];
        }
        walk[log + RESULT_WORDS] = walk[WALK_RUN];
        walk[log + RESULT_WORDS + 1u] = node;
    }
    walk[WALK_SAMPLED] = count + 1u;
    let first = trie[node].first;
    let end = first + trie[node].children;
    var low = first;
    var high = end;
    while low < high {
        let middle = (low + high) / 2u;
        let after = trie[middle].token < out[at];
        low = select(low, middle + 1u, after);
        high = select(middle, high, after);
    }
    let found = low < end && trie[min(low, end - 1u)].token == out[at];
    if out[at + 4u] != STATUS_OK || !found {
        over();
        return;
    }
    let run = trie[low].run;
    let passes = (run + WALK_ROWS - 1u) / WALK_ROWS;
    if run == 0u || run > walk[WALK_CELLS_LEFT] || passes > walk[WALK_PASSES_LEFT] {
        over();
        return;
    }
    walk[WALK_NODE] = low;
    walk[WALK_RUN] = run;
    walk[WALK_LEFT] = run;
}

// Enters the next rows of the run.
fn enter_rows() {
    let state_at = walk[WALK_SEQUENCE] * STATE_WORDS;
    let run = walk[WALK_RUN];
    var left = walk[WALK_LEFT];
    var node = walk[WALK_NODE];
    var position = walk[WALK_POSITION];
    rows = min(left, WALK_ROWS);
    let window = walk[WALK_WINDOW];
    for (var row = 0u; row < rows; row++) {
        if left != run {
            // Forced: what the penalties look back on goes on with it.
            node = trie[node].first;
            let count = state[state_at + STATE_COUNT];
            state[state_at + STATE_RING + (count & (RING - 1u))] = trie[node].token;
            state[state_at + STATE_COUNT] = count + 1u;
            state[state_at + STATE_POSITION] += 1u;
        }
        left -= 1u;
        let at = FRAME_ROWS + 4u * row;
        frame[at] = trie[node].token;
        frame[at + 1u] = position;
        frame[at + 2u] = walk[WALK_SEQUENCES];
        frame[at + 3u] = walk[WALK_CELL + walk[WALK_USED]];
        if window > 0u {
            for (var i = 0u; i < 3u; i++) {
                frame[window + at + i] = frame[at + i];
            }
            frame[window + at + 3u] = walk[WALK_WINDOW_CELL + walk[WALK_USED]];
        }
        walk[WALK_USED] += 1u;
        position += 1u;
    }
    walk[WALK_LEFT] = left;
    walk[WALK_NODE] = node;
    walk[WALK_POSITION] = position;
    walk[WALK_CELLS_LEFT] -= rows;
    walk[WALK_PASSES_LEFT] -= 1u;
    walk[WALK_PASSES_MADE] += 1u;
    walk[WALK_ROWS_MADE] += rows;
    if left == 0u {
        let child_at = walk[WALK_SEQUENCE] * walk[WALK_CHILD_WORDS];
        listed = trie[node].children;
        first_listed = trie[node].first;
        walk[WALK_LOGITS_MADE] += listed;
        children[child_at + CHILD_KIND] = CHILDREN_LIST;
        children[child_at + CHILD_COUNT] = listed;
        children[child_at + CHILD_FIRST] = trie[first_listed].token;
        frame[FRAME_OUTPUTS] = rows - 1u;
    }
    frame[0] = rows;
    frame[1] = select(0u, 1u, left == 0u);
    frame[FRAME_N_LISTED] = listed;
    if window > 0u {
        frame[window] = frame[0];
        frame[window + 1u] = frame[1];
        frame[window + FRAME_OUTPUTS] = frame[FRAME_OUTPUTS];
    }
}

fn count(what: Counted) -> u32 {
    let outputs = select(0u, 1u, listed > 0u);
    switch what.kind {
        case COUNT_FIXED { return what.times; }
        case COUNT_ROWS { return (rows * what.times + what.by - 1u) / what.by; }
        case COUNT_OUTPUTS { return (outputs * what.times + what.by - 1u) / what.by; }
        case COUNT_SPLITS { return frame[3]; }
        case COUNT_WINDOW_SPLITS { return frame[walk[WALK_WINDOW] + 3u]; }
        case COUNT_LISTED { return listed; }
        default { return outputs; }
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) thread: u32) {
    if thread == 0u {
        rows = 0u;
        listed = 0u;
        if walk[WALK_GOING] != 0u && walk[WALK_LEFT] == 0u {
            take_sampled();
        }
        if walk[WALK_GOING] != 0u {
            enter_rows();
        }
    }
    workgroupBarrier();
    let data = walk[WALK_SEQUENCE] * walk[WALK_CHILD_WORDS] + CHILD_DATA;
    for (var i = thread; i < listed; i += THREADS) {
        let token = trie[first_listed + i].token;
        frame[FRAME_LISTED + i] = token;
        children[data + i] = token;
    }
    for (var i = thread; i < walk[WALK_COUNTED]; i += THREADS) {
        let x = count(counted[3u * i]);
        let y = count(counted[3u * i + 1u]);
        let z = count(counted[3u * i + 2u]);
        let any = rows > 0u && x > 0u && y > 0u && z > 0u;
        args[3u * i] = select(0u, x, any);
        args[3u * i + 1u] = select(0u, y, any);
        args[3u * i + 2u] = select(0u, z, any);
    }
}
