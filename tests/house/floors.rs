//! Which room may import which. The rooms of `src/` stand on floors, and a module imports only from lower floors: that
//! keeps a change in one room from reaching the others, so the list is enforced, not only written down.
//!
//! The checker reads tokens, not text: comments, strings and attributes' contents cannot hide or fake a path. It knows
//! `crate::room`, `crate::{room, ...}` and `super` chains that climb to the crate's root. The command line program is a
//! crate of its own: there `elizainference::room` is what counts, and `crate::` is its own business.
//!
//! Within `backend` there are rooms of rooms with an order of their own, and nowhere do files import each other in a
//! circle: a file can be read knowing only what it imports.

use std::path::{Path, PathBuf};

/// Every room and its floor.
const FLOORS: &[(&str, u32)] = &[
    ("disk", 0),
    ("error", 0),
    ("gguf", 0),
    ("panic", 0),
    ("quant", 0),
    ("reserve", 0),
    ("utf8", 0),
    ("simd", 0),
    ("graph", 1),
    ("vocab", 1),
    ("backend", 2),
    ("chat", 2),
    ("grammar", 2),
    ("trie", 2),
    ("schedule", 3),
    ("sampling", 3),
    ("remote", 3),
    ("model", 4),
    ("engine", 5),
    ("session", 6),
    ("ffi", 7),
    ("bin", 7),
];

/// Imports within a floor, as (importer, imported).
const SAME_FLOOR: &[(&str, &str)] = &[("gguf", "quant"), ("gguf", "reserve")];

/// The sub-rooms of a room, the lowest first: each imports only from those before it. `mod` is the room's own file.
const SUB_ROOMS: &[(&str, &[&str])] = &[
    ("backend/cpu", &["host", "packed", "kv", "kernels", "program", "mod"]),
    (
        "backend/gpu",
        &["device", "shaders", "kernel", "weights", "ops", "probe", "sample", "trie_walk", "program", "mod"],
    ),
];

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
            wrong.push(format!("{}: `{room}` has no floor; give it one in tests/house/floors.rs", inside.display()));
            continue;
        }
        // `room/mod.rs` and `room.rs` are one module below the root, `room/part.rs` two, and so on.
        let depth = parts.len() - usize::from(parts.last() == Some(&"mod.rs"));
        wrong.extend(objections(room, inside, depth, &std::fs::read_to_string(file).unwrap()));
        seen += 1;
    }
    let gone =
        FLOORS.iter().filter(|(room, _)| !src.join(room).is_dir() && !src.join(room).with_extension("rs").is_file());
    wrong.extend(
        gone.map(|(room, _)| format!("src has no room `{room}`: take it off the list in tests/house/floors.rs")),
    );
    assert!(seen >= 12, "only {seen} files were checked");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A module of the library that is a file.
struct Module {
    /// Its path from the root: `["backend", "cpu", "pool"]`.
    path: Vec<String>,
    pieces: Vec<Piece>,
}

/// A path that is named in a file, and whether only to pass it on (`pub use`).
struct Named {
    segments: Vec<String>,
    alias: String,
    is_use: bool,
    passed_on: bool,
}

/// The paths of the use tree that starts at `i`, each with the name it is known by, and where the tree ends.
fn use_tree(pieces: &[Piece], mut i: usize) -> (Vec<(Vec<String>, String)>, usize) {
    let mut segments = Vec::new();
    loop {
        match &pieces[i] {
            Piece::Mark('{') => {
                let mut all = Vec::new();
                i += 1;
                while pieces[i] != Piece::Mark('}') {
                    let (inner, end) = use_tree(pieces, i);
                    all.extend(inner.into_iter().map(|(path, name)| ([&segments[..], &path].concat(), name)));
                    i = end + usize::from(pieces[end] == Piece::Mark(','));
                }
                return (all, i + 1);
            }
            Piece::Word(word) => segments.push(word.clone()),
            Piece::Mark(mark) => segments.push(mark.to_string()),
            Piece::PathSep => {}
        }
        i += 1;
        match (&pieces[i], pieces.get(i + 1)) {
            (Piece::PathSep, _) => i += 1,
            (Piece::Word(word), Some(Piece::Word(name))) if word == "as" => {
                return (vec![(segments, name.clone())], i + 2);
            }
            _ => {
                let own = segments.last().is_some_and(|last| last == "self") && segments.len() > 1;
                segments.truncate(segments.len() - usize::from(own));
                let name = segments.last().cloned().unwrap_or_default();
                return (vec![(segments, name)], i);
            }
        }
    }
}

/// The pieces outside of inline modules, which are tests nearly always.
fn outside_inline_modules(pieces: Vec<Piece>) -> Vec<Piece> {
    let (mut out, mut depth, mut inside) = (Vec::new(), 0, None);
    for (i, piece) in pieces.iter().enumerate() {
        if *piece == Piece::Mark('{') {
            depth += 1;
            let module = i >= 2 && pieces[i - 2] == Piece::Word("mod".into());
            inside = inside.or(module.then_some(depth));
        }
        if inside.is_none() {
            out.push(piece.clone());
        }
        if *piece == Piece::Mark('}') {
            inside = inside.filter(|&at| at != depth);
            depth -= 1;
        }
    }
    out
}

/// Every path in a module that may lead to another one.
fn paths(module: &Module, is_module: &dyn Fn(&[String]) -> bool) -> Vec<Named> {
    let pieces = &module.pieces;
    let (mut all, mut i) = (Vec::new(), 0);
    while i < pieces.len() {
        let Piece::Word(word) = &pieces[i] else {
            i += 1;
            continue;
        };
        if word == "use" {
            let passed_on = i > 0 && (pieces[i - 1] == Piece::Word("pub".into()) || pieces[i - 1] == Piece::Mark(')'));
            let (paths, end) = use_tree(pieces, i + 1);
            all.extend(paths.into_iter().map(|(segments, alias)| Named { segments, alias, is_use: true, passed_on }));
            i = end;
            continue;
        }
        let child = [&module.path[..], std::slice::from_ref(word)].concat();
        let first = i == 0 || pieces[i - 1] != Piece::PathSep;
        let leads = ["crate", "super", "self"].contains(&word.as_str()) || is_module(&child);
        if first && leads && pieces.get(i + 1) == Some(&Piece::PathSep) {
            let mut segments = vec![word.clone()];
            while let (Some(Piece::PathSep), Some(Piece::Word(next))) = (pieces.get(i + 1), pieces.get(i + 2)) {
                segments.push(next.clone());
                i += 2;
            }
            all.push(Named { segments, alias: String::new(), is_use: false, passed_on: false });
        }
        i += 1;
    }
    all
}

/// For each module the modules that it imports from, re-exports followed to where a thing is defined. What is only
/// passed on from a module's own children is no import.
fn imports(modules: &[Module]) -> Vec<Vec<usize>> {
    let find = |path: &[String]| modules.iter().position(|module| module.path == path);
    let named: Vec<Vec<Named>> = modules.iter().map(|module| paths(module, &|path| find(path).is_some())).collect();
    let target = |from: usize, segments: &[String]| {
        let (mut from, mut segments) = (from, segments.to_vec());
        // Each round follows one re-export.
        for _ in 0..8 {
            let climbs = segments.iter().take_while(|segment| *segment == "super").count();
            let (mut at, mut rest) = match segments.first()?.as_str() {
                "crate" => (Vec::new(), &segments[1..]),
                "self" => (modules[from].path.clone(), &segments[1..]),
                "super" => {
                    let path = &modules[from].path;
                    (path[..path.len().checked_sub(climbs)?].to_vec(), &segments[climbs..])
                }
                _ => (modules[from].path.clone(), &segments[..]),
            };
            while let Some(next) = rest.first().map(|name| [&at[..], std::slice::from_ref(name)].concat()) {
                if find(&next).is_none() {
                    break;
                }
                (at, rest) = (next, &rest[1..]);
            }
            let found = find(&at)?;
            let lent = rest.first().and_then(|name| named[found].iter().find(|n| n.is_use && n.alias == *name));
            match lent.filter(|lent| {
                ["crate", "super", "self"].contains(&lent.segments[0].as_str()) || {
                    find(&[&at[..], &lent.segments[..1]].concat()).is_some()
                }
            }) {
                Some(lent) => (from, segments) = (found, [&lent.segments[..], &rest[1..]].concat()),
                // A name of another crate, where nothing of the path was a module.
                None if at == modules[from].path && rest.len() == segments.len() => return None,
                None => return Some(found),
            }
        }
        None
    };
    let edges = |from: usize| {
        let own = |to: usize| modules[to].path.starts_with(&modules[from].path);
        let paths = named[from].iter().filter_map(|path| Some((target(from, &path.segments)?, path.passed_on)));
        let mut to: Vec<_> =
            paths.filter(|&(to, passed_on)| to != from && !(passed_on && own(to))).map(|to| to.0).collect();
        to.sort_unstable();
        to.dedup();
        to
    };
    (0..modules.len()).map(edges).collect()
}

/// Groups of modules that import each other, directly or by way of others of the group.
fn circles(imports: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let reached = |from: usize| {
        let (mut seen, mut open) = (vec![false; imports.len()], vec![from]);
        while let Some(at) = open.pop() {
            for &to in &imports[at] {
                if !std::mem::replace(&mut seen[to], true) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let reached: Vec<_> = (0..imports.len()).map(reached).collect();
    let group = |a: usize| (0..imports.len()).filter(|&b| reached[a][b] && reached[b][a]).collect::<Vec<_>>();
    let mut all: Vec<_> = (0..imports.len()).map(group).filter(|group| group.len() > 1).collect();
    all.sort();
    all.dedup();
    all
}

/// Files that hold tests and what helps them; they may use whatever they test.
fn is_test(path: &[String]) -> bool {
    path.iter().any(|part| part == "tests" || part == "testing" || part.ends_with("_tests"))
}

/// Every file of the library that holds no tests.
fn modules() -> Vec<Module> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    files.sort();
    let module = |file: &PathBuf| {
        let inside = file.strip_prefix(&src).unwrap().with_extension("");
        let mut path: Vec<String> = inside.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        if path.last().is_some_and(|last| last == "mod") {
            path.pop();
        }
        let left_out = ["bin", "lib", "error"].contains(&path[0].as_str()) || is_test(&path);
        let text = std::fs::read_to_string(file).unwrap();
        let pieces = outside_inline_modules(pieces(&text).into_iter().map(|(piece, _)| piece).collect());
        (!left_out).then_some(Module { path, pieces })
    };
    files.iter().filter_map(module).collect()
}

#[test]
fn sub_rooms_import_only_from_those_before_them() {
    let modules = modules();
    let imports = imports(&modules);
    let mut wrong = Vec::new();
    for (room, order) in SUB_ROOMS {
        let parent: Vec<String> = room.split('/').map(str::to_owned).collect();
        let sub_room = |module: &Module| {
            let inside = module.path.strip_prefix(&parent[..])?;
            Some(inside.first().cloned().unwrap_or_else(|| "mod".into()))
        };
        let place = |name: &str| order.iter().position(|known| *known == name);
        let seen: Vec<String> = modules.iter().filter_map(sub_room).collect();
        let unknown = seen.iter().filter(|name| place(name).is_none());
        wrong
            .extend(unknown.map(|name| format!("{room}: `{name}` has no place; give it one in tests/house/floors.rs")));
        let gone = order.iter().filter(|known| !seen.iter().any(|name| name == *known));
        wrong.extend(gone.map(|name| format!("{room} has no `{name}`: take it off the list in tests/house/floors.rs")));
        for (from, to) in imports.iter().enumerate().flat_map(|(from, all)| all.iter().map(move |to| (from, *to))) {
            let Some((a, b)) = sub_room(&modules[from]).zip(sub_room(&modules[to])) else { continue };
            if a != b && place(&b) >= place(&a) {
                let (from, to) = (modules[from].path.join("/"), modules[to].path.join("/"));
                wrong.push(format!("{from} may not import {to}: in {room}, `{a}` is not above `{b}`"));
            }
        }
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_import_in_no_circle() {
    let modules = modules();
    let imports = imports(&modules);
    let name = |i: usize| modules[i].path.join("/");
    let mut wrong = Vec::new();
    for group in circles(&imports) {
        let inside = |from: usize| imports[from].iter().filter(|to| group.contains(to)).map(move |&to| (from, to));
        let edges =
            group.iter().flat_map(|&from| inside(from)).map(|(a, b)| format!("    {} uses {}", name(a), name(b)));
        wrong.push(format!("{} files import each other:\n{}", group.len(), edges.collect::<Vec<_>>().join("\n")));
    }
    assert!(modules.len() > 150, "only {} files were checked", modules.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_checker_sees_circles() {
    let circles_of = |files: &[(&str, &str)]| {
        let module = |(path, text): &(&str, &str)| {
            let pieces = outside_inline_modules(pieces(text).into_iter().map(|(piece, _)| piece).collect());
            Module { path: path.split('/').map(str::to_owned).collect(), pieces }
        };
        circles(&imports(&files.iter().map(module).collect::<Vec<_>>())).len()
    };
    let bad: &[&[(&str, &str)]] = &[
        &[("a", ""), ("a/b", "use super::c::C;"), ("a/c", "use super::b::B;")],
        &[("a", ""), ("a/b", "use super::{c::C, d};"), ("a/c", "fn f() { crate::a::b::g() }")],
        &[("a", "use b::B; pub struct A;"), ("a/b", "use super::A;")],
        &[("a", "pub use b::B;"), ("a/b", "use super::c::C;"), ("a/c", "use super::B;")],
        &[("a", "pub fn f() { b::g() }"), ("a/b", "use crate::a::f;")],
        &[("a", "use crate::b::B;"), ("b", "use crate::c::{self, C};"), ("c", "use crate::a::A as X;")],
    ];
    for files in bad {
        assert_eq!(circles_of(files), 1, "{files:?}");
    }
    let good: &[&[(&str, &str)]] = &[
        &[("a", ""), ("a/b", "use super::c::C;"), ("a/c", "mod tests { use super::super::b::B; }")],
        &[("a", "pub use b::B; pub trait T {}"), ("a/b", "use super::T;")],
        &[("a", "pub use b::B; pub use c::C;"), ("a/b", ""), ("a/c", "use super::B; use std::b::X; use b::c;")],
        &[("a", "pub mod b;"), ("a/b", "use crate::c::C;"), ("c", "use crate::d::b::X; use other::a::b;"), ("d", "")],
    ];
    for files in good {
        assert_eq!(circles_of(files), 0, "{files:?}");
    }
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
