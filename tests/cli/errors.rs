//! What is refused, what is warned of, and what a broken file cannot do.

use crate::program::{PROGRAM, failure, run, text};
use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
#[cfg(feature = "gpu")]
use crate::testing::has_gpu;
use elizainference::gguf::{File, Writer};
use std::path::Path;
use std::process::{Command, Output, Stdio};

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
