//! The library as C programs see it: exactly the published functions, with the published types, beside the path-opened
//! library in one process.
#![cfg(feature = "exports")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The functions that are here beside those of ABI 15.
const BESIDE: [&str; 3] =
    ["eliza_inference_arm_token_trie", "eliza_inference_clear_token_trie", "eliza_inference_set_token_trie"];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder of this test's build.
fn scratch() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("eliza-host");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The library under test (cargo build --lib).
fn library() -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../debug");
    built.join(format!("{}elizainference_host{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}\n{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The stubs of `lacking.rs` as plain functions, which cbindgen reads: it does not expand macros.
fn stubs() -> String {
    let source = fs::read_to_string(package().join("src/lacking.rs")).unwrap();
    let (_, listed) = source.split_once("\nlacking! {").unwrap();
    let (listed, _) = listed.split_once("\n}\n").unwrap();
    let mut plain = String::new();
    for entry in listed.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (kind, rest) = entry.split_once(' ').unwrap();
        let (head, rest) = rest.split_once('(').unwrap();
        let (arguments, made) = rest.rsplit_once(')').unwrap();
        let name = head.rsplit(' ').next().unwrap();
        let error = if arguments.trim().is_empty() { "" } else { "," }.to_owned() + " out_error: *mut *mut c_char";
        let (arguments, made) = match kind {
            "probe" => (String::new(), "-> c_int"),
            "rate" => ("ctx: *mut EliInferenceContext".into(), "-> c_int"),
            "call" => (arguments.to_owned() + &error, "-> c_int"),
            "open" => (arguments.to_owned() + &error, made),
            "close" => (arguments.into(), ""),
            other => panic!("{other}"),
        };
        writeln!(plain, "#[unsafe(no_mangle)] pub unsafe extern \"C\" fn {name}({arguments}) {made} {{ }}").unwrap();
    }
    plain
}

/// The declarations of all exports, as the sources say.
fn declared() -> String {
    let stubs_file = scratch().join("stubs.rs");
    fs::write(&stubs_file, stubs()).unwrap();
    let mut config = cbindgen::Config { language: cbindgen::Language::C, no_includes: true, ..Default::default() };
    config.export.item_types = vec![cbindgen::ItemType::Functions];
    config.style = cbindgen::Style::Type;
    config.export.rename.insert("StreamConfig".into(), "eliza_llm_stream_config_t".into());
    let mut builder = cbindgen::Builder::new().with_config(config).with_src(stubs_file);
    for name in ["answers", "config", "context", "edge", "lacking", "stream", "tries"] {
        builder = builder.with_src(package().join(format!("src/{name}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

/// The names of functions that declarations in C have.
fn names(declarations: &str) -> BTreeSet<String> {
    let words = declarations.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '('));
    let called = words.filter_map(|word| word.split_once('(')).map(|(name, _)| name);
    called.filter(|name| name.starts_with("eliza_inference_")).map(str::to_owned).collect()
}

#[test]
fn the_exports_are_the_published_ones() {
    let published = names(&fs::read_to_string(package().join("tests/published.h")).unwrap());
    let wanted: BTreeSet<String> = published.into_iter().chain(BESIDE.map(str::to_owned)).collect();
    assert_eq!(wanted.len(), 70 + BESIDE.len());
    assert_eq!(names(&declared()), wanted);
    if !cfg!(target_os = "linux") {
        eprintln!("skipped: the list of exports is read by nm, as Linux has it");
        return;
    }
    let listed = run(Command::new("nm").args(["--dynamic", "--defined-only", "--format=posix"]).arg(library()));
    let exported = listed.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(wanted, exported);
}

#[test]
fn a_c_host_with_the_published_declarations_gets_the_same_answer_as_by_path() {
    let folder = scratch();
    fs::write(folder.join("declared.h"), declared()).unwrap();
    let program = folder.join("host");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compile = Command::new(compiler);
    compile.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    compile.arg(package().join("tests/host.c")).arg("-I").arg(&folder).arg("-o").arg(&program).arg("-ldl");
    run(&mut compile);
    // Both are made by the tests of the core (make built-for-c).
    let (Some(core), Some(fixtures)) = (std::env::var_os("ELIZA_CORE_LIBRARY"), std::env::var_os("ELIZA_FIXTURES"))
    else {
        eprintln!("skipped: ELIZA_CORE_LIBRARY and ELIZA_FIXTURES do not say where library and models are");
        return;
    };
    let model = Path::new(&fixtures).join("llama-q8_0.gguf");
    let bundle = folder.join("bundle");
    fs::create_dir_all(bundle.join("text")).unwrap();
    fs::copy(&model, bundle.join("text/model.gguf")).unwrap();
    let said = run(Command::new(program).arg(library()).arg(core).arg(bundle).arg(model));
    assert!(said.ends_with("tokens alike\n"), "{said}");
}
