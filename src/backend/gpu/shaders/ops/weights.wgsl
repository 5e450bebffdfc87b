// What all kernels over matrices share: the words of a step, and the weights of a group of 32.
//
// A matrix is stored in tiles of TILE rows; a group is 32 weights of a row along K. `fetch` (fetch.wgsl) reads what is stored
// of a group, `unpack` turns it into numbers q, of which the weights are `q * scale + offset`, with one scale (and
// offset) for each half of the group. See format.rs for the places.

struct Params {
    // The slice: groups of a row, rows, and the index of its first row in the matrix; then the frame's word that counts
    // the batch rows.
    groups: u32,
    rows: u32,
    first_row: u32,
    count_at: u32,
    // Where its sections begin, in elements of their binding; then the input width in vec4s.
    blocks_at: u32,
    halves_at: u32,
    block_halves_at: u32,
    x_quads: u32,
    // Offsets and strides of the rows in the workspace, in vec4s.
    x: u32,
    x_stride: u32,
    dst: u32,
    dst_stride: u32,
    // NONE, or where the rows to add are; workgroups of the first of two folded dimensions.
    residual: u32,
    fold: u32,
    // The most batch rows; epsilon of the norm, or the factor of a table's rows.
    columns: u32,
    real: f32,
    // Rows that are normed and added to the input; NONE, or where the sum is stored; epsilon of that norm.
    y: u32,
    sum: u32,
    y_eps: f32,
    // Factors on the products of the first and the second matrix.
    scale_first: f32,
    scale_second: f32,
    pad0: u32,
    pad1: u32,
    pad2: u32,
    // Numbers of an activation.
    curve: vec4<f32>,
    // Matrices one after the other, of heads or experts: the first row of the first one and the rows from one to the next, in
    // both matrices of a gated product; then the vec4s from one part to the next of a row's input and output.
    stack: u32,
    stack_rows: u32,
    second_stack: u32,
    second_rows: u32,
    part_x: u32,
    part_dst: u32,
    // Experts of a row, and where their rows' routes are, in vec4s.
    used: u32,
    route: u32,
}

@group(0) @binding(BIND_WS) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(BIND_FRAME) var<storage, read> frame: array<u32>;
@group(0) @binding(BIND_PARAMS) var<uniform> params: Params;

// A group of a row as it is stored.
struct Raw {
    quads: array<vec4<u32>, QUADS>,
//#if BLOCKS
    block: vec4<u32>,
//#endif
//#if WORDS
    words: array<u32, WORDS>,
//#endif
//#if HALVES
    bits: u32,
//#endif
//#if BLOCK_HALVES
    block_bits: u32,
//#endif
}

// 32 numbers in order: the columns of `lo`, then those of `hi`.
struct Numbers {
    lo: mat4x4<f32>,
    hi: mat4x4<f32>,
}

struct Weights {
    q: Numbers,
    scale: vec2<f32>,
//#if OFFSET
    offset: vec2<f32>,
//#endif
}

// The same with numbers that are bytes, four a word in order: unsigned ones below 128 or signed ones.
struct Codes {
    lo: vec4<u32>,
    hi: vec4<u32>,
    scale: vec2<f32>,
//#if OFFSET
    offset: vec2<f32>,
//#endif
}

// Two f16, exactly. Not by `unpack2x16float`, which may take subnormal numbers for zero, and the scales of ordinary
// matrices are among them. Infinities do not occur.
fn two_halves(bits: u32) -> vec2<f32> {
    let both = vec2<u32>(bits & 0xffffu, bits >> 16u);
    let size = both & vec2<u32>(0x7fffu);
    let normal = bitcast<vec2<f32>>((size << vec2<u32>(13u)) + vec2<u32>(0x38000000u));
    let subnormal = vec2<f32>(size) * 5.9604644775390625e-8;
    let value = select(normal, subnormal, size < vec2<u32>(0x400u));
    return bitcast<vec2<f32>>(bitcast<vec2<u32>>(value) | ((both & vec2<u32>(0x8000u)) << vec2<u32>(16u)));
}

//#if F32
fn unpack(raw: Raw, group: u32) -> Weights {
    let q = raw.quads;
    let lo = mat4x4<f32>(
        bitcast<vec4<f32>>(q[0]), bitcast<vec4<f32>>(q[1]), bitcast<vec4<f32>>(q[2]), bitcast<vec4<f32>>(q[3]));
    let hi = mat4x4<f32>(
        bitcast<vec4<f32>>(q[4]), bitcast<vec4<f32>>(q[5]), bitcast<vec4<f32>>(q[6]), bitcast<vec4<f32>>(q[7]));
    return Weights(Numbers(lo, hi), vec2<f32>(1.0));
}
//#endif

//#if F16
fn sixteen_halves(a: vec4<u32>, b: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        vec4<f32>(two_halves(a.x), two_halves(a.y)), vec4<f32>(two_halves(a.z), two_halves(a.w)),
        vec4<f32>(two_halves(b.x), two_halves(b.y)), vec4<f32>(two_halves(b.z), two_halves(b.w)));
}

fn unpack(raw: Raw, group: u32) -> Weights {
    let q = raw.quads;
    return Weights(Numbers(sixteen_halves(q[0], q[1]), sixteen_halves(q[2], q[3])), vec2<f32>(1.0));
}
//#endif

//#if BF16
// The four upper halves that two words hold.
fn four_tops(a: u32, b: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}

fn sixteen_tops(a: vec4<u32>, b: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(four_tops(a.x, a.y), four_tops(a.z, a.w), four_tops(b.x, b.y), four_tops(b.z, b.w));
}

fn unpack(raw: Raw, group: u32) -> Weights {
    let q = raw.quads;
    return Weights(Numbers(sixteen_tops(q[0], q[1]), sixteen_tops(q[2], q[3])), vec2<f32>(1.0));
}
//#endif

//#if Q8_0
fn codes(raw: Raw, group: u32) -> Codes {
    return Codes(raw.quads[0], raw.quads[1], vec2<f32>(two_halves(raw.bits).x));
}
//#endif

//#if Q4_0
// A nibble at the top of a byte is 16 times the signed code.
fn codes(raw: Raw, group: u32) -> Codes {
    let q = raw.quads[0];
    let top = vec4<u32>(0xf0f0f0f0u);
    return Codes((q << vec4<u32>(4u)) & top, q & top, vec2<f32>(two_halves(raw.bits).x * 0.0625));
}
//#endif

//#if SIXES
// Scale and minimum of a group of a super-block: 6 bits each, in 12 bytes after the two f16.
fn scaled(lo: vec4<u32>, hi: vec4<u32>, block: vec4<u32>, group: u32) -> Codes {
    let shift = (group & 3u) * 8u;
    let a = block.y >> shift;
    let b = block.z >> shift;
    let c = block.w >> shift;
    let first = vec2<u32>(a & 63u, b & 63u);
    let second = vec2<u32>((c & 15u) | ((a >> 2u) & 48u), ((c >> 4u) & 15u) | ((b >> 2u) & 48u));
    let sixes = vec2<f32>(select(first, second, (group & 4u) != 0u));
    let both = two_halves(block.x) * sixes;
    return Codes(lo, hi, vec2<f32>(both.x), vec2<f32>(-both.y));
}
//#endif

//#if Q4_K
fn codes(raw: Raw, group: u32) -> Codes {
    let q = raw.quads[0];
    let low = vec4<u32>(0x0f0f0f0fu);
    return scaled(q & low, (q >> vec4<u32>(4u)) & low, raw.block, group);
}
//#endif

//#if Q5_K
fn codes(raw: Raw, group: u32) -> Codes {
    let q = raw.quads[0];
    let low = vec4<u32>(0x0f0f0f0fu);
    let fifth = vec4<u32>(0x10101010u);
    let bits = vec4<u32>(raw.words[0]);
    let lo = (q & low) | ((bits << vec4<u32>(4u, 3u, 2u, 1u)) & fifth);
    let hi = ((q >> vec4<u32>(4u)) & low) | ((bits >> vec4<u32>(0u, 1u, 2u, 3u)) & fifth);
    return scaled(lo, hi, raw.block, group);
}
//#endif

//#if Q6_K
// The six bits at the top of a byte are 4 times the signed code.
fn codes(raw: Raw, group: u32) -> Codes {
    let q = raw.quads[0];
    let four = vec4<u32>(0x3c3c3c3cu);
    let top = vec4<u32>(0xc0c0c0c0u);
    let places = vec4<u32>(6u, 4u, 2u, 0u);
    let lo = ((q << vec4<u32>(2u)) & four) | ((vec4<u32>(raw.words[0]) << places) & top);
    let hi = ((q >> vec4<u32>(2u)) & four) | ((vec4<u32>(raw.words[1]) << places) & top);
    let scale = two_halves(raw.block_bits).x * 0.25 * vec2<f32>(unpack4xI8(raw.bits).xy);
    return Codes(lo, hi, scale);
}
//#endif

//#if AFFINE
fn codes(raw: Raw, group: u32) -> Codes {
    let line = bitcast<vec4<f32>>(raw.quads[2]);
    return Codes(raw.quads[0], raw.quads[1], line.xz, line.yw);
}
//#endif

// The numbers of the 16 codes are looked up in workgroup memory, where no two of them meet in a bank. Every kernel calls
// this with all threads before it unpacks weights.
//#if TABLE
fn table_scale(bits: u32) -> vec2<f32> {
//#if MXFP4
    // Half of 2^(bits - 127), since the numbers are doubled; zero where that is subnormal.
    return vec2<f32>(bitcast<f32>((max(bits, 1u) - 1u) << 23u));
//#else
    return vec2<f32>(two_halves(bits).x);
//#endif
}

// The byte of a code of the table.
fn byte_of_table(code: u32) -> u32 {
    let words = vec4<u32>(TABLE_0, TABLE_1, TABLE_2, TABLE_3);
    return (words[code / 4u] >> (code % 4u * 8u)) & 0xffu;
}
//#if INT8
var<workgroup> table: array<u32, 16>;

fn fill_table(thread: u32) {
    if (thread < 16u) {
        table[thread] = byte_of_table(thread);
    }
    workgroupBarrier();
}

// Of the low four bits of each byte.
fn four_of_table(q: u32) -> u32 {
    return table[q & 15u] | (table[(q >> 8u) & 15u] << 8u) | (table[(q >> 16u) & 15u] << 16u)
        | (table[(q >> 24u) & 15u] << 24u);
}

fn sixteen_of_table(q: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(four_of_table(q.x), four_of_table(q.y), four_of_table(q.z), four_of_table(q.w));
}

fn codes(raw: Raw, group: u32) -> Codes {
    let q = raw.quads[0];
    return Codes(sixteen_of_table(q), sixteen_of_table(q >> vec4<u32>(4u)), table_scale(raw.bits));
}
//#else
var<workgroup> table: array<f32, 16>;

fn fill_table(thread: u32) {
    if (thread < 16u) {
        table[thread] = f32(unpack4xI8(byte_of_table(thread)).x);
    }
    workgroupBarrier();
}

// Of the low four bits of each byte.
fn four_of_table(q: u32) -> vec4<f32> {
    return vec4<f32>(table[q & 15u], table[(q >> 8u) & 15u], table[(q >> 16u) & 15u], table[(q >> 24u) & 15u]);
}

fn sixteen_of_table(q: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(four_of_table(q.x), four_of_table(q.y), four_of_table(q.z), four_of_table(q.w));
}

fn unpack(raw: Raw, group: u32) -> Weights {
    let q = raw.quads[0];
    return Weights(Numbers(sixteen_of_table(q), sixteen_of_table(q >> vec4<u32>(4u))), table_scale(raw.bits));
}
//#endif
//#else
fn fill_table(thread: u32) {}
//#if CODES
// The four bytes of a word. Those of SIXES are unsigned, which some GPUs convert in half of the instructions.
fn bytes(q: u32) -> vec4<f32> {
//#if SIXES
    return vec4<f32>(unpack4xU8(q));
//#else
    return vec4<f32>(unpack4xI8(q));
//#endif
}

fn sixteen_bytes(q: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(bytes(q.x), bytes(q.y), bytes(q.z), bytes(q.w));
}

fn unpack(raw: Raw, group: u32) -> Weights {
    let c = codes(raw, group);
    let q = Numbers(sixteen_bytes(c.lo), sixteen_bytes(c.hi));
//#if OFFSET
    return Weights(q, c.scale, c.offset);
//#else
    return Weights(q, c.scale);
//#endif
}
//#endif
//#endif

//#if !INT8
// The weights themselves.
fn values(w: Weights) -> Numbers {
//#if OFFSET
    let lo = vec4<f32>(w.offset.x);
    let hi = vec4<f32>(w.offset.y);
    return Numbers(w.q.lo * w.scale.x + mat4x4<f32>(lo, lo, lo, lo), w.q.hi * w.scale.y + mat4x4<f32>(hi, hi, hi, hi));
//#else
    return Numbers(w.q.lo * w.scale.x, w.q.hi * w.scale.y);
//#endif
}
//#endif
