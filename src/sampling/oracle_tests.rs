//! Candidate sets and draws against a slow oracle that sorts everything, on random and adversarial rows.
//!
//! The oracle sorts the whole row by (logit descending, id ascending). Sets are compared exactly, with the integer
//! weights; where those decide (top-p), an oracle in double precision with the system's exponential must agree too,
//! except within 1e-6 of the boundary.

use super::candidate::Candidate;
use super::listed::sort_ascending;
use super::passes::{BINS, BLOCK, Passes};
use super::pool::{Buffers, LIST, Pool};
use super::statistics::mean_distance;
use super::steps::{greedy, min_p, temperature, top_k, top_n_sigma, top_p, typical, xtc};
use super::weigh::weight;
use super::{draw, random};
use crate::backend::xtc_limit;
use crate::simd::Isa;
use crate::{Error, Token};

const SIZES: [usize; 5] = [1, 2, 31, 32_000, 151_936];

fn uniform(kind: u32, i: usize) -> f64 {
    (f64::from(random::bits(11, i as u32, kind)) + 0.5) / 4_294_967_296.0
}

fn gaussian(kind: u32, i: usize, deviation: f64) -> f32 {
    let radius = (-2.0 * uniform(2 * kind, i).ln()).sqrt();
    (deviation * radius * (std::f64::consts::TAU * uniform(2 * kind + 1, i)).cos()) as f32
}

/// Every kind of row, named.
fn rows(n: usize) -> Vec<(&'static str, Vec<f32>)> {
    let make = |logit: &dyn Fn(usize) -> f32| (0..n).map(logit).collect::<Vec<f32>>();
    let middle = n / 2;
    vec![
        ("gaussian 1", make(&|i| gaussian(1, i, 1.0))),
        ("gaussian 4", make(&|i| gaussian(2, i, 4.0))),
        ("zipf", make(&|i| -1.1 * ((i * 7919 % n + 1) as f32).ln())),
        ("all equal", make(&|_| 3.25)),
        ("all equal zero of both signs", make(&|i| if i % 3 == 0 { -0.0 } else { 0.0 })),
        ("all negative", make(&|i| -100.0 - gaussian(3, i, 2.0).abs())),
        ("one huge", make(&|i| if i == middle { 1e30 } else { gaussian(4, i, 1.0) })),
        ("two huge, far apart", make(&|i| if i == 0 { f32::MAX } else { f32::MIN })),
        ("runs of -inf", make(&|i| if i % 700 < 500 && i != n - 1 { f32::NEG_INFINITY } else { gaussian(5, i, 2.0) })),
        ("one alive", make(&|i| if i == middle { -5.0 } else { f32::NEG_INFINITY })),
        ("few values, many ties", make(&|i| (random::bits(3, i as u32, 0) % 5) as f32)),
        ("ties at k", make(&|i| if i % 1000 == 7 { 9.0 } else { 8.0 })),
        ("ascending", make(&|i| ((i + 1) as f32).ln())),
        ("descending", make(&|i| -(i as f32) / 64.0)),
    ]
}

/// The candidates of a row, best first.
fn sorted(row: &[f32]) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = (0..)
        .zip(row)
        .filter(|(_, logit)| **logit > f32::NEG_INFINITY)
        .map(|(token, &logit)| Candidate { token, logit })
        .collect();
    all.sort_by(|a, b| b.logit.partial_cmp(&a.logit).unwrap().then(a.token.cmp(&b.token)));
    all
}

/// The candidates a pool holds, ascending by id.
fn held(pool: &Pool<'_>) -> Vec<Token> {
    if pool.in_list {
        pool.buffers.list.iter().map(|one| one.token).collect()
    } else {
        (0..).zip(pool.row.iter()).filter(|(_, x)| **x > f32::NEG_INFINITY).map(|(token, _)| token).collect()
    }
}

/// The first `count` of the sorted candidates, ascending by id.
fn prefix(order: &[Candidate], count: usize) -> Vec<Token> {
    let mut tokens: Vec<Token> = order.iter().take(count).map(|one| one.token).collect();
    tokens.sort_unstable();
    tokens
}

fn weights(order: &[Candidate], t: f32) -> Vec<u64> {
    let scale = 1.0 / t;
    order.iter().map(|one| weight((one.logit - order[0].logit) * scale)).collect()
}

fn expect_top_p(weights: &[u64], p: f32, min_keep: usize) -> usize {
    let total: u64 = weights.iter().sum();
    let need = (f64::from(p) * total as f64).ceil().max(1.0) as u64;
    let mut sum = 0;
    let reached = weights.iter().position(|w| {
        sum += w;
        sum >= need
    });
    (reached.unwrap() + 1).max(min_keep).min(weights.len())
}

/// The counts that double precision allows for top-p, given that its sums may be off by 1e-6.
fn allowed_top_p(order: &[Candidate], t: f32, p: f32) -> std::ops::RangeInclusive<usize> {
    let relative: Vec<f64> =
        order.iter().map(|one| ((f64::from(one.logit) - f64::from(order[0].logit)) / f64::from(t)).exp()).collect();
    let total: f64 = relative.iter().sum();
    let count = |p: f64| {
        let mut sum = 0.0;
        let reached = relative.iter().position(|w| {
            sum += w / total;
            sum >= p
        });
        reached.map_or(order.len(), |at| at + 1)
    };
    count(f64::from(p) - 1e-6)..=count(f64::from(p) + 1e-6)
}

fn expect_min_p(order: &[Candidate], t: f32, p: f32, min_keep: usize) -> usize {
    let scale = 1.0 / t;
    let lowest = order[0].logit + p.min(1.0).ln() / scale;
    order.iter().filter(|one| one.logit >= lowest).count().max(min_keep).min(order.len())
}

#[test]
fn candidate_sets_are_those_of_the_sorted_row() {
    for n in SIZES {
        let mut buffers = Buffers::new(n, Passes(Isa::detect()), false);
        for (name, row) in rows(n) {
            let order = sorted(&row);
            let mut scratch = row.clone();
            let mut check = |what: String, t: f32, expected: usize, run: &dyn Fn(&mut Pool<'_>)| {
                scratch.copy_from_slice(&row);
                let mut pool = Pool::new(&mut scratch, &mut buffers);
                temperature::apply(&mut pool, t).unwrap();
                run(&mut pool);
                assert!(held(&pool) == prefix(&order, expected), "{what} at temperature {t} of {n}, {name}");
            };
            for k in [1, 2, 40, 2048, 2049, 5000, n.max(2) - 1, n, n + 5] {
                check(format!("top-k {k}"), 0.7, k.min(order.len()), &|pool| {
                    top_k::apply(pool, k).unwrap();
                    assert!(pool.in_list || k > LIST);
                });
            }
            for t in [1.0, 0.1, 3.0] {
                let weights = weights(&order, t);
                for (p, min_keep) in
                    [(0.0, 0), (0.1, 0), (0.5, 1), (0.95, 0), (0.999, 0), (0.999_999_9, 0), (0.5, 3000)]
                {
                    let count = expect_top_p(&weights, p, min_keep);
                    check(format!("top-p {p}, {min_keep}"), t, count, &|pool| top_p::apply(pool, p, min_keep).unwrap());
                    let allowed = allowed_top_p(&order, t, p);
                    let fair = min_keep > 0 || allowed.contains(&count) || p > 0.999_99;
                    assert!(fair, "top-p {p} at {t} of {n}, {name}: {count} is not in {allowed:?}");
                }
                for (p, min_keep) in [(0.001, 0), (0.05, 1), (0.5, 0), (1.0, 0), (1.05, 0), (0.9, 7), (0.9, 6000)] {
                    let count = expect_min_p(&order, t, p, min_keep);
                    check(format!("min-p {p}, {min_keep}"), t, count, &|pool| min_p::apply(pool, p, min_keep).unwrap());
                }
            }
            check("greedy".into(), 1.0, 1, &|pool| greedy::apply(pool).unwrap());
            check("temperature 0".into(), 0.0, 1, &|_| {});
        }
    }
}

/// Every order of top-k, top-p and min-p, each working on what the one before left.
#[test]
fn truncations_in_every_order() {
    type Truncation = (fn(&mut Pool<'_>), fn(&mut Vec<Candidate>));
    let truncations: [Truncation; 5] = [
        (|pool| top_k::apply(pool, 3000).unwrap(), |order| order.truncate(3000)),
        (|pool| top_k::apply(pool, 100).unwrap(), |order| order.truncate(100)),
        (
            |pool| top_p::apply(pool, 0.8, 0).unwrap(),
            |order| order.truncate(expect_top_p(&weights(order, 1.0), 0.8, 0)),
        ),
        (
            |pool| top_p::apply(pool, 0.99, 9).unwrap(),
            |order| order.truncate(expect_top_p(&weights(order, 1.0), 0.99, 9)),
        ),
        (|pool| min_p::apply(pool, 0.1, 0).unwrap(), |order| order.truncate(expect_min_p(order, 1.0, 0.1, 0))),
    ];
    let n = 10_000;
    let mut buffers = Buffers::new(n, Passes(Isa::detect()), false);
    for (name, row) in rows(n) {
        for first in 0..truncations.len() {
            for second in 0..truncations.len() {
                for third in 0..truncations.len() {
                    let mut scratch = row.clone();
                    let mut pool = Pool::new(&mut scratch, &mut buffers);
                    let mut order = sorted(&row);
                    for (run, expect) in [first, second, third].map(|at| truncations[at]) {
                        run(&mut pool);
                        expect(&mut order);
                    }
                    assert!(held(&pool) == prefix(&order, order.len()), "{first}, {second}, {third} of {name}");
                }
            }
        }
    }
}

#[test]
fn draws_walk_the_ids() {
    for n in SIZES {
        let mut buffers = Buffers::new(n, Passes(Isa::detect()), false);
        for (name, row) in rows(n) {
            let mut order = sorted(&row);
            order.sort_by_key(|one| one.token);
            let best = order.iter().fold(f32::NEG_INFINITY, |a, one| a.max(one.logit));
            let total: u128 = order.iter().map(|one| u128::from(weight((one.logit - best) / 2.0))).sum();
            for r in [0, 1, 0x8000_0000, 0xdead_beef, u32::MAX] {
                let mut scratch = row.clone();
                let mut pool = Pool::new(&mut scratch, &mut buffers);
                temperature::apply(&mut pool, 2.0).unwrap();
                let drawn = draw::apply(&mut pool, r).unwrap();
                // The share (r + 1/2) / 2^32 of the total, all scaled by 2^33.
                let share = total * (2 * u128::from(r) + 1);
                let mut sum = 0;
                let expected = order.iter().find(|one| {
                    sum += u128::from(weight((one.logit - best) / 2.0));
                    sum << 33 > share
                });
                assert_eq!(drawn.one, *expected.unwrap(), "{r} of {n}, {name}");
                assert_eq!(u128::from(drawn.total), total);
            }
        }
    }
}

/// Locally typical sampling, top-n-sigma and XTC, written out over the sorted row.
#[test]
fn sets_that_are_no_beginning_of_the_order() {
    for n in SIZES {
        let [mut buffers, mut others] = [0; 2].map(|_| Buffers::new(n, Passes(Isa::detect()), false));
        for (name, row) in rows(n) {
            let order = sorted(&row);
            let mut check = |what: String, t: f32, expected: &[Candidate], run: &dyn Fn(&mut Pool<'_>)| {
                let mut scratch = row.clone();
                let mut pool = Pool::new(&mut scratch, &mut buffers);
                temperature::apply(&mut pool, t).unwrap();
                run(&mut pool);
                assert!(held(&pool) == prefix(expected, expected.len()), "{what} at temperature {t} of {n}, {name}");
                // The best of those that are left is known again.
                greedy::apply(&mut pool).unwrap();
                let best = sorted_again(expected)[0];
                assert_eq!(held(&pool), [best.token], "{what} at temperature {t} of {n}, {name}");
            };
            for t in [1.0, 0.2, 3.0] {
                let weights = weights(&order, t);
                let total: u64 = weights.iter().sum();
                let scale = 1.0 / t;
                let z = |one: &Candidate| (one.logit - order[0].logit) * scale;
                let moment: u64 = order.iter().map(|one| super::weigh::moment(z(one))).sum();
                let mean = mean_distance(moment, total);
                let mut typical_order: Vec<(Candidate, u64)> = order.iter().copied().zip(weights.clone()).collect();
                let distance =
                    |(one, weight): &(Candidate, u64)| if *weight == 0 { f32::MAX } else { (-z(one) - mean).abs() };
                typical_order.sort_by(|a, b| distance(a).total_cmp(&distance(b)).then(a.0.token.cmp(&b.0.token)));
                for (p, min_keep) in [(0.0, 0), (0.2, 0), (0.7, 3), (0.95, 0), (0.95, 5000), (0.999_99, 0)] {
                    let (mut sum, need) = (0, (f64::from(p) * total as f64) as u64);
                    let reached = typical_order.iter().position(|(_, weight)| {
                        sum += weight;
                        sum > need
                    });
                    let count = (reached.unwrap() + 1).max(min_keep).min(order.len());
                    let kept: Vec<Candidate> = typical_order[..count].iter().map(|one| one.0).collect();
                    let run = |pool: &mut Pool<'_>| typical::apply(pool, p, min_keep).unwrap();
                    check(format!("typical {p}, {min_keep}"), t, &kept, &run);
                }
                for (threshold, min_keep) in [(0.1, 0), (0.0001, 0), (0.0, 0), (0.3, 1), (0.01, order.len())] {
                    let top = weights.iter().take_while(|&&w| w as f64 >= f64::from(threshold) * total as f64).count();
                    let gone = if top > 1 && order.len() - (top - 1) >= min_keep { top - 1 } else { 0 };
                    for (probability, expected) in [(1.0, &order[gone..]), (0.51, &order[gone..]), (0.49, &order[..])] {
                        // Random bits in the middle.
                        let acts = || xtc_limit(probability).is_some_and(|limit| u32::MAX / 2 <= limit);
                        let run = |pool: &mut Pool<'_>| xtc::apply(pool, threshold, min_keep, acts).unwrap();
                        check(format!("xtc {probability}, {threshold}, {min_keep}"), t, expected, &run);
                    }
                }
            }
            for sigmas in [0.001, 0.5, 1.0, 2.5] {
                let mean = order.iter().map(|one| f64::from(one.logit)).sum::<f64>() / order.len() as f64;
                let squares: f64 = order.iter().map(|one| (f64::from(one.logit) - mean).powi(2)).sum();
                let lowest = f64::from(order[0].logit) - f64::from(sigmas) * (squares / order.len() as f64).sqrt();
                // The integers of the deviation are of at least 21 bits.
                let spare = 2e-6 * (f64::from(order[0].logit) - f64::from(order[order.len() - 1].logit));
                let down_to = |lowest: f64| {
                    order.iter().take_while(|one| one.logit >= (lowest as f32).min(order[0].logit)).count()
                };
                let (mut scratch, allowed) = (row.clone(), down_to(lowest + spare)..=down_to(lowest - spare));
                let mut pool = Pool::new(&mut scratch, &mut others);
                top_n_sigma::apply(&mut pool, sigmas).unwrap();
                let count = held(&pool).len();
                assert!(allowed.contains(&count), "top-n-sigma {sigmas} of {n}, {name}: {count}, not {allowed:?}");
                let run = |pool: &mut Pool<'_>| top_n_sigma::apply(pool, sigmas).unwrap();
                check(format!("top-n-sigma {sigmas}"), 0.7, &order[..count], &run);
            }
        }
    }
}

fn sorted_again(candidates: &[Candidate]) -> Vec<Candidate> {
    let mut all = candidates.to_vec();
    all.sort_by(|a, b| b.logit.partial_cmp(&a.logit).unwrap().then(a.token.cmp(&b.token)));
    all
}

#[test]
fn infinite_logits_share_and_nan_is_named() {
    let n = 1000;
    let mut buffers = Buffers::new(n, Passes(Isa::detect()), false);
    let mut row: Vec<f32> = (0..n).map(|i| gaussian(1, i, 2.0)).collect();
    row[300] = f32::INFINITY;
    row[900] = f32::INFINITY;
    for (r, token) in [(0, 300), (0x7fff_ffff, 300), (0x8000_0000, 900), (u32::MAX, 900)] {
        for t in [1.0, 0.25, 4.0] {
            let mut scratch = row.clone();
            let mut pool = Pool::new(&mut scratch, &mut buffers);
            temperature::apply(&mut pool, t).unwrap();
            assert_eq!(draw::apply(&mut pool, r).unwrap().one.token, token);
        }
    }
    for run in [
        |pool: &mut Pool<'_>| top_k::apply(pool, 2).unwrap(),
        |pool: &mut Pool<'_>| top_p::apply(pool, 0.9, 0).unwrap(),
        |pool: &mut Pool<'_>| min_p::apply(pool, 0.9, 0).unwrap(),
    ] {
        let mut scratch = row.clone();
        let mut pool = Pool::new(&mut scratch, &mut buffers);
        run(&mut pool);
        assert_eq!(held(&pool), [300, 900]);
    }
    for at in [0, 17, 127, 128, 999] {
        let mut scratch = row.clone();
        scratch[at] = f32::NAN;
        let mut pool = Pool::new(&mut scratch, &mut buffers);
        assert_eq!(greedy::apply(&mut pool), Err(Error::NanLogits { row: 0, token: at }));
    }
    let mut scratch = vec![f32::NEG_INFINITY; n];
    let refused = draw::apply(&mut Pool::new(&mut scratch, &mut buffers), 5).err();
    assert!(matches!(&refused, Some(Error::InvalidArgument(text)) if text.contains("-inf")), "{refused:?}");
}

/// Every instruction level gives the same bits as plain Rust.
#[test]
fn all_levels_agree() {
    let portable = Passes(Isa::Portable);
    for n in SIZES {
        for (name, row) in rows(n) {
            let outputs = |passes: Passes| {
                let blocks = n.div_ceil(BLOCK);
                let (mut maxima, mut masses, mut bins) = (vec![0.0; blocks], vec![0; blocks], Box::new([0; BINS]));
                let nan = passes.block_maxima(&row, &mut maxima);
                let best = maxima.iter().fold(f32::NEG_INFINITY, |a: f32, &b| a.max(b));
                let total = passes.block_masses(&row, best, 0.7, &mut masses);
                assert_eq!(passes.mass_bins(&row, best, 0.7, &mut bins), total);
                let moments = passes.moments(&row, best, 0.7);
                assert_eq!(moments.1, total);
                let mut list = Vec::with_capacity(LIST);
                let fits = passes.between(&row, &maxima, best - 1.0, best - 0.25, 3000, &mut list);
                let mut raised = row.clone();
                passes.raise(&mut raised, best - 0.5);
                (nan, maxima, masses, bins, moments, list, fits, raised)
            };
            for isa in Isa::available() {
                let passes = Passes(isa);
                assert!(outputs(passes) == outputs(portable), "{} of {n}, {name}", isa.name());
            }
        }
    }
}

#[test]
fn the_sort_of_llama_cpps_list_sorts_whatever_the_order() {
    for n in SIZES {
        let valley = (0..n).map(|i| (i.abs_diff(n / 3) / 4) as f32).collect();
        for (name, row) in rows(n).into_iter().chain([("down and up, with ties", valley)]) {
            let mut list: Vec<Candidate> =
                (0..).zip(&row).map(|(token, &logit)| Candidate { token, logit: logit + 0.0 }).collect();
            let mut expected = list.clone();
            sort_ascending(&mut list);
            assert!(list.windows(2).all(|pair| pair[0].logit <= pair[1].logit), "{name} of {n}");
            let by = |one: &Candidate| (one.logit.to_bits(), one.token);
            list.sort_by_key(by);
            expected.sort_by_key(by);
            assert!(list == expected, "{name} of {n}: candidates lost");
        }
    }
}
