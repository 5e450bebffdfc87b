//! Parameters, the chain that they make, and what a file says of them.

use elizainference::gguf::File;
use elizainference::sampling::{Chain, Dry, Generator, Kind, Mirostat, Params, Sampler, Sequence};

#[test]
fn neutral_parameters_leave_no_step() {
    let neutral = Params { top_k: 0, top_p: 1.0, min_p: 0.0, temperature: 1.0, repeat_last_n: 64, ..Params::default() };
    assert_eq!(neutral.chain(), Chain::default());
    let full =
        Params { logit_bias: vec![(1, -1.0)], repeat_penalty: 1.1, min_keep: 2, temperature: 0.0, ..Params::default() };
    let text = "logit_bias=1:-1;penalties=64,1.1,0,0;top_k=40;top_p=0.95,2;min_p=0.05,2;temp=0";
    assert_eq!(full.chain().to_string(), text);
    let dynamic = Params { dynatemp_range: 0.5, top_k: 0, top_p: 1.0, min_p: 0.0, ..Params::default() };
    assert_eq!(dynamic.chain().to_string(), "dynatemp=0.8,0.5,1");
    let wrong = Params { dynatemp_range: f32::NAN, ..Params::default() };
    assert!(Sampler::new(&wrong.chain(), 10, 0).is_err());
    let wrong = Params { top_p: f32::NAN, ..Params::default() };
    assert!(Sampler::new(&wrong.chain(), 10, 0).is_err());
}

/// A GGUF file without tensors that holds these metadata entries: (key, type, bytes of the value).
fn file(entries: &[(&str, u32, &[u8])]) -> File {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend((entries.len() as u64).to_le_bytes());
    for (key, kind, value) in entries {
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(*value);
    }
    File::from_bytes(bytes).unwrap()
}

#[test]
fn a_model_brings_its_defaults() {
    let (u32_type, i32_type, f32_type) = (4, 5, 6);
    let mut params = Params::default();
    let unused = params.apply_metadata(&file(&[
        ("general.sampling.top_k", i32_type, &20i32.to_le_bytes()),
        ("general.sampling.top_p", f32_type, &0.8f32.to_le_bytes()),
        ("general.sampling.temp", f32_type, &0.7f32.to_le_bytes()),
        ("general.sampling.penalty_repeat", f32_type, &1.05f32.to_le_bytes()),
        ("general.sampling.penalty_last_n", i32_type, &256i32.to_le_bytes()),
    ]));
    assert_eq!(unused, Vec::<String>::new());
    let expected = Params {
        top_k: 20,
        top_p: 0.8,
        temperature: 0.7,
        repeat_penalty: 1.05,
        repeat_last_n: 256,
        ..Params::default()
    };
    assert_eq!(params, expected);
    let unused = params.apply_metadata(&file(&[
        ("general.sampling.top_k", u32_type, &u32::MAX.to_le_bytes()),
        ("general.sampling.temp", f32_type, &f32::NAN.to_le_bytes()),
        ("general.sampling.min_p", i32_type, &1i32.to_le_bytes()),
        ("general.sampling.penalty_repeat", f32_type, &0f32.to_le_bytes()),
        ("general.sampling.mirostat", i32_type, &3i32.to_le_bytes()),
        ("general.sampling.xtc_probability", f32_type, &f32::INFINITY.to_le_bytes()),
        ("general.sampling.sequence", f32_type, &1f32.to_le_bytes()),
    ]));
    assert_eq!(unused.len(), 7, "{unused:?}");
    assert!(unused.iter().all(|text| text.contains("general.sampling.")));
    assert_eq!(params, expected);
}

#[test]
fn a_model_brings_samplers_and_their_order() {
    let (i32_type, f32_type, string_type) = (5, 6, 8);
    let text = "temperature;XTC;top-k;warp;Nucleus";
    let sequence = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut params = Params::default();
    let unused = params.apply_metadata(&file(&[
        ("general.sampling.sequence", string_type, &sequence),
        ("general.sampling.xtc_probability", f32_type, &0.5f32.to_le_bytes()),
        ("general.sampling.xtc_threshold", f32_type, &0.2f32.to_le_bytes()),
        ("general.sampling.mirostat_tau", f32_type, &4f32.to_le_bytes()),
        ("general.sampling.mirostat_eta", f32_type, &0.25f32.to_le_bytes()),
    ]));
    assert_eq!(unused, ["`warp` in general.sampling.sequence is ignored: no such sampler"]);
    assert_eq!(params.chain().to_string(), "temp=0.8;xtc=0.5,0.2;top_k=40;top_p=0.95");
    let unused = params.apply_metadata(&file(&[("general.sampling.mirostat", i32_type, &2i32.to_le_bytes())]));
    assert_eq!((unused.len(), params.mirostat), (0, Mirostat::Second));
    assert_eq!(params.chain().to_string(), "temp=0.8;mirostat_v2=4,0.25");
}

#[test]
fn every_sampler_has_its_place() {
    let params = Params {
        logit_bias: vec![(1, -1.0)],
        repeat_penalty: 1.1,
        dry: Dry { multiplier: 0.8, ..Dry::default() },
        top_n_sigma: 1.5,
        typical_p: 0.9,
        xtc_probability: 0.5,
        dynatemp_range: 0.25,
        adaptive_target: 0.3,
        min_keep: 2,
        generator: Generator::Mt19937,
        ..Params::default()
    };
    let text = "rng=mt19937;logit_bias=1:-1;penalties=64,1.1,0,0;dry=0.8,1.75,2,64;top_n_sigma=1.5;top_k=40;\
                typ_p=0.9,2;top_p=0.95,2;min_p=0.05,2;xtc=0.5,0.1,2;dynatemp=0.8,0.25,1;adaptive_p=0.3,0.9";
    assert_eq!(params.chain().to_string(), text);
    let first = Params { mirostat: Mirostat::First, ..params.clone() };
    assert_eq!(first.chain().to_string(), "rng=mt19937;logit_bias=1:-1;dynatemp=0.8,0.25,1;mirostat=5,0.1");
    let order =
        |sequence: &str| Params { sequence: sequence.parse().unwrap(), ..Params::default() }.chain().to_string();
    assert_eq!(order(""), "");
    assert_eq!(order("min_p;infill;top_k;TOP-K;temp"), "min_p=0.05;infill;top_k=40;top_k=40;temp=0.8");
    assert_eq!(order("adaptive_p;min_p"), "min_p=0.05;adaptive_p=-1,0.9", "it is always the last");
}

#[test]
fn orders_are_names_or_letters() {
    let default = Sequence::default();
    assert_eq!(default.to_string(), "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature");
    assert_eq!(default.to_string().parse::<Sequence>().unwrap(), default);
    assert_eq!(Sequence::of_letters("edskypmxt").unwrap(), default);
    for (name, kind) in [
        ("top-k", Kind::TopK),
        ("topk", Kind::TopK),
        ("nucleus", Kind::TopP),
        ("temp", Kind::Temperature),
        ("typ", Kind::Typical),
        ("typical_p", Kind::Typical),
        ("top_n_sigma", Kind::TopNSigma),
        ("Adaptive-P", Kind::AdaptiveP),
    ] {
        assert_eq!(name.parse::<Sequence>().unwrap().kinds, [kind], "{name}");
    }
    let error = "top_k;top_q".parse::<Sequence>().unwrap_err().to_string();
    assert!(error.contains("unknown `top_q`; known are penalties, dry"), "{error}");
    let error = Sequence::of_letters("kz").unwrap_err().to_string();
    assert!(error.contains("unknown letter `z`; known are edskypmxtia"), "{error}");
}

#[test]
fn l12_a_window_that_no_chain_takes_is_ignored_at_load() {
    let (i32_type, f32_type) = (5, 6);
    let params = |window: i32| {
        let mut params = Params::default();
        let unused = params.apply_metadata(&file(&[
            ("general.sampling.penalty_repeat", f32_type, &1.1f32.to_le_bytes()),
            ("general.sampling.penalty_last_n", i32_type, &window.to_le_bytes()),
        ]));
        assert!(Sampler::new(&params.chain(), 8, 0).is_ok(), "every generation would fail");
        (params.repeat_last_n, unused)
    };
    assert_eq!(params(1 << 20), (1 << 20, vec![]));
    assert_eq!(params(-1), (-1, vec![]));
    let (window, unused) = params(2_000_000);
    assert_eq!(window, Params::default().repeat_last_n);
    assert_eq!(unused, ["general.sampling.penalty_last_n is ignored: 2000000 is above 1048576"]);
}
