//! The judge of an engine's logits: the slow forward pass over the same file, exact and rounded.

use super::fixture;
use super::fixtures::{Kind, Weights};
use super::reference::{Cache, EXACT, Reference, Rounding};
use super::rng::Stream;
use super::stats::{self, Distance, widen};
use elizainference::Result;
use elizainference::engine::{self, Engine, EngineOptions, KvType, SlotId};
use elizainference::gguf::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// F32 throughout: largest difference allowed. The sums have at most a few thousand terms of order one.
const F32_BOUND: f64 = 5e-5;
/// Everything else: this times the rounded run's relative RMS, plus [`ROUNDING_FLOOR`].
const ROUNDING_FACTOR: f64 = 1.1;
/// The same where activations are rounded and only a few rows are judged: two runs that round different bits differ by
/// chance.
const FEW_ROWS_FACTOR: f64 = 1.5;
/// What single precision itself may add, relative to the logits' standard deviation.
const ROUNDING_FLOOR: f64 = 2e-5;

/// A flag that nobody sets.
pub static NEVER: AtomicBool = AtomicBool::new(false);

/// Tokens below 512, the same for the same name.
pub fn tokens(n: usize, name: &str) -> Vec<i32> {
    let stream = Stream::new(7, name);
    (0..n as u64).map(|i| stream.below(i, 512) as i32).collect()
}

/// The types of a cache: of the keys, and of the values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kv(pub KvType, pub KvType);

impl From<KvType> for Kv {
    fn from(both: KvType) -> Kv {
        Kv(both, both)
    }
}

/// An engine on the CPU.
pub fn open(path: &Path, kv: impl Into<Kv>, threads: u32, slots: u32) -> Engine {
    let Kv(kv_type, v) = kv.into();
    let options = EngineOptions { kv_type, kv_type_v: Some(v), threads, slots, ..EngineOptions::default() };
    let model = engine::open_model(path, &options, None).unwrap();
    Engine::new(model, &options).unwrap()
}

fn cache_of(Kv(k, v): Kv) -> [Cache; 2] {
    [k, v].map(|kv_type| match kv_type {
        KvType::F32 => Cache::Exact,
        KvType::F16 => Cache::F16,
        KvType::Q8_0 => Cache::Q8_0,
    })
}

/// What the slow forward pass says of tokens. The folder that `ELIZA_REFERENCES` names keeps it, by the bytes of the
/// model, the tokens and the roundings: an emulator, for which the pass takes minutes, finds there what the host
/// computed.
fn expected(path: &Path, tokens: &[i32], rounding: Rounding) -> Vec<Vec<f64>> {
    let compute = || Reference::new(&File::open(path).unwrap()).logits(tokens, rounding);
    let Some(folder) = std::env::var_os("ELIZA_REFERENCES") else { return compute() };
    let mut key = DefaultHasher::new();
    (std::fs::read(path).unwrap(), tokens, format!("{rounding:?}")).hash(&mut key);
    let kept = Path::new(&folder).join(format!("{:016x}", key.finish()));
    if let Ok(bytes) = std::fs::read(&kept) {
        let values: Vec<f64> = bytes.as_chunks::<8>().0.iter().map(|&value| f64::from_le_bytes(value)).collect();
        return values.chunks_exact(values.len() / tokens.len()).map(<[f64]>::to_vec).collect();
    }
    let rows = compute();
    let bytes: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    // Another test may write the same at the same time.
    let part = kept.with_extension(format!("{:?}", std::thread::current().id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(&part, bytes).unwrap();
    std::fs::rename(&part, &kept).unwrap();
    rows
}

/// A model with what the slow forward pass says about one token sequence.
pub struct Judge {
    pub name: String,
    pub tokens: Vec<i32>,
    exact: Vec<Vec<f64>>,
    rounded: Vec<Vec<f64>>,
    all_f32: bool,
    /// The weights are plain F32, so that the engine rounds what the rounded run rounds: the cache.
    same_rounding: bool,
}

impl Judge {
    pub fn new(kind: Kind, weights: Weights, kv: impl Into<Kv>, tokens: Vec<i32>) -> Self {
        Judge::of(&format!("{kind:?} {weights:?}"), &fixture(kind, weights), weights.is_f32(), kv, tokens)
    }

    pub fn of(name: &str, path: &Path, f32_weights: bool, kv: impl Into<Kv>, tokens: Vec<i32>) -> Self {
        let kv = kv.into();
        let rounding = Rounding { activations: true, cache: cache_of(kv), gelu_table: false };
        Judge::rounded(name, path, f32_weights, kv, tokens, rounding)
    }

    /// A judge of a device that computes in single precision: only the cache is rounded.
    pub fn of_single_precision(name: &str, path: &Path, kv: impl Into<Kv>, tokens: Vec<i32>) -> Self {
        let kv = kv.into();
        let rounding = Rounding { activations: false, cache: cache_of(kv), gelu_table: false };
        Judge::rounded(name, path, true, kv, tokens, rounding)
    }

    fn rounded(name: &str, path: &Path, f32_weights: bool, kv: Kv, tokens: Vec<i32>, rounding: Rounding) -> Self {
        let all_f32 = f32_weights && kv == Kv(KvType::F32, KvType::F32);
        let exact = expected(path, &tokens, EXACT);
        let rounded = if all_f32 { exact.clone() } else { expected(path, &tokens, rounding) };
        let name = format!("{name}, {kv:?}");
        Judge { name, tokens, exact, rounded, all_f32, same_rounding: f32_weights }
    }

    /// Judges rows of logits; row `i` belongs to position `positions[i]` of the judge's tokens.
    pub fn check(&self, what: &str, positions: impl Iterator<Item = usize>, got: &[Vec<f64>]) -> Distance {
        let positions: Vec<usize> = positions.collect();
        let pick = |from: &[Vec<f64>]| positions.iter().map(|&p| from[p].clone()).collect::<Vec<_>>();
        let (exact, rounded) = (pick(&self.exact), pick(&self.rounded));
        let d = stats::distance(got, &exact);
        let allowed = stats::distance(&rounded, &exact);
        let decided = stats::check_argmax(got, &exact, &rounded);
        println!(
            "{}, {what}: max {:.2e}, relative RMS {:.2e} (rounded run {:.2e}), {decided}/{} argmax decided",
            self.name,
            d.max,
            d.relative_rms,
            allowed.relative_rms,
            positions.len()
        );
        if self.all_f32 {
            assert!(d.max <= F32_BOUND, "{}, {what}: max |difference| {}", self.name, d.max);
        } else {
            let many = self.same_rounding || positions.len() >= 200;
            let factor = if many { ROUNDING_FACTOR } else { FEW_ROWS_FACTOR };
            let bound = factor * allowed.relative_rms + ROUNDING_FLOOR;
            assert!(d.relative_rms <= bound, "{}, {what}: relative RMS {} > {bound}", self.name, d.relative_rms);
        }
        d
    }
}

/// Prefill a prompt, then decode what follows it in `tokens`: one row per step.
pub fn prefill_and_decode(
    engine: &mut Engine,
    slot: SlotId,
    tokens: &[i32],
    prompt: usize,
    decoded: usize,
) -> Vec<Vec<f64>> {
    let done = engine.prefill(slot, &tokens[..prompt], &NEVER).unwrap();
    assert_eq!(done.tokens, prompt);
    let mut rows = vec![widen(engine.head(slot).unwrap())];
    for &token in &tokens[prompt..prompt + decoded] {
        rows.push(widen(engine.decode(slot, token, &NEVER).unwrap()));
    }
    assert_eq!(engine.tokens(slot), &tokens[..prompt + decoded]);
    rows
}

/// Logits of every position.
pub fn all_rows(engine: &mut Engine, tokens: &[i32]) -> Vec<Vec<f64>> {
    let mut rows = Vec::new();
    let mut each = |row: usize, logits: &[f32]| -> Result<()> {
        assert_eq!(row, rows.len());
        rows.push(widen(logits));
        Ok(())
    };
    engine.logits_all(tokens, &NEVER, &mut each).unwrap();
    rows
}
