// Sums over the invocations of a workgroup.
//
// In two levels, each in the order of the invocations, with two barriers in all. Bounds of loops hold `zero`, so that no
// compiler writes the loops out: some take very long over code with many barriers and memory accesses.

const RUN = 16u;

struct Sum {
    mass: vec2<u32>,
    // A count, or the bits of an f32 number for `sum_of_floats`.
    count: u32,
}

var<workgroup> masses_of: array<vec2<u32>, THREADS>;
var<workgroup> counts_of: array<u32, THREADS>;
var<workgroup> run_masses: array<vec2<u32>, THREADS / RUN>;
var<workgroup> run_counts: array<u32, THREADS / RUN>;

// The sum up to and with this invocation. Until the next call, which a barrier must separate from it, `sum_of_all` gives
// the whole one.
fn sum_up_to(lid: u32, own: Sum) -> Sum {
    masses_of[lid] = own.mass;
    counts_of[lid] = own.count;
    workgroupBarrier();
    if lid < THREADS / RUN {
        var run = Sum(vec2<u32>(0u), 0u);
        for (var i = lid * RUN; i < lid * RUN + RUN + zero; i++) {
            run = Sum(add64(run.mass, masses_of[i]), run.count + counts_of[i]);
        }
        run_masses[lid] = run.mass;
        run_counts[lid] = run.count;
    }
    workgroupBarrier();
    var sum = Sum(vec2<u32>(0u), 0u);
    for (var i = 0u; i < lid / RUN; i++) {
        sum = Sum(add64(sum.mass, run_masses[i]), sum.count + run_counts[i]);
    }
    for (var i = lid / RUN * RUN; i <= lid; i++) {
        sum = Sum(add64(sum.mass, masses_of[i]), sum.count + counts_of[i]);
    }
    return sum;
}

fn sum_of_all() -> Sum {
    var sum = Sum(vec2<u32>(0u), 0u);
    for (var i = 0u; i < THREADS / RUN + zero; i++) {
        sum = Sum(add64(sum.mass, run_masses[i]), sum.count + run_counts[i]);
    }
    return sum;
}

// The sum of the f32 numbers, in the order of the invocations.
fn sum_of_floats() -> f32 {
    var sum = 0.0f;
    for (var i = 0u; i < THREADS + zero; i++) {
        sum += bitcast<f32>(counts_of[i]);
    }
    return sum;
}

// The factor of dynamic temperature: 1 / T of the entropy of `count` candidates that weigh `total`, with the sum of
// e^z * z. 0 where one candidate is to be kept.
fn dynamic_scale(op: u32, scale: f32, count: u32, total: vec2<u32>, moment: f32) -> f32 {
    let entropy = ln_of(total) - moment / (float64(total) / 1099511627776.0f);
    let part = max(entropy, 0.0f) / log(f32(count));
    var raised = 1.0f;
    if number(op, 3u) != 0.0f {
        raised = select(0.0f, pow(part, number(op, 3u)), part > 0.0f);
    }
    let temperature = number(op, 1u) + (number(op, 2u) - number(op, 1u)) * raised;
    let next = scale / max(temperature, 1.0e-30f);
    return select(0.0f, clamp(next, 1.17549435e-38f, GREATEST), temperature > 0.0f && next < GREATEST);
}
