//! Sets how the JNI library is linked.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let elf = env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family == "unix")
        && env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor != "apple");
    if elf {
        // Worker threads may outlive the class loader that loaded the library.
        println!("cargo:rustc-link-arg-cdylib=-Wl,-z,nodelete");
    }
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "android") {
        // Android devices have pages of 4 or 16 KiB; a library aligned for less does not load on the latter.
        println!("cargo:rustc-link-arg-cdylib=-Wl,-z,max-page-size=16384");
    }
}
