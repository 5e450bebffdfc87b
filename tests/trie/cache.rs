//! The cache of compiled tries: hits, eviction while in use, threads, verdicts per vocabulary.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use elizainference::trie::cache::{self, Cache};
use elizainference::trie::{Accept, Mode, Trie, TrieState};
use elizainference::{Error, Result, Token};

fn payload(number: usize) -> String {
    format!(r#"{{"descriptors":[{{"path":"p","leaves":[{{"name":"A{number}","tokens":[{number},1]}}]}}]}}"#)
}

fn cache(capacity: usize) -> Cache {
    Cache::new(NonZeroUsize::new(capacity).unwrap(), usize::MAX)
}

fn load(cache: &Cache, json: &[u8]) -> Result<Arc<Trie>> {
    cache.load(json, |_| Ok(()))
}

#[test]
fn the_same_bytes_give_the_same_trie() {
    let cache = cache(4);
    let first = load(&cache, payload(1).as_bytes()).unwrap();
    let again = load(&cache, payload(1).as_bytes()).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    // One more space is another payload, though an equal trie.
    let spaced = load(&cache, format!("{} ", payload(1)).as_bytes()).unwrap();
    assert!(!Arc::ptr_eq(&first, &spaced));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.entries), (1, 2, 2));
    assert_eq!(stats.bytes, first.bytes() + spaced.bytes());
}

#[test]
fn refused_payloads_are_not_kept() {
    let cache = cache(4);
    for _ in 0..2 {
        assert!(load(&cache, b"{}").is_err());
    }
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.entries, stats.bytes), (0, 2, 0, 0));
}

#[test]
fn m2_bytes_bound_the_cache_and_what_a_check_refuses_does_not_stay() {
    let each = load(&cache(1), payload(10).as_bytes()).unwrap().bytes();
    let held = |cache: &Cache| (cache.stats().entries, cache.stats().bytes);
    let cache = Cache::new(cache::CAPACITY, 3 * each + each / 2);
    for number in 10..60 {
        let refused = cache.load(payload(number).as_bytes(), |trie| trie.check_vocab(5));
        assert!(matches!(&refused, Err(Error::Trie { place, .. }) if place.ends_with("tokens[0]")), "{refused:?}");
    }
    assert_eq!(held(&cache), (0, 0));
    let users: Vec<Arc<Trie>> = (10..60).map(|number| load(&cache, payload(number).as_bytes()).unwrap()).collect();
    assert_eq!(held(&cache), (3, 3 * each));
    let is_held = |number: usize| Arc::ptr_eq(&users[number - 10], &load(&cache, payload(number).as_bytes()).unwrap());
    assert!((57..60).all(is_held), "the last three");
    // A payload that was fit for one vocabulary and is not for another stays.
    assert!(cache.load(payload(59).as_bytes(), |trie| trie.check_vocab(5)).is_err());
    assert_eq!(held(&cache), (3, 3 * each));
    // What is larger than the whole cache does not drive out what fits.
    let leaves: Vec<String> = (0..99).map(|i| format!(r#"{{"name":"{i}","tokens":[{i}]}}"#)).collect();
    let large = format!(r#"{{"descriptors":[{{"path":"p","leaves":[{}]}}]}}"#, leaves.join(","));
    assert!(load(&cache, large.as_bytes()).unwrap().bytes() > 4 * each);
    assert_eq!(held(&cache), (3, 3 * each));
    cache.set_limit(2 * each);
    assert_eq!(held(&cache), (2, 2 * each));
    cache.set_limit(0);
    load(&cache, payload(10).as_bytes()).unwrap();
    assert_eq!(held(&cache), (0, 0));
    cache.set_limit(usize::MAX);
    load(&cache, large.as_bytes()).unwrap();
    assert_eq!(cache.stats().entries, 1);
    assert_eq!(cache::LIMIT_BYTES, 64 << 20);
}

#[test]
fn the_least_recently_used_goes_and_its_users_keep_it() {
    let cache = cache(3);
    let mut in_use = TrieState::new(load(&cache, payload(0).as_bytes()).unwrap(), Mode::Greedy);
    in_use.accept(0);
    let one = load(&cache, payload(1).as_bytes()).unwrap();
    load(&cache, payload(2).as_bytes()).unwrap();
    load(&cache, payload(0).as_bytes()).unwrap(); // used again: 1 is now the oldest
    load(&cache, payload(3).as_bytes()).unwrap();
    assert_eq!(cache.stats().entries, 3);
    let misses = cache.stats().misses;
    load(&cache, payload(0).as_bytes()).unwrap();
    assert_eq!(cache.stats().misses, misses);
    assert!(!Arc::ptr_eq(&one, &load(&cache, payload(1).as_bytes()).unwrap()));
    for number in 10..20 {
        load(&cache, payload(number).as_bytes()).unwrap();
    }
    assert_eq!(cache.stats().entries, 3);
    let held: usize = (17..20).map(|number| load(&cache, payload(number).as_bytes()).unwrap().bytes()).sum();
    assert_eq!(cache.stats().bytes, held);
    // Evicted long ago, still walked.
    assert_eq!(Arc::strong_count(in_use.trie()), 1);
    assert_eq!(in_use.accept(1), Accept::Leaf);
    assert_eq!(in_use.leaf_name(), Some("A0"));
    assert_eq!(one.leaf(2), Some("A1"));
}

#[test]
fn threads_share_and_evict_at_once() {
    let cache = Arc::new(cache(5));
    let start = Arc::new(Barrier::new(8));
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let (cache, start) = (cache.clone(), start.clone());
            std::thread::spawn(move || {
                start.wait();
                for round in 0..300 {
                    let number = (round * 7 + thread * 3) % 16;
                    let mut state = TrieState::new(load(&cache, payload(number).as_bytes()).unwrap(), Mode::Greedy);
                    assert_eq!(state.accept(number as Token), Accept::Moved);
                    assert_eq!(state.accept(1), Accept::Leaf);
                    assert_eq!(state.leaf_name(), Some(format!("A{number}").as_str()));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let stats = cache.stats();
    assert_eq!((stats.hits + stats.misses, stats.entries), (2400, 5));
    let each = load(&cache, payload(1).as_bytes()).unwrap().bytes();
    assert!(stats.bytes.abs_diff(5 * each) < 100, "{stats:?}");
}

#[test]
fn the_process_has_one() {
    let before = cache::stats();
    let first = cache::load(payload(777).as_bytes(), |_| Ok(())).unwrap();
    let again = cache::load(payload(777).as_bytes(), |_| Ok(())).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    let after = cache::stats();
    assert_eq!((after.hits - before.hits, after.misses - before.misses), (1, 1));
    assert_eq!(cache::CAPACITY.get(), 128);
}

/// A vocabulary that counts how often it is asked.
struct Counted {
    name: &'static str,
    asked: AtomicUsize,
}

#[test]
fn the_spelling_verdict_is_kept_per_vocabulary() {
    let trie = load(&cache(1), br#"{"descriptors":[{"path":"p","leaves":[{"name":"YES","tokens":[3]}]}]}"#).unwrap();
    let vocabulary = |name| Arc::new(Counted { name, asked: AtomicUsize::new(0) });
    let piece = |vocabulary: &Counted, _: Token, _: bool, out: &mut Vec<u8>| {
        vocabulary.asked.fetch_add(1, Ordering::Relaxed);
        out.extend_from_slice(vocabulary.name.as_bytes());
    };
    let (right, wrong) = (vocabulary("YES"), vocabulary("NO"));
    for _ in 0..3 {
        assert_eq!(cache::spelling(&trie, &right, piece), None);
        assert!(cache::spelling(&trie, &wrong, piece).unwrap().contains("\"NO\""));
    }
    let asked = |vocabulary: &Counted| vocabulary.asked.load(Ordering::Relaxed);
    assert_eq!((asked(&right), asked(&wrong)), (1, 2)); // once; once without and once with special tokens
    // A vocabulary loaded after another went is never taken for it, wherever it lies in memory.
    drop((right, wrong));
    for round in 0..50 {
        let fresh = vocabulary(if round % 2 == 0 { "YES" } else { "NO" });
        assert_eq!(cache::spelling(&trie, &fresh, piece).is_some(), round % 2 == 1);
    }
}
