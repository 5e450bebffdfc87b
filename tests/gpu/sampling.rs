//! The GPU's sampler against the host's: the same token, the same candidates, for every chain on every row.
//!
//! Tokens, counts, reported tokens and reported logits are compared for equality; probabilities within the few units in
//! the last place that f32 division and logarithms are off by. Behind a dynamic temperature, which the device computes
//! in f32, the temperature may be off by 1e-5, and the token may be another one where the draw lies within [`EPSILON`]
//! of the boundary between the two; those draws are counted and told.

use crate::testing;
use elizainference::Token;
use elizainference::backend::gpu::Gpu;
use elizainference::backend::gpu::device::adapters;
use elizainference::backend::gpu::device::memory::Buffer;
use elizainference::backend::gpu::device::test_limits::TestLimits;
use elizainference::backend::gpu::kernel::{Binding, compose};
use elizainference::backend::gpu::sample::{
    ChainStep, Legal, SampleProblem, SampleProgram, SampleResult, SampleRow, SampleSpec, read_candidates,
    read_handed_over, read_result, split,
};
use elizainference::sampling::{Chain, Sampled, Sampler, random, weigh};
use elizainference::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

const STORAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// The adapter as it is, and as small as the smallest. None without a GPU, see [`testing::has_gpu`].
fn devices() -> &'static [Arc<Gpu>] {
    static DEVICES: LazyLock<Vec<Arc<Gpu>>> = LazyLock::new(|| {
        let all = adapters();
        let Some(best) = all.first().filter(|_| testing::has_gpu()) else { return Vec::new() };
        let small = "binding=16M,threads=128,checked=on";
        let device = |text: &&str| Arc::new(Gpu::new(best, &TestLimits::parse(text).unwrap()).unwrap());
        ["", small].iter().map(device).collect()
    });
    &DEVICES
}

/// What a step of the device found for a row.
type Found = (SampleResult, Vec<(Token, f32, f32)>);

/// A program with a workspace and a staging buffer.
struct Rig {
    gpu: Arc<Gpu>,
    program: SampleProgram,
    logits: Buffer,
    staging: Buffer,
    stride: usize,
    rows: usize,
}

/// Floats in front of the logits: the rows do not begin where a binding may.
const LEAD: usize = 3;

impl Rig {
    fn new(gpu: &Arc<Gpu>, n_vocab: usize, rows: usize) -> Rig {
        let stride = n_vocab + n_vocab % 2;
        let mut program = SampleProgram::new(gpu, n_vocab, rows).unwrap();
        let bytes = (rows * stride * 4) as u64;
        let logits = gpu.buffer("logits", bytes + LEAD as u64 * 4, STORAGE).unwrap();
        program.bind(&logits, LEAD as u64 * 4, bytes, stride).unwrap();
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staged = program.results().bytes + rows as u64 * program.candidates(0).bytes;
        let staging = gpu.buffer("staging", staged, usage).unwrap();
        Rig { gpu: gpu.clone(), program, logits, staging, stride, rows }
    }

    fn write(&self, row: usize, logits: &[f32]) {
        let at = (LEAD + row * self.stride) as u64 * 4;
        self.gpu.queue.write_buffer(&self.logits, at, bytemuck::cast_slice(logits));
    }

    /// Submits a step of these slots, each with the row of its number.
    fn submit(&mut self, slots: &[usize]) {
        let rows: Vec<_> = slots.iter().map(|&slot| SampleRow { sequence: slot as u32, row: slot as u32 }).collect();
        let mut encoder = self.gpu.raw.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        self.program.encode(&mut pass, &rows).unwrap();
        drop(pass);
        self.gpu.queue.submit([encoder.finish()]);
    }

    /// What all slots found last.
    fn read(&self) -> Vec<Found> {
        let results = self.program.results();
        let mut encoder = self.gpu.raw.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(results.buffer, results.offset, &self.staging, 0, results.bytes);
        for slot in 0..self.rows {
            let place = self.program.candidates(slot);
            let at = results.bytes + slot as u64 * place.bytes;
            encoder.copy_buffer_to_buffer(place.buffer, place.offset, &self.staging, at, place.bytes);
        }
        let bytes = (results.bytes + self.rows as u64 * self.program.candidates(0).bytes) as usize;
        self.gpu.queue.submit([encoder.finish()]);
        self.staging.map_async(wgpu::MapMode::Read, .., |_| {});
        self.gpu.wait().unwrap();
        let all = self.staging.get_mapped_range(..bytes as u64).unwrap().to_vec();
        self.staging.unmap();
        let (results, reports) = all.split_at(results.bytes as usize);
        let size = results.len() / self.rows;
        let places = results.chunks(size).zip(reports.chunks(reports.len() / self.rows));
        places
            .map(|(result, report)| {
                let result = read_result(result).unwrap();
                (result, read_candidates(report, result.reported).collect())
            })
            .collect()
    }
}

/// The device's form of a chain.
fn spec(chain: &Chain, n_vocab: usize, banned: &[Token], seed: u64, candidates: u32) -> SampleSpec {
    SampleSpec { candidates, ..Sampler::new(chain, n_vocab, seed).unwrap().spec(banned) }
}

/// One row to be sampled.
#[derive(Clone, Default)]
struct Case {
    chain: String,
    row: Arc<Vec<f32>>,
    history: Arc<Vec<Token>>,
    banned: Vec<Token>,
    /// Legal tokens, and whether the best is taken.
    legal: Option<(Arc<Vec<Token>>, bool)>,
    seed: u64,
    position: u32,
    candidates: u32,
    /// Compare the token alone: the candidates were compared with another draw from the same row.
    token_only: bool,
    name: String,
}

/// Candidates that the host keeps at most.
const HOST_KEEPS: usize = 2048;

/// How far from the boundary between two tokens, as a share of all, a draw behind a dynamic temperature may lie for the
/// two samplers to disagree.
const EPSILON: f64 = 1e-5;

/// Draws within [`EPSILON`] of a boundary so far.
static AT_BOUNDARIES: AtomicUsize = AtomicUsize::new(0);

type OnHost = (Result<Token>, Sampled);

fn on_host(case: &Case) -> OnHost {
    let chain: Chain = case.chain.parse().unwrap();
    let mut sampler = Sampler::new(&chain, case.row.len(), case.seed).unwrap();
    sampler.keep_candidates(if case.token_only { 0 } else { HOST_KEEPS });
    case.history.iter().for_each(|&token| sampler.accept(token));
    let legal = case.legal.as_ref().map(|(tokens, greedy)| Legal { tokens, greedy: *greedy });
    let token = sampler.sample(&mut case.row.to_vec(), legal, &case.banned, case.position);
    (token, sampler.last().clone())
}

fn assert_same(case: &Case, found: &Found, (token, host): &OnHost) {
    let (result, candidates) = found;
    let what = format!(
        "`{}` on {} of {} at {}, {} banned, {:?} legal: {result:?}",
        case.chain,
        case.name,
        case.row.len(),
        case.position,
        case.banned.len(),
        case.legal.as_ref().map(|(tokens, greedy)| (tokens.len(), greedy))
    );
    assert_eq!(result.position, case.position, "{what}");
    let token = match token {
        Err(Error::NanLogits { token, .. }) => {
            assert_eq!(result.problem, Some(SampleProblem::Nan(*token as Token)), "{what}");
            assert_eq!(result.token, -1, "{what}");
            return;
        }
        Err(Error::InvalidArgument(_)) => {
            assert_eq!(result.problem, Some(SampleProblem::NoCandidate), "{what}");
            assert_eq!(result.token, -1, "{what}");
            return;
        }
        token => *token.as_ref().unwrap(),
    };
    assert_eq!(result.problem, None, "{what}");
    let dynamic = case.chain.contains("dynatemp");
    if dynamic && result.token != token {
        assert!(at_boundary(case, result, token), "{what}: {token}");
        AT_BOUNDARIES.fetch_add(1, Ordering::Relaxed);
        return;
    }
    assert_eq!(result.token, token, "{what}");
    // Behind a temperature that is off by 1e-5, so are all distances from the best, of up to 32.
    let (in_logit, in_probability) = if dynamic { (1e-5, 1e-3) } else { (0.0, 1e-6) };
    let close = |a: f32, b: f32, relative: f32| a == b || (a - b).abs() <= relative * b.abs();
    let apart = (result.logprob - host.logprob).abs();
    // The host's is rounded once from double precision, ours is a difference of two f32 numbers of up to about 30.
    assert!(apart <= 4e-6 + in_logit * 32.0 + 3e-7 * host.logprob.abs(), "{what}: {}", host.logprob);
    assert!((result.prob - host.prob).abs() <= in_probability * host.prob + f32::MIN_POSITIVE, "{what}: {}", host.prob);
    if case.token_only {
        return;
    }
    assert_eq!((result.kept as usize).min(HOST_KEEPS), host.candidates.len(), "{what}");
    let asked = (case.candidates as usize).min(host.candidates.len());
    assert_eq!((result.reported as usize, candidates.len()), (asked, asked), "{what}");
    for (got, expected) in candidates.iter().zip(&host.candidates) {
        assert_eq!(got.0, expected.0, "{what}");
        let same = close(got.1, expected.1, in_logit) && close(got.2, expected.2, in_probability);
        assert!(same, "{what}: {got:?}, {expected:?}");
    }
}

/// Whether the draw lies so near a boundary that it gives one token or the other. For chains that change no logits and
/// have no temperature but a dynamic one.
fn at_boundary(case: &Case, result: &SampleResult, host: Token) -> bool {
    let Some((_, parameters)) = case.chain.split_once("dynatemp=") else { return false };
    let numbers = parameters.split([',', ';']).take(3).map(|number| number.parse().unwrap());
    let [temperature, range, exponent] = numbers.collect::<Vec<f64>>()[..] else { return false };
    let order = order_of(&case.row, result.kept as usize);
    let expected = dynamic_of(&order, &case.row, temperature, range, exponent);
    [result.token, host].iter().all(|&token| may_be_drawn(&order, &case.row, expected, case.seed, case.position, token))
}

/// The best so many tokens, best first.
fn order_of(row: &[f32], kept: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).filter(|&token| row[token] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    order.truncate(kept);
    order
}

/// Samples all cases, of one vocabulary, on these devices; `together` of them in one step.
fn check_on(gpus: &[Arc<Gpu>], cases: &[Case], together: usize) {
    let n_vocab = cases[0].row.len();
    for gpu in gpus {
        let mut rig = Rig::new(gpu, n_vocab, together);
        let mut before: Vec<Option<&Case>> = vec![None; together];
        for group in cases.chunks(together) {
            for (slot, case) in group.iter().enumerate() {
                let same_chain = |other: &Case| {
                    (&other.chain, &other.banned, other.seed, other.candidates, &other.legal)
                        == (&case.chain, &case.banned, case.seed, case.candidates, &case.legal)
                };
                if !before[slot].is_some_and(same_chain) {
                    let chain = case.chain.parse().unwrap();
                    let spec = spec(&chain, n_vocab, &case.banned, case.seed, case.candidates);
                    rig.program.set_chain(slot, &spec).unwrap();
                    let children = case.legal.as_ref().map(|(tokens, greedy)| Legal { tokens, greedy: *greedy });
                    rig.program.arm(slot, children).unwrap();
                }
                before[slot] = Some(case);
                rig.program.restart(slot, case.position, &case.history).unwrap();
                rig.write(slot, &case.row);
            }
            rig.submit(&(0..group.len()).collect::<Vec<_>>());
            let expected: Vec<OnHost> = group.iter().map(on_host).collect();
            for ((case, found), expected) in group.iter().zip(rig.read()).zip(&expected) {
                assert_same(case, &found, expected);
            }
        }
    }
}

fn check(cases: &[Case], together: usize) {
    check_on(devices(), cases, together);
}

fn uniform(kind: u32, i: usize) -> f64 {
    (f64::from(random::bits(11, i as u32, kind)) + 0.5) / 4_294_967_296.0
}

fn gaussian(kind: u32, i: usize, deviation: f64) -> f32 {
    let radius = (-2.0 * uniform(2 * kind, i).ln()).sqrt();
    (deviation * radius * (std::f64::consts::TAU * uniform(2 * kind + 1, i)).cos()) as f32
}

type Row = (&'static str, Arc<Vec<f32>>);

/// Every kind of row, named.
fn rows(n: usize) -> Vec<Row> {
    let make = |logit: &dyn Fn(usize) -> f32| Arc::new((0..n).map(logit).collect::<Vec<f32>>());
    let middle = n / 2;
    vec![
        ("gaussian 1", make(&|i| gaussian(1, i, 1.0))),
        ("all equal", make(&|_| 3.25)),
        ("gaussian 4", make(&|i| gaussian(2, i, 4.0))),
        ("runs of -inf", make(&|i| if i % 700 < 500 && i != n - 1 { f32::NEG_INFINITY } else { gaussian(5, i, 2.0) })),
        ("few values, many ties", make(&|i| (random::bits(3, i as u32, 0) % 5) as f32)),
        ("NaN", make(&|i| if i % 1000 == 500 { f32::NAN } else { gaussian(6, i, 2.0) })),
        ("+inf", make(&|i| if i % 251 == 17 { f32::INFINITY } else { gaussian(7, i, 2.0) })),
        ("a flat top", make(&|i| if i % 9 == 0 { 5.0 + gaussian(8, i, 1e-3) } else { gaussian(8, i, 1.0) })),
        ("all negative", make(&|i| -100.0 - gaussian(3, i, 2.0).abs())),
        ("one huge", make(&|i| if i == middle { 1e30 } else { gaussian(4, i, 1.0) })),
        ("ties at k", make(&|i| if i % 1000 == 7 { 9.0 } else { 8.0 })),
        ("zipf", make(&|i| -1.1 * ((i * 7919 % n + 1) as f32).ln())),
        ("all equal zero of both signs", make(&|i| if i % 3 == 0 { -0.0 } else { 0.0 })),
        ("two huge, far apart", make(&|i| if i == 0 { f32::MAX } else { f32::MIN })),
        ("one alive", make(&|i| if i == middle { -5.0 } else { f32::NEG_INFINITY })),
        ("none alive", make(&|_| f32::NEG_INFINITY)),
        ("ascending", make(&|i| ((i + 1) as f32).ln())),
        ("descending", make(&|i| -(i as f32) / 64.0)),
    ]
}

/// What a chain runs under.
#[derive(Clone, Copy, PartialEq)]
enum Mask {
    None,
    /// So many tokens at most, which the device gets as a list.
    List(usize),
    /// Every other token, which the device gets as bits where there are many.
    Bits,
}
use Mask::{Bits, List};

/// Chains of every path, of the paths' edges, and in every order; the mask, and whether it is followed greedily.
const SETTINGS: [(&str, Mask, bool); 60] = [
    ("dist", Mask::None, false),
    ("temp=0.8", Mask::None, false),
    ("greedy", Mask::None, false),
    ("temp=0", Mask::None, false),
    ("top_k=40;top_p=0.95;min_p=0.05;temp=0.8", Mask::None, false),
    ("top_p=0.9;temp=1.3", Mask::None, false),
    ("min_p=0.02", Mask::None, false),
    ("min_p=0.1;temp=0.5;min_p=0.3", Mask::None, false),
    ("logit_bias=3:4,9:-inf;penalties=8,1.3,0.2,0.1;temp=0.7;top_p=0.99", Mask::None, false),
    ("top_k=1", Mask::None, false),
    ("top_k=1000", Mask::None, false),
    ("top_k=5000", Mask::None, false),
    ("top_k=3;top_k=2", Mask::None, false),
    ("temp=2;top_p=0.5", Mask::None, false),
    ("top_p=0.999;top_k=20000", Mask::None, false),
    ("top_p=0.5,3000", Mask::None, false),
    ("min_p=0.5,100", Mask::None, false),
    ("temp=1.5;top_p=0.9;temp=0.5;top_p=0.8", Mask::None, false),
    ("top_k=3000;top_p=0.8;min_p=0.1", Mask::None, false),
    ("top_p=0", Mask::None, false),
    ("temp=0.1;top_k=2000;dist", Mask::None, false),
    ("top_k=50;logit_bias=5:3,7:-2;temp=0.9;greedy", Mask::None, false),
    ("top_k=5000;penalties=64,1.2,0.1,0.3;top_p=0.9", Mask::None, false),
    (
        "temp=0.5;logit_bias=5:2.5,5:1,6:-1,500:1e30;penalties=1024,0.7,-0.3,0.2;min_p=0.01;logit_bias=3:1;dist",
        Mask::None,
        false,
    ),
    ("penalties=64,1.1,0,0;top_k=40;top_p=0.95;min_p=0.05;temp=0.8", Mask::None, false),
    ("logit_bias=1:2,2:-inf,100:0.5;greedy", Mask::None, false),
    ("penalties=256,1.5,0.5,0.5;temp=0", Mask::None, false),
    ("top_p=0.95,20;min_p=0.2,40;temp=1.1", Mask::None, false),
    ("min_p=0.05;top_k=10;top_p=0.5,4", Mask::None, false),
    ("temp=0.7;top_k=100;penalties=32,1.2,0,0.1;top_p=0.8", Mask::None, false),
    ("top_p=0.7;logit_bias=0:1.5,11:-0.5;min_p=0.1;temp=1.4", Mask::None, false),
    ("temp=5;top_k=64", Mask::None, false),
    ("temp=0.01;top_p=0.9", Mask::None, false),
    ("top_k=1536", Mask::None, false),
    ("top_k=1537", Mask::None, false),
    ("min_p=1.05", Mask::None, false),
    ("top_p=0.9999999", Mask::None, false),
    ("logit_bias=5:20;penalties=3,2,0,0;top_p=0.6", Mask::None, false),
    ("penalties=1,3,0,0;penalties=1024,1.05,0.01,0;top_k=200", Mask::None, false),
    ("dynatemp=1,0.5,1", Mask::None, false),
    ("top_k=50;dynatemp=0.8,0.7,1.5;min_p=0.05", Mask::None, false),
    ("top_p=0.9;dynatemp=0.9,0.9,0.5", Mask::None, false),
    ("dynatemp=1.2,1,2;top_k=30", Mask::None, false),
    ("top_k=20;dynatemp=0.1,0.2,3;top_p=0.99", Mask::None, false),
    ("dynatemp=0.8,0,1;top_k=12", Mask::None, false),
    ("top_k=40;top_p=0.95;min_p=0.05;temp=0.8", List(7), false),
    ("top_k=40;top_p=0.95;min_p=0.05;temp=0.8", Bits, false),
    ("top_k=40;top_p=0.95;min_p=0.05;temp=0.8", List(600), true),
    ("top_k=40;top_p=0.95;min_p=0.05;temp=0.8", Bits, true),
    ("dist", List(1500), false),
    ("temp=0.8;top_p=0.9", Bits, false),
    ("top_k=100;trie;temp=0.8", List(600), false),
    ("top_k=5000;trie;temp=0.8;top_p=0.9", Bits, false),
    ("trie;logit_bias=3:4,5:-inf;top_k=5", List(600), false),
    ("top_p=0.9;trie;penalties=64,1.2,0.1,0.3;min_p=0.2", Bits, false),
    ("penalties=64,1.2,0,0;logit_bias=3:4", List(30), true),
    ("temp=0.5;penalties=64,1.2,0.4,0;top_k=3", Bits, true),
    ("greedy", List(600), false),
    ("min_p=0.1,5;temp=2", List(1), false),
    ("top_k=300;trie;greedy", List(7), true),
];

fn history(n: usize, length: usize) -> Vec<Token> {
    (0..length).map(|i| (random::bits(21, i as u32, 0) % (n as u32).min(300)) as Token).collect()
}

/// The tokens of a mask.
fn legal_tokens(n: usize, mask: Mask) -> Option<Arc<Vec<Token>>> {
    let mut tokens: Vec<Token> = match mask {
        Mask::None => return None,
        List(count) => (0..count as u32).map(|i| (random::bits(6, i, count as u32) % n as u32) as Token).collect(),
        Bits => (0..n as Token).step_by(2).collect(),
    };
    tokens.sort_unstable();
    tokens.dedup();
    Some(Arc::new(tokens))
}

/// Every setting on these rows, `draws` times each, with all that varies in turns.
fn cases<S: ToString>(rows: &[Row], settings: &[(S, Mask, bool)], draws: u32) -> Vec<Case> {
    let n = rows[0].1.len();
    let histories = [90, 0, 1500].map(|length| Arc::new(history(n, length)));
    let mut all = Vec::new();
    for (number, (chain, mask, greedy)) in settings.iter().enumerate() {
        let tokens = legal_tokens(n, *mask);
        for (kind, (name, row)) in rows.iter().enumerate() {
            let turn = kind + number;
            // One of the legal tokens, one that may be, and some that are no tokens.
            let mut banned = if turn % 4 == 1 { vec![7, 2, 400, -1, n as Token, Token::MAX] } else { Vec::new() };
            banned.extend(tokens.iter().filter_map(|tokens| tokens.first()));
            all.extend((0..draws).map(|draw| Case {
                chain: chain.to_string(),
                row: row.clone(),
                history: histories[turn % 3].clone(),
                banned: banned.clone(),
                legal: tokens.clone().map(|tokens| (tokens, *greedy)),
                seed: (number as u64) << 31 | 5,
                position: 17 + 1000 * turn as u32 + 3 * draw,
                candidates: [0, 0, 5, 64][turn % 4],
                token_only: draw > 0,
                name: name.to_string(),
            }));
        }
    }
    all
}

#[test]
fn vocabularies_of_512() {
    for n in [511, 512, 513] {
        check(&cases(&rows(n), &SETTINGS, 1), 64);
    }
    let settings = ["dist", "greedy", "top_k=5;top_p=0.5"].map(|chain| (chain, Mask::None, false));
    check(&cases(&rows(1), &settings, 1), 7);
}

#[test]
fn vocabularies_of_32_000() {
    check(&cases(&rows(32_000)[..5], &SETTINGS, 1), 30);
    check(&cases(&rows(31_999)[5..6], &SETTINGS, 1), 30);
    check(&cases(&rows(32_001)[6..8], &SETTINGS, 1), 30);
}

#[test]
fn wide_vocabularies() {
    check(&cases(&rows(151_936)[..1], &SETTINGS, 1), 24);
    check(&cases(&rows(262_145)[2..3], &SETTINGS[..30], 1), 15);
}

/// 1,000 draws for every setting on the adapter as it is: 19 from every row and 658 more from an ordinary one. One from
/// every row on the small adapter, and with a token less and more.
fn thousand_draws(n_vocab: usize, together: usize) {
    let Some((as_it_is, _)) = devices().split_first() else { return };
    let as_it_is = std::slice::from_ref(as_it_is);
    let rows = self::rows(n_vocab);
    for setting in SETTINGS {
        check_on(as_it_is, &cases(&rows, &[setting], 19), together);
        check_on(as_it_is, &cases(&rows[2..3], &[setting], 658), together);
    }
    for n in [n_vocab - 1, n_vocab, n_vocab + 1] {
        check(&cases(&self::rows(n), &SETTINGS, 1), together);
    }
    let near = AT_BOUNDARIES.load(Ordering::Relaxed);
    eprintln!("{n_vocab} and beside: {near} draws at the boundary of a dynamic temperature");
}

#[test]
#[ignore = "the whole matrix: 1,000 draws for each of 60 settings"]
fn a_thousand_draws_from_512() {
    thousand_draws(512, 64);
}

#[test]
#[ignore = "the whole matrix: 1,000 draws for each of 60 settings"]
fn a_thousand_draws_from_32_000() {
    thousand_draws(32_000, 60);
}

#[test]
#[ignore = "the whole matrix: 1,000 draws for each of 60 settings"]
fn a_thousand_draws_from_151_936() {
    thousand_draws(151_936, 24);
}

#[test]
#[ignore = "the whole matrix: 1,000 draws for each of 60 settings"]
fn a_thousand_draws_from_262_144() {
    thousand_draws(262_144, 15);
}

/// Chains put together at random.
fn any_chains(count: u32) -> Vec<String> {
    let steps = [
        "top_k=1",
        "top_k=40",
        "top_k=700",
        "top_k=2500",
        "top_p=0.3",
        "top_p=0.8",
        "top_p=0.95",
        "top_p=0.999",
        "top_p=0.7,50",
        "min_p=0.5",
        "min_p=0.05",
        "min_p=0.001",
        "min_p=0.3,2000",
        "temp=0.3",
        "temp=1.7",
        "temp=0.9",
        "penalties=40,1.5,0.1,0.2",
        "logit_bias=1:2,2:-1.5,3:-inf",
        "trie",
    ];
    let pick = |chain: u32, draw: u32| random::bits(77, chain, draw);
    let one = |chain: u32| {
        let count = 1 + pick(chain, 0) % 6;
        let mut chosen: Vec<&str> = (1..=count).map(|i| steps[pick(chain, i) as usize % steps.len()]).collect();
        let mut tries = 0;
        chosen.retain(|&step| {
            tries += u32::from(step == "trie");
            step != "trie" || tries == 1
        });
        chosen.join(";")
    };
    (0..count).map(one).collect()
}

#[test]
#[ignore = "the whole matrix: chains at random, under every kind of mask"]
fn any_chain_under_any_mask() {
    let chains = any_chains(60);
    let masks = [Mask::None, List(1), List(7), List(600), List(9000), Bits];
    // Each chain under three of them.
    let chains = chains.iter().flat_map(|chain| [chain; 3]).enumerate();
    let settings: Vec<_> = chains.map(|(turn, chain)| (chain, masks[turn % masks.len()], turn % 24 >= 18)).collect();
    for n in [5000, 151_936] {
        check(&cases(&rows(n), &settings, 1), 16);
    }
}

/// Draws at many positions, through the list and through the row.
#[test]
fn draws_at_many_positions() {
    let n = 9000;
    let wide = rows(n)[0].1.clone();
    for (chain, row) in [("top_k=40;temp=1.5", &wide), ("temp=1.2", &wide), ("top_p=0.9", &wide)] {
        let case = |position| Case {
            chain: chain.into(),
            row: row.clone(),
            position,
            seed: 42,
            name: "many".into(),
            ..Case::default()
        };
        let cases: Vec<_> = (0..192).map(|i| case(i * 7)).chain([case(u32::MAX - 1)]).collect();
        check(&cases, 64);
    }
}

/// The device's own history, steps submitted before the last was read, tokens from outside, and steps taken back.
#[test]
fn steps_run_ahead_and_are_taken_back() {
    const STEPS: usize = 40;
    let n = 3000;
    let row = rows(n)[2].1.clone();
    let chain: Chain = "penalties=20,1.4,0.6,0.2;top_k=60;temp=1.4".parse().unwrap();
    let mut host = Sampler::new(&chain, n, 9).unwrap();
    let (prompt, forced) = (history(n, 30), [5, 6, 5, 2999]);
    prompt.iter().for_each(|&token| host.accept(token));
    let mut expected: Vec<Token> = Vec::new();
    for i in 0..STEPS {
        if i == 20 {
            forced.iter().for_each(|&token| host.accept(token));
        }
        let position = 30 + i + if i < 20 { 0 } else { forced.len() };
        expected.push(host.sample(&mut row.to_vec(), None, &[], position as u32).unwrap());
        host.accept(expected[i]);
    }
    for gpu in devices() {
        let mut rig = Rig::new(gpu, n, 2);
        let log = gpu.buffer("log", STEPS as u64 * 4, STORAGE).unwrap();
        rig.program.set_chain(1, &spec(&chain, n, &[], 9, 0)).unwrap();
        rig.program.restart(1, 30, &prompt).unwrap();
        let step = |rig: &mut Rig, i: usize| {
            rig.write(1, &row);
            rig.submit(&[1]);
            let mut encoder = gpu.raw.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(rig.program.sampled(), 4, &log, i as u64 * 4, 4);
            gpu.queue.submit([encoder.finish()]);
        };
        for i in 0..STEPS {
            if i == 20 {
                rig.program.accept(1, &forced).unwrap();
            }
            step(&mut rig, i);
            if i == 10 {
                rig.program.roll_back(1, 2, expected[8]).unwrap();
                assert_eq!(gpu.read(rig.program.sampled(), 4, 4).unwrap(), expected[8].to_le_bytes());
                gpu.queue.write_buffer(&log, 9 * 4, &[0; 8]);
                step(&mut rig, 9);
                step(&mut rig, 10);
            }
        }
        let tokens: Vec<Token> = bytemuck::pod_collect_to_vec(&gpu.read(&log, 0, STEPS * 4).unwrap());
        assert_eq!(tokens, expected);
        assert_eq!(rig.read()[1].0.position as usize, 30 + STEPS + forced.len() - 1);
        assert!(rig.program.roll_back(1, 1025, 0).is_err());
    }
}

/// A failed step is told, goes on to the next position with the token before, and is taken back like any other.
#[test]
fn failures_are_told_and_taken_back() {
    let n = 2000;
    let row = rows(n)[2].1.clone();
    let mut broken = row.to_vec();
    broken[1234] = f32::NAN;
    for gpu in devices() {
        let mut rig = Rig::new(gpu, n, 1);
        for chain in ["greedy", "dist", "top_k=40", "top_k=3;top_p=0.4"] {
            let chain: Chain = chain.parse().unwrap();
            let case = Case {
                chain: chain.to_string(),
                row: row.clone(),
                position: 7,
                name: "after a failure".into(),
                ..Case::default()
            };
            rig.program.set_chain(0, &spec(&chain, n, &[], 0, 0)).unwrap();
            rig.program.restart(0, 7, &[3, 55]).unwrap();
            rig.write(0, &broken);
            rig.submit(&[0]);
            let (result, _) = rig.read()[0];
            assert_eq!((result.token, result.problem), (-1, Some(SampleProblem::Nan(1234))));
            assert_eq!(gpu.read(rig.program.sampled(), 0, 4).unwrap(), 55u32.to_le_bytes());
            rig.program.roll_back(0, 1, 55).unwrap();
            rig.write(0, &row);
            rig.submit(&[0]);
            assert_same(&case, &rig.read()[0], &on_host(&case));
        }
    }
}

/// Chi-square of the tokens' counts: the statistic of a right sampler exceeds the bound once in 10,000 seeds.
fn chi_square(draws: u32) {
    const L: [f32; 10] = [2.1, 5.3, 1.8, 7.2, 3.4, 4.1, 6.8, 2.9, 5.7, 4.5];
    let n = 5000;
    let flat: Vec<f32> = (0..n).map(|i| gaussian(1, i, 1.0)).collect();
    // Groups of ids with their expected share, and the 0.9999 quantile for one degree of freedom less.
    let groups = |row: &[f32], factor: f64, kept: &dyn Fn(usize) -> bool, count: usize| {
        let mut shares = vec![0.0; count];
        for (token, x) in row.iter().enumerate().filter(|(token, _)| kept(*token)) {
            shares[token * count / row.len()] += (f64::from(*x) * factor).exp();
        }
        let total: f64 = shares.iter().sum();
        shares.iter().map(|share| share / total).collect::<Vec<_>>()
    };
    let best4 = [3usize, 6, 8, 1];
    for (chain, row, shares, quantile) in [
        ("dist", &L[..], groups(&L, 1.0, &|_| true, 10), 33.72),
        ("temp=2", &L[..], groups(&L, 0.5, &|_| true, 10), 33.72),
        ("top_k=4", &L[..], groups(&L, 1.0, &|token| best4.contains(&token), 10), 21.11),
        ("dist", &flat[..], groups(&flat, 1.0, &|_| true, 64), 112.7),
    ] {
        for seed in [1, 2, 20_240_101] {
            for gpu in &devices()[..devices().len().min(1)] {
                let mut rig = Rig::new(gpu, row.len(), 64);
                let chain: Chain = chain.parse().unwrap();
                for slot in 0..64 {
                    rig.program.set_chain(slot, &spec(&chain, row.len(), &[], seed, 0)).unwrap();
                    rig.write(slot, row);
                }
                let mut counts = vec![0.0; shares.len()];
                for start in (0..draws).step_by(64) {
                    let slots: Vec<usize> = (0..64.min(draws - start) as usize).collect();
                    for &slot in &slots {
                        rig.program.restart(slot, start + slot as u32, &[]).unwrap();
                    }
                    rig.submit(&slots);
                    for (result, _) in rig.read().iter().take(slots.len()) {
                        counts[result.token as usize * shares.len() / row.len()] += 1.0;
                    }
                }
                let statistic = |(count, share): (&f64, &f64)| {
                    let expected = share * f64::from(draws);
                    if expected == 0.0 { *count * 1e9 } else { (count - expected).powi(2) / expected }
                };
                let sum: f64 = counts.iter().zip(&shares).map(statistic).sum();
                assert!(sum < quantile, "{chain} with {seed}: {sum:.1}");
            }
        }
    }
}

#[test]
fn draws_follow_the_probabilities() {
    chi_square(2_000);
}

#[test]
#[ignore = "takes minutes on a software driver"]
fn many_draws_follow_the_probabilities() {
    chi_square(100_000);
}

/// The weights are the host's, bit for bit: what all else stands on.
fn weights(step: u32) {
    let mut given: Vec<f32> = vec![0.0, -0.0, f32::MIN, -1e-40, -28.4, -28.5, -32.0, -31.999_998, -f32::MIN_POSITIVE];
    let ends = ((-0.0f32).to_bits(), (-33.0f32).to_bits());
    given.extend((ends.0..ends.1).step_by(step as usize).map(f32::from_bits));
    let text = "//#include sample/numbers
        @group(0) @binding(0) var<storage, read> given: array<u32>;
        @group(0) @binding(1) var<storage, read_write> out: array<vec2<u32>>;
        @compute @workgroup_size(128)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            zero = given[0];
            if id.x + 1u < arrayLength(&given) { out[id.x] = weight(bitcast<f32>(given[id.x + 1u])); }
        }";
    let text = compose(text, &[], &[]).unwrap();
    for gpu in devices() {
        for part in given.chunks(1 << 20) {
            let words: Vec<u32> = [0].into_iter().chain(part.iter().map(|z| z.to_bits())).collect();
            let input = gpu.buffer("given", words.len() as u64 * 4, STORAGE).unwrap();
            let out = gpu.buffer("weights", part.len() as u64 * 8, STORAGE).unwrap();
            gpu.queue.write_buffer(&input, 0, bytemuck::cast_slice(&words));
            let kernel = gpu.kernel("weights", &text, &[Binding::Read, Binding::Write]).unwrap();
            let size = |count: usize| wgpu::BufferSize::new(count as u64);
            let binding = gpu.bind(
                &kernel,
                &[
                    wgpu::BufferBinding { buffer: &input, offset: 0, size: size(words.len() * 4) },
                    wgpu::BufferBinding { buffer: &out, offset: 0, size: size(part.len() * 8) },
                ],
            );
            let mut encoder = gpu.raw.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&kernel.pipeline);
            pass.set_bind_group(0, &binding, &[]);
            pass.dispatch_workgroups(part.len().div_ceil(128) as u32, 1, 1);
            drop(pass);
            gpu.queue.submit([encoder.finish()]);
            let bytes = gpu.read(&out, 0, part.len() * 8).unwrap();
            for (bytes, &z) in bytes.chunks_exact(8).zip(part) {
                assert_eq!(u64::from_le_bytes(bytes.try_into().unwrap()), weigh::weight(z), "{z:e}");
            }
        }
    }
}

#[test]
fn weights_are_the_hosts() {
    weights(7919);
}

#[test]
#[ignore = "takes minutes on a software driver"]
fn all_weights_are_the_hosts() {
    weights(61);
}

/// The dynamic temperature against double precision: the temperature within 1e-5, and the token except where the draw
/// lies within [`EPSILON`] of a boundary.
#[test]
fn dynamic_temperature() {
    let n = 4000;
    let chains: [(&[ChainStep], usize); 4] =
        [(&[], n), (&[ChainStep::TopK(30)], 30), (&[ChainStep::TopK(2)], 2), (&[ChainStep::TopK(1)], 1)];
    for gpu in devices() {
        let mut rig = Rig::new(gpu, n, 1);
        for (name, row) in rows(n).iter().filter(|(name, _)| name.contains("gaussian") || *name == "all equal") {
            for (before, kept) in chains {
                for (temperature, range, exponent) in [(1.0, 0.5, 1.0), (0.7, 1.2, 2.5), (0.5, 0.5, 0.0)] {
                    let dynamic = ChainStep::DynamicTemperature { temperature, range, exponent };
                    let steps = before.iter().cloned().chain([dynamic]).collect();
                    rig.program.set_chain(0, &SampleSpec { steps, seed: 3, candidates: 2 }).unwrap();
                    let order = order_of(row, kept);
                    let expected =
                        dynamic_of(&order, row, f64::from(temperature), f64::from(range), f64::from(exponent));
                    for position in [3, 900] {
                        rig.write(0, row);
                        rig.program.restart(0, position, &[]).unwrap();
                        rig.submit(&[0]);
                        let (result, candidates) = rig.read().swap_remove(0);
                        let what = format!("{kept} of {name}, {temperature}, {range}, {exponent}: {result:?}");
                        assert_eq!(result.kept as usize, kept, "{what}");
                        let (best, logit, _) = candidates[0];
                        assert_eq!(best as usize, order[0], "{what}");
                        let wanted = f64::from(row[order[0]]) / expected;
                        assert!((f64::from(logit) - wanted).abs() <= 1e-5 * wanted.abs(), "{what}: {logit}, {wanted}");
                        assert!(may_be_drawn(&order, row, expected, 3, position, result.token), "{what}");
                    }
                }
            }
        }
    }
}

/// The temperature by its definition; 1 where it is not applied.
fn dynamic_of(order: &[usize], row: &[f32], temperature: f64, range: f64, exponent: f64) -> f64 {
    if order.len() <= 1 {
        return 1.0;
    }
    let relative: Vec<f64> = order.iter().map(|&token| f64::from(row[token] - row[order[0]]).exp()).collect();
    let total: f64 = relative.iter().sum();
    let entropy: f64 = relative.iter().map(|w| w / total).filter(|p| *p > 0.0).map(|p| -p * p.ln()).sum();
    let (low, high) = ((temperature - range).max(0.0), temperature + range);
    low + (high - low) * (entropy / (order.len() as f64).ln()).powf(exponent)
}

/// Whether the draw lies within [`EPSILON`] of the token's share.
fn may_be_drawn(order: &[usize], row: &[f32], temperature: f64, seed: u64, position: u32, token: Token) -> bool {
    let mut ids = order.to_vec();
    ids.sort_unstable();
    let weights: Vec<f64> = ids.iter().map(|&id| (f64::from(row[id] - row[order[0]]) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    let share = (f64::from(random::bits(seed, position, random::DRAW)) + 0.5) / 4_294_967_296.0;
    let mut before = 0.0;
    for (id, weight) in ids.iter().zip(&weights) {
        let after = before + weight / total;
        if *id == token as usize {
            return before - EPSILON <= share && share <= after + EPSILON;
        }
        before = after;
    }
    false
}

/// Chains that the device cannot follow to their end: their first part there and the rest on the host give the token of
/// the whole chain on the host, for a few steps in a row.
fn halves(n: usize, rows: &[Row]) {
    let many = format!("top_k=200;{}temp=0.8;top_p=0.7", "min_p=0.0001;".repeat(13));
    let chains = [
        "top_k=40;penalties=2000,1.3,0.2,0.1;temp=0.8",
        "logit_bias=4:3,9:-inf;penalties=64,1.2,0.1,0;top_k=1000;temp=0.7;top_p=0.9;penalties=1500,0.8,0,0.4;temp=1.5",
        "temp=2;top_k=60;logit_bias=8:1,11:-2;top_p=0.8,3;dynatemp=1,0.9,1.2;penalties=64,1.1,0.3,0",
        "top_k=1536;min_p=0.001;penalties=1025,1.2,0,0;trie;temp=0.9",
        "top_k=500;trie;temp=0.9;penalties=1025,1.2,0,0;top_p=0.5",
        &many,
    ];
    let long = Arc::new(history(n, 1800));
    let masks = [Mask::None, List(7), List(600), Bits].map(|mask| legal_tokens(n, mask));
    for gpu in devices() {
        let mut rig = Rig::new(gpu, n, 1);
        let mut compared = 0;
        for (turn, (name, row)) in rows.iter().enumerate() {
            for chain in chains {
                let chain: Chain = chain.parse().unwrap();
                for (tokens, greedy) in masks.iter().flat_map(|tokens| [(tokens, false), (tokens, true)]) {
                    let legal = tokens.as_ref().map(|tokens| Legal { tokens, greedy });
                    let children = tokens.as_ref().map(|tokens| Legal { tokens, greedy });
                    let (mut whole, mut rest) =
                        (Sampler::new(&chain, n, 3).unwrap(), Sampler::new(&chain, n, 3).unwrap());
                    let banned = [7, tokens.as_ref().map_or(-1, |tokens| tokens[0])];
                    let all = rest.spec(&banned);
                    let (part, taken) = split(&all).unwrap();
                    let to_go = all.steps.len() - taken;
                    assert!(to_go > 0, "{chain}");
                    if greedy && (legal.is_none() || !all.greedy_from(taken)) {
                        continue;
                    }
                    let what =
                        format!("`{chain}` on {name} of {n}, {:?} legal", legal.map(|l| (l.tokens.len(), greedy)));
                    let mut position = 100 * turn as u32;
                    long.iter().for_each(|&token| (whole.accept(token), rest.accept(token)).0);
                    whole.keep_candidates(50);
                    rest.keep_candidates(50);
                    rig.program.set_chain(0, &part).unwrap();
                    rig.program.arm(0, children).unwrap();
                    rig.program.restart(0, position, &long).unwrap();
                    for _ in 0..3 {
                        rig.write(0, row);
                        rig.submit(&[0]);
                        let (result, _) = rig.read()[0];
                        assert_eq!((result.token, result.position), (-1, position), "{what}");
                        let expected = whole.sample(&mut row.to_vec(), legal, &banned, position);
                        let place = rig.program.handed_over(0);
                        let bytes = gpu.read(place.buffer, place.offset, place.bytes as usize).unwrap();
                        match (result.problem, &expected) {
                            (Some(SampleProblem::Nan(at)), Err(Error::NanLogits { token, .. })) => {
                                assert_eq!(at as usize, *token, "{what}");
                            }
                            (Some(SampleProblem::NoCandidate), Err(Error::InvalidArgument(_))) => {}
                            _ => {
                                assert_eq!((result.kept, result.problem), (result.reported, None), "{what}");
                                let left = read_handed_over(&bytes, result.reported);
                                assert_eq!(rest.resume(to_go, left, legal, position), expected, "{what}");
                                assert_eq!(rest.last(), whole.last(), "{what}");
                                compared += 1;
                            }
                        }
                        // What could not be sampled is tried again at the same place.
                        if let Ok(token) = expected {
                            whole.accept(token);
                            rest.accept(token);
                            rig.program.accept(0, &[token]).unwrap();
                            position += 1;
                        }
                    }
                }
            }
        }
        assert!(compared >= 3 * 24 * (rows.len() - 2), "{compared}");
    }
}

#[test]
fn the_host_goes_on_where_the_device_stops() {
    let rows = rows(9000);
    halves(9000, &rows[..7]);
    halves(700, &self::rows(700)[4..8]);
}

#[test]
#[ignore = "the whole matrix: chains in two parts on every row"]
fn the_host_goes_on_on_every_row() {
    for n in [512, 32_000, 262_145] {
        halves(n, &rows(n));
    }
}

#[test]
fn dispatches_are_few() {
    for gpu in &devices()[..devices().len().min(1)] {
        let mut rig = Rig::new(gpu, 32_000, 2);
        let row = |sequence| SampleRow { sequence, row: sequence };
        for (chain, count) in [
            ("greedy", 2),
            ("temp=0.7", 3),
            ("top_k=40;top_p=0.95;min_p=0.05;temp=0.8", 7),
            ("penalties=64,1.1,0,0;top_k=40", 8),
        ] {
            rig.program.set_chain(0, &spec(&chain.parse().unwrap(), 32_000, &[], 1, 0)).unwrap();
            assert_eq!(rig.program.dispatches(&[row(0)]), count, "{chain}");
        }
        rig.program.arm(0, Some(Legal { tokens: &[3, 4], greedy: false })).unwrap();
        assert_eq!(rig.program.dispatches(&[row(0)]), 1);
        assert_eq!(rig.program.dispatches(&[row(0), row(1)]), 4);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for gpu in devices() {
        assert!(SampleProgram::new(gpu, 0, 1).is_err());
        assert!(SampleProgram::new(gpu, 10, 0).is_err());
        assert!(SampleProgram::new(gpu, 10, 65).is_err());
        let mut rig = Rig::new(gpu, 100, 2);
        for tokens in [&[][..], &[3, 3], &[4, 2], &[-1, 2], &[5, 100]] {
            assert!(rig.program.arm(0, Some(Legal { tokens, greedy: true })).is_err(), "{tokens:?}");
        }
        assert!(rig.program.arm(2, None).is_err());
        assert!(rig.program.set_chain(2, &SampleSpec::default()).is_err());
        let logits = rig.logits.clone();
        assert!(rig.program.bind(&logits, 0, 400, 99).is_err());
        assert!(rig.program.bind(&logits, 2, 400, 100).is_err());
        assert!(rig.program.bind(&logits, 4096, 400, 100).is_err());
        let mut encoder = gpu.raw.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let row = |sequence, row| SampleRow { sequence, row };
        assert!(rig.program.encode(&mut pass, &[row(2, 0)]).is_err());
        assert!(rig.program.encode(&mut pass, &[row(0, 2)]).is_err());
        assert!(rig.program.encode(&mut pass, &[row(0, 0), row(0, 1)]).is_err());
        let mut unbound = SampleProgram::new(gpu, 100, 2).unwrap();
        assert!(unbound.encode(&mut pass, &[row(0, 0)]).is_err());
    }
}
