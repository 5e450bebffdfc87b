//! Every shader that a test makes is also translated for the platforms that the test does not run on: SPIR-V, Metal's
//! language and HLSL. Without their compilers no more can be checked.
//!
//! Text and HLSL are written to the folder `ELIZA_DUMP_SHADERS`, where it is set: `tools/dxc.py` and `tools/gpu_lab.py`
//! compile the files of that folder.
#![allow(clippy::unwrap_used)]

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// Panics with the text when it is not valid or cannot be translated.
pub fn check(name: &str, text: &str) {
    let failed = |what: &str, why: String| -> ! { panic!("shader `{name}`, {what}: {why}\n{text}") };
    let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|e| failed("WGSL", e.emit_to_string(text)));
    let matrices = text.contains("enable wgpu_cooperative_matrix;");
    // `pack2x16float` and similar functions, which the weights and the cache use.
    let mut needs = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if matrices {
        needs |= Capabilities::COOPERATIVE_MATRIX | Capabilities::SHADER_FLOAT16 | Capabilities::SUBGROUP;
    }
    let info = Validator::new(ValidationFlags::all(), needs)
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .validate(&module)
        .unwrap_or_else(|e| failed("validation", e.emit_to_string(text)));
    let lang_version = if matrices { (1, 6) } else { (1, 3) };
    let options = spv::Options { lang_version, fake_missing_bindings: true, ..Default::default() };
    let words = spv::write_vec(&module, &info, &options, None).unwrap_or_else(|e| failed("SPIR-V", e.to_string()));
    assert!(words.len() > 5, "shader `{name}`");
    let options = msl::Options { lang_version: (2, 4), ..Default::default() };
    let (metal, _) = msl::write_string(&module, &info, &options, &Default::default())
        .unwrap_or_else(|e| failed("MSL", e.to_string()));
    assert!(metal.contains("kernel void"), "shader `{name}`");
    if matrices {
        // DX12 has none in wgpu.
        return dump(name, text, &[("wgsl", text), ("metal", metal.as_str())]);
    }
    // The options that wgpu uses for a trusted text.
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_0,
        zero_initialize_workgroup_memory: false,
        restrict_indexing: false,
        force_loop_bounding: false,
        ..Default::default()
    };
    let pipeline = hlsl::PipelineOptions::default();
    let mut text_out = String::new();
    hlsl::Writer::new(&mut text_out, &options, &pipeline)
        .write(&module, &info, None)
        .unwrap_or_else(|e| failed("HLSL", e.to_string()));
    assert!(text_out.contains("numthreads"), "shader `{name}`");
    dump(name, text, &[("wgsl", text), ("hlsl", text_out.as_str())]);
}

/// Writes a shader in some languages to the folder that is set.
fn dump(name: &str, text: &str, languages: &[(&str, &str)]) {
    let Some(folder) = std::env::var_os("ELIZA_DUMP_SHADERS") else { return };
    let mut hash = DefaultHasher::new();
    text.hash(&mut hash);
    let stem = format!("{name}-{:016x}", hash.finish());
    std::fs::create_dir_all(&folder).unwrap();
    for (ending, content) in languages {
        std::fs::write(Path::new(&folder).join(format!("{stem}.{ending}")), content).unwrap();
    }
}
