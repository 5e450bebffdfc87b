//! A program that is linked with the library where cargo leaves it starts there, without anything being installed.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folders of this build in which the library lies: its profile's and the one of what that consists of.
fn folders() -> Vec<PathBuf> {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let folders = [deps.parent().unwrap().to_owned(), deps];
    let file = if cfg!(target_vendor = "apple") { "libelizainference.dylib" } else { "libelizainference.so" };
    folders.into_iter().filter(|folder| folder.join(file).is_file()).collect()
}

#[test]
#[cfg(all(unix, not(target_os = "android")))]
fn a_program_linked_in_the_build_folder_starts() {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    if Command::new(&compiler).arg("--version").output().is_err() {
        eprintln!("skipped: no C compiler");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("main.c");
    let includes = "#include <eliza_inference.h>\n#include <stdio.h>\n";
    let main = "int main(void) { return puts(eliza_inference_abi_version()) < 0; }\n";
    std::fs::write(&source, [includes, main].concat()).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let folders = folders();
    assert!(!folders.is_empty(), "the library is in no folder of this build");
    for folder in folders {
        let program = scratch.path().join("program");
        let compiled = Command::new(&compiler)
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .arg(format!("-I{}", include.display()))
            .arg(format!("-L{}", folder.display()))
            .arg("-lelizainference")
            .arg(format!("-Wl,-rpath,{}", folder.display()))
            .output()
            .unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let run = Command::new(&program).output().unwrap();
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "in {}: {errors}", folder.display());
        assert!(String::from_utf8_lossy(&run.stdout).starts_with("eliza-stream/1."), "{run:?}");
    }
}
