//! Random tries and random walks against a naive oracle: a list of token lists, searched from end to end.

use std::collections::BTreeSet;
use std::sync::Arc;

use elizainference::Token;
use elizainference::sampling::random;
use elizainference::trie::{Accept, Mode, Trie, TrieState};

/// Numbers that look random, a function of the seed.
struct Dice {
    seed: u64,
    next: u32,
}

impl Dice {
    fn below(&mut self, bound: u32) -> u32 {
        self.next += 1;
        random::bits(self.seed, self.next, 1) % bound
    }
}

/// One descriptor's leaves: tokens and name.
type Leaves = Vec<(Vec<Token>, String)>;

/// The state machine over lists.
#[derive(Clone)]
struct Naive {
    descriptors: Vec<Leaves>,
    armed: usize,
    /// The tokens since the root; `None` when released.
    path: Option<Vec<Token>>,
    name: Option<String>,
    counted: usize,
    applied: bool,
}

impl Naive {
    fn leaves(&self) -> &Leaves {
        &self.descriptors[self.armed]
    }

    fn arm(&mut self, descriptor: usize) {
        self.armed = descriptor;
        self.path = Some(Vec::new());
        self.name = None;
        self.counted = 0;
        self.applied = false;
    }

    fn children(&self, path: &[Token]) -> Vec<Token> {
        let next = |(tokens, _): &(Vec<Token>, String)| {
            (tokens.len() > path.len() && tokens.starts_with(path)).then(|| tokens[path.len()])
        };
        self.leaves().iter().filter_map(next).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn name(&self, path: &[Token]) -> Option<String> {
        self.leaves().iter().filter(|(tokens, _)| tokens == path).map(|(_, name)| name.clone()).min()
    }

    fn mask(&self) -> Option<Vec<Token>> {
        let path = self.path.as_ref()?;
        if self.name(path).is_some() { None } else { Some(self.children(path)) }
    }

    /// Steps until a leaf or a node without exactly one child.
    fn forced_run(&self, path: &[Token]) -> u32 {
        let mut path = path.to_vec();
        let mut run = 0;
        while let (None, &[child]) = (self.name(&path), self.children(&path).as_slice()) {
            path.push(child);
            run += 1;
        }
        run
    }

    fn accept(&mut self, token: Token) -> Accept {
        self.applied = false;
        let Some(mut path) = self.path.take() else { return Accept::Ignored };
        self.counted += 1;
        let done = if self.children(&path).contains(&token) {
            path.push(token);
            if self.children(&path).is_empty() {
                self.name = self.name(&path);
                return Accept::Leaf;
            }
            Accept::Moved
        } else if let Some(name) = self.name(&path) {
            self.name = Some(name);
            return Accept::EndedAtLeaf;
        } else {
            path.clear();
            Accept::Rearmed
        };
        let deepest = self.leaves().iter().map(|(tokens, _)| tokens.len()).max().unwrap_or(0);
        if self.counted >= deepest.max(500) {
            return Accept::NetReleased;
        }
        self.path = Some(path);
        done
    }

    fn accept_replay(&mut self, token: Token) -> Accept {
        let below_root = self.path.as_ref().is_some_and(|path| !path.is_empty());
        if below_root || self.applied { self.accept(token) } else { Accept::Ignored }
    }
}

fn descriptors(dice: &mut Dice) -> Vec<Leaves> {
    let alphabet = [2, 3, 10, 1000][dice.below(4) as usize];
    let depth = 1 + dice.below(6);
    let count = 1 + dice.below(3);
    (0..count)
        .map(|_| {
            let leaves = 1 + dice.below(12);
            (0..leaves)
                .map(|_| {
                    let tokens = (0..1 + dice.below(depth)).map(|_| dice.below(alphabet) as Token).collect();
                    (tokens, format!("N{}", dice.below(30)))
                })
                .collect()
        })
        .collect()
}

fn compile(descriptors: &[Leaves]) -> Trie {
    let descriptors: Vec<_> = (0..)
        .zip(descriptors)
        .map(|(number, leaves): (u32, _)| {
            let leaves: Vec<_> =
                leaves.iter().map(|(tokens, name)| serde_json::json!({"name": name, "tokens": tokens})).collect();
            serde_json::json!({"path": format!("d{number}"), "leaves": leaves})
        })
        .collect();
    Trie::parse(serde_json::json!({ "descriptors": descriptors }).to_string().as_bytes()).unwrap()
}

/// Every node of the compiled trie against the lists.
fn check_shape(trie: &Trie, naive: &mut Naive) {
    for (number, descriptor) in trie.descriptors().iter().enumerate() {
        naive.arm(number);
        let prefixes: BTreeSet<Vec<Token>> = naive
            .leaves()
            .iter()
            .flat_map(|(tokens, _)| (0..=tokens.len()).map(|end| tokens[..end].to_vec()))
            .collect();
        assert_eq!(descriptor.nodes().len(), prefixes.len());
        let mut depth = 0;
        for node in descriptor.nodes() {
            let path = trie.path_to(node);
            assert!(prefixes.contains(&path));
            assert!(path.len() >= depth, "not breadth first");
            depth = path.len();
            assert_eq!(trie.children(node), naive.children(&path));
            assert_eq!(trie.leaf(node).map(str::to_owned), naive.name(&path));
            assert_eq!(trie.forced_run(node), naive.forced_run(&path));
            for (&token, &child) in trie.children(node).iter().zip(trie.child_nodes(node)) {
                assert_eq!((trie.parent(child), trie.token(child)), (node, token));
            }
        }
        assert_eq!(descriptor.depth() as usize, depth);
    }
}

fn check_walk(seed: u64, steps: u32) {
    let mut dice = Dice { seed, next: 0 };
    let descriptors = descriptors(&mut dice);
    let trie = Arc::new(compile(&descriptors));
    let mut naive = Naive { descriptors, armed: 0, path: None, name: None, counted: 0, applied: false };
    check_shape(&trie, &mut naive);
    naive.arm(0);
    let mut state = TrieState::new(trie, Mode::Greedy);
    for step in 0..steps {
        let context = || format!("seed {seed}, step {step}");
        let mask = naive.mask();
        assert_eq!(state.mask().map(<[Token]>::to_vec), mask, "{}", context());
        let forced = mask.as_ref().filter(|children| children.len() == 1).map(|children| children[0]);
        assert_eq!(state.forced(), forced, "{}", context());
        assert_eq!(state.is_armed(), naive.path.is_some(), "{}", context());
        assert_eq!(state.inside(), naive.path.as_ref().is_some_and(|path| !path.is_empty()), "{}", context());
        assert_eq!(state.at_leaf(), naive.path.is_some() && mask.is_none(), "{}", context());
        assert_eq!(state.leaf_name().map(str::to_owned), naive.name, "{}", context());
        // Mostly a child, else anything.
        let children = naive.path.as_ref().map(|path| naive.children(path)).unwrap_or_default();
        let token = match children.len() as u32 {
            n if n > 0 && dice.below(6) > 0 => children[dice.below(n) as usize],
            _ => dice.below(12) as Token,
        };
        match dice.below(16) {
            0 => {
                state.arm(None).unwrap();
                naive.arm((naive.armed + 1) % naive.descriptors.len());
            }
            1 => {
                let number = dice.below(naive.descriptors.len() as u32) as usize;
                state.arm(Some(&format!("d{number}"))).unwrap();
                naive.arm(number);
            }
            2 => {
                state.rearm();
                naive.arm(naive.armed);
            }
            3 => {
                state.note_apply();
                naive.applied = true;
            }
            4 => {
                // Continue in copies.
                state = state.clone();
                naive = naive.clone();
            }
            5..=8 => assert_eq!(state.accept_replay(token), naive.accept_replay(token), "{}", context()),
            _ => assert_eq!(state.accept(token), naive.accept(token), "{}", context()),
        }
    }
}

#[test]
fn random_walks_agree_with_the_lists() {
    (0..500).for_each(|seed| check_walk(seed, 60));
}

#[test]
#[ignore = "10,000 tries"]
fn many_random_walks_agree_with_the_lists() {
    (0..10_000).for_each(|seed| check_walk(seed, 200));
}
