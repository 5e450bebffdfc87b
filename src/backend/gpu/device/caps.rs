//! What a device can do.

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
    /// Alignment of a storage binding's offset.
    pub storage_align: u32,
    /// How much kernels may keep at hand.
    pub registers: Registers,
    /// Products of many rows are computed by dot products of four signed bytes each: they are an instruction of the
    /// hardware, and threads have registers for their tiles.
    pub int8_dots: bool,
    /// Products and attention of many rows are computed by matrix instructions.
    pub matrices: Option<Matrices>,
}

/// The matrix instructions of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrices {
    /// They multiply blocks of so many by so many halves, and add them up as f32: 8 or 16.
    pub block: u32,
    /// Threads of four subgroups of the largest size that the device may choose; with Metal, of the one size that GPUs
    /// with such instructions have.
    pub threads: u32,
    /// Bytes of workgroup memory.
    pub memory: u32,
}

impl Matrices {
    /// The flags of kernels' texts.
    pub fn flags(self) -> &'static [&'static str] {
        if self.block == 8 { &["BLOCK_8"] } else { &[] }
    }
}

/// The features that matrix instructions need.
pub const MATRICES: wgpu::Features =
    wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX.union(wgpu::Features::SHADER_F16).union(wgpu::Features::SUBGROUP);
/// Bytes of workgroup memory that products by them need.
const MATRIX_MEMORY: u32 = 32 << 10;
/// Threads of a subgroup of Apple's GPUs. Metal tells it of a kernel that is made, and wgpu 64 before.
const METAL_SUBGROUP: u32 = 32;

/// The matrix instructions of an adapter that the kernels can use within these limits.
pub fn matrices(adapter: &wgpu::Adapter, limits: &wgpu::Limits) -> Option<Matrices> {
    use wgpu::CooperativeScalarType::{F16, F32};
    let info = adapter.get_info();
    let known = adapter.cooperative_matrix_properties();
    let has = |block: &u32| {
        let fits = |one: &wgpu::CooperativeMatrixProperties| {
            [one.m_size, one.n_size, one.k_size] == [*block; 3] && (one.ab_type, one.cr_type) == (F16, F32)
        };
        known.iter().any(fits)
    };
    let threads = 4 * if info.backend == wgpu::Backend::Metal { METAL_SUBGROUP } else { info.subgroup_max_size };
    let memory = limits.max_compute_workgroup_storage_size;
    let usable = adapter.features().contains(MATRICES)
        && has_matrices(adapter)
        && memory >= MATRIX_MEMORY
        && limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x) >= threads;
    [16, 8].into_iter().find(has).filter(|_| usable).map(|block| Matrices { block, threads, memory })
}

/// How many registers a thread has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Registers {
    /// 64: Arm's Mali.
    Few,
    /// Enough for all but the largest tiles: Qualcomm's Adreno.
    Medium,
    /// 128 to 256.
    Many,
}

/// Whether the hardware has an instruction for the dot product of four signed bytes each, which the driver tells with
/// Vulkan 1.3. With Metal and DX12 it is unknown, which counts as no.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
pub fn has_int8_dots(adapter: &wgpu::Adapter) -> bool {
    use ash::{khr, vk};
    let has = asked(adapter, |adapter, ask| {
        let capabilities = adapter.physical_device_capabilities();
        let told = capabilities.properties().api_version >= vk::API_VERSION_1_3
            || capabilities.supports_extension(khr::shader_integer_dot_product::NAME);
        let mut dots = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default();
        if told {
            properties = properties.push_next(&mut dots);
        }
        // SAFETY: the physical device belongs to this instance, which has the extension that the call is of, and both
        // structures live until it returns.
        unsafe { ask.get_physical_device_properties2(adapter.raw_physical_device(), &mut properties) };
        dots.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE
    });
    has == Some(true)
}

/// Whether a device can be opened with matrix instructions. A driver for Vulkan may list sizes of matrices that it does
/// not offer, by which wgpu goes.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
fn has_matrices(adapter: &wgpu::Adapter) -> bool {
    use ash::{khr, vk};
    let has = asked(adapter, |adapter, ask| {
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        let mut features = vk::PhysicalDeviceFeatures2::default();
        if adapter.physical_device_capabilities().supports_extension(khr::cooperative_matrix::NAME) {
            features = features.push_next(&mut matrices);
        }
        // SAFETY: the physical device belongs to this instance, which has the extension that the call is of, and both
        // structures live until it returns.
        unsafe { ask.get_physical_device_features2(adapter.raw_physical_device(), &mut features) };
        matrices.cooperative_matrix == vk::TRUE
    });
    has == Some(true)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows)))]
pub fn has_int8_dots(_: &wgpu::Adapter) -> bool {
    false
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows)))]
fn has_matrices(adapter: &wgpu::Adapter) -> bool {
    adapter.get_info().backend == wgpu::Backend::Metal
}

/// What an adapter says with what asks its driver; `None` without Vulkan, and where its instance cannot ask.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
pub(super) fn asked<T>(
    adapter: &wgpu::Adapter,
    say: impl FnOnce(&wgpu::hal::vulkan::Adapter, &ash::khr::get_physical_device_properties2::Instance) -> T,
) -> Option<T> {
    use ash::khr::get_physical_device_properties2 as properties;
    // SAFETY: the guard is dropped at the end of this function, and nothing of the adapter is destroyed.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = adapter.shared_instance();
    let can = instance.extensions().contains(&properties::NAME);
    can.then(|| say(&adapter, &properties::Instance::new(instance.entry(), instance.raw_instance())))
}
