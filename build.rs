//! Generates the C header into the build folder and sets how the shared library is linked.
//!
//! The header is made from `src/ffi` and `cbindgen.toml` alone, so ordinary builds skip this. It never goes into the
//! source tree: `tests/header.rs` compares it with the committed `include/eliza_inference.h`.

use std::env;
use std::error::Error;
use std::path::PathBuf;

/// The sources whose exports make the header, in the order of its sections.
const NOUNS: [&str; 17] = [
    "version", "status", "handle", "open", "devices", "stream", "trie", "saved", "sampler", "errors", "pull",
    "options", "usage", "tokens", "model", "strings", "log",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cbindgen.toml");
    println!("cargo:rerun-if-changed=src/ffi");
    link();
    name();
    header()
}

/// On ELF, `dlclose` leaves the library mapped: its worker threads may still be running when the host lets go. Android devices
/// have pages of 4 or 16 KiB, and a library aligned for less does not load on the latter.
fn link() {
    let elf = env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family == "unix")
        && env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor != "apple");
    let android = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "android");
    for (wanted, keyword) in [(elf, "nodelete"), (android, "max-page-size=16384")] {
        if wanted {
            // As two arguments it is understood by compilers that link and by linkers alike.
            println!("cargo:rustc-link-arg-cdylib=-z");
            println!("cargo:rustc-link-arg-cdylib={keyword}");
        }
    }
}

/// The name that programs linked with the library ask for. It changes with the interface's major version alone, which
/// the tests of the installed package hold against the header. Android packs libraries under plain file names, so there it has none.
fn name() {
    let is = |key: &str, value: &str| env::var(key).is_ok_and(|found| found == value);
    if is("CARGO_CFG_TARGET_VENDOR", "apple") {
        println!("cargo:rustc-link-arg-cdylib=-Wl,-install_name,@rpath/libelizainference.1.dylib");
    } else if is("CARGO_CFG_TARGET_FAMILY", "unix") && !is("CARGO_CFG_TARGET_OS", "android") {
        // Arguments for a cdylib alone would also reach the libraries of crates that hold this one.
        println!("cargo:rustc-link-arg=-Wl,-soname,libelizainference.so.1");
    }
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
