//! Places of a schema: errors that name them, and what references lead to.

use super::shape::Part;
use crate::gguf::shown;
use crate::grammar::json::Json;
use crate::{Error, Result};

/// An error at a place of the schema.
pub(super) fn refused(at: &str, problem: impl std::fmt::Display) -> Error {
    Error::InvalidArgument(format!("JSON schema, #{}: {problem}", shown(at)))
}

/// What `#/…` names in a document. The path is that of a URI fragment: `%25` is `%`, `~1` is `/`, `~0` is `~`.
pub(super) fn resolve<'j>(document: &'j Json, reference: &str, at: &str) -> Result<Part<'j>> {
    let Some(path) = reference.strip_prefix('#').filter(|path| path.is_empty() || path.starts_with('/')) else {
        let problem = format!("$ref \"{}\": only references into the same document (#/…) are read", shown(reference));
        return Err(Error::Unsupported(format!("JSON schema, #{}: {problem}", shown(at))));
    };
    let mut node = document;
    for step in path.split('/').skip(1) {
        let step = unescaped(step);
        let next = match node {
            Json::Array(items) => step.parse::<usize>().ok().and_then(|index| items.get(index)),
            _ => node.get(&step),
        };
        let missing = || refused(at, format!("$ref \"{}\": there is no \"{}\"", shown(reference), shown(&step)));
        node = next.ok_or_else(missing)?;
    }
    Ok(Part::new(node, path))
}

fn unescaped(step: &str) -> String {
    let bytes = step.as_bytes();
    let (mut out, mut i) = (Vec::new(), 0);
    while let Some(&byte) = bytes.get(i) {
        let code = bytes.get(i + 1..i + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| byte == b'%') {
            Some(code) => {
                out.push(code);
                i += 3;
            }
            None => {
                out.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).replace("~1", "/").replace("~0", "~")
}
