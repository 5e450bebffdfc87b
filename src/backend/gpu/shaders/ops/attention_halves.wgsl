enable f16;
enable wgpu_cooperative_matrix;
// Attention of a tile of many query vectors over one split of the cells by matrix instructions, of blocks of SIDE by SIDE numbers,
// see ops/attention.rs.
//
// Queries, keys, weights and values are halves here; scores, sums and what is between steps are f32. A step takes CELLS cells:
// scores are products of queries and keys, weights are made of them by the threads that share a vector, and sums are products of
// weights and values, which stay in the hands of the subgroups. Four subgroups work on matrices: two of vectors, LINES blocks of
// them each, times two of cells, and then of columns of the values. Where a workgroup has more subgroups, the others do the last
// one's work again.
//
// A vector's weights are relative to a number near its highest score so far. As long as the next scores are not far above, it
// stays, and with it the sums; else they are brought to the new one by way of workgroup memory.
//
// A value is multiplied with the zero weights of vectors that do not see its cell, too. So NaN does not get into the products where
// a tile has vectors of several sequences: a vector with another weight than zero for it gets NaN for the sum of its weights, and
// then for all of its sums.

//#include ops/near_half
//#include blocks

const WORKERS: u32 = 4u;
// Vectors of a subgroup, and of all.
const HEIGHT: u32 = LINES * SIDE;
const TILE: u32 = 2u * HEIGHT;
const CELLS: u32 = 2u * SIDE;
// Blocks of columns of a subgroup.
const ACROSS: u32 = 4u * DV4 / CELLS;
// With eight halves more, or four numbers, rows of a block are not in the same banks.
const K_STRIDE: u32 = 4u * DK4 + 8u;
const CELLS_STRIDE: u32 = CELLS + 8u;
const SCORES_STRIDE: u32 = CELLS + 4u;
// Cells of a thread that shares a vector.
const EACH: u32 = CELLS / SHARES;
// A weight is at most two to the power of MOST. Where one would be more, the highest becomes two to the power of NEAR.
const MOST: f32 = 15.0;
const NEAR: f32 = 8.0;

// Matrices are at multiples of 16 bytes in workgroup memory: what is smaller comes after them.
var<workgroup> queries: array<f16, TILE * K_STRIDE>;
// The keys of a step by cells, then its values by columns.
var<workgroup> kept: array<f16, max(CELLS * K_STRIDE, 4u * DV4 * CELLS_STRIDE)>;
// Scores, and a place for those of subgroups that do work again. Sums, when threads see to them: a block of each subgroup.
var<workgroup> scores: array<f32, (TILE + HEIGHT) * SCORES_STRIDE>;
var<workgroup> weights: array<f16, TILE * CELLS_STRIDE>;
// Of each vector, what the threads that share it have each found.
var<workgroup> shares: array<f32, TILE * SHARES>;
var<workgroup> factors: array<f32, TILE>;
// Whether any factor is not one.
var<workgroup> moved: atomic<u32>;
// A bit for each cell of a step whose value has a NaN that was left out.
var<workgroup> broken: atomic<u32>;

//#include ops/attention_tile

fn keep(at: u32, stride: u32, x: vec4<f32>) {
    let y = vec4<f16>(x);
    kept[at] = y.x;
    kept[at + stride] = y.y;
    kept[at + 2u * stride] = y.z;
    kept[at + 3u * stride] = y.w;
}

fn keep_keys(t: u32, key_head: u32, first: u32) {
    for (var n = t; n < CELLS * DK4; n += THREADS) {
        let c = n % CELLS;
        let unit = n / CELLS;
        let key = key_at(key_head, first + c);
        var x = key_numbers(keys[key + unit * BLOCK]);
//#if K_Q8
        x *= bitcast<f32>(keys[key + (DK4 + unit / 8u) * BLOCK]);
//#endif
        keep(c * K_STRIDE + unit * 4u, 1u, x);
    }
}

// Neighbours keep eight cells of four units: runs of memory, and not all one bank of workgroup memory.
fn value_unit(n: u32) -> u32 {
    return n / 32u % (DV4 / 4u) * 4u + n / 8u % 4u;
}

fn value_cell(n: u32) -> u32 {
    return n / (8u * DV4) * 8u + n % 8u;
}

// Of cells that no row shares a sequence with zeros are kept: they may hold NaN.
fn keep_values(t: u32, key_head: u32, first: u32, end: u32, sequences: u32) {
    for (var n = t; n < CELLS * DV4; n += THREADS) {
        let c = value_cell(n);
        let unit = value_unit(n);
        let value = value_at(key_head, first + c);
        var x = value_numbers(values[value + unit]);
//#if V_Q8
        x *= bitcast<f32>(values[value + DV4 + unit / 8u]);
//#endif
        let used = select(0u, frame[FRAME_CELLS + 2u * (first + c) + 1u], first + c < end) & sequences;
        keep(unit * 4u * CELLS_STRIDE + c, CELLS_STRIDE, select(vec4<f32>(0.0), x, used != 0u));
    }
}

// Takes NaN out of the values that a thread kept.
fn leave_nan_out(t: u32) {
    for (var n = t; n < CELLS * DV4; n += THREADS) {
        let c = value_cell(n);
        for (var i = 0u; i < 4u; i++) {
            let at = (value_unit(n) * 4u + i) * CELLS_STRIDE + c;
            if (is_nan(vec4<f32>(f32(kept[at]))).x) {
                atomicOr(&broken, 1u << c);
                kept[at] = 0.0h;
            }
        }
    }
}

// The vector in line `row` of what the subgroup `worker` stored of its `line`th line of blocks.
fn vector_of(worker: u32, line: u32, row: u32) -> u32 {
    return worker / 2u * HEIGHT + line * SIDE + row;
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
    @builtin(subgroup_id) subgroup: u32,
) {
    let count = vectors();
    let tile = tile_of(group.y, count);
    let key_head = group.z;
    let begin = group.x * frame[4];
    let end = min(begin + frame[4], frame[2]);

    // Queries times a power of two, by which a vector's largest half is 2^13 to 2^14; `unit` is one over that.
    let sharing = t < TILE * SHARES;
    let vector = min(t / SHARES, TILE - 1u);
    let share = t % SHARES;
    let q = flat(tile, vector);
    var most = 0.0;
    if (sharing) {
        for (var quad = share; quad < DK4; quad += SHARES) {
            let size = abs(query(q, count, key_head, quad));
            most = max(most, max(max(size.x, size.y), max(size.z, size.w)));
        }
        shares[t] = most;
    }
    if (t < 3u) {
        atomicStore(&seen[t], 0u);
        atomicStore(&cut[t], 0u);
    }
    workgroupBarrier();
    for (var s = 0u; s < SHARES; s++) {
        most = max(most, shares[vector * SHARES + s]);
    }
    let exponent = clamp(267u - (bitcast<u32>(most) >> 23u), 14u, 240u);
    let unit = bitcast<f32>((254u - exponent) << 23u);
    if (sharing) {
        for (var quad = share; quad < DK4; quad += SHARES) {
            let x = query(q, count, key_head, quad) * bitcast<f32>(exponent << 23u);
            let y = vec4<f16>(select(near_half(x), x, is_nan(x)));
            let at = vector * K_STRIDE + quad * 4u;
            queries[at] = y.x;
            queries[at + 1u] = y.y;
            queries[at + 2u] = y.z;
            queries[at + 3u] = y.w;
        }
    }
    let reach = reach_of(tile, count);
    let position = position_of(q, count);
    let sequences = sequences_of(q, count);
//#if ALIBI
    let slope = slope_of(q, key_head);
//#endif
    var top = LOW;
    var weight = 0.0;

    let worker = min(subgroup, WORKERS - 1u);
    let side = worker % 2u;
    let first_vector = worker / 2u * HEIGHT;
    let scores_at = select(first_vector, TILE, subgroup >= WORKERS) * SCORES_STRIDE + side * SIDE;
    let own = min(subgroup, WORKERS) * SIDE * SIDE;
    var sums: array<Sums, LINES * ACROSS>;
    workgroupBarrier();

    var word = 0u;
    for (var first = begin; first < end; first += SPAN) {
        look(t, first, end, reach, word);
        workgroupBarrier();
        var blocks = atomicLoad(&seen[word]);
        let parts = atomicLoad(&cut[word]);
        word = (word + 1u) % 3u;
        if (t == 0u) {
            atomicStore(&seen[(word + 1u) % 3u], 0u);
            atomicStore(&cut[(word + 1u) % 3u], 0u);
        }

        while (blocks != 0u) {
            let block = first + firstTrailingBit(blocks) * BLOCK;
            let whole = block + BLOCK <= end && ((parts >> firstTrailingBit(blocks)) & 1u) == 0u;
            blocks &= blocks - 1u;
            for (var cell = block; cell < min(block + BLOCK, end); cell += CELLS) {
                keep_keys(t, key_head, cell);
                if (t == 0u) {
                    atomicStore(&moved, 0u);
                    atomicStore(&broken, 0u);
                }
                workgroupBarrier();

                var products: array<Sums, LINES>;
                for (var k = 0u; k < 4u * DK4; k += SIDE) {
                    let key = coopLoad<Right>(&kept[side * SIDE * K_STRIDE + k], K_STRIDE);
                    for (var line = 0u; line < LINES; line++) {
                        let some = coopLoadT<Left>(&queries[(first_vector + line * SIDE) * K_STRIDE + k], K_STRIDE);
                        products[line] = coopMultiplyAdd(some, key, products[line]);
                    }
                }
                for (var line = 0u; line < LINES; line++) {
                    coopStoreT(products[line], &scores[scores_at + line * SIDE * SCORES_STRIDE], SCORES_STRIDE);
                }
                workgroupBarrier();

                var found: array<f32, EACH>;
                if (sharing) {
                    var highest = LOW;
                    if (whole) {
                        for (var e = 0u; e < EACH; e++) {
                            found[e] = capped(scores[vector * SCORES_STRIDE + share + e * SHARES] * unit);
                            highest = max(highest, found[e]);
                        }
                    } else {
                        for (var e = 0u; e < EACH; e++) {
                            let c = share + e * SHARES;
                            let product = scores[vector * SCORES_STRIDE + c] * unit;
//#if ALIBI
                            found[e] = score_of(product, position, sequences, slope, cell_at(cell + c, end));
//#else
                            found[e] = score_of(product, position, sequences, cell_at(cell + c, end));
//#endif
                            highest = max(highest, found[e]);
                        }
                    }
                    shares[t] = highest;
                }
                workgroupBarrier();
                if (sharing) {
                    var highest = LOW;
                    for (var s = 0u; s < SHARES; s++) {
                        highest = max(highest, shares[vector * SHARES + s]);
                    }
                    var factor = 1.0;
                    if (highest - top > MOST) {
                        let next = highest - NEAR;
                        factor = select(exp2(top - next), 1.0, top <= LOW);
                        top = next;
                        weight *= factor;
                    }
                    if (share == 0u) {
                        factors[vector] = factor;
                        if (factor != 1.0) {
                            atomicStore(&moved, 1u);
                        }
                    }
                    for (var e = 0u; e < EACH; e++) {
                        let w = f16(select(exp2(found[e] - top), 0.0, found[e] <= LOW));
                        weights[vector * CELLS_STRIDE + share + e * SHARES] = w;
                        weight += f32(w);
                    }
                }
                keep_values(t, key_head, cell, end, reach.sequences);
                if (reach.sequences != reach.shared_by_all) {
                    leave_nan_out(t);
                }
                workgroupBarrier();

                let nan_cells = atomicLoad(&broken);
                if (nan_cells != 0u && sharing) {
                    for (var c = share; c < CELLS; c += SHARES) {
                        if (((nan_cells >> c) & 1u) != 0u && weights[vector * CELLS_STRIDE + c] != 0.0h) {
                            weight += bitcast<f32>(0x7fc00000u | nan_cells);
                        }
                    }
                }
                if (atomicLoad(&moved) != 0u) {
                    for (var i = 0u; i < LINES * ACROSS; i++) {
                        coopStoreT(sums[i], &scores[own], SIDE);
                        workgroupBarrier();
                        for (var n = t; n < (WORKERS + 1u) * SIDE * SIDE; n += THREADS) {
                            let by = min(n / (SIDE * SIDE), WORKERS - 1u);
                            scores[n] *= factors[vector_of(by, i % LINES, n / SIDE % SIDE)];
                        }
                        workgroupBarrier();
                        sums[i] = coopLoadT<Sums>(&scores[own], SIDE);
                    }
                }
                for (var k = 0u; k < CELLS; k += SIDE) {
                    for (var across = 0u; across < ACROSS; across++) {
                        let value = coopLoad<Right>(&kept[(side * ACROSS + across) * SIDE * CELLS_STRIDE + k], CELLS_STRIDE);
                        for (var line = 0u; line < LINES; line++) {
                            let some = coopLoadT<Left>(&weights[(first_vector + line * SIDE) * CELLS_STRIDE + k], CELLS_STRIDE);
                            let i = across * LINES + line;
                            sums[i] = coopMultiplyAdd(some, value, sums[i]);
                        }
                    }
                }
                workgroupBarrier();
            }
        }
    }

    if (sharing) {
        shares[t] = weight;
        if (share == 0u) {
            factors[vector] = top;
        }
    }
    for (var i = 0u; i < LINES * ACROSS; i++) {
        coopStoreT(sums[i], &scores[own], SIDE);
        workgroupBarrier();
        for (var n = t; n < WORKERS * SIDE * SIDE / 4u; n += THREADS) {
            let by = n / (SIDE * SIDE / 4u);
            let one = vector_of(by, i % LINES, n / (SIDE / 4u) % SIDE);
            let quad = (by % 2u * ACROSS + i / LINES) * (SIDE / 4u) + n % (SIDE / 4u);
            var all = 0.0;
            for (var s = 0u; s < SHARES; s++) {
                all += shares[one * SHARES + s];
            }
            if (flat(tile, one) < count) {
                var sum = vec4<f32>(scores[4u * n], scores[4u * n + 1u], scores[4u * n + 2u], scores[4u * n + 3u]);
                sum = select(sum, vec4<f32>(all), is_nan(vec4<f32>(all)));
                store(group.x, flat(tile, one), key_head, quad, sum, factors[one], all);
            }
        }
        workgroupBarrier();
    }
}
