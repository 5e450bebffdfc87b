//! Artificial limits, so that a test can lower any adapter's limits to the smallest that are supported.
//!
//! `ELIZA_GPU_RESTRICT` holds them as text:
//! `binding=16M,memory=512M,threads=128,registers=few,dots=off,matrices=off,checked=on`; `registers=medium` and
//! `dots=on` are others. `matrices=16` takes the kernels for matrix instructions whether the device has them or not, to
//! see their texts. `twins=on` makes two devices of each adapter.

use super::caps::{Matrices, Registers};
use crate::backend::memory::parse_bytes;
use crate::{Error, Result};

/// Those of most GPUs.
const MATRICES: Matrices = Matrices { block: 16, threads: 256, memory: 48 << 10 };

/// The artificial limits; `None` keeps the adapter's own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TestLimits {
    /// Bytes of the largest storage binding.
    pub binding: Option<u64>,
    /// Bytes of all buffers together.
    pub memory: Option<u64>,
    /// Threads of the largest workgroup.
    pub threads: Option<u32>,
    /// Take the kernels for threads with so many registers.
    pub registers: Option<Registers>,
    /// Whether products of many rows are computed by dot products of bytes; `None` where the hardware has them.
    pub int8_dots: Option<bool>,
    /// The matrix instructions by which many rows are computed; `None` for those that the device has.
    pub matrices: Option<Option<Matrices>>,
    /// Compile shaders with bounds checks.
    pub checked: bool,
    /// Each adapter counts as two, for what is done with several GPUs.
    pub twins: bool,
}

impl TestLimits {
    /// What `ELIZA_GPU_RESTRICT` says; nothing when it is not set.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming what is no limit.
    pub fn from_env() -> Result<TestLimits> {
        std::env::var("ELIZA_GPU_RESTRICT").map_or(Ok(TestLimits::default()), |text| TestLimits::parse(&text))
    }

    /// The limits in a text.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming what is no limit.
    pub fn parse(text: &str) -> Result<TestLimits> {
        let mut all = TestLimits::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let bad = || Error::InvalidArgument(format!("ELIZA_GPU_RESTRICT: `{part}` is not known"));
            let (name, value) = part.split_once('=').ok_or_else(bad)?;
            match (name, value) {
                ("binding", size) => all.binding = Some(parse_bytes(size).ok_or_else(bad)?),
                ("memory", size) => all.memory = Some(parse_bytes(size).ok_or_else(bad)?),
                ("threads", count) => all.threads = Some(count.parse().map_err(|_| bad())?),
                ("registers", "few") => all.registers = Some(Registers::Few),
                ("registers", "medium") => all.registers = Some(Registers::Medium),
                ("dots", "on") => all.int8_dots = Some(true),
                ("dots", "off") => all.int8_dots = Some(false),
                ("matrices", "off") => all.matrices = Some(None),
                ("matrices", "16") => all.matrices = Some(Some(MATRICES)),
                ("checked", "on") => all.checked = true,
                ("twins", "on") => all.twins = true,
                _ => return Err(bad()),
            }
        }
        Ok(all)
    }

    /// The adapter's limits, lowered.
    pub fn lower(&self, mut limits: wgpu::Limits) -> wgpu::Limits {
        if let Some(bytes) = self.binding {
            limits.max_storage_buffer_binding_size = limits.max_storage_buffer_binding_size.min(bytes);
        }
        if let Some(threads) = self.threads {
            limits.max_compute_invocations_per_workgroup = limits.max_compute_invocations_per_workgroup.min(threads);
            limits.max_compute_workgroup_size_x = limits.max_compute_workgroup_size_x.min(threads);
            limits.max_compute_workgroup_size_y = limits.max_compute_workgroup_size_y.min(threads);
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let all = TestLimits::parse("binding=16M,memory=3G, threads=128,registers=few,dots=off,checked=on").unwrap();
        assert_eq!((all.binding, all.memory), (Some(16 << 20), Some(3 << 30)));
        assert_eq!((all.threads, all.registers, all.checked), (Some(128), Some(Registers::Few), true));
        assert_eq!(TestLimits::parse("registers=medium").unwrap().registers, Some(Registers::Medium));
        assert_eq!((all.int8_dots, TestLimits::parse("dots=on").unwrap().int8_dots), (Some(false), Some(true)));
        assert!(TestLimits::parse("twins=on").unwrap().twins && !all.twins);
        let matrices = |text| TestLimits::parse(text).unwrap().matrices;
        assert_eq!((all.matrices, matrices("matrices=off")), (None, Some(None)));
        assert_eq!(matrices("matrices=16"), Some(Some(MATRICES)));
        assert_eq!(TestLimits::parse("").unwrap(), TestLimits::default());
        for bad in [
            "binding",
            "binding=x",
            "memory=much",
            "threads=-1",
            "registers=64",
            "dots=4",
            "matrices=4",
            "checked=maybe",
            "speed=off",
        ] {
            let error = TestLimits::parse(bad).unwrap_err().to_string();
            assert!(error.contains(bad), "{error}");
        }
    }
}
