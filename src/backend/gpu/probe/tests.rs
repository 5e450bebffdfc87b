#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::cpu::rope::Rope;
use crate::backend::gpu::attend;
use crate::backend::gpu::device::candidates;
use crate::backend::gpu::heads::{self, Norms, Turns};
use crate::backend::gpu::kv::KvLayout;
use crate::backend::gpu::restrict::Restrictions;
use crate::backend::gpu::rows::{self, Place};
use crate::backend::gpu::testing::devices;
use crate::graph::{AttentionSpec, RopeKind, RopeScaling, WeightId};
use crate::quant::TensorType::{self, F16, F32, Q8_0};

/// The probe passes, and does not where its expectation is another one.
fn check(gpu: &Gpu, mut probe: Probe, what: &str) {
    Probe::run_all(gpu, std::slice::from_ref(&probe)).unwrap();
    assert!(tried(probe.kernels()));
    for (run, wrong) in (0..probe.runs.len()).flat_map(|run| [(run, 0.1), (run, f64::NAN)]) {
        let right = probe.runs[run].expected[5].0;
        probe.runs[run].expected[5].0 += wrong;
        let Err(Error::Device(text)) = probe.run(gpu) else { panic!("{} passed", probe.what) };
        probe.runs[run].expected[5].0 = right;
        let kernels = probe.kernels().map(|kernel| kernel.name);
        for part in kernels.chain([gpu.info.name.as_str(), &gpu.info.driver, "result 5", what]) {
            assert!(text.contains(part), "no {part} in: {text}");
        }
    }
}

#[test]
fn a_wrong_result_names_driver_and_kernel() {
    let spec = WeightSpec { name: "w".into(), n_in: 44, n_out: 21, ty: F32, usage: WeightUse::RowsAndMatMul };
    let data: Vec<u8> = (0..44 * 21).flat_map(|i| input(i + 7).to_le_bytes()).collect();
    for gpu in devices() {
        let probes = Probe::of(gpu, &spec, spec.usage, &data).unwrap();
        assert!(probes.len() >= 2);
        probes.into_iter().for_each(|probe| check(gpu, probe, "F32"));
        check(gpu, Probe::norm(gpu, false).unwrap(), "RMS norms");
        check(gpu, Probe::norm(gpu, true).unwrap(), "RMS norms");
        check(gpu, Probe::select(gpu).unwrap(), "output rows");
        check(gpu, Probe::softcap(gpu).unwrap(), "soft caps");
    }
}

/// Heads of a model with a cache of 4096 cells.
fn shape(
    ty: TensorType,
    (n_head, n_head_kv): (usize, usize),
    (head_dim_k, head_dim_v): (usize, usize),
    softcap: Option<f32>,
    norms: (bool, bool),
) -> (AttentionSpec, KvLayout) {
    let [q_norm, k_norm] = [norms.0, norms.1].map(|has| has.then_some(WeightId(0)));
    let (scale, window, norm_eps) = (0.1, 0, 1e-6);
    let sizes = AttentionSpec {
        layer: 3,
        n_head,
        n_head_kv,
        head_dim_k,
        head_dim_v,
        scale,
        softcap,
        window,
        q_norm,
        k_norm,
        norm_eps,
        rope: 0,
    };
    (sizes, KvLayout::new(ty, n_head_kv, head_dim_k, head_dim_v, 4096).unwrap())
}

#[test]
fn attention_is_tried_from_queries_to_results() {
    use RopeKind::{Neox, Norm};
    let cases = [
        (shape(F32, (4, 2), (8, 8), None, (false, false)), (Norm, 8), [1, 64]),
        (shape(F16, (2, 1), (128, 128), Some(30.0), (true, true)), (Neox, 128), [1, 2]),
        (shape(Q8_0, (7, 1), (80, 40), None, (false, true)), (Neox, 32), [1, 8]),
    ];
    for (gpu, ((spec, layout), turns, max_rows)) in devices().iter().flat_map(|gpu| cases.iter().map(move |c| (gpu, c)))
    {
        for &max_rows in max_rows {
            let probe = || Probe::attention(gpu, spec, layout, *turns, max_rows).unwrap();
            check(gpu, probe(), &format!("{} heads", layout.ty));
            // Each of the kernels is seen: a fault of its own shows.
            for (step, param, times) in [(0, 4, 1.1), (1, 6, 1.2)] {
                let mut faulty = probe();
                let param = &mut faulty.steps[step].params[param];
                *param = (f32::from_bits(*param) * times).to_bits();
                faulty.run(gpu).unwrap_err();
            }
            let mut blind = probe();
            blind.steps[1].params[5] = i32::MAX as u32;
            blind.run(gpu).unwrap_err();
            let mut apart = probe();
            apart.steps.pop();
            apart.run(gpu).unwrap_err();
        }
    }
}

/// What is tried is the kernel that a model of other numbers runs.
#[test]
fn a_probe_has_the_kernels_of_the_model() {
    for gpu in devices() {
        let (spec, layout) = shape(F32, (4, 2), (8, 8), None, (false, false));
        let probe = Probe::attention(gpu, &spec, &layout, (RopeKind::Norm, 8), 1).unwrap();
        let turns = Turns::new(gpu, RopeKind::Norm, &Rope::new(8, 5e5, &[], RopeScaling::None)).unwrap();
        let (qkv, out) = (Place { offset: 1024, width: 96 }, Place { offset: 4096, width: 32 });
        let mut steps = vec![heads::step(gpu, &spec, &layout, &turns, &Norms::default(), qkv).unwrap()];
        steps.extend(attend::steps(gpu, &spec, &layout, qkv, out, 1).unwrap());
        assert!(probe.kernels().zip(&steps).all(|(kernel, step)| Arc::ptr_eq(kernel, &step.kernel)));
    }
}

/// On a device of its own: nothing else may wait there.
#[test]
fn what_waits_is_tried_once_and_what_fails_goes_on_failing() {
    if devices().is_empty() {
        return;
    }
    let gpu = Arc::new(Gpu::new(&candidates()[0], &Restrictions::default()).unwrap());
    let place = |offset| Place { offset, width: 8 };
    let step = rows::select(&gpu, place(0), place(64)).unwrap();
    let add = |wrong: f64| {
        let mut made = 0;
        let make = || {
            made += 1;
            let mut probe = Probe::select(&gpu)?;
            probe.runs[0].expected[7].0 += wrong;
            Ok(probe)
        };
        gpu.pending.lock().add(std::slice::from_ref(&step), make).unwrap();
        made
    };
    assert_eq!((add(1.0), add(0.0)), (1, 0), "one of them is enough");
    for _ in 0..2 {
        let text = Pending::run(&gpu).unwrap_err().to_string();
        assert!(text.contains("`select`") && text.contains("result 7"), "{text}");
        assert!(!tried([&step.kernel]));
    }
    gpu.pending.lock().probes[0].runs[0].expected[7].0 -= 1.0;
    let made = gpu.made();
    Pending::run(&gpu).unwrap();
    assert!(tried([&step.kernel]) && gpu.made() != made);
    // Then never again.
    let made = gpu.made();
    assert_eq!(add(1.0), 0);
    Pending::run(&gpu).unwrap();
    assert_eq!(gpu.made(), made);
}
