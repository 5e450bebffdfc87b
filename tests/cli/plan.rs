//! `plan`: what opening a model takes, and what is refused because it does not fit.

use crate::program::{PLAN, failure, json, limited, stdout, text};
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::{assistant, fixture, fixture_folder, has_gpu};
use elizainference::gguf::File;
use serde_json::Value;
#[cfg(feature = "gpu")]
use std::path::Path;

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
    let plain = stdout(&[&["plan", "--slots", "1"], &how[..]].concat());
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

/// It is on the CPU, with the context of the model.
#[test]
fn a_plan_counts_the_draft_model() {
    let [path, draft] = [Weights::Q8_0, Weights::Q4_0].map(|weights| fixture(Kind::Llama, weights));
    let plan = |args: &[&str]| json(&[&PLAN, args, &["--threads", "1", "--ctx", "1024"]].concat());
    let of_cpu = |plan: &Value| plan["devices"][0]["total_bytes"].as_u64().unwrap();
    let [alone, of_draft] = [&path, &draft].map(|path| of_cpu(&plan(&["-m", text(path)])));
    let both = ["-m", text(&path), "--draft", text(&draft)];
    let found = plan(&both);
    assert_eq!(of_cpu(&found), alone + of_draft);
    assert_eq!((&found["draft"]["model"], &found["draft"]["total_bytes"]), (&text(&draft).into(), &of_draft.into()));
    assert_eq!(plan(&both[..2])["draft"], Value::Null);
    assert!(stdout(&[&["plan"], &both[..]].concat()).contains(text(&draft)));

    let (code, _, error) = limited(("ELIZA_MEMORY_LIMIT", "1G"), &[&["plan", "--parallel", "2"], &both[..]].concat());
    assert!(code == Some(1) && error.contains("parallel is 2"), "{error}");

    let limit = |bytes: u64, command: &str, more: &[&str]| {
        let args = [&[command], &both[..], &["--threads", "1", "--ctx", "1024"], more].concat();
        limited(("ELIZA_MEMORY_LIMIT", &bytes.to_string()), &args)
    };
    let generate = ["--prompt", "x", "-n", "1"];
    let (code, _, error) = limit(alone + of_draft, "generate", &generate);
    assert_eq!(code, Some(0), "{error}");
    let (code, _, error) = limit(alone + of_draft - 1, "generate", &generate);
    assert!(code == Some(1) && error.contains(text(&draft)), "{error}");
    let (_, shown, _) = limit(alone + of_draft - 1, "plan", &["--json"]);
    let refused: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&refused["fits"], &refused["largest_context"]), (&false.into(), &512.into()));
}

/// Slots with sessions of their own take what was planned for one context, and no byte more.
#[test]
fn a_plan_counts_concurrent_slots() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let model = ["-m", text(&path), "--threads", "1", "--concurrent-slots"];
    let plan = json(&[&["plan", "--json"], &model[..], &["--ctx", "26", "--slots", "2"]].concat());
    assert_eq!((&plan["concurrent_slots"], &plan["parallel"], &plan["context"]), (&true.into(), &1.into(), &32.into()));
    let total = plan["devices"][0]["total_bytes"].as_u64().unwrap();
    let bench = |bytes: u64| {
        let work = ["--streams", "2", "--depth", "8", "--tg", "4", "--reps", "1", "--json"];
        limited(("ELIZA_MEMORY_LIMIT", &bytes.to_string()), &[&["bench"], &model[..], &work[..]].concat())
    };
    let (code, shown, error) = bench(total);
    assert_eq!(code, Some(0), "{error}");
    let report: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&report["streams"], &report["concurrent_slots"]), (&2.into(), &true.into()));
    let (code, _, error) = bench(total - 1);
    assert!(code == Some(1) && error.contains("Out of memory"), "{error}");
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
    // The residual's rows cross, four bytes a value: before the two layers, and back to the output's norm.
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

/// Its block that predicts further tokens takes weights, a cache and the hidden rows of a pass.
#[test]
fn a_plan_counts_the_block_that_drafts() {
    let path = fixture(Kind::Qwen35, Weights::Q8_0);
    let how = ["-m", text(&path), "--threads", "1", "--ctx", "1024"];
    let drafted = [&how[..], &["--draft", text(&path)]].concat();
    let [alone, found] = [&how[..], &drafted].map(|how| json(&[&PLAN, how].concat()));
    let [alone, total] = [&alone, &found].map(|plan| plan["devices"][0]["total_bytes"].as_u64().unwrap());
    let of_draft = found["draft"]["total_bytes"].as_u64().unwrap();
    assert_eq!(found["draft"]["model"], text(&path));
    // The weights of one more layer, and not all of them again.
    let bytes = std::fs::metadata(&path).unwrap().len();
    let weights = total - alone - of_draft;
    assert!(weights > bytes / 20 && weights < bytes / 3, "{weights} of {bytes}");
    let generate = [&["generate", "--prompt", "x", "-n", "1"], &drafted[..]].concat();
    let (code, _, error) = limited(("ELIZA_MEMORY_LIMIT", &total.to_string()), &generate);
    assert_eq!(code, Some(0), "{error}");
    let (code, _, error) = limited(("ELIZA_MEMORY_LIMIT", &(total - 1).to_string()), &generate);
    assert!(code == Some(1) && error.contains(&format!("needs {total} bytes")), "{error}");
}

/// One that is attached to the model's engine takes weights and the hidden rows of a pass.
#[test]
fn a_plan_counts_a_draft_model_that_is_attached() {
    let path = fixture(Kind::Gemma3, Weights::Q8_0);
    let (draft, _) = assistant::write(&fixture_folder(), &File::open(&path).unwrap());
    let how = ["-m", text(&path), "--draft", text(&draft), "--threads", "1", "--ctx", "1024"];
    let found = json(&[&PLAN, &how[..]].concat());
    let of_draft = found["draft"]["total_bytes"].as_u64().unwrap();
    let (bytes, rows) = (std::fs::metadata(&draft).unwrap().len(), 512 * 64 * 4);
    assert!(of_draft > rows + bytes / 2 && of_draft < rows + 2 * bytes, "{of_draft} of {bytes}");
    let total = found["devices"][0]["total_bytes"].as_u64().unwrap();
    let generate = [&["generate", "--prompt", "x", "-n", "1"], &how[..]].concat();
    let (code, _, error) = limited(("ELIZA_MEMORY_LIMIT", &total.to_string()), &generate);
    assert_eq!(code, Some(0), "{error}");
    let (code, _, error) = limited(("ELIZA_MEMORY_LIMIT", &(total - of_draft).to_string()), &generate);
    assert!(code == Some(1) && error.contains(text(&draft)), "{error}");
    for command in [&["plan"][..], &["generate", "--prompt", "x"]] {
        let alone = failure(1, &[command, &["-m", text(&draft)]].concat());
        assert!(alone.contains("draft model of another model"), "{alone}");
        let other = fixture(Kind::Qwen3, Weights::Q8_0);
        let foreign = failure(1, &[command, &["-m", text(&other), "--draft", text(&draft)]].concat());
        assert!(foreign.contains(text(&draft)), "{foreign}");
    }
}
