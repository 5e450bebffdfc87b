//! Sets how the JNI library is linked.

use std::env;

/// On ELF the library stays mapped when the class loader that loaded it goes: its worker threads may still be running.
/// Android devices have pages of 4 or 16 KiB, and a library aligned for less does not load on the latter.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let elf = env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family == "unix")
        && env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor != "apple");
    let android = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "android");
    for (wanted, keyword) in [(elf, "nodelete"), (android, "max-page-size=16384")] {
        if wanted {
            println!("cargo:rustc-link-arg-cdylib=-z");
            println!("cargo:rustc-link-arg-cdylib={keyword}");
        }
    }
}
