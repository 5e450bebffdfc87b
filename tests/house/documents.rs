//! Files that the documents name are there, and architectures are in the documents.

use elizainference::model::architectures;
use std::path::{Path, PathBuf};

/// Folders of `src/` that the documents leave out of a path.
const LEFT_OUT: [&str; 5] = ["", "src", "src/backend", "src/backend/cpu", "src/backend/gpu"];

/// What a path ends with that is looked up.
const ENDS: [&str; 8] = [".rs", ".wgsl", ".md", ".py", ".sh", ".hpp", ".ts", ".txt"];

/// The project's documents: those of the root and of its folders.
fn documents(root: &Path) -> Vec<PathBuf> {
    let folders = ["", "android", "bindings", "docs", "examples", "models"];
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(root.join(folder)).unwrap());
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    // The changes of the past name the files of their time.
    found.retain(|path| path.extension().is_some_and(|end| end == "md") && !path.ends_with("CHANGELOG.md"));
    found.sort();
    found
}

/// Paths between backticks, such as `src/lib.rs`; a word in capitals stands for a name to choose.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |text: &&str| {
        let plain = text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-./".contains(c));
        plain && text.contains('/') && ENDS.iter().any(|end| text.ends_with(end)) && !text.starts_with("target/")
    };
    line.split('`').skip(1).step_by(2).filter(is_path)
}

/// Targets of links within the project.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains(':'))
}

#[test]
fn files_that_documents_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut named, mut missing) = (0, Vec::new());
    for document in documents(root) {
        let folder = document.parent().unwrap();
        let text = std::fs::read_to_string(&document).unwrap();
        for (at, line) in text.lines().enumerate() {
            let is_there = |path: &&str| {
                folder.join(path).exists() || LEFT_OUT.iter().any(|left_out| root.join(left_out).join(path).exists())
            };
            let is_linked = |path: &&str| folder.join(path).exists();
            named += paths(line).count() + links(line).count();
            let gone = paths(line).filter(|path| !is_there(path)).chain(links(line).filter(|path| !is_linked(path)));
            missing.extend(gone.map(|path| format!("{}:{}: {path}", document.display(), at + 1)));
        }
    }
    assert!(named > 100, "only {named} files were found in the documents");
    assert!(missing.is_empty(), "not there:\n{}", missing.join("\n"));
}

#[test]
fn every_architecture_is_in_the_documents() {
    let read = |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let (table, list) = (read("docs/models.md"), read("README.md"));
    let tools = read("tools/decoders.py") + &read("tools/hybrids.py");
    for name in architectures() {
        assert!(table.contains(&format!("\n| `{name}` |")), "docs/models.md has no row for {name}");
        assert!(list.contains(&format!("`{name}`")), "README.md does not name {name}");
        assert!(tools.contains(&format!("\n    \"{name}\": (")), "no tool has a row for {name}");
    }
}

#[test]
fn every_platform_of_the_npm_package_has_a_build() {
    let read = |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let platforms: Vec<String> = serde_json::from_str(&read("bindings/platforms.json")).unwrap();
    let workflow = read(".github/workflows/release.yml");
    let named = workflow.lines().filter_map(|line| line.split_once("platform: ")?.1.split_once(','));
    let mut built: Vec<&str> = named.map(|(platform, _)| platform).collect();
    let mut wanted: Vec<&str> = platforms.iter().map(String::as_str).collect();
    built.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(built, wanted);
}
