//! Compiles pipelines in the background, on as many threads as the machine has cores.
//!
//! Lowering starts one kernel after the other without waiting. Before kernels are used,
//! [`Gpu::compiled`](super::Gpu::compiled) waits for them and returns their error. A kernel that failed stays failed;
//! others are not affected. Compiled pipelines are kept on disk where the driver gives them out, see
//! `pipeline_cache.rs`.

use super::Kernel;
use super::pipeline_cache::PipelineCache;
use crate::backend::gpu::device::caught;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// More threads than this are not faster: drivers hold locks while they compile.
const MAX_THREADS: usize = 8;

/// The compiling threads of a device. They end when no job is left.
pub struct Compiler {
    shared: Arc<Shared>,
    threads: usize,
}

struct Shared {
    device: wgpu::Device,
    name: String,
    checked: bool,
    disk: Option<PipelineCache>,
    queue: Mutex<Queue>,
    done: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Jobs in progress.
    running: usize,
    /// Pipelines that are not in the file on disk.
    unsaved: usize,
}

struct Job {
    kernel: Arc<Kernel>,
    text: String,
}

impl Compiler {
    /// For this device, called `name` in messages.
    pub fn new(device: &wgpu::Device, name: &str, checked: bool, disk: Option<PipelineCache>) -> Compiler {
        let (device, name) = (device.clone(), name.to_string());
        let (queue, done) = Default::default();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        Compiler { shared: Arc::new(Shared { device, name, checked, disk, queue, done }), threads }
    }

    /// Queue a kernel's pipeline to be compiled.
    pub fn start(&self, kernel: &Arc<Kernel>, text: String) {
        let mut queue = self.shared.queue.lock();
        queue.jobs.push_back(Job { kernel: kernel.clone(), text });
        if queue.threads == self.threads {
            return;
        }
        queue.threads += 1;
        drop(queue);
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("eliza-shaders".into()).spawn(move || shared.work());
        if thread.is_err() {
            self.shared.work();
        }
    }

    /// Waits until all queued pipelines are compiled.
    pub fn wait(&self) {
        let mut queue = self.shared.queue.lock();
        while queue.running > 0 || !queue.jobs.is_empty() {
            self.shared.done.wait(&mut queue);
        }
        let unsaved = std::mem::take(&mut queue.unsaved);
        drop(queue);
        if let Some(disk) = self.shared.disk.as_ref().filter(|_| unsaved > 0) {
            disk.save();
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.queue.lock();
        while let Some(job) = queue.jobs.pop_front() {
            queue.running += 1;
            drop(queue);
            let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.compile(&job)));
            let error = match made {
                Ok(error) => error.map(|error| error.to_string()),
                Err(_) => Some("the compiler panicked".to_string()),
            };
            if let Some(error) = error {
                let problem = format!("Shader `{}` on {}: {error}", job.kernel.name, self.name);
                job.kernel.pipeline.problem.get_or_init(|| problem);
            }
            queue = self.queue.lock();
            queue.running -= 1;
            queue.unsaved += 1;
            self.done.notify_all();
        }
        queue.threads -= 1;
    }

    fn compile(&self, Job { kernel, text }: &Job) -> Option<wgpu::Error> {
        let (pipeline, error) = caught(&self.device, || self.pipeline(kernel, text));
        // A pipeline in error can also be waited for; each use of it is then an error.
        let _ = kernel.pipeline.made.set(pipeline);
        error
    }

    fn pipeline(&self, kernel: &Kernel, text: &str) -> wgpu::ComputePipeline {
        let (device, label) = (&self.device, Some(kernel.name));
        let source = wgpu::ShaderModuleDescriptor { label, source: wgpu::ShaderSource::Wgsl(text.into()) };
        let module = if self.checked {
            device.create_shader_module(source)
        } else {
            // SAFETY: the text is this library's own. Its kernels check the bounds of their reads and writes and their
            // loops end; the tests run the same texts with the checks on.
            unsafe { device.create_shader_module_trusted(source, wgpu::ShaderRuntimeChecks::unchecked()) }
        };
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label,
            bind_group_layouts: &[Some(&kernel.layout)],
            immediate_size: 0,
        });
        device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: self.disk.as_ref().map(|disk| &disk.pipelines),
        })
    }
}
