//! Buffers counted on the account of their device, and the memory of an adapter.
//!
//! wgpu does not report free memory. On Vulkan the driver does: the budget of the heaps that are the device's own where
//! it has `VK_EXT_memory_budget`, else their size. With Metal and DX12 it is unknown.

use crate::backend::memory::{Account, Component, Held};
use std::ops::Deref;
use std::sync::Arc;

/// A buffer, on its device's account until it is dropped.
pub struct Buffer {
    buffer: wgpu::Buffer,
    _held: Held,
}

impl Buffer {
    pub(super) fn new(buffer: wgpu::Buffer, account: &Arc<Account>, component: Component) -> Buffer {
        let _held = account.hold(component, buffer.size());
        Buffer { buffer, _held }
    }
}

impl Deref for Buffer {
    type Target = wgpu::Buffer;

    fn deref(&self) -> &wgpu::Buffer {
        &self.buffer
    }
}

/// The bytes that a buffer of `bytes` bytes takes.
pub fn buffer_bytes(bytes: u64) -> u64 {
    bytes.max(16).next_multiple_of(16)
}

/// Bytes of an adapter's memory, and bytes that this process can still allocate there; `None` where unknown.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
pub fn of(adapter: &wgpu::Adapter) -> Option<(u64, u64)> {
    use ash::khr::get_physical_device_properties2 as properties;
    use ash::{ext, vk};
    let say = |adapter: &wgpu::hal::vulkan::Adapter, ask: &properties::Instance| {
        let has_budget = adapter.physical_device_capabilities().supports_extension(ext::memory_budget::NAME);
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
        if has_budget {
            properties = properties.push_next(&mut budget);
        }
        // SAFETY: the physical device belongs to this instance, which has the extension that the call is of, and both
        // structures live until it returns.
        unsafe { ask.get_physical_device_memory_properties2(adapter.raw_physical_device(), &mut properties) };
        let memory = properties.memory_properties;
        let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize).enumerate();
        let own = heaps.filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        let free = |(i, heap): (usize, &vk::MemoryHeap)| match has_budget {
            true => budget.heap_budget[i].saturating_sub(budget.heap_usage[i]),
            false => heap.size,
        };
        // Several heaps may be parts of one memory, so only the largest is counted.
        own.map(|(i, heap)| (heap.size, free((i, heap)))).max_by_key(|(_, free)| *free)
    };
    super::caps::asked(adapter, say)?
}

/// Bytes of an adapter's memory, and bytes that this process can still allocate there; `None` where unknown.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows)))]
pub fn of(_: &wgpu::Adapter) -> Option<(u64, u64)> {
    None
}
