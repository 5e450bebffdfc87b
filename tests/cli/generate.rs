//! `generate` and `trie`: texts, chains, constraints, broken pipes, interrupts.

use crate::program::{PROGRAM, failure, json, run, stdout, text};
use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

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
    // So is one whose tokens another model guesses.
    assert_eq!(stdout(&[&long[..], &["--draft", text(&path)]].concat()), stdout(&long));
    let missing = failure(1, &[&long[..], &["--draft", "/nonexistent/draft.gguf"]].concat());
    assert!(missing.contains("/nonexistent/draft.gguf"), "{missing}");
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

/// Prompts go to slots 0, 1, … in turn. A chain is that of the prompt before it, or, before all, of those
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
fn a_conversation_is_kept_between_runs() {
    let path = fixture(Kind::Qwen35, Weights::F32);
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let prompt = "Once upon a time there was a fox.".repeat(4);
    let longer = format!("{prompt} And then");
    let begin = |prompt| vec!["generate", "-m", text(&path), "--prompt", prompt, "-n", "0", "--ignore-eos", "--json"];
    let kept = ["--store", text(&store), "--conversation", "fox"];
    let first = json(&[&begin(&prompt)[..], &kept].concat());
    assert_eq!(first["usage"]["prompt_tokens_restored"], 0);
    let second = json(&[&begin(&longer)[..], &kept].concat());
    assert_eq!(second["usage"]["prompt_tokens_restored"], first["prompt_tokens"], "{second}");
    assert!(failure(2, &[&begin(&prompt)[..], &["--store", text(&store)]].concat()).contains("--conversation"));
    failure(2, &[&begin(&prompt)[..], &kept, &["--prompt", "two"]].concat());
    // The text is told all the same.
    let small = run(&[&begin(&prompt)[..], &kept, &["--store-bytes", "1000"]].concat());
    let problem = String::from_utf8_lossy(&small.stderr);
    assert!(small.status.code() == Some(1) && problem.contains("limited to 1000"), "{problem}");
    assert!(!small.stdout.is_empty());
}
