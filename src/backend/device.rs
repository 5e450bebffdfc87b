//! A device's description, and counters of the work submitted to it.

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
    /// Rank among the devices: the highest is used first; 0 cannot be used.
    pub score: u32,
    /// Why it has this score.
    pub reason: String,
    /// The HLSL compiler, `DXC` or `FXC`; `None` except with DX12.
    pub shader_compiler: Option<&'static str>,
}

/// Counters of an engine's work on a device since it opened; all zero for the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Kernels dispatched.
    pub dispatches: u64,
    /// Command buffers submitted.
    pub submissions: u64,
    /// Times the host waited for the device.
    pub waits: u64,
    /// Bytes copied from the host to the device.
    pub bytes_uploaded: u64,
    /// Bytes copied from the device to the host.
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

    /// The difference of two readings; `other` is the earlier one.
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
