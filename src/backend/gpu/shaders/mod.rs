//! The texts of all shaders.

/// Every text, by name. Those that others include are found here.
pub const TEXTS: &[(&str, &str)] = &[
    ("attend", include_str!("attend.wgsl")),
    ("combine", include_str!("combine.wgsl")),
    ("copy", include_str!("copy.wgsl")),
    ("embed", include_str!("embed.wgsl")),
    ("epilogue", include_str!("epilogue.wgsl")),
    ("fetch", include_str!("fetch.wgsl")),
    ("head", include_str!("head.wgsl")),
    ("heads", include_str!("heads.wgsl")),
    ("kv", include_str!("kv.wgsl")),
    ("matmul", include_str!("matmul.wgsl")),
    ("matvec", include_str!("matvec.wgsl")),
    ("norm", include_str!("norm.wgsl")),
    ("sample_adjust", include_str!("sample_adjust.wgsl")),
    ("sample_best", include_str!("sample_best.wgsl")),
    ("sample_bins", include_str!("sample_bins.wgsl")),
    ("sample_collect", include_str!("sample_collect.wgsl")),
    ("sample_common", include_str!("sample_common.wgsl")),
    ("sample_draw", include_str!("sample_draw.wgsl")),
    ("sample_exact", include_str!("sample_exact.wgsl")),
    ("sample_finish", include_str!("sample_finish.wgsl")),
    ("sample_group_best", include_str!("sample_group_best.wgsl")),
    ("sample_masses", include_str!("sample_masses.wgsl")),
    ("sample_numbers", include_str!("sample_numbers.wgsl")),
    ("sample_scatter", include_str!("sample_scatter.wgsl")),
    ("sample_stats", include_str!("sample_stats.wgsl")),
    ("sample_sums", include_str!("sample_sums.wgsl")),
    ("select", include_str!("select.wgsl")),
    ("shift", include_str!("shift.wgsl")),
    ("softcap", include_str!("softcap.wgsl")),
    ("tanh", include_str!("tanh.wgsl")),
    ("total", include_str!("total.wgsl")),
    ("turn", include_str!("turn.wgsl")),
    ("walk", include_str!("walk.wgsl")),
    ("weights", include_str!("weights.wgsl")),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_text_is_listed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/backend/gpu/shaders");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<_> = files.filter_map(|name| name.strip_suffix(".wgsl").map(String::from)).collect();
        files.sort();
        assert_eq!(files, TEXTS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
}
