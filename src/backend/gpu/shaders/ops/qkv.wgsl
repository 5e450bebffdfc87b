// From a row of queries, keys and values side by side to attention's inputs: queries normalised and rotated in place,
// keys normalised, rotated and stored, values stored. One workgroup per head and row.

struct Params {
    at: u32,
    width: u32,
    blocks: u32,
    q_eps: f32,
    k_eps: f32,
    magnitude: f32,
    pad0: u32,
    pad1: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> frame: array<u32>;
@group(0) @binding(3) var<storage, read> turns: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> keys: array<Key>;
@group(0) @binding(5) var<storage, read_write> values: array<Value>;
//#if NORMS
@group(0) @binding(6) var<storage, read> q_norm: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> k_norm: array<vec4<f32>>;
//#include ops/workgroup_sum

fn scaled(t: u32, x: vec4<f32>, eps: f32) -> vec4<f32> {
    return x * inverseSqrt(workgroup_sum(t, dot(x, x)) / f32(4u * DK4) + eps);
}
//#endif
//#include ops/head

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let head = group.x;
    let record = FRAME_ROWS + 4u * group.y;
    let cell = frame[record + 3u];
    let row = params.at + group.y * params.width;
    var x = vec4<f32>(0.0);
    if (head >= N_HEAD + N_HEAD_KV) {
        let i = head - N_HEAD - N_HEAD_KV;
        if (t < DV4) {
            x = ws[row + (N_HEAD + N_HEAD_KV) * DK4 + i * DV4 + t];
        }
        store_value(t, i, cell, x);
        return;
    }
    let at = row + head * DK4 + t;
    if (t < DK4) {
        x = ws[at];
    }
    if (head < N_HEAD) {
//#if Q_NORM
        x = scaled(t, x, params.q_eps);
        if (t < DK4) {
            x *= q_norm[t];
        }
//#endif
    } else {
//#if K_NORM
        x = scaled(t, x, params.k_eps);
        if (t < DK4) {
            x *= k_norm[t];
        }
//#endif
    }
    x = turned(t, x, bitcast<i32>(frame[record + 1u]), params.magnitude);
    if (head >= N_HEAD) {
        store_key(t, head - N_HEAD, cell, x);
    } else if (t < DK4) {
        ws[at] = x;
    }
}
