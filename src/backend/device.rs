//! What a device says of itself, and what it was asked to do.

/// What kind of device a backend drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// A graphics processor.
    Gpu,
}

/// A device as `eliza-inference devices` lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceInfo {
    /// Name, e.g. `CPU (avx512)`.
    pub name: String,
    /// Kind of device.
    pub kind: DeviceKind,
    /// Higher is preferred.
    pub score: u32,
    /// Why it has this score.
    pub reason: String,
    /// What compiles shaders before the driver does, where that is chosen: `DXC` or `FXC`, with DX12.
    pub shader_compiler: Option<&'static str>,
}

/// What an engine asked of a device since it opened; all zero for the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Kernels started.
    pub dispatches: u64,
    /// Command buffers submitted.
    pub submissions: u64,
    /// Times the host waited for the device.
    pub waits: u64,
    /// Bytes written to the device.
    pub bytes_uploaded: u64,
    /// Bytes read from it.
    pub bytes_read: u64,
}

impl std::ops::Add for Traffic {
    type Output = Traffic;

    fn add(self, other: Traffic) -> Traffic {
        Traffic {
            dispatches: self.dispatches + other.dispatches,
            submissions: self.submissions + other.submissions,
            waits: self.waits + other.waits,
            bytes_uploaded: self.bytes_uploaded + other.bytes_uploaded,
            bytes_read: self.bytes_read + other.bytes_read,
        }
    }
}

impl std::ops::Sub for Traffic {
    type Output = Traffic;

    /// What was asked between two readings; `other` is the earlier one.
    fn sub(self, other: Traffic) -> Traffic {
        Traffic {
            dispatches: self.dispatches - other.dispatches,
            submissions: self.submissions - other.submissions,
            waits: self.waits - other.waits,
            bytes_uploaded: self.bytes_uploaded - other.bytes_uploaded,
            bytes_read: self.bytes_read - other.bytes_read,
        }
    }
}
