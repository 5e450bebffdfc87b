//! The committed C header is the one that the sources generate, and the fuzzer makes every call in it.

use std::path::Path;

/// `make header` sets `ELIZA_UPDATE_HEADER`, and then this test copies instead of comparing.
#[test]
fn committed_header_is_the_generated_one() {
    let generated = std::fs::read_to_string(Path::new(env!("OUT_DIR")).join("eliza_inference.h")).unwrap();
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/eliza_inference.h");
    if std::env::var_os("ELIZA_UPDATE_HEADER").is_some() {
        std::fs::write(&committed, &generated).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&committed).unwrap().replace("\r\n", "\n");
    let line = generated.lines().zip(committed.lines()).position(|(new, old)| new != old);
    assert!(
        generated == committed,
        "include/eliza_inference.h is out of date{}; run `make header`",
        line.map_or(String::new(), |line| format!(" from line {} on", line + 1))
    );
}

#[test]
fn l17_the_fuzzer_makes_every_call() {
    let read = |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let (header, target) = (read("include/eliza_inference.h"), read("fuzz/fuzz_targets/calls.rs"));
    let declared = header.lines().filter(|line| !line.starts_with([' ', '/', '#', '}']) && !line.contains("typedef"));
    let names = declared.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
    let calls: Vec<&str> = names.filter(|name| name.starts_with("eliza_") || name.starts_with("llama_")).collect();
    assert!(calls.len() > 50, "only {calls:?}");
    for call in calls {
        assert!(target.contains(&format!("{call}(")), "fuzz/fuzz_targets/calls.rs does not call {call}");
    }
}
