//! DRY on the device as on the host: over rows, lists and masks, for repetitions of every length and breakers of
//! several tokens.

use super::rig::{Bits, Case, List, Mask, Rig, assert_same, cases, check, devices, rows};
use crate::testing::gguf_keys::Keys;
use elizainference::Token;
use elizainference::backend::gpu::sample::SampleSpec;
use elizainference::sampling::{Sampler, random};
use elizainference::vocab::Vocab;
use std::sync::Arc;

const SETTINGS: [(&str, Mask, bool); 10] = [
    ("dry=0.8,1.75,1,64,none", Mask::None, false),
    ("dry=3,1.3,0,1024,none;top_k=40;temp=0.8", Mask::None, false),
    ("top_k=60;dry=2,1.5,1,200,none;temp=0.9", Mask::None, false),
    ("temp=0.7;dry=1,1.2,-3,300,none;top_p=0.9", Mask::None, false),
    ("penalties=64,1.2,0,0;dry=-1,2,1,100,none;logit_bias=3:1;min_p=0.02", Mask::None, false),
    ("top_p=0.95;dry=1.5,1,1,500,none;top_k=5000", Mask::None, false),
    ("dry=2,1.75,1,64,none;greedy", Mask::None, false),
    ("dry=2,1.75,1,64,none;top_k=20", List(30), false),
    ("temp=0.5;dry=2,1.75,0,64,none", Bits, true),
    ("top_k=200;trie;dry=2,1.75,0,64,none", Bits, false),
];

#[test]
fn rows_lists_and_masks() {
    check(&cases(&rows(513), &SETTINGS, 1), 40);
    check(&cases(&rows(9000)[..4], &SETTINGS, 1), 40);
}

/// 3 `a`, 4 `b`, 5 `xa`, 6 `yab`, 7 `c`, 8 `d`.
fn vocab() -> Arc<Vocab> {
    let keys = Keys::default()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &["<unk>", "<s>", "</s>", "a", "b", "xa", "yab", "c", "d"])
        .integers("tokenizer.ggml.token_type", &[2, 3, 3, 1, 1, 1, 1, 1, 1])
        .floats("tokenizer.ggml.scores", &[0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0])
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .bool("tokenizer.ggml.add_space_prefix", false);
    Arc::new(Vocab::from_gguf(&keys.file()).unwrap())
}

#[test]
fn repetitions_of_every_length_end_at_breakers() {
    const N: usize = 9;
    let vocab = vocab();
    for gpu in devices() {
        let mut rig = Rig::new(gpu, N, 1);
        let mut lost = 0;
        for turn in 0..400u32 {
            let draw = |of: u32, below: u32| random::bits(31, turn, of) % below;
            let breakers = ["none", "ab", "c", "ab,d", "xab,c,bb", "aba"][draw(0, 6) as usize];
            let (allowed, last_n) = (draw(1, 4), [3, 17, 40, 64, 1000][draw(2, 5) as usize]);
            let chain = format!("dry=0.9,1.4,{allowed},{last_n},{breakers}").parse().unwrap();
            let mut host = Sampler::with_vocab(&chain, N, 5, &vocab).unwrap();
            host.keep_candidates(N);
            let kinds = 1 + draw(3, 6);
            let history: Vec<Token> = (0..draw(4, 90)).map(|i| 3 + draw(100 + i, kinds) as Token).collect();
            history.iter().for_each(|&token| host.accept(token));
            let row: Arc<Vec<f32>> = Arc::new((0..N as u32).map(|i| draw(10 + i, 8) as f32 / 4.0).collect());
            rig.program.set_chain(0, &SampleSpec { candidates: N as u32, ..host.spec(&[]) }).unwrap();
            rig.program.restart(0, turn, &history).unwrap();
            rig.write(0, &row);
            rig.submit(&[0]);
            let token = host.sample(&mut row.to_vec(), None, &[], turn);
            let case = Case {
                chain: format!("dry=0.9,1.4,{allowed},{last_n},{breakers}"),
                row: row.clone(),
                position: turn,
                candidates: N as u32,
                name: format!("{history:?}"),
                ..Case::default()
            };
            lost += host.last().candidates.iter().filter(|one| one.1 != row[one.0 as usize]).count();
            assert_same(&case, &rig.read()[0], &(token, host.last().clone()));
        }
        assert!(lost > 400, "{lost}");
    }
}
