//! The finished texts of shaders.
//!
//! WGSL has no preprocessor, so shaders have directives of this library, which are comments to any WGSL tool: `//#if
//! NAME` (or `//#if !NAME`), `//#else` and `//#endif` choose lines by flags, and `//#include NAME` inserts another text
//! of the table. Numbers that Rust and WGSL share are passed to [`compose`] as constants, which it writes before the
//! text as `const`s, so no number is written twice. The first line names the flags, for who reads a finished text.

use crate::backend::gpu::shaders;
use crate::{Error, Result};
use std::fmt::Write;

/// The finished text of a shader: its flags as a comment, constants, then `source` with its directives resolved.
///
/// # Errors
/// [`Error::Internal`] for a line that names an unknown part.
pub fn compose(source: &str, flags: &[&str], constants: &[(&str, u32)]) -> Result<String> {
    let mut text = String::with_capacity(source.len() + 1024);
    let _ = writeln!(text, "// {}", flags.join(" "));
    // What a text needs of the language stands before all else.
    let needs: usize = source.split_inclusive('\n').take_while(|line| line.starts_with("enable ")).map(str::len).sum();
    let (needs, source) = source.split_at(needs);
    text.push_str(needs);
    for (name, value) in constants {
        let _ = writeln!(text, "const {name}: u32 = {value}u;");
    }
    resolve(source, flags, &mut text)?;
    Ok(text)
}

fn resolve(source: &str, flags: &[&str], text: &mut String) -> Result<()> {
    // One entry per open `if`: whether its current branch is taken.
    let mut taken: Vec<bool> = Vec::new();
    let broken = |line: &str| Error::Internal(format!("Shader line `{line}`"));
    for line in source.lines() {
        match line.trim().strip_prefix("//#") {
            None if taken.iter().all(|&t| t) => {
                text.push_str(line);
                text.push('\n');
            }
            None => {}
            Some(command) => match command.trim().split_once(' ') {
                Some(("if", condition)) => {
                    let flag = condition.trim();
                    taken.push(match flag.strip_prefix('!') {
                        Some(flag) => !flags.contains(&flag),
                        None => flags.contains(&flag),
                    });
                }
                Some(("include", name)) => {
                    if taken.iter().all(|&t| t) {
                        let (_, part) = shaders::TEXTS
                            .iter()
                            .find(|(known, _)| *known == name.trim())
                            .ok_or_else(|| broken(line))?;
                        resolve(part, flags, text)?;
                    }
                }
                None if command.trim() == "else" => match taken.last_mut() {
                    Some(last) => *last = !*last,
                    None => return Err(broken(line)),
                },
                None if command.trim() == "endif" => drop(taken.pop().ok_or_else(|| broken(line))?),
                _ => return Err(broken(line)),
            },
        }
    }
    if taken.is_empty() { Ok(()) } else { Err(Error::Internal("Shader with an open //#if".into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_chosen_by_flags() {
        let source = "a\n//#if X\nb\n//#if !Y\nc\n//#endif\n//#else\nd\n//#endif\ne";
        assert_eq!(compose(source, &["X"], &[("N", 3)]).unwrap(), "// X\nconst N: u32 = 3u;\na\nb\nc\ne\n");
        assert_eq!(compose(source, &["X", "Y"], &[]).unwrap(), "// X Y\na\nb\ne\n");
        assert_eq!(compose(source, &[], &[]).unwrap(), "// \na\nd\ne\n");
        let needs = "enable a;\nenable b;\nc\nenable d;\n";
        assert_eq!(
            compose(needs, &[], &[("N", 3)]).unwrap(),
            "// \nenable a;\nenable b;\nconst N: u32 = 3u;\nc\nenable d;\n"
        );
        for broken in ["//#if X", "//#else", "//#endif", "//#include nothing", "//#what"] {
            assert!(compose(broken, &[], &[]).is_err(), "{broken}");
        }
    }
}
