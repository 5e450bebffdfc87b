//! The texts of all shaders.

/// Texts that others include, by name.
pub const PARTS: &[(&str, &str)] = &[
    ("weights", include_str!("weights.wgsl")),
    ("epilogue", include_str!("epilogue.wgsl")),
    ("head", include_str!("head.wgsl")),
    ("kv", include_str!("kv.wgsl")),
    ("tanh", include_str!("tanh.wgsl")),
    ("total", include_str!("total.wgsl")),
    ("turn", include_str!("turn.wgsl")),
    ("sample_best", include_str!("sample_best.wgsl")),
    ("sample_common", include_str!("sample_common.wgsl")),
    ("sample_numbers", include_str!("sample_numbers.wgsl")),
    ("sample_scatter", include_str!("sample_scatter.wgsl")),
    ("sample_sums", include_str!("sample_sums.wgsl")),
];
