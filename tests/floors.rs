//! Which room may import which. The rooms of `src/` stand on floors, and a module imports only from lower floors: that
//! keeps a change in one room from reaching the others, so the list is enforced, not only written down.
//!
//! The checker reads tokens, not text: comments, strings and attributes' contents cannot hide or fake a path. It knows
//! `crate::room`, `crate::{room, ...}` and `super` chains that climb to the crate's root. The command line program is a
//! crate of its own: there `elizainference::room` is what counts, and `crate::` is its own business.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

/// Every room and its floor.
const FLOORS: &[(&str, u32)] = &[
    ("error", 0),
    ("gguf", 0),
    ("quant", 0),
    ("reserve", 0),
    ("simd", 0),
    ("graph", 1),
    ("vocab", 1),
    ("backend", 2),
    ("trie", 2),
    ("schedule", 3),
    ("sampling", 3),
    ("model", 4),
    ("engine", 5),
    ("session", 6),
    ("ffi", 7),
    ("bin", 7),
];

/// Imports within a floor, as (importer, imported).
const SAME_FLOOR: &[(&str, &str)] = &[("gguf", "quant"), ("gguf", "reserve")];

/// Names of the crate's root that are not rooms; every room may use them.
const ROOT_NAMES: &[&str] = &["Error", "Result", "Token"];

fn floor(room: &str) -> Option<u32> {
    FLOORS.iter().find(|(name, _)| *name == room).map(|(_, floor)| *floor)
}

/// Why `from` may not import `name` of the crate's root; `None` when it may.
fn objection(from: &str, name: &str) -> Option<String> {
    if ROOT_NAMES.contains(&name) || name == from || name == "error" {
        return None;
    }
    let Some(to_floor) = floor(name) else {
        return Some(format!("`{name}` is neither a room nor one of the root's names {ROOT_NAMES:?}"));
    };
    let from_floor = floor(from)?;
    if to_floor < from_floor || SAME_FLOOR.contains(&(from, name)) {
        return None;
    }
    Some(format!("`{from}` (floor {from_floor}) may not import `{name}` (floor {to_floor})"))
}

#[derive(Debug, PartialEq, Clone)]
enum Piece {
    Word(String),
    PathSep,
    Mark(char),
}

/// Words, `::` and single marks of a source text, without comments, strings and character literals.
fn pieces(text: &str) -> Vec<(Piece, usize)> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut out, mut i, mut line) = (Vec::new(), 0, 1);
    while i < chars.len() {
        let c = at(i);
        if c == '\n' {
            line += 1;
            i += 1;
        } else if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && at(i) != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            loop {
                match (at(i), at(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 2),
                    ('*', '/') => (depth, i) = (depth - 1, i + 2),
                    (mark, _) => {
                        line += usize::from(mark == '\n');
                        i += 1;
                    }
                }
                if depth == 0 || i >= chars.len() {
                    break;
                }
            }
        } else if c == 'r' && (at(i + 1) == '"' || at(i + 1) == '#' && (at(i + 2) == '"' || at(i + 2) == '#')) {
            i += 1;
            let hashes = chars[i..].iter().take_while(|&&c| c == '#').count();
            i += hashes + 1;
            while i < chars.len() && !(at(i) == '"' && (1..=hashes).all(|k| at(i + k) == '#')) {
                line += usize::from(at(i) == '\n');
                i += 1;
            }
            i += hashes + 1;
        } else if c == '"' {
            i += 1;
            while i < chars.len() && at(i) != '"' {
                line += usize::from(at(i) == '\n');
                i += if at(i) == '\\' {
                    line += usize::from(at(i + 1) == '\n');
                    2
                } else {
                    1
                };
            }
            i += 1;
        } else if c == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            // A character literal; a lifetime has no closing quote two places on.
            i += if at(i + 1) == '\\' { 3 } else { 2 };
            while i < chars.len() && at(i) != '\'' {
                i += 1;
            }
            i += 1;
        } else if c.is_alphanumeric() || c == '_' {
            let start = i;
            while at(i).is_alphanumeric() || at(i) == '_' {
                i += 1;
            }
            out.push((Piece::Word(chars[start..i].iter().collect()), line));
        } else if c == ':' && at(i + 1) == ':' {
            out.push((Piece::PathSep, line));
            i += 2;
        } else {
            if !c.is_whitespace() {
                out.push((Piece::Mark(c), line));
            }
            i += 1;
        }
    }
    out
}

/// The first names of the path or brace group that starts at `i`, as (name, line).
fn first_names(pieces: &[(Piece, usize)], i: usize) -> Vec<(String, usize)> {
    match pieces.get(i) {
        Some((Piece::Word(name), line)) => vec![(name.clone(), *line)],
        Some((Piece::Mark('{'), _)) => {
            let (mut out, mut depth, mut fresh) = (Vec::new(), 0, false);
            for (piece, line) in &pieces[i..] {
                match piece {
                    Piece::Mark('{') => (depth, fresh) = (depth + 1, depth == 0),
                    Piece::Mark('}') => depth -= 1,
                    Piece::Mark(',') => fresh = depth == 1,
                    Piece::Word(name) if fresh => {
                        out.push((name.clone(), *line));
                        fresh = false;
                    }
                    Piece::Mark('*') if fresh => out.push(("*".into(), *line)),
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
            }
            out
        }
        Some((Piece::Mark(mark), line)) => vec![(mark.to_string(), *line)],
        _ => Vec::new(),
    }
}

/// Every name of the library's root that a file reaches for, as (name, line). `depth` is how many modules the file lies
/// below the root; `None` for a file of another crate.
fn root_names(text: &str, depth: Option<usize>) -> Vec<(String, usize)> {
    let pieces = pieces(text);
    let mut found = Vec::new();
    let mut braces: Vec<bool> = Vec::new(); // for each open brace: does it open an inline module?
    let word = |i: usize| match pieces.get(i) {
        Some((Piece::Word(w), _)) => Some(w.as_str()),
        _ => None,
    };
    let separator = |i: usize| matches!(pieces.get(i), Some((Piece::PathSep, _)));
    let mut i = 0;
    while i < pieces.len() {
        match &pieces[i].0 {
            Piece::Mark('{') => braces.push(i >= 2 && word(i - 2) == Some("mod")),
            Piece::Mark('}') => {
                braces.pop();
            }
            Piece::Word(w) if w == if depth.is_some() { "crate" } else { "elizainference" } && separator(i + 1) => {
                found.extend(first_names(&pieces, i + 2));
            }
            Piece::Word(w) if w == "super" => {
                let mut climbed = 1;
                while separator(i + 1) && word(i + 2) == Some("super") {
                    climbed += 1;
                    i += 2;
                }
                let below = depth.map(|d| d + braces.iter().filter(|&&inline| inline).count());
                if separator(i + 1) && below.is_some_and(|below| climbed >= below) {
                    found.extend(first_names(&pieces, i + 2));
                }
            }
            _ => {}
        }
        i += 1;
    }
    found
}

/// Everything wrong with one file of the room `room`.
fn objections(room: &str, path: &Path, depth: usize, text: &str) -> Vec<String> {
    root_names(text, (room != "bin").then_some(depth))
        .into_iter()
        .filter_map(|(name, line)| objection(room, &name).map(|why| format!("{}:{line}: {why}", path.display())))
        .collect()
}

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn every_room_imports_only_from_lower_floors() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    files.sort();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for file in &files {
        let inside = file.strip_prefix(&src).unwrap();
        let parts: Vec<&str> = inside.iter().map(|p| p.to_str().unwrap()).collect();
        if parts == ["lib.rs"] {
            continue;
        }
        let room = parts[0].trim_end_matches(".rs");
        if floor(room).is_none() {
            wrong.push(format!("{}: `{room}` has no floor; give it one in tests/floors.rs", inside.display()));
            continue;
        }
        // `room/mod.rs` and `room.rs` are one module below the root, `room/part.rs` two, and so on.
        let depth = parts.len() - usize::from(parts.last() == Some(&"mod.rs"));
        wrong.extend(objections(room, inside, depth, &std::fs::read_to_string(file).unwrap()));
        seen += 1;
    }
    let gone =
        FLOORS.iter().filter(|(room, _)| !src.join(room).is_dir() && !src.join(room).with_extension("rs").is_file());
    wrong.extend(gone.map(|(room, _)| format!("src has no room `{room}`: take it off the list in tests/floors.rs")));
    assert!(seen >= 12, "only {seen} files were checked");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_root_lends_only_the_names_it_is_known_for() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let pieces = pieces(&text);
    for (i, (piece, line)) in pieces.iter().enumerate() {
        if *piece == Piece::Word("use".into()) {
            let from = first_names(&pieces, i + 1);
            assert_eq!(
                from[0].0, "error",
                "src/lib.rs:{line}: a re-export at the root hides an import from the floors"
            );
        }
    }
}

#[test]
fn the_checker_sees_what_it_must_and_nothing_else() {
    let bad = [
        ("gguf", 2, "use crate::session::Session;"),
        ("quant", 2, "use crate::gguf::File;"),
        ("graph", 2, "use crate::{Error, vocab::Vocab};"),
        ("graph", 2, "use crate::{\n    Error,\n    backend::{self, cpu},\n};"),
        ("model", 2, "fn f() { let x = crate::engine::Engine::new(); }"),
        ("model", 2, "use super::super::engine;"),
        ("model", 1, "use super::engine;"),
        ("model", 2, "mod tests { use super::super::super::engine; }"),
        ("session", 2, "use crate::ffi::handle;"),
        ("ffi", 2, "use crate::bin::args;"),
        ("bin", 2, "use elizainference::ffi::abi;"),
        ("session", 2, "use crate::*;"),
        ("session", 2, "use crate::{Error, *};"),
        ("session", 2, "use crate::Unlisted;"),
        ("sampling", 2, "use crate::schedule::Plan;"),
        ("engine", 2, "const A: char = '\"'; use crate::session::X; const B: char = '\"';"),
        ("engine", 2, "fn f<'a>(x: &'a str) -> &'a str { crate::session::f(x) }"),
        ("engine", 2, "const A: &str = r#\"\"quoted\"\"#; use crate::session::X;"),
        ("engine", 2, "/* /* */ */ use crate::session::X;"),
    ];
    for (room, depth, text) in bad {
        assert_eq!(objections(room, Path::new("x.rs"), depth, text).len(), 1, "{room}: {text}");
    }
    let good = [
        ("gguf", 2, "use crate::quant::TensorType; use crate::{Error, Result};"),
        ("session", 2, "use crate::engine::{Engine, session_like}; use crate::Token;"),
        ("session", 2, "// use crate::ffi::x\n/* crate::ffi::x */ const A: &str = \"crate::ffi::x \\\" crate::ffi\";"),
        ("model", 2, "use super::engine_of_this_room;"),
        ("model", 2, "mod tests { use super::super::sibling; use super::*; }"),
        ("model", 1, "mod tests { use super::*; }"),
        ("trie", 2, "use crate::vocab::Vocab; use crate::trie::node;"),
        ("bin", 2, "use elizainference::session::Session; use crate::output::Table; use super::output;"),
        ("engine", 2, "const A: &str = r#\"use crate::session::X;\"#;"),
    ];
    for (room, depth, text) in good {
        assert_eq!(objections(room, Path::new("x.rs"), depth, text), Vec::<String>::new(), "{room}: {text}");
    }
}
