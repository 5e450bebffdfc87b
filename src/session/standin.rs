//! Temporary stand-ins for types of rooms that are not merged yet; same names and shapes as their real ones.
#![allow(missing_docs)]

use crate::Token;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    #[default]
    F16,
    F32,
    Q8_0,
}

#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    pub context: u32,
    pub threads: u32,
    pub gpu_layers: i32,
    pub device: Option<String>,
    pub kv_type: KvType,
    pub slots: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Greedy = 0,
    Sampled = 1,
    ScoreLeaves = 2,
}

#[derive(Debug, Clone, Default)]
pub struct Params {
    pub seed: Option<u64>,
    pub top_k: i32,
    pub top_p: f32,
    pub min_p: f32,
    pub temperature: f32,
    pub repeat_penalty: f32,
    pub repeat_last_n: i32,
    pub presence: f32,
    pub frequency: f32,
    pub logit_bias: Vec<(Token, f32)>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chain;

impl std::str::FromStr for Chain {
    type Err = crate::Error;
    fn from_str(_: &str) -> crate::Result<Chain> {
        Ok(Chain)
    }
}

impl std::fmt::Display for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("")
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampled {
    pub token: Token,
    pub logprob: f32,
    pub prob: f32,
    pub candidates: Vec<(Token, f32, f32)>,
}

#[derive(Debug)]
pub struct Vocab;

impl Vocab {
    pub fn n_tokens(&self) -> usize {
        0
    }
    pub fn tokenize(&self, _text: &[u8], _add_special: bool, _parse_special: bool) -> Vec<Token> {
        Vec::new()
    }
    pub fn detokenize(&self, _ids: &[Token], _remove_special: bool, _unparse_special: bool) -> Vec<u8> {
        Vec::new()
    }
}
