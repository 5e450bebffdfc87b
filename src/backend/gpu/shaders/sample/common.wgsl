//#include sample/numbers
// What all kernels of the sampler share: the buffers, where a row's data are, and how a token is published.

struct Frame {
    n_vocab: u32,
    // Tokens per workgroup of the kernels that run over the row with several.
    chunk: u32,
    // Words of a sequence in `children`.
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

var<private> sequence: u32;
// First words of the sequence's things.
var<private> row_at: u32;
var<private> spec_at: u32;
var<private> child_at: u32;
var<private> state_at: u32;
var<private> bins_at: u32;
var<private> work_at: u32;
// First word of the mask through which the row is read, 0 where it is read as it is: what is not legal counts as -inf.
var<private> masked_at: u32;
// Of no legal candidate the first legal token, which alone is kept, with the logit 0.
var<private> lone: u32;

fn enter(row: u32) {
    sequence = frame.rows[row].x;
    row_at = frame.rows[row].y;
    spec_at = sequence * SPEC_WORDS;
    child_at = sequence * frame.child_words;
    state_at = sequence * STATE_WORDS;
    bins_at = sequence * BINS_WORDS;
    work_at = sequence * WORK_WORDS;
    zero = spec[spec_at + SPEC_ZERO];
    masked_at = select(0u, children[child_at + CHILD_MASK_AT], reads_masked());
    lone = 0xffffffffu;
}

fn armed() -> u32 {
    return children[child_at + CHILD_KIND];
}

fn forced() -> bool {
    return armed() != CHILDREN_NONE && children[child_at + CHILD_GREEDY] != 0u;
}

// Whether a mask of bits applies where the row is read, after all changes of logits and before all else.
fn reads_masked() -> bool {
    return armed() == CHILDREN_MASK && ((spec[spec_at + SPEC_READS_MASKED] >> select(0u, 1u, forced())) & 1u) == 1u;
}

// How the row is sampled.
fn path_of() -> u32 {
    let kind = armed();
    if kind == CHILDREN_NONE {
        return spec[spec_at + SPEC_PATH];
    }
    if kind == CHILDREN_MASK {
        return select(PATH_ROW, select(spec[spec_at + SPEC_PATH], PATH_GREEDY, forced()), reads_masked());
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

fn is_set(mask_at: u32, token: u32) -> bool {
    return ((children[mask_at + (token >> 5u)] >> (token & 31u)) & 1u) == 1u;
}

fn is_child(token: u32) -> bool {
    let data = child_at + CHILD_DATA;
    let kind = armed();
    if kind == CHILDREN_MASK {
        return is_set(children[child_at + CHILD_MASK_AT], token);
    }
    let count = select(0u, children[child_at + CHILD_COUNT], kind == CHILDREN_LIST);
    var low = 0u;
    var high = count;
    while low < high {
        let middle = (low + high) / 2u;
        let after = children[data + middle] < token;
        low = select(low, middle + 1u, after);
        high = select(middle, high, after);
    }
    return low < count && children[data + low] == token;
}

// The first entry of a table of (token, bias) that is not below the token.
fn entry_of(op: u32, token: u32) -> u32 {
    var low = 0u;
    var high = word(op, 2u);
    while low < high {
        let middle = (low + high) / 2u;
        let after = spec[word(op, 1u) + 2u * middle] < token;
        low = select(low, middle + 1u, after);
        high = select(middle, high, after);
    }
    return low;
}

// A logit after all biases of its token, which are side by side from `entry` on. A ban, which does not hold for what a mask
// allows, is the caller's to look at.
fn biased(op: u32, entry: u32, token: u32, given: u32) -> u32 {
    var bits = given;
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

// Whether a step changes the logits of single tokens.
fn changes_logits(kind: u32) -> bool {
    return kind == OP_BIAS || kind == OP_PENALTIES || kind == OP_DRY;
}

// The window of the penalties or of DRY in tokens.
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
    let rank = rank_of(logits[row_at + token]);
    if masked_at == 0u {
        return rank;
    }
    return select(select(RANK_DEAD, rank, is_set(masked_at, token)), rank_of(0u), token == lone);
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

// What a row came to: a token, or why there is none.
struct Outcome {
    status: u32,
    // The token; with STATUS_NAN the one whose logit is NaN.
    token: u32,
    // The token's distance from the best.
    z: f32,
    // What all candidates weigh, and how many they are.
    total: vec2<u32>,
    kept: u32,
    reported: u32,
}

fn failure(status: u32, token: u32) -> Outcome {
    return Outcome(status, token, 0.0f, vec2<u32>(0u, 256u), 0u, 0u);
}

// Candidates that are handed over: `kept` of them are in the list.
fn hand_over(kept: u32) -> Outcome {
    return Outcome(STATUS_OK, 0u, 0.0f, vec2<u32>(0u, 256u), kept, min(kept, spec[spec_at + SPEC_HAND_OVER]));
}

fn hand_over_one(index: u32, token: u32, rank: u32) {
    if index < LIST {
        work[work_at + CANDIDATES_AT + 2u * index] = token;
        work[work_at + CANDIDATES_AT + 2u * index + 1u] = bits_of(rank);
    }
}

// By one invocation: writes the result and goes on to the next position, except where the host is to choose. Where nothing
// could be sampled, the token before stays in place, so that a step that was submitted already reads a token.
fn publish(outcome: Outcome) {
    let samples = spec[spec_at + SPEC_HAND_OVER] == 0u;
    let sampled = samples && outcome.status == STATUS_OK;
    let at = RESULTS_AT + sequence * RESULT_WORDS;
    let count = state[state_at + STATE_COUNT];
    let position = state[state_at + STATE_POSITION];
    let token = select(state[state_at + STATE_TOKEN], outcome.token, sampled);
    let probability = float64(weight(outcome.z)) / float64(outcome.total);
    out[sequence] = token;
    out[at] = select(0xffffffffu, token, sampled);
    out[at + 1u] = bitcast<u32>(outcome.z - ln_of(outcome.total));
    out[at + 2u] = bitcast<u32>(select(0.0f, probability, sampled));
    out[at + 3u] = outcome.kept;
    out[at + 4u] = outcome.status;
    out[at + 5u] = outcome.token;
    out[at + 6u] = position;
    out[at + 7u] = outcome.reported;
    state[state_at + STATE_MODE] = MODE_DONE;
    if samples {
        state[state_at + STATE_TOKEN] = token;
        state[state_at + STATE_POSITION] = position + 1u;
        state[state_at + STATE_COUNT] = count + 1u;
        state[state_at + STATE_RING + (count & (RING - 1u))] = token;
    }
}

fn random_bits(draw: u32) -> u32 {
    let seed = vec2<u32>(spec[spec_at + SPEC_SEED], spec[spec_at + SPEC_SEED + 1u]);
    return threefry(seed, vec2<u32>(state[state_at + STATE_POSITION], draw)).x;
}

// Whether XTC acts on this token.
fn acts(op: u32) -> bool {
    return random_bits(DRAW_XTC) <= word(op, 1u);
}
