//! The GPU's sampler against the host's: the same token, the same candidates, for every chain on every row.
//!
//! Tokens, counts, reported tokens and reported logits are compared for equality; probabilities within the few units in
//! the last place that f32 division and logarithms are off by.

mod distribution;
mod dry;
mod dynamic_temperature;
mod masks;
mod more_steps;
mod rig;
mod steps;
mod two_parts;

use elizainference::sampling::random;
use rig::{Bits, Case, List, Mask, Numbered, SETTINGS, cases, check, check_on, devices, rows};

#[test]
fn vocabularies_of_512() {
    for n in [511, 512, 513] {
        check(&cases(&rows(n), &SETTINGS, 1), 64);
    }
    let settings = ["dist", "greedy", "top_k=5;top_p=0.5"].map(|chain| (chain, Mask::None, false));
    check(&cases(&rows(1), &settings, 1), 7);
}

#[test]
fn vocabularies_of_32_000() {
    check(&cases(&rows(32_000)[..5], &SETTINGS, 1), 30);
    check(&cases(&rows(31_999)[5..6], &SETTINGS, 1), 30);
    check(&cases(&rows(32_001)[6..8], &SETTINGS, 1), 30);
}

#[test]
fn wide_vocabularies() {
    check(&cases(&rows(151_936)[..1], &SETTINGS, 1), 24);
    check(&cases(&rows(262_145)[2..3], &SETTINGS[..30], 1), 15);
}

/// 1,000 draws for every setting on the adapter as it is: 19 from every row and 658 more from an ordinary one. One from
/// every row on the small adapter, and with a token less and more.
fn thousand_draws(n_vocab: usize, together: usize) {
    let Some((as_it_is, _)) = devices().split_first() else { return };
    let as_it_is = std::slice::from_ref(as_it_is);
    let rows = self::rows(n_vocab);
    for setting in SETTINGS {
        check_on(as_it_is, &cases(&rows, &[setting], 19), together);
        check_on(as_it_is, &cases(&rows[2..3], &[setting], 658), together);
    }
    for n in [n_vocab - 1, n_vocab, n_vocab + 1] {
        check(&cases(&self::rows(n), &SETTINGS, 1), together);
    }
}

#[test]
#[ignore = "the whole matrix: 1,000 draws for each of 60 settings"]
fn a_thousand_draws_from_512() {
    thousand_draws(512, 64);
}

#[test]
#[ignore = "the whole matrix: 1,000 draws for each of 60 settings"]
fn a_thousand_draws_from_32_000() {
    thousand_draws(32_000, 60);
}

#[test]
#[ignore = "the whole matrix: 1,000 draws for each of 60 settings"]
fn a_thousand_draws_from_151_936() {
    thousand_draws(151_936, 24);
}

#[test]
#[ignore = "the whole matrix: 1,000 draws for each of 60 settings"]
fn a_thousand_draws_from_262_144() {
    thousand_draws(262_144, 15);
}

/// Chains put together at random.
fn any_chains(count: u32) -> Vec<String> {
    let steps = [
        "top_k=1",
        "top_k=40",
        "top_k=700",
        "top_k=2500",
        "top_p=0.3",
        "top_p=0.8",
        "top_p=0.95",
        "top_p=0.999",
        "top_p=0.7,50",
        "min_p=0.5",
        "min_p=0.05",
        "min_p=0.001",
        "min_p=0.3,2000",
        "temp=0.3",
        "temp=1.7",
        "temp=0.9",
        "penalties=40,1.5,0.1,0.2",
        "logit_bias=1:2,2:-1.5,3:-inf",
        "dry=0.7,1.3,1,80,none",
        "trie",
        "top_n_sigma=1.5",
        "top_n_sigma=0.3",
        "typ_p=0.7",
        "typ_p=0.95,30",
        "xtc=0.5,0.02",
        "xtc=1,0.001",
        "dynatemp=0.9,0.6,1.3",
    ];
    let pick = |chain: u32, draw: u32| random::bits(77, chain, draw);
    let one = |chain: u32| {
        let count = 1 + pick(chain, 0) % 6;
        let mut chosen: Vec<&str> = (1..=count).map(|i| steps[pick(chain, i) as usize % steps.len()]).collect();
        let mut tries = 0;
        chosen.retain(|&step| {
            tries += u32::from(step == "trie");
            step != "trie" || tries == 1
        });
        // What the device leaves to the host.
        let dynamic = chosen.iter().position(|step| step.starts_with("dynatemp")).unwrap_or(chosen.len());
        let mut at = 0;
        chosen.retain(|step| {
            at += 1;
            at <= dynamic || !["penalties", "logit_bias", "dry"].iter().any(|name| step.starts_with(name))
        });
        chosen.join(";")
    };
    (0..count).map(one).collect()
}

#[test]
#[ignore = "the whole matrix: chains at random, under every kind of mask"]
fn any_chain_under_any_mask() {
    let chains = any_chains(120);
    let masks = [Mask::None, List(1), List(7), List(600), List(9000), Bits, Numbered(2), Numbered(40)];
    // Each chain under three of them.
    let chains = chains.iter().flat_map(|chain| [chain; 3]).enumerate();
    let settings: Vec<_> = chains.map(|(turn, chain)| (chain, masks[turn % masks.len()], turn % 24 >= 18)).collect();
    for n in [5000, 151_936] {
        check(&cases(&rows(n), &settings, 1), 16);
    }
}

/// Draws at many positions, through the list and through the row.
#[test]
fn draws_at_many_positions() {
    let n = 9000;
    let wide = rows(n)[0].1.clone();
    for (chain, row) in [("top_k=40;temp=1.5", &wide), ("temp=1.2", &wide), ("top_p=0.9", &wide)] {
        let case = |position| Case {
            chain: chain.into(),
            row: row.clone(),
            position,
            seed: 42,
            name: "many".into(),
            ..Case::default()
        };
        let cases: Vec<_> = (0..192).map(|i| case(i * 7)).chain([case(u32::MAX - 1)]).collect();
        check(&cases, 64);
    }
}
