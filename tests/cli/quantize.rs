//! `quantize`.

use crate::program::{failure, json, stdout, text};
use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use elizainference::gguf::{File, Writer};
use elizainference::quant::{TensorType, dequantize, quantize};

fn weights(file: &File, name: &str) -> Vec<f32> {
    let info = file.tensor(name).unwrap();
    let mut out = vec![0.0; info.elements() as usize];
    dequantize(info.tensor_type().unwrap(), &file.read(info).unwrap(), &mut out).unwrap();
    out
}

#[test]
fn quantize_gives_each_tensor_its_type() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Llama has an output matrix of its own; qwen3 uses the embedding. Narrow rows cannot hold K blocks.
    for (kind, from, target, usual, output) in [
        (Kind::Llama, Weights::WideF32, "q4_k", TensorType::Q4_K, TensorType::Q6_K),
        (Kind::Qwen3, Weights::WideF32, "q4_0", TensorType::Q4_0, TensorType::Q6_K),
        (Kind::Qwen3, Weights::WideF32, "q8_0", TensorType::Q8_0, TensorType::Q8_0),
        (Kind::Llama, Weights::F32, "q4_k", TensorType::Q5_0, TensorType::Q8_0),
        (Kind::Llama, Weights::F32, "q6_k", TensorType::Q8_0, TensorType::Q8_0),
        (Kind::Llama, Weights::F32, "f16", TensorType::F16, TensorType::F16),
        (Kind::Llama, Weights::F32, "bf16", TensorType::BF16, TensorType::BF16),
    ] {
        let source = fixture(kind, from);
        let out = at(&format!("{kind:?}-{from:?}-{target}.gguf"));
        let said = stdout(&["quantize", text(&source), text(&out), "--type", target, "--threads", "2"]);
        assert!(said.starts_with(text(&out)), "{said}");
        let (source, made) = (File::open(&source).unwrap(), File::open(&out).unwrap());
        assert_eq!(source.metadata().count() + 2, made.metadata().count() + added_twice(&source));
        let output_name = if kind == Kind::Llama { "output.weight" } else { "token_embd.weight" };
        for (old, new) in source.tensors().iter().zip(made.tensors()) {
            assert_eq!((&old.name, old.shape), (&new.name, new.shape));
            let wanted = match old.name.as_str() {
                name if name == output_name => output,
                name if old.n_dims == 1 || name.contains("_norm") => TensorType::F32,
                _ => usual,
            };
            assert_eq!(new.tensor_type().unwrap(), wanted, "{kind:?} {target}: {}", old.name);
            // Row by row the library's own encoding.
            let mut expected = Vec::new();
            for row in weights(&source, &old.name).chunks(old.shape[0] as usize) {
                quantize(wanted, row, &mut expected).unwrap();
            }
            assert!(made.read(new).unwrap() == expected, "{kind:?} {target}: {}", old.name);
        }
        let continued = json(&["generate", "-m", text(&out), "--prompt", "Hello", "-n", "3", "--ignore-eos", "--json"]);
        assert_eq!(continued["tokens"].as_array().unwrap().len(), 3, "{continued}");
    }

    // What is quantised already can be converted again, and the output left alone.
    let (q8, back, kept) = (at("q8.gguf"), at("f32.gguf"), at("kept.gguf"));
    let source = fixture(Kind::Llama, Weights::Q8_0);
    std::fs::copy(&source, &q8).unwrap();
    stdout(&["quantize", text(&q8), text(&back), "--type", "f32"]);
    stdout(&["quantize", text(&q8), text(&kept), "--type", "q4_0", "--keep-output"]);
    let (source, back, kept) = (File::open(&source).unwrap(), File::open(&back).unwrap(), File::open(&kept).unwrap());
    for info in source.tensors() {
        assert_eq!(weights(&source, &info.name), weights(&back, &info.name), "{}", info.name);
    }
    assert_eq!(kept.tensor("output.weight").unwrap().tensor_type().unwrap(), TensorType::Q8_0);
    assert_eq!(kept.tensor("blk.0.attn_q.weight").unwrap().tensor_type().unwrap(), TensorType::Q4_0);
}

/// Which of the two keys that the conversion sets were there before.
fn added_twice(file: &File) -> usize {
    ["general.file_type", "general.quantization_version"].iter().filter(|k| file.value(k).is_some()).count()
}

#[test]
fn quantize_leaves_nothing_half_done() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("in.gguf"), folder.path().join("out.gguf"));
    let mut values = vec![1.0f32; 64 * 8];
    values[5 * 64 + 9] = f32::NAN;
    let mut w = Writer::new(3);
    let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    w.set("general.architecture", "llama").tensor("blk.0.attn_q.weight", &[64, 8], TensorType::F32, data);
    w.write_to(&source).unwrap();
    std::fs::write(&out, "what was there").unwrap();
    let error = failure(1, &["quantize", text(&source), text(&out), "--type", "q8_0"]);
    for part in ["`blk.0.attn_q.weight`", "row 5", "Weight 9", "NaN"] {
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    }
    assert_eq!(std::fs::read(&out).unwrap(), b"what was there");
    let error = failure(1, &["quantize", text(&source), text(&source), "--type", "q8_0"]);
    assert!(error.contains("overwritten"), "{error}");
    let error = failure(1, &["quantize", text(&source), "no/such/folder/out.gguf", "--type", "f16"]);
    assert!(error.contains("no/such/folder"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}
