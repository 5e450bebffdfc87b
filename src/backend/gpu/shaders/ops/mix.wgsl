// Sums of parts of rows, side by side, with or without something to add: PARTS parts, SUMS sums of them. With OF_ROW each row has
// coefficients of its own. One row of workgroups per row; dst may be x or the residual, since a thread reads its columns of all
// parts before it writes.

struct Params {
    x: u32,
    // The rows of coefficients, and quads of one of them.
    by: u32,
    by_quads: u32,
    residual: u32,
    dst: u32,
    // Of a part.
    quads: u32,
    // Added to a row's own coefficients.
    plus: f32,
    pad0: u32,
//#if !OF_ROW
    fixed_ones: array<vec4<f32>, (PARTS * SUMS + 3u) / 4u>,
//#endif
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < params.quads) {
        var parts: array<vec4<f32>, PARTS>;
        for (var s = 0u; s < PARTS; s += 1u) {
            parts[s] = ws[params.x + (id.y * PARTS + s) * params.quads + id.x];
        }
        for (var t = 0u; t < SUMS; t += 1u) {
            let column = (id.y * SUMS + t) * params.quads + id.x;
//#if RESIDUAL
            var sum = ws[params.residual + column];
//#else
            var sum = vec4<f32>(0.0);
//#endif
            for (var s = 0u; s < PARTS; s += 1u) {
                let i = t * PARTS + s;
//#if OF_ROW
                sum += parts[s] * (ws[params.by + id.y * params.by_quads + i / 4u][i % 4u] + params.plus);
//#else
                let c = params.fixed_ones[i / 4u][i % 4u];
                if (c != 0.0) {
                    sum += parts[s] * c;
                }
//#endif
            }
            ws[params.dst + column] = sum;
        }
    }
}
