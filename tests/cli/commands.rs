//! The command line as a person and a script meet it: output, exit codes, broken pipes, interrupts.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::{fixture, has_gpu};
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
    let error = failure(2, &["generate", "-m", model, "--prompt", "x", "--chain", "top_k=few"]);
    assert!(error.contains("few"), "{error}");
    let no_gpu = if cfg!(feature = "gpu") { "GPU `absent`" } else { "this build has no GPU backend" };
    let error = failure(1, &["generate", "-m", model, "--prompt", "x", "--gpu-layers", "-1", "--device", "absent"]);
    assert!(error.contains(no_gpu), "{error}");
    let error = failure(1, &["detokenize", "-m", model, "1 77777"]);
    assert!(error.contains("77777"), "{error}");
    let error = failure(1, &["logits", "-m", model, "--prompt", "x", "--out", "no/such/folder/rows"]);
    assert!(error.contains("no/such/folder/rows"), "{error}");

    failure(2, &["--json", "devices"]);
    failure(2, &["generate", "-m", model]);
    failure(2, &["generate", "--prompt", "x"]);
    let error = failure(2, &["logits", "-m", model, "--prompt", "x", "--prompt-tokens", "1", "--out", "/dev/null"]);
    assert!(error.contains("2 prompts"), "{error}");
    failure(2, &["generate", "-m", model, "--prompt", "x", "--logit-bias", "7"]);
    failure(2, &["generate", "-m", model, "--prompt", "x", "--candidates", "3"]);
    let error = failure(1, &["generate", "-m", model, "--prompt", "x", "--logit-bias", "99999:1"]);
    assert!(error.contains("99999"), "{error}");
    failure(2, &["generate", "-m", model, "--prompt", "x", "--kv-type", "q2"]);
    failure(2, &["generate", "-m", model, "--prompt", "x", "--chain", "greedy", "--temp", "1"]);
    failure(2, &["generate", "-m", model, "--prompt", "x", "--chain", "greedy", "--presence-penalty", "1"]);
    failure(2, &["quantize", model, "out", "--type", "q9"]);
    failure(2, &["bench", "-m", model, "--reps", "0"]);
    failure(2, &["plan"]);
    failure(2, &["plan", "-m", model, "--ctx", "-1"]);
    let error = failure(1, &["plan", "-m", model, "--slots", "17"]);
    assert!(error.contains("17 slots"), "{error}");
    let error = failure(1, &["plan", "-m", model, "--gpu-layers", "3", "--device", "absent"]);
    assert!(error.contains(no_gpu), "{error}");
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
    // Keys and values are as many: with a type each they take the mean of what they take with one.
    let cached = |more: &[&str]| {
        let found = json(&[&PLAN, &["-m", text(&path), "--threads", "1"], more].concat());
        found["devices"][0]["bytes"]["kv_cache"].as_u64().unwrap()
    };
    assert_eq!(cached(&["--kv-type-v", "q8_0"]) * 2, cached(&[]) + cached(&["--kv-type", "q8_0"]));
    let workspace = |plan: Value| plan["devices"][0]["bytes"]["workspace"].as_u64().unwrap();
    assert!(workspace(plan(&["--n-batch", "32"])) < workspace(plan(&[])) / 4);
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

/// What a plan says of the graphs, by the model's own sizes: where they are cut, and what has to cross.
#[test]
fn a_plan_shows_the_graphs() {
    let path = fixture(Kind::Gemma3, Weights::Q8_0);
    let plan = |layers: &str| {
        json(&[
            "plan",
            "--json",
            "--graph",
            "-m",
            text(&path),
            "--slots",
            "1",
            "--threads",
            "1",
            "--gpu-layers",
            layers,
        ])
    };
    let check = |found: &Value, wanted_splits: usize| {
        let (devices, graphs) = (&found["graphs"]["devices"], found["graphs"]["graphs"].as_array().unwrap());
        let names: Vec<&str> = graphs.iter().map(|graph| graph["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["body", "head", "decode", "walk", "shift", "copy"]);
        let rows: Vec<u64> =
            graphs[0]["buckets"].as_array().unwrap().iter().map(|bucket| bucket["rows"].as_u64().unwrap()).collect();
        assert_eq!(rows, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        for graph in graphs {
            let nodes = graph["nodes"].as_array().unwrap();
            let splits = graph["splits"].as_array().unwrap();
            let mut end = 0;
            for split in splits {
                assert_eq!(split["first"], end);
                end = split["end"].as_u64().unwrap();
                assert!(split["device"].as_u64().unwrap() < devices.as_array().unwrap().len() as u64, "{graph}");
            }
            assert_eq!(end, nodes.len() as u64, "{graph}");
        }
        let ops =
            |graph: &Value, op: &str| graph["nodes"].as_array().unwrap().iter().filter(|node| node["op"] == op).count();
        assert_eq!((ops(&graphs[0], "attention"), ops(&graphs[4], "shift_keys")), (6, 6));
        assert_eq!(graphs[0]["splits"].as_array().unwrap().len(), wanted_splits, "{}", graphs[0]["splits"]);
        graphs[0].clone()
    };
    let few = json(&["plan", "--json", "--graph", "-m", text(&path), "--n-batch", "50"]);
    let rows = |bucket: &Value| bucket["rows"].as_u64().unwrap();
    let rows: Vec<u64> = few["graphs"]["graphs"][0]["buckets"].as_array().unwrap().iter().map(rows).collect();
    assert_eq!(rows, [1, 2, 4, 8, 16, 32, 50]);
    let body = check(&plan("0"), 1);
    assert!(body["buckets"].as_array().unwrap().iter().all(|bucket| bucket["copied_bytes"] == 0));
    let plain = stdout(&["plan", "--graph", "-m", text(&path)]);
    for part in
        ["Graph body", "nodes in 1 split\n", "rows       1 2 4 8 16 32 64 128 256 512\n", "embedding, layers 0 to 5"]
    {
        assert!(plain.contains(part), "`{part}` is missing in:\n{plain}");
    }
    if !cfg!(feature = "gpu") || !has_gpu() {
        return;
    }
    let body = check(&plan("2"), 3);
    let (width, border) = (body["nodes"][0]["width"].as_u64().unwrap(), &body["splits"][1]);
    let at = border["first"].as_u64().unwrap() as usize;
    assert_eq!((&body["nodes"][at - 1]["part"], &body["nodes"][at]["part"]), (&"layer 3".into(), &"layer 4".into()));
    // The residual's rows cross, four bytes a value: in front of the two layers, and back to the output's norm.
    for bucket in body["buckets"].as_array().unwrap() {
        let rows = bucket["rows"].as_u64().unwrap() + bucket["output_rows"].as_u64().unwrap();
        assert_eq!(bucket["copied_bytes"], rows * width * 4, "{bucket}");
    }
    assert_eq!(border["copies"], serde_json::json!([{"from": 0, "bytes": 512 * width * 4}]));
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
    // A prompt in passes of few rows is the same prompt.
    let long = "Hello there, ".repeat(8);
    let long = ["generate", "-m", text(&path), "--prompt", &long, "-n", "8", "--ignore-eos", "--temp", "0"];
    assert_eq!(stdout(&[&long[..], &["--n-batch", "4"]].concat()), stdout(&long));
    failure(2, &[&long[..], &["--n-batch", "0"]].concat());
    failure(2, &[&long[..], &["--kv-type-v", "q2"]].concat());
}

/// The flags of the samplers make the chain that its text says, one by one and all together.
#[test]
fn every_sampler_has_its_flags() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let base = ["generate", "-m", text(&path), "--prompt", "Hello", "-n", "40", "--ignore-eos", "--json"];
    let tokens = |more: &[&str]| json(&[&base[..], &["--seed", "7"], more].concat())["tokens"].clone();
    let off = [("--temp", "1.5"), ("--top-k", "0"), ("--top-p", "1"), ("--min-p", "0")];
    let plain = tokens(&off.map(|(flag, value)| [flag, value]).concat());
    for (flags, chain) in [
        (&[][..], "temp=1.5"),
        (&[("--temp", "0.3")], "temp=0.3"),
        (&[("--top-k", "3")], "top_k=3;temp=1.5"),
        (&[("--top-p", "0.5")], "top_p=0.5;temp=1.5"),
        (&[("--top-p", "0.1"), ("--min-keep", "3")], "top_p=0.1,3;temp=1.5"),
        (&[("--min-p", "0.5")], "min_p=0.5;temp=1.5"),
        (&[("--min-p", "0.99"), ("--min-keep", "2")], "min_p=0.99,2;temp=1.5"),
        (&[("--dynatemp-range", "1")], "dynatemp=1.5,1,1"),
        (&[("--dynatemp-range", "1"), ("--dynatemp-exponent", "3")], "dynatemp=1.5,1,3"),
        (&[("--repeat-penalty", "2")], "penalties=64,2,0,0;temp=1.5"),
        (&[("--frequency-penalty", "1.5")], "penalties=64,1,1.5,0;temp=1.5"),
        (&[("--presence-penalty", "-3")], "penalties=64,1,0,-3;temp=1.5"),
        (&[("--repeat-penalty", "2"), ("--repeat-last-n", "2")], "penalties=2,2,0,0;temp=1.5"),
        (&[("--logit-bias", "70:30,71:30"), ("--logit-bias", "72:-inf")], "logit_bias=70:30,71:30,72:-inf;temp=1.5"),
    ] {
        let left = off.iter().filter(|(flag, _)| flags.iter().all(|(other, _)| other != flag));
        let given: Vec<&str> = left.chain(flags).flat_map(|(flag, value)| [*flag, *value]).collect();
        let found = tokens(&given);
        assert_eq!(found, tokens(&["--chain", chain]), "{given:?}");
        assert_eq!(found == plain, flags.is_empty(), "{given:?} changes nothing");
    }
    let all = "logit_bias=70:2;penalties=16,1.2,0.1,0.2;top_k=30;top_p=0.9,2;min_p=0.02,2;dynatemp=0.9,0.4,1.5";
    let flags = "--logit-bias 70:2 --repeat-last-n 16 --repeat-penalty 1.2 --frequency-penalty 0.1 \
                 --presence-penalty 0.2 --top-k 30 --top-p 0.9 --min-p 0.02 --min-keep 2 --temp 0.9 \
                 --dynatemp-range 0.4 --dynatemp-exponent 1.5";
    assert_eq!(tokens(&flags.split_whitespace().collect::<Vec<_>>()), tokens(&["--chain", all]));
}

/// Prompts go to slots 0, 1, … in turn. A chain is that of the prompt in front of it, or, in front of all, of those
/// without.
#[test]
fn several_prompts_run_in_turn_each_with_its_chain() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt");
    std::fs::write(&file, "Second").unwrap();
    let base = ["generate", "-m", text(&path), "-n", "12", "--seed", "5", "--ignore-eos"];
    let run = |more: &[&str]| stdout(&[&base[..], more].concat());
    let reports = |more: &[&str]| -> Vec<Value> {
        run(&[more, &["--json"]].concat()).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let alone = |prompt: [&str; 2], chain: &str| reports(&[&prompt[..], &["--chain", chain]].concat()).remove(0);
    let (first, second, third) = (["-p", "First"], ["-f", text(&file)], ["--prompt-tokens", "1,70,80"]);
    let (greedy, drawn) = (["--chain", "greedy"], ["--chain", "temp=1.5"]);
    for (order, chains) in [
        ([&first[..], &greedy, &second, &drawn, &third, &greedy], ["greedy", "temp=1.5", "greedy"]),
        ([&drawn[..], &first, &greedy, &second, &third, &[]], ["greedy", "temp=1.5", "temp=1.5"]),
        ([&greedy[..], &first, &second, &drawn, &third, &[]], ["greedy", "temp=1.5", "greedy"]),
    ] {
        let order = order.concat();
        let found = reports(&order);
        assert_eq!(found.len(), 3);
        for (slot, (prompt, chain)) in [first, second, third].into_iter().zip(chains).enumerate() {
            let wanted = alone(prompt, chain);
            assert_eq!(found[slot]["slot"], slot);
            assert_eq!(found[slot]["text"], wanted["text"], "{order:?}, slot {slot}");
            assert_eq!(found[slot]["chain"], wanted["chain"], "{order:?}, slot {slot}");
            assert_eq!(found[slot]["prompt_tokens"], wanted["prompt_tokens"], "{order:?}, slot {slot}");
        }
        // As text each ends its line.
        let lines = found.iter().map(|one| one["text"].as_str().unwrap().trim_end_matches('\n').to_owned() + "\n");
        assert_eq!(run(&order), lines.collect::<String>());
    }
    let error = failure(2, &[&base[..], &first, &greedy, &drawn].concat());
    assert!(error.contains("`greedy` and `temp=1.5`"), "{error}");
    let error = failure(1, &[&base[..], &first.repeat(17)].concat());
    assert!(error.contains("17 slots"), "{error}");
}

#[test]
fn a_full_context_ends_the_text_or_shifts() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let base = ["generate", "-m", text(&path), "-p", "Hello", "-c", "32", "-n", "60", "--ignore-eos", "--seed", "3"];
    let base = [&base[..], &["--json"]].concat();
    let told = json(&base);
    let few = told["tokens"].as_array().unwrap();
    assert_eq!(told["finish_reason"], "context");
    assert_eq!(few.len() as u64 + told["prompt_tokens"].as_u64().unwrap(), 32);
    let shifted = json(&[&base[..], &["--on-context-full", "shift", "--keep", "4"]].concat());
    assert_eq!(shifted["finish_reason"], "length");
    assert!(shifted["usage"]["context_shifts"].as_u64().unwrap() >= 2, "{shifted}");
    let many = shifted["tokens"].as_array().unwrap();
    assert_eq!((many.len(), &many[..few.len()]), (60, &few[..]), "until the context is full both are the same");
    let error = failure(2, &[&base[..], &["--keep", "4"]].concat());
    assert!(error.contains("--on-context-full shift"), "{error}");
}

#[test]
fn the_prompt_is_echoed_and_candidates_are_told_where_asked_for() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let base = ["generate", "-m", text(&path), "-p", "Hello", "-n", "6", "--ignore-eos", "--seed", "3"];
    let plain = stdout(&base);
    assert_eq!(stdout(&[&base[..], &["--echo"]].concat()).trim_start(), format!("Hello{plain}"));
    let told =
        json(&[&base[..], &["--json", "--candidates", "4", "--top-k", "5", "--top-p", "1", "--min-p", "0"]].concat());
    let sampled = told["sampled"].as_array().unwrap();
    assert_eq!(sampled.len(), 6);
    for (one, token) in sampled.iter().zip(told["tokens"].as_array().unwrap()) {
        assert_eq!(one["token"], *token);
        let best = one["candidates"].as_array().unwrap();
        let logprobs: Vec<f64> = best.iter().map(|one| one["logprob"].as_f64().unwrap()).collect();
        assert!(logprobs.len() == 4 && logprobs.is_sorted_by(|a, b| a >= b), "{one}");
        assert!(logprobs.iter().map(|logprob| logprob.exp()).sum::<f64>() <= 1.0 + 1e-6, "{one}");
        let mut own = best.iter().filter(|other| other["token"] == *token);
        assert!(
            own.all(|own| (own["logprob"].as_f64().unwrap() - one["logprob"].as_f64().unwrap()).abs() < 1e-5),
            "{one}"
        );
    }

    // A token that the trie forces is not sampled.
    let folder = tempfile::tempdir().unwrap();
    let trie = folder.path().join("trie.json");
    let leaf = |last: u32| serde_json::json!({"name": last.to_string(), "tokens": [60, last, 65]});
    let payload = serde_json::json!({"modelId": "", "descriptors": [{"path": "p", "leaves": [leaf(61), leaf(62)]}]});
    std::fs::write(&trie, payload.to_string()).unwrap();
    let output = run(&[&base[..], &["--trie", text(&trie), "--json", "--candidates", "1"]].concat());
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sampled: Vec<bool> = told["sampled"].as_array().unwrap().iter().map(|one| !one.is_null()).collect();
    assert_eq!(sampled, [false, true, false, true, true, true], "{told}");
}

/// A model without the texts of its vocabulary, which then has no token that ends a generation.
fn without_texts(folder: &Path) -> std::path::PathBuf {
    let source = File::open(fixture(Kind::Llama, Weights::F32)).unwrap();
    let mut writer = Writer::new(3);
    let kept = |key: &&str| !key.starts_with("tokenizer.") && *key != "llama.vocab_size";
    for key in source.metadata().map(|(key, _)| key).filter(kept) {
        writer.copy_key(&source, key).unwrap();
    }
    writer.set("tokenizer.ggml.model", "no_vocab").set("llama.vocab_size", 512u32);
    for info in source.tensors() {
        let shape = &info.shape[..info.n_dims as usize];
        writer.tensor(info.name.clone(), shape, info.tensor_type().unwrap(), source.read(info).unwrap());
    }
    let path = folder.join("ids.gguf");
    writer.write_to(&path).unwrap();
    path
}

#[test]
fn what_has_no_effect_is_warned_of_and_verbose_tells_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let errors = |args: &[&str]| {
        let output = run(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let ids = without_texts(folder.path());
    let base = ["generate", "-m", text(&ids), "--prompt-tokens", "1,60,70", "-n", "3"];
    assert_eq!(errors(&base), "");
    let told = errors(&[&base[..], &["--ignore-eos"]].concat());
    assert!(told.starts_with("warning: ignore_eos has no effect") && told.lines().count() == 1, "{told}");
    let usual = fixture(Kind::Llama, Weights::F32);
    let base = ["generate", "-m", text(&usual), "-p", "Hello", "-n", "3", "--ignore-eos"];
    assert_eq!(errors(&base), "");
    let told = errors(&[&base[..], &["--verbose", "--chain", "top_k=3"]].concat());
    assert!(told.contains(&format!("info: Opened {}", usual.display())), "{told}");
    assert!(told.contains("debug: Sampler chain: -trie -top_k -dist"), "{told}");
}

/// A chain that the GPU cannot follow to its end is told of, once for all prompts that share it.
#[test]
#[cfg(feature = "gpu")]
fn a_chain_that_falls_back_to_the_host_is_warned_of() {
    if !has_gpu() {
        return;
    }
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let base = ["generate", "-m", text(&path), "-p", "a", "-p", "b", "-n", "3", "--ignore-eos", "--gpu-layers", "-1"];
    let warnings = |chain: &str| {
        let output = run(&[&base[..], &["--chain", chain]].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(warnings("top_k=5;temp=0.7"), "");
    let told = warnings("top_k=5;penalties=2000,1.1,0,0");
    assert!(told.contains("+top_k -penalties -dist") && told.lines().count() == 1, "{told}");
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
    let why = if cfg!(feature = "gpu") { "0 layers" } else { "no GPU backend" };
    assert!(found["no_gpu_reason"].as_str().unwrap().contains(why), "{found}");
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

/// JSON that a function of the C interface gave.
fn given(text: *mut std::ffi::c_char) -> Value {
    assert!(!text.is_null(), "{:?}", elizainference::ffi::eliza_inference_take_last_error());
    // SAFETY: a terminated string of the library, freed once.
    unsafe {
        let value = serde_json::from_slice(std::ffi::CStr::from_ptr(text).to_bytes()).unwrap();
        elizainference::ffi::eliza_inference_free_string(text);
        value
    }
}

/// What is free changes between two questions.
fn without_free(mut devices: Value) -> Value {
    devices.as_array_mut().unwrap().iter_mut().for_each(|device| drop(device["available_bytes"].take()));
    devices
}

#[test]
fn the_c_interface_gives_the_command_line_s_answers() {
    use elizainference::ffi::*;
    use std::ffi::CString;
    use std::ptr::null_mut;
    let path = fixture(Kind::Qwen3, Weights::Q4_K);
    let c_path = CString::new(text(&path)).unwrap();
    // SAFETY: plain numbers and pointers, for which zeroes are the defaults; the strings outlive the calls.
    let mut options: OpenOptions = unsafe { std::mem::zeroed() };
    options.struct_size = size_of::<OpenOptions>() as u32;
    options.model_path = c_path.as_ptr();
    (options.context_size_tokens, options.num_threads, options.slots) = (64, 1, 1);
    options.kv_type = c"f32".as_ptr();

    let mut plan =
        json(&[&PLAN[..], &["-m", text(&path), "--threads", "1", "--kv-type", "f32", "--ctx", "64"]].concat());
    // SAFETY: as above; no out_error.
    let mut planned = unsafe { given(eliza_inference_plan_json(&options, null_mut())) };
    for plan in [&mut plan, &mut planned] {
        plan["devices"] = without_free(plan["devices"].take());
    }
    assert_eq!(planned, plan);
    // SAFETY: no out_error.
    let devices = unsafe { given(eliza_inference_devices_json(null_mut())) };
    assert_eq!(without_free(devices), without_free(json(&["devices", "--json"])));

    // SAFETY: terminated strings, or null.
    let metadata = |key: *const std::ffi::c_char| unsafe {
        given(eliza_inference_file_metadata_json(c_path.as_ptr(), key, null_mut()))
    };
    let (found, all) = (json(&["inspect", text(&path), "--json", "--keys"]), metadata(std::ptr::null()));
    let keys = found["keys"].as_object().unwrap();
    assert_eq!(all.as_object().unwrap().keys().collect::<Vec<_>>(), keys.keys().collect::<Vec<_>>());
    for (key, told) in keys {
        let whole = metadata(CString::new(key.as_str()).unwrap().as_ptr());
        match told["type"].as_str().unwrap() {
            "Array" => {
                let (elements, first) = (whole.as_array().unwrap(), told["first"].as_array().unwrap());
                assert_eq!(elements.len() as u64, told["len"].as_u64().unwrap(), "{key}");
                assert_eq!(elements[..first.len()], first[..], "{key}");
                let short = serde_json::json!({"type": told["element"], "length": elements.len()});
                assert_eq!(all[key], if elements.len() > 16 { short } else { whole }, "{key}");
            }
            _ => assert_eq!((&whole, &all[key]), (&told["value"], &told["value"]), "{key}"),
        }
    }

    // SAFETY: as above; the handle is open until it is closed.
    unsafe {
        let handle = eliza_inference_llm_stream_open_ex(&options, null_mut());
        assert!(!handle.is_null());
        let model = given(eliza_inference_llm_stream_model_json(handle, null_mut()));
        let sizes = &found["sizes"];
        for (one, other) in [
            ("n_embd", "embedding"),
            ("n_layer", "layers"),
            ("n_head", "heads"),
            ("n_head_kv", "kv_heads"),
            ("n_ff", "feed_forward"),
            ("train_context", "context"),
        ] {
            assert_eq!(model[one], sizes[other], "{one}");
        }
        for same in ["architecture", "name", "parameters", "bytes", "path"] {
            assert_eq!(model[same], found[same], "{same}");
        }
        assert_eq!(
            (&model["n_vocab"], &model["vocabulary"]),
            (&found["vocabulary"]["tokens"], &found["vocabulary"]["model"])
        );
        for token in [0, 5, 300, 511] {
            let told = given(eliza_inference_llm_stream_token_json(handle, token, null_mut()));
            let spelled = run(&["detokenize", "-m", text(&path), &token.to_string()]).stdout;
            let bytes: Vec<u8> = told["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect();
            assert_eq!(spelled.strip_suffix(b"\n").unwrap_or(&spelled), bytes, "{told}");
        }

        let prompt = [2, 10, 20, 30, 40];
        assert_eq!(eliza_inference_llm_stream_prefill(handle, prompt.as_ptr(), 5, -1), 5);
        let mut rows = vec![0f32; 5 * 512];
        let n = eliza_inference_llm_stream_logits(handle, 5, rows.as_mut_ptr(), rows.len(), null_mut());
        assert_eq!(n as usize, rows.len());
        eliza_inference_llm_stream_close(handle);
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("rows");
        let (model, out_path, tokens) = (text(&path), text(&out), "2,10,20,30,40");
        let options = ["--threads", "1", "--kv-type", "f32", "--all"];
        stdout(&[&["logits", "-m", model, "--prompt-tokens", tokens, "--out", out_path], &options[..]].concat());
        let bytes: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert!(std::fs::read(&out).unwrap() == bytes, "logits");
    }
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
    // A file is a prompt as a whole.
    let prompt_texts = ["One of them\nwith a second line\n", "Another"];
    let [first, second] = [0, 1].map(|i| file(&format!("prompt{i}"), prompt_texts[i]));
    let (payload, prompts) = (file("payload", &payload), ["--prompt-file", &first, "--prompt-file", &second]);
    let report = folder.path().join("report").into_os_string().into_string().unwrap();
    let bench = |mode: &str, more: &[&str]| {
        let base = ["bench", "-m", text(&path), "--mode", mode, "--token-tree-descriptor", &payload];
        json(&[&base[..], &prompts, &["--reps", "1", "--threads", "1", "--json", "--output", &report], more].concat())
    };
    let mask = bench("strict-mask", &[]);
    let tokens = prompt_texts.map(|prompt| json(&["tokenize", "-m", text(&path), prompt]).as_array().unwrap().len());
    assert_eq!((&mask["spans"], &mask["prompt_tokens"]), (&2.into(), &tokens.iter().sum::<usize>().into()));
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
        let base = ["bench", "-m", text(&path), "--mode", "strict-mask", "--token-tree-descriptor", &payload];
        let message = failure(1, &[&base[..], &prompts, &arguments].concat());
        assert!(message.contains(problem), "{message}");
    }
    failure(2, &["bench", "-m", text(&path), "--mode", "strict-mask"]);
}

/// A copy of a fixture with another text and type for one token.
fn with_token(kind: Kind, id: usize, text: &str, token_type: i32) -> tempfile::NamedTempFile {
    let from = File::open(fixture(kind, Weights::Q8_0)).unwrap();
    let mut tokens: Vec<&str> = from.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    let types = from.integers("tokenizer.ggml.token_type").unwrap().unwrap();
    let mut types: Vec<i32> = types.into_iter().map(|kind| kind as i32).collect();
    (tokens[id], types[id]) = (text, token_type);
    let mut out = Writer::new(3);
    for (key, _) in from.metadata() {
        out.copy_key(&from, key).unwrap();
    }
    out.set("tokenizer.ggml.tokens", tokens.iter().map(ToString::to_string).collect::<Vec<_>>());
    out.set("tokenizer.ggml.token_type", types);
    for info in from.tensors() {
        out.tensor(info.name.clone(), &info.shape, info.tensor_type().unwrap(), from.read(info).unwrap());
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    out.write_to(file.path()).unwrap();
    file
}

/// A run that may use 1 GiB of address space beyond what the program takes by itself.
#[cfg(target_os = "linux")]
fn run_within_a_gib(args: &[&str]) -> Output {
    use std::os::unix::process::CommandExt;
    const OWN: u64 = 512 << 20;
    let mut command = Command::new(PROGRAM);
    command.args(args).stdin(Stdio::null()).env("MALLOC_ARENA_MAX", "2");
    let limit = libc::rlimit { rlim_cur: OWN + (1 << 30), rlim_max: OWN + (1 << 30) };
    // SAFETY: between fork and exec only setrlimit is called, which is safe there.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_AS, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    command.output().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn h1_one_token_of_64000_ideographs_ends_no_process() {
    for (kind, name) in [(Kind::Llama, "SPM"), (Kind::Qwen3, "BPE")] {
        for token_type in [1, 3, 4] {
            for (characters, loads) in [(21_000, true), (64_000, false), (1 << 20, false)] {
                let file = with_token(kind, 400, &"漢".repeat(characters), token_type);
                let path = text(file.path());
                for args in [
                    &["inspect", path][..],
                    &["tokenize", "-m", path, "the 漢 day"],
                    &["generate", "-m", path, "--prompt", "the", "-n", "2", "--threads", "1"],
                ] {
                    let begun = std::time::Instant::now();
                    let output = run_within_a_gib(args);
                    let errors = String::from_utf8_lossy(&output.stderr);
                    let what = format!("{name}, type {token_type}, {characters}, {}: {errors}", args[0]);
                    assert!(begun.elapsed().as_secs() < 10, "{what} took {:?}", begun.elapsed());
                    if args[0] == "inspect" || loads {
                        assert_eq!(output.status.code(), Some(0), "{what}");
                    } else {
                        assert_eq!(output.status.code(), Some(1), "{what}");
                        assert!(errors.contains("entry 400") && errors.contains("65536"), "{what}");
                    }
                }
            }
        }
    }
}
