//! Adapters, and the device that all engines of a process share.
//!
//! An adapter gets a score and a sentence that explains it; software drivers score below the CPU, whose kernels are
//! faster. One logical device per adapter lives as long as somebody uses it. The driver's errors do not end the
//! process: [`Gpu::guard`] tells them to the one whose calls they come of. A lost device stays lost for all who hold
//! it, and a later open makes a new one.

use super::compile::Compiler;
use super::disk;
use super::memory::{self, Buffer};
use super::probe::Pending;
use super::quirks;
use super::restrict::Restrictions;
use crate::backend::memory::{Account, Component, Memory};
use crate::gguf::shown;
use crate::{Error, Result};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How long a wait goes on after a cancel: a device that is slow gets done in this time, one that hangs never does.
const GRACE: Duration = Duration::from_millis(500);
/// How often a wait looks at the cancel flag.
const SLICE: Duration = Duration::from_millis(20);
/// How long dropping a device waits for what was submitted.
const PATIENCE: Duration = Duration::from_secs(10);

/// For waits that nobody cancels.
static NEVER: AtomicBool = AtomicBool::new(false);

/// What a device can do, after the driver's quirks and any artificial restrictions.
#[derive(Debug, Clone, PartialEq)]
pub struct Caps {
    /// Bytes of the largest storage binding.
    pub max_binding: u64,
    /// Bytes of the largest buffer.
    pub max_buffer: u64,
    /// Threads of the largest workgroup.
    pub max_threads: u32,
    /// Workgroups in one dimension of a dispatch.
    pub max_workgroups: u32,
    /// Whether the driver takes and gives pipeline caches.
    pub pipeline_cache: bool,
    /// Alignment of a storage binding's offset.
    pub storage_align: u32,
}

/// A logical device with its queue.
pub struct Gpu {
    /// The logical device.
    pub device: wgpu::Device,
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
    /// What was made on this device so far.
    pub(super) made: Making,
    /// Why the device is lost, once it is.
    lost: Arc<OnceLock<String>>,
    adapter: wgpu::Adapter,
    /// Bytes of all buffers together, where there is an artificial limit.
    memory_limit: Option<u64>,
    account: Arc<Account>,
    pub(super) kernels: super::kernel::Cache,
    pub(super) compiler: Compiler,
    /// Known answers that are still to be asked for.
    pub(super) pending: Mutex<Pending>,
}

/// How many objects of each kind were made on a device: in steady decoding none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Buffers.
    pub buffers: u64,
    /// Bind groups.
    pub bind_groups: u64,
    /// Pipelines.
    pub pipelines: u64,
}

/// [`Made`] as it counts up.
#[derive(Default)]
pub(super) struct Making {
    pub buffers: AtomicU64,
    pub bind_groups: AtomicU64,
    pub pipelines: AtomicU64,
}

/// An adapter with its score.
pub struct Candidate {
    adapter: wgpu::Adapter,
    /// The adapter as the driver describes it.
    pub info: wgpu::AdapterInfo,
    /// Higher is preferred; 0 cannot be used.
    pub score: u32,
    /// Why it has this score.
    pub reason: String,
    /// What compiles shaders before the driver does, where that is chosen.
    pub shader_compiler: Option<&'static str>,
}

impl Candidate {
    /// How its memory stands; nothing is known of what this process uses of it.
    pub fn memory(&self) -> Memory {
        let (total, available) = memory::of(&self.adapter).unzip();
        Memory { total, available, of_host: of_host(&self.info), ..Memory::default() }
    }
}

/// Whether an adapter has the host's memory.
fn of_host(info: &wgpu::AdapterInfo) -> bool {
    matches!(info.device_type, wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::Cpu)
}

/// An open device and the name of its adapter.
type Shared = (String, Weak<Gpu>);

/// The name under which an adapter is listed and asked for.
pub fn name_of(info: &wgpu::AdapterInfo) -> String {
    format!("{} ({})", info.name, info.backend)
}

/// The ways to adapters, each with the compiler of its shaders. DX12 takes DXC where its library can be loaded and
/// finds an adapter, else FXC, which is a part of Windows.
fn instances() -> &'static [(wgpu::Instance, Option<&'static str>)] {
    static INSTANCES: LazyLock<Vec<(wgpu::Instance, Option<&'static str>)>> = LazyLock::new(|| {
        let make = |backends, shader_compiler| {
            let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
            descriptor.backends = backends;
            // The validation of indirect calls builds pipelines of its own at device creation, on which some drivers
            // fail.
            descriptor.flags = wgpu::InstanceFlags::empty();
            descriptor.backend_options.dx12.shader_compiler = shader_compiler;
            wgpu::Instance::new(descriptor)
        };
        let mut all = vec![(make(wgpu::Backends::VULKAN | wgpu::Backends::METAL, wgpu::Dx12Compiler::Fxc), None)];
        if cfg!(windows) {
            let dxc = make(wgpu::Backends::DX12, wgpu::Dx12Compiler::default_dynamic_dxc());
            all.push(match adapters(&dxc).is_empty() {
                false => (dxc, Some("DXC")),
                true => (make(wgpu::Backends::DX12, wgpu::Dx12Compiler::Fxc), Some("FXC")),
            });
        }
        all
    });
    &INSTANCES
}

fn adapters(instance: &wgpu::Instance) -> Vec<wgpu::Adapter> {
    pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()))
}

/// Every adapter of this machine, best first.
pub fn candidates() -> Vec<Candidate> {
    let found = instances().iter().flat_map(|(instance, by)| adapters(instance).into_iter().map(|one| (one, *by)));
    let mut all: Vec<Candidate> = found
        .map(|(adapter, shader_compiler)| {
            let info = adapter.get_info();
            let (score, reason) = score(&info, &adapter.limits(), shader_compiler);
            Candidate { adapter, info, score, reason, shader_compiler }
        })
        .collect();
    all.sort_by(|a, b| b.score.cmp(&a.score).then_with(|| a.info.name.cmp(&b.info.name)));
    all
}

fn score(info: &wgpu::AdapterInfo, limits: &wgpu::Limits, shader_compiler: Option<&str>) -> (u32, String) {
    if let Some(why) = quirks::refused(info) {
        return (0, format!("not used: {why}"));
    }
    if let Some(missing) = too_small(limits) {
        return (0, format!("not used: {missing}"));
    }
    let (score, what) = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => (1000, "a GPU with memory of its own"),
        wgpu::DeviceType::IntegratedGpu => (500, "a GPU that shares the host's memory"),
        wgpu::DeviceType::VirtualGpu => (300, "a virtual GPU"),
        wgpu::DeviceType::Other => (200, "an accelerator of unknown kind"),
        wgpu::DeviceType::Cpu => (10, "a software driver: slower than the CPU backend, used only when asked for"),
    };
    let shaders = shader_compiler.map_or(String::new(), |by| format!(", shaders compiled by {by}"));
    let driver = format!("{} {}", info.driver, info.driver_info);
    (score, format!("{what}, driver {}{shaders}", driver.trim_end()))
}

/// What every kernel needs; where it is missing the adapter cannot be used.
fn too_small(limits: &wgpu::Limits) -> Option<String> {
    let needs = [
        ("threads in a workgroup", u64::from(limits.max_compute_invocations_per_workgroup), 128),
        ("bytes of workgroup memory", u64::from(limits.max_compute_workgroup_storage_size), 16 << 10),
        ("storage buffers in a shader", u64::from(limits.max_storage_buffers_per_shader_stage), 8),
        ("bytes in a storage binding", limits.max_storage_buffer_binding_size, 16 << 20),
    ];
    let (what, have, need) = needs.into_iter().find(|&(_, have, need)| have < need)?;
    Some(format!("{have} {what}, {need} are needed"))
}

impl Gpu {
    /// The device of the best adapter whose name contains `named`, shared with everyone who holds it.
    pub fn open(named: Option<&str>) -> Result<Arc<Gpu>> {
        static OPEN: LazyLock<Mutex<Vec<Shared>>> = LazyLock::new(Mutex::default);
        let wanted = named.map(str::to_lowercase);
        let all = candidates();
        let names = || all.iter().map(|c| format!("{}: {}", name_of(&c.info), c.reason)).collect::<Vec<_>>().join("; ");
        let chosen = all
            .iter()
            .filter(|c| c.score > 0)
            .find(|c| wanted.as_ref().is_none_or(|w| name_of(&c.info).to_lowercase().contains(w)));
        let Some(chosen) = chosen else {
            let found = if all.is_empty() { "no Vulkan, Metal or DX12 adapter was found".to_string() } else { names() };
            let which = named.map_or("a GPU".to_string(), |n| format!("GPU `{}`", shown(n)));
            return Err(Error::Unsupported(format!("No device for {which}: {found}")));
        };
        let mut open = OPEN.lock();
        open.retain(|(_, gpu)| gpu.strong_count() > 0);
        let key = name_of(&chosen.info);
        let held = open.iter().find(|(name, _)| *name == key).and_then(|(_, gpu)| gpu.upgrade());
        if let Some(gpu) = held.filter(|gpu| gpu.look().is_ok()) {
            return Ok(gpu);
        }
        let gpu = Arc::new(Gpu::new(chosen, &Restrictions::from_env()?)?);
        open.retain(|(name, _)| *name != key);
        open.push((key, Arc::downgrade(&gpu)));
        Ok(gpu)
    }

    /// A device of its own on this adapter.
    pub fn new(candidate: &Candidate, restrictions: &Restrictions) -> Result<Gpu> {
        let (adapter, info) = (&candidate.adapter, candidate.info.clone());
        let limits = restrictions.limits(adapter.limits());
        let features = adapter.features() & wgpu::Features::PIPELINE_CACHE;
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("eliza"),
            required_features: features,
            required_limits: limits.clone(),
            memory_hints: wgpu::MemoryHints::Performance,
            ..Default::default()
        });
        let name = name_of(&info);
        let (device, queue) =
            pollster::block_on(request).map_err(|e| Error::Device(format!("{name} could not be opened: {e}")))?;
        let lost = Arc::new(OnceLock::new());
        let noted = lost.clone();
        device.set_device_lost_callback(move |reason, message| {
            noted.get_or_init(|| format!("{name} was lost ({reason:?}): {message}"));
        });
        // Whoever asks anything of a driver stands within `guard`, so this is nobody's.
        let name = name_of(&info);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| log::error!("{name}: {error}")));
        let caps = Caps {
            max_binding: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
            max_buffer: limits.max_buffer_size,
            max_threads: limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x),
            max_workgroups: limits.max_compute_workgroups_per_dimension,
            pipeline_cache: features.contains(wgpu::Features::PIPELINE_CACHE),
            storage_align: limits.min_storage_buffer_offset_alignment,
        };
        let checked = restrictions.checked;
        let kernels = super::kernel::Cache::default();
        let (score, reason) = (candidate.score, candidate.reason.clone());
        let disk = if caps.pipeline_cache { disk::Cache::open(&device, &info) } else { None };
        let compiler = Compiler::new(&device, &name_of(&info), checked, disk);
        Ok(Gpu {
            device,
            queue,
            info,
            caps,
            score,
            reason,
            shader_compiler: candidate.shader_compiler,
            checked,
            made: Making::default(),
            lost,
            adapter: adapter.clone(),
            memory_limit: restrictions.memory,
            account: Arc::default(),
            kernels,
            compiler,
            pending: Mutex::default(),
        })
    }

    /// How many objects were made on this device so far.
    pub fn made(&self) -> Made {
        let [buffers, bind_groups, pipelines] =
            [&self.made.buffers, &self.made.bind_groups, &self.made.pipelines].map(|n| n.load(Ordering::Relaxed));
        Made { buffers, bind_groups, pipelines }
    }

    /// An error once the device is lost.
    pub fn check(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |lost| Err(Error::Device(lost.clone())))
    }

    /// Does `work` and says what went wrong with it: a loss of the device, the driver's first error, or what `work`
    /// says.
    pub fn guard<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (done, error) = caught(&self.device, work);
        let error = error.map(|error| {
            // The driver's error may be the first sign of a loss, which is told at the next poll and is the better
            // reason.
            let _ = self.look();
            error_of(&name_of(&self.info), &error)
        });
        self.check()?;
        error.map_or(done, Err)
    }

    /// A buffer, or [`Error::OutOfMemory`] naming it.
    pub fn buffer(&self, what: &str, bytes: u64, usage: wgpu::BufferUsages) -> Result<Buffer> {
        self.buffer_of(Component::Other, what, bytes, usage)
    }

    /// A buffer that is counted to a component, or [`Error::OutOfMemory`] naming it.
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
        let (buffer, error) = caught(&self.device, || self.device.create_buffer(&descriptor));
        self.made.buffers.fetch_add(1, Ordering::Relaxed);
        if let Some(error) = error {
            return no_memory(error.to_string());
        }
        self.check()?;
        Ok(Buffer::new(buffer, &self.account, component))
    }

    /// How the device's memory stands.
    pub fn memory(&self) -> Memory {
        let used = self.account.bytes();
        let artificial = self.memory_limit.map(|limit| limit.saturating_sub(used.total()));
        let (total, free) = memory::of(&self.adapter).unzip();
        let available = [free, artificial].into_iter().flatten().min();
        Memory { used, total, available, of_host: of_host(&self.info) }
    }

    /// Waits until everything submitted so far is done.
    pub fn wait(&self) -> Result<()> {
        self.wait_for(None, &NEVER)
    }

    /// Waits until a submission is done, or all of them. A cancel ends the wait as well, after [`GRACE`]: what was
    /// submitted is then still under way, and whatever is submitted next comes after it.
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
    pub fn look(&self) -> Result<()> {
        self.poll(wgpu::PollType::Poll).map(drop)
    }

    /// Whether what is waited for is done.
    fn poll(&self, how: wgpu::PollType) -> Result<bool> {
        // wgpu panics when the driver fails here. It also does (30.0, an assertion in `Device::maintain`) where a wait
        // ran out of time while another thread saw its submission end. A look that does not wait tells the two apart.
        let poll = |how| catch_unwind(AssertUnwindSafe(|| self.device.poll(how)));
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

    /// The bytes of a buffer, after everything submitted so far. For loading, probes and tests; a step has its own way.
    pub fn read(&self, buffer: &wgpu::Buffer, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = self.buffer("staging for a read", bytes as u64, usage)?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, offset, &staging, 0, bytes as u64);
        self.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |_| {});
        self.wait()?;
        let mapped = staging.get_mapped_range(..bytes as u64);
        let mapped = mapped.map_err(|e| Error::Device(format!("Reading from {}: {e}", self.info.name)))?;
        Ok(mapped.to_vec())
    }
}

impl Drop for Gpu {
    /// wgpu drops a queue when all that it was given is done, and waits for that without end. One that hangs is left to
    /// the system instead.
    fn drop(&mut self) {
        if let Ok(false) = self.poll(wgpu::PollType::Wait { submission_index: None, timeout: Some(PATIENCE) }) {
            log::error!("{} gives no answer: it is left as it is", name_of(&self.info));
            std::mem::forget(self.queue.clone());
        }
    }
}

/// Does `work`, and returns the first error that the driver reported with its calls: errors are caught by the thread
/// that they come of. Of several kinds want of memory is the one that explains.
pub(super) fn caught<T>(device: &wgpu::Device, work: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
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
