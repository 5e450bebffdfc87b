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

/// What `bun:ffi` calls the C type of a parameter or a result; `pointers` are names of types that are pointers.
fn bun_type(c: &str, pointers: &[&str]) -> &'static str {
    let name = c.trim_start_matches("const ").trim();
    match name {
        "void" => "void",
        "int" | "int32_t" => "i32",
        "uint32_t" => "u32",
        "float" => "f32",
        "size_t" => "usize",
        _ if c.contains('*') || pointers.contains(&name) => "ptr",
        _ => panic!("a C type without a Bun type: {c}"),
    }
}

/// The header without comments, one string for each declaration.
fn declarations(header: &str) -> Vec<String> {
    let code: String = header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    let code: Vec<&str> = code.lines().filter(|line| !line.starts_with('#')).collect();
    code.join(" ").split(';').map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// A wrong type there is not an error but a wrong call.
#[test]
fn bun_declares_every_function_as_the_header_does() {
    let read = |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let (header, library) = (read("include/eliza_inference.h"), read("bindings/bun/library.ts"));
    let declarations = declarations(&header);
    let of_functions = declarations.iter().filter_map(|text| Some(text.split_once("typedef ")?.1.split_once("(*")?.1));
    let of_structs = declarations.iter().filter_map(|text| text.split_once("typedef struct ")?.1.split_once(" *"));
    let pointers: Vec<&str> =
        of_functions.filter_map(|text| Some(text.split_once(')')?.0)).chain(of_structs.map(|(_, name)| name)).collect();

    let mut compared = 0;
    for line in library.lines().filter(|line| line.contains("{ args: [")) {
        let (name, rest) = line.trim().split_once(": { args: [").unwrap();
        let (args, rest) = rest.split_once("], returns: \"").unwrap();
        let returns = rest.split_once('"').unwrap().0;
        let c_name = format!(" eliza_inference_{name}(").replace(" ", "");
        let declaration = declarations.iter().find(|text| !text.contains("typedef") && text.contains(&c_name));
        let declaration = declaration.unwrap_or_else(|| panic!("the header has no {c_name}"));
        let (result, parameters) = declaration.split_once(&c_name).unwrap();
        let result = result.rsplit(['{', '}']).next().unwrap().trim();
        let parameters = parameters.trim_end_matches(')');
        let parameters: Vec<_> = parameters
            .split(", ")
            .filter(|&parameter| parameter != "void")
            .map(|parameter| {
                format!("\"{}\"", bun_type(&parameter[..=parameter.rfind([' ', '*']).unwrap()], &pointers))
            })
            .collect();
        assert_eq!(
            args,
            parameters.join(", "),
            "arguments of {name} in bindings/bun/library.ts; the header: {declaration}"
        );
        let text = returns == "cstring" && result == "const char *";
        assert!(
            text || returns == bun_type(result, &pointers),
            "result of {name}: {returns}; the header: {declaration}"
        );
        compared += 1;
    }
    assert!(compared > 40, "only {compared} functions were found");
}
