//! Writes the demo model: `pack_demo_model FOLDER OUT` reads what `train.py` left in FOLDER and writes the GGUF file
//! OUT.
//!
//! Matrices become Q8_0, norms stay F32. The file is read back before it counts as done: it has to open, and its
//! vocabulary has to turn texts into the same tokens as the one that the model was trained with.

use elizainference::gguf::{File, Writer};
use elizainference::quant::{TensorType, quantize};
use elizainference::vocab::Vocab;
use serde::Deserialize;
use std::error::Error;
use std::path::Path;

#[derive(Deserialize)]
struct Description {
    layers: u32,
    width: u32,
    heads: u32,
    kv_heads: u32,
    feed_forward: u32,
    context: u32,
    rope_base: f32,
    epsilon: f32,
    bos: u32,
    eos: u32,
    tokens: Vec<String>,
    /// How many of the first tokens are control tokens.
    special: usize,
    merges: Vec<String>,
    tensors: Vec<Tensor>,
    texts: Vec<Text>,
}

#[derive(Deserialize)]
struct Tensor {
    name: String,
    /// Rows first; GGUF writes the length of a row first.
    shape: Vec<u64>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    tokens: Vec<i32>,
}

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const MOSTLY_Q8_0: u32 = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(folder), Some(out), None) = (args.next(), args.next(), args.next()) else {
        return Err("usage: pack_demo_model FOLDER OUT".into());
    };
    let folder = Path::new(&folder);
    let model: Description = serde_json::from_slice(&std::fs::read(folder.join("model.json"))?)?;
    let weights = std::fs::read(folder.join("weights.f32"))?;

    let mut file = Writer::new(3);
    file.set("general.architecture", "llama")
        .set("general.type", "model")
        .set("general.name", "libelizainference demo")
        .set(
            "general.description",
            "Answers short requests with the name of an action; made by tools/demo_model/train.py",
        )
        .set("general.license", "MIT OR Apache-2.0")
        .set("general.file_type", MOSTLY_Q8_0)
        .set("general.quantization_version", 2u32)
        .set("llama.block_count", model.layers)
        .set("llama.context_length", model.context)
        .set("llama.embedding_length", model.width)
        .set("llama.feed_forward_length", model.feed_forward)
        .set("llama.attention.head_count", model.heads)
        .set("llama.attention.head_count_kv", model.kv_heads)
        .set("llama.attention.layer_norm_rms_epsilon", model.epsilon)
        .set("llama.rope.dimension_count", model.width / model.heads)
        .set("llama.rope.freq_base", model.rope_base)
        .set("llama.vocab_size", model.tokens.len() as u32)
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", "gpt-2")
        .set(
            "tokenizer.ggml.token_type",
            (0..model.tokens.len()).map(|i| if i < model.special { CONTROL } else { NORMAL }).collect::<Vec<_>>(),
        )
        .set("tokenizer.ggml.tokens", model.tokens)
        .set("tokenizer.ggml.merges", model.merges)
        .set("tokenizer.ggml.bos_token_id", model.bos)
        .set("tokenizer.ggml.eos_token_id", model.eos)
        .set("tokenizer.ggml.add_bos_token", true);

    let mut rest = weights.as_slice();
    for tensor in &model.tensors {
        let bytes = 4 * tensor.shape.iter().product::<u64>() as usize;
        let Some((own, behind)) = rest.split_at_checked(bytes) else {
            return Err(format!("weights.f32 ends inside {}", tensor.name).into());
        };
        rest = behind;
        let values: Vec<f32> = own.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let ty = if tensor.shape.len() > 1 { TensorType::Q8_0 } else { TensorType::F32 };
        let mut data = Vec::new();
        quantize(ty, &values, &mut data).map_err(|e| format!("{}: {e}", tensor.name))?;
        let shape: Vec<u64> = tensor.shape.iter().rev().copied().collect();
        file.tensor(&tensor.name, &shape, ty, data);
    }
    if !rest.is_empty() {
        return Err(format!("weights.f32 has {} bytes behind the last tensor", rest.len()).into());
    }
    let out = Path::new(&out);
    file.write_to(out)?;

    let file = File::open(out)?;
    let vocab = Vocab::from_gguf(&file)?;
    for Text { text, tokens } in &model.texts {
        let own = vocab.tokenize(text.as_bytes(), false, false)?;
        if own != *tokens {
            return Err(format!("{text:?} was trained as {tokens:?} and is read as {own:?}").into());
        }
    }
    println!(
        "{}: {} bytes, {} tensors, {} texts tokenized alike",
        out.display(),
        file.size(),
        file.tensors().len(),
        model.texts.len()
    );
    Ok(())
}
