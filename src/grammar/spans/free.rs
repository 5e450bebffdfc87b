//! Free text that ends with the first of a few texts, as rules.
//!
//! The rules are the states of the automaton that looks for all the texts at once (Aho and Corasick, "Efficient string
//! matching: an aid to bibliographic search", 1975): one for each beginning of a text that may have been read. A rule's
//! last item is the next state, so the stack of a grammar stays as it is however long the text grows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A state: where each character leads that goes on with some text, and the longest proper end of what was read that
/// begins a text.
#[derive(Default)]
struct State {
    next: BTreeMap<char, usize>,
    fallback: usize,
    /// Whether a text ends here.
    is_end: bool,
}

/// Appends the rules `NAME`, `NAME-1`, … of text up to and with the first of `ends`, none of them empty, and returns
/// their names.
pub(super) fn rules(name: &str, ends: &[String], out: &mut String) -> Vec<String> {
    let states = automaton(ends);
    let name_of = |state: usize| if state == 0 { name.to_owned() } else { format!("{name}-{state}") };
    let mut names = Vec::new();
    for (index, state) in states.iter().enumerate() {
        if state.is_end {
            continue; // the text ends before it
        }
        names.push(name_of(index));
        let targets = targets(&states, index);
        let _ = write!(out, "{} ::= [^", name_of(index)); // writing to a string cannot fail
        targets.keys().for_each(|&c| class_character(c, out));
        let _ = write!(out, "] {name}");
        for (c, target) in targets {
            out.push_str(" | [");
            class_character(c, out);
            out.push(']');
            if !states[target].is_end {
                let _ = write!(out, " {}", name_of(target));
            }
        }
        out.push('\n');
    }
    names
}

/// Where each character leads from a state; all others lead to the first.
fn targets(states: &[State], from: usize) -> BTreeMap<char, usize> {
    let mut out = BTreeMap::new();
    let mut at = from;
    loop {
        for (&c, &next) in &states[at].next {
            out.entry(c).or_insert(next);
        }
        if at == 0 {
            return out;
        }
        at = states[at].fallback;
    }
}

fn automaton(ends: &[String]) -> Vec<State> {
    let mut states = vec![State::default()];
    for end in ends {
        let mut at = 0;
        for c in end.chars() {
            at = match states[at].next.get(&c) {
                Some(&next) => next,
                None => {
                    states.push(State::default());
                    let new = states.len() - 1;
                    states[at].next.insert(c, new);
                    new
                }
            };
        }
        states[at].is_end = true;
    }
    // Breadth first: the fallback of a state is shorter than what was read there, so it is done before it.
    let mut queue: Vec<usize> = states[0].next.values().copied().collect();
    let mut done = 0;
    while let Some(&state) = queue.get(done) {
        done += 1;
        let fallback = states[state].fallback;
        states[state].is_end |= states[fallback].is_end;
        let next: Vec<(char, usize)> = states[state].next.iter().map(|(&c, &next)| (c, next)).collect();
        for (c, next) in next {
            states[next].fallback = targets(&states, fallback).get(&c).copied().unwrap_or(0);
            queue.push(next);
        }
    }
    states
}

/// Appends a character as a class holds it, so that it means nothing else there.
fn class_character(c: char, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = match c {
        c if c.is_alphanumeric() => write!(out, "{c}"),
        c => write!(out, "\\U{:08X}", u32::from(c)),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_begins_again_inside_of_itself_is_found() {
        let mut out = String::new();
        let names = rules("f", &["aab".into(), "ba".into()], &mut out);
        assert_eq!(names, ["f", "f-1", "f-2", "f-4"]);
        let expected = "f ::= [^ab] f | [a] f-1 | [b] f-4\n\
                        f-1 ::= [^ab] f | [a] f-2 | [b] f-4\n\
                        f-2 ::= [^ab] f | [a] f-2 | [b]\n\
                        f-4 ::= [^ab] f | [a] | [b] f-4\n";
        assert_eq!(out, expected);
    }
}
