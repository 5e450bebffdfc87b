//! The sampler through its public face: known values, text forms, constrained spans, statistics, reproducibility.

use elizainference::backend::ChainStep;
use elizainference::sampling::{Chain, Legal, Params, Sampler, random};
use elizainference::{Error, Token};

/// The row of the published examples.
const L: [f32; 10] = [2.1, 5.3, 1.8, 7.2, 3.4, 4.1, 6.8, 2.9, 5.7, 4.5];

fn sampler(chain: &str, n: usize, seed: u64) -> Sampler {
    Sampler::new(&chain.parse().unwrap(), n, seed).unwrap()
}

/// The candidates a chain leaves of a row, best first: (token, logit, probability).
fn left(chain: &str, row: &[f32], history: &[Token]) -> Vec<(Token, f32, f32)> {
    let mut sampler = sampler(chain, row.len(), 1);
    sampler.keep_candidates(row.len());
    history.iter().for_each(|&token| sampler.accept(token));
    sampler.sample(&mut row.to_vec(), None, &[], 0).unwrap();
    sampler.last().candidates.clone()
}

fn ids(candidates: &[(Token, f32, f32)]) -> Vec<Token> {
    candidates.iter().map(|one| one.0).collect()
}

/// The probabilities by id, 0 where a token was taken out.
fn probabilities(chain: &str, given: &[f32], history: &[Token]) -> Vec<f32> {
    let row: Vec<f32> = given.iter().map(|p| p.ln()).collect();
    let mut out = vec![0.0; given.len()];
    for (token, _, p) in left(chain, &row, history) {
        out[token as usize] = p;
    }
    out
}

fn assert_close(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (a, b) in got.iter().zip(expected) {
        assert!((a - b).abs() < 1e-5, "{what}: {got:?}, expected {expected:?}");
    }
}

#[test]
fn the_example_row() {
    let p = [0.0028, 0.0679, 0.0021, 0.4542, 0.0102, 0.0205, 0.3044, 0.0062, 0.1013, 0.0305];
    for (token, _, got) in left("dist", &L, &[]) {
        assert!((got - p[token as usize]).abs() < 6e-5, "token {token}: {got}");
    }
    assert_eq!(ids(&left("top_p=0.9", &L, &[])), [3, 6, 8, 1]);
    let mut kept = ids(&left("min_p=0.05", &L, &[]));
    kept.sort_unstable();
    assert_eq!(kept, [1, 3, 6, 8, 9]);
    assert_eq!(ids(&left("top_k=3", &L, &[])), [3, 6, 8]);
    assert_eq!(ids(&left("typ_p=0.2", &L, &[])), [6]);
    assert_eq!(ids(&left("typ_p=0.6", &L, &[])), [3, 6]);
    assert_eq!(ids(&left("typ_p=0", &L, &[])), [6], "the most typical, not the most probable");
    assert_eq!(ids(&left("top_n_sigma=1", &L, &[])), [3, 6, 8]);
    assert_eq!(ids(&left("top_k=4;xtc=1,0.1", &L, &[])), [8, 1]);
    assert_eq!(ids(&left("top_k=4;xtc=1,0.1,3", &L, &[])), [3, 6, 8, 1], "fewer than three would stay");
    assert_eq!(ids(&left("greedy", &L, &[])), [3]);
    assert_eq!(ids(&left("top_k=40;top_p=0.95;min_p=0.05;temp=0.8", &L, &[])), [3, 6, 8, 1, 9]);
}

/// Probabilities in, parameters, probabilities out.
#[test]
fn known_probabilities() {
    let ramp = [0.1, 0.2, 0.3, 0.4];
    let one = [0.0, 0.0, 0.0, 1.0];
    let cases: [(&str, [f32; 4]); 18] = [
        ("temp=1", ramp),
        ("temp=0", one),
        ("top_k=1", one),
        ("top_k=3", [0.0, 0.222222, 0.333333, 0.444444]),
        ("top_k=4", ramp),
        ("top_k=0", ramp),
        ("top_p=0", one),
        ("top_p=0.7", [0.0, 0.0, 0.428571, 0.571429]),
        ("top_p=0.8", [0.0, 0.222222, 0.333333, 0.444444]),
        ("top_p=1", ramp),
        ("min_p=0", ramp),
        ("min_p=0.24", ramp),
        ("min_p=0.26", [0.0, 0.222222, 0.333333, 0.444444]),
        ("min_p=0.49", [0.0, 0.222222, 0.333333, 0.444444]),
        ("min_p=0.51", [0.0, 0.0, 0.428571, 0.571429]),
        ("min_p=0.74", [0.0, 0.0, 0.428571, 0.571429]),
        ("min_p=0.76", one),
        ("min_p=1.05", one),
    ];
    for (chain, expected) in cases {
        assert_close(&probabilities(chain, &ramp, &[]), &expected, chain);
    }
    let flat = [0.2; 5];
    let (repeat, both) = ("penalties=64,50,0,0", "penalties=64,1,5,5");
    let cases: [(&str, &[Token], [f32; 5]); 6] = [
        (repeat, &[0], [0.0, 0.25, 0.25, 0.25, 0.25]),
        (repeat, &[0, 1, 2], [0.0, 0.0, 0.0, 0.5, 0.5]),
        (repeat, &[0, 1, 2, 0, 0], [0.0, 0.0, 0.0, 0.5, 0.5]),
        (both, &[0], [0.000011, 0.249997, 0.249997, 0.249997, 0.249997]),
        (both, &[0, 1, 2], [0.000023, 0.000023, 0.000023, 0.499966, 0.499966]),
        (both, &[0, 1, 2, 0, 0], [0.0, 0.000023, 0.000023, 0.499977, 0.499977]),
    ];
    for (chain, history, expected) in cases {
        assert_close(&probabilities(chain, &flat, history), &expected, &format!("{chain} after {history:?}"));
    }
}

#[test]
fn penalties_look_back_on_the_window_only() {
    let flat = [0.2; 5];
    // Three accepted, two looked back on.
    let got = probabilities("penalties=2,1,5,5", &flat, &[0, 1, 1]);
    assert_eq!(got.iter().filter(|p| **p > 0.2).count(), 4, "{got:?}");
    let mut sampler = sampler("penalties=3,1,0,100;greedy", 3, 1);
    let mut next = |accepted: Token, reset: bool| {
        if reset {
            sampler.restart(0);
        }
        sampler.accept(accepted);
        sampler.sample(&mut [3.0, 2.0, 1.0], None, &[], 0).unwrap()
    };
    assert_eq!(next(0, false), 1);
    assert_eq!(next(1, false), 2);
    assert_eq!(next(1, false), 2);
    assert_eq!(next(2, false), 0); // 0 has left the window
    assert_eq!(next(2, true), 0);
    // A window of none, and a negative one, change nothing.
    for off in ["penalties=0,50,5,5", "penalties=-1,50,5,5"] {
        assert_close(&probabilities(off, &flat, &[0, 0]), &flat, off);
    }
}

#[test]
fn biases_add_up_and_take_out() {
    let row = [0.0, 0.0, 0.0];
    let got = left("logit_bias=0:-inf,1:1,1:1", &row, &[]);
    assert_eq!(ids(&got), [1, 2]);
    assert_eq!(got[0].1, 2.0);
    // After a temperature a bias counts in full all the same.
    let got = left("temp=0.5;logit_bias=2:1.5", &[1.0, 1.0, 1.0], &[]);
    assert_close(&[got[0].1, got[1].1], &[3.5, 2.0], "logits");
    assert_close(&[got[0].2], &[1.5f32.exp() / (2.0 + 1.5f32.exp())], "probability");
    // So that an infinite logit does not come back as NaN.
    assert_eq!(ids(&left("logit_bias=1:-inf;greedy", &[1.0, f32::INFINITY, 0.5], &[])), [0]);
}

#[test]
fn ties_go_to_the_lowest_id() {
    let row = [1.0, 7.0, 7.0, 2.0, 7.0];
    for chain in ["greedy", "temp=0", "temp=-1", "top_k=1", "top_p=0.1", "top_k=3;temp=0"] {
        assert_eq!(ids(&left(chain, &row, &[])), [1], "{chain}");
    }
    assert_eq!(ids(&left("top_k=2", &row, &[])), [1, 2]);
}

/// XTC draws for itself: how often it acts does not depend on which token is drawn then.
#[test]
fn xtc_acts_as_often_as_asked() {
    let row = [2.0, 2.0, 1.0];
    let mut sampler = sampler("xtc=0.3,0.2;greedy", 3, 7);
    let acted = (0..10_000).filter(|&position| sampler.sample(&mut row.clone(), None, &[], position).unwrap() != 0);
    let share = acted.count() as f64 / 10_000.0;
    assert!((share - 0.3).abs() < 0.02, "{share}");
}

#[test]
fn text_forms_come_back() {
    for text in [
        "",
        "greedy",
        "dist",
        "top_k=40;top_p=0.95;min_p=0.05;temp=0.8",
        "logit_bias=5:-inf,7:1.5;penalties=64,1.1,0.1,-0.2;trie;top_k=-1;top_p=0.9,3;min_p=0.1,2;temp=0;dist",
        "top_k=40;dynatemp=0.8,0.5,1.5",
        "top_n_sigma=1.5;typ_p=0.9;typ_p=0.9,2;xtc=0.5,0.1;xtc=1,0.1,3",
        "rng=mt19937;dry=0.8,1.75,2,64;infill;mirostat=5,0.1",
        "rng=counter;dry=1,2,-1,100,none;mirostat=5,0.1,40",
        "dry=1,2,3,100,a\\x2cb,\\n\\n,\\x3b,none,\\x5c\\x20x;mirostat_v2=3,0.2",
        "min_p=0.1;adaptive_p=0.3,0.9",
    ] {
        let chain: Chain = text.parse().unwrap();
        assert_eq!(chain.to_string(), text);
        assert_eq!(chain.to_string().parse::<Chain>().unwrap(), chain);
    }
    assert_eq!(" top_k = 4 ; greedy ".parse::<Chain>().unwrap().steps, [ChainStep::TopK(4), ChainStep::Greedy]);
    assert_eq!(Params::default().chain().to_string(), "top_k=40;top_p=0.95;min_p=0.05;temp=0.8");
}

#[test]
fn wrong_texts_are_explained() {
    for (text, parts) in [
        ("top_k=40;wet=1", ["step 2 at byte 9", "unknown sampler `wet`; known are logit_bias, penalties"]),
        ("top_k=40;dry=1", ["step 2 at byte 9", "dry=multiplier,base,allowed_length,last_n or with ,breaker"]),
        ("dry=1,2,3,4,\\q", ["step 1", "backslash without n"]),
        ("dry=1,2,3,4,\\xff", ["step 1", "an ASCII character"]),
        ("mirostat", ["step 1 at byte 0", "mirostat=tau,eta or tau,eta,m"]),
        ("mirostat_v2=1", ["step 1", "mirostat_v2=tau,eta"]),
        ("adaptive_p=1,2,3", ["step 1", "adaptive_p=target,decay"]),
        ("infill=1", ["step 1", "takes no value"]),
        ("rng=random", ["step 1", "rng=counter or rng=mt19937"]),
        ("rng=counter;top_k=1;rng=mt19937", ["step 3", "`rng` can stand in one place only"]),
        ("top_k", ["step 1", "written top_k=k"]),
        ("top_k=4.5", ["step 1", "`4.5`"]),
        ("top_k=1,2", ["step 1", "written top_k=k"]),
        ("temp=hot", ["step 1", "`hot`"]),
        ("temp=0.8; ;dist", ["step 2", "a sampler is missing"]),
        ("temp=0.8;", ["step 2 at byte 9", "a sampler is missing"]),
        ("penalties=64,1.1", ["step 1", "penalties=last_n,repeat,frequency,presence"]),
        ("dynatemp=1,0.5", ["step 1", "dynatemp=t,range,exponent"]),
        ("dynatemp=1,0.5,1,1", ["step 1", "dynatemp=t,range,exponent"]),
        ("dynatemp=1,a,1", ["step 1", "`a`"]),
        ("logit_bias=5", ["step 1", "id:value"]),
        ("logit_bias=", ["step 1", "id:value"]),
        ("xtc=0.5", ["step 1", "xtc=probability,threshold or probability,threshold,min_keep"]),
        ("xtc=0.5,0.1,1,1", ["step 1", "xtc=probability,threshold or"]),
        ("typ_p", ["step 1", "typ_p=p or p,min_keep"]),
        ("top_n_sigma=1,2", ["step 1", "top_n_sigma=n"]),
        ("greedy=1", ["step 1", "takes no value"]),
        ("greedy;temp=1", ["step 1", "nothing can follow"]),
        ("trie;top_k=1;trie", ["step 3", "one place only"]),
    ] {
        let error = text.parse::<Chain>().unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
    for (text, part) in [
        ("temp=nan", "step 1 (`temp=NaN`)"),
        ("temp=inf", "not a finite number"),
        ("dynatemp=nan,0.5,1", "Temperature NaN"),
        ("dynatemp=1,inf,1", "range inf"),
        ("dynatemp=1,0.5,nan", "exponent NaN"),
        ("top_k=4;top_p=nan", "step 2"),
        ("min_p=nan", "NaN"),
        ("typ_p=nan", "Typical-p is NaN"),
        ("top_n_sigma=nan", "Top-n-sigma is NaN"),
        ("xtc=nan,0.1", "probability of XTC"),
        ("xtc=0.5,nan", "threshold of XTC"),
        ("logit_bias=10:1", "token 10, which is outside the vocabulary of 10"),
        ("logit_bias=-1:1", "token -1"),
        ("logit_bias=1:inf", "token 1 is inf"),
        ("penalties=64,0,0,0", "Repeat penalty 0"),
        ("penalties=64,1,nan,0", "Frequency"),
        ("penalties=2000000,1,1,0", "1048576"),
    ] {
        let error = Sampler::new(&text.parse().unwrap(), 10, 1).err().unwrap().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    let chain = Chain { steps: vec![ChainStep::Draw, ChainStep::TopK(1)] };
    assert!(Sampler::new(&chain, 10, 1).is_err());
    assert!(Sampler::new(&Chain::default(), 0, 1).is_err());
}

#[test]
fn rows_that_do_not_fit_or_hold_nothing() {
    let mut sampler = sampler("top_k=3", 4, 1);
    let error = sampler.sample(&mut [1.0; 5], None, &[], 0).unwrap_err();
    assert!(error.to_string().contains("5 logits"), "{error}");
    let error = sampler.sample(&mut [f32::NEG_INFINITY; 4], None, &[], 0).unwrap_err();
    assert!(error.to_string().contains("every candidate's logit is -inf"), "{error}");
    let error = sampler.sample(&mut [1.0; 4], None, &[0, 1, 2, 3], 0).unwrap_err();
    assert!(error.to_string().contains("-inf"), "{error}");
    let error = sampler.sample(&mut [1.0, 2.0, f32::NAN, 3.0], None, &[], 0).unwrap_err();
    assert_eq!(error, Error::NanLogits { row: 0, token: 2 });
    // A banned NaN does not count, nor one that is not legal.
    assert_eq!(sampler.sample(&mut [1.0, -90.0, f32::NAN, -90.0], None, &[2], 0), Ok(0));
    let legal = Legal::list(&[3], true);
    assert_eq!(sampler.sample(&mut [1.0, -90.0, f32::NAN, -90.0], Some(legal), &[], 0), Ok(3));
    for tokens in [&[][..], &[4], &[-1, 2]] {
        assert!(sampler.sample(&mut [1.0; 4], Some(Legal::list(tokens, false)), &[], 0).is_err());
    }
    for bits in [&[][..], &[0], &[1 << 4], &[1, 0]] {
        assert!(sampler.sample(&mut [1.0; 4], Some(Legal::mask(bits, 1, false)), &[], 0).is_err(), "{bits:?}");
    }
    assert_eq!(sampler.sample(&mut [1.0; 4], Some(Legal::mask(&[1 << 3], 1, false)), &[], 0), Ok(3));
}

fn row(n: usize, kind: u32, deviation: f64) -> Vec<f32> {
    let uniform = |i: usize, draw: u32| (f64::from(random::bits(5, i as u32, 2 * kind + draw)) + 0.5) / 4_294_967_296.0;
    let gaussian = |i: usize| (-2.0 * uniform(i, 0).ln()).sqrt() * (std::f64::consts::TAU * uniform(i, 1)).cos();
    (0..n).map(|i| (deviation * gaussian(i)) as f32).collect()
}

const CHAINS: [&str; 9] = [
    "dist",
    "temp=0.8",
    "greedy",
    "top_k=40;top_p=0.95;min_p=0.05;temp=0.8",
    "top_p=0.9;temp=1.3",
    "min_p=0.02",
    "logit_bias=3:4,9:-inf;penalties=8,1.3,0.2,0.1;temp=0.7;top_p=0.99",
    "temp=0",
    "top_k=500;dynatemp=1,0.8,1.5;min_p=0.01",
];

/// A mask of these tokens.
fn bits(legal: &[Token], n_vocab: usize) -> Vec<u32> {
    let mut bits = vec![0; n_vocab.div_ceil(32)];
    legal.iter().for_each(|&token| bits[token as usize / 32] |= 1 << (token % 32));
    bits
}

/// The token under a constraint is the one that the full row gives with everything else at -inf.
#[test]
fn legal_tokens_are_a_mask() {
    let n = 20_000;
    for kind in 0..40 {
        let row = row(n, kind, 3.0);
        let count = [1, 2, 7, 300, 6000][kind as usize % 5];
        let mut legal: Vec<Token> = (0..count).map(|i| (random::bits(6, i, kind) % n as u32) as Token).collect();
        legal.sort_unstable();
        legal.dedup();
        let mut masked = vec![f32::NEG_INFINITY; n];
        legal.iter().for_each(|&token| masked[token as usize] = row[token as usize]);
        let bits = bits(&legal, n);
        for (number, chain) in CHAINS.iter().enumerate() {
            let seed = u64::from(kind) << 32 | number as u64;
            let mut under = sampler(chain, n, seed);
            let mut full = sampler(chain, n, seed);
            // The highest logit after biases and penalties, whatever the chain does then.
            let adjusting = chain.split(';').take_while(|step| step.contains("bias") || step.contains("penalties"));
            let greedy_chain = adjusting.chain(["greedy"]).collect::<Vec<_>>().join(";");
            let mut best = sampler(&greedy_chain, n, seed);
            for token in [legal[0], 17, legal[0]] {
                under.accept(token);
                full.accept(token);
                best.accept(token);
            }
            for position in 0..25 {
                let sampled =
                    |one: &mut Sampler, row: &[f32], legal| one.sample(&mut row.to_vec(), legal, &[], position);
                let mode = |greedy| Some(Legal::list(&legal, greedy));
                let expected = sampled(&mut full, &masked, None);
                assert_eq!(sampled(&mut under, &row, mode(false)), expected, "{chain}, {count} legal");
                let expected_best = sampled(&mut best, &masked, None);
                assert_eq!(sampled(&mut under, &row, mode(true)), expected_best, "{chain}");
                let mode = |greedy| Some(Legal::mask(&bits, 1, greedy));
                assert_eq!(sampled(&mut under, &row, mode(false)), expected, "{chain}, a mask of {count}");
                assert_eq!(sampled(&mut under, &row, mode(true)), expected_best, "{chain}, a mask of {count}");
            }
        }
    }
}

#[test]
fn a_constraint_never_leaves_nothing() {
    let n = 5000;
    let row = row(n, 3, 2.0);
    let mut order: Vec<Token> = (0..n as Token).collect();
    order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
    let mut legal: Vec<Token> = order[100..130].to_vec();
    legal.sort_unstable();
    // After a truncation that leaves none of them the smallest id is taken; where one is left, that one.
    for greedy in [false, true] {
        let expected = if greedy { order[100] } else { legal[0] };
        let legal = Some(Legal::list(&legal, greedy));
        let taken = sampler("top_k=100;trie;temp=0.8", n, 1).sample(&mut row.clone(), legal, &[], 0).unwrap();
        assert_eq!(taken, expected, "greedy {greedy}");
        let taken = sampler("top_k=101;trie;temp=0.8", n, 1).sample(&mut row.clone(), legal, &[], 0).unwrap();
        assert_eq!(taken, order[100]);
    }
    // All at -inf; banned ones stay legal.
    let mut dead = row.clone();
    legal.iter().for_each(|&token| dead[token as usize] = f32::NEG_INFINITY);
    for greedy in [false, true] {
        let mode = Some(Legal::list(&legal, greedy));
        assert_eq!(sampler("", n, 1).sample(&mut dead.clone(), mode, &[], 0), Ok(legal[0]));
        let (words, one) = (bits(&legal, n), bits(&legal[4..5], n));
        let mode = Some(Legal::mask(&words, 1, greedy));
        assert_eq!(sampler("", n, 1).sample(&mut dead.clone(), mode, &[], 0), Ok(legal[0]));
        let one = Some(Legal::mask(&one, 2, greedy));
        assert_eq!(sampler("top_k=3", n, 1).sample(&mut row.clone(), one, &[legal[4]], 0), Ok(legal[4]));
        let one = Some(Legal::list(&legal[4..5], greedy));
        assert_eq!(sampler("top_k=3", n, 1).sample(&mut row.clone(), one, &[legal[4]], 0), Ok(legal[4]));
    }
    let mut nan = row.clone();
    nan[legal[2] as usize] = f32::NAN;
    let error = sampler("", n, 1).sample(&mut nan, Some(Legal::list(&legal, true)), &[], 0).unwrap_err();
    assert_eq!(error, Error::NanLogits { row: 0, token: legal[2] as usize });
    for few in [&legal[..], &(0..n as Token).filter(|token| token % 100 != 3).collect::<Vec<_>>()] {
        let mut nan = row.clone();
        let (at, other) = (few[few.len() - 1] as usize, 3);
        (nan[at], nan[other]) = (f32::NAN, f32::NAN);
        let words = bits(few, n);
        let mask = Some(Legal::mask(&words, 3, false));
        let error = sampler("", n, 1).sample(&mut nan.clone(), mask, &[], 0).unwrap_err();
        assert_eq!(error, Error::NanLogits { row: 0, token: at });
        nan[at] = 1.0;
        assert!(sampler("", n, 1).sample(&mut nan, mask, &[], 0).is_ok(), "a NaN that is not legal does not count");
    }
}

/// Chi-square over 100,000 draws: the statistic of a right sampler exceeds the bound once in 10,000 seeds.
#[test]
fn draws_follow_the_probabilities() {
    const DRAWS: u32 = 100_000;
    // (candidates - 1) degrees of freedom: the 0.9999 quantiles of the chi-square distribution.
    for (chain, row, quantile) in [
        ("dist", &L[..], 33.72),
        ("temp=2", &L[..], 33.72),
        ("top_k=4", &L[..], 21.11),
        ("top_p=0.9;temp=1.5", &L[..], 21.11),
        ("min_p=0.05", &L[..], 23.51),
    ] {
        let mut sampler = sampler(chain, row.len(), 20_240_101);
        sampler.keep_candidates(row.len());
        let mut counts = vec![0u32; row.len()];
        for position in 0..DRAWS {
            counts[sampler.sample(&mut row.to_vec(), None, &[], position).unwrap() as usize] += 1;
        }
        let candidates = &sampler.last().candidates;
        // Expected counts from the logits, in double precision with the system's exponential.
        let relative: Vec<f64> = candidates.iter().map(|one| f64::from(one.1).exp()).collect();
        let total: f64 = relative.iter().sum();
        let mut statistic = 0.0;
        let mut drawn = 0;
        for ((token, ..), weight) in candidates.iter().zip(&relative) {
            let expected = f64::from(DRAWS) * weight / total;
            statistic += (f64::from(counts[*token as usize]) - expected).powi(2) / expected;
            drawn += counts[*token as usize];
        }
        assert_eq!(drawn, DRAWS, "{chain}");
        assert!(statistic < quantile, "{chain}: {statistic:.1}, {counts:?}");
    }
}

/// The same over a whole vocabulary, in 64 groups of ids.
#[test]
fn draws_from_a_wide_row_follow_the_probabilities() {
    const DRAWS: u32 = 4_000;
    let n = 32_000;
    let row = row(n, 1, 1.0);
    let group = |token: usize| token * 64 / n;
    let mut expected = [0.0f64; 64];
    row.iter().enumerate().for_each(|(token, x)| expected[group(token)] += f64::from(*x).exp());
    let total: f64 = expected.iter().sum();
    let mut sampler = sampler("dist", n, 99);
    let mut counts = [0.0; 64];
    for position in 0..DRAWS {
        counts[group(sampler.sample(&mut row.clone(), None, &[], position).unwrap() as usize)] += 1.0;
    }
    let statistic: f64 = (0..64)
        .map(|at| {
            let expected = expected[at] / total * f64::from(DRAWS);
            (counts[at] - expected) * (counts[at] - expected) / expected
        })
        .sum();
    assert!(statistic < 112.7, "{statistic}"); // 63 degrees of freedom, 0.9999
}

#[test]
fn a_draw_depends_on_seed_and_position_only() {
    let n = 3000;
    let row = row(n, 2, 1.5);
    for chain in CHAINS {
        let mut forward = sampler(chain, n, 42);
        let tokens: Vec<_> = (0..50).map(|p| forward.sample(&mut row.clone(), None, &[], p).unwrap()).collect();
        let mut backward = sampler(chain, n, 42);
        for position in (0..50).rev() {
            let token = backward.sample(&mut row.clone(), None, &[], position).unwrap();
            assert_eq!(token, tokens[position as usize], "{chain} at {position}");
        }
        let mut other = sampler(chain, n, 43);
        let others: Vec<_> = (0..50).map(|p| other.sample(&mut row.clone(), None, &[], p).unwrap()).collect();
        assert_eq!(others == tokens, ["greedy", "temp=0"].contains(&chain), "{chain}");
    }
}

#[test]
fn what_was_sampled_is_told() {
    let mut sampler = sampler("top_k=3;temp=0.5", L.len(), 7);
    sampler.keep_candidates(2);
    let token = sampler.sample(&mut L.to_vec(), None, &[], 0).unwrap();
    let last = sampler.last();
    assert_eq!(last.token, token);
    let weights = [14.4f64.exp(), 13.6f64.exp(), 11.4f64.exp()];
    let p = weights.map(|w| (w / weights.iter().sum::<f64>()) as f32);
    assert_eq!(ids(&last.candidates), [3, 6]);
    assert_close(&[last.candidates[0].1, last.candidates[1].1], &[14.4, 13.6], "logits");
    assert_close(&[last.candidates[0].2, last.candidates[1].2], &p[..2], "probabilities");
    let at = [3, 6, 8].iter().position(|id| *id == token).unwrap();
    assert_close(&[last.prob, last.logprob], &[p[at], p[at].ln()], "the token's own");
    // Candidates of a row that no step cut.
    let wide = row(9000, 4, 1.0);
    let mut sampler = self::sampler("", wide.len(), 7);
    sampler.keep_candidates(5);
    sampler.sample(&mut wide.clone(), None, &[], 0).unwrap();
    let mut order: Vec<Token> = (0..9000).collect();
    order.sort_by(|a, b| wide[*b as usize].total_cmp(&wide[*a as usize]));
    assert_eq!(ids(&sampler.last().candidates), order[..5]);
    // More ties than any list holds.
    sampler.sample(&mut [0.5; 9000], None, &[], 0).unwrap();
    assert_eq!(ids(&sampler.last().candidates), [0, 1, 2, 3, 4]);
}

/// The temperature by its definition, of the logits of all candidates.
fn dynamic_temperature(logits: &[f32], temperature: f64, range: f64, exponent: f64) -> f64 {
    let best = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let weights: Vec<f64> = logits.iter().map(|x| (f64::from(*x) - f64::from(best)).exp()).collect();
    let total: f64 = weights.iter().sum();
    let entropy: f64 = weights.iter().map(|w| w / total).filter(|p| *p > 0.0).map(|p| -p * p.ln()).sum();
    let low = (temperature - range).max(0.0);
    low + (temperature + range - low) * (entropy / (logits.len() as f64).ln()).powf(exponent)
}

/// The temperature that a chain ends with, told by the best candidate's logit.
fn temperature_of(chain: &str, row: &[f32]) -> f64 {
    let best = row.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    f64::from(best) / f64::from(left(chain, row, &[])[0].1)
}

#[test]
fn dynamic_temperature_follows_the_spread() {
    for (chain, expected) in [("dynatemp=1,0.5,1", 1.120293), ("dynatemp=0.8,0.5,1.5", 0.788535)] {
        assert!((temperature_of(chain, &L) - expected).abs() < 2e-6, "{chain}");
    }
    // Rows that stay in place and rows that a truncation left in a list.
    for n in [2, 37, 3000, 40_000] {
        for (kind, deviation) in [(7, 0.1), (8, 1.0), (9, 5.0)] {
            let row = row(n, kind, deviation);
            let mut order: Vec<f32> = row.clone();
            order.sort_unstable_by(|a, b| b.total_cmp(a));
            for (t, range, exponent) in [(1.0, 0.5, 1.0), (0.7, 1.25, 2.5), (0.5, 0.5, 0.0), (2.0, 0.5, 0.3)] {
                for k in [n, 2, 30, 5000] {
                    let chain = format!("top_k={k};dynatemp={t},{range},{exponent}");
                    let expected = dynamic_temperature(&order[..k.min(n)], t, range, exponent);
                    let got = temperature_of(&chain, &row);
                    assert!((got - expected).abs() < 1e-6 * expected, "{chain} of {n}: {got}, {expected}");
                }
            }
        }
    }
    let mut holes = row(2000, 3, 1.0);
    let kept: Vec<f32> = holes.iter().copied().step_by(2).collect();
    holes.iter_mut().skip(1).step_by(2).for_each(|x| *x = f32::NEG_INFINITY);
    let expected = dynamic_temperature(&kept, 1.0, 0.9, 1.0);
    assert!((temperature_of("dynatemp=1,0.9,1", &holes) - expected).abs() < 1e-6 * expected);
}

#[test]
fn dynamic_temperature_at_its_edges() {
    let ramp = [0.1, 0.2, 0.3, 0.4];
    let one = [0.0, 0.0, 0.0, 1.0];
    for (chain, expected) in [
        ("dynatemp=1,0,1", ramp),
        ("dynatemp=0,0,1", one),
        ("dynatemp=0,-2,1", one),
        ("top_k=1;dynatemp=3,1,1", one),
        // A temperature that comes out at 0 or below.
        ("dynatemp=-1,0.5,2", one),
    ] {
        assert_close(&probabilities(chain, &ramp, &[]), &expected, chain);
    }
    let huge = [0.0, 1e30, 0.0, 0.0];
    assert_eq!(ids(&left("dynatemp=1,1,1", &huge, &[])), [1]);
    assert_eq!(ids(&left("dynatemp=1,1,-1", &huge, &[])), [1], "nothing to a power below 0 is nothing");
    // Evenly spread candidates get the highest temperature.
    assert_eq!(left("dynatemp=1,0.5,1", &[3.0; 5], &[])[0].1, 2.0);
    assert_eq!(left("dynatemp=1,0.5,1;temp=0.5", &[3.0; 5], &[])[0].1, 4.0);
}

/// What stands in for a device: the first part of the chain on the host, without its temperatures, which the logits
/// that are handed over do not hold.
fn first_part(steps: &[&str], row: &[f32], history: &[Token], legal: Option<Legal<'_>>) -> Vec<(Token, f32)> {
    let steps: Vec<&str> = steps.iter().copied().filter(|step| !step.starts_with("temp")).collect();
    let mut first = sampler(&steps.join(";"), row.len(), 0);
    history.iter().for_each(|&token| first.accept(token));
    first.keep_candidates(2048);
    first.sample(&mut row.to_vec(), legal, &[7], 0).unwrap();
    first.last().candidates.iter().map(|one| (one.0, one.1)).collect()
}

/// The rest of a chain over what the first part left gives the token of the whole chain.
#[test]
fn a_chain_is_taken_up_in_the_middle() {
    let n = 9000;
    let chains = [
        "trie;top_k=40;penalties=2000,1.3,0.2,0.1;temp=0.8",
        "logit_bias=4:3,9:-inf;trie;top_k=1000;temp=0.7;top_p=0.9;penalties=1500,0.8,0,0.4;min_p=0.05;temp=1.5",
        "temp=2;trie;top_k=60;logit_bias=8:1,11:-2;top_p=0.8,3;dynatemp=1,0.9,1.2;penalties=64,1.1,0.3,0",
        "trie;top_k=300;temp=0.5;min_p=0.001;greedy",
        "top_k=700;penalties=1025,1.2,0,0;trie;temp=0.9",
        "top_k=5;temp=0.9;trie",
    ];
    for kind in 0..30 {
        let row = row(n, kind, 2.0);
        let history: Vec<Token> = (0..1800).map(|i| (random::bits(8, i, kind) % n as u32) as Token).collect();
        let mut legal: Vec<Token> = (0..600).map(|i| (random::bits(9, i, kind) % n as u32) as Token).collect();
        legal.sort_unstable();
        legal.dedup();
        for chain in chains {
            let steps: Vec<&str> = chain.split(';').collect();
            let bound = steps.iter().position(|step| step.starts_with("top_k")).unwrap() + 1;
            for cut in bound..=steps.len() {
                // What the stand-in cannot do: steps for which it matters that a temperature stands in front.
                let mut behind = steps[..cut].iter().skip_while(|step| !step.starts_with("temp"));
                let plain = behind.all(|step| ["temp", "top_k", "trie"].iter().any(|name| step.starts_with(name)));
                if !plain || steps[..cut].iter().any(|step| step.starts_with("dynatemp") || *step == "greedy") {
                    continue;
                }
                for mask in [None, Some(false), Some(true)] {
                    // The ban stands in front.
                    if mask == Some(true) && !sampler(chain, n, 0).spec(&[7]).greedy_from(cut + 1) {
                        continue;
                    }
                    let mask = mask.map(|greedy| Legal::list(&legal, greedy));
                    let given = mask.filter(|mask| mask.greedy || steps[..cut].contains(&"trie"));
                    let mut left = first_part(&steps[..cut], &row, &history, given);
                    if kind % 2 == 0 {
                        left.reverse();
                    }
                    let mut whole = sampler(chain, n, u64::from(kind));
                    let mut rest = sampler(chain, n, u64::from(kind));
                    whole.keep_candidates(20);
                    rest.keep_candidates(20);
                    for &token in &history {
                        whole.accept(token);
                        rest.accept(token);
                    }
                    let to_go = rest.spec(&[7]).steps.len() - 1 - cut;
                    for position in 0..4 {
                        let expected = whole.sample(&mut row.clone(), mask, &[7], position);
                        let got = rest.resume(to_go, left.iter().copied(), mask, position);
                        assert_eq!(got, expected, "{chain} from {cut} at {position}");
                        assert_eq!(rest.last(), whole.last(), "{chain} from {cut}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_taken_up() {
    let mut sampler = sampler("top_k=4;penalties=2000,1.1,0,0", 10, 1);
    assert_eq!(sampler.spec(&[]).steps.len(), 3);
    assert_eq!(sampler.resume(1, [(3, 1.0)], None, 0), Ok(3));
    assert!(sampler.resume(4, [(3, 1.0)], None, 0).is_err());
    assert!(sampler.resume(1, [], None, 0).is_err());
    assert!(sampler.resume(1, (0..5000).map(|token| (token, 1.0)), None, 0).is_err());
    assert_eq!(sampler.resume(1, [(3, f32::NAN)], None, 0), Err(Error::NanLogits { row: 0, token: 3 }));
    let legal = Legal::list(&[3, 10], false);
    assert!(sampler.resume(3, [(3, 1.0)], Some(legal), 0).is_err());
}

/// Which part of a chain a device takes that can follow so many steps and hand over so many candidates.
#[test]
fn a_chain_is_split_where_the_candidates_are_few() {
    let spec = |chain: &str| sampler(chain, 100, 5).spec(&[2]);
    let text = "penalties=64,1.1,0,0;top_k=40;temp=0.7;top_p=0.9;penalties=2000,1.2,0,0;min_p=0.1";
    let whole = spec(text);
    assert_eq!(whole.split(whole.steps.len(), 10), Some((whole.clone(), 8)));
    // The ban and the mask's place are steps as well.
    let (part, taken) = whole.split(6, 1000).unwrap();
    assert_eq!((taken, part.seed, part.candidates), (6, 5, 0));
    assert_eq!(part.steps[..6], whole.steps[..6]);
    assert_eq!(part.steps[6..], [ChainStep::HandOver(40)]);
    assert_eq!(whole.split(6, 39), None, "more than can be handed over");
    assert_eq!(whole.split(3, 1000), None, "nothing bounds the candidates");
    let dynamic = spec("top_k=40;dynatemp=1,0.5,1;top_k=9;penalties=3,1.1,0,0");
    let (part, taken) = dynamic.split(5, 1000).unwrap();
    assert_eq!((taken, part.steps.last()), (3, Some(&ChainStep::HandOver(40))));
    assert_eq!(dynamic.split(6, 1000).unwrap().1, 6);
    assert_eq!(spec("dynatemp=1,0.5,1;top_k=9;penalties=3,1.1,0,0").split(4, 1000), None);
    assert!(whole.greedy_from(7) && !whole.greedy_from(6));
}

#[test]
fn a_chain_in_words() {
    let spec = sampler("top_k=40;top_p=0.9;penalties=2000,1.2,0,0", 100, 5).spec(&[2]);
    assert_eq!(spec.describe(4), "+trie +top_k +top_p -penalties -dist");
    assert_eq!(spec.describe(5), "+trie +top_k +top_p +penalties +dist");
    assert_eq!(spec.describe(0), "-trie -top_k -top_p -penalties -dist");
    assert_eq!(sampler("logit_bias=1:1;greedy", 100, 5).spec(&[]).describe(3), "+logit_bias +trie +greedy");
}
