//! A trie on a device that walks it without the host.

use crate::backend::{MAX_LISTED, WALK_ROWS, WalkNode};
use crate::trie::{Node, Trie};
use crate::{Result, reserve};
use std::sync::Arc;

/// A trie that is on the device.
pub(super) struct HeldTrie {
    trie: Arc<Trie>,
    /// For each node with a choice: the most passes and rows of a walk from there, up to
    /// [`WALK_PASSES`](crate::backend::WALK_PASSES).
    reach: Vec<Reach>,
}

/// The most passes and rows of a walk.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Reach {
    pub passes: u32,
    pub rows: u32,
}

impl HeldTrie {
    /// The trie, and the table of its nodes that a device reads.
    pub fn new(trie: &Arc<Trie>) -> Result<(HeldTrie, Vec<WalkNode>)> {
        let (nodes, reach) = table(trie)?;
        Ok((HeldTrie { trie: trie.clone(), reach }, nodes))
    }

    pub fn is(&self, trie: &Trie) -> bool {
        std::ptr::eq(&*self.trie, trie)
    }

    /// The passes and rows of a walk from a node.
    pub fn reach(&self, node: Node) -> Reach {
        self.reach.get(node as usize).copied().unwrap_or_default()
    }
}

/// The nodes as a device reads them, and the reach of each.
fn table(trie: &Trie) -> Result<(Vec<WalkNode>, Vec<Reach>)> {
    let mut nodes: Vec<WalkNode> = reserve::filled([0; 4], trie.nodes(), "nodes of a trie")?;
    let mut reach = reserve::filled(Reach::default(), trie.nodes(), "nodes of a trie")?;
    // Children have higher numbers than their parents.
    for node in (0..trie.nodes()).rev() {
        let children = trie.child_nodes(node as Node);
        let open = !trie.is_leaf(node as Node) && children.len() <= MAX_LISTED;
        let behind = |&child: &Node| (nodes[child as usize][3], reach[child as usize]);
        let run;
        (run, reach[node]) = match children {
            [only] if open => (behind(only).0 + u32::from(behind(only).0 > 0), behind(only).1),
            [_, _, ..] if open => {
                let ways = children.iter().map(behind).filter(|(run, _)| *run > 0);
                let sum = |(run, then): (u32, Reach)| Reach {
                    passes: run.div_ceil(WALK_ROWS as u32).saturating_add(then.passes),
                    rows: run.saturating_add(then.rows),
                };
                let most = |a: Reach, b: Reach| Reach { passes: a.passes.max(b.passes), rows: a.rows.max(b.rows) };
                (1, ways.map(sum).fold(Reach::default(), most))
            }
            _ => (0, Reach::default()),
        };
        let first = children.first().copied().unwrap_or(0);
        nodes[node] = [first, children.len() as u32, trie.token(node as Node) as u32, run];
    }
    Ok((nodes, reach))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Token;

    #[test]
    fn runs_and_reach_of_every_node() {
        let long: Vec<u32> = (20..40).collect();
        let leaves =
            [vec![1, 2, 3], vec![1, 2, 4, 5], vec![6, 7], vec![6, 7, 8], vec![9], [&[10][..], &long, &[1]].concat()];
        let more = [&[10][..], &long, &[2]].concat();
        let leaves: Vec<_> = leaves.into_iter().chain([more]).enumerate().collect();
        let leaves: Vec<_> =
            leaves.iter().map(|(i, t)| serde_json::json!({"name": format!("{i}"), "tokens": t})).collect();
        let json = serde_json::json!({"modelId": "", "descriptors": [{"path": "p", "leaves": leaves}]}).to_string();
        let trie = Trie::parse(json.as_bytes()).unwrap();
        let (nodes, reach) = table(&trie).unwrap();
        for node in 0..trie.nodes() as Node {
            let [first, count, token, run] = nodes[node as usize];
            assert_eq!(
                trie.child_nodes(node),
                (first..first + count).collect::<Vec<_>>(),
                "siblings stand side by side"
            );
            assert_eq!(token as Token, trie.token(node));
            // One step at a time.
            let (mut at, mut rows) = (node, 1);
            while let (&[child], false) = (trie.child_nodes(at), trie.is_leaf(at)) {
                (at, rows) = (child, rows + 1);
            }
            let choice = trie.children(at).len() > 1 && !trie.is_leaf(at);
            assert_eq!(run, if choice { rows } else { 0 }, "node {node}");
        }
        // After 10 there are 21 rows in three passes to a choice; after 1 two rows in one.
        assert_eq!(reach[0], Reach { passes: 3, rows: 21 });
    }
}
