//! Rows of whole texts, against a slow forward pass and against logits.

use crate::testing::encoders::{CONTEXT, Encoder, WIDTH};
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::NEVER;
use crate::testing::reference::{EXACT, Reference};
use crate::testing::rng::Stream;
use crate::testing::{fixture, fixture_folder, vocabulary};
use elizainference::engine::{EmbedOptions, Engine, EngineOptions, KvType, Pooling, SlotId, open_model};
use elizainference::gguf::File;
use elizainference::{Error, Token};
use std::path::Path;
use std::sync::atomic::AtomicBool;

fn open(path: &Path, context: u32) -> Engine {
    let options = EngineOptions { context, slots: 2, threads: 2, kv_type: KvType::F32, ..EngineOptions::default() };
    Engine::new(open_model(path, &options, None).unwrap(), &options).unwrap()
}

fn text(n: usize, seed: u64) -> Vec<Token> {
    let stream = Stream::new(seed, "texts to embed");
    (0..n as u64).map(|i| stream.below(i, vocabulary::SIZE as u64) as Token).collect()
}

fn plain(pooling: Pooling) -> EmbedOptions {
    EmbedOptions { pooling: Some(pooling), ..EmbedOptions::default() }
}

#[track_caller]
fn near(got: &[f32], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    let off = got.iter().zip(expected).map(|(&x, y)| (f64::from(x) - y).abs()).fold(0.0, f64::max);
    assert!(off < 2e-4, "{off}");
}

fn mean(rows: &[Vec<f64>]) -> Vec<f64> {
    (0..WIDTH).map(|i| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64).collect()
}

/// Texts that share a pass, that take one alone, and one that is longer than the passes of a prompt.
#[test]
fn rows_are_those_of_the_equations() {
    for kind in Encoder::ALL {
        let (oracle, mut engine) = (kind.oracle(), open(&kind.write(&fixture_folder()), CONTEXT as u32));
        let lengths = [1, 7, 64, 65, 300, 100, 530, 3];
        let texts: Vec<_> = lengths.into_iter().enumerate().map(|(i, n)| text(n, i as u64)).collect();
        let rows: Vec<_> = texts.iter().map(|text| oracle.rows(text)).collect();
        for pooling in [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last] {
            let made = engine.embed(&texts, &plain(pooling), &NEVER).unwrap();
            assert_eq!(made.width, WIDTH);
            for (got, rows) in made.texts.iter().zip(&rows) {
                let expected = match pooling {
                    Pooling::None => rows.concat(),
                    Pooling::Mean => mean(rows),
                    Pooling::Cls => rows[0].clone(),
                    _ => rows[rows.len() - 1].clone(),
                };
                near(got, &expected);
            }
        }
        let before = engine.stats().forward_passes;
        engine.embed(&texts, &plain(Pooling::Cls), &NEVER).unwrap();
        assert_eq!(engine.stats().forward_passes - before, 4, "{kind:?}: 437 tokens, 100, 530, 3");
    }
}

#[test]
fn the_file_names_the_pooling() {
    for (kind, pooling) in [(Encoder::Bert, Pooling::Cls), (Encoder::Jina, Pooling::Mean)] {
        let mut engine = open(&kind.write(&fixture_folder()), 64);
        let texts = [text(9, 1), text(3, 2)];
        let named = engine.embed(&texts, &EmbedOptions::default(), &NEVER).unwrap();
        assert_eq!(named, engine.embed(&texts, &plain(pooling), &NEVER).unwrap());
    }
}

#[test]
fn a_text_gets_the_same_row_in_any_company() {
    let mut engine = open(&Encoder::Modern.write(&fixture_folder()), 256);
    let texts: Vec<_> = (0..40).map(|i| text(1 + i % 23, i as u64)).collect();
    let together = engine.embed(&texts, &plain(Pooling::Mean), &NEVER).unwrap();
    for (text, row) in texts.iter().zip(&together.texts) {
        let alone = engine.embed(std::slice::from_ref(text), &plain(Pooling::Mean), &NEVER).unwrap();
        let row: Vec<f64> = row.iter().map(|&x| x.into()).collect();
        near(&alone.texts[0], &row);
    }
}

#[test]
fn a_classifier_scores_texts() {
    let (oracle, mut engine) = (Encoder::Bert.oracle(), open(&Encoder::Bert.write(&fixture_folder()), 64));
    let texts: Vec<_> = (0..19).map(|i| text(1 + i, i as u64)).collect();
    let options = EmbedOptions { normalize: true, ..plain(Pooling::Rank) };
    let made = engine.embed(&texts, &options, &NEVER).unwrap();
    assert_eq!(made.width, 2);
    for (text, scores) in texts.iter().zip(&made.texts) {
        near(scores, &oracle.scores(&oracle.rows(text)));
    }
    let error = open(&Encoder::Jina.write(&fixture_folder()), 64).embed(&texts, &options, &NEVER).unwrap_err();
    assert!(matches!(&error, Error::InvalidArgument(why) if why.contains("classifier")), "{error}");
}

#[test]
fn rows_are_cut_and_then_normalised() {
    let mut engine = open(&Encoder::Bert.write(&fixture_folder()), 64);
    let texts = [text(5, 1), text(6, 2)];
    for pooling in [Pooling::Mean, Pooling::None] {
        let whole = engine.embed(&texts, &plain(pooling), &NEVER).unwrap();
        let options = EmbedOptions { normalize: true, dimensions: 24, ..plain(pooling) };
        let cut = engine.embed(&texts, &options, &NEVER).unwrap();
        assert_eq!(cut.width, 24);
        for (whole, cut) in whole.texts.iter().zip(&cut.texts) {
            assert_eq!(whole.len() / WIDTH, cut.len() / 24);
            for (whole, cut) in whole.chunks_exact(WIDTH).zip(cut.chunks_exact(24)) {
                let length = whole[..24].iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
                let expected: Vec<f64> = whole[..24].iter().map(|&x| f64::from(x) / length).collect();
                near(cut, &expected);
            }
        }
    }
}

/// The output matrix of a model that continues texts makes logits of its rows.
#[test]
fn rows_of_a_decoder_are_those_its_logits_are_made_of() {
    let path = fixture(Kind::Qwen3, Weights::F32);
    let file = File::open(&path).unwrap();
    let (reference, mut engine) = (Reference::new(&file), open(&path, 1024));
    // The second takes several passes.
    let texts = [text(20, 1), text(700, 2)];
    let made = engine.embed(&texts, &plain(Pooling::None), &NEVER).unwrap();
    let info = file.tensor("token_embd.weight").unwrap();
    let (bytes, width) = (file.read(info).unwrap(), made.width);
    let table: Vec<f64> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).into()).collect();
    for (text, rows) in texts.iter().zip(&made.texts) {
        let logits = reference.logits(text, EXACT);
        for at in [0, text.len() / 2, text.len() - 1] {
            let row = &rows[at * width..(at + 1) * width];
            let product = |w: &[f64]| w.iter().zip(row).map(|(w, &x)| w * f64::from(x)).sum::<f64>() as f32;
            near(&table.chunks_exact(width).map(product).collect::<Vec<_>>(), &logits[at]);
        }
    }
    // Slots go on afterwards.
    engine.prefill(SlotId::default(), &texts[0], &NEVER).unwrap();
    engine.head(SlotId::default()).unwrap();
}

/// A model whose layers keep a state: each text begins without one, and a long one takes its own from pass to pass.
#[test]
fn rows_of_a_model_with_states_are_those_its_logits_are_made_of() {
    let path = fixture(Kind::Qwen35, Weights::F32);
    let file = File::open(&path).unwrap();
    let texts = [text(20, 1), text(3, 2), text(60, 3), text(1, 4)];
    let mut engine = open(&path, 256);
    let together = engine.embed(&texts, &plain(Pooling::Last), &NEVER).unwrap();
    let options = EngineOptions { context: 256, slots: 1, threads: 2, n_batch: 16, ..EngineOptions::default() };
    let options = EngineOptions { kv_type: KvType::F32, ..options };
    let mut small = Engine::new(open_model(&path, &options, None).unwrap(), &options).unwrap();
    let in_passes = small.embed(&texts, &plain(Pooling::Last), &NEVER).unwrap();
    let reference = Reference::new(&file);
    let name = if file.tensor("output.weight").is_some() { "output.weight" } else { "token_embd.weight" };
    let bytes = file.read(file.tensor(name).unwrap()).unwrap();
    let table: Vec<f64> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).into()).collect();
    for (i, text) in texts.iter().enumerate() {
        let logits = reference.logits(text, EXACT).pop().unwrap();
        for row in [&together.texts[i], &in_passes.texts[i]] {
            let product = |w: &[f64]| w.iter().zip(row).map(|(w, &x)| w * f64::from(x)).sum::<f64>() as f32;
            near(&table.chunks_exact(row.len()).map(product).collect::<Vec<_>>(), &logits);
        }
    }
    // Slots go on as before.
    small.prefill(SlotId::default(), &texts[2], &NEVER).unwrap();
    small.embed(&texts, &plain(Pooling::Last), &NEVER).unwrap();
    small.decode(SlotId::default(), 5, &NEVER).unwrap();
}

#[test]
fn what_cannot_be_embedded_is_refused() {
    let path = Encoder::Bert.write(&fixture_folder());
    let mut engine = open(&path, 64);
    let wrong = |engine: &mut Engine, texts: &[Vec<Token>], options: &EmbedOptions, part: &str| {
        let error = engine.embed(texts, options, &NEVER).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    let mean = plain(Pooling::Mean);
    wrong(&mut engine, &[text(3, 1), vec![]], &mean, "Text 1 has 0 tokens");
    wrong(&mut engine, &[text(65, 1)], &mean, "Text 0 has 65 tokens (1 to 64 are possible)");
    wrong(&mut engine, &[vec![1, 512]], &mean, "Token 512");
    wrong(&mut engine, &[text(3, 1)], &EmbedOptions { dimensions: 65, ..mean }, "65 dimensions of rows of 64");
    let cancelled = engine.embed(&[text(3, 1)], &mean, &AtomicBool::new(true)).unwrap_err();
    assert!(matches!(cancelled, Error::Cancelled));
    assert!(engine.embed(&[], &mean, &NEVER).unwrap().texts.is_empty());
    // The context is that of the file, whatever is asked for.
    assert_eq!(open(&path, 4096).longest_text(), CONTEXT);
    let slot = SlotId::default();
    let error = engine.prefill(slot, &[1, 2], &NEVER).unwrap_err().to_string();
    assert!(error.contains("gives embeddings"), "{error}");
    assert_eq!(engine.embed(&[text(64, 1)], &mean, &NEVER).unwrap().texts[0].len(), WIDTH);
}
