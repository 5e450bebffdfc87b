//! A span of which the device takes every decision by itself.
//!
//! Behind a token that is sampled under a trie's mask the device walks on: it finds the child, evaluates what is forced
//! together with the next choice, samples there among the children, and so on, up to so many passes, without the host
//! in between. The host meanwhile asks for one choice after the other, as always; each is served by the walk as long as
//! it asks for what the walk did. What is left when it asks for something else is taken back.
//!
//! Invariant: cells of a walk belong to no slot's `cells` until the host has asked for the choice behind them.

use super::sampling::{Ahead, Following};
use super::{Engine, SlotId};
use crate::backend::{
    Batch, Children, MAX_LISTED, SampleResult, WALK_CELLS, WALK_PASSES, WALK_ROWS, Walk, WalkNode, Walked,
};
use crate::trie::{Node, Trie};
use crate::{Result, Token, reserve};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A walk under way, or served in part.
pub(super) struct Walking {
    pub slot: SlotId,
    /// The cells of its rows, in order, as far as the host has not asked for them.
    cells: Vec<u32>,
    /// The next choice in the engine's `walked`; `None` until that was read.
    next: Option<usize>,
}

/// A trie that the device holds.
pub(super) struct Held {
    trie: Arc<Trie>,
    /// Per choice: the most passes and rows that a walk from there takes, as far as [`WALK_PASSES`] goes.
    reach: Vec<Reach>,
}

impl Held {
    fn is(&self, trie: &Trie) -> bool {
        std::ptr::eq(&*self.trie, trie)
    }
}

#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Reach {
    passes: u32,
    rows: u32,
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

impl Engine {
    /// Have the device that samples hold a trie, so that it may walk it, where it can; the one before is let go.
    /// Nothing happens where it holds this one. Takes 16 bytes a node on the device.
    pub fn hold_trie(&mut self, trie: &Arc<Trie>) -> Result<()> {
        if self.held.as_ref().is_some_and(|held| held.is(trie)) {
            return Ok(());
        }
        self.settle()?;
        self.held = None;
        let places = self.model.outline().places();
        if places.embedding != places.logits || !self.plans.walk.is_whole() {
            return Ok(());
        }
        let Some(sampler) = self.states[places.logits].sampler() else { return Ok(()) };
        let (nodes, reach) = table(trie)?;
        if sampler.hold_trie(&nodes)? {
            self.held = Some(Held { trie: trie.clone(), reach });
        }
        Ok(())
    }

    /// Start the walk behind the choice under way, which the children of `node` are, of at most so many tokens; none
    /// where the device cannot, or nothing follows.
    pub(super) fn walk(
        &mut self,
        slot: SlotId,
        trie: &Trie,
        node: Node,
        children: Children<'_>,
        tokens: usize,
        cancel: &AtomicBool,
    ) -> Result<()> {
        let held = self.held.as_ref().filter(|held| held.is(trie));
        let reach = held.and_then(|held| held.reach.get(node as usize).copied()).unwrap_or_default();
        let rows = WALK_CELLS.min(reach.rows as usize).min(tokens).min(self.room(slot)).min(self.cells.n_free());
        if rows == 0 || children.tokens.len() > MAX_LISTED || !self.sampler()?.walks(slot.0) {
            return Ok(());
        }
        let done = self.launch_walk(slot, node, WALK_PASSES.min(reach.passes as usize), rows, cancel);
        self.hidden_of = None;
        if let Err(error) = done {
            return self.abandon(slot, error);
        }
        let cells = std::mem::take(&mut self.walk_cells);
        self.ahead = Some(Ahead::Walk(Walking { slot, cells, next: None }));
        Ok(())
    }

    /// Leaves the cells in `walk_cells`, and after an error nothing.
    fn launch_walk(&mut self, slot: SlotId, node: Node, passes: usize, rows: usize, cancel: &AtomicBool) -> Result<()> {
        let (first, bit) = (self.position(slot), 1u32 << slot.0);
        self.inputs.clear();
        for position in (first as i32..).take(rows) {
            let Some(cell) = self.cells.take(position, bit) else { break };
            self.inputs.cells.push(cell);
            self.inputs.positions.push(position);
            self.inputs.sequences.push(bit);
        }
        let batch = Batch {
            positions: &self.inputs.positions,
            sequences: &self.inputs.sequences,
            cells: &self.inputs.cells,
            cell_positions: self.cells.positions(),
            cell_sequences: self.cells.sequences(),
            n_kv: self.cells.end(),
            changed_cells: self.cells.changed(),
            ..Batch::default()
        };
        let walk = Walk { sequence: slot.0, node, passes };
        let done = self.plans.walk.walk(&mut self.states, &batch, &walk, cancel);
        match done {
            Ok(()) => {
                self.cells.settle();
                self.walk_cells.clear();
                self.walk_cells.extend_from_slice(&self.inputs.cells);
            }
            Err(_) => self.give_back(),
        }
        done
    }

    /// The choice behind these tokens, where it is the next one of the walk.
    pub(super) fn walked(
        &mut self,
        walking: &mut Walking,
        slot: SlotId,
        tokens: &[Token],
        following: Following<'_>,
    ) -> Result<Option<SampleResult>> {
        self.read_walk(walking)?;
        let Following::Walk(trie, node, _) = following else { return Ok(None) };
        if !self.held.as_ref().is_some_and(|held| held.is(trie)) {
            return Ok(None);
        }
        let sampled = self.slots[slot.0].on_device.and_then(|known| known.sampled);
        let next = walking.next.unwrap_or_default();
        // The nodes of a trie stand for their tokens.
        let asked = self.walked.steps.get(next).filter(|step| {
            let same = walking.slot == slot && node == step.node && tokens.len() == step.rows as usize;
            same && sampled.is_some() && sampled == tokens.first().copied()
        });
        let Some(step) = asked.copied() else { return Ok(None) };
        walking.next = Some(next + 1);
        let s = &mut self.slots[slot.0];
        s.tokens.extend_from_slice(tokens);
        s.cells.extend(walking.cells.drain(..tokens.len()));
        self.note_sampled(slot, Some(step.result.token).filter(|&token| token >= 0));
        Ok(Some(step.result))
    }

    fn read_walk(&mut self, walking: &mut Walking) -> Result<()> {
        if walking.next.is_some() {
            return Ok(());
        }
        let mut walked = std::mem::take(&mut self.walked);
        let done = self.sampler().and_then(|sampler| sampler.walked(&mut walked));
        self.walked = walked;
        done.inspect_err(|_| self.slots[walking.slot.0].on_device = None)?;
        walking.next = Some(0);
        let Walked { passes, rows, logits, .. } = self.walked;
        self.stats.forward_passes += u64::from(passes);
        self.stats.rows += u64::from(rows);
        self.stats.logits += u64::from(logits);
        Ok(())
    }

    /// Take back what the host did not ask for.
    pub(super) fn end_walk(&mut self, mut walking: Walking) -> Result<()> {
        let done = self.read_walk(&mut walking);
        walking.cells.drain(..).for_each(|cell| self.cells.free(cell));
        let slot = walking.slot;
        // Kept for the next one.
        self.walk_cells = walking.cells;
        done?;
        let rows: u32 = self.walked.steps.iter().skip(walking.next.unwrap_or_default()).map(|step| step.rows).sum();
        if rows == 0 {
            return Ok(());
        }
        let s = &self.slots[slot.0];
        let last = s.on_device.and_then(|known| known.sampled).or(s.tokens.last().copied());
        self.sampler()?.roll_back(slot.0, rows, last.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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
        // Behind 10 there are 21 rows in three passes to a choice; behind 1 two rows in one.
        assert_eq!(reach[0], Reach { passes: 3, rows: 21 });
    }
}
