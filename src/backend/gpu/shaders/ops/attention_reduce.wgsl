// Joins the parts that the splits of attention left. One workgroup per head and row; with one split there is nothing to
// join, since attention wrote the result itself: no pass but those of a walk comes here then.

struct Params {
    dst: u32,
    dst_width: u32,
    pad0: u32,
    pad1: u32,
}

@group(0) @binding(0) var<storage, read_write> ws: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> frame: array<u32>;
@group(0) @binding(3) var<storage, read> partials: array<vec4<f32>>;
//#if SINKS
@group(0) @binding(4) var<storage, read> sinks: array<f32>;
const LOG2E: f32 = 1.4426950408889634;
//#endif

const LOW: f32 = -3.0e38;
var<workgroup> tops: array<f32, THREADS>;
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> parts: array<vec4<f32>, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let splits = frame[3];
    if (splits == 1u) {
        return;
    }
    let quad = t % DV4;
    var top = LOW;
    var weight = 0.0;
    var sum = vec4<f32>(0.0);
    // Each thread takes every PARTS-th split.
    if (t / DV4 < PARTS) {
        for (var s = t / DV4; s < splits; s += PARTS) {
            let at = ((group.y * splits + s) * N_HEAD + group.x) * (DV4 + 1u);
            let other = partials[at];
            let highest = max(top, other.x);
            let mine = exp2(top - highest);
            let its = exp2(other.x - highest);
            weight = weight * mine + other.y * its;
            sum = sum * mine + partials[at + 1u + quad] * its;
            top = highest;
        }
    }
    tops[t] = top;
    weights[t] = weight;
    parts[t] = sum;
    workgroupBarrier();
    if (t < DV4) {
        for (var p = t + DV4; p < PARTS * DV4; p += DV4) {
            let highest = max(top, tops[p]);
            let mine = exp2(top - highest);
            let its = exp2(tops[p] - highest);
            weight = weight * mine + weights[p] * its;
            sum = sum * mine + parts[p] * its;
            top = highest;
        }
//#if SINKS
        weight += exp2(min(sinks[group.x] * LOG2E - top, 120.0));
//#endif
        ws[params.dst + group.y * params.dst_width + group.x * DV4 + t] = sum / max(weight, 1.0e-30);
    }
}
