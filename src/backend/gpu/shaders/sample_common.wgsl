//#include sample_numbers
// What all kernels of the sampler share: the buffers, where a row's things stand, and how a token is published.

struct Frame {
    n_vocab: u32,
    // Tokens per workgroup of the kernels that run over the row with several.
    chunk: u32,
    // Words of a slot in `children`.
    child_words: u32,
    spare: u32,
    // Slot, first word in `logits`.
    rows: array<vec4<u32>, ROWS>,
}

@group(0) @binding(0) var<storage, read_write> logits: array<u32>;
@group(0) @binding(1) var<uniform> frame: Frame;
@group(0) @binding(2) var<storage, read> spec: array<u32>;
@group(0) @binding(3) var<storage, read> children: array<u32>;
@group(0) @binding(4) var<storage, read_write> state: array<u32>;
@group(0) @binding(5) var<storage, read_write> bins: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read_write> work: array<u32>;
@group(0) @binding(7) var<storage, read_write> out: array<u32>;

var<private> slot: u32;
// First words of the slot's things.
var<private> row_at: u32;
var<private> spec_at: u32;
var<private> child_at: u32;
var<private> state_at: u32;
var<private> bins_at: u32;
var<private> work_at: u32;

fn enter(row: u32) {
    slot = frame.rows[row].x;
    row_at = frame.rows[row].y;
    spec_at = slot * SPEC_WORDS;
    child_at = slot * frame.child_words;
    state_at = slot * STATE_WORDS;
    bins_at = slot * BINS_WORDS;
    work_at = slot * WORK_WORDS;
    zero = spec[spec_at + SPEC_ZERO];
}

fn armed() -> u32 {
    return children[child_at + CHILD_KIND];
}

fn forced() -> bool {
    return armed() != CHILDREN_NONE && children[child_at + CHILD_GREEDY] != 0u;
}

// How the row is sampled.
fn path_of() -> u32 {
    let kind = armed();
    if kind == CHILDREN_NONE {
        return spec[spec_at + SPEC_PATH];
    }
    if kind == CHILDREN_MASK {
        return PATH_ROW;
    }
    return select(PATH_SELECT, PATH_CHILDREN, forced() || spec[spec_at + SPEC_TRIE_FIRST] != 0u);
}

// The chain in force, and the one after a mask that is to be followed greedily.
fn ops_count() -> u32 {
    return select(spec[spec_at + SPEC_OPS], spec[spec_at + SPEC_FORCED_OPS], forced());
}

fn op_at(index: u32) -> u32 {
    return spec_at + SPEC_OPS_AT + (select(0u, MAX_OPS, forced()) + index) * OP_WORDS;
}

fn word(op: u32, index: u32) -> u32 {
    return spec[op + index];
}

fn number(op: u32, index: u32) -> f32 {
    return bitcast<f32>(spec[op + index]);
}

fn is_child(token: u32) -> bool {
    let data = child_at + CHILD_DATA;
    if armed() == CHILDREN_MASK {
        return ((children[data + (token >> 5u)] >> (token & 31u)) & 1u) == 1u;
    }
    let count = children[child_at + CHILD_COUNT];
    var low = 0u;
    var high = count;
    while low < high {
        let middle = (low + high) / 2u;
        if children[data + middle] < token {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return armed() == CHILDREN_LIST && low < count && children[data + low] == token;
}

// The first entry of a table of (token, bias) that is not below the token.
fn entry_of(op: u32, token: u32) -> u32 {
    var low = 0u;
    var high = word(op, 2u);
    while low < high {
        let middle = (low + high) / 2u;
        if spec[word(op, 1u) + 2u * middle] < token {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

// A logit after all biases of its token, which stand side by side from `entry`.
fn biased(op: u32, entry: u32, token: u32, given: u32) -> u32 {
    var bits = given;
    if word(op, 3u) != 0u && armed() != CHILDREN_NONE && is_child(token) {
        return bits;
    }
    for (var i = entry; i < word(op, 2u) && spec[word(op, 1u) + 2u * i] == token; i++) {
        let bias = spec[word(op, 1u) + 2u * i + 1u];
        if bias == MINUS_INFINITY_BITS {
            bits = bias;
        } else if is_finite(bits) {
            bits = bitcast<u32>(plain(bitcast<f32>(bits) + bitcast<f32>(bias)));
        }
    }
    return bits;
}

// How many tokens the penalties look back on.
fn window_of(op: u32) -> u32 {
    return min(word(op, 1u), state[state_at + STATE_COUNT]);
}

// The token `back` places before the last.
fn token_back(back: u32) -> u32 {
    return state[state_at + STATE_RING + ((state[state_at + STATE_COUNT] - 1u - back) & (RING - 1u))];
}

fn penalized(op: u32, count: u32, bits: u32) -> u32 {
    if !is_finite(bits) {
        return bits;
    }
    let logit = bitcast<f32>(bits);
    let repeat = number(op, 2u);
    let loss = plain(plain(plain(f32(count) * number(op, 3u)) + number(op, 4u)) * number(op, 5u));
    var repeated: f32;
    if logit <= 0.0f {
        repeated = plain(logit * repeat);
    } else {
        repeated = plain(divide(logit, repeat));
    }
    return bitcast<u32>(plain(repeated - loss));
}

fn rank_at(token: u32) -> u32 {
    return rank_of(logits[row_at + token]);
}

// The bin of a logit: 64 a nat for the first 8 nats below the best, 32 for the next 8, 16 for the next 16, and the last
// for the rest. Never falls as the logit falls.
fn bin_of(logit: f32, best: f32) -> u32 {
    let distance = plain(plain(best - logit) * bitcast<f32>(spec[spec_at + SPEC_BIN_SCALE]));
    if !(distance < 2047.0f) {
        return BINS - 1u;
    }
    let units = u32(distance);
    if units < 512u {
        return units;
    }
    return select(768u + ((units - 1024u) >> 2u), 512u + ((units - 512u) >> 1u), units < 1024u);
}

// One entry of the report: token, logit after temperature, probability, rank.
fn report(index: u32, token: u32, rank: u32, scale: f32, probability: f32) {
    let at = state_at + STATE_REPORT + 4u * index;
    state[at] = token;
    state[at + 1u] = bitcast<u32>(plain(logit_of(rank) * scale));
    state[at + 2u] = bitcast<u32>(probability);
    state[at + 3u] = rank;
}

fn result_at() -> u32 {
    return RESULTS_AT + slot * RESULT_WORDS;
}

// Goes on to the next position. Where nothing could be sampled, the token before stays in place, so that a step that
// was submitted already reads a token.
fn advance(token: u32) {
    let count = state[state_at + STATE_COUNT];
    state[state_at + STATE_TOKEN] = token;
    state[state_at + STATE_POSITION] += 1u;
    state[state_at + STATE_RING + (count & (RING - 1u))] = token;
    state[state_at + STATE_COUNT] = count + 1u;
    state[state_at + STATE_MODE] = MODE_DONE;
    out[slot] = token;
}

// By one invocation: the token with its weight, of `kept` candidates that weigh `total`; z is its distance from the best.
fn publish(token: u32, z: f32, total: vec2<u32>, kept: u32, reported: u32) {
    let at = result_at();
    out[at] = token;
    out[at + 1u] = bitcast<u32>(z - ln_of(total));
    out[at + 2u] = bitcast<u32>(float64(weight(z)) / float64(total));
    out[at + 3u] = kept;
    out[at + 4u] = STATUS_OK;
    out[at + 5u] = 0u;
    out[at + 6u] = state[state_at + STATE_POSITION];
    out[at + 7u] = reported;
    advance(token);
}

// By one invocation: nothing was sampled, because of the NaN at a token or for want of candidates.
fn publish_failure(status: u32, token: u32) {
    let at = result_at();
    out[at] = 0xffffffffu;
    for (var i = 1u; i < RESULT_WORDS; i++) {
        out[at + i] = 0u;
    }
    out[at + 4u] = status;
    out[at + 5u] = token;
    out[at + 6u] = state[state_at + STATE_POSITION];
    advance(state[state_at + STATE_TOKEN]);
}

fn random_bits() -> u32 {
    let seed = vec2<u32>(spec[spec_at + SPEC_SEED], spec[spec_at + SPEC_SEED + 1u]);
    return threefry(seed, vec2<u32>(state[state_at + STATE_POSITION], 0u)).x;
}
