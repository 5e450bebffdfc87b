//! The GPU adapters of this machine, each with a score and a sentence that explains it. Software drivers score below
//! the CPU, whose kernels are faster.

use super::{memory, quirks};
use crate::backend::memory::Memory;
use std::sync::LazyLock;

/// An adapter with its score.
pub struct Adapter {
    pub(super) adapter: wgpu::Adapter,
    /// The adapter as the driver describes it.
    pub info: wgpu::AdapterInfo,
    /// Higher is preferred; 0 cannot be used.
    pub score: u32,
    /// Why it has this score.
    pub reason: String,
    /// What compiles shaders before the driver does, where that is chosen.
    pub shader_compiler: Option<&'static str>,
}

impl Adapter {
    /// Its memory in bytes; what this process has allocated is not known here.
    pub fn memory(&self) -> Memory {
        let (total, available) = memory::of(&self.adapter).unzip();
        Memory { total, available, of_host: of_host(&self.info), ..Memory::default() }
    }
}

/// Whether an adapter shares the host's memory.
pub(super) fn of_host(info: &wgpu::AdapterInfo) -> bool {
    matches!(info.device_type, wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::Cpu)
}

/// The name by which an adapter is listed and chosen.
pub fn name_of(info: &wgpu::AdapterInfo) -> String {
    format!("{} ({})", info.name, info.backend)
}

/// One wgpu instance per graphics interface, each with its shader compiler. DX12 uses DXC where its library can be
/// loaded and finds an adapter, else FXC, which is a part of Windows.
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
            all.push(match all_of(&dxc).is_empty() {
                false => (dxc, Some("DXC")),
                true => (make(wgpu::Backends::DX12, wgpu::Dx12Compiler::Fxc), Some("FXC")),
            });
        }
        all
    });
    &INSTANCES
}

fn all_of(instance: &wgpu::Instance) -> Vec<wgpu::Adapter> {
    pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()))
}

/// Every adapter of this machine, best first.
pub fn adapters() -> Vec<Adapter> {
    let found = instances().iter().flat_map(|(instance, by)| all_of(instance).into_iter().map(|one| (one, *by)));
    let mut all: Vec<Adapter> = found
        .map(|(adapter, shader_compiler)| {
            let info = adapter.get_info();
            let (score, reason) = score(&info, &adapter.limits(), shader_compiler);
            Adapter { adapter, info, score, reason, shader_compiler }
        })
        .collect();
    all.sort_by(|a, b| b.score.cmp(&a.score).then_with(|| a.info.name.cmp(&b.info.name)));
    all
}

/// The name of an adapter, and how many of the same name are before it.
pub type Which = (String, usize);

/// Those of `all` that can be used.
fn usable(all: &[Adapter], twins: bool) -> Vec<(Which, &Adapter)> {
    let mut found: Vec<(Which, &Adapter)> = Vec::new();
    let each = all.iter().filter(|adapter| adapter.score > 0);
    for adapter in each.flat_map(|adapter| std::iter::repeat_n(adapter, if twins { 2 } else { 1 })) {
        let name = name_of(&adapter.info);
        let before = found.iter().filter(|((other, _), _)| *other == name).count();
        found.push(((name, before), adapter));
    }
    found
}

/// For each of `wanted` the best adapter of `all` that is not taken yet and whose name contains it; with `twins` each
/// counts as two. An adapter that is named as an earlier one, or neither, has that one's graphics interface, since
/// another interface may offer the same hardware; and beside hardware it is no software driver.
///
/// # Errors
/// The place in `wanted` of the first for which there is none.
pub fn choose<'a>(
    all: &'a [Adapter],
    twins: bool,
    wanted: &[Option<&str>],
) -> Result<Vec<(Which, &'a Adapter)>, usize> {
    let (mut left, mut chosen) = (usable(all, twins), Vec::<(Which, &Adapter)>::new());
    for (i, &name) in wanted.iter().enumerate() {
        let part = name.map(str::to_lowercase).unwrap_or_default();
        let first = wanted[..i].iter().position(|&other| other == name).map(|at| chosen[at].1);
        let is_soft = |adapter: &Adapter| adapter.info.device_type == wgpu::DeviceType::Cpu;
        let beside = |adapter: &Adapter, first: &Adapter| {
            adapter.info.backend == first.info.backend && is_soft(adapter) == is_soft(first)
        };
        let fits = |((name, _), adapter): &(Which, &Adapter)| {
            name.to_lowercase().contains(&part) && first.is_none_or(|first| beside(adapter, first))
        };
        chosen.push(left.remove(left.iter().position(fits).ok_or(i)?));
    }
    Ok(chosen)
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

/// The limit that is too small for the kernels, as text; `None` where all suffice.
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
