//! Masks of bits: read through by every kernel, kept on the device by their numbers.

use super::rig::{
    Case, Mask, Numbered, Rig, assert_same, bits_of, cases, check, devices, legal_tokens, on_host, rows, spec,
};
use elizainference::backend::gpu::sample::{Legal, SampleRow};

const CHAINS: [&str; 8] = [
    "dist",
    "temp=0.8",
    "greedy",
    "top_k=40;top_p=0.95;min_p=0.05;temp=0.8",
    "penalties=64,1.2,0.1,0;logit_bias=3:4,6:-inf;top_k=5",
    "top_p=0.9,20;min_p=0.1",
    "top_k=100;trie;temp=0.8",
    "trie;penalties=64,1.2,0.1,0;top_p=0.9",
];

/// Each chain under masks of a few and of many tokens, sampled and greedy, several sequences in a step.
#[test]
fn rows_are_read_through_masks() {
    let masks = [Numbered(2), Numbered(97), Mask::None];
    let both = CHAINS.iter().flat_map(|chain| masks.map(|mask| (*chain, mask))).enumerate();
    let settings = both.map(|(turn, (chain, mask))| (chain, mask, turn % 4 == 3 && mask != Mask::None));
    let settings: Vec<_> = settings.collect();
    check(&cases(&rows(1000), &settings, 1), 24);
    check(&cases(&rows(9001)[..7], &settings, 1), 24);
}

/// No legal token is a candidate: the first of them is the token.
#[test]
fn of_no_legal_candidate_the_first_is_taken() {
    let n = 5000;
    let row: Vec<f32> = (0..n).map(|i| if i % 7 == 3 { f32::NEG_INFINITY } else { (i % 50) as f32 }).collect();
    let mask = Numbered(7);
    let row = std::sync::Arc::new(row);
    let case = |chain: &str, greedy| Case {
        chain: chain.into(),
        row: row.clone(),
        legal: legal_tokens(n, mask).map(|tokens| (tokens, greedy)),
        bits: bits_of(n, mask),
        candidates: 5,
        name: "none legal".into(),
        ..Case::default()
    };
    let chains = CHAINS.iter().copied().chain(["top_n_sigma=1;top_k=9", "typ_p=0.5", "xtc=1,0.1"]);
    let cases: Vec<_> = chains.flat_map(|chain| [case(chain, false), case(chain, true)]).collect();
    check(&cases, 22);
}

/// A mask that is known is named in a few bytes, one in force in none; more masks than the device keeps take turns.
#[test]
fn masks_are_sent_once() {
    let n: usize = 9001;
    let words = n.div_ceil(32);
    let row = rows(n)[0].1.clone();
    for gpu in &devices()[..devices().len().min(1)] {
        let mut rig = Rig::new(gpu, n, 2);
        let chain = "top_k=40;temp=0.8".parse().unwrap();
        (0..2).for_each(|sequence| rig.program.set_chain(sequence, &spec(&chain, n, &[], 1, 0)).unwrap());
        let masks: Vec<_> = (2..102).map(|apart| bits_of(n, Numbered(apart)).unwrap()).collect();
        let legal = |at: usize, greedy| Some(Legal::mask(&masks[at].0, masks[at].1, greedy));
        assert_eq!(rig.program.arm(0, legal(0, false)).unwrap(), words as u64 * 4 + 20);
        assert_eq!(rig.program.arm(0, legal(0, false)).unwrap(), 0);
        assert_eq!(rig.program.arm(0, legal(0, true)).unwrap(), 20);
        assert_eq!(rig.program.arm(1, legal(0, false)).unwrap(), 20);
        assert_eq!(rig.program.arm(0, None).unwrap(), 4);
        assert_eq!(rig.program.arm(0, legal(0, false)).unwrap(), 20);
        let row_of = |sequence| SampleRow { sequence, row: sequence };
        assert_eq!(rig.program.dispatches(&[row_of(0)]), 7, "as many as without a mask");
        let mut sent = 0;
        for turn in 0..150 {
            let at = turn % 100;
            // The second sequence stays with its mask, which none may replace.
            sent += rig.program.arm(0, legal(at, turn % 3 == 0)).unwrap();
            if turn % 30 == 7 {
                rig.write(0, &row);
                rig.write(1, &row);
                (0..2).for_each(|sequence| rig.program.restart(sequence, turn as u32, &[]).unwrap());
                rig.submit(&[0, 1]);
                let found = rig.read();
                for (sequence, (at, greedy)) in [(at, turn % 3 == 0), (0, false)].into_iter().enumerate() {
                    let tokens = legal_tokens(n, Numbered(at + 2)).unwrap();
                    let case = Case {
                        chain: "top_k=40;temp=0.8".into(),
                        row: row.clone(),
                        legal: Some((tokens, greedy)),
                        bits: Some(masks[at].clone()),
                        seed: 1,
                        position: turn as u32,
                        name: format!("mask {at}"),
                        ..Case::default()
                    };
                    assert_same(&case, &found[sequence], &on_host(&case));
                }
            }
        }
        // The first mask is there; all others are sent, and those that come again were replaced.
        assert_eq!(sent, 148 * (words as u64 * 4 + 20) + 2 * 20);
    }
}
