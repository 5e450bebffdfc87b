//! Sets how the library is linked.

use std::env;

/// On ELF, `dlclose` leaves the library mapped: its threads may still be running when the host lets go. Android devices
/// have pages of 4 or 16 KiB, and a library aligned for less does not load on the latter; processes of musl run there
/// too.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |key: &str, value: &str| env::var(key).is_ok_and(|found| found == value);
    let elf = env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family == "unix")
        && !is("CARGO_CFG_TARGET_VENDOR", "apple");
    let android = is("CARGO_CFG_TARGET_OS", "android") || is("CARGO_CFG_TARGET_ENV", "musl");
    for (wanted, keyword) in [(elf, "nodelete"), (android, "max-page-size=16384")] {
        if wanted {
            println!("cargo:rustc-link-arg-cdylib=-z");
            println!("cargo:rustc-link-arg-cdylib={keyword}");
        }
    }
}
