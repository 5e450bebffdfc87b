//! Names of members that are none of the listed ones.
//!
//! Such a name has no `\u` escapes, so that it cannot be a listed name in another spelling. As in llama.cpp's grammars
//! it is no beginning of a listed name either, but for the empty one.

use super::emit::Emitter;
use crate::Result;
use crate::grammar::draft::Expr;
use crate::grammar::json::quoted;
use crate::grammar::regex::Set;
use std::collections::BTreeMap;

/// The most characters of all names together.
const MAX_CHARS: usize = 50_000;
/// The letters of short escapes.
const ESCAPES: [char; 7] = ['"', '\\', 'b', 'f', 'n', 'r', 't'];

/// One node of the tree of listed names: what may follow, character by character as JSON spells it.
#[derive(Default)]
struct Node {
    next: BTreeMap<String, usize>,
    is_end: bool,
}

/// The characters of a name as JSON spells them.
fn spelled(name: &str) -> Vec<String> {
    let quoted = quoted(name);
    let mut chars = quoted[1..quoted.len() - 1].chars();
    let mut units = Vec::new();
    while let Some(c) = chars.next() {
        let mut unit = String::from(c);
        if c == '\\' {
            let letter = chars.next().unwrap_or('u');
            unit.push(letter);
            if letter == 'u' {
                unit.extend(chars.by_ref().take(4));
            }
        }
        units.push(unit);
    }
    units
}

/// One character of a name, none of those in `but`.
fn char_but<'a>(but: impl Iterator<Item = &'a String> + Clone) -> Expr {
    let mut excluded = Set::of(&[(0, 0x1f), (0x22, 0x22), (0x5c, 0x5c), (0x7f, 0x7f)]);
    for c in but.clone().filter(|unit| !unit.starts_with('\\')).filter_map(|unit| unit.chars().next()) {
        excluded = excluded.union(&Set::one(c));
    }
    let left = |letter: &char| !but.clone().any(|unit| unit.chars().eq(['\\', *letter]));
    let letters = ESCAPES.iter().copied().filter(left);
    let letters = Set::of(&letters.map(|c| (c as u32, c as u32)).collect::<Vec<_>>());
    let mut ways = vec![Expr::Class(excluded.negated().class())];
    if !letters.is_empty() {
        ways.push(Expr::Seq(vec![Expr::text("\\"), Expr::Class(letters.class())]));
    }
    Expr::Alt(ways)
}

/// The string of a name that is none of these.
pub(super) fn others(emitter: &mut Emitter, names: &[&str]) -> Result<Expr> {
    if names.is_empty() {
        return emitter.string();
    }
    let too_many = || super::places::refused("", format!("more than {MAX_CHARS} characters of names beside others"));
    let mut nodes = vec![Node::default()];
    for name in names {
        let mut at = 0;
        for unit in spelled(name) {
            let fresh = nodes.len();
            at = *nodes[at].next.entry(unit).or_insert(fresh);
            if at == fresh {
                nodes.push(Node::default());
            }
        }
        nodes[at].is_end = true;
        if nodes.len() > MAX_CHARS {
            return Err(too_many());
        }
    }
    let char = emitter.draft.rule("name-char", char_but([].iter()))?;
    let more = char.clone().any_times();
    let at_least_one = Expr::Repeat(Box::new(char), 1, None);
    // The last nodes have the highest numbers, so every node's rule is there before its parent's.
    let mut exprs: Vec<Expr> = vec![Expr::never(); nodes.len()];
    for (index, node) in nodes.iter().enumerate().rev() {
        if node.next.is_empty() {
            exprs[index] = at_least_one.clone();
            continue;
        }
        let mut ways = Vec::new();
        for (unit, &next) in &node.next {
            ways.push(Expr::Seq(vec![Expr::text(unit.as_str()), exprs[next].clone()]));
        }
        ways.push(Expr::Seq(vec![char_but(node.next.keys()), more.clone()]));
        if index == 0 && !node.is_end {
            ways.push(Expr::empty());
        }
        exprs[index] = emitter.draft.rule("name", Expr::Alt(ways))?;
    }
    let inner = exprs.swap_remove(0);
    emitter.draft.rule("other-name", Expr::Seq(vec![Expr::text("\""), inner, Expr::text("\"")]))
}
