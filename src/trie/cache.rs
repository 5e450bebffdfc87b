//! Compiled tries shared by the whole process.
//!
//! Hosts send the same payload many times; a payload in the cache costs one hash and no parse. Entries are `Arc`s, so a
//! trie in use stays valid after eviction. An entry does not depend on a vocabulary: each load checks
//! [`Trie::check_vocab`] against its own model, hits included, and a payload that fails its check is not kept.

use std::any::Any;
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};

use lru::LruCache;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::compile::Trie;
use super::payload::MAX_PAYLOAD_BYTES;
use crate::{Result, Token};

/// The most tries kept.
pub const CAPACITY: NonZeroUsize = NonZeroUsize::new(128).unwrap();

/// The most bytes of tries kept, until [`set_limit`] says otherwise.
pub const LIMIT_BYTES: usize = 64 << 20;

/// Counters of a [`Cache`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Payloads found.
    pub hits: u64,
    /// Payloads parsed, refused ones included.
    pub misses: u64,
    /// Tries held now.
    pub entries: usize,
    /// Bytes of the tries held now.
    pub bytes: usize,
}

/// A least-recently-used cache of compiled tries, keyed by the SHA-256 of the payload's bytes.
pub struct Cache {
    shelf: Mutex<Shelf>,
}

struct Shelf {
    tries: LruCache<[u8; 32], Arc<Trie>>,
    limit: usize,
    hits: u64,
    misses: u64,
    bytes: usize,
}

impl Shelf {
    /// Evicts the least recently used until the rest is within the limit.
    fn evict(&mut self) {
        while self.bytes > self.limit
            && let Some((_, evicted)) = self.tries.pop_lru()
        {
            self.bytes -= evicted.bytes();
        }
    }
}

impl Cache {
    /// An empty cache of at most `capacity` tries and `limit` bytes of them.
    pub fn new(capacity: NonZeroUsize, limit: usize) -> Cache {
        Cache { shelf: Mutex::new(Shelf { tries: LruCache::new(capacity), limit, hits: 0, misses: 0, bytes: 0 }) }
    }

    /// The compiled payload, from the cache or parsed now, after `check`. One that is larger than the cache's limit is
    /// not kept.
    ///
    /// # Errors
    /// As [`Trie::parse`], and those of `check`; a refused payload is not kept.
    pub fn load(&self, json: &[u8], check: impl FnOnce(&Trie) -> Result<()>) -> Result<Arc<Trie>> {
        if json.len() > MAX_PAYLOAD_BYTES {
            return Trie::parse(json).map(Arc::new); // refused without hashing it
        }
        let key: [u8; 32] = Sha256::digest(json).into();
        let known = {
            let mut shelf = self.shelf.lock();
            let known = shelf.tries.get(&key).cloned();
            shelf.hits += u64::from(known.is_some());
            shelf.misses += u64::from(known.is_none());
            known
        };
        if let Some(trie) = known {
            return check(&trie).map(|()| trie);
        }
        // Parsed and checked without the lock; of two threads that parse the same payload, the result of the first to
        // finish is kept.
        let trie = Arc::new(Trie::parse(json)?);
        check(&trie)?;
        let mut shelf = self.shelf.lock();
        if let Some(earlier) = shelf.tries.get(&key) {
            return Ok(earlier.clone());
        }
        if trie.bytes() <= shelf.limit {
            shelf.bytes += trie.bytes();
            if let Some((_, evicted)) = shelf.tries.push(key, trie.clone()) {
                shelf.bytes -= evicted.bytes();
            }
            shelf.evict();
        }
        Ok(trie)
    }

    /// Keeps at most `bytes` bytes of tries from now on.
    pub fn set_limit(&self, bytes: usize) {
        let mut shelf = self.shelf.lock();
        shelf.limit = bytes;
        shelf.evict();
    }

    /// The cache's counters.
    pub fn stats(&self) -> CacheStats {
        let shelf = self.shelf.lock();
        CacheStats { hits: shelf.hits, misses: shelf.misses, entries: shelf.tries.len(), bytes: shelf.bytes }
    }
}

static PROCESS: LazyLock<Cache> = LazyLock::new(|| Cache::new(CAPACITY, LIMIT_BYTES));

/// [`Cache::load`] of the process-wide cache.
///
/// # Errors
/// As there.
pub fn load(json: &[u8], check: impl FnOnce(&Trie) -> Result<()>) -> Result<Arc<Trie>> {
    PROCESS.load(json, check)
}

/// [`Cache::set_limit`] of the process-wide cache.
pub fn set_limit(bytes: usize) {
    PROCESS.set_limit(bytes);
}

/// [`Cache::stats`] of the process-wide cache.
pub fn stats() -> CacheStats {
    PROCESS.stats()
}

/// [`Trie::spelling`], with the verdict kept per (trie, vocabulary): a second question about the same two costs a
/// look-up. `piece` is asked for the bytes of one token of `vocab`.
pub fn spelling<V: Any + Send + Sync>(
    trie: &Trie,
    vocab: &Arc<V>,
    piece: impl Fn(&V, Token, bool, &mut Vec<u8>),
) -> Option<String> {
    let same = |held: &std::sync::Weak<dyn Any + Send + Sync>| {
        std::ptr::addr_eq(held.as_ptr(), Arc::as_ptr(vocab)) && held.strong_count() > 0
    };
    if let Some((_, verdict)) = trie.verdicts.lock().iter().find(|(held, _)| same(held)) {
        return verdict.clone();
    }
    let verdict = trie.spelling(|token, special, out| piece(vocab, token, special, out));
    let erased: Arc<dyn Any + Send + Sync> = vocab.clone();
    let mut verdicts = trie.verdicts.lock();
    verdicts.retain(|(held, _)| held.strong_count() > 0 && !same(held));
    verdicts.push((Arc::downgrade(&erased), verdict.clone()));
    verdict
}
