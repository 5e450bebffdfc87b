//! Drivers that are known to go wrong, as data.
//!
//! A row names drivers and what must not be used with them. The canary and the probes at load catch what this table does
//! not know; the table is for what a short probe cannot see.

/// What must not be used with a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quirks {
    /// Why the adapter must not be used at all.
    pub refused: Option<&'static str>,
    /// Features to leave off.
    pub without: wgpu::Features,
}

struct Row {
    /// The driver's name as it reports it, or a part of it; lower case.
    driver: &'static str,
    /// A part of what the driver says about its version, or empty for every version; lower case.
    version: &'static str,
    /// PCI vendor; 0 for any.
    vendor: u32,
    quirks: Quirks,
}

const NONE: Quirks = Quirks { refused: None, without: wgpu::Features::empty() };

const ROWS: &[Row] = &[
    // All loops of an invocation together end after 65,535 iterations, silently.
    Row {
        driver: "llvmpipe",
        version: "mesa 22.",
        vendor: 0,
        quirks: Quirks { refused: Some("Mesa 22's software driver ends long loops early; Mesa 25 is right"), ..NONE },
    },
    // PowerVR's Vulkan driver computes wrong sums in subgroups and f16 (Tensor G5).
    Row {
        driver: "",
        version: "",
        vendor: 0x1010,
        quirks: Quirks { without: wgpu::Features::SUBGROUP.union(wgpu::Features::SHADER_F16), ..NONE },
    },
];

/// What must not be used with this adapter: the union of all rows that fit it.
pub fn of(info: &wgpu::AdapterInfo) -> Quirks {
    let (driver, version) = (info.driver.to_lowercase(), info.driver_info.to_lowercase());
    ROWS.iter()
        .filter(|row| driver.contains(row.driver) && version.contains(row.version))
        .filter(|row| row.vendor == 0 || row.vendor == info.vendor)
        .fold(NONE, |all, row| Quirks {
            refused: all.refused.or(row.quirks.refused),
            without: all.without | row.quirks.without,
        })
}
