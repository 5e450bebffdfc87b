//! Opening a model takes time and memory by the layer: a file of a few megabytes may have thousands of them.
//!
//! The test has a process for itself, because it reads what the process holds. Neighbours are four times apart: a cost
//! by the layer makes the ratio 4, one by the square 16. More than 5 is refused.

use crate::alone;
use crate::testing::fixtures::Shaped;
use elizainference::engine::{self, Engine, EngineOptions};
use elizainference::quant::TensorType;
use std::time::{Duration, Instant};

const LAYERS: [u32; 4] = [64, 256, 1024, 4096];

/// Time that this thread had a processor, where the system tells it; else what the clock says.
fn thread_time(started: Instant) -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = told.and_then(|text| text.split_whitespace().next()?.parse().ok());
    nanoseconds.map_or_else(|| started.elapsed(), Duration::from_nanos)
}

/// Bytes of memory that the process has in use.
fn resident() -> Option<u64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").ok()?.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

#[test]
fn m6_opening_takes_time_and_memory_by_the_layer() {
    if !alone("many_layers::m6_opening_takes_time_and_memory_by_the_layer") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions { context: 64, slots: 1, threads: 1, ..EngineOptions::default() };
    let (started, mut opened) = (Instant::now(), Vec::new());
    for layers in LAYERS {
        let path = folder.path().join(format!("{layers}.gguf"));
        Shaped { n_vocab: 16, n_embd: 2, n_ff: 2, n_layer: layers, n_head: 1, ty: TensorType::F32 }.write(&path);
        let cost = |keep: bool| {
            let (time, memory) = (thread_time(started), resident());
            let mut asked = 0;
            let mut hear = |_: f32| {
                asked += 1;
                true
            };
            let model = engine::open_model(&path, &options, Some(&mut hear)).unwrap();
            let engine = Engine::open(model, &options, Some(&mut hear)).unwrap();
            let cost = (thread_time(started) - time, resident().zip(memory).map(|(now, before)| now - before));
            // The host is asked between two plans, not only while weights are packed.
            assert!(asked > 30, "{asked} times asked");
            if keep {
                // What it holds is not to be used again by the next one, whose memory is counted too.
                std::mem::forget(engine);
            }
            cost
        };
        // As many layers in all, whatever their number in the file: the system counts a thread's time in steps of
        // milliseconds.
        let times = LAYERS[3] / layers;
        let series = |_| (0..times).map(|_| cost(false).0).sum::<Duration>() / times;
        let time = (0..3).map(series).min().unwrap();
        let (_, memory) = cost(true);
        opened.push((layers, time, memory));
        let megabytes = memory.map(|bytes| bytes as f64 / 1e6);
        eprintln!("{layers:>5} layers: {:>9.2?} {megabytes:>7.1?} MB", time);
    }
    for pair in opened.windows(2) {
        let [(few, short, small), (many, long, large)] = [pair[0], pair[1]];
        let ratio = long.as_secs_f64() / short.as_secs_f64();
        assert!(ratio <= 5.0, "{few} to {many} layers: {ratio:.1} times the time");
        if let Some((small, large)) = small.zip(large).filter(|(small, _)| *small > 0) {
            let ratio = large as f64 / small as f64;
            assert!(ratio <= 5.0, "{few} to {many} layers: {ratio:.1} times the memory");
        }
    }
}
