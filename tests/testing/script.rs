//! A model whose answers are known: every token has one that follows it, and a chat template chooses the first. It
//! thinks, answers, calls a function, or says the same for ever.

use elizainference::gguf::Writer;
use elizainference::quant::TensorType;
use std::path::{Path, PathBuf};

/// The last token of a prompt, and the tokens that follow one another after it. The last of them ends the answer, or is
/// said for ever.
const ANSWERS: [&[&str]; 4] = [
    &["<|deep|>", "<think>", "\nHm", "\n</think>\n\n", "Hello", " there", ".", "<|im_end|>"],
    &["<|plain|>", "Hello"],
    &[
        "<|tools|>",
        "<tool_call>\n",
        "{\"name\": \"look\", \"arguments\": {\"at\": \"sky\"}}",
        "\n</tool_call>",
        "<|im_end|>",
    ],
    &["<|long|>", " la", " la"],
];

const TEMPLATE: &str = "{# <tool_call> #}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% set last = messages[-1].content %}\
    {% if 'long' in last %}<|long|>{% elif tools %}<|tools|>\
    {% elif enable_thinking is defined and not enable_thinking %}<|plain|>{% else %}<|deep|>{% endif %}{% endif %}";

const N_EMBD: usize = 320;

/// The texts of its tokens, and how many of them are control tokens; bytes come after those.
fn tokens() -> (Vec<String>, usize) {
    let mut control = vec!["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>"];
    control.extend(ANSWERS.map(|answer| answer[0]));
    let n = control.len();
    let mut texts: Vec<String> = control.into_iter().map(String::from).collect();
    texts.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    for text in ANSWERS.into_iter().flatten() {
        if !texts.iter().any(|known| known == text) {
            texts.push(text.to_string());
        }
    }
    (texts, n)
}

/// Writes it into a folder, where it is not there yet, and returns its path.
pub fn write(dir: &Path) -> PathBuf {
    let (texts, n_control) = tokens();
    let id = |text: &str| texts.iter().position(|known| known == text).unwrap();
    let mut next = vec![id("</s>"); texts.len()];
    for pair in ANSWERS.iter().flat_map(|answer| answer.windows(2)) {
        next[id(pair[0])] = id(pair[1]);
    }
    let mut out = Writer::new(3);
    out.set("general.architecture", "llama").set("general.name", "script");
    for (name, value) in [
        ("context_length", 4096u32),
        ("embedding_length", N_EMBD as u32),
        ("block_count", 1),
        ("feed_forward_length", 32),
        ("attention.head_count", 5),
    ] {
        out.set(format!("llama.{name}"), value);
    }
    out.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    out.set("tokenizer.ggml.model", "llama");
    let kind = |at: usize| {
        if at == 0 {
            2
        } else if at < n_control {
            3
        } else if at < n_control + 256 {
            6
        } else {
            4
        }
    };
    out.set("tokenizer.ggml.token_type", (0..texts.len()).map(kind).collect::<Vec<i32>>());
    out.set("tokenizer.ggml.scores", vec![0f32; texts.len()]);
    out.set("tokenizer.ggml.bos_token_id", 1u32).set("tokenizer.ggml.eos_token_id", 2u32);
    out.set("tokenizer.ggml.add_bos_token", false).set("tokenizer.ggml.add_space_prefix", false);
    out.set("tokenizer.chat_template", TEMPLATE);

    let n = texts.len();
    assert!(n <= N_EMBD);
    // One row for each token, with a number at its own place; and for the output at the places of those before it.
    let (mut embedding, mut output) = (vec![0f32; n * N_EMBD], vec![0f32; n * N_EMBD]);
    for token in 0..n {
        embedding[token * N_EMBD + token] = 1.0;
        output[next[token] * N_EMBD + token] = 2.0;
    }
    out.set("tokenizer.ggml.tokens", texts);
    let raw = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let mut tensor = |name: &str, shape: &[u64], values: &[f32]| {
        out.tensor(format!("{name}.weight"), shape, TensorType::F32, raw(values));
    };
    let (wide, rows) = (N_EMBD as u64, n as u64);
    tensor("token_embd", &[wide, rows], &embedding);
    tensor("output", &[wide, rows], &output);
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        tensor(name, &[wide], &[1.0; N_EMBD]);
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        tensor(&format!("blk.0.{name}"), &[wide, wide], &vec![0.0; N_EMBD * N_EMBD]);
    }
    for (name, shape) in [("ffn_gate", [wide, 32]), ("ffn_up", [wide, 32]), ("ffn_down", [32, wide])] {
        tensor(&format!("blk.0.{name}"), &shape, &[0.0; 32 * N_EMBD]);
    }
    super::fixtures::place(dir, "script.gguf", &out.to_bytes().unwrap())
}
