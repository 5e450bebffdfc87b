//! Rules as positions in one list: what may come at each, and where it goes on.
//!
//! A literal is its bytes. The alternatives of a rule that begin alike share their beginning, so that a list of names
//! is a trie: at most one position for each first byte, whatever the number of alternatives. That changes no match,
//! since a stack of positions is all that matching knows.

use super::classes::Automata;
use super::gbnf::MAX_ITEMS;
use super::rules::{Item, Rules, TokenName};
use crate::gguf::shown;
use crate::vocab::Vocab;
use crate::{Error, Result, Token, reserve};
use hashbrown::HashMap;

/// The most positions.
const MAX_POSITIONS: usize = 2 * MAX_ITEMS;
const POSITIONS: &str = "positions of a grammar";

/// What a position matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Op {
    /// The end of the rule.
    End,
    /// A byte.
    Byte(u8),
    /// A code point, by the first state of its class.
    Class(u32),
    /// A rule, by its index.
    Rule(u32),
    /// A whole token.
    Token(Token),
    /// Any whole token but this one.
    NotToken(Token),
    /// What never matches.
    Never,
    /// All of several positions: [`Code::forks`] of this index.
    Fork(u32),
}

/// What follows a position after one item of a repetition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Repeat {
    /// The position after the item in an endless loop of it.
    pub(super) endless: u32,
    /// How many items must follow.
    pub(super) needed: u32,
    /// How many may follow; [`u32::MAX`] where any number may.
    pub(super) left: u32,
    /// The position after the last one.
    pub(super) exit: u32,
}

/// A compiled grammar.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) ops: Vec<Op>,
    /// Ranges of [`Code::targets`].
    forks: Vec<(u32, u32)>,
    targets: Vec<u32>,
    /// For each rule its first position.
    pub(super) starts: Vec<u32>,
    /// For each rule its mark.
    pub(super) marks: Vec<u32>,
    pub(super) automata: Automata,
    pub(super) root: u32,
    pub(super) has_tokens: bool,
    /// By the position that follows one item of a repetition; empty until they are looked for.
    pub(super) repeats: HashMap<u32, Repeat>,
}

impl Code {
    /// The rules for a vocabulary.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a token that the vocabulary does not have, [`Error::OutOfMemory`].
    pub(super) fn compile(rules: &Rules, vocab: &Vocab) -> Result<Code> {
        let tokens = tokens(rules, vocab)?;
        let mut automata = Automata::default();
        let classes: Vec<Option<u32>> = rules.classes.iter().map(|class| automata.add(class)).collect();
        let mut code = Code {
            ops: Vec::new(),
            forks: Vec::new(),
            targets: Vec::new(),
            starts: reserve::list(rules.rules.len(), POSITIONS)?,
            marks: rules.rules.iter().map(|rule| rule.mark).collect(),
            automata,
            root: rules.root,
            has_tokens: !tokens.is_empty(),
            repeats: HashMap::new(),
        };
        let mut alternatives = Alternatives::default();
        for rule in &rules.rules {
            alternatives.read(&rule.items, &classes, &tokens);
            let start = code.ops.len() as u32;
            code.starts.push(start);
            code.emit(&mut alternatives)?;
        }
        Ok(code)
    }

    /// Adds the rule `L ::= item L | ""`; returns the position after its item.
    pub(super) fn add_loop(&mut self, item: Op) -> Result<u32> {
        let (start, rule) = (self.ops.len() as u32, self.starts.len() as u32);
        self.starts.push(start);
        self.marks.push(0);
        for op in [Op::Fork(self.forks.len() as u32), item, Op::Rule(rule), Op::End, Op::End] {
            self.push(op)?;
        }
        let first = self.targets.len() as u32;
        self.targets.extend([start + 1, start + 4]);
        self.forks.push((first, first + 2));
        Ok(start + 2)
    }

    /// The positions of a fork.
    pub(super) fn targets(&self, fork: u32) -> &[u32] {
        let (begin, end) = self.forks[fork as usize];
        &self.targets[begin as usize..end as usize]
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.ops.capacity() * size_of::<Op>()
            + (self.forks.len() * 2 + self.targets.len() + self.starts.len() * 2) * 4
            + self.automata.bytes()
            + self.repeats.capacity() * (size_of::<Repeat>() + 8)
    }

    fn push(&mut self, op: Op) -> Result<()> {
        if self.ops.len() == MAX_POSITIONS {
            return Err(Error::InvalidArgument(format!("Grammar: more than {MAX_POSITIONS} positions")));
        }
        reserve::push(&mut self.ops, op, POSITIONS)
    }

    /// Writes alternatives as a trie.
    fn emit(&mut self, alternatives: &mut Alternatives) -> Result<()> {
        let flat = &alternatives.flat;
        // Groups of alternatives that are alike so far, each with the target that waits for its position.
        let mut work: Vec<(Vec<u32>, Option<usize>)> = vec![(std::mem::take(&mut alternatives.begins), None)];
        while let Some((mut group, target)) = work.pop() {
            if let Some(target) = target {
                self.targets[target] = self.ops.len() as u32;
            }
            loop {
                let first = flat[group[0] as usize];
                if group.iter().all(|&at| flat[at as usize] == first) {
                    self.push(first)?;
                    if matches!(first, Op::End | Op::Never) {
                        break;
                    }
                    group.iter_mut().for_each(|at| *at += 1);
                    continue;
                }
                group.sort_by_key(|&at| flat[at as usize]);
                let begin = self.targets.len();
                for part in group.chunk_by(|&a, &b| flat[a as usize] == flat[b as usize]) {
                    work.push((part.to_vec(), Some(self.targets.len())));
                    self.targets.push(0);
                }
                self.push(Op::Fork(self.forks.len() as u32))?;
                self.forks.push((begin as u32, self.targets.len() as u32));
                break;
            }
        }
        Ok(())
    }
}

/// The alternatives of one rule, each ended by [`Op::End`].
#[derive(Default)]
struct Alternatives {
    flat: Vec<Op>,
    begins: Vec<u32>,
}

impl Alternatives {
    fn read(&mut self, items: &[Item], classes: &[Option<u32>], tokens: &[Token]) {
        self.flat.clear();
        self.begins.clear();
        self.begins.push(0);
        for item in items {
            match *item {
                Item::Or => {
                    self.flat.push(Op::End);
                    self.begins.push(self.flat.len() as u32);
                }
                Item::Char(c) => match char::from_u32(c).filter(|&c| c != '\0') {
                    Some(c) => {
                        let mut bytes = [0; 4];
                        self.flat.extend(c.encode_utf8(&mut bytes).bytes().map(Op::Byte));
                    }
                    None => self.flat.push(Op::Never),
                },
                Item::Class(class) => self.flat.push(classes[class as usize].map_or(Op::Never, Op::Class)),
                Item::Rule(rule) => self.flat.push(Op::Rule(rule)),
                Item::Token(token) => self.flat.push(Op::Token(tokens[token as usize])),
                Item::NotToken(token) => self.flat.push(Op::NotToken(tokens[token as usize])),
            }
        }
        self.flat.push(Op::End);
    }
}

/// The tokens that the rules refer to.
pub(super) fn tokens(rules: &Rules, vocab: &Vocab) -> Result<Vec<Token>> {
    let refused = |index: usize, why: String| {
        let name = shown(&rules.token_text(index as u32));
        Err(Error::InvalidArgument(format!("Grammar: the token {name} {why}")))
    };
    let mut tokens = Vec::new();
    for (index, name) in rules.tokens.iter().enumerate() {
        tokens.push(match name {
            TokenName::Id(id) if (*id as usize) < vocab.n_tokens() => *id,
            TokenName::Id(_) => {
                return refused(index, format!("is not in the vocabulary, which has {}", vocab.n_tokens()));
            }
            TokenName::Text(text) => match vocab.tokenize_inside(text.as_bytes(), true, &|| false)?[..] {
                [token] => token,
                ref several => {
                    return refused(index, format!("is {} tokens of this vocabulary, not one", several.len()));
                }
            },
        });
    }
    Ok(tokens)
}
