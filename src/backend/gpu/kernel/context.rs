//! A device with its kernels, and the known-answer tests that are still to be run.
//!
//! All engines of a process share one device per adapter, which lives as long as one of them uses it. A lost device
//! stays lost, and a later open makes a new one.

use super::compile::Compiler;
use super::matrices;
use super::pipeline_cache::PipelineCache;
use super::{Binding, Kernel, Pipeline};
use crate::backend::gpu::device::test_limits::TestLimits;
use crate::backend::gpu::device::{Adapter, Device, Which, adapters, choose, name_of};
use crate::gguf::shown;
use crate::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};

/// A device with its kernels.
pub struct Gpu {
    device: Device,
    kernels: Mutex<HashMap<Key, Arc<Kernel>>>,
    compiler: Compiler,
    /// Known-answer tests that are still to be run. One that fails stays in the list.
    trials: Mutex<Vec<Box<dyn Trial>>>,
}

/// A known-answer test: a small computation whose result the host knows. Some drivers compute wrong results without an
/// error.
pub trait Trial: Send {
    /// The kernels that it tests.
    fn kernels(&self) -> Vec<Arc<Kernel>>;

    /// Runs the kernels and compares their results.
    ///
    /// # Errors
    /// [`Error::Device`] where a result is wrong or the device fails, [`Error::OutOfMemory`] for its buffers.
    fn run(&self, gpu: &Arc<Gpu>) -> Result<()>;
}

/// A kernel's text and bindings.
type Key = (String, Vec<Binding>);

/// An open device and its adapter.
type Opened = (Which, Weak<Gpu>);

impl Deref for Gpu {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

/// A test may set other limits.
#[cfg(test)]
impl std::ops::DerefMut for Gpu {
    fn deref_mut(&mut self) -> &mut Device {
        &mut self.device
    }
}

impl Gpu {
    /// For each of `wanted` the device of the best adapter not yet taken whose name contains it, shared with all who
    /// hold it. One wanted more than once is of the same graphics interface each time.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the reason of each adapter where none can be used, [`Error::InvalidArgument`] where
    /// `ELIZA_GPU_RESTRICT` cannot be read, else as [`Gpu::new`].
    pub fn open(wanted: &[Option<&str>]) -> Result<Vec<Arc<Gpu>>> {
        static OPEN: LazyLock<Mutex<Vec<Opened>>> = LazyLock::new(Mutex::default);
        let (limits, all) = (TestLimits::from_env()?, adapters());
        let names = || all.iter().map(|a| format!("{}: {}", name_of(&a.info), a.reason)).collect::<Vec<_>>().join("; ");
        let chosen = choose(&all, limits.twins, wanted).map_err(|i| {
            let found = if all.is_empty() { "no Vulkan, Metal or DX12 adapter was found".to_string() } else { names() };
            let which = wanted[i].map_or("a GPU".to_string(), |n| format!("GPU `{}`", shown(n)));
            let place = if wanted.len() > 1 { format!(", {} of {}", i + 1, wanted.len()) } else { String::new() };
            Error::Unsupported(format!("No device for {which}{place}: {found}"))
        })?;
        let mut open = OPEN.lock();
        open.retain(|(_, gpu)| gpu.strong_count() > 0);
        let mut device = |(key, adapter): (Which, &Adapter)| {
            let held = open.iter().find(|(which, _)| *which == key).and_then(|(_, gpu)| gpu.upgrade());
            if let Some(gpu) = held.filter(|gpu| gpu.look().is_ok()) {
                return Ok(gpu);
            }
            let gpu = Arc::new(Gpu::new(adapter, &limits)?);
            open.retain(|(which, _)| *which != key);
            open.push((key, Arc::downgrade(&gpu)));
            Ok(gpu)
        };
        chosen.into_iter().map(&mut device).collect()
    }

    /// The device of the best adapter, as [`Gpu::open`].
    ///
    /// # Errors
    /// Those of [`Gpu::open`].
    pub fn best() -> Result<Arc<Gpu>> {
        Gpu::open(&[None])?.pop().ok_or_else(|| Error::Internal("No device for a GPU".into()))
    }

    /// A new device on this adapter, shared with nobody.
    ///
    /// # Errors
    /// [`Error::Device`] with the driver's reason.
    pub fn new(adapter: &Adapter, limits: &TestLimits) -> Result<Gpu> {
        let mut device = Device::new(adapter, limits)?;
        // Those of the limits are for texts alone.
        if let Some(has) = device.caps.matrices.filter(|_| limits.matrices.is_none())
            && let Err(why) = matrices::multiply(&device, has)
        {
            log::warn!("{}: its matrix instructions are not used: {why}", name_of(&device.info));
            device.caps.matrices = None;
        }
        let keeps = device.raw.features().contains(wgpu::Features::PIPELINE_CACHE);
        let cache = if keeps { PipelineCache::open(&device.raw, &device.info) } else { None };
        let compiler = Compiler::new(&device.raw, &name_of(&device.info), device.checked, cache);
        Ok(Gpu { device, kernels: Mutex::default(), compiler, trials: Mutex::default() })
    }

    /// The kernel of a finished text, made now or earlier. It is compiled in the background; call [`Gpu::compiled`]
    /// before dispatching it.
    ///
    /// # Errors
    /// [`Error::Device`] where the device fails.
    pub fn kernel(&self, name: &'static str, text: &str, bindings: &[Binding]) -> Result<Arc<Kernel>> {
        let key = (text.to_string(), bindings.to_vec());
        let mut kernels = self.kernels.lock();
        if let Some(kernel) = kernels.get(&key) {
            return Ok(kernel.clone());
        }
        #[cfg(test)]
        super::translation::check(name, text);
        let kernel = self.compile(name, text.to_string(), bindings)?;
        self.made.pipelines.fetch_add(1, Ordering::Relaxed);
        kernels.insert(key, kernel.clone());
        Ok(kernel)
    }

    /// Waits until everything is compiled.
    ///
    /// # Errors
    /// [`Error::Device`] with the compiler's reason, or where the device was lost.
    pub fn compiled<'a>(&self, kernels: impl IntoIterator<Item = &'a Arc<Kernel>>) -> Result<()> {
        self.compiler.wait();
        match kernels.into_iter().find_map(|kernel| kernel.pipeline.problem.get()) {
            Some(problem) => Err(Error::Device(problem.clone())),
            None => self.check(),
        }
    }

    /// A kernel with this name, whose pipeline is queued to be compiled.
    fn compile(&self, name: &'static str, text: String, bindings: &[Binding]) -> Result<Arc<Kernel>> {
        let entries: Vec<_> = bindings.iter().enumerate().map(|(i, binding)| binding.entry(i as u32)).collect();
        let descriptor = wgpu::BindGroupLayoutDescriptor { label: Some(name), entries: &entries };
        let layout = self.guard(|| Ok(self.raw.create_bind_group_layout(&descriptor)))?;
        let flags = text.lines().next().and_then(|line| line.strip_prefix("//")).unwrap_or_default();
        let what = [name, flags].concat().trim_end().to_string();
        let (pipeline, tried) = (Pipeline::default(), AtomicBool::new(false));
        let kernel = Arc::new(Kernel { name, what, pipeline, layout, tried });
        self.compiler.start(&kernel, text);
        Ok(kernel)
    }

    /// Names and finished texts of all kernels made so far, for tests.
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        self.kernels.lock().iter().map(|((text, _), kernel)| (kernel.name, text.clone())).collect()
    }

    /// The buffers of one dispatch of a kernel, in the order of its bindings.
    pub fn bind(&self, kernel: &Kernel, buffers: &[wgpu::BufferBinding<'_>]) -> wgpu::BindGroup {
        let entries: Vec<_> = buffers
            .iter()
            .enumerate()
            .map(|(i, buffer)| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: wgpu::BindingResource::Buffer(buffer.clone()),
            })
            .collect();
        self.made.bind_groups.fetch_add(1, Ordering::Relaxed);
        self.raw.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.name),
            layout: &kernel.layout,
            entries: &entries,
        })
    }

    /// Adds a known-answer test for these kernels to those of the next [`Gpu::run_trials`], unless all of them were
    /// tested or are in the list.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn add_trial<'a, T: Trial + 'static>(
        &self,
        kernels: impl IntoIterator<Item = &'a Arc<Kernel>>,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<()> {
        let mut trials = self.trials.lock();
        let waits = |kernel| trials.iter().flat_map(|trial| trial.kernels()).any(|other| Arc::ptr_eq(&other, kernel));
        if !kernels.into_iter().all(|kernel| kernel.is_tried() || waits(kernel)) {
            trials.push(Box::new(make()?));
        }
        Ok(())
    }

    /// Runs the known-answer tests that are still to be run. Other users of the same kernels wait for them.
    ///
    /// # Errors
    /// [`Error::Device`] naming a kernel with a wrong result, or where the device fails; [`Error::OutOfMemory`] for the
    /// buffers of the tests.
    pub fn run_trials(self: &Arc<Self>) -> Result<()> {
        let mut trials = self.trials.lock();
        if trials.is_empty() {
            return Ok(());
        }
        let kernels: Vec<_> = trials.iter().map(|trial| trial.kernels()).collect();
        self.compiled(kernels.iter().flatten())?;
        for (trial, kernels) in trials.iter().zip(&kernels) {
            if !kernels.iter().all(|kernel| kernel.is_tried()) {
                trial.run(self)?;
                kernels.iter().for_each(|kernel| kernel.tried.store(true, Ordering::Release));
            }
        }
        trials.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::backend::gpu::testing::harness::devices;

    #[test]
    fn a_kernel_that_cannot_be_is_named_and_others_are_not_concerned() {
        let text = |threads: u32| {
            let out = "@group(0) @binding(0) var<storage, read_write> out: array<u32>;";
            format!("{out} @compute @workgroup_size({threads}) fn main() {{ out[0] = 7u; }}")
        };
        for gpu in devices() {
            let broken = gpu.kernel("broken", &text(1 << 14), &[Binding::Write]).unwrap();
            let whole = gpu.kernel("whole", &text(1), &[Binding::Write]).unwrap();
            for _ in 0..2 {
                let problem = gpu.compiled([&whole, &broken]).unwrap_err().to_string();
                for part in ["`broken`", &gpu.info.name, "16384"] {
                    assert!(problem.contains(part), "{problem}");
                }
                gpu.compiled([&whole]).unwrap();
            }
        }
    }
}
