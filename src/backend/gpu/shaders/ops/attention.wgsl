// Attention of a tile of query vectors over one split of the cells, see attend.rs.
//
// A query vector is one query head of one row; those that share a key head count row by row, and a tile is TILE of them.
// They come in packs of PACK, so that one read of workgroup memory serves four multiplications. In each block of cells a
// thread first makes the scores of its cells, then the weights of a part of the cells, then the sums of four columns of
// the values; the work is dealt out anew for each of the three.

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
const TILE: u32 = PACKS * PACK;
// Cells that are looked through at once for blocks in which anything is seen: a bit of a word for each block.
const SPAN: u32 = 32u * BLOCK;

// The queries: of a pack and four columns, PACK vectors. At the end, the sums of values, part by part.
var<workgroup> queries: array<Quad, QUERY_WORDS>;
var<workgroup> scores: array<Pack, PACKS * BLOCK>;
// Of each pack, what the threads that share it have each found.
var<workgroup> shares: array<Pack, PACKS * SHARES>;
var<workgroup> factors: array<Pack, PACKS>;
// Blocks that are seen; one word in use, one that may still be read, one being cleared.
var<workgroup> seen: array<atomic<u32>, 3>;

fn element(pack: Pack, e: u32) -> f32 {
//#if PACKED
    return pack[e];
//#else
    return pack;
//#endif
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

// Four columns of a pack's vectors to workgroup memory.
fn put_queries(first: u32, count: u32, key_head: u32, pack: u32, quad: u32) {
    let q = first + pack * PACK;
    let n = pack * DK4 + quad;
//#if PACKED
    let rows = mat4x4<f32>(
        query(q, count, key_head, quad),
        query(q + 1u, count, key_head, quad),
        query(q + 2u, count, key_head, quad),
        query(q + 3u, count, key_head, quad),
    );
    let columns = transpose(rows);
    if (quad < DK4) {
        queries[4u * n] = columns[0];
        queries[4u * n + 1u] = columns[1];
        queries[4u * n + 2u] = columns[2];
        queries[4u * n + 3u] = columns[3];
    }
//#else
    let row = query(q, count, key_head, quad);
    if (quad < DK4) {
        queries[n] = row;
    }
//#endif
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

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
//#if OUTPUTS
    let count = frame[1] * GROUP;
//#else
    let count = frame[0] * GROUP;
//#endif
    // The last rows see most cells and come first.
    let tile = (count + TILE - 1u) / TILE - 1u - group.y;
    let key_head = group.z;
    let begin = group.x * frame[4];
    let end = min(begin + frame[4], frame[2]);

//#if PREPARES
//#if KEYS
    // The split that the new cell is in writes it first.
    let cell = frame[record_of(0u) + 3u];
    if (cell >= begin && cell < end) {
        write_key(t, key_head, params.kv, cell, position_of(0u, count));
//#if !PREFIX
        write_value(t, key_head, params.kv, cell);
//#endif
        storageBarrier();
    }
//#endif
    for (var pack = 0u; pack < PACKS; pack++) {
        put_queries(0u, count, key_head, pack, t);
    }
//#else
    for (var n = t; n < PACKS * DK4; n += THREADS) {
        put_queries(flat(tile, 0u), count, key_head, n / DK4, n % DK4);
    }
//#endif
    if (t < 3u) {
        atomicStore(&seen[t], 0u);
    }

    // What any row of the tile sees is within these.
    let first_row = flat(tile, 0u) / GROUP;
    let last_row = (min(flat(tile, TILE), count) - 1u) / GROUP;
    var sequences = 0u;
    var earliest = 0x7fffffff;
    var latest = -0x7fffffff;
    for (var row = first_row; row <= last_row; row++) {
        let position = bitcast<i32>(frame[record_of(row) + 1u]);
        sequences |= frame[record_of(row) + 2u];
        earliest = min(earliest, position);
        latest = max(latest, position);
    }

//#if CHUNKS
    let chunk = earliest - earliest % params.chunk;
//#endif

    // Scores: cells lane, lane + LANES, ... of a block, packs pack_lane, pack_lane + PACK_LANES, ...
    let lane = t % LANES;
    let pack_lane = t / LANES;
    var row_positions: array<PackI, SCORE_PACKS>;
    var row_sequences: array<PackU, SCORE_PACKS>;
//#if ALIBI
    var row_slopes: array<Pack, SCORE_PACKS>;
//#endif
    for (var p = 0u; p < SCORE_PACKS; p++) {
        let q = flat(tile, (pack_lane + p * PACK_LANES) * PACK);
//#if PACKED
        row_positions[p] = vec4<i32>(
            position_of(q, count), position_of(q + 1u, count), position_of(q + 2u, count), position_of(q + 3u, count));
        row_sequences[p] = vec4<u32>(
            sequences_of(q, count), sequences_of(q + 1u, count), sequences_of(q + 2u, count), sequences_of(q + 3u, count));
//#if ALIBI
        row_slopes[p] = vec4<f32>(
            slope_of(q, key_head), slope_of(q + 1u, key_head), slope_of(q + 2u, key_head), slope_of(q + 3u, key_head));
//#endif
//#else
        row_positions[p] = position_of(q, count);
        row_sequences[p] = sequences_of(q, count);
//#if ALIBI
        row_slopes[p] = slope_of(q, key_head);
//#endif
//#endif
    }
    // Weights: of one pack, every SHARES-th cell.
    let sharing = t < PACKS * SHARES;
    let pack = t / SHARES;
    let share = t % SHARES;
    var top = Pack(LOW);
    var weight = Pack(0.0);
    // Sums: columns 4 quad to 4 quad + 3 of every PARTS-th cell, packs column, column + COLUMNS, ...
    let quad = t % DV4;
    let column = t / DV4 % COLUMNS;
    let part = t / DV4 / COLUMNS;
    let summing = part < PARTS;
    var sums: array<Quad, SUM_PACKS * PACK>;
    workgroupBarrier();

    var word = 0u;
    for (var first = begin; first < end; first += SPAN) {
        for (var cell = first + t; cell < min(first + SPAN, end); cell += THREADS) {
            let position = bitcast<i32>(frame[FRAME_CELLS + 2u * cell]);
            let shared_sequences = frame[FRAME_CELLS + 2u * cell + 1u] & sequences;
//#if BIDIRECTIONAL
            let after = position - latest < params.reach;
//#else
            let after = position <= latest;
//#endif
            var near = shared_sequences != 0u && after && earliest - position < params.reach;
//#if CHUNKS
            near = near && position >= chunk;
//#endif
            if (near) {
                let bit = 1u << ((cell - first) / BLOCK);
                if ((atomicLoad(&seen[word]) & bit) == 0u) {
                    atomicOr(&seen[word], bit);
                }
            }
        }
        workgroupBarrier();
        var blocks = atomicLoad(&seen[word]);
        word = (word + 1u) % 3u;
        if (t == 0u) {
            atomicStore(&seen[(word + 1u) % 3u], 0u);
        }

        while (blocks != 0u) {
            let block = first + firstTrailingBit(blocks) * BLOCK;
            blocks &= blocks - 1u;

            let key = key_at(key_head, block) + lane;
            var products: array<Pack, SCORE_PACKS * CELLS>;
            for (var d = 0u; d < params.quads; d += K_AHEAD) {
                var k: array<Quad, CELLS * K_AHEAD>;
                for (var c = 0u; c < CELLS; c++) {
//#if K_Q8
                    let scale = bitcast<f32>(keys[key + (DK4 + d / 8u) * BLOCK + c * LANES]);
//#endif
                    for (var i = 0u; i < K_AHEAD; i++) {
                        k[c * K_AHEAD + i] = key_numbers(keys[key + (d + i) * BLOCK + c * LANES]);
//#if K_Q8
                        k[c * K_AHEAD + i] *= scale;
//#endif
                    }
                }
                for (var p = 0u; p < SCORE_PACKS; p++) {
                    for (var i = 0u; i < K_AHEAD; i++) {
                        let n = (pack_lane + p * PACK_LANES) * DK4 + d + i;
//#if PACKED
                        let qx = queries[4u * n];
                        let qy = queries[4u * n + 1u];
                        let qz = queries[4u * n + 2u];
                        let qw = queries[4u * n + 3u];
                        for (var c = 0u; c < CELLS; c++) {
                            let x = k[c * K_AHEAD + i];
                            products[p * CELLS + c] = products[p * CELLS + c] + qx * x.x + qy * x.y + qz * x.z + qw * x.w;
                        }
//#else
                        let q = queries[n];
                        for (var c = 0u; c < CELLS; c++) {
                            products[p * CELLS + c] += dot(q, k[c * K_AHEAD + i]);
                        }
//#endif
                    }
                }
            }
            for (var c = 0u; c < CELLS; c++) {
                let cell = block + lane + c * LANES;
                var position = 0;
                var cell_sequences = 0u;
                if (cell < end) {
                    position = bitcast<i32>(frame[FRAME_CELLS + 2u * cell]);
                    cell_sequences = frame[FRAME_CELLS + 2u * cell + 1u];
                }
                // A tree's cell (src/backend/tree.rs) is seen from its node and from those below.
                let in_tree = cell_sequences >= TREE;
                let shares = select(cell_sequences, TREE, in_tree);
                let lowest = select(0u, (cell_sequences >> 16u) & 0x7fffu, in_tree);
                let limit = select(0x8000u, cell_sequences & 0xffffu, in_tree);
                for (var p = 0u; p < SCORE_PACKS; p++) {
                    let back = row_positions[p] - PackI(position);
                    let number = (row_sequences[p] >> PackU(16u)) & PackU(0x7fffu);
                    var visible = ((row_sequences[p] & PackU(shares)) != PackU(0u))
                        & (number >= PackU(lowest)) & (number < PackU(limit))
//#if BIDIRECTIONAL
                        & (abs(back) < PackI(params.reach));
//#else
                        & (back >= PackI(0)) & (back < PackI(params.reach));
//#endif
                    var score = products[p * CELLS + c];
//#if CHUNKS
                    let within = row_positions[p] % PackI(params.chunk);
                    visible = visible & (back <= within);
//#endif
//#if ALIBI
                    score -= row_slopes[p] * Pack(abs(back));
//#endif
//#if SOFTCAP
                    score = params.cap * tanh_of(score);
//#endif
                    scores[(pack_lane + p * PACK_LANES) * BLOCK + lane + c * LANES] = select(Pack(LOW), score, visible);
                }
            }
            workgroupBarrier();

            if (sharing) {
                var highest = Pack(LOW);
                for (var c = share; c < BLOCK; c += SHARES) {
                    highest = max(highest, scores[pack * BLOCK + c]);
                }
                shares[t] = highest;
            }
            workgroupBarrier();
            if (sharing) {
                var highest = top;
                for (var s = 0u; s < SHARES; s++) {
                    highest = max(highest, shares[pack * SHARES + s]);
                }
                let factor = exp2(top - highest);
                weight *= factor;
                for (var c = share; c < BLOCK; c += SHARES) {
                    let score = scores[pack * BLOCK + c];
                    let w = select(exp2(score - highest), Pack(0.0), score <= Pack(LOW));
                    scores[pack * BLOCK + c] = w;
                    weight += w;
                }
                top = highest;
                if (share == 0u) {
                    factors[pack] = factor;
                }
            }
            workgroupBarrier();

            if (summing) {
                for (var p = 0u; p < SUM_PACKS; p++) {
                    let factor = factors[column + p * COLUMNS];
                    for (var e = 0u; e < PACK; e++) {
                        sums[p * PACK + e] *= element(factor, e);
                    }
                }
                let value = value_at(key_head, block);
                for (var c = part; c < params.cells; c += PARTS * V_AHEAD) {
                    var v: array<Quad, V_AHEAD>;
                    for (var i = 0u; i < V_AHEAD; i++) {
                        let at = value + (c + i * PARTS) * V_UNITS;
                        v[i] = value_numbers(values[at + quad]);
//#if V_Q8
                        v[i] *= bitcast<f32>(values[at + DV4 + quad / 8u]);
//#endif
                    }
                    for (var i = 0u; i < V_AHEAD; i++) {
                        for (var p = 0u; p < SUM_PACKS; p++) {
                            let w = scores[(column + p * COLUMNS) * BLOCK + c + i * PARTS];
                            // A cell that no row sees may hold NaN.
                            let x = select(vec4<f32>(0.0), v[i], any(w != Pack(0.0)));
                            for (var e = 0u; e < PACK; e++) {
                                sums[p * PACK + e] += element(w, e) * x;
                            }
                        }
                    }
                }
            }
            workgroupBarrier();
        }
    }

    // What threads hold of sums and weights, then each of the tile's results.
    if (sharing) {
        shares[t] = weight;
        if (share == 0u) {
            factors[pack] = top;
        }
    }
    if (summing) {
        for (var p = 0u; p < SUM_PACKS; p++) {
            for (var e = 0u; e < PACK; e++) {
                let i = (column + p * COLUMNS) * PACK + e;
                queries[(part * TILE + i) * DV4 + quad] = sums[p * PACK + e];
            }
        }
    }
    workgroupBarrier();
    if (sharing && share == 0u) {
        for (var i = 1u; i < SHARES; i++) {
            weight += shares[t + i];
        }
        shares[t] = weight;
    }
    workgroupBarrier();
    let splits = frame[3];
    for (var n = t; n < min(TILE, count - flat(tile, 0u)) * DV4; n += THREADS) {
        let i = n / DV4;
        var sum = queries[n];
        for (var other = 1u; other < PARTS; other++) {
            sum += queries[other * TILE * DV4 + n];
        }
        let all = element(shares[i / PACK * SHARES], i % PACK);
        let q = flat(tile, i);
        let row = q / GROUP;
        let head = key_head * GROUP + q % GROUP;
        if (splits == 1u) {
//#if SINKS
            let sink = exp2(min(sinks[head] * LOG2E - element(factors[i / PACK], i % PACK), 120.0));
            ws[params.dst + row * params.dst_width + head * DV4 + n % DV4] = sum / max(all + sink, 1.0e-30);
//#else
            ws[params.dst + row * params.dst_width + head * DV4 + n % DV4] = sum / max(all, 1.0e-30);
//#endif
        } else {
            let at = ((row * splits + group.x) * params.heads + head) * (DV4 + 1u);
            partials[at + 1u + n % DV4] = sum;
            if (n % DV4 == 0u) {
                partials[at] = vec4<f32>(element(factors[i / PACK], i % PACK), all, 0.0, 0.0);
            }
        }
    }
}
