//! The first minutes of this library on a machine with a GPU: `gpu_kit [--minutes N] [--out FOLDER]`.
//!
//! `tools/gpu_kit.sh` packs it with what it runs: the command line program, the maker of models, small models, the demo
//! model, and llama.cpp's Vulkan build with its bench, packed, all in the folder of this program. It goes through
//! stages, from whether kernels are right to how fast they are; each step is a process of its own with a limit of time,
//! so that one that hangs or dies is a line of the result. After every step `results.json` and `page.md` in the output
//! folder hold everything so far. Steps for which no time is left are named as left out. The exit status is 1 where a
//! step failed.

use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// What a step came to: what it measured, in words, and its figures.
type Step = Result<(String, Value), Problem>;

/// Why a step came to nothing.
enum Problem {
    Failed(String),
    NoTime,
}

impl From<String> for Problem {
    fn from(why: String) -> Problem {
        Problem::Failed(why)
    }
}

/// Types of matrices whose kernels are tried.
const TYPES: [&str; 8] = ["f32", "f16", "bf16", "q8_0", "q4_0", "q5_0", "q4_k", "q6_k"];
/// Types of the cache.
const CACHES: [&str; 3] = ["f32", "f16", "q8_0"];
/// Chains that are sampled on the device and, after a step that only the host has and that does nothing, on the host.
const CHAINS: [&str; 3] =
    ["greedy", "top_k=40;top_p=0.95;min_p=0.05;temp=0.8", "penalties=16,1.2,0.1,0.1;top_k=20;temp=1.2"];
const FOR_THE_HOST: &str = "typ_p=1;";
/// The largest difference of a logit, in units of the row's spread, where nothing is rounded.
const EXACT: f64 = 1e-3;
/// The same where the GPU may make halves of weights and activations, for its matrix instructions.
const HALVES: f64 = 5e-3;
/// The same where the CPU rounds activations to eight bits and the GPU does not.
const ROUNDED: f64 = 0.25;
/// What `ELIZA_GPU_RESTRICT` says where the device is taken as it is.
const AS_IT_IS: &str = "";
/// Where a system has Vulkan's loader; elsewhere the kit's own is taken.
const LOADERS: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/libvulkan.so.1",
    "/usr/lib64/libvulkan.so.1",
    "/usr/lib/libvulkan.so.1",
    "/lib/x86_64-linux-gnu/libvulkan.so.1",
];
/// The longest that one process may take.
const LONGEST: Duration = Duration::from_secs(150);
/// Models whose kernels are measured one by one.
const KERNELS: [(&str, &str); 3] = [("qwen3-0.6b", "q4_k"), ("llama-7b-8-layers", "q4_k"), ("tiny", "q4_k")];
/// Models whose speed is measured, by importance: shape and type.
const MODELS: [(&str, &str); 5] = [
    ("qwen3-0.6b", "q4_k"),
    ("tinyllama-1.1b", "q4_k"),
    ("llama-7b-8-layers", "q4_k"),
    ("qwen3-0.6b", "q8_0"),
    ("gemma3-270m", "q8_0"),
];

struct Kit {
    /// The programs and models.
    home: PathBuf,
    /// Results, and models that are made here.
    out: PathBuf,
    started: Instant,
    time: Duration,
    /// Whether the best device is a software driver, whose times say nothing: small models do.
    software: bool,
    rows: Vec<Row>,
}

struct Row {
    stage: &'static str,
    name: String,
    /// `ok`, `failed` or `left out`.
    came_to: &'static str,
    words: String,
    figures: Value,
    seconds: f64,
}

impl Kit {
    /// Runs a step, and writes what there is so far.
    fn step(&mut self, stage: &'static str, name: &str, run: impl FnOnce(&Kit) -> Step) {
        let begun = Instant::now();
        let came = if self.left().is_zero() { Err(Problem::NoTime) } else { run(self) };
        let (came_to, words, figures) = match came {
            Ok((words, figures)) => ("ok", words, figures),
            Err(Problem::Failed(why)) => ("failed", why, Value::Null),
            Err(Problem::NoTime) => ("left out", "no time was left".to_string(), Value::Null),
        };
        println!("{stage}: {name}: {came_to}: {}", words.lines().next().unwrap_or_default());
        let seconds = begun.elapsed().as_secs_f64();
        self.rows.push(Row { stage, name: name.to_string(), came_to, words, figures, seconds });
        if let Err(problem) = self.write() {
            eprintln!("{}: {problem}", self.out.display());
        }
    }

    fn left(&self) -> Duration {
        self.time.saturating_sub(self.started.elapsed())
    }

    fn write(&self) -> std::io::Result<()> {
        let mut page = String::from("# This GPU\n\n| stage | step | result | |\n|---|---|---|---|\n");
        let mut all = Vec::new();
        for Row { stage, name, came_to, words, figures, seconds } in &self.rows {
            let line = words.replace('\n', " ").replace('|', "/");
            let _ = writeln!(page, "| {stage} | {name} | {came_to} | {line} |");
            all.push(json!({
                "stage": stage, "step": name, "result": came_to, "words": words, "figures": figures, "seconds": seconds,
            }));
        }
        fs::write(self.out.join("results.json"), format!("{:#}\n", Value::Array(all)))?;
        fs::write(self.out.join("page.md"), page)
    }

    /// What a program of the kit prints, within the time that is left.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Problem> {
        self.run_on(AS_IT_IS, program, arguments)
    }

    /// As [`Kit::run`], with this for `ELIZA_GPU_RESTRICT`.
    fn run_on(&self, restrictions: &str, program: &str, arguments: &[&str]) -> Result<String, Problem> {
        let mut command = Command::new(self.home.join(program));
        command.args(arguments).env("ELIZA_CACHE_DIR", text_of(&self.out)).stdin(Stdio::null());
        // Mesa's software driver takes longer to optimise a kernel than to run it here.
        command.env("ELIZA_GPU_RESTRICT", restrictions).env("GALLIVM_PERF", "nopt");
        if !LOADERS.iter().any(|path| Path::new(path).exists()) {
            command.env("LD_LIBRARY_PATH", self.home.join("lib"));
        }
        let files = ["stdout", "stderr"].map(|name| self.out.join(name));
        let open = |path: &Path| fs::File::create(path).map_err(|e| format!("{}: {e}", path.display()));
        command.stdout(open(&files[0])?).stderr(open(&files[1])?);
        let mut child = command.spawn().map_err(|e| format!("{program}: {e}"))?;
        let left = self.left();
        let limit = Instant::now() + left.min(LONGEST);
        let status = loop {
            match child.try_wait().map_err(|e| e.to_string())? {
                Some(status) => break status,
                None if Instant::now() > limit => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(match left < LONGEST {
                        true => Problem::NoTime,
                        false => format!("{program} {} gave no answer in {LONGEST:?}", arguments.join(" ")).into(),
                    });
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let read =
            |path: &Path| fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default();
        match status.success() {
            true => Ok(read(&files[0])),
            false => {
                Err(format!("{program} {}: {status}\n{}", arguments.join(" "), last_lines(&read(&files[1]))).into())
            }
        }
    }

    fn json(&self, restrictions: &str, program: &str, arguments: &[&str]) -> Result<Value, Problem> {
        let text = self.run_on(restrictions, program, arguments)?;
        serde_json::from_str(&text).map_err(|e| format!("{program}: {e}: {}", last_lines(&text)).into())
    }

    /// A model of random weights, made where it is not there yet.
    fn model(&self, shape: &str, ty: &str) -> Result<String, Problem> {
        let path = self.out.join(format!("{shape}-{ty}.gguf"));
        let name = text_of(&path);
        if !path.exists() {
            let (plain, partial) = (format!("{name}.f16"), format!("{name}.partial"));
            self.run("make_model", &[shape, &plain])?;
            self.run("eliza-inference", &["quantize", &plain, &partial, "--type", ty])?;
            let _ = fs::remove_file(&plain);
            fs::rename(&partial, &path).map_err(|e| format!("{name}: {e}"))?;
        }
        Ok(name)
    }

    /// Rows of logits of so many tokens, in passes of 300, the last four evaluated one by one.
    fn logits(&self, restrictions: &str, length: usize, arguments: &[&str]) -> Result<Vec<f32>, Problem> {
        let out = text_of(&self.out.join("logits"));
        let tokens: Vec<String> = (0..length).map(|i| ((i * 37 + 11) % 200).to_string()).collect();
        let tokens = tokens.join(",");
        let always = ["logits", "--n-batch", "300", "--prompt-tokens", &tokens, "--decode", "4", "--out", &out];
        self.run_on(restrictions, "eliza-inference", &[&always, arguments].concat())?;
        let bytes = fs::read(&out).map_err(|e| format!("{out}: {e}"))?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// The logits of GPU and CPU for short and long prompts. Opening runs the known answers of every kernel that the
    /// model needs, so a kernel that computes wrongly is the error here.
    fn parity(&self, model: &str, cache: &str, bound: f64) -> Step {
        self.parity_on((AS_IT_IS, &[]), model, cache, bound)
    }

    /// The same with restrictions, and arguments that choose devices.
    fn parity_on(&self, (restrictions, devices): (&str, &[&str]), model: &str, cache: &str, bound: f64) -> Step {
        // Passes of 300 and 7 rows, or of 14, and single rows at the end: all classes of row counts.
        let lengths: &[usize] = if self.software { &[311] } else { &[311, 18] };
        let mut worst = 0.0f64;
        for &length in lengths {
            let on = |layers, devices: &[&str]| {
                let arguments = ["--model", model, "--kv-type", cache, "--gpu-layers", layers];
                self.logits(restrictions, length, &[&arguments, devices].concat())
            };
            worst = worst.max(difference(&on("0", &[])?, &on("-1", devices)?)?);
        }
        match worst <= bound {
            true => Ok((format!("at most {worst:.1e} of the spread apart"), json!({ "worst": worst, "bound": bound }))),
            false => Err(format!("{worst:.1e} of the spread apart, the bound is {bound:.0e}").into()),
        }
    }

    fn demo(&self) -> String {
        text_of(&self.home.join("models/demo.gguf"))
    }

    /// The text of a chain sampled on the device, and on the host.
    fn sampling(&self, chain: &str) -> Step {
        let demo = self.demo();
        let text = |chain: &str| {
            let arguments = [
                "generate",
                "--model",
                &demo,
                "--gpu-layers",
                "-1",
                "--chain",
                chain,
                "--seed",
                "7",
                "-n",
                "64",
                "--ignore-eos",
                "-p",
                "Please ",
            ];
            self.run("eliza-inference", &arguments)
        };
        let (device, host) = (text(chain)?, text(&[FOR_THE_HOST, chain].concat())?);
        match device == host {
            true => Ok((format!("{} bytes of text are equal", device.len()), Value::Null)),
            false => Err(format!("device: {device:?}, host: {host:?}").into()),
        }
    }

    /// The names that GPU and CPU choose.
    fn spans(&self, mode: &str) -> Step {
        let (demo, trie) = (self.demo(), text_of(&self.out.join("trie.json")));
        let names = text_of(&self.home.join("models/demo_actions.txt"));
        let payload =
            self.run("eliza-inference", &["trie", "--model", &demo, "--path", "actions", "--names", &names, "--json"])?;
        fs::write(&trie, payload).map_err(|e| format!("{trie}: {e}"))?;
        let mut chosen = Vec::new();
        for prompt in ["play some music", "what is the weather", "send a message to Ann", "set an alarm"] {
            let name = |layers: &str| {
                let arguments = [
                    "generate",
                    "--model",
                    &demo,
                    "--gpu-layers",
                    layers,
                    "--trie",
                    &trie,
                    "--trie-mode",
                    mode,
                    "--on-span-end",
                    "stop",
                    "--chain",
                    "greedy",
                    "-p",
                    prompt,
                ];
                self.run("eliza-inference", &arguments).map(|text| text.trim().to_string())
            };
            let (cpu, gpu) = (name("0")?, name("-1")?);
            if cpu != gpu {
                return Err(format!("{prompt:?}: the CPU chooses {cpu:?}, the GPU {gpu:?}").into());
            }
            chosen.push(gpu);
        }
        Ok((chosen.join(", "), json!(chosen)))
    }

    /// How often a bench is run, with how many tokens of a prompt and of an answer, and how often in one run. On a
    /// software driver once: that it runs at all is what one learns there.
    fn size(&self) -> (usize, [&'static str; 3]) {
        if self.software { (1, ["128", "16", "1"]) } else { (3, ["512", "64", "3"]) }
    }

    /// Our speed, with sampling on the device and on the host, in turn with the peer's.
    fn speed(&self, shape: &str, ty: &str) -> Step {
        let model = self.model(shape, ty)?;
        let (times, [pp, tg, reps]) = self.size();
        let ours = |more: &[&str]| {
            let arguments =
                ["bench", "--model", &model, "--gpu-layers", "-1", "--pp", pp, "--tg", tg, "--reps", reps, "--json"];
            self.json(AS_IT_IS, "eliza-inference", &[&arguments[..], more].concat())
        };
        let libraries = text_of(&self.out.join("llama"));
        let program = text_of(&self.out.join("llama/llama_bench"));
        let peer = || self.json(AS_IT_IS, &program, &[&libraries, "bench", &model, "4", "999", pp, tg, reps]);
        let [mut device, mut host, mut theirs] = [const { Vec::new() }; 3];
        for _ in 0..times {
            device.push(ours(&[])?);
            host.push(ours(&["--host-sampling"])?);
            if Path::new(&program).exists() {
                theirs.push(peer()?);
            }
        }
        let [decode, prompt, read] =
            ["decode_tok_s", "prompt_tok_s", "bandwidth_fraction"].map(|key| median(&device, key));
        let mut words =
            format!("decode {decode:.1} tok/s, {:.0} % of bandwidth, prompt {prompt:.0} tok/s", 100.0 * read);
        let _ = write!(words, "; on the host {:.1}", median(&host, "decode_tok_s"));
        if !theirs.is_empty() {
            let [decode, prompt] = ["decode_tok_s", "prompt_tok_s"].map(|key| ratios(&device, &theirs, key));
            let _ = write!(words, "; times llama.cpp: decode {decode:.2}, prompt {prompt:.2}");
        }
        Ok((words, json!({ "device": device, "host": host, "peer": theirs })))
    }

    /// What one bench says, without a peer.
    fn bench(&self, shape: &str, ty: &str, more: &[&str]) -> Step {
        let model = self.model(shape, ty)?;
        let (_, [_, _, reps]) = self.size();
        let arguments = ["bench", "--model", &model, "--gpu-layers", "-1", "--reps", reps, "--json"];
        let report = self.json(AS_IT_IS, "eliza-inference", &[&arguments[..], more].concat())?;
        let mut words = format!("decode {:.1} tok/s", median(std::slice::from_ref(&report), "decode_tok_s"));
        let kernels = report["kernels"].as_array().into_iter().flatten().take(6);
        for kernel in kernels {
            let us = kernel["us"].as_f64().unwrap_or(0.0) / kernel["dispatches"].as_f64().unwrap_or(1.0);
            let _ = write!(words, "; {} {us:.1} us", kernel["kernel"].as_str().unwrap_or_default());
        }
        Ok((words, report))
    }

    /// Prompts as they are on this device, in turn with those by integer dot products and by floats, both without
    /// matrix instructions.
    fn prompts(&self, shape: &str, ty: &str) -> Step {
        let model = self.model(shape, ty)?;
        let (times, [pp, _, reps]) = self.size();
        let arguments =
            ["bench", "--model", &model, "--gpu-layers", "-1", "--pp", pp, "--tg", "0", "--reps", reps, "--json"];
        let ways = [AS_IT_IS, "matrices=off,dots=on", "matrices=off,dots=off"];
        let mut reports = ways.map(|_| Vec::new());
        for _ in 0..times {
            for (way, reports) in ways.into_iter().zip(&mut reports) {
                reports.push(self.json(way, "eliza-inference", &arguments)?);
            }
        }
        let [own, dots, floats] = reports.each_ref().map(|reports| median(reports, "prompt_tok_s"));
        let words = format!("prompt {own:.0} tok/s, {dots:.0} by integer dot products, {floats:.0} by floats");
        Ok((words, json!({ "own": reports[0], "dots": reports[1], "floats": reports[2] })))
    }

    /// The small models that came with the kit.
    fn architectures(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.home.join("models/architectures")).into_iter().flatten();
        let mut all: Vec<PathBuf> = files.filter_map(|file| Some(file.ok()?.path())).collect();
        all.sort();
        all
    }
}

fn text_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}

/// The largest difference of two sets of logits, in units of their spread.
fn difference(a: &[f32], b: &[f32]) -> Result<f64, String> {
    if a.len() != b.len() || a.is_empty() {
        return Err(format!("{} and {} logits", a.len(), b.len()));
    }
    if let Some(bad) = b.iter().find(|x| !x.is_finite()) {
        return Err(format!("a logit of {bad}"));
    }
    let mean = a.iter().map(|&x| f64::from(x)).sum::<f64>() / a.len() as f64;
    let spread = (a.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / a.len() as f64).sqrt();
    let most = a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs()).fold(0.0, f64::max);
    Ok(most / spread.max(1e-9))
}

fn median(results: &[Value], key: &str) -> f64 {
    middle(results.iter().filter_map(|result| result[key].as_f64()).collect())
}

fn ratios(ours: &[Value], theirs: &[Value], key: &str) -> f64 {
    let pair = |(a, b): (&Value, &Value)| Some(a[key].as_f64()? / b[key].as_f64()?);
    middle(ours.iter().zip(theirs).filter_map(pair).collect())
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn stages(kit: &mut Kit) {
    kit.step("devices", "what there is", |kit| {
        let found = kit.json(AS_IT_IS, "eliza-inference", &["devices", "--json"])?;
        let gpus = found.as_array().into_iter().flatten().filter(|device| device["kind"] == "gpu");
        let names: Vec<&str> = gpus.filter_map(|device| device["name"].as_str()).collect();
        match names.is_empty() {
            false => Ok((names.join(", "), found.clone())),
            true => Err("no GPU with a driver for Vulkan".to_string().into()),
        }
    });
    // Software drivers have a score below the CPU's.
    let devices = kit.rows.last().and_then(|row| row.figures.as_array().cloned()).unwrap_or_default();
    let scores = devices.iter().filter(|device| device["kind"] == "gpu").filter_map(|device| device["score"].as_u64());
    kit.software = scores.max().is_none_or(|best| best < 100);
    for ty in TYPES {
        let bound = match ty {
            "f32" => EXACT,
            "f16" | "bf16" => HALVES,
            _ => ROUNDED,
        };
        kit.step("parity", &format!("matrices of {ty}"), |kit| kit.parity(&kit.model("tiny", ty)?, "f32", bound));
        if matches!(ty, "f16" | "bf16") {
            kit.step("parity", &format!("matrices of {ty} without matrix instructions"), |kit| {
                kit.parity_on(("matrices=off", &[]), &kit.model("tiny", ty)?, "f32", EXACT)
            });
        }
    }
    for cache in CACHES {
        kit.step("parity", &format!("cache of {cache}"), |kit| {
            let bound = if cache == "q8_0" { ROUNDED } else { EXACT };
            kit.parity(&kit.model("tiny", "f32")?, cache, bound)
        });
    }
    kit.step("parity", "two devices", |kit| {
        kit.parity_on(("twins=on", &["--tensor-split", "1,1"]), &kit.model("tiny", "f32")?, "f32", EXACT)
    });
    for chain in CHAINS {
        kit.step("sampling", chain, |kit| kit.sampling(chain));
    }
    for mode in ["greedy", "score"] {
        kit.step("spans", mode, |kit| kit.spans(mode));
    }
    kit.step("speed", "llama.cpp", |kit| {
        let (packed, folder) = (text_of(&kit.home.join("llama.tar.gz")), text_of(&kit.out.join("llama")));
        fs::create_dir_all(&folder).map_err(|e| format!("{folder}: {e}"))?;
        kit.run("/bin/tar", &["-xzf", &packed, "-C", &folder]).map(|_| ("unpacked".to_string(), Value::Null))
    });
    let models: &[(&str, &str)] = if kit.software { &[("tiny", "q4_k")] } else { &MODELS };
    for (shape, ty) in models {
        kit.step("speed", &format!("{shape} {ty}"), |kit| kit.speed(shape, ty));
    }
    let (shape, ty) = models[0];
    kit.step("speed", &format!("prompts of {shape} {ty}"), |kit| kit.prompts(shape, ty));
    let depth = if kit.software { "512" } else { "8192" };
    kit.step("speed", &format!("{depth} tokens before"), |kit| {
        let (_, [_, tg, _]) = kit.size();
        kit.bench(shape, ty, &["--pp", "0", "--tg", tg, "--depth", depth])
    });
    for (shape, ty) in models.iter().filter(|model| KERNELS.contains(model)) {
        kit.step("kernels", &format!("{shape} {ty}"), |kit| {
            let (_, [pp, tg, _]) = kit.size();
            kit.bench(shape, ty, &["--pp", pp, "--tg", tg, "--profile"])
        });
    }
    for path in kit.architectures() {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        kit.step("architectures", &name, |kit| kit.parity(&text_of(&path), "f32", ROUNDED));
    }
}

fn run() -> Result<bool, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let home = program.parent().map(Path::to_path_buf).unwrap_or_default();
    let (mut minutes, mut out) = (8.0, home.join("out"));
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--minutes" => minutes = value.parse().map_err(|_| format!("{value} is no number of minutes"))?,
            "--out" => out = PathBuf::from(value),
            _ => return Err(format!("{argument}: there are --minutes N and --out FOLDER")),
        }
    }
    fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    let time = Duration::try_from_secs_f64(minutes * 60.0).map_err(|e| e.to_string())?;
    let mut kit = Kit { home, out, started: Instant::now(), time, software: false, rows: Vec::new() };
    stages(&mut kit);
    let mut counts = Map::new();
    for row in &kit.rows {
        let count = counts.get(row.came_to).and_then(Value::as_u64).unwrap_or(0);
        counts.insert(row.came_to.to_string(), json!(count + 1));
    }
    println!("{}: {}", kit.out.join("page.md").display(), Value::Object(counts));
    Ok(kit.rows.iter().all(|row| row.came_to != "failed"))
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("gpu_kit: {problem}");
            ExitCode::from(2)
        }
    }
}
