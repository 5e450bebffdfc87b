//! llama.cpp's own types, laid out as in its headers, for hosts that use both libraries.

use std::ffi::{c_char, c_void};

use crate::Token;
use crate::trie::Candidate;

/// `llama_vocab`, which only the host's libllama reads.
pub struct LlamaVocab {
    _opaque: [u8; 0],
}

/// `llama_sampler`: the shell.
#[repr(C)]
pub struct LlamaSampler {
    pub(super) iface: *mut Interface,
    pub(super) ctx: *mut c_void,
}

/// `llama_token_data_array`, with [`Candidate`] for `llama_token_data`.
#[repr(C)]
pub struct TokenDataArray {
    /// The candidates.
    pub data: *mut Candidate,
    /// How many there are.
    pub size: usize,
    /// The place of the one that was selected, or -1.
    pub selected: i64,
    /// A C `bool`: whether the list is ordered by logit. A list with masked entries no longer is.
    pub sorted: u8,
}

/// `llama_sampler_i`: the functions of a type of samplers, in the order of llama.cpp.
#[repr(C)]
pub struct Interface {
    pub(super) name: unsafe extern "C" fn(*const LlamaSampler) -> *const c_char,
    pub(super) accept: unsafe extern "C" fn(*mut LlamaSampler, Token),
    pub(super) apply: unsafe extern "C" fn(*mut LlamaSampler, *mut TokenDataArray),
    pub(super) reset: unsafe extern "C" fn(*mut LlamaSampler),
    pub(super) clone: unsafe extern "C" fn(*const LlamaSampler) -> *mut LlamaSampler,
    pub(super) free: unsafe extern "C" fn(*mut LlamaSampler),
    /// `backend_init` to `backend_reset`. NULL: the sampler and those after it run on the CPU.
    pub(super) backend: [Absent; 5],
    pub(super) copy_state: unsafe extern "C" fn(*const LlamaSampler, *mut LlamaSampler),
    pub(super) reserved: [Absent; SLOTS - 12],
}

pub(super) type Absent = Option<unsafe extern "C" fn()>;

/// Entries of the table; llama.cpp uses 12 today, and used 6 before.
pub(super) const SLOTS: usize = 32;

/// Makes the shell of a sampler from its functions, which outlive it, and its state: llama.cpp's `llama_sampler_init`.
/// It must not unwind.
pub type SamplerInit = Option<unsafe extern "C" fn(iface: *mut Interface, ctx: *mut c_void) -> *mut LlamaSampler>;

/// The same of a host that has one.
pub(super) type Init = unsafe extern "C" fn(*mut Interface, *mut c_void) -> *mut LlamaSampler;
/// `llama_vocab_n_tokens`.
pub(super) type VocabTokens = unsafe extern "C" fn(*const LlamaVocab) -> i32;
