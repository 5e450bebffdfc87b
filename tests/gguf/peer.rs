//! Decoding against llama.cpp's own, where its library is at hand: `PEER_LLAMA_DIR` names the folder with
//! `libggml-base.so`. It is loaded into the test, since a process for each of a million blocks would take hours.
#![cfg(unix)]

use super::quant::{DECODED, Random, assert_same, decode};
use elizainference::quant::{TensorType, put_halves};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// What `ggml_get_type_traits` points to.
#[repr(C)]
struct Traits {
    name: *const c_char,
    block_len: i64,
    interleaved: i64,
    block_bytes: usize,
    quantised: bool,
    to_float: Option<unsafe extern "C" fn(*const c_void, *mut f32, i64)>,
}

/// The peer's table of types.
struct Peer {
    traits: unsafe extern "C" fn(c_int) -> *const Traits,
}

impl Peer {
    /// `None` with a word where the library is not there.
    fn load() -> Option<Peer> {
        let path = std::env::var("PEER_LLAMA_DIR").map(|folder| format!("{folder}/libggml-base.so"));
        let Some(path) = path.ok().filter(|path| std::path::Path::new(path).exists()) else {
            eprintln!("skipped: PEER_LLAMA_DIR does not name a folder with libggml-base.so");
            return None;
        };
        let path = CString::new(path).unwrap();
        // SAFETY: a library that runs nothing that we forbid when it is loaded; it stays loaded.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?} cannot be loaded");
        // SAFETY: the handle of a library that is loaded.
        let found = unsafe { libc::dlsym(library, c"ggml_get_type_traits".as_ptr()) };
        assert!(!found.is_null(), "{path:?} has no ggml_get_type_traits");
        // SAFETY: ggml declares the function so.
        let traits = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *const Traits>(found) };
        Some(Peer { traits })
    }

    /// The weights of whole blocks; `None` for types that the peer does not decode.
    fn decode(&self, ty: TensorType, blocks: &[u8]) -> Option<Vec<f32>> {
        // SAFETY: every id of ours is below the peer's number of types, and its table lives as long as the library.
        let traits = unsafe { &*(self.traits)(ty as c_int) };
        let to_float = traits.to_float?;
        // SAFETY: a text that lives as long as the library.
        let name = unsafe { CStr::from_ptr(traits.name) }.to_str().unwrap();
        let size = (traits.block_len as usize, traits.block_bytes);
        assert_eq!((name.to_uppercase(), size), (ty.name().to_uppercase(), (ty.block_len(), ty.block_bytes())));
        // The peer reads numbers of two and four bytes in place: they need their alignment.
        let words: Vec<u32> = blocks
            .chunks(4)
            .map(|bytes| {
                let mut word = [0; 4];
                word[..bytes.len()].copy_from_slice(bytes);
                u32::from_ne_bytes(word)
            })
            .collect();
        let mut out = vec![f32::NAN; blocks.len() / ty.block_bytes() * ty.block_len()];
        // SAFETY: `words` holds the blocks of as many weights as `out`.
        unsafe { to_float(words.as_ptr().cast(), out.as_mut_ptr(), out.len() as i64) };
        Some(out)
    }

    /// Compares random blocks, and blocks with every half-precision number as scale.
    fn compare(&self, ty: TensorType) {
        const COUNT: usize = 100_000;
        let mut random = Random(ty as u64 + 1);
        // A few thousand at a time, so that the weights of 10^5 blocks need no gigabyte.
        for first in (0..COUNT).step_by(4096) {
            let blocks = random.bytes(ty.block_bytes() * 4096.min(COUNT - first));
            match self.decode(ty, &blocks) {
                Some(theirs) => assert_same(ty, &decode(ty, &blocks), &theirs),
                // The one type that needs no decoding.
                None => return assert_eq!(ty, TensorType::F32),
            }
        }
        for scale in 0..=u16::MAX {
            let mut block = random.bytes(ty.block_bytes());
            if !put_halves(ty, &mut block, || half::f16::from_bits(scale)) {
                // A number of two bytes, or scales of one byte.
                block.chunks_mut(2).for_each(|bytes| bytes.copy_from_slice(&scale.to_le_bytes()[..bytes.len()]));
            }
            assert_same(ty, &decode(ty, &block), &self.decode(ty, &block).unwrap());
        }
    }
}

/// Every type: 10^5 blocks of random bytes, and every scale.
#[test]
fn blocks_decode_as_the_peer() {
    let Some(peer) = Peer::load() else { return };
    DECODED.into_iter().for_each(|ty| peer.compare(ty));
}

/// Whatever the peer decodes, this library does.
#[test]
fn no_type_of_the_peer_is_missing() {
    let Some(peer) = Peer::load() else { return };
    for &ty in TensorType::ALL {
        let has = peer.decode(ty, &vec![0; ty.block_bytes()]).is_some();
        assert!(!has || DECODED.contains(&ty), "{ty}");
    }
}
