//! Drivers with known faults, as data.
//!
//! The probes at load find other faults; the table is for faults that a short probe cannot find.

struct Row {
    /// The driver's name as it reports it, or a part of it; lower case.
    driver: &'static str,
    /// A part of what the driver says about its version; lower case.
    version: &'static str,
    /// Why it must not be used.
    why: &'static str,
}

const ROWS: &[Row] = &[
    // All loops of an invocation together end after 65,535 iterations, silently.
    Row {
        driver: "llvmpipe",
        version: "mesa 22.",
        why: "Mesa 22's software driver ends long loops early; Mesa 25 is right",
    },
];

/// Why this adapter must not be used, where the table lists its driver.
pub fn refused(info: &wgpu::AdapterInfo) -> Option<&'static str> {
    let (driver, version) = (info.driver.to_lowercase(), info.driver_info.to_lowercase());
    ROWS.iter().find(|row| driver.contains(row.driver) && version.contains(row.version)).map(|row| row.why)
}
