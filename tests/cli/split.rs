//! A model in several files, in every command that opens one.

use crate::program::{failure, json, stdout, text};
use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::split::{path, split};
use elizainference::gguf::File;

#[test]
fn a_model_in_several_files_does_what_it_does_in_one() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fixture(Kind::Qwen3, Weights::Q4_K);
    let parts = split(&File::open(&whole).unwrap(), folder.path(), 4);

    let inspected = |model| json(&["inspect", text(model), "--json"]);
    assert_eq!(inspected(&parts)["files"].as_array().unwrap().len(), 4);
    for fact in ["architecture", "parameters", "sizes", "vocabulary", "types"] {
        assert_eq!(inspected(&parts)[fact], inspected(&whole)[fact]);
    }
    assert!(stdout(&["inspect", text(&parts), "--tensors"]).contains(" of file 4"));

    let tokens = |model| {
        let run =
            ["generate", "-m", text(model), "--prompt", "Hello", "-n", "8", "--ignore-eos", "--temp", "0", "--json"];
        json(&run)["tokens"].clone()
    };
    assert_eq!(tokens(&parts), tokens(&whole));

    let converted = |model, name: &str| {
        let out = folder.path().join(name);
        stdout(&["quantize", text(model), text(&out), "--type", "q8_0"]);
        std::fs::read(out).unwrap()
    };
    assert!(converted(&parts, "parts.gguf") == converted(&whole, "whole.gguf"));
    let error = failure(1, &["quantize", text(&parts), text(&path(folder.path(), 3, 4)), "--type", "q8_0"]);
    assert!(error.contains("model-00003-of-00004.gguf would be overwritten"), "{error}");

    let error = failure(1, &["generate", "-m", text(&path(folder.path(), 2, 4)), "--prompt", "Hello"]);
    assert!(error.contains("open the first") && error.contains("model-00001-of-00004.gguf"), "{error}");
}
