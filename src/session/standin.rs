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
    pub context: i32,
    pub threads: i32,
    pub gpu_layers: i32,
    pub device: Option<String>,
    pub kv_type: KvType,
    pub slots: u32,
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
