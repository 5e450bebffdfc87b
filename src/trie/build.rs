//! Makes payloads from names: each name is tokenized in the text in which the model will generate it.
//!
//! The tokens of a name depend on the text around it. After `"action": "` and before `"` a name has other tokens than
//! alone, and a model works best with the tokens that it would generate without a constraint. So the text before, the
//! name and the closing delimiter are tokenized as one text, and the leaf is the tokens after those of the text before,
//! which are in the prompt. The delimiter is a part of the leaf: it distinguishes a name from longer names that begin
//! with it.
//!
//! Every leaf that is built spells its name and the delimiter, or there is an error; other findings are warnings.

use std::collections::HashSet;

use serde::Serialize;

use super::compile::{Descriptor, Node, Trie};
use crate::gguf::shown;
use crate::vocab::Vocab;
use crate::{Error, Result, Token};

/// How many names a warning lists.
const LISTED_NAMES: usize = 5;

/// The texts around a name.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// The text before the name in the reply, as far back as tokens may reach: the last line is enough. Empty: the name
    /// begins a text.
    pub before: &'a str,
    /// The closing delimiter, a part of every leaf. Empty: a leaf ends with its name.
    pub after: &'a str,
    /// Whether the texts of control tokens (`<|im_start|>`) are recognised, in all three texts.
    pub parse_special: bool,
}

/// The result of [`build`].
#[derive(Debug, Clone)]
pub struct Built {
    /// The payload for [`Trie::parse`], one descriptor.
    pub json: String,
    /// Warnings for the user, one sentence each.
    pub warnings: Vec<String>,
    /// The size of the compiled payload.
    pub shape: Shape,
}

/// The size of one descriptor of a trie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Leaves with different token paths.
    pub leaves: u32,
    /// Nodes, the root included.
    pub nodes: u32,
    /// Tokens of the deepest leaf.
    pub depth: u32,
    /// Nodes at which a token is chosen: those with several children, and leaves with any.
    pub branching: u32,
    /// Tokens of all leaves, shared ones counted for each leaf.
    pub tokens: u64,
    /// How many of them are forced.
    pub forced: u64,
    /// The names of the leaves with children, on the way to others.
    pub prefix_leaves: Vec<String>,
}

impl Shape {
    /// The shape of a descriptor of `trie`.
    pub fn of(trie: &Trie, descriptor: &Descriptor) -> Shape {
        let chooses = |node: Node| match trie.children(node).len() {
            0 => false,
            1 => trie.is_leaf(node),
            _ => true,
        };
        let nodes = descriptor.nodes();
        let mut shape = Shape {
            leaves: descriptor.leaves(),
            nodes: nodes.len() as u32, // a range of u32
            depth: descriptor.depth(),
            branching: nodes.clone().filter(|&node| chooses(node)).count() as u32,
            tokens: 0,
            forced: 0,
            prefix_leaves: Vec::new(),
        };
        for leaf in nodes.filter(|&node| trie.is_leaf(node)) {
            if !trie.children(leaf).is_empty() {
                shape.prefix_leaves.extend(trie.leaf(leaf).map(str::to_owned));
            }
            let mut node = leaf;
            while trie.token(node) >= 0 {
                node = trie.parent(node);
                shape.tokens += 1;
                shape.forced += u64::from(!chooses(node));
            }
        }
        shape
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Payload<'a> {
    model_id: &'a str,
    descriptors: [Place<'a>; 1],
}

#[derive(Serialize)]
struct Place<'a> {
    path: &'a str,
    leaves: Vec<Leaf<'a>>,
}

#[derive(Serialize)]
struct Leaf<'a> {
    name: &'a str,
    tokens: Vec<Token>,
}

/// The payload of one descriptor: the token path of every name in its surroundings, names in the order given.
///
/// `model_id` is the model's `general.name`. The tokens of `before` must begin the tokens of the whole text. Where they
/// do not, because a token would reach from `before` into the name, the prompt cannot end there: the name is then
/// tokenized by itself, and a warning says so. Names given again are kept once, with a warning; so are reported names
/// whose path is the beginning of another's.
///
/// # Errors
/// [`Error::InvalidArgument`] for no names, an empty one, or one that the vocabulary cannot spell; [`Error::Trie`] for
/// more than a payload may hold.
pub fn build<N: AsRef<str>>(
    vocab: &Vocab,
    model_id: &str,
    path: &str,
    names: &[N],
    around: Surroundings<'_>,
) -> Result<Built> {
    build_unless(vocab, model_id, path, names, around, &|| false)
}

/// As [`build`]; `cancelled` is asked as [`Vocab::tokenize_unless`] does.
///
/// # Errors
/// As [`build`], and [`Error::Cancelled`].
pub fn build_unless<N: AsRef<str>>(
    vocab: &Vocab,
    model_id: &str,
    path: &str,
    names: &[N],
    around: Surroundings<'_>,
    cancelled: &dyn Fn() -> bool,
) -> Result<Built> {
    let mut seen = HashSet::new();
    let (names, mut again): (Vec<&str>, Vec<&str>) =
        names.iter().map(AsRef::as_ref).partition(|&name| seen.insert(name));
    again.retain(|name| seen.remove(name));
    let tokenize = |text: &str| vocab.tokenize_unless(text.as_bytes(), false, around.parse_special, cancelled);
    let before = tokenize(around.before)?;
    let mut leaves = Vec::with_capacity(names.len());
    let mut reached_into = Vec::new();
    let mut cut_short = Vec::new();
    for name in names {
        if name.is_empty() {
            return Err(Error::InvalidArgument("A name is empty".into()));
        }
        let text = [name, around.after].concat();
        let whole = tokenize(&[around.before, &text].concat())?;
        let tokens = match whole.strip_prefix(before.as_slice()) {
            Some(tokens) => tokens.to_vec(),
            None => {
                reached_into.push(name);
                vocab.tokenize_inside(text.as_bytes(), around.parse_special, cancelled)?
            }
        };
        check_spelling(vocab, &text, &tokens, around.parse_special)?;
        if tokens.split_last().is_some_and(|(_, rest)| rest.iter().any(|&token| vocab.is_eog(token))) {
            cut_short.push(name);
        }
        leaves.push(Leaf { name, tokens });
    }
    if leaves.is_empty() {
        return Err(Error::InvalidArgument("There are no names".into()));
    }
    let one_path = of_one_path(&leaves);
    let payload = Payload { model_id, descriptors: [Place { path, leaves }] };
    let json = serde_json::to_string(&payload).map_err(|error| Error::Internal(format!("The payload: {error}")))?;
    let trie = Trie::parse(json.as_bytes())?;
    let descriptor = &trie.descriptors()[0]; // never empty
    let shape = Shape::of(&trie, descriptor);

    let prefixes: Vec<&str> = shape.prefix_leaves.iter().map(String::as_str).collect();
    let remedy = match around.after {
        "" => "give a closing delimiter, the text behind the name, so that both can be told apart",
        _ => "give a closing delimiter that no name continues with",
    };
    let said = [
        ("given more than once and kept once", &again, ""),
        (
            "tokenized alone, because a token reaches from the text before into the name",
            &reached_into,
            "end the text before where a token ends (a space usually belongs to the name behind it)",
        ),
        ("of the same tokens as another name: the model cannot tell them apart", &one_path, ""),
        ("the beginning of another name: the model may go on behind it with any token", &prefixes, remedy),
        ("cut short by a token that ends the generation", &cut_short, "give such a token only at the end"),
    ];
    let said = said.iter().filter(|(_, names, _)| !names.is_empty());
    let warnings = said.map(|&(what, names, remedy)| {
        let remedy = if remedy.is_empty() { String::new() } else { format!("; {remedy}") };
        format!("{} {} {what}{remedy}", listed(names), if names.len() == 1 { "is" } else { "are" })
    });
    Ok(Built { warnings: warnings.collect(), shape, json })
}

/// Fails unless the tokens spell the text, with or without the space that some vocabularies put before a text.
fn check_spelling(vocab: &Vocab, text: &str, tokens: &[Token], special: bool) -> Result<()> {
    let mut spelled = Vec::new();
    // A longer spelling is wrong already.
    let mut rest = tokens.iter();
    while spelled.len() <= text.len() + 1
        && let Some(&token) = rest.next()
    {
        vocab.piece(token, special, &mut spelled);
    }
    if spelled == text.as_bytes() || spelled.strip_prefix(b" ").is_some_and(|rest| rest == text.as_bytes()) {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "\"{}\" cannot be spelled in this vocabulary: its tokens {tokens:?} spell \"{}\"",
        shown(text),
        shown(&String::from_utf8_lossy(&spelled))
    )))
}

/// The names with the same tokens as an earlier name (by tokens, then by name).
fn of_one_path<'a>(leaves: &[Leaf<'a>]) -> Vec<&'a str> {
    let mut sorted: Vec<(&[Token], &str)> = leaves.iter().map(|leaf| (leaf.tokens.as_slice(), leaf.name)).collect();
    sorted.sort_unstable();
    sorted.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1].1).collect()
}

fn listed(names: &[&str]) -> String {
    let some: Vec<String> = names.iter().take(LISTED_NAMES).map(|name| format!("\"{}\"", shown(name))).collect();
    match names.len().saturating_sub(LISTED_NAMES) {
        0 => some.join(", "),
        more => format!("{} and {more} more", some.join(", ")),
    }
}
