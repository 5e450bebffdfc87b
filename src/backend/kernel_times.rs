//! How long kernels ran on GPUs of this process, where that is measured: for finding a slow one.
//!
//! It is measured on devices that are opened after [`measure`], or where `ELIZA_GPU_PROFILE` is set. Every submission
//! is then waited for, so the sum says what the device did, not how fast a model is.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// The time of one kernel.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct KernelTime {
    /// Its name and the flags of its text.
    pub kernel: String,
    /// How often it was dispatched.
    pub dispatches: u64,
    /// Microseconds on the device, of all dispatches.
    pub us: f64,
}

static MEASURED: AtomicBool = AtomicBool::new(false);
/// Dispatches and microseconds by the kernel's name.
static TIMES: Mutex<BTreeMap<String, (u64, f64)>> = Mutex::new(BTreeMap::new());

/// Measure from now on, on devices that are opened later.
pub fn measure() {
    MEASURED.store(true, Ordering::Relaxed);
}

/// Whether a device that is opened now measures.
pub fn are_measured() -> bool {
    MEASURED.load(Ordering::Relaxed) || std::env::var_os("ELIZA_GPU_PROFILE").is_some_and(|value| !value.is_empty())
}

/// Adds a dispatch.
pub fn record(kernel: &str, us: f64) {
    let mut times = TIMES.lock();
    match times.get_mut(kernel) {
        Some((dispatches, sum)) => (*dispatches, *sum) = (*dispatches + 1, *sum + us),
        None => drop(times.insert(kernel.to_string(), (1, us))),
    }
}

/// Forgets what was measured so far.
pub fn forget() {
    TIMES.lock().clear();
}

/// What was measured so far, the longest first; empty where nothing was.
pub fn all() -> Vec<KernelTime> {
    let times = TIMES.lock();
    let time =
        |(kernel, &(dispatches, us)): (&String, &(u64, f64))| KernelTime { kernel: kernel.clone(), dispatches, us };
    let mut all: Vec<KernelTime> = times.iter().map(time).collect();
    all.sort_by(|a, b| b.us.total_cmp(&a.us));
    all
}
