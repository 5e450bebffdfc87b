//! Files of known architectures that are refused: in a form that this library does not read, or without what the
//! architecture needs. The error names the tensor or key, and says what to do where there is something.

use elizainference::gguf::{File, Writer};
use elizainference::model::{Placement, load};
use elizainference::quant::TensorType;
use elizainference::{Error, Result};

/// A model of one layer with weights of zero.
struct Tiny {
    architecture: &'static str,
    norm_eps: &'static str,
    keys: Vec<(&'static str, u32)>,
    tensors: Vec<(&'static str, Vec<u64>)>,
}

impl Tiny {
    /// A llama under this name.
    fn new(architecture: &'static str) -> Tiny {
        let norms = ["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"];
        let square = ["attn_q", "attn_k", "attn_v", "attn_output"].map(|part| format!("blk.0.{part}.weight").leak());
        let mut tensors: Vec<(&str, Vec<u64>)> = norms.map(|name| (name, vec![64])).into();
        tensors.extend(square.map(|name| (&*name, vec![64, 64])));
        tensors.extend([
            ("token_embd.weight", vec![64, 300]),
            ("blk.0.ffn_gate.weight", vec![64, 128]),
            ("blk.0.ffn_up.weight", vec![64, 128]),
            ("blk.0.ffn_down.weight", vec![128, 64]),
        ]);
        let keys = vec![
            ("context_length", 512),
            ("embedding_length", 64),
            ("block_count", 1),
            ("feed_forward_length", 128),
            ("attention.head_count", 2),
        ];
        Tiny { architecture, norm_eps: "layer_norm_rms_epsilon", keys, tensors }
    }

    fn with_keys(mut self, keys: &[(&'static str, u32)]) -> Tiny {
        self.keys.extend(keys);
        self
    }

    fn with(mut self, tensors: &[(&'static str, &[u64])]) -> Tiny {
        self.tensors.extend(tensors.iter().map(|(name, shape)| (*name, shape.to_vec())));
        self
    }

    fn without(mut self, part: &str) -> Tiny {
        self.tensors.retain(|(name, _)| !name.contains(part));
        self
    }

    fn open(&self) -> Result<()> {
        let mut out = Writer::new(3);
        out.set("general.architecture", self.architecture);
        let key = |name: &str| format!("{}.{name}", self.architecture);
        for (name, value) in &self.keys {
            out.set(key(name), *value);
        }
        out.set(key(&format!("attention.{}", self.norm_eps)), 1e-5f32);
        for (name, shape) in &self.tensors {
            let bytes = 4 * shape.iter().product::<u64>() as usize;
            out.tensor(*name, shape, TensorType::F32, vec![0; bytes]);
        }
        let file = File::from_bytes(out.to_bytes().unwrap())?;
        load(file, &Placement::default(), 1, &|_, _, _, _| Err(Error::Cancelled), None).map(drop)
    }

    #[track_caller]
    fn refused(&self, parts: &[&str]) {
        let error = self.open().unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "`{part}` is missing in: {error}");
        }
    }
}

/// Else the other tests could pass for another reason.
#[test]
fn the_plain_model_is_known() {
    assert_eq!(Tiny::new("llama").open(), Err(Error::Cancelled));
}

#[test]
fn experts_in_tensors_of_their_own() {
    let experts = [("expert_count", 2), ("expert_used_count", 1)];
    let old = Tiny::new("llama").without("blk.0.ffn_gate").without("blk.0.ffn_up").without("blk.0.ffn_down");
    let old = old.with_keys(&experts).with(&[
        ("blk.0.ffn_gate_inp.weight", &[64, 2]),
        ("blk.0.ffn_gate.0.weight", &[64, 128]),
        ("blk.0.ffn_gate.1.weight", &[64, 128]),
        ("blk.0.ffn_up.0.weight", &[64, 128]),
        ("blk.0.ffn_up.1.weight", &[64, 128]),
        ("blk.0.ffn_down.0.weight", &[128, 64]),
        ("blk.0.ffn_down.1.weight", &[128, 64]),
    ]);
    old.refused(&["Not supported", "`blk.0.ffn_gate.0.weight`", "Convert the model again"]);
}

#[test]
fn latent_attention_with_keys_and_values_in_one_matrix() {
    let old =
        Tiny::new("deepseek2").with_keys(&[("attention.kv_lora_rank", 32), ("rope.dimension_count", 16)]).with(&[
            ("blk.0.attn_kv_a_mqa.weight", &[64, 48]),
            ("blk.0.attn_kv_a_norm.weight", &[32]),
            ("blk.0.attn_kv_b.weight", &[32, 96]),
        ]);
    old.refused(&["Not supported", "`blk.0.attn_kv_b.weight`", "Convert the model again"]);
}

#[test]
fn experts_without_their_keys() {
    let layer = [("blk.0.ffn_gate_inp.weight", &[64u64, 2][..])];
    Tiny::new("qwen3moe").with(&layer).refused(&["attn_q_norm"]);
    Tiny::new("llama").with(&layer).refused(&["`llama.expert_count`"]);
    Tiny::new("llama").with(&layer).with_keys(&[("expert_count", 2)]).refused(&["`llama.expert_used_count`"]);
    let more = [("expert_count", 2), ("expert_used_count", 3)];
    Tiny::new("llama").with(&layer).with_keys(&more).refused(&["`llama.expert_used_count`", "3"]);
    let gating = [("expert_count", 2), ("expert_used_count", 1), ("expert_gating_func", 9)];
    Tiny::new("llama").with(&layer).with_keys(&gating).refused(&["`llama.expert_gating_func`", "9"]);
}

#[test]
fn keys_that_an_architecture_cannot_do_without() {
    Tiny::new("granite").refused(&["`granite.logit_scale`"]);
    Tiny::new("minicpm").refused(&["`minicpm.logit_scale`"]);
    Tiny::new("gpt-oss").refused(&["`gpt-oss.attention.sliding_window`"]);
    Tiny::new("baichuan").refused(&["baichuan of 1 layers", "32 and 40"]);
    let gemma3n = || Tiny::new("gemma3n").with_keys(&[("attention.sliding_window", 32)]);
    gemma3n().refused(&["`gemma3n.attention.shared_kv_layers`"]);
    let shared = || gemma3n().with_keys(&[("attention.shared_kv_layers", 0)]);
    shared().refused(&["`gemma3n.embedding_length_per_layer_input`"]);
    let other = [("embedding_length_per_layer_input", 64), ("altup.active_idx", 1)];
    shared().with_keys(&other).refused(&["Not supported", "`gemma3n.altup.active_idx`"]);
    let norm_eps = "layer_norm_epsilon";
    Tiny { norm_eps, ..Tiny::new("gptneox") }.refused(&["`gptneox.use_parallel_residual`"]);
    Tiny { norm_eps, ..Tiny::new("cohere2") }.refused(&["`cohere2.attention.sliding_window`"]);
    Tiny::new("cohere2").refused(&["`cohere2.attention.layer_norm_epsilon`"]);
}

/// What nobody claims would be missing in the results.
#[test]
fn tensors_that_the_architecture_does_not_have() {
    Tiny::new("llama").with(&[("blk.0.attn_sinks.weight", &[2])]).refused(&["`blk.0.attn_sinks.weight`"]);
    Tiny::new("llama").with(&[("blk.0.post_ffw_norm.weight", &[64])]).refused(&["`blk.0.post_ffw_norm.weight`"]);
    Tiny::new("gemma").with(&[("blk.0.ffn_gate_inp.weight", &[64, 2])]).refused(&["`blk.0.ffn_gate_inp.weight`"]);
}
