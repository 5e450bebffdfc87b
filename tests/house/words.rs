//! Words that a reader of the project cannot know, lines that are too long to read, and names that code goes by.

use std::path::{Path, PathBuf};

/// What no text of the project says, in lower case: a seed is a random generator's, or a fuzzer's.
const UNKNOWN: [&str; 5] = ["seed call", "seed function", "seed interface", "the seeds\u{27}", "the seed\u{27}s"];

/// The most columns of a line of Rust.
const WIDTH: usize = 120;

/// Kinds of files that hold texts, by their ends.
const TEXTS: [&str; 17] = [
    "rs", "md", "h", "hpp", "c", "cpp", "ts", "mjs", "java", "kt", "py", "sh", "toml", "txt", "wgsl", "json",
    "Makefile",
];

/// All texts of the project; folders of builds and packages are none of it.
fn texts(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "node_modules", "corpus", "artifacts"].contains(&&*name) {
                texts(&path, found);
            }
        } else if TEXTS.contains(&name.rsplit('.').next().unwrap()) {
            found.push(path);
        }
    }
}

/// Path, line number and line of every line of a text.
fn lines(wanted: impl Fn(&Path) -> bool) -> Vec<(String, usize, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut files, mut all) = (Vec::new(), Vec::new());
    texts(root, &mut files);
    files.sort();
    for file in files.iter().filter(|file| wanted(file)) {
        let shown = file.strip_prefix(root).unwrap().display().to_string();
        let text = String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned();
        all.extend(text.lines().enumerate().map(|(i, line)| (shown.clone(), i + 1, line.to_owned())));
    }
    assert!(all.len() > 10_000, "only {} lines were found", all.len());
    all
}

#[test]
fn a_seed_is_a_random_generators() {
    let this = Path::new(file!()).file_name().unwrap().to_owned();
    let found: Vec<String> = lines(|file| file.file_name() != Some(&this))
        .into_iter()
        .filter(|(_, _, line)| UNKNOWN.iter().any(|word| line.to_lowercase().contains(word)))
        .map(|(file, at, line)| format!("{file}:{at}: {}", line.trim()))
        .collect();
    assert!(found.is_empty(), "name the functions, or say \"of the founding interface\":\n{}", found.join("\n"));
}

#[test]
fn lines_of_rust_fit() {
    let long: Vec<String> = lines(|file| file.extension().is_some_and(|end| end == "rs"))
        .into_iter()
        .filter(|(_, _, line)| line.chars().count() > WIDTH)
        .map(|(file, at, line)| format!("{file}:{at}: {} columns", line.chars().count()))
        .collect();
    assert!(long.is_empty(), "more than {WIDTH} columns:\n{}", long.join("\n"));
}

/// A panic on a thread of the library's is told to the host and not to the terminal: the beginning of the thread's name
/// decides.
#[test]
fn l14_threads_of_the_library_have_its_names() {
    let mut files: Vec<(String, String)> = Vec::new();
    for (file, _, line) in lines(|file| file.extension().is_some_and(|end| end == "rs")) {
        if !file.contains("src/") || file.contains("tests") {
            continue;
        }
        if files.last().is_none_or(|(last, _)| *last != file) {
            files.push((file, String::new()));
        }
        files.last_mut().unwrap().1 += line.trim();
    }
    let mut named = 0;
    for (file, text) in &files {
        let text = text.split("#[cfg(test)]").next().unwrap();
        for made in text.split("thread::Builder::new()").skip(1) {
            let is_ours = [".name(\"eliza-", ".name(format!(\"eliza-"].iter().any(|name| made.starts_with(name));
            assert!(is_ours, "{file}: {}", made.chars().take(60).collect::<String>());
            named += 1;
        }
    }
    assert!(named >= 9, "only {named} were found");
}
