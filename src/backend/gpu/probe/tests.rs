#![allow(clippy::unwrap_used)]

use super::products::vector;
use super::source::Source;
use super::*;
use crate::backend::KvTypes;
use crate::backend::gpu::device::adapters;
use crate::backend::gpu::device::test_limits::TestLimits;
use crate::backend::gpu::ops::attention::{self, Queries};
use crate::backend::gpu::ops::experts::{self, Down, Gate, Stack};
use crate::backend::gpu::ops::kv_cache::KvLayout;
use crate::backend::gpu::ops::matmul::{self, Added, Embed, Gated, Heads, Input, MatMul, Norm, Term};
use crate::backend::gpu::ops::narrow::Narrow;
use crate::backend::gpu::ops::qkv::{self, Norms, Preparation};
use crate::backend::gpu::ops::rows::{self, Map, RowSpan};
use crate::backend::gpu::ops::states::{Conv, Recur};
use crate::backend::gpu::ops::streams::{By, Mix};
use crate::backend::gpu::testing::harness::devices;
use crate::backend::gpu::weights::rope_table::RopeTable;
use crate::backend::known_recurrence::{Case, RULES, Shape};
use crate::backend::rope::Rope;
use crate::graph::{
    Activation, AttentionSpec, Gating, HeadNorm, Index, NormKind, NormSpan, NormSpec, RopeKind, RopeScaling, RouteSpec,
    Rows, Rule, Temperature, Values, WeightId,
};
use crate::quant::TensorType::{self, BF16, F16, F32, IQ4_NL, MXFP4, Q3_K, Q4_0, Q4_K, Q5_0, Q6_K, Q8_0};
use parking_lot::Mutex;

/// The probe passes, and fails with another expectation.
fn check(gpu: &Arc<Gpu>, mut probe: Probe, what: &str) {
    gpu.compiled(&probe.kernels()).unwrap();
    probe.run(gpu).unwrap();
    for (run, wrong) in (0..probe.runs.len()).flat_map(|run| [(run, 1.0), (run, f64::NAN)]) {
        let (right, off) = probe.runs[run].expected[5];
        probe.runs[run].expected[5].0 += wrong * (0.1 + 2.0 * off);
        let Err(Error::Device(text)) = probe.run(gpu) else { panic!("{} passed", probe.what) };
        probe.runs[run].expected[5].0 = right;
        let kernels = probe.kernels().into_iter().map(|kernel| kernel.name);
        for part in kernels.chain([gpu.info.name.as_str(), &gpu.info.driver, "result 5", what]) {
            assert!(text.contains(part), "no {part} in: {text}");
        }
    }
}

#[test]
fn a_wrong_result_names_driver_and_kernel() {
    for gpu in devices() {
        let table = Source::new(0, Q4_0, 64, 4).unwrap().load(gpu).unwrap();
        for (index, residual) in [(Index::Token, None), (Index::Position, Some(64))] {
            let like = Embed { table: &table, scale: 1.0, index, residual, dst: 64, width: 64 };
            check(gpu, Probe::embed(gpu, &like).unwrap(), "rows of Q4_0");
        }
        check(gpu, Probe::select(gpu).unwrap(), "output rows");
        let number = || vector(gpu, &[1.0; 8]).unwrap().bound();
        for (kind, weight, bias, parts, own) in [
            (NormKind::Rms, true, false, 1, false),
            (NormKind::Rms, false, false, 4, false),
            (NormKind::Rms, true, false, 2, true),
            (NormKind::Layer, true, true, 2, false),
        ] {
            let (weight, bias) = (weight.then(number), bias.then(number));
            let like = rows::Norm { kind, weight, bias, eps: 0.0, width: 8, parts, own };
            for adds in [false, true] {
                check(gpu, Probe::norm(gpu, &like, adds).unwrap(), &format!("kind {kind:?}"));
            }
        }
        for (map, what) in [(Map::SoftCap(1.0), "soft caps"), (Map::Scale(1.0), "factors"), (Map::Clamp(1.0), "limits")]
        {
            check(gpu, Probe::map(gpu, map, false).unwrap(), what);
            check(gpu, Probe::map(gpu, map, true).unwrap(), what);
        }
        check(gpu, Probe::multiply(gpu).unwrap(), "factors of columns");
        check(gpu, Probe::columns(gpu).unwrap(), "columns of parts");
        check(gpu, Probe::sparsify(gpu).unwrap(), "thresholds");
        check(gpu, Probe::equalize(gpu).unwrap(), "lengths of parts");
        for (by, residual) in [(By::Fixed(vec![1.0; 4]), false), (By::Row(RowSpan { offset: 0, width: 4 }, 1.0), true)]
        {
            let [x, dst] = [16, 16].map(|width| RowSpan { offset: 64, width });
            let like = Mix { x, parts: 2, by, residual: residual.then_some(dst), dst, rows: Rows::Batch };
            check(gpu, Probe::mix(gpu, &like).unwrap(), "mixtures of 2 parts");
        }
        for (width, residual) in [(8, None), (1, Some(RowSpan { offset: 64, width: 8 }))] {
            let [x, y, dst] = [width, 16, 8].map(|width| RowSpan { offset: 64, width });
            let act = Activation::Sigmoid;
            let like = rows::Gate { x, act, y, first: 8, residual, dst, rows: Rows::Batch };
            check(gpu, Probe::gate(gpu, &like).unwrap(), "gates of Sigmoid");
        }
    }
}

/// A probe with the kernels of these steps, which fails when one of their parameters is changed.
fn check_products(gpu: &Arc<Gpu>, steps: &[Step], probe: &dyn Fn() -> Probe, params: &[usize], what: &str) {
    assert!(probe().kernels().iter().zip(steps).all(|(kernel, step)| Arc::ptr_eq(kernel, &step.kernel)), "{what}");
    assert_eq!(probe().steps.len(), steps.len());
    check(gpu, probe(), what);
    for (step, &param) in (0..steps.len()).flat_map(|step| params.iter().map(move |param| (step, param))) {
        let mut faulty = probe();
        let word = &mut faulty.steps[step].params[param];
        *word = if param == RESIDUAL { u32::MAX } else { (f32::from_bits(*word) * 2.0).to_bits() };
        faulty.run(gpu).unwrap_err();
    }
}

/// Indices of a product's parameters: the residual's offset, epsilon of the norm, and of the one before the sum.
const RESIDUAL: usize = 12;
const EPS: usize = 15;
const SUM_EPS: usize = 18;
/// Index of the factor on the first matrix; that of the second comes next.
const SCALE: usize = 19;

#[test]
fn products_are_tried_as_a_model_runs_them() {
    // Types side by side with a bias on the first, values of a row, norms, a residual, most rows, whether logits.
    type Case = (&'static [TensorType], usize, usize, bool, usize, bool);
    let cases: [Case; 7] = [
        (&[F32, F16], 44, 0, true, 1, false),
        (&[Q4_K], 512, 2, false, 1, true),
        (&[Q5_0, Q8_0], 64, 1, false, 1, false),
        (&[Q6_K], 256, 0, true, 4, false),
        (&[MXFP4, IQ4_NL], 2048, 2, true, 1, false),
        (&[Q4_K], 256, 0, false, 16, true),
        (&[BF16, BF16], 44, 0, true, 512, false),
    ];
    for (gpu, (types, n_in, norms, residual, max_rows, logits)) in
        devices().iter().flat_map(|gpu| cases.map(|case| (gpu, case)))
    {
        let matrices: Vec<_> =
            types.iter().map(|&ty| Source::new(0, ty, n_in, 4).unwrap().load(gpu).unwrap()).collect();
        let [weight, bias] = [n_in, 4].map(|n| vector(gpu, &vec![1.0; n]).unwrap());
        let has = |i: usize| i == 0 && residual;
        let parts = matrices.iter().enumerate().map(|(i, matrix)| Term {
            scale: has(i).then_some(2.0),
            bias: has(i).then_some(&bias),
            ..Term::plain(matrix)
        });
        let parts: Vec<_> = parts.collect();
        let added = (norms > 1).then_some(Added { y: 4096, weight: &weight, eps: 0.0, sum: 8192 });
        let norm = (norms > 0).then_some(Norm { weight: &weight, eps: 0.0, added });
        let job = MatMul {
            parts: &parts,
            input: Input { x: 1024, width: n_in, norm, narrow: None },
            residual: residual.then_some(16384),
            dst: 16384,
            width: 4 * parts.len(),
            rows: Rows::Output,
            max_rows,
            logits,
        };
        let params = [(residual, RESIDUAL), (norms > 0, EPS), (norms > 1, SUM_EPS)];
        let params: Vec<_> = params.into_iter().filter(|p| p.0).map(|p| p.1).collect();
        let steps = matmul::matmul(gpu, &job).unwrap();
        let probe = || Probe::matmul(gpu, &job).unwrap();
        check_products(gpu, &steps, &probe, &params, &types[0].to_string());
    }
}

/// A product of one column, as a gate has it.
#[test]
fn single_columns_are_tried_as_a_model_runs_them() {
    for (gpu, (ty, n_in, normed, max_rows)) in devices()
        .iter()
        .flat_map(|gpu| [(F32, 44, true, 1), (Q8_0, 64, false, 8), (F16, 64, false, 512)].map(|case| (gpu, case)))
    {
        let matrix = Source::new(0, ty, n_in, 1).unwrap().load(gpu).unwrap();
        let (weight, bias) = (vector(gpu, &vec![1.0; n_in]).unwrap(), vector(gpu, &[1.0]).unwrap());
        let norm = normed.then_some(Norm { weight: &weight, eps: 0.0, added: None });
        let job = MatMul {
            parts: &[Term { scale: Some(2.0), bias: Some(&bias), ..Term::plain(&matrix) }],
            input: Input { x: 0, width: n_in, norm, narrow: None },
            residual: None,
            dst: 4096,
            width: 1,
            rows: Rows::Output,
            max_rows,
            logits: false,
        };
        let steps = matmul::matmul(gpu, &job).unwrap();
        let probe = || Probe::matmul(gpu, &job).unwrap();
        let mut faulty = probe();
        assert!(Arc::ptr_eq(&faulty.steps[0].kernel, &steps[0].kernel));
        gpu.compiled(&faulty.kernels()).unwrap();
        faulty.run(gpu).unwrap();
        let factor = &mut faulty.steps[0].params[SCALE];
        *factor = (f32::from_bits(*factor) * 2.0).to_bits();
        faulty.run(gpu).unwrap_err();
    }
}

#[test]
fn gated_products_are_tried_as_a_model_runs_them() {
    let cases = [
        ((Q5_0, Q3_K), 256, true, Activation::Silu, 1),
        ((BF16, BF16), 44, false, Activation::Gelu, 1),
        ((Q8_0, Q8_0), 64, false, Activation::Silu, 32),
    ];
    for (gpu, (types, n_in, normed, act, max_rows)) in devices().iter().flat_map(|gpu| cases.map(|case| (gpu, case))) {
        let [gate, up] = [types.0, types.1].map(|ty| Source::new(0, ty, n_in, 4).unwrap().load(gpu).unwrap());
        let weight = vector(gpu, &vec![1.0; n_in]).unwrap();
        let norm = normed.then_some(Norm { weight: &weight, eps: 0.0, added: None });
        let input = Input { x: 0, width: n_in, norm, narrow: None };
        let (gate_term, up) = (Term::plain(&gate), Some(Term::plain(&up)));
        let job = Gated { gate: gate_term, up, act, input, dst: 0, width: 4, rows: Rows::Batch, max_rows };
        let steps = matmul::gated(gpu, &job).unwrap();
        let probe = || Probe::gated(gpu, &job).unwrap();
        check_products(gpu, &steps, &probe, if normed { &[EPS] } else { &[] }, &format!("{act:?}"));
        // Gate and matrix are not the same.
        let mut turned = probe();
        let first = turned.steps[0].buffers.iter().position(|b| matches!(b, BufferRef::Weight(..))).unwrap();
        let sections = if gate.layout.format.elements[2..].iter().any(|&n| n > 0) { 2 } else { 1 };
        (0..sections).for_each(|i| turned.steps[0].buffers.swap(first + i, first + sections + i));
        turned.run(gpu).unwrap_err();
    }
}

#[test]
fn products_of_narrow_rows_are_tried_as_a_model_runs_them() {
    let cases = [
        (Q4_K, 16, Narrow::Bytes),
        (Q3_K, 512, Narrow::Bytes),
        (Q4_K, 16, Narrow::Halves),
        (BF16, 512, Narrow::Halves),
    ];
    for (gpu, (ty, max_rows, narrow)) in devices().iter().flat_map(|gpu| cases.map(|case| (gpu, case))) {
        if narrow == Narrow::Halves && gpu.caps.matrices.is_none() {
            continue;
        }
        let matrix = Source::new(0, ty, 256, 4).unwrap().load(gpu).unwrap();
        let term = Term::plain(&matrix);
        let input = Input { x: 0, width: 256, norm: None, narrow: Some((narrow, 1 << 20)) };
        let (dst, width, rows) = (1 << 22, 4, Rows::Batch);
        let job = MatMul { parts: &[term], input, residual: None, dst, width, rows, max_rows, logits: false };
        let steps = matmul::matmul(gpu, &job).unwrap();
        check_products(gpu, &steps, &|| Probe::matmul(gpu, &job).unwrap(), &[], &ty.to_string());
        let job = Gated { gate: term, up: Some(term), act: Activation::Silu, input, dst, width, rows, max_rows };
        let steps = matmul::gated(gpu, &job).unwrap();
        let probe = || Probe::gated(gpu, &job).unwrap();
        check_products(gpu, &steps, &probe, &[], &ty.to_string());
        // The room of the quantised rows is where both steps say.
        let mut faulty = probe();
        faulty.steps[1].params[8] += 1;
        faulty.run(gpu).unwrap_err();
    }
}

#[test]
fn activated_products_are_tried_as_a_model_runs_them() {
    let cases = [(Q8_0, Activation::ClampedSwiglu, true, 1), (F32, Activation::Relu2, false, 16)];
    for (gpu, (ty, act, gates, max_rows)) in devices().iter().flat_map(|gpu| cases.map(|case| (gpu, case))) {
        let matrix = Source::new(0, ty, 64, 4).unwrap().load(gpu).unwrap();
        let bias = vector(gpu, &[1.0; 4]).unwrap();
        let term = Term { scale: Some(2.0), bias: Some(&bias), ..Term::plain(&matrix) };
        let input = Input { x: 0, width: 64, norm: None, narrow: None };
        let up = gates.then_some(term);
        let job = Gated { gate: term, up, act, input, dst: 0, width: 4, rows: Rows::Batch, max_rows };
        let steps = matmul::gated(gpu, &job).unwrap();
        let scales: &[usize] = if gates { &[SCALE, SCALE + 1] } else { &[SCALE] };
        check_products(gpu, &steps, &|| Probe::gated(gpu, &job).unwrap(), scales, &format!("{act:?}"));
    }
}

#[test]
fn products_with_heads_are_tried_as_a_model_runs_them() {
    let cases = [(F32, 44, 16, 0, 1), (Q4_K, 256, 32, 4, 16), (Q8_0, 64, 192, 8, 512), (F16, 64, 64, 0, 4)];
    for (gpu, (ty, n_in, n_out, keep, max_rows)) in devices().iter().flat_map(|gpu| cases.map(|case| (gpu, case))) {
        let matrix = Source::new(0, ty, n_in, 2 * n_out).unwrap().load(gpu).unwrap();
        let span = |n| RowSpan { offset: 0, width: 2 * (n + keep) };
        let (x, dst) = (span(n_in), span(n_out));
        let job = Heads { matrix: &matrix, heads: 2, keep, x, dst, rows: Rows::Output, max_rows };
        let steps = matmul::heads(gpu, &job).unwrap();
        let probe = || Probe::heads(gpu, &job).unwrap();
        check_products(gpu, &steps, &probe, &[], &format!("heads of {ty}"));
        let mut faulty = probe();
        // The rows of a head's matrix.
        faulty.steps[0].params[29] *= 2;
        faulty.run(gpu).unwrap_err();
    }
}

#[test]
fn the_choice_of_experts_is_tried() {
    let softmax = RouteSpec {
        used: 2,
        gating: Gating::Softmax,
        bias: None,
        groups: 1,
        groups_used: 1,
        normalize: true,
        scale: 1.0,
    };
    let bias = Some(WeightId(0));
    let cases = [
        (softmax, 8),
        (RouteSpec { used: 1, normalize: false, ..softmax }, 16),
        (RouteSpec { used: 3, gating: Gating::Sigmoid, scale: 2.5, ..softmax }, 30),
        (RouteSpec { used: 8, gating: Gating::Sigmoid, bias, groups: 8, groups_used: 4, ..softmax }, 256),
        (RouteSpec { used: 4, gating: Gating::SoftmaxOfChosen, normalize: false, ..softmax }, 32),
        (RouteSpec { used: 6, gating: Gating::SqrtSoftplus, bias, ..softmax }, 64),
        (RouteSpec { used: 6, groups: 4, groups_used: 1, ..softmax }, 64),
    ];
    for (gpu, (spec, experts)) in devices().iter().flat_map(|gpu| cases.map(|case| (gpu, case))) {
        for rows in [Rows::Batch, Rows::Output] {
            check(
                gpu,
                Probe::route(gpu, &spec, experts, rows).unwrap(),
                &format!("{} of {experts} experts", spec.used),
            );
        }
    }
}

#[test]
fn products_with_experts_are_tried_as_a_model_runs_them() {
    let cases = [
        (F32, 300, Activation::Silu, false, (false, false), Rows::Batch),
        (Q4_K, 256, Activation::Gelu, true, (true, false), Rows::Output),
        (Q5_0, 64, Activation::ClampedSwiglu, false, (false, true), Rows::Batch),
        (F16, 44, Activation::Silu, true, (true, true), Rows::Batch),
    ];
    for (gpu, (ty, n_in, act, weighted, (scaled, biased), rows)) in
        devices().iter().flat_map(|gpu| cases.map(|case| (gpu, case)))
    {
        let matrix = Source::new(0, ty, n_in, 64).unwrap().load(gpu).unwrap();
        let [scales, biases] = [4, 64].map(|n| vector(gpu, &vec![1.0; n]).unwrap());
        let stack = Stack {
            matrix: &matrix,
            first: 0,
            stride: 16,
            rows: 16,
            scales: scaled.then_some(&scales),
            biases: biased.then_some(&biases),
        };
        let span = |width| RowSpan { offset: 1024, width };
        let (route, inner) = (span(4), span(32));
        let gate = Gate { gate: stack, up: stack, act, weighted, x: span(n_in), route, dst: inner, rows };
        let steps = experts::gate(gpu, &gate).unwrap();
        check_products(gpu, &steps, &|| Probe::expert_gate(gpu, &gate).unwrap(), &[], &format!("gated by {act:?}"));
        let residual = biased.then_some(1024);
        let down = Down { down: stack, weighted, x: span(2 * n_in), route, residual, dst: span(16), rows };
        let steps = experts::down(gpu, &down).unwrap();
        let probe = || Probe::expert_down(gpu, &down).unwrap();
        check_products(gpu, &steps, &probe, if biased { &[RESIDUAL] } else { &[] }, "sums of experts");
    }
}

/// Index of the rotation's magnitude where a dispatch prepares the heads, and where attention does.
const MAGNITUDE: usize = 8;
const MAGNITUDE_IN_ATTENTION: usize = 22;

/// Heads of a model with a cache of 4096 cells.
fn shape(
    types: impl Into<KvTypes>,
    (n_head, n_head_kv): (usize, usize),
    (head_dim_k, head_dim_v): (usize, usize),
    softcap: Option<f32>,
    norms: (bool, bool),
) -> (AttentionSpec, KvLayout) {
    let norm = HeadNorm { norm: NormSpec::rms(WeightId(0), 1e-6), span: NormSpan::Head(head_dim_k) };
    let [q_norm, k_norm] = [norms.0, norms.1].map(|has| has.then_some(norm));
    let sizes = AttentionSpec {
        head_dim_v,
        scale: 0.1,
        softcap,
        q_norm,
        k_norm,
        ..AttentionSpec::new(3, n_head, n_head_kv, head_dim_k)
    };
    (sizes, KvLayout::new(types, n_head_kv, head_dim_k, head_dim_v, 4096).unwrap())
}

#[test]
fn attention_is_tried_from_queries_to_results() {
    use RopeKind::{Neox, Norm};
    let cases = [
        (shape(F32, (4, 2), (8, 8), None, (false, false)), (Norm, 8), [1, 64]),
        (shape(F16, (2, 1), (128, 128), Some(30.0), (true, true)), (Neox, 128), [1, 2]),
        (shape(Q8_0, (7, 1), (80, 40), None, (false, true)), (Neox, 32), [1, 8]),
        (shape(KvTypes { k: Q8_0, v: F16 }, (7, 1), (80, 40), None, (false, true)), (Neox, 32), [1, 8]),
    ];
    for (gpu, ((spec, layout), turns, max_rows)) in devices().iter().flat_map(|gpu| cases.iter().map(move |c| (gpu, c)))
    {
        for &max_rows in max_rows {
            let probe = || Probe::attention(gpu, spec, layout, Some(*turns), Rows::Batch, max_rows).unwrap();
            check(gpu, probe(), &format!("{} heads", layout.types));
            // Attention is one dispatch before the last, and prepares the heads itself where it is the first.
            let scores = probe().steps.len() - 2;
            let magnitude = if scores == 0 { MAGNITUDE_IN_ATTENTION } else { MAGNITUDE };
            assert_eq!(scores == 0, max_rows == 1);
            // Each of the kernels is tested: a fault of its own shows.
            for (step, param, times) in [(0, magnitude, 1.1), (scores, 6, 1.2)] {
                let mut faulty = probe();
                let param = &mut faulty.steps[step].params[param];
                *param = (f32::from_bits(*param) * times).to_bits();
                faulty.run(gpu).unwrap_err();
            }
            let mut blind = probe();
            blind.steps[scores].params[5] = i32::MAX as u32;
            blind.run(gpu).unwrap_err();
            let mut apart = probe();
            apart.steps.pop();
            apart.run(gpu).unwrap_err();
        }
    }
}

/// Everything that an attention may have besides: each case compares with the definition in f64.
#[test]
#[ignore = "long on a software GPU, which compiles many shaders: part of make deep"]
fn attention_of_all_kinds_is_tried() {
    let id = WeightId(0);
    let plain = |(n_head, n_head_kv), (dk, dv)| AttentionSpec {
        head_dim_v: dv,
        ..AttentionSpec::new(3, n_head, n_head_kv, dk)
    };
    let norm = |kind, weight: bool, bias: bool, span| {
        let norm = NormSpec { kind, weight: weight.then_some(id), bias: bias.then_some(id), eps: 1e-6 };
        Some(HeadNorm { norm, span })
    };
    let rms = |span| norm(NormKind::Rms, true, false, span);
    let (grouped, neox) = (plain((4, 2), (16, 16)), Some((RopeKind::Neox, 16)));
    let temperature = Some(Temperature { scale: 0.1, length: 8192, offset: 0 });
    let bare = NormSpec { kind: NormKind::Rms, weight: None, bias: None, eps: 1e-6 };
    let batch = Rows::Batch;
    let cases = [
        // Without rotation, and with one of the middle of a head.
        (AttentionSpec { rope: None, ..grouped.clone() }, F16, None, batch),
        (AttentionSpec { rope_first: 4, ..grouped.clone() }, F32, Some((RopeKind::Norm, 8)), batch),
        (AttentionSpec { rope_first: 8, ..grouped.clone() }, F32, Some((RopeKind::Neox, 6)), batch),
        // Queries alone, of all rows and of output rows.
        (AttentionSpec { writes: false, ..grouped.clone() }, F32, neox, batch),
        (AttentionSpec { writes: false, q_norm: rms(NormSpan::Head(16)), ..grouped.clone() }, F16, neox, Rows::Output),
        (AttentionSpec { writes: false, rope: None, ..grouped.clone() }, F32, None, Rows::Output),
        // Values that are made of keys.
        (AttentionSpec { values: Values::Keys, v_norm: Some(bare), ..grouped.clone() }, F32, neox, batch),
        (AttentionSpec { values: Values::KeyPrefix, ..plain((4, 1), (40, 32)) }, F16, Some((RopeKind::Norm, 8)), batch),
        (AttentionSpec { v_norm: Some(bare), k_norm: rms(NormSpan::Head(16)), ..grouped.clone() }, Q8_0, neox, batch),
        // Norms of all kinds.
        (
            AttentionSpec {
                q_norm: norm(NormKind::Layer, true, false, NormSpan::EachHead),
                k_norm: rms(NormSpan::EachHead),
                ..grouped.clone()
            },
            F32,
            neox,
            batch,
        ),
        (AttentionSpec { q_norm: rms(NormSpan::Row), k_norm: rms(NormSpan::Row), ..grouped.clone() }, F32, neox, batch),
        (
            AttentionSpec {
                q_norm: norm(NormKind::Layer, true, true, NormSpan::Head(16)),
                k_norm: norm(NormKind::Layer, true, true, NormSpan::Head(8)),
                ..grouped.clone()
            },
            F16,
            neox,
            batch,
        ),
        (
            AttentionSpec {
                q_norm: norm(NormKind::Rms, false, false, NormSpan::Head(16)),
                k_norm: rms(NormSpan::Head(16)),
                norm_after_rope: true,
                ..grouped.clone()
            },
            F32,
            neox,
            batch,
        ),
        // Scores.
        (AttentionSpec { sinks: Some(id), ..grouped.clone() }, F32, neox, batch),
        (AttentionSpec { sinks: Some(id), softcap: Some(30.0), ..grouped.clone() }, F16, neox, batch),
        (AttentionSpec { alibi: 8.0, rope: None, ..plain((6, 2), (16, 16)) }, F32, None, batch),
        (AttentionSpec { alibi: 8.0, softcap: Some(30.0), ..grouped.clone() }, F32, neox, batch),
        (AttentionSpec { chunk: 8192, temperature, ..grouped.clone() }, F32, neox, batch),
    ];
    for (gpu, (spec, ty, turns, rows)) in devices().iter().flat_map(|gpu| cases.iter().map(move |case| (gpu, case))) {
        let layout = KvLayout::new(*ty, spec.n_head_kv, spec.head_dim_k, spec.head_dim_v, 4096).unwrap();
        for max_rows in [1, 8] {
            let mut probe = Probe::attention(gpu, spec, &layout, *turns, *rows, max_rows).unwrap();
            gpu.compiled(&probe.kernels()).unwrap();
            probe.run(gpu).unwrap_or_else(|error| panic!("{spec:?} {rows:?}: {error}"));
            // A fault of the scores shows.
            let scores = probe.steps.len() - 2;
            let param = &mut probe.steps[scores].params[6];
            *param = (f32::from_bits(*param) * 1.3).to_bits();
            probe.run(gpu).unwrap_err();
        }
        if spec.norm_after_rope || spec.rope_first > 0 {
            Probe::shift(gpu, spec, &layout, turns.unwrap()).unwrap().run(gpu).unwrap();
        }
    }
}

#[test]
fn changes_of_the_cache_are_tried() {
    use RopeKind::{Neox, Norm};
    let cases = [
        (shape(F32, (4, 2), (8, 8), None, (false, false)), (Norm, 8)),
        (shape(F16, (2, 1), (128, 64), Some(30.0), (true, true)), (Neox, 128)),
        (shape(Q8_0, (4, 2), (80, 40), None, (false, true)), (Neox, 32)),
        (shape(KvTypes { k: F16, v: Q8_0 }, (4, 2), (80, 40), None, (false, true)), (Neox, 32)),
    ];
    for (gpu, ((spec, layout), turns)) in devices().iter().flat_map(|gpu| cases.iter().map(move |case| (gpu, case))) {
        let shift = || Probe::shift(gpu, spec, layout, *turns).unwrap();
        check(gpu, shift(), &format!("turned {} heads", layout.types));
        let mut still = shift();
        assert_eq!(still.steps.remove(1).kernel.name, "kv_shift");
        still.run(gpu).unwrap_err();
        let copy = || Probe::copy(gpu, layout).unwrap();
        check(gpu, copy(), &format!("{} cells", layout.types));
        let mut still = copy();
        still.steps.clear();
        still.run(gpu).unwrap_err();
    }
}

/// The tested kernel is the one that a model with other sizes runs.
#[test]
fn a_probe_has_the_kernels_of_the_model() {
    for gpu in devices() {
        let (spec, layout) = shape(F32, (4, 2), (8, 8), None, (false, false));
        let probe = Probe::attention(gpu, &spec, &layout, Some((RopeKind::Norm, 8)), Rows::Batch, 1).unwrap();
        let table = RopeTable::new(gpu, RopeKind::Norm, &Rope::new(8, 5e5, &[], RopeScaling::None)).unwrap();
        let (qkv, out) = (RowSpan { offset: 1024, width: 96 }, RowSpan { offset: 4096, width: 32 });
        let source = qkv::Source::side_by_side(&spec, qkv);
        let (rope, norms) = (Some(&table), &Norms::default());
        let preparation = Preparation { spec: &spec, layout: &layout, rope, norms, source: &source };
        let queries = Queries { q: qkv, out, rows: Rows::Batch, max_rows: 1, sinks: None };
        let steps = attention::steps(gpu, &preparation, &queries).unwrap();
        assert!(probe.kernels().iter().zip(&steps).all(|(kernel, step)| Arc::ptr_eq(kernel, &step.kernel)));
    }
}

/// A probe that can be changed while it waits.
struct Shared(Arc<Mutex<Probe>>);

impl Trial for Shared {
    fn kernels(&self) -> Vec<Arc<Kernel>> {
        self.0.lock().kernels()
    }

    fn run(&self, gpu: &Arc<Gpu>) -> Result<()> {
        self.0.lock().run(gpu)
    }
}

/// On a device of its own, so that no other tests wait there.
#[test]
fn what_waits_is_tried_once_and_what_fails_goes_on_failing() {
    if devices().is_empty() {
        return;
    }
    let gpu = Arc::new(Gpu::new(&adapters()[0], &TestLimits::default()).unwrap());
    let span = |offset| RowSpan { offset, width: 8 };
    let step = rows::select(&gpu, span(0), span(64)).unwrap();
    let probe = Arc::new(Mutex::new(Probe::select(&gpu).unwrap()));
    let add = || {
        let mut made = 0;
        let make = || {
            made += 1;
            Ok(Shared(probe.clone()))
        };
        gpu.add_trial([&step.kernel], make).unwrap();
        made
    };
    assert_eq!((add(), add()), (1, 0), "one of them is enough");
    probe.lock().runs[0].expected[7].0 += 1.0;
    for _ in 0..2 {
        let text = gpu.run_trials().unwrap_err().to_string();
        assert!(text.contains("`select`") && text.contains("result 7"), "{text}");
        assert!(!step.kernel.is_tried());
        assert!(
            matches!(refuse_untried(std::slice::from_ref(&step)), Err(Error::Internal(m)) if m.contains("`select`"))
        );
    }
    probe.lock().runs[0].expected[7].0 -= 1.0;
    let made = gpu.made();
    gpu.run_trials().unwrap();
    assert!(step.kernel.is_tried() && gpu.made() != made);
    refuse_untried(std::slice::from_ref(&step)).unwrap();
    // Then never again.
    let made = gpu.made();
    assert_eq!(add(), 0);
    gpu.run_trials().unwrap();
    assert_eq!(gpu.made(), made);
}

#[test]
fn states_are_tried() {
    for gpu in devices() {
        let span = |width| RowSpan { offset: 64, width };
        let number = || vector(gpu, &[1.0; 128]).unwrap().bound();
        let cases = [
            (4, true, true, Activation::Silu),
            (3, true, false, Activation::Identity),
            (2, false, false, Activation::Identity),
        ];
        for (taps, weighs, biased, act) in cases {
            let (factors, bias) = (weighs.then(number), biased.then(number));
            let like = Conv { state: 3, x: span(32), first: 4, taps, factors, bias, act, dst: span(16) };
            check(gpu, Probe::conv(gpu, &like).unwrap(), &format!("convolutions of {taps} rows with {act:?}"));
        }
        for (rule, (keys, key_heads)) in RULES.into_iter().zip([(128, 2), (16, 4), (32, 1), (64, 4), (20, 4)]) {
            let shape = Shape { heads: 4, keys, values: 16, key_heads, tiled: false };
            let case = Case::new(rule, shape, 1);
            let by_head = matches!(rule, Rule::Delta { .. } | Rule::Ssd { .. });
            let decay = (by_head || matches!(rule, Rule::Scan { .. })).then(number);
            let (bias, own) = (by_head.then(number), rule.own().map(|_| number()));
            let like = Recur {
                spec: &case.spec,
                sources: &[span(case.width)],
                decay,
                bias,
                own,
                dst: span(case.spec.width()),
            };
            check(gpu, Probe::recur(gpu, &like).unwrap(), "recurrences with");
        }
    }
}
