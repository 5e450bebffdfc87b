//! What the tests of the GPU's sampler share: a device with a program, rows, chains, masks, and the comparison of a row
//! with the host.

use crate::testing;
use elizainference::backend::gpu::Gpu;
use elizainference::backend::gpu::device::adapters;
use elizainference::backend::gpu::device::memory::Buffer;
use elizainference::backend::gpu::device::test_limits::TestLimits;
use elizainference::backend::gpu::sample::{
    Legal, SampleProblem, SampleProgram, SampleResult, SampleRow, SampleSpec, read_candidates, read_result,
};
use elizainference::sampling::{Chain, Sampled, Sampler, random};
use elizainference::{Error, Result, Token};
use std::sync::{Arc, LazyLock};

pub const STORAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// The adapter as it is, and as small as the smallest. None without a GPU, see [`testing::has_gpu`].
pub fn devices() -> &'static [Arc<Gpu>] {
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
pub type Found = (SampleResult, Vec<(Token, f32, f32)>);

/// A program with a workspace and a staging buffer.
pub struct Rig {
    pub gpu: Arc<Gpu>,
    pub program: SampleProgram,
    pub logits: Buffer,
    pub staging: Buffer,
    pub stride: usize,
    pub rows: usize,
}

/// Floats before the logits: the rows do not begin where a binding may.
pub const LEAD: usize = 3;

impl Rig {
    pub fn new(gpu: &Arc<Gpu>, n_vocab: usize, rows: usize) -> Rig {
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

    pub fn write(&self, row: usize, logits: &[f32]) {
        let at = (LEAD + row * self.stride) as u64 * 4;
        self.gpu.queue.write_buffer(&self.logits, at, bytemuck::cast_slice(logits));
    }

    /// Submits a step of these sequences, each with the row of its number.
    pub fn submit(&mut self, sequences: &[usize]) {
        let rows: Vec<_> =
            sequences.iter().map(|&sequence| SampleRow { sequence: sequence as u32, row: sequence as u32 }).collect();
        let mut encoder = self.gpu.raw.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        self.program.encode(&mut pass, &rows).unwrap();
        drop(pass);
        self.gpu.queue.submit([encoder.finish()]);
    }

    /// What all sequences found last.
    pub fn read(&self) -> Vec<Found> {
        let results = self.program.results();
        let mut encoder = self.gpu.raw.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(results.buffer, results.offset, &self.staging, 0, results.bytes);
        for sequence in 0..self.rows {
            let place = self.program.candidates(sequence);
            let at = results.bytes + sequence as u64 * place.bytes;
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
pub fn spec(chain: &Chain, n_vocab: usize, banned: &[Token], seed: u64, candidates: u32) -> SampleSpec {
    SampleSpec { candidates, ..Sampler::new(chain, n_vocab, seed).unwrap().spec(banned) }
}

/// One row to be sampled.
#[derive(Clone, Default)]
pub struct Case {
    pub chain: String,
    pub row: Arc<Vec<f32>>,
    pub history: Arc<Vec<Token>>,
    pub banned: Vec<Token>,
    /// Legal tokens, and whether the best is taken.
    pub legal: Option<(Arc<Vec<Token>>, bool)>,
    /// The same as bits with a number, where the device gets them so.
    pub bits: Option<(Arc<Vec<u32>>, u64)>,
    pub seed: u64,
    pub position: u32,
    pub candidates: u32,
    /// Compare the token alone: the candidates were compared with another draw from the same row.
    pub token_only: bool,
    pub name: String,
}

/// Candidates that the host keeps at most.
pub const HOST_KEEPS: usize = 2048;

/// How far from the boundary between two tokens, as a share of all, a draw may lie for double precision to disagree.
pub const EPSILON: f64 = 1e-5;

impl Case {
    pub fn mask(&self) -> Option<Legal<'_>> {
        let (tokens, greedy) = self.legal.as_ref()?;
        Some(match &self.bits {
            Some((bits, number)) => Legal::mask(bits, *number, *greedy),
            None => Legal::list(tokens, *greedy),
        })
    }
}

pub type OnHost = (Result<Token>, Sampled);

pub fn on_host(case: &Case) -> OnHost {
    let chain: Chain = case.chain.parse().unwrap();
    let mut sampler = Sampler::new(&chain, case.row.len(), case.seed).unwrap();
    sampler.keep_candidates(if case.token_only { 0 } else { HOST_KEEPS });
    case.history.iter().for_each(|&token| sampler.accept(token));
    let legal = case.mask();
    let token = sampler.sample(&mut case.row.to_vec(), legal, &case.banned, case.position);
    (token, sampler.last().clone())
}

pub fn assert_same(case: &Case, found: &Found, (token, host): &OnHost) {
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
    assert_eq!(result.token, token, "{what}");
    let close = |a: f32, b: f32, relative: f32| a == b || (a - b).abs() <= relative * b.abs();
    let apart = (result.logprob - host.logprob).abs();
    // The host's is rounded once from double precision, ours is a difference of two f32 numbers of up to about 30.
    assert!(apart <= 4e-6 + 3e-7 * host.logprob.abs(), "{what}: {}", host.logprob);
    assert!((result.prob - host.prob).abs() <= 1e-6 * host.prob + f32::MIN_POSITIVE, "{what}: {}", host.prob);
    if case.token_only {
        return;
    }
    assert_eq!((result.kept as usize).min(HOST_KEEPS), host.candidates.len(), "{what}");
    let asked = (case.candidates as usize).min(host.candidates.len());
    assert_eq!((result.reported as usize, candidates.len()), (asked, asked), "{what}");
    for (got, expected) in candidates.iter().zip(&host.candidates) {
        assert_eq!(got.0, expected.0, "{what}");
        let same = got.1 == expected.1 && close(got.2, expected.2, 1e-6);
        assert!(same, "{what}: {got:?}, {expected:?}");
    }
}

/// The best so many tokens, best first.
pub fn order_of(row: &[f32], kept: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).filter(|&token| row[token] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    order.truncate(kept);
    order
}

/// Samples all cases, of one vocabulary, on these devices; `together` of them in one step.
pub fn check_on(gpus: &[Arc<Gpu>], cases: &[Case], together: usize) {
    let n_vocab = cases[0].row.len();
    for gpu in gpus {
        let mut rig = Rig::new(gpu, n_vocab, together);
        let mut before: Vec<Option<&Case>> = vec![None; together];
        for group in cases.chunks(together) {
            for (sequence, case) in group.iter().enumerate() {
                let same_chain = |other: &Case| {
                    (&other.chain, &other.banned, other.seed, other.candidates, &other.legal, &other.bits)
                        == (&case.chain, &case.banned, case.seed, case.candidates, &case.legal, &case.bits)
                };
                if !before[sequence].is_some_and(same_chain) {
                    let chain = case.chain.parse().unwrap();
                    let spec = spec(&chain, n_vocab, &case.banned, case.seed, case.candidates);
                    rig.program.set_chain(sequence, &spec).unwrap();
                    rig.program.arm(sequence, case.mask()).unwrap();
                }
                before[sequence] = Some(case);
                rig.program.restart(sequence, case.position, &case.history).unwrap();
                rig.write(sequence, &case.row);
            }
            rig.submit(&(0..group.len()).collect::<Vec<_>>());
            let expected: Vec<OnHost> = group.iter().map(on_host).collect();
            for ((case, found), expected) in group.iter().zip(rig.read()).zip(&expected) {
                assert_same(case, &found, expected);
            }
        }
    }
}

pub fn check(cases: &[Case], together: usize) {
    check_on(devices(), cases, together);
}

pub fn uniform(kind: u32, i: usize) -> f64 {
    (f64::from(random::bits(11, i as u32, kind)) + 0.5) / 4_294_967_296.0
}

pub fn gaussian(kind: u32, i: usize, deviation: f64) -> f32 {
    let radius = (-2.0 * uniform(2 * kind, i).ln()).sqrt();
    (deviation * radius * (std::f64::consts::TAU * uniform(2 * kind + 1, i)).cos()) as f32
}

pub type Row = (&'static str, Arc<Vec<f32>>);

/// Every kind of row, named.
pub fn rows(n: usize) -> Vec<Row> {
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
pub enum Mask {
    None,
    /// So many tokens at most, which the device gets as a list.
    List(usize),
    /// Every other token, which the device gets as bits where there are many.
    Bits,
    /// One of so many tokens, as bits with a number.
    Numbered(usize),
}
pub use Mask::{Bits, List, Numbered};

/// Chains of every path, of the paths' edges, and in every order; the mask, and whether it is followed greedily.
pub const SETTINGS: [(&str, Mask, bool); 60] = [
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

pub fn history(n: usize, length: usize) -> Vec<Token> {
    (0..length).map(|i| (random::bits(21, i as u32, 0) % (n as u32).min(300)) as Token).collect()
}

/// The tokens of a mask.
pub fn legal_tokens(n: usize, mask: Mask) -> Option<Arc<Vec<Token>>> {
    let mut tokens: Vec<Token> = match mask {
        Mask::None => return None,
        List(count) => (0..count as u32).map(|i| (random::bits(6, i, count as u32) % n as u32) as Token).collect(),
        Bits => (0..n as Token).step_by(2).collect(),
        Numbered(apart) => (0..n as Token).skip(3 % n).step_by(apart).collect(),
    };
    tokens.sort_unstable();
    tokens.dedup();
    Some(Arc::new(tokens))
}

/// The bits of a mask that has a number; the number tells vocabulary and mask.
pub fn bits_of(n: usize, mask: Mask) -> Option<(Arc<Vec<u32>>, u64)> {
    let Numbered(apart) = mask else { return None };
    let mut bits = vec![0; n.div_ceil(32)];
    legal_tokens(n, mask)?.iter().for_each(|&token| bits[token as usize / 32] |= 1 << (token % 32));
    Some((Arc::new(bits), (n << 16 | apart) as u64))
}

/// Every setting on these rows, `draws` times each, with all that varies in turns.
pub fn cases<S: ToString>(rows: &[Row], settings: &[(S, Mask, bool)], draws: u32) -> Vec<Case> {
    let n = rows[0].1.len();
    let histories = [90, 0, 1500].map(|length| Arc::new(history(n, length)));
    let mut all = Vec::new();
    for (number, (chain, mask, greedy)) in settings.iter().enumerate() {
        let (tokens, bits) = (legal_tokens(n, *mask), bits_of(n, *mask));
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
                bits: bits.clone(),
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

/// The temperature by its definition; 1 where it is not applied.
pub fn dynamic_of(order: &[usize], row: &[f32], temperature: f64, range: f64, exponent: f64) -> f64 {
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
pub fn may_be_drawn(order: &[usize], row: &[f32], temperature: f64, seed: u64, position: u32, token: Token) -> bool {
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
