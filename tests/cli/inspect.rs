//! `inspect`, `tokenize`, `detokenize` and `logits`: what the program says of a file without generating.

use crate::program::{PROGRAM, failure, json, stdout, text};
use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use elizainference::gguf::{File, Writer};
use elizainference::quant::TensorType;
use elizainference::vocab::Vocab;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn inspect_tells_what_the_file_holds() {
    let path = fixture(Kind::Qwen3, Weights::Q4_K);
    let file = File::open(&path).unwrap();
    let found = json(&["inspect", text(&path), "--json", "--keys", "--tensors"]);
    assert_eq!(found["architecture"], "qwen3");
    assert_eq!(found["bytes"], file.size());
    assert_eq!(found["sizes"]["layers"], 2);
    assert_eq!(found["vocabulary"]["tokens"], 512);
    assert_eq!(found["parameters"], file.tensors().iter().map(|t| t.elements()).sum::<u64>());
    assert_eq!(found["keys"].as_object().unwrap().len(), file.metadata().count());
    assert_eq!(found["keys"]["tokenizer.ggml.tokens"]["len"], 512);
    let bytes = |ty| file.tensors().iter().filter(|t| t.tensor_type() == Ok(ty)).map(|t| t.bytes).sum::<u64>();
    for ty in found["types"].as_array().unwrap() {
        let known = *TensorType::ALL.iter().find(|t| t.name() == ty["type"]).unwrap();
        assert_eq!(ty["bytes"], bytes(known), "{known}");
    }
    for (shown, info) in found["tensors"].as_array().unwrap().iter().zip(file.tensors()) {
        assert_eq!(shown["name"], info.name);
        assert_eq!(shown["offset"], info.offset);
    }
    let plain = stdout(&["inspect", text(&path), "--tensors"]);
    for part in ["qwen3", "512 tokens", "Q4_K", "token_embd.weight"] {
        assert!(plain.contains(part), "`{part}` is missing in:\n{plain}");
    }
}

/// A file of this fixture's tensors and keys, to be changed, written to `path`.
fn changed(path: &Path, change: impl Fn(&mut Writer)) {
    let source = File::open(fixture(Kind::Qwen3, Weights::F32)).unwrap();
    let mut writer = Writer::new(3);
    for (key, _) in source.metadata() {
        writer.copy_key(&source, key).unwrap();
    }
    for info in source.tensors() {
        let shape = &info.shape[..info.n_dims as usize];
        writer.tensor(info.name.clone(), shape, info.tensor_type().unwrap(), source.read(info).unwrap());
    }
    change(&mut writer);
    writer.write_to(path).unwrap();
}

#[test]
fn inspect_says_what_is_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.gguf");
    let line = |label: &str| {
        let shown = stdout(&["inspect", text(&path)]);
        shown.lines().find(|line| line.starts_with(label)).map(String::from)
    };
    changed(&path, |_| {});
    assert_eq!((line("Not known"), line("Left out")), (None, None));
    assert_eq!(json(&["inspect", text(&path), "--json"])["unknown"], serde_json::json!([]));
    let one = |w: &mut Writer, name: &str, ty: TensorType| {
        let bytes = vec![0; ty.block_bytes()];
        w.tensor(name, &[ty.block_len() as u64], ty, bytes);
    };
    changed(&path, |w| {
        w.set("general.architecture", "tomorrow").set("tokenizer.ggml.pre", "unheard-of");
        one(w, "blk.0.new", TensorType::Q8_K);
        one(w, "v.blk.0.new", TensorType::I8);
    });
    let said = line("Not known").unwrap();
    for part in [
        "architecture `tomorrow`",
        "tokenizer (Key `tokenizer.ggml.pre`: unknown pre-tokenizer `unheard-of`",
        "type Q8_K (1 tensors)",
        "issue",
    ] {
        assert!(said.contains(part), "`{part}` is missing in: {said}");
    }
    assert!(!said.contains("I8"), "{said}");
    assert_eq!(json(&["inspect", text(&path), "--json"])["unknown"].as_array().unwrap().len(), 3);
    changed(&path, |w| {
        w.set("qwen3.rope.scaling.type", "spiral");
    });
    assert!(line("Not known").unwrap().contains("spiral"));
    changed(&path, |w| one(w, "blk.0.new", TensorType::F32));
    assert!(line("Not known").unwrap().contains("Tensor `blk.0.new`"));
}

#[test]
fn towers_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tower.gguf");
    changed(&path, |w| {
        w.set("qwen3.vision.block_count", 24u32).set("qwen3.audio.block_count", 2u32);
        for name in ["v.patch_embd.weight", "a.blk.0.norm", "mm.0.weight"] {
            w.tensor(name, &[4], TensorType::F32, vec![0; 16]);
        }
    });
    let shown = stdout(&["inspect", text(&path)]);
    assert!(shown.contains("3 tensors of a vision or audio tower") && !shown.contains("Not known"), "{shown}");
    let tokens = |model: &Path| {
        let run =
            ["generate", "-m", text(model), "--prompt", "Hello", "-n", "4", "--ignore-eos", "--temp", "0", "--json"];
        json(&run)["tokens"].clone()
    };
    assert_eq!(tokens(&path), tokens(&fixture(Kind::Qwen3, Weights::F32)));
    // Any other tensor that nothing reads is an error still.
    changed(&path, |w| {
        w.tensor("vision.weight", &[4], TensorType::F32, vec![0; 16]);
    });
    let error = failure(1, &["generate", "-m", text(&path), "--prompt", "Hello"]);
    assert!(error.contains("`vision.weight` is not known"), "{error}");
}

#[test]
fn inspect_lists_unknown_types_and_escapes_what_a_terminal_would_obey() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.gguf");
    let mut w = Writer::new(3);
    w.set("general.architecture", "\x1b[2Jllama").tensor("odd\x07", &[4], TensorType::F32, vec![0; 16]);
    let mut bytes = w.to_bytes().unwrap();
    // The type is after the name, the number of dimensions and the one dimension.
    let at = bytes.windows(4).position(|b| b == b"odd\x07").unwrap() + 4 + 4 + 8;
    bytes[at] = 99;
    std::fs::write(&path, bytes).unwrap();
    let shown = stdout(&["inspect", text(&path), "--keys", "--tensors"]);
    assert!(shown.contains("type 99") && !shown.contains(['\x1b', '\x07']), "{shown}");
}

#[test]
fn tokens_there_and_back() {
    for kind in [Kind::Llama, Kind::Qwen3] {
        let path = fixture(kind, Weights::F32);
        let vocab = Vocab::from_gguf(&File::open(&path).unwrap()).unwrap();
        let model = text(&path);
        let given = "Hello, <|im_end|> wörld!\n";
        for (flags, special, parse) in
            [(&[][..], true, false), (&["--no-bos"], false, false), (&["--no-bos", "--parse-special"], false, true)]
        {
            let expected = serde_json::json!(vocab.tokenize(given.as_bytes(), special, parse).unwrap());
            assert_eq!(json(&[&["tokenize", "-m", model, given], flags].concat()), expected, "{kind:?} {flags:?}");

            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("text");
            std::fs::write(&file, given).unwrap();
            assert_eq!(json(&[&["tokenize", "-m", model, "--file", text(&file)], flags].concat()), expected);

            let mut child = Command::new(PROGRAM)
                .args([&["tokenize", "-m", model, "-"], flags].concat())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(given.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), expected);
        }
        let ids = stdout(&["tokenize", "-m", model, "--no-bos", "a b c"]);
        assert_eq!(stdout(&["detokenize", "-m", model, &ids]), "a b c");
        assert_eq!(stdout(&["detokenize", "-m", model, ids.trim().trim_matches(['[', ']'])]), "a b c");
    }
}

#[test]
fn logits_are_rows_of_floats() {
    let path = fixture(Kind::Gemma3, Weights::F32);
    let folder = tempfile::tempdir().unwrap();
    let rows = |flags: &[&str]| {
        let out = folder.path().join("rows");
        stdout(
            &[&["logits", "-m", text(&path), "--prompt-tokens", "2,10,20,30,40", "--out", text(&out)], flags].concat(),
        );
        let bytes = std::fs::read(&out).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
    };
    let (last, all) = (rows(&["--kv-type", "f32"]), rows(&["--kv-type", "f32", "--all"]));
    assert_eq!((last.len(), all.len()), (512, 5 * 512));
    for (a, b) in last.iter().zip(&all[4 * 512..]) {
        assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{a} beside {b}");
    }
    // One by one in a larger context: the same rows, with and without those of the prompt.
    let decoded = ["--kv-type", "f32", "--decode", "2", "--ctx", "64"];
    assert!(rows(&[&decoded[..], &["--all"]].concat()) == all);
    assert!(rows(&decoded) == all[2 * 512..]);
    // Prompts after each other, each from an empty context.
    let other = rows(&["--kv-type", "f32", "--all", "--prompt-tokens", "2,10,20"]);
    assert!(other[..5 * 512] == all && other[5 * 512..] == all[..3 * 512]);
    let command = ["logits", "-m", text(&path), "--prompt-tokens", "2,10", "--decode", "2", "--out", "/dev/null"];
    let error = failure(1, &command);
    assert!(error.contains("Prompt 1 has 2 tokens, of which 2 are to be decoded"), "{error}");
}
