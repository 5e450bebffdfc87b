//! Guesses of a block of the model's own file that predicts further tokens (NextN, MTP).
//!
//! The block reads each token beside the model's hidden row after the token before, so it follows the model's passes:
//! it evaluates the tokens whose rows the last pass left. What it guesses goes on from its own hidden rows. Where rows
//! are missing (a prompt that another slot had, a slot that was saved) it does without those tokens: its guesses may be
//! worse, and no token of the output is another one.

use super::draft::Ask;
use crate::engine::{Engine, EngineOptions, HiddenRows, SlotId};
use crate::model::Model;
use crate::{Result, Token, reserve};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The engine of the block, which has the slots that the model's has.
pub(crate) struct NextnBlock {
    engine: Engine,
    /// Of each slot the positions of the hidden rows that its tokens came with: each token is the one after.
    positions: Vec<Vec<usize>>,
}

impl NextnBlock {
    /// Opens the block of an engine's model, with these options of a draft model.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open(
        block: Arc<Model>,
        of: &mut Engine,
        options: &EngineOptions,
        mut go_on: impl FnMut() -> bool + Send,
    ) -> Result<NextnBlock> {
        let engine = Engine::open(block, options, Some(&mut |_| go_on()))?;
        of.keep_hidden_rows()?;
        Ok(NextnBlock { positions: vec![Vec::new(); engine.slots()], engine })
    }

    /// Evaluates what the last pass left rows for: the tokens after them of this text, or of what the slot has where
    /// the pass was another slot's.
    ///
    /// # Errors
    /// As [`Engine::append`].
    pub fn follow(&mut self, of: &Engine, slot: SlotId, text: &[Token], cancel: &AtomicBool) -> Result<()> {
        let Some(pass) = of.hidden_rows() else { return Ok(()) };
        let text = if pass.slot == slot { text } else { of.tokens(pass.slot) };
        let rows = self.lacking(pass, text, text.len());
        if rows.is_empty() {
            return Ok(());
        }
        let tokens = self.take(pass, text, rows)?;
        self.engine.append(pass.slot, tokens, cancel)
    }

    /// Guesses what the block says follows the text. None where the context is full, or the row before the last token
    /// is not there.
    ///
    /// # Errors
    /// As [`Engine::next_logits`].
    pub fn draft(&mut self, (of, slot): (&Engine, SlotId), mut ask: Ask<'_>) -> Result<()> {
        let Some(pass) = of.hidden_rows().filter(|pass| pass.slot == slot) else { return Ok(()) };
        // The last token gives the logits, so it is evaluated also where it was before.
        let (text, cancel) = (ask.text, ask.cancel);
        let rows = self.lacking(pass, text, text.len().saturating_sub(1));
        let full = self.engine.position(slot) + rows.len() + ask.most > self.engine.context();
        if full || rows.is_empty() || rows.end + 1 != text.len() {
            return Ok(());
        }
        let mut last;
        let mut new = self.take(pass, text, rows)?;
        while let Some(token) = ask.guess(self.engine.next_logits(slot, new, &[], cancel)?) {
            last = [token];
            new = &last;
        }
        Ok(())
    }

    /// The positions of a pass whose rows its slot lacks here, of those after which the text has a token. The slot
    /// keeps what it has of the first `kept` tokens of the text.
    fn lacking(&mut self, pass: &HiddenRows, text: &[Token], kept: usize) -> Range<usize> {
        let positions = &mut self.positions[pass.slot.number() as usize];
        let known = positions.iter().zip(self.engine.tokens(pass.slot));
        let same = known.take_while(|&(&at, token)| at + 1 < kept && text.get(at + 1) == Some(token)).count();
        positions.truncate(same);
        self.engine.truncate(pass.slot, same);
        let of_text = text.get(pass.first..).unwrap_or_default();
        let valid = pass.tokens.iter().zip(of_text).take_while(|(a, b)| a == b).count();
        let first = positions.last().map_or(0, |at| at + 1).max(pass.first);
        first..(pass.first + valid).min(text.len().saturating_sub(1)).max(first)
    }

    /// Gives the engine the rows of these positions; returns the tokens after them, which are to be evaluated next.
    fn take<'a>(&mut self, pass: &HiddenRows, text: &'a [Token], rows: Range<usize>) -> Result<&'a [Token]> {
        let positions = &mut self.positions[pass.slot.number() as usize];
        if positions.capacity() == 0 {
            reserve::reserve(positions, self.engine.context(), "positions of a slot")?;
        }
        positions.extend(rows.clone());
        let width = self.engine.model().hparams().n_embd;
        let of_pass = (rows.start - pass.first) * width..(rows.end - pass.first) * width;
        self.engine.put_hidden_rows(&pass.rows[of_pass])?;
        Ok(&text[rows.start + 1..rows.end + 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::open_drafted_model;
    use crate::gguf::{WriteValue, Writer};
    use crate::quant::TensorType;
    use crate::sampling::likeliest;
    use std::path::Path;

    static NEVER: AtomicBool = AtomicBool::new(false);

    const N_EMBD: u64 = 32;
    const N_VOCAB: u64 = 96;

    /// A model of one layer with a block that predicts further tokens, of weights of no meaning.
    fn write(path: &Path) {
        let mut out = Writer::new(3);
        out.set("general.architecture", "qwen35");
        for (key, value) in [
            ("context_length", 256),
            ("embedding_length", N_EMBD as u32),
            ("block_count", 2),
            ("nextn_predict_layers", 1),
            ("feed_forward_length", 64),
            ("attention.head_count", 2),
            ("full_attention_interval", 1),
        ] {
            out.set(format!("qwen35.{key}"), WriteValue::U32(value));
        }
        out.set("qwen35.attention.layer_norm_rms_epsilon", WriteValue::F32(1e-6));
        out.set("tokenizer.ggml.model", "llama");
        out.set("tokenizer.ggml.tokens", WriteValue::Strings((0..N_VOCAB).map(|i| format!("t{i}")).collect()));
        out.set("tokenizer.ggml.scores", WriteValue::F32s(vec![0.0; N_VOCAB as usize]));
        out.set("tokenizer.ggml.token_type", WriteValue::I32s(vec![1; N_VOCAB as usize]));
        let mut state = 1u64;
        let mut tensor = |name: &str, shape: &[u64], mean: f32, spread: f32| {
            let mut value = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                mean + spread * ((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
            };
            let bytes = (0..shape.iter().product()).flat_map(|_: u64| value().to_le_bytes()).collect();
            out.tensor(format!("{name}.weight"), shape, TensorType::F32, bytes);
        };
        tensor("token_embd", &[N_EMBD, N_VOCAB], 0.0, 1.0);
        tensor("output_norm", &[N_EMBD], 1.0, 0.2);
        for block in ["blk.0", "blk.1"] {
            for (norm, n) in
                [("attn_norm", N_EMBD), ("post_attention_norm", N_EMBD), ("attn_q_norm", 16), ("attn_k_norm", 16)]
            {
                tensor(&format!("{block}.{norm}"), &[n], 1.0, 0.2);
            }
            for (matrix, shape) in [
                ("attn_q", [N_EMBD, 64]),
                ("attn_k", [N_EMBD, 32]),
                ("attn_v", [N_EMBD, 32]),
                ("attn_output", [32, N_EMBD]),
                ("ffn_gate", [N_EMBD, 64]),
                ("ffn_up", [N_EMBD, 64]),
                ("ffn_down", [64, N_EMBD]),
            ] {
                tensor(&format!("{block}.{matrix}"), &shape, 0.0, 0.5);
            }
        }
        tensor("blk.1.nextn.enorm", &[N_EMBD], 1.0, 0.2);
        tensor("blk.1.nextn.hnorm", &[N_EMBD], 1.0, 0.2);
        tensor("blk.1.nextn.eh_proj", &[2 * N_EMBD, N_EMBD], 0.0, 0.5);
        std::fs::write(path, out.to_bytes().unwrap()).unwrap();
    }

    struct Both {
        engine: Engine,
        block: NextnBlock,
    }

    impl Both {
        fn open(path: &Path, n_batch: u32) -> Both {
            let options = EngineOptions { slots: 2, threads: 1, n_batch, ..EngineOptions::default() };
            let model = open_drafted_model(path, Some(path), &options, None).unwrap();
            let of_block = model.nextn().unwrap().clone();
            let mut engine = Engine::new(model, &options).unwrap();
            let block = NextnBlock::open(of_block, &mut engine, &options, || true).unwrap();
            Both { engine, block }
        }

        fn prefill(&mut self, slot: SlotId, text: &[Token]) {
            let Both { engine, block } = self;
            let mut follow = |engine: &Engine| block.follow(engine, slot, text, &NEVER);
            follow(engine).unwrap();
            engine.prefill_each(slot, text, &NEVER, &mut follow).unwrap();
        }

        /// Four guesses for what follows a text whose last token the model has not read.
        fn draft(&mut self, slot: SlotId, text: &[Token]) -> Vec<Token> {
            let mut guesses = Vec::new();
            let choose = &mut |logits: &mut [f32], _| likeliest(logits);
            let ask = Ask { text, most: 4, choose, guesses: &mut guesses, cancel: &NEVER };
            self.block.draft((&self.engine, slot), ask).unwrap();
            guesses
        }

        /// As `draft`, of engines that know nothing yet.
        fn anew(path: &Path, text: &[Token]) -> Vec<Token> {
            let mut both = Both::open(path, 0);
            let slot = both.engine.take_slot(0).unwrap();
            both.prefill(slot, &text[..text.len() - 1]);
            both.draft(slot, text)
        }
    }

    #[test]
    fn a_block_follows_its_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nextn.gguf");
        write(&path);
        let mut both = Both::open(&path, 8);
        let slots = [0, 1].map(|slot| both.engine.take_slot(slot).unwrap());
        let mut text: Vec<Token> = (0..30).map(|i| i * 17 % 90).collect();
        both.prefill(slots[0], &text);
        text.push(7);
        let mut right = 0;
        // Some guesses are taken, some are not, and the model says something else.
        for (step, says) in [5, 11, 5, 80, 33, 2].into_iter().enumerate() {
            let guesses = both.draft(slots[0], &text);
            assert_eq!((guesses.len(), &guesses), (4, &Both::anew(&path, &text)), "step {step}");
            let taken = step % 5;
            let pass = [&text[text.len() - 1..], &guesses].concat();
            both.engine.logits_ahead(slots[0], &pass, guesses.len(), &NEVER).unwrap();
            both.engine.truncate(slots[0], text.len() + taken);
            text.extend(&guesses[..taken]);
            text.push(says);
            right += taken;
        }
        assert!(right > 5);
        // A prompt that has another end: the row before it is not there any more, so it does without the first token.
        text.truncate(20);
        text.extend([50, 51, 52]);
        both.prefill(slots[0], &text);
        assert_eq!(both.block.positions[0], [&(0..19).collect::<Vec<_>>()[..], &[20, 21]].concat());
        text.push(4);
        assert_eq!(both.draft(slots[0], &text).len(), 4);
        // Another conversation comes in between: without the rows of the last pass there are no guesses, and the token
        // after them is not read.
        let mut other: Vec<Token> = (0..12).map(|i| 90 - i * 5).collect();
        both.prefill(slots[1], &other);
        other.push(3);
        assert_eq!(both.draft(slots[1], &other), Both::anew(&path, &other));
        assert!(both.draft(slots[0], &text).is_empty());
        both.prefill(slots[0], &text);
        assert_eq!(both.block.positions[0].len(), text.len() - 3);
        text.push(1);
        assert_eq!(both.draft(slots[0], &text).len(), 4);
    }
}
