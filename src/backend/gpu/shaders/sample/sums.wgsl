// Sums over the invocations of a workgroup.
//
// In two levels, each in the order of the invocations, with two barriers in all. Bounds of loops hold `zero`, so that no
// compiler writes the loops out: some take very long over code with many barriers and memory accesses.

const RUN = 16u;

struct Sum {
    mass: vec2<u32>,
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
