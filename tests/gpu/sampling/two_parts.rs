//! Chains of which the device follows the first part and the host the rest.

use super::rig::{Bits, List, Mask, Rig, Row, devices, history, legal_tokens, rows};
use elizainference::Error;
use elizainference::backend::gpu::sample::{Legal, SampleProblem, read_handed_over, split};
use elizainference::sampling::{Chain, Sampler};
use std::sync::Arc;

/// Chains that the device cannot follow to their end: their first part there and the rest on the host give the token of
/// the whole chain on the host, for a few steps in a row.
fn halves(n: usize, rows: &[Row]) {
    let many = format!("top_k=200;{}temp=0.8;top_p=0.7", "min_p=0.0001;".repeat(13));
    let chains = [
        "top_k=40;penalties=2000,1.3,0.2,0.1;temp=0.8",
        "logit_bias=4:3,9:-inf;penalties=64,1.2,0.1,0;top_k=1000;temp=0.7;top_p=0.9;penalties=1500,0.8,0,0.4;temp=1.5",
        "temp=2;top_k=60;logit_bias=8:1,11:-2;top_p=0.8,3;dynatemp=1,0.9,1.2;penalties=64,1.1,0.3,0",
        "top_k=1536;min_p=0.001;penalties=1025,1.2,0,0;trie;temp=0.9",
        "top_k=500;trie;temp=0.9;penalties=1025,1.2,0,0;top_p=0.5",
        &many,
    ];
    let long = Arc::new(history(n, 1800));
    let masks = [Mask::None, List(7), List(600), Bits].map(|mask| legal_tokens(n, mask));
    for gpu in devices() {
        let mut rig = Rig::new(gpu, n, 1);
        let mut compared = 0;
        for (turn, (name, row)) in rows.iter().enumerate() {
            for chain in chains {
                let chain: Chain = chain.parse().unwrap();
                for (tokens, greedy) in masks.iter().flat_map(|tokens| [(tokens, false), (tokens, true)]) {
                    let legal = tokens.as_ref().map(|tokens| Legal::list(tokens, greedy));
                    let children = tokens.as_ref().map(|tokens| Legal::list(tokens, greedy));
                    let (mut whole, mut rest) =
                        (Sampler::new(&chain, n, 3).unwrap(), Sampler::new(&chain, n, 3).unwrap());
                    let banned = [7, tokens.as_ref().map_or(-1, |tokens| tokens[0])];
                    let all = rest.spec(&banned);
                    let (part, taken) = split(&all).unwrap();
                    let to_go = all.steps.len() - taken;
                    assert!(to_go > 0, "{chain}");
                    if greedy && (legal.is_none() || !all.greedy_from(taken)) {
                        continue;
                    }
                    let what = format!(
                        "`{chain}` on {name} of {n}, {:?} legal",
                        tokens.as_ref().map(|tokens| (tokens.len(), greedy))
                    );
                    let mut position = 100 * turn as u32;
                    long.iter().for_each(|&token| (whole.accept(token), rest.accept(token)).0);
                    whole.keep_candidates(50);
                    rest.keep_candidates(50);
                    rig.program.set_chain(0, &part).unwrap();
                    rig.program.arm(0, children).unwrap();
                    rig.program.restart(0, position, &long).unwrap();
                    for _ in 0..3 {
                        rig.write(0, row);
                        rig.submit(&[0]);
                        let (result, _) = rig.read()[0];
                        assert_eq!((result.token, result.position), (-1, position), "{what}");
                        let expected = whole.sample(&mut row.to_vec(), legal, &banned, position);
                        let place = rig.program.handed_over(0);
                        let bytes = gpu.read(place.buffer, place.offset, place.bytes as usize).unwrap();
                        match (result.problem, &expected) {
                            (Some(SampleProblem::Nan(at)), Err(Error::NanLogits { token, .. })) => {
                                assert_eq!(at as usize, *token, "{what}");
                            }
                            (Some(SampleProblem::NoCandidate), Err(Error::InvalidArgument(_))) => {}
                            _ => {
                                assert_eq!((result.kept, result.problem), (result.reported, None), "{what}");
                                let left = read_handed_over(&bytes, result.reported);
                                assert_eq!(rest.resume(to_go, left, legal, position), expected, "{what}");
                                assert_eq!(rest.last(), whole.last(), "{what}");
                                compared += 1;
                            }
                        }
                        // What could not be sampled is tried again at the same place.
                        if let Ok(token) = expected {
                            whole.accept(token);
                            rest.accept(token);
                            rig.program.accept(0, &[token]).unwrap();
                            position += 1;
                        }
                    }
                }
            }
        }
        assert!(compared >= 3 * 24 * (rows.len() - 2), "{compared}");
    }
}

#[test]
fn the_host_goes_on_where_the_device_stops() {
    let rows = rows(9000);
    halves(9000, &rows[..7]);
    halves(700, &self::rows(700)[4..8]);
}

#[test]
#[ignore = "the whole matrix: chains in two parts on every row"]
fn the_host_goes_on_on_every_row() {
    for n in [512, 32_000, 262_145] {
        halves(n, &rows(n));
    }
}
