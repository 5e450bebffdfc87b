//! The texts of all shaders: `ops/` those of a graph's operations, `sample/` those of the sampler.

/// Every text, by its path without the ending. Those that others include are found here.
pub const TEXTS: &[(&str, &str)] = &[
    ("blocks", include_str!("blocks.wgsl")),
    ("matrices", include_str!("matrices.wgsl")),
    ("ops/activate", include_str!("ops/activate.wgsl")),
    ("ops/attention", include_str!("ops/attention.wgsl")),
    ("ops/attention_halves", include_str!("ops/attention_halves.wgsl")),
    ("ops/attention_reduce", include_str!("ops/attention_reduce.wgsl")),
    ("ops/attention_tile", include_str!("ops/attention_tile.wgsl")),
    ("ops/columns", include_str!("ops/columns.wgsl")),
    ("ops/conv", include_str!("ops/conv.wgsl")),
    ("ops/copy", include_str!("ops/copy.wgsl")),
    ("ops/embed", include_str!("ops/embed.wgsl")),
    ("ops/epilogue", include_str!("ops/epilogue.wgsl")),
    ("ops/equalize", include_str!("ops/equalize.wgsl")),
    ("ops/experts", include_str!("ops/experts.wgsl")),
    ("ops/fetch", include_str!("ops/fetch.wgsl")),
    ("ops/gate", include_str!("ops/gate.wgsl")),
    ("ops/halve", include_str!("ops/halve.wgsl")),
    ("ops/halves", include_str!("ops/halves.wgsl")),
    ("ops/head", include_str!("ops/head.wgsl")),
    ("ops/head_norm", include_str!("ops/head_norm.wgsl")),
    ("ops/int8", include_str!("ops/int8.wgsl")),
    ("ops/kv", include_str!("ops/kv.wgsl")),
    ("ops/kv_shift", include_str!("ops/kv_shift.wgsl")),
    ("ops/lanes", include_str!("ops/lanes.wgsl")),
    ("ops/map", include_str!("ops/map.wgsl")),
    ("ops/matmul", include_str!("ops/matmul.wgsl")),
    ("ops/matmul_halves", include_str!("ops/matmul_halves.wgsl")),
    ("ops/matmul_int8", include_str!("ops/matmul_int8.wgsl")),
    ("ops/matvec", include_str!("ops/matvec.wgsl")),
    ("ops/mix", include_str!("ops/mix.wgsl")),
    ("ops/narrow", include_str!("ops/narrow.wgsl")),
    ("ops/near_half", include_str!("ops/near_half.wgsl")),
    ("ops/norm", include_str!("ops/norm.wgsl")),
    ("ops/prepare", include_str!("ops/prepare.wgsl")),
    ("ops/qkv", include_str!("ops/qkv.wgsl")),
    ("ops/quantize", include_str!("ops/quantize.wgsl")),
    ("ops/recur", include_str!("ops/recur.wgsl")),
    ("ops/rope_angle", include_str!("ops/rope_angle.wgsl")),
    ("ops/route", include_str!("ops/route.wgsl")),
    ("ops/select", include_str!("ops/select.wgsl")),
    ("ops/sparsify", include_str!("ops/sparsify.wgsl")),
    ("ops/tanh", include_str!("ops/tanh.wgsl")),
    ("ops/weights", include_str!("ops/weights.wgsl")),
    ("ops/workgroup_sum", include_str!("ops/workgroup_sum.wgsl")),
    ("sample/adjust", include_str!("sample/adjust.wgsl")),
    ("sample/best", include_str!("sample/best.wgsl")),
    ("sample/bins", include_str!("sample/bins.wgsl")),
    ("sample/collect", include_str!("sample/collect.wgsl")),
    ("sample/common", include_str!("sample/common.wgsl")),
    ("sample/draw", include_str!("sample/draw.wgsl")),
    ("sample/dry", include_str!("sample/dry.wgsl")),
    ("sample/exact", include_str!("sample/exact.wgsl")),
    ("sample/finish", include_str!("sample/finish.wgsl")),
    ("sample/group_best", include_str!("sample/group_best.wgsl")),
    ("sample/masses", include_str!("sample/masses.wgsl")),
    ("sample/numbers", include_str!("sample/numbers.wgsl")),
    ("sample/scatter", include_str!("sample/scatter.wgsl")),
    ("sample/statistics", include_str!("sample/statistics.wgsl")),
    ("sample/stats", include_str!("sample/stats.wgsl")),
    ("sample/sums", include_str!("sample/sums.wgsl")),
    ("sample/units", include_str!("sample/units.wgsl")),
    ("trie_walk", include_str!("trie_walk.wgsl")),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::Path;

    #[test]
    fn every_text_is_listed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backend/gpu/shaders");
        let (mut folders, mut files) = (vec![root.clone()], Vec::new());
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
                match name.strip_suffix(".wgsl") {
                    Some(name) => files.push(name.to_string()),
                    None if path.is_dir() => folders.push(path),
                    None => {}
                }
            }
        }
        files.sort();
        assert_eq!(files, TEXTS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
}
