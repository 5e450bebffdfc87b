//! DRY, mirostat, adaptive-p, infill and llama.cpp's generator: what they do at their edges, what they remember of a
//! stream, and that it is what it should be after an error, a restart and a token that was not drawn.

use crate::testing::gguf_keys::Keys;
use crate::testing::random_text::Random;
use elizainference::sampling::{Legal, Sampler};
use elizainference::vocab::Vocab;
use elizainference::{Error, Token};
use std::sync::Arc;

/// The row of the published examples.
const L: [f32; 10] = [2.1, 5.3, 1.8, 7.2, 3.4, 4.1, 6.8, 2.9, 5.7, 4.5];

fn sampler(chain: &str, n: usize) -> Sampler {
    Sampler::new(&chain.parse().unwrap(), n, 42).unwrap()
}

/// So many tokens of one stream, with the number of candidates that each was drawn from.
fn stream(sampler: &mut Sampler, row: &[f32], tokens: u32) -> Vec<(Token, usize)> {
    sampler.keep_candidates(row.len());
    let next = |position| {
        let token = sampler.sample(&mut row.to_vec(), None, &[], position).unwrap();
        sampler.accept(token);
        (token, sampler.last().candidates.len())
    };
    (0..tokens).map(next).collect()
}

/// A vocabulary of these texts, after three special tokens.
fn vocab(texts: &[&str]) -> Arc<Vocab> {
    let tokens: Vec<&str> = ["<unk>", "<s>", "</s>"].iter().chain(texts).copied().collect();
    let types: Vec<i32> = (0..tokens.len())
        .map(|id| {
            if id == 0 {
                2
            } else if id < 3 {
                3
            } else {
                1
            }
        })
        .collect();
    let scores: Vec<f32> = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let keys = Keys::default()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &types)
        .floats("tokenizer.ggml.scores", &scores)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .bool("tokenizer.ggml.add_space_prefix", false);
    Arc::new(Vocab::from_gguf(&keys.file()).unwrap())
}

/// What DRY subtracts from each token, by its definition.
fn dry(history: &[Token], n: usize, allowed: usize, last_n: usize) -> Vec<f32> {
    let window = &history[history.len().saturating_sub(last_n)..];
    let mut losses = vec![0.0f32; n];
    if window.len() <= allowed {
        return losses;
    }
    for end in 1..window.len() {
        // The token at `end` followed a text that is also at the end of the window.
        let before = window[..end].iter().rev();
        let length = before.zip(window.iter().rev()).take_while(|(a, b)| a == b).count();
        if length >= allowed {
            let loss = 0.5 * 1.25f32.powi((length - allowed) as i32);
            let place = &mut losses[window[end] as usize];
            *place = place.max(loss);
        }
    }
    losses
}

#[test]
fn dry_is_that_of_a_plain_count() {
    let mut random = Random(3);
    let mut penalised = 0;
    for case in 0..1500 {
        let kinds = 1 + case % 4;
        let (allowed, last_n) = (1 + random.below(4), 1 + random.below(40));
        let mut sampler = sampler(&format!("dry=0.5,1.25,{allowed},{last_n},none"), 5);
        sampler.keep_candidates(5);
        let history: Vec<Token> = (0..random.below(60)).map(|_| random.below(kinds) as Token).collect();
        history.iter().for_each(|&token| sampler.accept(token));
        sampler.sample(&mut [1.0; 5], None, &[], 0).unwrap();
        let expected = dry(&history, 5, allowed, last_n);
        for &(token, logit, _) in &sampler.last().candidates {
            let loss = expected[token as usize];
            assert!((1.0 - logit - loss).abs() <= 1e-5 * loss.max(1.0), "{token}, {allowed}, {last_n}: {history:?}");
            penalised += usize::from(loss > 0.0);
        }
    }
    assert!(penalised > 1000, "{penalised}");
}

#[test]
fn a_repetition_ends_at_a_breaker_of_several_tokens() {
    // 3 "a", 4 "b", 5 "xa", 6 "yab", 7 "c", 8 "d"
    let vocab = vocab(&["a", "b", "xa", "yab", "c", "d"]);
    let lost = |history: &[Token], breaker: &str| {
        let chain = format!("dry=1,2,2,64,{breaker}").parse().unwrap();
        let mut sampler = Sampler::with_vocab(&chain, 9, 1, &vocab).unwrap();
        sampler.keep_candidates(9);
        history.iter().for_each(|&token| sampler.accept(token));
        sampler.sample(&mut [0.0; 9], None, &[], 0).unwrap();
        let lost = sampler.last().candidates.iter().filter(|one| one.1 < 0.0).map(|one| (one.0, -one.1));
        lost.collect::<Vec<_>>()
    };
    let repeated = [7, 5, 4, 8, 7, 5, 4];
    assert_eq!(lost(&repeated, "none"), [(8, 2.0)]);
    // "xa" and "b" after it are the breaker "ab"; nothing came after it.
    assert_eq!(lost(&repeated, "ab"), []);
    assert_eq!(lost(&[8, 7, 7, 8, 5, 4, 8, 7, 7, 8, 5, 4, 8, 7, 7], "ab"), [(8, 2.0)], "three tokens since");
    // A token that contains the breaker loses nothing itself.
    assert_eq!(lost(&[7, 8, 6, 7, 8], "none"), [(6, 1.0)]);
    assert_eq!(lost(&[7, 8, 6, 7, 8], "ab"), []);
    assert_eq!(lost(&[7, 8, 6, 7, 8], "\\x61b"), []);
    let chain = "dry=1,2,2,64".parse().unwrap();
    let error = Sampler::new(&chain, 9, 1).err().unwrap().to_string();
    assert!(error.contains("needs the vocabulary"), "{error}");
}

#[test]
fn dry_at_its_edges() {
    for chain in ["dry=0,1.75,2,64", "dry=1,0.9,2,64", "dry=1,1.75,2,0", "dry=1,1.75,2,-1"] {
        let mut off = sampler(chain, 3);
        assert_eq!(off.spec(&[]).steps.len(), 1, "{chain}: the mask alone");
        [0, 1, 0, 1, 0].into_iter().for_each(|token| off.accept(token));
        off.sample(&mut [1.0; 3], None, &[], 0).unwrap();
    }
    // As large as an f32, and not infinite; the token that would come next is never drawn.
    let mut huge = sampler("dry=1,10,2,2048,none", 3);
    (0..300).for_each(|at| huge.accept(at % 2));
    for position in 0..50 {
        assert_ne!(huge.sample(&mut [1.0; 3], None, &[], position), Ok(0));
    }
    for (chain, part) in [
        ("dry=nan,1,2,64,none", "multiplier NaN"),
        ("dry=1,inf,2,64,none", "base inf"),
        ("dry=1,2,2,2000000,none", "1048576"),
    ] {
        let error = Sampler::new(&chain.parse().unwrap(), 3, 1).err().unwrap().to_string();
        assert!(error.contains(part), "{chain}: {error}");
    }
}

#[test]
fn mirostat_comes_to_the_surprise_that_was_asked_for() {
    let row: Vec<f32> = (0..2000).map(|at| -1.3 * ((at * 7 % 2000 + 1) as f32).ln()).collect();
    for chain in ["mirostat=3,0.1", "mirostat_v2=3,0.1"] {
        let mut sampler = sampler(chain, row.len());
        let mut surprise = 0.0;
        for position in 0..3000 {
            let token = sampler.sample(&mut row.clone(), None, &[], position).unwrap();
            sampler.accept(token);
            surprise += if position >= 1000 { -sampler.last().prob.log2() } else { 0.0 };
        }
        assert!((surprise / 2000.0 - 3.0).abs() < 0.15, "{chain}: {}", surprise / 2000.0);
    }
}

#[test]
fn one_candidate_is_enough() {
    for chain in ["mirostat=5,0.1", "mirostat_v2=0,0.1", "adaptive_p=0.3,0.9", "adaptive_p=-1,0.9", "xtc=1,0.1,1"] {
        for generator in ["counter", "mt19937"] {
            let chain = format!("rng={generator};{chain}");
            let mut alone = sampler(&chain, 4);
            let row = [f32::NEG_INFINITY, f32::NEG_INFINITY, 1.5, f32::NEG_INFINITY];
            for position in 0..20 {
                assert_eq!(alone.sample(&mut row.clone(), None, &[], position), Ok(2), "{chain}");
                alone.accept(2);
            }
            assert_eq!(stream(&mut sampler(&chain, 1), &[3.0], 3), [(0, 1); 3], "{chain}");
        }
    }
    // Candidates of no probability, and equal ones: the exponent of the distribution is no number.
    for row in [[0.0, -200.0, -200.0, -300.0], [1.0; 4], [f32::INFINITY, 1.0, 0.0, -1.0]] {
        for chain in ["mirostat=5,0.1", "mirostat_v2=5,0.1", "adaptive_p=0.3,0.9"] {
            let drawn = stream(&mut sampler(chain, 4), &row, 20);
            assert!(chain == "adaptive_p=0.3,0.9" || row[1] == 1.0 || drawn.iter().all(|one| one.0 == 0), "{drawn:?}");
        }
    }
}

#[test]
fn what_selects_comes_last_and_has_its_numbers_checked() {
    for chain in ["mirostat=5,0.1", "mirostat_v2=5,0.1", "adaptive_p=0.3,0.9"] {
        let error = format!("{chain};temp=1").parse::<elizainference::sampling::Chain>().unwrap_err().to_string();
        assert!(error.contains("nothing can follow"), "{error}");
    }
    for (chain, part) in [
        ("mirostat=nan,0.1", "tau NaN"),
        ("mirostat_v2=5,inf", "eta inf"),
        ("mirostat=5,0.1,1", "m is 1"),
        ("mirostat=5,0.1,4097", "m is 4097"),
        ("adaptive_p=nan,0.9", "target NaN"),
        ("adaptive_p=0.3,nan", "decay NaN"),
        ("infill", "needs the vocabulary"),
    ] {
        let error = Sampler::new(&chain.parse().unwrap(), 9, 1).err().unwrap().to_string();
        assert!(error.contains(part), "{chain}: {error}");
    }
}

#[test]
fn a_restart_begins_anew_and_a_later_one_goes_on() {
    for chain in ["mirostat=2,0.1", "mirostat_v2=2,0.1", "adaptive_p=0.3,0.9", "xtc=0.5,0.1", "temp=0.9"] {
        for generator in ["counter", "mt19937"] {
            let chain = format!("rng={generator};{chain}");
            let mut sampler = sampler(&chain, L.len());
            let first = stream(&mut sampler, &L, 30);
            sampler.restart(0);
            assert_eq!(stream(&mut sampler, &L, 30), first, "{chain}");
        }
    }
    // The bound and the generator go on where the history begins anew.
    let mut whole = sampler("rng=mt19937;mirostat_v2=2,0.1", L.len());
    let expected = stream(&mut whole, &L, 40);
    let mut cut = sampler("rng=mt19937;mirostat_v2=2,0.1", L.len());
    let mut tokens = stream(&mut cut, &L, 20);
    cut.restart(1);
    tokens.extend(stream(&mut cut, &L, 20));
    assert_eq!(tokens, expected);
}

#[test]
fn an_error_and_a_greedy_mask_change_nothing() {
    for chain in ["mirostat=2,0.1", "mirostat_v2=2,0.1", "adaptive_p=0.3,0.9", "xtc=0.5,0.1;temp=0.9"] {
        let chain = format!("rng=mt19937;{chain}");
        let expected = stream(&mut sampler(&chain, L.len()), &L, 30);
        let mut disturbed = sampler(&chain, L.len());
        disturbed.keep_candidates(L.len());
        for (position, &expected) in (0..).zip(&expected) {
            let mut broken = L;
            broken[4] = f32::NAN;
            let error = disturbed.sample(&mut broken, None, &[], position);
            assert_eq!(error, Err(Error::NanLogits { row: 0, token: 4 }), "{chain}");
            let legal = Legal::list(&[0, 7], true);
            assert_eq!(disturbed.sample(&mut L.to_vec(), Some(legal), &[], position), Ok(7), "{chain}");
            let token = disturbed.sample(&mut L.to_vec(), None, &[], position).unwrap();
            assert_eq!((token, disturbed.last().candidates.len()), expected, "{chain}");
            disturbed.accept(token);
        }
    }
}

#[test]
fn only_a_token_that_was_drawn_counts_for_the_mean() {
    // Of the greatest and the least probability, whichever is aimed at is drawn nearly always.
    let row = [3.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let share = |accepts: &dyn Fn(Token) -> Token| {
        let mut sampler = sampler("adaptive_p=0.4,0.9", row.len());
        let best = (0..400).filter(|&position| {
            let token = sampler.sample(&mut row.to_vec(), None, &[], position).unwrap();
            sampler.accept(accepts(token));
            token == 0
        });
        best.count()
    };
    let kept = share(&|token| token);
    let replaced = share(&|token| (token + 1) % 6);
    assert!(kept > 120 && kept < 280, "about half: {kept}");
    // The mean stays where it was, at the target, which is nearer to the improbable ones.
    assert_ne!(kept, replaced);
}

#[test]
fn adaptive_p_meets_its_target_on_average() {
    let row: Vec<f32> = (0..6u8).map(|at| 2.0 - 0.7 * f32::from(at)).collect();
    for target in [0.2, 0.3, 0.4] {
        let mut sampler = sampler(&format!("adaptive_p={target},0.95"), row.len());
        let total: f32 = row.iter().map(|logit| logit.exp()).sum();
        let mut mean = 0.0;
        for position in 0..4000 {
            let token = sampler.sample(&mut row.clone(), None, &[], position).unwrap();
            sampler.accept(token);
            mean += row[token as usize].exp() / total / 4000.0;
        }
        assert!((mean - target).abs() < 0.05, "{target}: {mean}");
    }
}

#[test]
fn infill_ends_the_text_and_never_what_a_mask_forbids() {
    let vocab = vocab(&["re", "return", "ret", "x", "y", "z", "w", "v"]);
    let infill = || Sampler::with_vocab(&"infill".parse().unwrap(), 11, 7, &vocab).unwrap();
    let left = |row: &[f32; 11], legal: Option<Legal<'_>>| {
        let mut sampler = infill();
        sampler.keep_candidates(11);
        sampler.sample(&mut row.clone(), legal, &[], 0).unwrap();
        let mut left: Vec<Token> = sampler.last().candidates.iter().map(|one| one.0).collect();
        left.sort_unstable();
        left
    };
    const NONE: f32 = f32::NEG_INFINITY;
    // "re", "return" and "ret" are one, of which the likeliest stays.
    assert_eq!(left(&[NONE, NONE, NONE, 2.0, 3.0, 2.0, 3.5, NONE, NONE, NONE, NONE], None), [4, 6]);
    assert_eq!(left(&[NONE, NONE, 2.0, 2.0, 2.0, 2.0, NONE, NONE, NONE, NONE, NONE], None), [2], "the end has a share");
    let spread = [NONE, NONE, NONE, 1.0, NONE, NONE, 1.0, 1.0, 1.0, 1.0, 1.0];
    assert_eq!(left(&spread, None), [2], "none is probable enough");
    let tokens = [3, 6, 7, 8, 9, 10];
    assert_eq!(left(&spread, Some(Legal::list(&tokens, false))), tokens);
}

/// A device follows the chain up to the first step that draws otherwise; the host goes on to the same token.
#[test]
fn a_chain_is_taken_up_before_what_remembers() {
    for (chain, steps) in [
        ("top_k=4;mirostat_v2=2,0.1", ["top_k", "mirostat_v2"]),
        ("top_k=4;adaptive_p=0.3,0.9", ["top_k", "adaptive_p"]),
        ("rng=mt19937;top_k=4;dist", ["top_k", "rng"]),
    ] {
        let (mut whole, mut resumed) = (sampler(chain, L.len()), sampler(chain, L.len()));
        let spec = resumed.spec(&[]);
        let names: Vec<&str> = spec.steps.iter().map(|step| step.name()).filter(|name| *name != "trie").collect();
        assert_eq!(names, steps, "{chain}");
        let first: Vec<(Token, f32)> = [3, 6, 8, 1].map(|token| (token, L[token as usize])).to_vec();
        for position in 0..30 {
            let token = whole.sample(&mut L.to_vec(), None, &[], position).unwrap();
            assert_eq!(resumed.resume(1, first.iter().rev().copied(), None, position), Ok(token), "{chain}");
            whole.accept(token);
            resumed.accept(token);
        }
    }
}
