//! Memory in bytes, by what it holds, and the account that a device keeps of it.
//!
//! Planned and allocated bytes are counted by the same components, so that they can be compared. An [`Account`] counts
//! what is allocated at present: the owner of an allocation keeps a [`Held`] with it, and dropping that subtracts its
//! bytes.

use crate::graph::Part;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What memory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// Weights of the embedding; where the output matrix is the same one, that too.
    Embedding,
    /// Weights of the repeating layers.
    Layers,
    /// Weights of the output norm and the output matrix.
    Head,
    /// Keys and values.
    Cache,
    /// Activations.
    Workspace,
    /// Everything else of an engine: the frame, partial results, the sampler, staging for reads, step parameters,
    /// scratch.
    Other,
}

impl Component {
    /// Every component, in the order of reports.
    pub const ALL: [Component; 6] = [
        Component::Embedding,
        Component::Layers,
        Component::Head,
        Component::Cache,
        Component::Workspace,
        Component::Other,
    ];

    /// The component of the weights of a part of the model.
    pub fn of(part: Part) -> Component {
        match part {
            Part::Embedding => Component::Embedding,
            Part::Layer(_) => Component::Layers,
            Part::Head => Component::Head,
        }
    }

    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Component::Embedding => "embedding",
            Component::Layers => "layers",
            Component::Head => "head",
            Component::Cache => "kv_cache",
            Component::Workspace => "workspace",
            Component::Other => "other",
        }
    }
}

/// Bytes of every component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes([u64; Component::ALL.len()]);

impl Bytes {
    /// Bytes of one component.
    pub fn of(&self, component: Component) -> u64 {
        self.0[component as usize]
    }

    /// Count more bytes of a component.
    pub fn add(&mut self, component: Component, bytes: u64) {
        let sum = &mut self.0[component as usize];
        *sum = sum.saturating_add(bytes);
    }

    /// All bytes.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Every component with its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (Component, u64)> + '_ {
        Component::ALL.into_iter().map(|component| (component, self.of(component)))
    }
}

impl std::ops::Add for Bytes {
    type Output = Bytes;

    fn add(mut self, other: Bytes) -> Bytes {
        other.iter().for_each(|(component, bytes)| Bytes::add(&mut self, component, bytes));
        self
    }
}

/// What is allocated on a device at present.
#[derive(Debug, Default)]
pub struct Account([AtomicU64; Component::ALL.len()]);

impl Account {
    /// Count bytes for as long as the result lives.
    pub fn hold(self: &Arc<Self>, component: Component, bytes: u64) -> Held {
        self.0[component as usize].fetch_add(bytes, Ordering::Relaxed);
        Held { account: self.clone(), component, bytes }
    }

    /// What is held now.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.0.each_ref().map(|bytes| bytes.load(Ordering::Relaxed)))
    }
}

/// Bytes on an [`Account`] until this is dropped.
#[derive(Debug)]
pub struct Held {
    account: Arc<Account>,
    component: Component,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.account.0[self.component as usize].fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The memory of a device: used, total, available; all in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// What this process has allocated there.
    pub used: Bytes,
    /// Bytes in all; `None` where the system does not report it.
    pub total: Option<u64>,
    /// Bytes that can still be allocated; `None` where the system does not report it.
    pub available: Option<u64>,
    /// Whether it is the host's memory (the CPU, and integrated GPUs).
    pub of_host: bool,
}

/// A number of bytes with an optional K, M or G, as limits are written.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_leaves_the_account() {
        let account = Arc::new(Account::default());
        let cache = account.hold(Component::Cache, 100);
        let more = [account.hold(Component::Cache, 20), account.hold(Component::Other, 3)];
        assert_eq!((account.bytes().of(Component::Cache), account.bytes().total()), (120, 123));
        drop(cache);
        assert_eq!((account.bytes().of(Component::Cache), account.bytes().total()), (20, 23));
        drop(more);
        assert_eq!(account.bytes(), Bytes::default());
    }

    #[test]
    fn sizes_with_units() {
        let sizes = ["17", "3K", "16M", "2G", "", "M", "-1", "1T", "99999999999G"].map(parse_bytes);
        assert_eq!(sizes[..4], [Some(17), Some(3 << 10), Some(16 << 20), Some(2 << 30)]);
        assert!(sizes[4..].iter().all(Option::is_none));
    }
}
