//! The command line as a person and a script meet it: output, exit codes, broken pipes, interrupts.

#![allow(clippy::unwrap_used)]

mod common;

use common::fixtures::{Kind, Weights};
use common::{fixture, has_gpu};
use elizainference::gguf::{File, Writer};
use elizainference::quant::{TensorType, dequantize, quantize};
use elizainference::vocab::Vocab;
use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_eliza-inference");

fn run(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).env("RUST_BACKTRACE", "1").stdin(Stdio::null()).output().unwrap()
}

/// Standard output of a run that must succeed and keep standard error to itself.
#[track_caller]
fn stdout(args: &[&str]) -> String {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{args:?}: {:?}, {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

/// Standard error of a run that must end with this exit code and print nothing else.
#[track_caller]
fn failure(code: i32, args: &[&str]) -> String {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
    assert!(output.stdout.is_empty() && !errors.contains("panicked") && !errors.contains("backtrace"), "{errors}");
    errors
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn errors_name_what_is_wrong() {
    let model = fixture(Kind::Llama, Weights::F32);
    for command in ["inspect", "tokenize", "detokenize", "trie", "logits", "generate", "plan", "bench"] {
        let tail: &[&str] = match command {
            "trie" => &["--path", "p", "x"],
            "tokenize" => &["x"],
            "detokenize" => &["1"],
            "logits" => &["--prompt", "x", "--out", "/dev/null"],
            "generate" => &["--prompt", "x"],
            _ => &[],
        };
        let with = |path| failure(1, &[&[command, "--model", path], tail].concat());
        let error = with("no/such/model.gguf");
        assert!(error.starts_with("error: no/such/model.gguf: No such file"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        let error = with(env!("CARGO_MANIFEST_DIR"));
        assert!(error.contains(env!("CARGO_MANIFEST_DIR")) && error.contains("directory"), "{error}");
        let error = with(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let whose =
            concat!("error: ", env!("CARGO_MANIFEST_DIR"), "/Cargo.toml: Not a valid GGUF file: magic at offset 0");
        assert!(error.starts_with(whose), "{error}");
    }
    let model = text(&model);
    let error = failure(1, &["generate", "-m", model, "--prompt-tokens", "1,2,99999"]);
    assert!(error.contains("99999"), "{error}");
    let error = failure(1, &["generate", "-m", model, "--prompt-tokens", "1,x"]);
    assert!(error.contains("`x`"), "{error}");
    let error = failure(1, &["generate", "-m", model, "--prompt", "x", "--chain", "top_k=few"]);
    assert!(error.contains("few"), "{error}");
    let error = failure(1, &["generate", "-m", model, "--prompt", "x", "--gpu-layers", "-1", "--device", "absent"]);
    assert!(error.contains("GPU `absent`"), "{error}");
    let error = failure(1, &["detokenize", "-m", model, "1 77777"]);
    assert!(error.contains("77777"), "{error}");
    let error = failure(1, &["logits", "-m", model, "--prompt", "x", "--out", "no/such/folder/rows"]);
    assert!(error.contains("no/such/folder/rows"), "{error}");

    failure(2, &["--json", "devices"]);
    failure(2, &["generate", "-m", model]);
    failure(2, &["generate", "--prompt", "x"]);
    failure(2, &["generate", "-m", model, "--prompt", "x", "--prompt-tokens", "1"]);
    failure(2, &["generate", "-m", model, "--prompt", "x", "--kv-type", "q2"]);
    failure(2, &["generate", "-m", model, "--prompt", "x", "--chain", "greedy", "--temp", "1"]);
    failure(2, &["quantize", model, "out", "--type", "q9"]);
    failure(2, &["bench", "-m", model, "--reps", "0"]);
    failure(2, &["plan"]);
    failure(2, &["plan", "-m", model, "--ctx", "-1"]);
    let error = failure(1, &["plan", "-m", model, "--slots", "17"]);
    assert!(error.contains("17 slots"), "{error}");
    let error = failure(1, &["plan", "-m", model, "--gpu-layers", "3", "--device", "absent"]);
    assert!(error.contains("GPU `absent`"), "{error}");
    failure(2, &["no-such-command"]);
}

/// Runs with this variable set: exit code, standard output, standard error.
fn limited(variable: (&str, &str), args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(PROGRAM).args(args).env(variable.0, variable.1).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A plan of what `generate` opens.
const PLAN: [&str; 4] = ["plan", "--json", "--slots", "1"];

#[test]
fn a_plan_tells_what_opening_takes_and_what_does_not_fit_is_refused() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let how = ["-m", text(&path), "--threads", "1", "--kv-type", "f32", "--ctx", "2048"];
    let plan = |more: &[&str]| json(&[&PLAN, &how[..], more].concat());
    let found = plan(&[]);
    assert_eq!((&found["context"], &found["gpu_layers"], &found["n_layer"]), (&2048.into(), &0.into(), &2.into()));
    #[cfg(target_os = "linux")]
    assert_eq!((&found["fits"], &found["largest_context"]), (&true.into(), &4096.into()));
    let cpu = &found["devices"][0];
    let parts = cpu["bytes"].as_object().unwrap();
    let total = cpu["total_bytes"].as_u64().unwrap();
    assert_eq!(parts.values().map(|bytes| bytes.as_u64().unwrap()).sum::<u64>(), total);
    for (more, part, grows) in [
        (["--kv-type", "q8_0"], "kv_cache", false),
        (["--ctx", "4096"], "kv_cache", true),
        (["--threads", "2"], "other", true),
    ] {
        let args: Vec<&str> = how.chunks(2).filter(|pair| pair[0] != more[0]).flatten().chain(&more).copied().collect();
        let other = json(&[&PLAN, &args[..]].concat());
        let [one, other] = [&found, &other].map(|plan| plan["devices"][0]["bytes"][part].as_u64().unwrap());
        assert!(if grows { other > one } else { other < one }, "{more:?}: {other} beside {one}");
    }
    let plain = stdout(&[&["plan"], &how[..]].concat());
    for part in ["kv_cache", "2048 tokens", "0 of 2 layers", &format!("{total} bytes"), "Fits"] {
        assert!(plain.contains(part), "`{part}` is missing in:\n{plain}");
    }

    // One byte less than it takes, then just enough.
    let generate = [&["generate", "--prompt", "x", "-n", "1"], &how[..]].concat();
    let (few, enough) = ((total - 1).to_string(), total.to_string());
    let (code, shown, error) = limited(("ELIZA_MEMORY_LIMIT", &few), &[&PLAN, &how[..]].concat());
    let refused: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (code, &refused["fits"], &refused["largest_context"]),
        (Some(0), &false.into(), &1024.into()),
        "{error}"
    );
    let (code, shown, error) = limited(("ELIZA_MEMORY_LIMIT", &few), &generate);
    assert_eq!((code, &*shown), (Some(1), ""), "{error}");
    let name = cpu["name"].as_str().unwrap();
    let needs = format!("with a context of 2048 needs {total} bytes on {name} (layers");
    let parts = [&needs, "kv_cache ", &format!("{few} are available: a context of 1024 fits"), text(&path)];
    for part in [&["error: Out of memory: "], &parts[..]].concat() {
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    }
    let (code, _, error) = limited(("ELIZA_MEMORY_LIMIT", &enough), &generate);
    assert_eq!(code, Some(0), "{error}");
    let (code, _, error) = limited(("ELIZA_MEMORY_LIMIT", "10K"), &generate);
    assert!(code == Some(1) && error.contains("10240 are available: no context fits"), "{error}");
    let (code, _, error) = limited(("ELIZA_MEMORY_LIMIT", "some"), &generate);
    assert!(code == Some(1) && error.contains("ELIZA_MEMORY_LIMIT: `some`"), "{error}");
}

#[test]
#[cfg(feature = "gpu")]
fn what_does_not_fit_a_gpu_is_refused() {
    if !has_gpu() {
        return;
    }
    let path = fixture(Kind::Gemma3, Weights::Q8_0);
    fn at<'a>(path: &'a Path, layers: &'a str, context: &'a str) -> [&'a str; 8] {
        ["-m", text(path), "--threads", "1", "--gpu-layers", layers, "--ctx", context]
    }
    let plan = |layers: &str, context: &str| json(&[&PLAN[..], &at(&path, layers, context)].concat());
    let needed = |plan: &Value| plan["devices"][1]["total_bytes"].as_u64().unwrap();
    let (all, four) = (plan("-1", "512"), plan("4", "512"));
    assert_eq!((&all["gpu_layers"], &all["n_layer"]), (&7.into(), &6.into()));
    assert_eq!(all["devices"][0]["total_bytes"], 0);
    assert!(needed(&four) < needed(&plan("5", "512")));
    // What should fit, by plans without a limit.
    let all_at = |context: &str| needed(&plan("-1", context));
    let limit = needed(&four).max(all_at("128"));
    let layers = (0..7).rev().find(|n| *n == 0 || needed(&plan(&n.to_string(), "512")) <= limit).unwrap();
    let context = [256, 128].into_iter().find(|context| all_at(&context.to_string()) <= limit).unwrap();
    let (limit, most) = (format!("memory={limit}"), layers.to_string());
    let restrict = ("ELIZA_GPU_RESTRICT", &*limit);
    let (code, shown, error) = limited(restrict, &[&PLAN[..], &at(&path, "-1", "512")].concat());
    let refused: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((code, &refused["fits"]), (Some(0), &false.into()), "{error}");
    assert_eq!((&refused["largest_gpu_layers"], &refused["largest_context"]), (&layers.into(), &context.into()));
    let generate = |layers| [&["generate", "--prompt", "x", "-n", "0"], &at(&path, layers, "512")[..]].concat();
    let (code, _, error) = limited(restrict, &generate("-1"));
    assert_eq!(code, Some(1), "{error}");
    let name = all["devices"][1]["name"].as_str().unwrap();
    let needs = format!("needs {} bytes on {name} (", needed(&all));
    let fits = format!("available: a context of {context} fits, or {layers} layers on the GPU");
    for part in [&needs, &fits, "error: Out of memory: "] {
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    }
    let (code, _, error) = limited(restrict, &generate(&most));
    assert_eq!(code, Some(0), "{error}");
    let bench = ["bench", "-m", text(&path), "--pp", "0", "--tg", "2", "--reps", "1", "--threads", "1", "--json"];
    let found = json(&[&bench, &["--gpu-layers", "3"][..]].concat());
    let shares: Vec<u64> =
        found["devices"].as_array().unwrap().iter().map(|d| d["bytes_per_token"].as_u64().unwrap()).collect();
    assert_eq!((shares.len(), shares.iter().sum::<u64>()), (2, found["bytes_per_token"].as_u64().unwrap()), "{found}");
    assert!(found["devices"][1]["memory_read_bytes_s"].as_f64().unwrap() > 1e6, "{found}");
    assert!(found["bandwidth_fraction"].as_f64().unwrap() > 0.0 && found["no_gpu_reason"].is_null(), "{found}");
    // A buffer that no kernel could see as a whole.
    for args in [[&PLAN[..], &at(&path, "-1", "512")].concat(), generate("-1")] {
        let (code, _, error) = limited(("ELIZA_GPU_RESTRICT", "binding=512K"), &args);
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains("binds at most 524288: with 0 layers on the GPU it fits"), "{error}");
    }
}

/// Asking for a GPU where no driver is installed is an error with the reason, never a silent run on the CPU.
#[test]
#[cfg(target_os = "linux")]
fn no_driver_is_no_gpu() {
    let model = fixture(Kind::Llama, Weights::Q8_0);
    let output = Command::new(env!("CARGO_BIN_EXE_eliza-inference"))
        .args(["generate", "-m", text(&model), "--prompt", "x", "--gpu-layers", "-1"])
        .env("VK_DRIVER_FILES", "/nowhere")
        .env("VK_ICD_FILENAMES", "/nowhere")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("GPU"), "{error}");
}

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

#[test]
fn inspect_lists_unknown_types_and_escapes_what_a_terminal_would_obey() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.gguf");
    let mut w = Writer::new(3);
    w.set("general.architecture", "\x1b[2Jllama").tensor("odd\x07", &[4], TensorType::F32, vec![0; 16]);
    let mut bytes = w.to_bytes().unwrap();
    // The type stands behind the name, the number of dimensions and the one dimension.
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
fn generate_streams_what_its_json_tells() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let common = ["generate", "-m", text(&path), "--prompt", "Hello", "-n", "40", "--ignore-eos"];
    for sampling in [&["--temp", "0"][..], &["--seed", "7"], &["--chain", "top_k=5;temp=0.9", "--seed", "3"]] {
        let args = [&common, sampling].concat();
        let plain = stdout(&args);
        let told = json(&[&args, &["--json"][..]].concat());
        assert_eq!(told["text"], plain.as_str(), "{sampling:?}");
        assert_eq!(told["tokens"].as_array().unwrap().len(), 40);
        assert_eq!(told["finish_reason"], "length");
        assert_eq!(told["usage"]["completion_tokens"], 40);
        let ids: Vec<String> = json(&["tokenize", "-m", text(&path), "Hello"])
            .as_array()
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(told["prompt_tokens"], ids.len());
        // The same prompt as tokens and as a file.
        let ids = ids.join(",");
        let tail = [&["-n", "40", "--ignore-eos"], sampling].concat();
        assert_eq!(stdout(&[&["generate", "-m", text(&path), "--prompt-tokens", &ids], &tail[..]].concat()), plain);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("prompt");
        std::fs::write(&file, "Hello").unwrap();
        assert_eq!(stdout(&[&["generate", "-m", text(&path), "-f", text(&file)], &tail[..]].concat()), plain);
    }
    assert_eq!(stdout(&["generate", "-m", text(&path), "--prompt", "Hello", "-n", "0"]), "");
}

#[test]
fn a_trie_and_a_stop_string_end_the_text() {
    let path = fixture(Kind::Llama, Weights::F32);
    let folder = tempfile::tempdir().unwrap();
    let trie = folder.path().join("trie.json");
    let ids = |word: &str| stdout(&["tokenize", "-m", text(&path), "--no-bos", word]);
    let leaf = |word: &str| format!(r#"{{"name":"{word}","tokens":{}}}"#, ids(word).trim());
    let leaves = [leaf("north"), leaf("south"), leaf("west")].join(",");
    std::fs::write(&trie, format!(r#"{{"modelId":"","descriptors":[{{"path":"way","leaves":[{leaves}]}}]}}"#)).unwrap();
    let base = ["generate", "-m", text(&path), "--prompt", "Go", "--trie", text(&trie), "--json"];
    for mode in ["greedy", "sampled"] {
        let told = json(&[&base[..], &["--trie-mode", mode, "--on-span-end", "stop", "--seed", "1"]].concat());
        let word = told["text"].as_str().unwrap().trim().to_string();
        assert!(["north", "south", "west"].contains(&word.as_str()), "{word}");
        assert_eq!(told["finish_reason"], "span");
        let on = ["--trie-mode", mode, "--on-span-end", "continue", "--seed", "1", "-n", "30", "--ignore-eos"];
        let on = json(&[&base[..], &on].concat());
        assert!(on["text"].as_str().unwrap().trim_start().starts_with(&word), "{on}");
        assert_eq!(on["finish_reason"], "length");
    }
    let free =
        json(&["generate", "-m", text(&path), "--prompt", "Go", "-n", "60", "--temp", "0", "--json", "--ignore-eos"]);
    let free = free["text"].as_str().unwrap();
    let stop: String = free.chars().skip(10).take(3).collect();
    let args = ["generate", "-m", text(&path), "--prompt", "Go", "-n", "60", "--temp", "0", "--json", "--ignore-eos"];
    let stopped = json(&[&args[..], &["--stop", &stop]].concat());
    assert_eq!(stopped["finish_reason"], "stop");
    assert_eq!(stopped["text"], &free[..free.find(&stop).unwrap()]);
    let error = failure(1, &["generate", "-m", text(&path), "--prompt", "Go", "--stop", ""]);
    assert!(error.contains("empty"), "{error}");
}

#[test]
fn trie_makes_the_payload_that_generate_takes() {
    let path = fixture(Kind::Llama, Weights::F32);
    let model = text(&path);
    let folder = tempfile::tempdir().unwrap();
    let names = folder.path().join("names.txt");
    std::fs::write(&names, " south\r\n\n west\n").unwrap();
    let context = ["--before", "we go", "--after", ".", "--path", "way"];
    let base = [&["trie", "-m", model], &context[..], &[" north", "--names", text(&names)]].concat();
    let quiet = stdout(&[&base[..], &["--json"]].concat());
    let payload: Value = serde_json::from_str(&quiet).unwrap();
    assert_eq!((&payload["modelId"], quiet.lines().count()), (&"fixture-llama".into(), 1));
    let leaves = payload["descriptors"][0]["leaves"].as_array().unwrap();
    let found: Vec<_> = leaves.iter().map(|leaf| leaf["name"].as_str().unwrap()).collect();
    assert_eq!(found, [" north", " south", " west"]);
    let whole = json(&["tokenize", "-m", model, "--no-bos", "we go south."]);
    assert!(whole.as_array().unwrap().ends_with(leaves[1]["tokens"].as_array().unwrap()), "{whole} {payload}");

    let output = run(&base);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == quiet.as_bytes());
    for line in ["Model         fixture-llama\n", "Leaves        3\n", "Prefix leaves 0\n", "Forced        "] {
        assert!(told.contains(line), "{told}");
    }
    let piped = Command::new(PROGRAM)
        .args([&["trie", "-m", model], &context[..], &["--json", "--names", "-"]].concat())
        .stdin(std::fs::File::open(&names).unwrap())
        .output()
        .unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&piped.stdout).unwrap()["descriptors"][0]["leaves"][1], leaves[2]);

    let file = folder.path().join("way.json");
    std::fs::write(&file, &quiet).unwrap();
    let how = ["--prompt", "we go", "--trie", text(&file), "--on-span-end", "stop", "--json"];
    let said = json(&[&["generate", "-m", model], &how[..]].concat());
    assert!([" north.", " south.", " west."].contains(&said["text"].as_str().unwrap()), "{said}");
    assert_eq!(said["finish_reason"], "span");

    // Warnings are told even where the report is not.
    let output =
        run(&["trie", "-m", model, "--path", "p", "--json", "--before", "go ", "north", "north_east", "north"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.lines().all(|line| line.starts_with("warning: ")), "{told}");
    assert!(
        ["given more than once", "tokenized alone", "the beginning of"].iter().all(|what| told.contains(what)),
        "{told}"
    );
    assert!(failure(1, &["trie", "-m", model, "--path", "p", ""]).contains("A name is empty"));
    assert!(failure(1, &["trie", "-m", model, "--path", "p", "--names", "/dev/null"]).contains("no names"));
    failure(2, &["trie", "-m", model, "x"]);
    failure(2, &["trie", "-m", model, "--path", "p"]);
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
}

#[test]
fn bench_and_devices_report() {
    let path = fixture(Kind::Llama, Weights::Q4_0);
    let args = ["bench", "-m", text(&path), "--pp", "16", "--tg", "4", "--reps", "2", "--threads", "1", "--json"];
    let found = json(&args);
    for key in
        ["prompt_tok_s", "decode_tok_s", "load_ms", "memory_read_bytes_s", "bandwidth_fraction", "bytes_per_token"]
    {
        assert!(found[key].as_f64().unwrap() > 0.0, "{key}: {found}");
    }
    assert_eq!(found["threads"], 1);
    assert!(found["no_gpu_reason"].as_str().unwrap().contains("0 layers"), "{found}");
    // Every tensor but the embedding, of which one row is read.
    let file = File::open(&path).unwrap();
    let read = file.tensors().iter().filter(|t| t.name != "token_embd.weight" && t.name != "rope_freqs.weight");
    assert_eq!(found["bytes_per_token"], read.map(|t| t.bytes).sum::<u64>());
    let share = |key: &str| found["devices"][0][key].clone();
    assert_eq!(
        (share("bytes_per_token"), found["devices"].as_array().unwrap().len()),
        (found["bytes_per_token"].clone(), 1)
    );
    let (rate, peak) = (found["decode_read_bytes_s"].as_f64().unwrap(), share("memory_read_bytes_s").as_f64().unwrap());
    assert!((rate / peak / found["bandwidth_fraction"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{found}");
    #[cfg(target_os = "linux")]
    assert!(found["peak_rss_bytes"].as_u64().unwrap() > 1 << 20, "{found}");
    let devices = json(&["devices", "--json"]);
    let devices = devices.as_array().unwrap();
    assert!(devices.iter().any(|d| d["kind"] == "cpu"), "{devices:?}");
    assert!(devices.is_sorted_by_key(|d| std::cmp::Reverse(d["score"].as_u64())), "{devices:?}");
    assert_eq!(stdout(&["devices"]).lines().count(), devices.len());
}

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

/// A long generation whose first output has been read.
#[cfg(unix)]
fn long_generation(path: &Path) -> (std::process::Child, Vec<u8>) {
    let mut child = Command::new(PROGRAM)
        .args(["generate", "-m", text(path), "--prompt", "Hello", "-n", "-1", "--ignore-eos", "--seed", "5"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = vec![0; 1];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    (child, first)
}

#[test]
#[cfg(unix)]
fn a_reader_that_goes_away_ends_it_quietly() {
    let (mut child, _) = long_generation(&fixture(Kind::Llama, Weights::F32));
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
#[cfg(unix)]
fn an_interrupt_ends_the_generation_and_keeps_the_text() {
    let path = fixture(Kind::Llama, Weights::F32);
    // On a busy machine the generation may be over before the signal comes: then it simply ends well.
    for _ in 0..20 {
        let (child, mut text) = long_generation(&path);
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        text.extend_from_slice(&output.stdout);
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(std::str::from_utf8(&text).is_ok());
        match output.status.code() {
            Some(130) if sent.success() => return,
            code => assert_eq!(code, Some(0)),
        }
    }
    panic!("no generation was ended by an interrupt");
}

#[test]
fn bench_of_spans_counts_what_the_trie_saves() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    // One branch at the root, then runs of two.
    let leaves: Vec<_> = [(60, "9:;"), (70, "CDE"), (80, "MNO")]
        .map(|(token, name)| serde_json::json!({"name": name, "tokens": [token, token + 1, token + 2]}))
        .into();
    let payload = serde_json::json!({"modelId": "", "descriptors": [{"path": "p", "leaves": leaves}]}).to_string();
    let (payload, prompts) = (file("payload", &payload), file("prompts", "One of them\nAnother\n"));
    let report = folder.path().join("report").into_os_string().into_string().unwrap();
    let bench = |mode: &str, more: &[&str]| {
        let base =
            ["bench", "-m", text(&path), "--mode", mode, "--prompt", &prompts, "--token-tree-descriptor", &payload];
        json(&[&base[..], &["--reps", "1", "--threads", "1", "--json", "--output", &report], more].concat())
    };
    let mask = bench("strict-mask", &[]);
    let names: Vec<&str> = mask["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let grammar =
        |names: &[&str]| file("grammar", &serde_json::json!({"tokens_per_second": 1.0, "names": names}).to_string());
    let trie = bench("strict-trie-ffi", &["--grammar", &grammar(&[names[0], "other"])]);
    assert_eq!(trie["names"], mask["names"]);
    assert_eq!(std::fs::read_to_string(&report).unwrap().parse::<serde_json::Value>().unwrap(), trie);
    assert_eq!(trie["token_accuracy"], 0.5);
    assert_eq!(trie["tokens_per_second_vs_grammar"], trie["tokens_per_second"]);
    // A prompt's pass each; the mask decodes two tokens more, the trie none.
    assert_eq!((&mask["forward_passes_total"], &mask["forward_passes_saved"]), (&6.into(), &0.into()));
    assert_eq!((&trie["forward_passes_total"], &trie["forward_passes_saved"]), (&2.into(), &4.into()));
    assert_eq!(
        (&trie["forced_tokens"], &trie["branching_steps"], &trie["logits_computed"]),
        (&4.into(), &2.into(), &6.into())
    );
    assert_eq!(mask["skip_ratio_mean"], trie["skip_ratio_mean"]);
    assert!(trie["skip_ratio_mean"].as_f64().unwrap() > 0.99 && mask["tokens_per_span"] == 3.0);
    let free = bench("unconstrained", &[]);
    assert_eq!((&free["skip_ratio_mean"], &free["completion_tokens"]), (&0.0.into(), &6.into()));
    for (arguments, problem) in
        [(vec!["--grammar", "nowhere"], "nowhere"), (vec!["--grammar", &grammar(&["A"])], "1 names for 2 prompts")]
    {
        let base = ["bench", "-m", text(&path), "--mode", "strict-mask", "--prompt", &prompts];
        let message = failure(1, &[&base[..], &["--token-tree-descriptor", &payload], &arguments].concat());
        assert!(message.contains(problem), "{message}");
    }
    failure(2, &["bench", "-m", text(&path), "--mode", "strict-mask"]);
}

/// The page holds everything that was measured, as data and as bars, and nothing of a name that could end an element.
#[test]
fn bench_makes_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("<b>&model.gguf");
    std::fs::copy(common::demo(), &model).unwrap();
    let payload = folder.path().join("payload.json");
    let trie = ["trie", "-m", text(&model), "--path", "p", "--before", "Action:\n", "--json", "SHOW_NOTE", "SHOW_LIST"];
    std::fs::write(&payload, stdout(&trie)).unwrap();
    let prompts = folder.path().join("prompts");
    std::fs::write(&prompts, "plain\n\"User: show me the list\\nAction:\\n\"\n").unwrap();
    let page = folder.path().join("page.html");
    let bench = ["bench", "-m", text(&model), "--threads", "1", "--reps", "1", "--pp", "16", "--tg", "4", "--json"];
    let spans = ["--prompt", text(&prompts), "--token-tree-descriptor", text(&payload), "--html", text(&page)];
    let report = json(&[&bench[..], &spans].concat());
    assert_eq!(report["choices"].as_array().unwrap().len(), 3);
    assert_eq!(report["choices"][0]["names"][1], "SHOW_LIST");

    let page = std::fs::read_to_string(page).unwrap();
    let (_, data) = page.split_once("id=\"report\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    assert_eq!(data.parse::<Value>().unwrap(), report);
    assert!(page.contains("&lt;b&gt;&amp;model.gguf") && !page.split_once("<script").unwrap().0.contains("<b>&model"));
    assert_eq!(page.matches("class=\"bar\"").count(), page.matches("<dt>").count());
    for label in ["token trie", "mask", "unconstrained", "writing", "kv cache"] {
        assert!(page.contains(label), "{label}");
    }
}
