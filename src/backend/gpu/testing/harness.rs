//! Helpers for the tests of this room: a device, and one call that runs a kernel.
#![allow(clippy::unwrap_used)]

use crate::backend::gpu::device::STORAGE;
use crate::backend::gpu::device::adapters;
use crate::backend::gpu::device::test_limits::TestLimits;
use crate::backend::gpu::kernel::Gpu;
use crate::backend::gpu::kernel::{Binding, Kernel};
use parking_lot::Mutex;
use std::sync::Arc;

/// The devices that every kernel is tested on: one with the adapter's limits, and one with the smallest supported.
/// Without an adapter the tests print that and pass, unless `ELIZA_REQUIRE_GPU` is set. Tests that run at the same time
/// have devices of their own: a software driver compiles the kernels of one device one after the other.
pub fn devices() -> &'static [Arc<Gpu>] {
    static IDLE: Mutex<Vec<&'static [Arc<Gpu>]>> = Mutex::new(Vec::new());
    struct Lent(&'static [Arc<Gpu>]);
    impl Drop for Lent {
        fn drop(&mut self) {
            IDLE.lock().push(self.0);
        }
    }
    thread_local!(static LENT: Lent = Lent(IDLE.lock().pop().unwrap_or_else(|| open().leak())));
    LENT.with(|lent| lent.0)
}

fn open() -> Vec<Arc<Gpu>> {
    let all = adapters();
    let Some(best) = all.first().filter(|c| c.score > 0) else {
        let reasons: Vec<_> = all.iter().map(|c| &c.reason).collect();
        let required = std::env::var_os("ELIZA_REQUIRE_GPU").is_some_and(|v| !v.is_empty());
        assert!(!required, "no usable GPU adapter: {reasons:?}");
        eprintln!("skipped: no usable GPU adapter {reasons:?}");
        return Vec::new();
    };
    let open = |text| Gpu::new(best, &TestLimits::parse(text).unwrap()).unwrap();
    let mut small = open("binding=16M,threads=128,registers=few,checked=on");
    if let Some(matrices) = &mut small.caps.matrices {
        // Where subgroups are smaller than a fourth of that, more than four have to share the work of four.
        matrices.threads = 128;
    }
    [open(""), small].map(Arc::new).into()
}

/// A storage buffer with this content.
pub fn storage(gpu: &Gpu, bytes: &[u8]) -> wgpu::Buffer {
    let buffer = gpu.buffer("test", bytes.len() as u64, STORAGE).unwrap();
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(4), 0);
    gpu.queue.write_buffer(&buffer, 0, &padded);
    buffer.clone()
}

/// A uniform buffer with this content.
pub fn uniform(gpu: &Gpu, words: &[u32]) -> wgpu::Buffer {
    let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
    let buffer = gpu.buffer("test", words.len() as u64 * 4, usage).unwrap();
    gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
    buffer.clone()
}

/// Makes the kernel of a text.
pub fn kernel(gpu: &Gpu, text: &str, bindings: &[Binding]) -> Arc<Kernel> {
    let kernel = gpu.kernel("test", text, bindings).and_then(|kernel| gpu.compiled([&kernel]).map(|()| kernel));
    kernel.unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Dispatches a kernel over whole buffers and waits.
pub fn run(gpu: &Gpu, kernel: &Kernel, buffers: &[&wgpu::Buffer], workgroups: [u32; 3]) {
    let bindings: Vec<_> = buffers.iter().map(|b| b.as_entire_buffer_binding()).collect();
    let group = gpu.bind(kernel, &bindings);
    let mut encoder = gpu.raw.create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&kernel.pipeline);
    pass.set_bind_group(0, &group, &[]);
    let [x, y, z] = workgroups;
    pass.dispatch_workgroups(x, y, z);
    drop(pass);
    gpu.queue.submit([encoder.finish()]);
    gpu.wait().unwrap();
}

/// A buffer's content as numbers.
pub fn floats(gpu: &Gpu, buffer: &wgpu::Buffer, count: usize) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(&gpu.read(buffer, 0, count * 4).unwrap())
}

#[test]
fn a_loop_of_200_000_turns_ends_when_it_should() {
    for gpu in devices() {
        let text = "@group(0) @binding(0) var<storage, read_write> out: array<u32>;
            @compute @workgroup_size(1) fn main() {
                var n = 0u; for (var i = 0u; i < 200000u; i++) { n += i & 1u; } out[0] = n;
            }";
        let out = storage(gpu, &[0; 4]);
        run(gpu, &kernel(gpu, text, &[Binding::Write]), &[&out], [1, 1, 1]);
        assert_eq!(gpu.read(&out, 0, 4).unwrap(), 100_000u32.to_le_bytes());
    }
}
