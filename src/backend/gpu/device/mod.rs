//! A logical device: buffers, submissions, waits and errors. It does not depend on kernels.
//!
//! `adapter.rs` finds and scores adapters, `caps.rs` says what a device can do, `quirks.rs` lists drivers that are
//! refused, `test_limits.rs` lowers an adapter's limits for tests. `memory.rs` counts buffers and queries free memory,
//! `readback.rs` copies results to the host, `bandwidth.rs` measures, `profiler.rs` takes the times of kernels.
//!
//! The driver's errors do not end the process: [`Device::guard`] returns them to the caller whose calls caused them. A
//! lost device stays lost for all who hold it.

mod adapter;
pub mod bandwidth;
mod caps;
pub mod memory;
pub mod profiler;
mod quirks;
pub mod readback;
pub mod test_limits;

pub use adapter::{Adapter, Which, adapters, choose, name_of};
pub use caps::{Caps, Matrices, Registers};

use crate::backend::kernel_times;
use crate::backend::memory::{Account, Component, Memory};
use crate::{Error, Result};
use adapter::of_host;
use memory::Buffer;
use profiler::Profiler;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use test_limits::TestLimits;

/// How long a wait goes on after a cancel: a slow device finishes in this time, one that hangs does not.
const GRACE: Duration = Duration::from_millis(500);
/// How often a wait checks the cancel flag.
const SLICE: Duration = Duration::from_millis(20);
/// How long dropping a device waits for what was submitted.
const PATIENCE: Duration = Duration::from_secs(10);

/// The usages of a storage buffer.
pub(crate) const STORAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// The numbers of Arm and Qualcomm among vendors of PCI devices, which their drivers give too.
const ARM: u32 = 0x13b5;
const QUALCOMM: u32 = 0x5143;

/// For waits that cannot be cancelled.
static NEVER: AtomicBool = AtomicBool::new(false);

/// A logical device with its queue.
pub struct Device {
    /// The driver's logical device.
    pub raw: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
    /// The adapter as the driver describes it.
    pub info: wgpu::AdapterInfo,
    /// What it can do.
    pub caps: Caps,
    /// The adapter's score.
    pub score: u32,
    /// Why it has this score.
    pub reason: String,
    /// What compiles shaders before the driver does, where that is chosen.
    pub shader_compiler: Option<&'static str>,
    /// Run shaders with the bounds checks that are left out otherwise.
    pub checked: bool,
    /// Takes the times of kernels, where that was asked for.
    pub profiler: Option<Profiler>,
    /// Counters of the objects made on this device.
    pub(crate) made: Making,
    /// Why the device is lost, once it is.
    lost: Arc<OnceLock<String>>,
    adapter: wgpu::Adapter,
    /// Bytes of all buffers together, where there is an artificial limit.
    memory_limit: Option<u64>,
    account: Arc<Account>,
}

/// How many objects of each kind were made on a device. Decoding makes none after its first steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Buffers.
    pub buffers: u64,
    /// Bind groups.
    pub bind_groups: u64,
    /// Pipelines.
    pub pipelines: u64,
}

/// [`Made`] while it is counted.
#[derive(Default)]
pub(crate) struct Making {
    pub buffers: AtomicU64,
    pub bind_groups: AtomicU64,
    pub pipelines: AtomicU64,
}

impl Device {
    /// A device of its own on this adapter.
    ///
    /// # Errors
    /// [`Error::Device`] with the driver's reason.
    pub fn new(chosen: &Adapter, limits: &TestLimits) -> Result<Device> {
        let (adapter, info) = (&chosen.adapter, chosen.info.clone());
        let lowered = limits.lower(adapter.limits());
        let measured = kernel_times::are_measured();
        if measured && !adapter.features().contains(profiler::FEATURES) {
            let problem = format!("{} has no timestamps between kernels, which a profile needs", name_of(&info));
            return Err(Error::Unsupported(problem));
        }
        let timestamps = if measured { profiler::FEATURES } else { wgpu::Features::empty() };
        let own_matrices = caps::matrices(adapter, &lowered);
        let matrices = limits.matrices.unwrap_or(own_matrices);
        let mut features = adapter.features() & wgpu::Features::PIPELINE_CACHE | timestamps;
        let mut experimental_features = wgpu::ExperimentalFeatures::disabled();
        if own_matrices.is_some() {
            features |= caps::MATRICES;
            // SAFETY: what wgpu asks for is to know that its experimental functions may have bugs, and does not look
            // after what they ask of shaders. Those that enable `wgpu_cooperative_matrix` call them with all threads,
            // and load and store within their arrays of workgroup memory, at multiples of 16 bytes.
            experimental_features = unsafe { wgpu::ExperimentalFeatures::enabled() };
        }
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("eliza"),
            required_features: features,
            required_limits: lowered.clone(),
            memory_hints: wgpu::MemoryHints::Performance,
            experimental_features,
            ..Default::default()
        });
        let name = name_of(&info);
        let (raw, queue) =
            pollster::block_on(request).map_err(|e| Error::Device(format!("{name} could not be opened: {e}")))?;
        let lost = Arc::new(OnceLock::new());
        let noted = lost.clone();
        raw.set_device_lost_callback(move |reason, message| {
            noted.get_or_init(|| format!("{name} was lost ({reason:?}): {message}"));
        });
        // Every call to a driver is made within `guard`, so an error that arrives here belongs to no caller.
        let name = name_of(&info);
        raw.on_uncaptured_error(Arc::new(move |error: wgpu::Error| log::error!("{name}: {error}")));
        let registers = limits.registers.unwrap_or(match info.vendor {
            ARM => Registers::Few,
            QUALCOMM => Registers::Medium,
            _ => Registers::Many,
        });
        let caps = Caps {
            max_binding: lowered.max_storage_buffer_binding_size.min(lowered.max_buffer_size),
            max_buffer: lowered.max_buffer_size,
            max_threads: lowered.max_compute_invocations_per_workgroup.min(lowered.max_compute_workgroup_size_x),
            max_workgroups: lowered.max_compute_workgroups_per_dimension,
            storage_align: lowered.min_storage_buffer_offset_alignment,
            registers,
            matrices,
            int8_dots: registers > Registers::Few && limits.int8_dots.unwrap_or_else(|| caps::has_int8_dots(adapter)),
        };
        let profiler = measured.then(|| Profiler::new(&raw, &queue));
        Ok(Device {
            raw,
            queue,
            info,
            caps,
            score: chosen.score,
            reason: chosen.reason.clone(),
            shader_compiler: chosen.shader_compiler,
            checked: limits.checked,
            profiler,
            made: Making::default(),
            lost,
            adapter: chosen.adapter.clone(),
            memory_limit: limits.memory,
            account: Arc::default(),
        })
    }

    /// How many objects were made on this device so far.
    pub fn made(&self) -> Made {
        let [buffers, bind_groups, pipelines] =
            [&self.made.buffers, &self.made.bind_groups, &self.made.pipelines].map(|n| n.load(Ordering::Relaxed));
        Made { buffers, bind_groups, pipelines }
    }

    /// An error once the device is lost.
    ///
    /// # Errors
    /// [`Error::Device`] with the reason of the loss.
    pub fn check(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |lost| Err(Error::Device(lost.clone())))
    }

    /// Runs `work` and returns its error: a loss of the device, the driver's first error, or the error of `work`.
    ///
    /// # Errors
    /// [`Error::Device`] where the device was lost or the driver reported an error, [`Error::OutOfMemory`] where that
    /// error was want of memory, else the error of `work`.
    pub fn guard<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (done, error) = caught(&self.raw, work);
        let error = error.map(|error| {
            // The driver's error may be the first sign of a loss, which the next poll reports and which is the better
            // reason.
            let _ = self.look();
            error_of(&name_of(&self.info), &error)
        });
        self.check()?;
        error.map_or(done, Err)
    }

    /// A buffer, or [`Error::OutOfMemory`] naming it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what the memory is for; [`Error::Device`] where the device was lost.
    pub fn buffer(&self, what: &str, bytes: u64, usage: wgpu::BufferUsages) -> Result<Buffer> {
        self.buffer_of(Component::Other, what, bytes, usage)
    }

    /// A buffer that is counted to a component, or [`Error::OutOfMemory`] naming it.
    ///
    /// # Errors
    /// As [`Device::buffer`].
    pub fn buffer_of(&self, component: Component, what: &str, bytes: u64, usage: wgpu::BufferUsages) -> Result<Buffer> {
        self.check()?;
        let size = memory::buffer_bytes(bytes);
        let no_memory =
            |why: String| Err(Error::OutOfMemory(format!("{bytes} bytes for the {what} on {}: {why}", self.info.name)));
        if size > self.caps.max_buffer {
            return no_memory(format!("its buffers hold at most {}", self.caps.max_buffer));
        }
        let used = self.account.bytes().total();
        if let Some(limit) = self.memory_limit.filter(|limit| used.saturating_add(size) > *limit) {
            return no_memory(format!("{used} of {limit} bytes are in use"));
        }
        let descriptor = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        let (buffer, error) = caught(&self.raw, || self.raw.create_buffer(&descriptor));
        self.made.buffers.fetch_add(1, Ordering::Relaxed);
        if let Some(error) = error {
            return no_memory(error.to_string());
        }
        self.check()?;
        Ok(Buffer::new(buffer, &self.account, component))
    }

    /// The device's memory: used, total, available.
    pub fn memory(&self) -> Memory {
        let used = self.account.bytes();
        let artificial = self.memory_limit.map(|limit| limit.saturating_sub(used.total()));
        let (total, free) = memory::of(&self.adapter).unzip();
        let available = [free, artificial].into_iter().flatten().min();
        Memory { used, total, available, of_host: of_host(&self.info) }
    }

    /// Waits until everything submitted so far is done.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails.
    pub fn wait(&self) -> Result<()> {
        self.wait_for(None, &NEVER)
    }

    /// Waits until a submission is done, or all of them. A cancel also ends the wait, after [`GRACE`]: the submitted
    /// work then still runs, and later submissions run after it.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails, [`Error::Cancelled`] where `cancel` was set.
    pub fn wait_for(&self, submission: Option<wgpu::SubmissionIndex>, cancel: &AtomicBool) -> Result<()> {
        let mut cancelled = None;
        while !self.poll(wgpu::PollType::Wait { submission_index: submission.clone(), timeout: Some(SLICE) })? {
            if cancel.load(Ordering::Relaxed) && cancelled.get_or_insert_with(Instant::now).elapsed() >= GRACE {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    /// Lets the driver report what is done, without waiting.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails.
    pub fn look(&self) -> Result<()> {
        self.poll(wgpu::PollType::Poll).map(drop)
    }

    /// Polls the device; whether the submission that is waited for is done.
    fn poll(&self, how: wgpu::PollType) -> Result<bool> {
        // wgpu panics when the driver fails here. It also does (30.0, an assertion in `Device::maintain`) where a wait
        // ran out of time while another thread saw its submission end. A poll without a wait tells the two apart.
        let poll = |how| catch_unwind(AssertUnwindSafe(|| self.raw.poll(how)));
        let polled = poll(how);
        if polled.is_err() && poll(wgpu::PollType::Poll).is_err() {
            self.lost
                .get_or_init(|| format!("{} was lost: its driver failed while it was waited for", name_of(&self.info)));
        }
        self.check()?;
        match polled {
            Ok(Err(wgpu::PollError::Timeout)) | Err(_) => Ok(false),
            Ok(Err(e)) => Err(Error::Device(format!("Waiting for {}: {e}", self.info.name))),
            Ok(Ok(_)) => Ok(true),
        }
    }

    /// Reads bytes of a buffer, after everything submitted so far. For loading, probes and tests; a step reads by
    /// [`readback::Landing`].
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails, [`Error::OutOfMemory`] for the staging buffer.
    pub fn read(&self, buffer: &wgpu::Buffer, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = self.buffer("staging for a read", bytes as u64, usage)?;
        let mut encoder = self.raw.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, offset, &staging, 0, bytes as u64);
        self.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |_| {});
        self.wait()?;
        let mapped = staging.get_mapped_range(..bytes as u64);
        let mapped = mapped.map_err(|e| Error::Device(format!("Reading from {}: {e}", self.info.name)))?;
        Ok(mapped.to_vec())
    }
}

impl Drop for Device {
    /// Dropping a wgpu queue waits without limit until its submissions are done. A queue that hangs is leaked instead.
    fn drop(&mut self) {
        if let Ok(false) = self.poll(wgpu::PollType::Wait { submission_index: None, timeout: Some(PATIENCE) }) {
            log::error!("{} gives no answer: it is left as it is", name_of(&self.info));
            std::mem::forget(self.queue.clone());
        }
    }
}

/// Runs `work`, and returns with its result the first error that the driver reported for its calls; errors are caught
/// per thread. Where there are errors of several kinds, out of memory is returned, since it explains the others.
pub(crate) fn caught<T>(device: &wgpu::Device, work: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
    let filters = [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::Internal];
    let scopes = filters.map(|filter| device.push_error_scope(filter));
    let done = work();
    let pop = |first: Option<wgpu::Error>, scope: wgpu::ErrorScopeGuard| pollster::block_on(scope.pop()).or(first);
    (done, scopes.into_iter().rev().fold(None, pop))
}

fn error_of(name: &str, error: &wgpu::Error) -> Error {
    match error {
        wgpu::Error::OutOfMemory { .. } => Error::OutOfMemory(format!("{name}: {error}")),
        _ => Error::Device(format!("{name}: {error}")),
    }
}
