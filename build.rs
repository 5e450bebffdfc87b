//! Generates the C header into the build folder and sets how the shared library is linked.
//!
//! The header is made from `src/ffi` and `cbindgen.toml` alone, so ordinary builds skip this. It never goes into the
//! source tree: `tests/house/header.rs` compares it with the committed `include/eliza_inference.h`.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources whose exports make the header, in the order of its sections.
const NOUNS: [&str; 21] = [
    "version", "status", "handle", "open", "devices", "stream", "trie", "grammar", "saved", "llama", "sampler",
    "errors", "pull", "options", "usage", "tokens", "embed", "chat", "model", "strings", "log",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cbindgen.toml");
    println!("cargo:rerun-if-changed=src/ffi");
    link();
    hide();
    musl()?;
    name()?;
    header()
}

fn is(key: &str, value: &str) -> bool {
    env::var(key).is_ok_and(|found| found == value)
}

/// On ELF, `dlclose` leaves the library mapped: its worker threads may still be running when the host lets go. Android
/// devices have pages of 4 or 16 KiB, and a library aligned for less does not load on the latter; processes of musl run
/// there too.
fn link() {
    let elf = env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family == "unix")
        && env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor != "apple");
    let android = is("CARGO_CFG_TARGET_OS", "android") || is("CARGO_CFG_TARGET_ENV", "musl");
    for (wanted, keyword) in [(elf, "nodelete"), (android, "max-page-size=16384")] {
        if wanted {
            // As two arguments it is understood by compilers that link and by linkers alike.
            println!("cargo:rustc-link-arg-cdylib=-z");
            println!("cargo:rustc-link-arg-cdylib={keyword}");
        }
    }
}

/// llguidance has a C interface of its own, which the library would export too.
fn hide() {
    if env::var_os("CARGO_FEATURE_LLGUIDANCE").is_none() {
        return;
    }
    if is("CARGO_CFG_TARGET_VENDOR", "apple") {
        println!("cargo:rustc-link-arg-cdylib=-Wl,-unexported_symbol,_llg_*");
    } else if is("CARGO_CFG_TARGET_FAMILY", "unix") {
        println!("cargo:rustc-link-arg-cdylib=-Wl,--exclude-libs=ALL");
    }
}

/// A library for musl shares the libc of the process that opens it, and brings its own unwinder along. It has to be
/// linked by a compiler for musl: one for glibc would give a file that names glibc, without a word.
fn musl() -> Result<(), Box<dyn Error>> {
    if !is("CARGO_CFG_TARGET_ENV", "musl") {
        return Ok(());
    }
    if env::var("CARGO_CFG_TARGET_FEATURE").is_ok_and(|all| all.split(',').any(|one| one == "crt-static")) {
        return Err("a library for musl needs -Ctarget-feature=-crt-static, as .cargo/config.toml says; \
                    RUSTFLAGS and --config take the place of what stands there"
            .into());
    }
    // Only musl has this function.
    println!("cargo:rustc-link-arg-cdylib=-Wl,--require-defined=__fseterr");
    // The unwinder that Rust asks for is the shared libgcc_s. Rust has its own as an archive, which takes the place of
    // it.
    let printed = Command::new(env::var("RUSTC")?)
        .args(["--print", "target-libdir", "--target", &env::var("TARGET")?])
        .output()?;
    let unwinder = Path::new(String::from_utf8(printed.stdout)?.trim()).join("self-contained/libunwind.a");
    if unwinder.exists() {
        let out = PathBuf::from(env::var("OUT_DIR")?);
        fs::write(out.join("libgcc_s.so"), format!("INPUT(\"{}\")\n", unwinder.display()))?;
        println!("cargo:rustc-link-search=native={}", out.display());
    }
    Ok(())
}

/// The name that programs linked with the library ask for. It changes with the interface's major version alone, which
/// the tests of the installed package hold against the header. Android packs libraries under plain file names, so there
/// it has none.
fn name() -> Result<(), Box<dyn Error>> {
    if is("CARGO_CFG_TARGET_VENDOR", "apple") {
        println!("cargo:rustc-link-arg-cdylib=-Wl,-install_name,@rpath/libelizainference.1.dylib");
        link_in_build_folder("libelizainference.dylib", "libelizainference.1.dylib")
    } else if is("CARGO_CFG_TARGET_FAMILY", "unix") && !is("CARGO_CFG_TARGET_OS", "android") {
        // Arguments for a cdylib alone would also reach the libraries of crates that hold this one.
        println!("cargo:rustc-link-arg=-Wl,-soname,libelizainference.so.1");
        link_in_build_folder("libelizainference.so", "libelizainference.so.1")
    } else {
        Ok(())
    }
}

/// Programs that are linked with the library in cargo's folders, where it is not installed, start there too: beside it
/// is a link with the name that they ask for.
#[cfg(unix)]
fn link_in_build_folder(file: &str, name: &str) -> Result<(), Box<dyn Error>> {
    // OUT_DIR is PROFILE/build/PACKAGE/out.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for folder in out.ancestors().nth(3).into_iter().flat_map(|profile| [profile.to_owned(), profile.join("deps")]) {
        let link = folder.join(name);
        if folder.is_dir() && link.read_link().map_or(true, |target| target.as_os_str() != file) {
            let _ = fs::remove_file(&link);
            if let Err(error) = std::os::unix::fs::symlink(file, &link) {
                println!("cargo:warning={}: {error}; programs linked in this folder may not start", link.display());
            }
        }
    }
    Ok(())
}

#[cfg(not(unix))]
fn link_in_build_folder(_: &str, _: &str) -> Result<(), Box<dyn Error>> {
    Ok(())
}

fn header() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let mut builder = cbindgen::Builder::new().with_config(cbindgen::Config::from_file(root.join("cbindgen.toml"))?);
    for noun in NOUNS {
        builder = builder.with_src(root.join("src/ffi").join(noun).with_extension("rs"));
    }
    builder.generate()?.write_to_file(PathBuf::from(env::var("OUT_DIR")?).join("eliza_inference.h"));
    Ok(())
}
