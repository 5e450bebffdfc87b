//! The architectures, by the name in `general.architecture`. Each is a function that reads keys, claims tensors and
//! puts layers together.

mod bert;
mod cohere;
mod deepseek2;
mod encoders;
mod gemma;
mod gemma3n;
mod gemma4;
mod glm;
mod gpt_oss;
mod hybrid;
mod layer_norm;
mod llama;
mod llama4;
mod phi;
mod post_norm;
mod qwen;
mod t5;

use super::binder::Binder;
use super::decoder::Decoder;
use crate::Result;
use crate::graph::NormKind::{self, Layer, Rms};

/// How an architecture is bound to a file.
type Bind = fn(&mut Binder<'_>) -> Result<Decoder>;

/// The known architectures: name, kind of its norms, and what binds it.
pub(super) const ARCHITECTURES: &[(&str, NormKind, Bind)] = &[
    ("apertus", Rms, llama::apertus),
    ("arcee", Rms, llama::arcee),
    ("baichuan", Rms, llama::baichuan),
    ("bert", Layer, bert::bert),
    ("bitnet", Rms, llama::bitnet),
    ("bloom", Layer, layer_norm::bloom),
    ("cohere2", Layer, cohere::cohere2),
    ("command-r", Layer, cohere::command_r),
    ("deepseek2", Rms, deepseek2::deepseek2),
    ("dots1", Rms, qwen::dots1),
    ("ernie4_5", Rms, llama::llama),
    ("ernie4_5-moe", Rms, llama::llama),
    ("eurobert", Rms, encoders::eurobert),
    ("exaone", Rms, qwen::qwen2),
    ("exaone4", Rms, post_norm::exaone4),
    ("falcon", Layer, layer_norm::falcon),
    ("falcon-h1", Rms, hybrid::falcon_h1),
    ("gemma", Rms, gemma::gemma),
    ("gemma-embedding", Rms, gemma::gemma_embedding),
    ("gemma2", Rms, gemma::gemma2),
    ("gemma3", Rms, gemma::gemma3),
    ("gemma3n", Rms, gemma3n::gemma3n),
    ("gemma4", Rms, gemma4::gemma4),
    ("gemma4-assistant", Rms, gemma4::assistant),
    ("glm4", Rms, glm::glm4),
    ("glm4moe", Rms, glm::glm4moe),
    ("gpt-oss", Rms, gpt_oss::gpt_oss),
    ("gpt2", Layer, layer_norm::gpt2),
    ("gptneox", Layer, layer_norm::gptneox),
    ("granite", Rms, llama::granite),
    ("granitehybrid", Rms, hybrid::granite_hybrid),
    ("granitemoe", Rms, llama::granite),
    ("hunyuan-dense", Rms, qwen::hunyuan),
    ("hunyuan-moe", Rms, qwen::hunyuan),
    ("internlm2", Rms, llama::llama),
    ("jamba", Rms, hybrid::jamba),
    ("jina-bert-v2", Layer, bert::jina_bert_v2),
    ("lfm2", Rms, hybrid::lfm2),
    ("lfm2moe", Rms, hybrid::lfm2),
    ("llama", Rms, llama::llama),
    ("llama4", Rms, llama4::llama4),
    ("mamba", Rms, hybrid::mamba),
    ("mamba2", Rms, hybrid::mamba2),
    ("minicpm", Rms, llama::minicpm),
    ("mistral3", Rms, llama::mistral3),
    ("modern-bert", Layer, encoders::modern_bert),
    ("mpt", Layer, layer_norm::mpt),
    ("nemotron", Layer, layer_norm::nemotron),
    ("nemotron_h", Rms, hybrid::nemotron_h),
    ("nemotron_h_moe", Rms, hybrid::nemotron_h),
    ("nomic-bert", Layer, bert::nomic_bert),
    ("nomic-bert-moe", Layer, bert::nomic_bert_moe),
    ("olmo2", Rms, post_norm::olmo2),
    ("olmoe", Rms, qwen::olmoe),
    ("phi2", Layer, phi::phi2),
    ("phi3", Rms, phi::phi3),
    ("plamo2", Rms, hybrid::plamo2),
    ("qwen2", Rms, qwen::qwen2),
    ("qwen2moe", Rms, qwen::qwen2moe),
    ("qwen2vl", Rms, qwen::qwen2),
    ("qwen3", Rms, qwen::qwen3),
    ("qwen35", Rms, hybrid::qwen35),
    ("qwen35moe", Rms, hybrid::qwen35),
    ("qwen3moe", Rms, qwen::qwen3),
    ("qwen3next", Rms, hybrid::qwen3next),
    ("qwen3vl", Rms, qwen::qwen3),
    ("qwen3vlmoe", Rms, qwen::qwen3),
    ("rwkv6", Layer, hybrid::rwkv6),
    ("rwkv7", Layer, hybrid::rwkv7),
    ("seed_oss", Rms, qwen::seed_oss),
    ("smollm3", Rms, llama::smollm3),
    ("stablelm", Layer, layer_norm::stablelm),
    ("starcoder2", Layer, layer_norm::starcoder2),
    ("t5", Rms, t5::t5),
    ("t5encoder", Rms, t5::encoder),
];
