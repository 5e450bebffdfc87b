//! Temporary stand-ins for types of rooms that are not merged yet; same names and shapes as their real ones.
#![allow(missing_docs)]

use crate::trie::Mode;
use crate::{Error, Result, Token};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    #[default]
    F16,
    F32,
    Q8_0,
}

#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    pub context: i32,
    pub threads: i32,
    pub gpu_layers: i32,
    pub device: Option<String>,
    pub kv_type: KvType,
    pub slots: u32,
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

impl Params {
    pub fn chain(&self) -> Chain {
        Chain
    }
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

pub struct Sampler {
    last: Sampled,
}

impl Sampler {
    pub fn new(_: &Chain, _n_vocab: usize, _seed: u64) -> Result<Sampler> {
        Ok(Sampler { last: Sampled::default() })
    }
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        legal: Option<&[Token]>,
        banned: &[Token],
        _position: u32,
        _mode: Mode,
    ) -> Result<Token> {
        if let Some(token) = logits.iter().position(|l| l.is_nan()) {
            return Err(Error::NanLogits { row: 0, token });
        }
        for &token in banned {
            logits[token as usize] = f32::NEG_INFINITY;
        }
        let best = |ids: &mut dyn Iterator<Item = usize>| {
            ids.fold(usize::MAX, |best, id| if best == usize::MAX || logits[id] > logits[best] { id } else { best })
        };
        let token = match legal {
            Some(ids) => best(&mut ids.iter().map(|&t| t as usize)),
            None => best(&mut (0..logits.len())),
        } as Token;
        self.last.token = token;
        Ok(token)
    }
    pub fn last(&self) -> &Sampled {
        &self.last
    }
    pub fn accept(&mut self, _: Token) {}
}

#[derive(Debug, Default)]
pub struct Vocab {
    pub pieces: Vec<Vec<u8>>,
    pub eog: Vec<Token>,
}

impl Vocab {
    pub fn n_tokens(&self) -> usize {
        self.pieces.len()
    }
    pub fn tokenize(&self, _text: &[u8], _add_special: bool, _parse_special: bool) -> Vec<Token> {
        Vec::new()
    }
    pub fn detokenize(&self, _ids: &[Token], _remove_special: bool, _unparse_special: bool) -> Vec<u8> {
        Vec::new()
    }
    pub fn piece(&self, id: Token, _special: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.pieces[id as usize]);
    }
    pub fn max_piece_bytes(&self) -> usize {
        self.pieces.iter().map(Vec::len).max().unwrap_or(0)
    }
    pub fn is_eog(&self, id: Token) -> bool {
        self.eog.contains(&id)
    }
    pub fn eog_tokens(&self) -> &[Token] {
        &self.eog
    }
}
