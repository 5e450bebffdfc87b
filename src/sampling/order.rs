//! The order of the list of candidates in llama.cpp, along which its draw walks.
//!
//! Samplers there sort the list or leave it as it is, and the token of a draw depends on it. Here candidates are by id;
//! this is the record of how they would be there, kept where [`Generator::Mt19937`](crate::backend::Generator) draws.

use super::candidate::Candidate;
use super::pool::{Buffers, Pool};

/// The order of the list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Order {
    /// By id, as at first.
    Id,
    /// Best first.
    Logit,
    /// The most typical first; of two with one distance the better first.
    Typical(Typicality),
    /// As in [`Buffers::arranged`]: the logits changed after the list was sorted.
    Arranged,
}

/// How typical a candidate is, at the time when that was judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Typicality {
    /// The best logit, and 1 / temperature.
    pub best: f32,
    pub scale: f32,
    /// The mean distance below the best logit, times the scale.
    pub mean: f32,
}

impl Typicality {
    /// How far the surprise of a candidate with this logit is from the expected one.
    pub(super) fn distance(&self, logit: f32) -> f32 {
        ((self.best - logit) * self.scale - self.mean).abs()
    }
}

impl Pool<'_> {
    /// Called before logits change: the order stays that of the old ones.
    pub(super) fn keep_order(&mut self) {
        if self.buffers.llama && self.order != Order::Id {
            self.arrange();
            self.order = Order::Arranged;
        }
    }

    /// Writes the candidates that are left to [`Buffers::arranged`], in their order.
    pub(super) fn arrange(&mut self) {
        let Buffers { list, arranged, .. } = &mut *self.buffers;
        if self.order == Order::Arranged {
            let row = &*self.row;
            let now = |one: &Candidate| match self.in_list {
                true => list.binary_search_by_key(&one.token, |one| one.token).ok().map(|at| list[at].logit),
                false => row.get(one.token as usize).copied().filter(|logit| *logit > f32::NEG_INFINITY),
            };
            arranged.retain_mut(|one| now(one).map(|logit| one.logit = logit).is_some());
            // A mask may have left a token that was no candidate.
            if !arranged.is_empty() {
                return;
            }
        }
        arranged.clear();
        match self.in_list {
            true => arranged.extend_from_slice(list),
            false => {
                let row = (0..).zip(self.row.iter()).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
                arranged.extend(row.map(|(token, &logit)| Candidate { token, logit }));
            }
        }
        match self.order {
            Order::Id | Order::Arranged => {}
            Order::Logit => arranged.sort_unstable_by_key(|one| one.key()),
            Order::Typical(typical) => arranged.sort_unstable_by(|a, b| {
                typical.distance(a.logit).total_cmp(&typical.distance(b.logit)).then(a.key().cmp(&b.key()))
            }),
        }
    }
}
