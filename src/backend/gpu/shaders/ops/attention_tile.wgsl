// What kernels of attention have in common, see ops/attention.rs: what they are given, what the query vectors of a tile see, and
// where their results go. A kernel has TILE query vectors, and looks at PACK of them at once.

// One name for both: an alias is a type of its own to the translator to HLSL, which writes the zeros of an array of each
// under the same name.
alias Quad = vec4<f32>;
//#if PACKED
alias Pack = Quad;
alias PackI = vec4<i32>;
alias PackU = vec4<u32>;
//#else
alias Pack = f32;
alias PackI = i32;
alias PackU = u32;
//#endif

struct Params {
    src: u32,
    width: u32,
    dst: u32,
    dst_width: u32,
    blocks: u32,
    // A cell this many positions back is not seen.
    reach: i32,
    // Factor of the queries; makes scores binary logarithms, or the argument of the cap.
    scale: f32,
    // The cap, as a binary logarithm.
    cap: f32,
    heads: u32,
    // DK4 and BLOCK once more, kept from compilers that would unroll the loops over them in full.
    quads: u32,
    cells: u32,
    // Positions of a chunk.
    chunk: i32,
    // The largest slope's bias, and the factor that makes a bias what the scores are.
    alibi: f32,
    alibi_scale: f32,
    // Growth of the queries' factor per logarithm, and the tokens and the offset of their positions.
    growth: f32,
    length: u32,
    offset: u32,
    // As in ops/qkv, where this kernel prepares the heads.
    kv: u32,
    kv_stride: u32,
    query_eps: f32,
    key_eps: f32,
    value_eps: f32,
    magnitude: f32,
    pad0: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> frame: array<u32>;
//#if KEYS
@group(0) @binding(3) var<storage, read_write> keys: array<Key>;
@group(0) @binding(4) var<storage, read_write> values: array<Value>;
//#else
@group(0) @binding(3) var<storage, read> keys: array<Key>;
@group(0) @binding(4) var<storage, read> values: array<Value>;
//#endif
@group(0) @binding(5) var<storage, read_write> partials: array<vec4<f32>>;
//#if SINKS
@group(0) @binding(6) var<storage, read> sinks: array<f32>;
//#endif
//#if PREPARES
//#include ops/prepare
//#endif
//#if !KEYS
//#include ops/kv
//#endif
//#if SOFTCAP
//#include ops/tanh
//#endif

const LOW: f32 = -3.0e38;
//#if SINKS
const LOG2E: f32 = 1.4426950408889634;
//#endif
// Cells that are looked through at once for blocks in which anything is seen: a bit of a word for each block.
const SPAN: u32 = 32u * BLOCK;

// Blocks that are seen; one word in use, one that may still be read, one being cleared.
var<workgroup> seen: array<atomic<u32>, 3>;
//#if WHOLE
// Those of which some row does not see all, in the same order.
var<workgroup> cut: array<atomic<u32>, 3>;
//#endif

// The query vectors of a key head, of all rows.
fn vectors() -> u32 {
//#if OUTPUTS
    return frame[1] * GROUP;
//#else
    return frame[0] * GROUP;
//#endif
}

// A workgroup's tile: the last rows see most cells and come first.
fn tile_of(workgroup: u32, count: u32) -> u32 {
    return (count + TILE - 1u) / TILE - 1u - workgroup;
}

// A query vector's place in the row-by-row count; at least `count` for those past the last row.
fn flat(tile: u32, i: u32) -> u32 {
    return tile * TILE + i;
}

// The factor of a query vector.
fn factor_of(q: u32, count: u32) -> f32 {
//#if TEMPERATURE
    let steps = (u32(position_of(q, count)) + params.offset) / params.length;
    return params.scale * (1.0 + params.growth * log(1.0 + f32(steps)));
//#else
    return params.scale;
//#endif
}

// Four columns of a query vector; zeros past the last one. With PREPARES all threads ask for the vector, each for its quad.
fn query(q: u32, count: u32, key_head: u32, quad: u32) -> vec4<f32> {
    var x = vec4<f32>(0.0);
    if (q >= count) {
        return x;
    }
    let head = key_head * GROUP + q % GROUP;
    let at = params.src + q / GROUP * params.width + head * DK4 + quad;
//#if PREPARES
    if (quad < DK4) {
        x = ws[at];
    }
    x = query_prepared(quad, head, x, position_of(q, count));
//#else
    x = ws[at];
//#endif
    return x * factor_of(q, count);
}

// Where the frame has the record of a row.
fn record_of(row: u32) -> u32 {
//#if OUTPUTS
    return FRAME_ROWS + 4u * frame[FRAME_OUTPUTS + row];
//#else
    return FRAME_ROWS + 4u * row;
//#endif
}

fn position_of(q: u32, count: u32) -> i32 {
    return bitcast<i32>(frame[record_of(min(q, count - 1u) / GROUP) + 1u]);
}

fn sequences_of(q: u32, count: u32) -> u32 {
    return select(frame[record_of(min(q, count - 1u) / GROUP) + 2u], 0u, q >= count);
}

//#if ALIBI
// What a query vector's score is lowered by for a token of distance.
fn slope_of(q: u32, key_head: u32) -> f32 {
    let head = key_head * GROUP + q % GROUP;
    let whole = 1u << firstLeadingBit(params.heads);
    let power = select(f32(2u * (head - whole) + 1u) / f32(2u * whole), f32(head + 1u) / f32(whole), head < whole);
    return exp2(-params.alibi * power) * params.alibi_scale;
}
//#endif

// What any row of a tile sees is within these.
struct Reach {
    sequences: u32,
//#if WHOLE
    // What all rows have.
    shared_by_all: u32,
//#endif
    earliest: i32,
    latest: i32,
//#if CHUNKS
    // The first position of the earliest row's chunk.
    chunk: i32,
//#endif
}

fn reach_of(tile: u32, count: u32) -> Reach {
    let first_row = flat(tile, 0u) / GROUP;
    let last_row = (min(flat(tile, TILE), count) - 1u) / GROUP;
    var reach: Reach;
    reach.earliest = 0x7fffffff;
    reach.latest = -0x7fffffff;
//#if WHOLE
    reach.shared_by_all = 0xffffffffu;
//#endif
    for (var row = first_row; row <= last_row; row++) {
        let position = bitcast<i32>(frame[record_of(row) + 1u]);
        reach.sequences |= frame[record_of(row) + 2u];
//#if WHOLE
        reach.shared_by_all &= frame[record_of(row) + 2u];
//#endif
        reach.earliest = min(reach.earliest, position);
        reach.latest = max(reach.latest, position);
    }
//#if CHUNKS
    reach.chunk = reach.earliest - reach.earliest % params.chunk;
//#endif
    return reach;
}

//#if WHOLE
// Whether all rows of a tile see a cell, all alike; trees are looked at cell by cell.
fn near_all(sequences: u32, position: i32, reach: Reach) -> bool {
//#if ALIBI
    return false;
//#else
    var near = sequences < TREE && (sequences & reach.shared_by_all) != 0u && reach.latest - position < params.reach;
//#if BIDIRECTIONAL
    near = near && position - reach.earliest < params.reach;
//#else
    near = near && position <= reach.earliest;
//#endif
//#if CHUNKS
    near = near && position >= reach.latest - reach.latest % params.chunk;
//#endif
    return near;
//#endif
}
//#endif

// Sets the bits of blocks, from `first` on, in which a tile's rows may see anything; all threads look together.
fn look(t: u32, first: u32, end: u32, reach: Reach, word: u32) {
    for (var cell = first + t; cell < min(first + SPAN, end); cell += THREADS) {
        let position = bitcast<i32>(frame[FRAME_CELLS + 2u * cell]);
        let shared_sequences = frame[FRAME_CELLS + 2u * cell + 1u] & reach.sequences;
//#if BIDIRECTIONAL
        let after = position - reach.latest < params.reach;
//#else
        let after = position <= reach.latest;
//#endif
        var near = shared_sequences != 0u && after && reach.earliest - position < params.reach;
//#if CHUNKS
        near = near && position >= reach.chunk;
//#endif
        let bit = 1u << ((cell - first) / BLOCK);
        if (near && (atomicLoad(&seen[word]) & bit) == 0u) {
            atomicOr(&seen[word], bit);
        }
//#if WHOLE
        if (!near_all(frame[FRAME_CELLS + 2u * cell + 1u], position, reach) && (atomicLoad(&cut[word]) & bit) == 0u) {
            atomicOr(&cut[word], bit);
        }
//#endif
    }
}

struct Cell {
    position: i32,
    // Rows with any of these sequences, and with numbers in a tree from the lowest to below the limit, may see it.
    sequences: u32,
    lowest: u32,
    limit: u32,
}

fn cell_at(at: u32, end: u32) -> Cell {
    var position = 0;
    var sequences = 0u;
    if (at < end) {
        position = bitcast<i32>(frame[FRAME_CELLS + 2u * at]);
        sequences = frame[FRAME_CELLS + 2u * at + 1u];
    }
    // A tree's cell (src/backend/tree.rs) is seen from its node and from those below.
    let in_tree = sequences >= TREE;
    let shares = select(sequences, TREE, in_tree);
    let lowest = select(0u, (sequences >> 16u) & 0x7fffu, in_tree);
    let limit = select(0x8000u, sequences & 0xffffu, in_tree);
    return Cell(position, shares, lowest, limit);
}

// Scores of products, as binary logarithms.
fn capped(product: Pack) -> Pack {
//#if SOFTCAP
    return params.cap * tanh_of(product);
//#else
    return product;
//#endif
}

// The scores of a pack's vectors for a cell, as binary logarithms: LOW of those that do not see it.
//#if ALIBI
fn score_of(product: Pack, positions: PackI, sequences: PackU, slopes: Pack, cell: Cell) -> Pack {
//#else
fn score_of(product: Pack, positions: PackI, sequences: PackU, cell: Cell) -> Pack {
//#endif
    let back = positions - PackI(cell.position);
    let number = (sequences >> PackU(16u)) & PackU(0x7fffu);
    var visible = ((sequences & PackU(cell.sequences)) != PackU(0u))
        & (number >= PackU(cell.lowest)) & (number < PackU(cell.limit))
//#if BIDIRECTIONAL
        & (abs(back) < PackI(params.reach));
//#else
        & (back >= PackI(0)) & (back < PackI(params.reach));
//#endif
    var score = product;
//#if CHUNKS
    let within = positions % PackI(params.chunk);
    visible = visible & (back <= within);
//#endif
//#if ALIBI
    score -= slopes * Pack(abs(back));
//#endif
    return select(Pack(LOW), capped(score), visible);
}

// Stores four columns of a tile's vector: the result, or what this split adds to it, with the binary logarithm `top` that its
// weights are relative to, and their sum `all`.
fn store(split: u32, q: u32, key_head: u32, quad: u32, sum: vec4<f32>, top: f32, all: f32) {
    let splits = frame[3];
    let row = q / GROUP;
    let head = key_head * GROUP + q % GROUP;
    if (splits == 1u) {
        let at = params.dst + row * params.dst_width + head * DV4 + quad;
//#if SINKS
        let sink = exp2(min(sinks[head] * LOG2E - top, 120.0));
        ws[at] = sum / max(all + sink, 1.0e-30);
//#else
        ws[at] = sum / max(all, 1.0e-30);
//#endif
    } else {
        let at = ((row * splits + split) * params.heads + head) * (DV4 + 1u);
        partials[at + 1u + quad] = sum;
        if (quad == 0u) {
            partials[at] = vec4<f32>(top, all, 0.0, 0.0);
        }
    }
}
