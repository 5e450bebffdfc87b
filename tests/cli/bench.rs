//! `bench` and `devices`.

use crate::program::{failure, json, stdout, text};
use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use elizainference::gguf::File;

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
    assert_eq!((&found["threads"], &found["depth"]), (&1.into(), &0.into()));
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
    // At a depth the cache is read too: as many tokens of it, and half of those decoded.
    let deep = json(&[&args[..], &["--depth", "20", "--sequences", "2"]].concat());
    let of = |report: &serde_json::Value| report["cache_bytes_per_step"].as_u64().unwrap();
    assert!(of(&found) > 0 && of(&deep) == of(&found) / 2 * 22 * 2, "{found} {deep}");
    assert!(deep["prompt_tok_s"].as_f64().unwrap() > 0.0 && deep["decode_tok_s"].as_f64().unwrap() > 0.0, "{deep}");
    let devices = json(&["devices", "--json"]);
    let devices = devices.as_array().unwrap();
    assert!(devices.iter().any(|d| d["kind"] == "cpu"), "{devices:?}");
    assert!(devices.is_sorted_by_key(|d| std::cmp::Reverse(d["score"].as_u64())), "{devices:?}");
    assert_eq!(stdout(&["devices"]).lines().count(), devices.len());
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
    // The same three names by a grammar of theirs, which other modes are compared with in the same run.
    let guided = bench("strict-guided", &[]);
    assert!(
        guided["names"].as_array().unwrap().iter().all(|name| ["9:;", "CDE", "MNO"].contains(&name.as_str().unwrap()))
    );
    assert!(guided["skip_ratio_mean"].as_f64().unwrap() > 0.9 && guided["token_accuracy"].is_null());
    assert!(mask["tokens_per_second_vs_grammar"].as_f64().unwrap() > 0.0);
    assert!((0.0..=1.0).contains(&mask["token_accuracy"].as_f64().unwrap()));
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
