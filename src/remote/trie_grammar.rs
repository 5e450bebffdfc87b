//! A token trie as a grammar over token ids, so that one request walks it.
//!
//! A rule for every node at which there is a choice; runs without one are written into the rule before. Where a leaf
//! has children the grammar may end.

use super::dialect::Spelling;
use crate::Token;
use crate::trie::{Node, Trie};
use std::fmt::Write;

/// The grammar of what may follow `from`; `spell` writes a token.
pub(super) fn of(trie: &Trie, from: Node, spell: Spelling) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let mut open = vec![from];
    while let Some(node) = open.pop() {
        let _ = match node == from {
            true => write!(out, "root ::="),
            false => write!(out, "n{node} ::="),
        };
        if trie.is_leaf(node) {
            out.push_str(" \"\" |");
        }
        for (index, (&token, &child)) in trie.children(node).iter().zip(trie.child_nodes(node)).enumerate() {
            let _ = write!(out, "{} {}", if index > 0 { " |" } else { "" }, spell(token));
            let mut end = child;
            while let ([token], [next], false) = (trie.children(end), trie.child_nodes(end), trie.is_leaf(end)) {
                let _ = write!(out, " {}", spell(*token));
                end = *next;
            }
            if !trie.children(end).is_empty() {
                let _ = write!(out, " n{end}");
                open.push(end);
            }
        }
        out.push('\n');
    }
    out
}

/// The grammar of one of these texts, in any tokens.
pub(super) fn of_texts(texts: &[String]) -> String {
    let quoted = |text: &String| {
        let mut out = String::from('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                c if c.is_control() => {
                    let _ = write!(out, "\\x{:02X}", c as u32);
                }
                c => out.push(c),
            }
        }
        out + "\""
    };
    let texts: Vec<String> = texts.iter().map(quoted).collect();
    format!("root ::= {}\n", texts.join(" | "))
}

/// The grammar of these tokens and no others.
pub(super) fn run(tokens: &[Token], spell: Spelling) -> String {
    let tokens: Vec<String> = tokens.iter().map(|&token| spell(token)).collect();
    format!("root ::= {}\n", tokens.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grammar(leaves: &str) -> String {
        let payload = format!(r#"{{"descriptors":[{{"path":"p","leaves":[{leaves}]}}]}}"#);
        let trie = Trie::parse(payload.as_bytes()).unwrap();
        of(&trie, trie.descriptors()[0].root(), |token| format!("<[{token}]>"))
    }

    #[test]
    fn runs_are_written_into_the_rule_before() {
        let leaves = r#"{"name":"a","tokens":[1,2,3]},{"name":"b","tokens":[1,2,4]},{"name":"c","tokens":[9]}"#;
        assert_eq!(grammar(leaves), "root ::= <[1]> <[2]> n3 | <[9]>\nn3 ::= <[3]> | <[4]>\n");
    }

    #[test]
    fn a_leaf_with_children_may_end() {
        let leaves = r#"{"name":"a","tokens":[1]},{"name":"ab","tokens":[1,2]}"#;
        assert_eq!(grammar(leaves), "root ::= <[1]> n1\nn1 ::= \"\" | <[2]>\n");
    }

    #[test]
    fn texts_are_quoted() {
        let texts = ["a\"b".to_owned(), "c\\\n\u{1}".to_owned(), "größer".to_owned()];
        assert_eq!(of_texts(&texts), "root ::= \"a\\\"b\" | \"c\\\\\\n\\x01\" | \"größer\"\n");
    }

    #[test]
    fn a_run_has_one_rule() {
        assert_eq!(run(&[1, 2], |token| format!("<[{token}]>")), "root ::= <[1]> <[2]>\n");
    }
}
