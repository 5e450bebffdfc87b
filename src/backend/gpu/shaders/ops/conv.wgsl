// A causal convolution: each row with the rows that it comes after. With FACTORS the sum of TAPS rows, without them the
// difference of the row before. The last row of a sequence also writes the state. One row of workgroups per row.

struct Params {
    // The first quad of the columns in the first row, and the quads of a row.
    x: u32,
    x_stride: u32,
    dst: u32,
    // Quads of the channels.
    quads: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> frame: array<u32>;
// Of each cell TAPS - 1 rows of channels, the oldest first.
@group(0) @binding(3) var<storage, read_write> state: array<vec4<f32>>;
//#if FACTORS
@group(0) @binding(BIND_FACTORS) var<storage, read> factors: array<f32>;
//#endif
//#if BIAS
@group(0) @binding(BIND_BIAS) var<storage, read> bias: array<vec4<f32>>;
//#endif
//#include ops/activate

fn state_at(cell: u32, row: u32) -> u32 {
    return (cell * (TAPS - 1u) + row) * params.quads;
}

// Four channels of the row that is so many steps before this one.
fn met(row: u32, steps: u32, quad: u32) -> vec4<f32> {
    var at = row;
    for (var left = steps; left > 0u; left--) {
        let before = frame[FRAME_STATES + 4u * at];
        if (before == NO_STATE) {
            return vec4<f32>(0.0);
        }
        if (before >= AFTER_CELL) {
            return state[state_at(before - AFTER_CELL, TAPS - 1u - left) + quad];
        }
        at = before;
    }
    return ws[params.x + at * params.x_stride + quad];
}

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let quad = id.x;
    let row = id.y;
    if (quad < params.quads) {
//#if BIAS
        var sum = bias[quad];
//#else
        var sum = vec4<f32>(0.0);
//#endif
//#if FACTORS
        let at = 4u * quad * TAPS;
        for (var j = 0u; j < TAPS; j++) {
            let i = at + j;
            let factor = vec4<f32>(factors[i], factors[i + TAPS], factors[i + 2u * TAPS], factors[i + 3u * TAPS]);
            sum = fma(met(row, TAPS - 1u - j, quad), factor, sum);
        }
//#else
        sum += met(row, 1u, quad) - met(row, 0u, quad);
//#endif
        ws[params.dst + row * params.quads + quad] = gated(sum, vec4<f32>(1.0));
        let to = frame[FRAME_STATES + 4u * row + 1u];
        if (to != NO_STATE) {
            for (var j = 0u; j + 1u < TAPS; j++) {
                state[state_at(to, j) + quad] = met(row, TAPS - 2u - j, quad);
            }
        }
    }
}
