// Attention of a tile of query vectors over one split of the cells, see ops/attention.rs.
//
// A query vector is one query head of one row; those that share a key head count row by row, and a tile is TILE of them.
// They come in packs of PACK, so that one read of workgroup memory serves four multiplications. In each block of cells a
// thread first makes the scores of its cells, then the weights of a part of the cells, then the sums of four columns of
// the values; the work is dealt out anew for each of the three.

const TILE: u32 = PACKS * PACK;

// These come before what is smaller: compilers place them in workgroup memory in this order, and the first at 0.
//
// The queries: of a pack and four columns, PACK vectors. At the end, the sums of values, part by part.
var<workgroup> queries: array<Quad, QUERY_WORDS>;
var<workgroup> scores: array<Pack, PACKS * BLOCK>;
// Of each pack, what the threads that share it have each found.
var<workgroup> shares: array<Pack, PACKS * SHARES>;
var<workgroup> factors: array<Pack, PACKS>;

//#include ops/attention_tile

fn element(pack: Pack, e: u32) -> f32 {
//#if PACKED
    return pack[e];
//#else
    return pack;
//#endif
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

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let count = vectors();
    let tile = tile_of(group.y, count);
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

    let reach = reach_of(tile, count);

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
        look(t, first, end, reach, word);
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
                let cell = cell_at(block + lane + c * LANES, end);
                for (var p = 0u; p < SCORE_PACKS; p++) {
                    let product = products[p * CELLS + c];
//#if ALIBI
                    let score = score_of(product, row_positions[p], row_sequences[p], row_slopes[p], cell);
//#else
                    let score = score_of(product, row_positions[p], row_sequences[p], cell);
//#endif
                    scores[(pack_lane + p * PACK_LANES) * BLOCK + lane + c * LANES] = score;
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
    for (var n = t; n < min(TILE, count - flat(tile, 0u)) * DV4; n += THREADS) {
        let i = n / DV4;
        var sum = queries[n];
        for (var other = 1u; other < PARTS; other++) {
            sum += queries[other * TILE * DV4 + n];
        }
        let top = element(factors[i / PACK], i % PACK);
        let all = element(shares[i / PACK * SHARES], i % PACK);
        store(group.x, flat(tile, i), key_head, n % DV4, sum, top, all);
    }
}
