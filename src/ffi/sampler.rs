//! The token trie and grammars as samplers of a llama.cpp chain.
//!
//! A host gets a `struct llama_sampler` of llama.cpp's own layout: a shell of two words, the table of functions and the
//! state. The table is one static for all samplers of the type, as `llama_sampler_copy` demands, and longer than any
//! version of llama.cpp reads, so that a newer one finds NULL for functions that it added. The shell comes from the
//! host's `llama_sampler_init` ([`host`]), whose `delete` will free it; without a libllama from the C allocator.
//!
//! The host's calls return no status: every failure waits in `eliza_inference_take_last_error`, and a failed `apply`
//! leaves the candidates unchanged.

use std::ffi::{CStr, c_char, c_int};

use super::errors::{ask, on_process};
use super::handle::FfiLlmHandle;
use super::llama::{Init, Interface, LlamaSampler, LlamaVocab, SLOTS, SamplerInit, TokenDataArray};
use super::state::Stream;
use super::status::ELIZA_OK;
use super::{args, host};
use crate::backend::LegalTokens;
use crate::grammar::{self, GrammarState, Mask};
use crate::panic;
use crate::session::Mode;
use crate::trie::{Accept, Candidate, Masked, Sieve, Trie, TrieState, cache};
use crate::{Error, Result, Token};

static TABLE: Interface = Interface {
    name: eliza_inference_sampler_name,
    accept,
    apply,
    reset,
    clone: eliza_inference_sampler_clone,
    free,
    backend: [None; 5],
    copy_state,
    reserved: [None; SLOTS - 12],
};

/// A candidate that is never legal.
const NOTHING: Candidate = Candidate { id: -1, logit: f32::NEG_INFINITY, p: 0.0 };

/// What a sampler holds its chain to.
#[derive(Clone)]
enum Held {
    Trie(TrieState),
    Grammar(GrammarState),
}

impl Held {
    fn name(&self) -> &'static CStr {
        match self {
            Held::Trie(_) => c"token-trie",
            Held::Grammar(..) => c"grammar",
        }
    }
}

/// The state in a shell.
struct Own {
    held: Held,
    sieve: Sieve,
    /// The list of a host whose list is empty.
    spare: [Candidate; 1],
    /// What made the shell; `None` for one from the C allocator.
    init: Option<Init>,
}

impl Own {
    fn new(held: Held, init: Option<Init>) -> Self {
        Own { held, sieve: Sieve::default(), spare: [NOTHING], init }
    }

    /// Puts it into a shell.
    fn into_shell(self) -> Result<*mut LlamaSampler> {
        let init = self.init;
        let iface = (&raw const TABLE).cast_mut();
        let ctx = Box::into_raw(Box::new(self));
        let shell = match init {
            // SAFETY: the host's function takes any table that outlives the sampler, as a static does, and any state.
            Some(init) => panic::host(|| unsafe { init(iface, ctx.cast()) }),
            None => {
                // SAFETY: malloc accepts any size.
                let shell = unsafe { libc::malloc(size_of::<LlamaSampler>()) }.cast::<LlamaSampler>();
                if !shell.is_null() {
                    // SAFETY: fresh memory of this size, aligned for any type.
                    unsafe { shell.write(LlamaSampler { iface, ctx: ctx.cast() }) };
                }
                shell
            }
        };
        if shell.is_null() {
            // SAFETY: from Box::into_raw above, and nobody else has it.
            drop(unsafe { Box::from_raw(ctx) });
            return Err(Error::OutOfMemory("There is no memory for a sampler".into()));
        }
        Ok(shell)
    }

    fn apply(&mut self, list: &mut TokenDataArray) -> Result<()> {
        let Own { held, sieve, spare, .. } = self;
        let mask = match held {
            Held::Grammar(state) => state.mask()?,
            Held::Trie(_) => None,
        };
        let is_masked = match held {
            Held::Grammar(..) => mask.is_some(),
            Held::Trie(state) => state.mask().is_some(),
        };
        if is_masked {
            if list.size == 0 {
                *spare = [NOTHING];
                (list.data, list.size) = (spare.as_mut_ptr(), spare.len());
            }
            // SAFETY: the host's list has `size` candidates at `data`, or it is the spare one, whose sampler outlives
            // the use of the list.
            let candidates = unsafe { args::array_mut(list.data, list.size, "cur_p->data")? };
            let selected = usize::try_from(list.selected).ok();
            let masked = match (&*held, &mask) {
                (Held::Trie(state), _) => {
                    state.mask().map(|legal| sieve.mask(candidates, legal, state.mode(), selected))
                }
                (_, Some(mask)) => Some(masked(candidates, mask, selected)?),
                _ => None,
            };
            if let Some(masked) = masked {
                list.size = masked.size;
                list.selected = masked.selected.map_or(-1, |at| at as i64); // an index of memory
                list.sorted &= u8::from(masked.size == 1);
            }
        }
        if let Held::Trie(state) = held {
            state.note_apply();
        }
        Ok(())
    }

    fn accept(&mut self, token: Token) -> Result<()> {
        let state = match &mut self.held {
            Held::Trie(state) => state,
            Held::Grammar(state) => return state.accept(token),
        };
        match state.accept_replay(token) {
            Accept::Rearmed => log::warn!("Token trie re-armed: an accepted token is in no leaf"),
            Accept::NetReleased => log::warn!("Token trie released: no leaf completed within the limit of tokens"),
            Accept::Moved | Accept::Leaf | Accept::EndedAtLeaf | Accept::Ignored => {}
        }
        Ok(())
    }

    fn reset(&mut self) {
        match &mut self.held {
            Held::Trie(state) => *state = TrieState::new(state.trie().clone(), state.mode()),
            Held::Grammar(state) => state.rearm(),
        }
    }
}

/// Sets the logits of the illegal candidates to minus infinity, in their places. Where no legal one is in the list, or
/// all are at minus infinity, the first entry becomes the smallest legal token, and the list ends after it.
///
/// # Errors
/// [`Error::InvalidArgument`] where no token is legal; nothing is changed then.
fn masked(candidates: &mut [Candidate], mask: &Mask, selected: Option<usize>) -> Result<Masked> {
    let selected = selected.filter(|&at| at < candidates.len());
    let legal = LegalTokens::Mask { bits: mask.bits(), number: mask.number() };
    let Some(first) = mask.bits().iter().position(|&word| word != 0) else {
        return Err(Error::InvalidArgument("The grammar allows no token of the vocabulary here".into()));
    };
    let mut likeliest: Option<(usize, f32)> = None;
    for (at, one) in candidates.iter_mut().enumerate() {
        if !legal.allows(one.id) || one.logit.is_nan() {
            one.logit = f32::NEG_INFINITY;
        } else if one.logit > likeliest.map_or(f32::NEG_INFINITY, |(_, best)| best) {
            likeliest = Some((at, one.logit));
        }
    }
    let Some((likeliest, _)) = likeliest else {
        let id = (first * 32) as Token + mask.bits()[first].trailing_zeros() as Token;
        if let Some(entry) = candidates.first_mut() {
            *entry = Candidate { id, logit: 0.0, p: 1.0 };
        }
        return Ok(Masked { size: 1, selected: selected.map(|_| 0) });
    };
    let is_legal = |at: usize| candidates.get(at).is_some_and(|one| one.logit > f32::NEG_INFINITY);
    let selected = selected.map(|at| if is_legal(at) { at } else { likeliest });
    Ok(Masked { size: candidates.len(), selected })
}

/// The state of a sampler of ours.
///
/// # Safety
/// `smpl` is null or a sampler that was not freed, and nobody else uses it for `'a`.
unsafe fn state<'a>(smpl: *const LlamaSampler) -> Result<&'a mut Own> {
    if smpl.is_null() {
        return Err(Error::InvalidArgument("The sampler is NULL".into()));
    }
    // SAFETY: a live sampler, which begins with its table and its state.
    let (iface, ctx) = unsafe { ((*smpl).iface, (*smpl).ctx) };
    if !std::ptr::addr_eq(iface, &raw const TABLE) || ctx.is_null() {
        return Err(Error::InvalidArgument("The sampler is not one of this library".into()));
    }
    // SAFETY: with our table, the state is the box that `into_shell` put there; the caller has it alone.
    Ok(unsafe { &mut *ctx.cast::<Own>() })
}

/// Runs one call on a sampler within the panic boundary.
///
/// # Safety
/// As [`state`].
unsafe fn on_sampler(smpl: *const LlamaSampler, body: impl FnOnce(&mut Own) -> Result<()>) -> i32 {
    let run = || {
        // SAFETY: the caller's promise.
        body(unsafe { state(smpl)? })?;
        Ok(ELIZA_OK)
    };
    // SAFETY: no out_error.
    unsafe { on_process(std::ptr::null_mut(), run) }.unwrap_or_else(|code| code)
}

/// Makes a sampler that constrains a llama.cpp chain to the leaves of a token trie, armed at its first descriptor.
///
/// The payload is that of `eliza_inference_set_token_trie`, here with a terminator. Its place in the chain is after
/// biases and penalties and before what truncates (top-k, top-p, min-p ...). In another place no illegal token is drawn
/// either, but a truncation before it may have dropped every legal candidate, and then the trie chooses without logits.
/// Inside a span the logits of illegal candidates become minus infinity, in place; `ELIZA_TRIE_GREEDY` then leaves one
/// candidate, the likeliest legal one, and `ELIZA_TRIE_SAMPLED` the rest of the chain to draw from the legal ones.
/// Completing a leaf releases the constraint until `llama_sampler_reset`, `eliza_inference_sampler_arm` or a new
/// sampler. A host may pass its prompt through `llama_sampler_accept`: at the start of a span a token counts only if
/// the sampler was applied since the last one.
///
/// The sampler is made by the `llama_sampler_init` that `eliza_inference_set_host_sampler_init` was given, else by that
/// of the libllama in the process, however it was loaded, so that a chain can own it and `llama_sampler_free` free it.
/// Where there is no libllama it is from the C allocator: the functions `eliza_inference_sampler_...` drive it, and it
/// must not be given to a libllama that is loaded later. With a libllama, tokens are checked against `vocab`.
///
/// Ownership: the payload is copied, `vocab` is used only during the call; the host owns the sampler until it gives it
/// to a chain. Null rule: the payload must not be NULL; a NULL `vocab` leaves the tokens unchecked. Threads: any,
/// several at once; one sampler is used by one thread at a time. Neither it nor any call on it ever unwinds into the
/// host or ends the process; a failure inside a chain leaves the candidates unchanged, and its text is in
/// `eliza_inference_take_last_error`.
///
/// Returns the sampler, or NULL with the reason in `eliza_inference_take_last_error`: a payload that is refused, a mode
/// that is not 0 or 1 (`ELIZA_TRIE_SCORE_LEAVES` needs the model, which a sampler does not see), no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_sampler_init_token_trie(
    vocab: *const LlamaVocab,
    trie_descriptor_json: *const c_char,
    mode: c_int,
) -> *mut LlamaSampler {
    let make = || {
        let mode = Mode::from_number(mode)?;
        if mode == Mode::ScoreLeaves {
            let problem = "token trie mode 2 (score leaves) in a sampler: it needs the model, use 0 or 1";
            return Err(Error::Unsupported(problem.into()));
        }
        // SAFETY: the header asks for null or a terminated string.
        let json = unsafe { args::text(trie_descriptor_json, "trie_descriptor_json")? };
        let host = host::find();
        let check = |trie: &Trie| match host.and_then(|host| host.vocab_tokens) {
            Some(count) if !vocab.is_null() => {
                // SAFETY: the header asks for a vocabulary of the host's libllama, whose function this is.
                let tokens = panic::host(|| unsafe { count(vocab) });
                trie.check_vocab(usize::try_from(tokens).unwrap_or(0))
            }
            _ => {
                log::warn!("Token trie: its tokens were not checked against a vocabulary");
                Ok(())
            }
        };
        let trie = cache::load(json.as_bytes(), check)?;
        for warning in trie.warnings() {
            log::warn!("Token trie: {warning}");
        }
        Own::new(Held::Trie(TrieState::new(trie, mode)), host.map(|host| host.init)).into_shell()
    };
    // SAFETY: no out_error.
    unsafe { on_process(std::ptr::null_mut(), make) }.unwrap_or(std::ptr::null_mut())
}

/// Makes a sampler that holds a llama.cpp chain to a grammar. The source is that of `eliza_inference_set_grammar`; its
/// `jump_ahead` says nothing here. The vocabulary is that of an open handle, which may be one of a vocabulary alone
/// (`vocab_only`), of the same model as the host's.
///
/// Its place in the chain is before what truncates. The logits of illegal candidates become minus infinity, in place;
/// where no legal one is in the list, the first entry becomes the smallest legal token with logit 0, and `size` 1.
/// Tokens that end the generation are legal where the grammar may end. A sampled token is passed to it by
/// `llama_sampler_accept`, the prompt is not: a token that does not fit changes nothing, and the reason is in
/// `eliza_inference_take_last_error`. `llama_sampler_reset` begins the grammar again. Who frees it, and what drives it,
/// is as with `llama_sampler_init_token_trie`.
///
/// Ownership: the source is copied; the sampler may outlive the handle. `vocab` is used only during the call. Null
/// rule: `json` must not be NULL; a NULL `vocab` leaves the number of its tokens unchecked. Threads: any, several at
/// once; one sampler is used by one thread at a time.
///
/// Returns the sampler, or NULL with the reason in `eliza_inference_llm_stream_take_error` (of a NULL or closed handle
/// in `eliza_inference_take_last_error`): a grammar that is refused, a vocabulary of another size, no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_sampler_init_grammar(
    handle: FfiLlmHandle,
    vocab: *const LlamaVocab,
    json: *const c_char,
    json_len: usize,
) -> *mut LlamaSampler {
    let make = |stream: &Stream| {
        // SAFETY: the header asks for `json_len` readable bytes.
        let json = unsafe { args::array(json.cast::<u8>(), json_len, "json")? };
        let host = host::find();
        let ours = stream.session.vocab();
        if let Some(count) = host.and_then(|host| host.vocab_tokens).filter(|_| !vocab.is_null()) {
            // SAFETY: the header asks for a vocabulary of the host's libllama, whose function this is.
            let tokens = panic::host(|| unsafe { count(vocab) });
            if usize::try_from(tokens) != Ok(ours.n_tokens()) {
                let problem = format!("vocab has {tokens} tokens, the handle's model {}", ours.n_tokens());
                return Err(Error::InvalidArgument(problem));
            }
        }
        let held = Held::Grammar(GrammarState::new(grammar::load(json, ours)?));
        Own::new(held, host.map(|host| host.init)).into_shell()
    };
    ask(handle, make).unwrap_or(std::ptr::null_mut())
}

/// Says which `llama_sampler_init` makes the samplers of `llama_sampler_init_token_trie`, instead of the one found in
/// the process. Needed where llama.cpp is linked into the program without exporting its symbols, and where the process
/// holds more than one libllama: a sampler must come from the copy that frees it.
///
/// Null rule: NULL goes back to the search. Threads: any. Returns `ELIZA_OK` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_set_host_sampler_init(init: SamplerInit) -> i32 {
    let set = || {
        host::set_init(init);
        Ok(ELIZA_OK)
    };
    // SAFETY: no out_error.
    unsafe { on_process(std::ptr::null_mut(), set) }.unwrap_or_else(|code| code)
}

/// The name of a sampler of this library, `token-trie` or `grammar`.
///
/// Ownership: static, do not free. Null rule: NULL for a sampler that is NULL or not of this library. Threads: one at a
/// time per sampler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_sampler_name(smpl: *const LlamaSampler) -> *const c_char {
    let mut name = std::ptr::null();
    let ask = |own: &mut Own| {
        name = own.held.name().as_ptr();
        Ok(())
    };
    // SAFETY: the header asks for a live sampler that no other thread uses.
    unsafe { on_sampler(smpl, ask) };
    name
}

/// Passes a sampled token, to a token trie also one of the prompt, to a sampler: `llama_sampler_accept`.
///
/// Null rule: a NULL sampler is an error. Threads: one at a time per sampler. Returns `ELIZA_OK`,
/// `ELIZA_ERR_INVALID_ARG` (not a sampler of this library, a token that the grammar does not allow) or
/// `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_sampler_accept(smpl: *mut LlamaSampler, token: i32) -> i32 {
    // SAFETY: the header asks for a live sampler that no other thread uses.
    unsafe { on_sampler(smpl, |own| own.accept(token)) }
}

/// Sets the logits of the illegal tokens in a list of candidates to minus infinity, in place: `llama_sampler_apply`.
/// Legal ones keep place and logit; with `ELIZA_TRIE_GREEDY` the likeliest of them is then swapped with the first
/// entry, and `size` becomes 1. Where no legal candidate was in the list, the first entry becomes the smallest legal
/// token with logit 0, and `size` 1. Outside a span the list stays as it is.
///
/// Null rule: a NULL sampler, a NULL list and NULL data of a size are errors. Threads: one at a time per sampler.
/// Returns `ELIZA_OK`, `ELIZA_ERR_INVALID_ARG` (not a sampler of this library, no list) or `ELIZA_ERR_FFI_FAULT`; then
/// the list is as it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_sampler_apply(smpl: *mut LlamaSampler, cur_p: *mut TokenDataArray) -> i32 {
    let apply = |own: &mut Own| {
        // SAFETY: the header asks for null or a list of candidates that nobody else uses.
        match unsafe { args::array_mut(cur_p, 1, "cur_p")? } {
            [list] => own.apply(list),
            _ => Ok(()),
        }
    };
    // SAFETY: the header asks for a live sampler that no other thread uses.
    unsafe { on_sampler(smpl, apply) }
}

/// Arms the first descriptor of a token trie sampler again, or begins its grammar again: `llama_sampler_reset`.
///
/// Null rule: a NULL sampler is an error. Threads: one at a time per sampler. Returns `ELIZA_OK`,
/// `ELIZA_ERR_INVALID_ARG` (not a sampler of this library) or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_sampler_reset(smpl: *mut LlamaSampler) -> i32 {
    let reset = |own: &mut Own| {
        own.reset();
        Ok(())
    };
    // SAFETY: the header asks for a live sampler that no other thread uses.
    unsafe { on_sampler(smpl, reset) }
}

/// Arms one descriptor of a token trie sampler, by its path; also of one in a chain, which llama.cpp has no call for.
///
/// Null rule: a NULL `path` arms the next descriptor in payload order, after the last the first; a NULL sampler is an
/// error. Threads: one at a time per sampler. Returns `ELIZA_OK`, `ELIZA_ERR_INVALID_ARG` (not a sampler of this
/// library, no such path: the text names the known ones, not UTF-8) or `ELIZA_ERR_FFI_FAULT`; then nothing changes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_sampler_arm(smpl: *mut LlamaSampler, path: *const c_char) -> i32 {
    let arm = |own: &mut Own| {
        // SAFETY: the header asks for null or a terminated string.
        let path = unsafe { args::optional_text(path, "path")? };
        match &mut own.held {
            Held::Trie(state) => state.arm(path),
            Held::Grammar(..) => {
                Err(Error::InvalidArgument("The sampler is a grammar: there is nothing to arm".into()))
            }
        }
    };
    // SAFETY: the header asks for a live sampler that no other thread uses.
    unsafe { on_sampler(smpl, arm) }
}

/// An independent sampler in the same state: `llama_sampler_clone`. It is allocated in the same way as the original.
///
/// Ownership: the host owns the clone. Null rule: a NULL sampler is an error. Threads: one at a time per sampler.
/// Returns NULL with the reason in `eliza_inference_take_last_error`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_sampler_clone(smpl: *const LlamaSampler) -> *mut LlamaSampler {
    let clone = || {
        // SAFETY: the header asks for a live sampler that no other thread uses.
        let own = unsafe { state(smpl)? };
        Own::new(own.held.clone(), own.init).into_shell()
    };
    // SAFETY: no out_error.
    unsafe { on_process(std::ptr::null_mut(), clone) }.unwrap_or(std::ptr::null_mut())
}

/// Frees a token trie sampler that no `llama_sampler_init` made. One that a libllama made is freed by its
/// `llama_sampler_free`, or by the chain that owns it; here that is an error and nothing happens.
///
/// Ownership: takes it. Null rule: NULL does nothing. Threads: any. Returns `ELIZA_OK`, `ELIZA_ERR_INVALID_ARG` (a
/// sampler of llama.cpp) or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_sampler_free(smpl: *mut LlamaSampler) -> i32 {
    if smpl.is_null() {
        return ELIZA_OK;
    }
    let release = |own: &mut Own| match own.init {
        Some(_) => Err(Error::InvalidArgument("The sampler is llama.cpp's: free it by llama_sampler_free".into())),
        None => Ok(()),
    };
    // SAFETY: the header asks for a live sampler that no other thread uses.
    let status = unsafe { on_sampler(smpl, release) };
    if status == ELIZA_OK {
        // SAFETY: it is a live sampler of ours, as was just seen, whose shell is from malloc; nobody uses it after
        // this.
        unsafe {
            free(smpl);
            libc::free(smpl.cast());
        }
    }
    status
}

unsafe extern "C" fn accept(smpl: *mut LlamaSampler, token: Token) {
    // SAFETY: llama.cpp passes a live sampler, and has it alone.
    unsafe { eliza_inference_sampler_accept(smpl, token) };
}

unsafe extern "C" fn apply(smpl: *mut LlamaSampler, cur_p: *mut TokenDataArray) {
    // SAFETY: llama.cpp passes a live sampler and a list, and has them alone.
    unsafe { eliza_inference_sampler_apply(smpl, cur_p) };
}

unsafe extern "C" fn reset(smpl: *mut LlamaSampler) {
    // SAFETY: llama.cpp passes a live sampler, and has it alone.
    unsafe { eliza_inference_sampler_reset(smpl) };
}

/// Frees the state; the shell is freed by what made it.
unsafe extern "C" fn free(smpl: *mut LlamaSampler) {
    let release = || {
        // SAFETY: llama.cpp passes a live sampler, and has it alone.
        unsafe { state(smpl)? };
        // SAFETY: as above; it is one of ours, so its state is the box that `into_shell` put there, now taken out.
        drop(unsafe { Box::from_raw(std::mem::replace(&mut (*smpl).ctx, std::ptr::null_mut()).cast::<Own>()) });
        Ok(())
    };
    // SAFETY: no out_error.
    let _ = unsafe { on_process(std::ptr::null_mut(), release) };
}

unsafe extern "C" fn copy_state(src: *const LlamaSampler, dst: *mut LlamaSampler) {
    if std::ptr::eq(src, dst) {
        return;
    }
    let copy = |own: &mut Own| {
        // SAFETY: llama.cpp passes two live samplers, which are not the same, and has them alone.
        own.held = unsafe { state(src)? }.held.clone();
        Ok(())
    };
    // SAFETY: as above.
    unsafe { on_sampler(dst, copy) };
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::super::status::ELIZA_ERR_FFI_FAULT;
    use super::*;

    const JSON: &CStr = c"{\"descriptors\":[{\"path\":\"p\",\"leaves\":[{\"name\":\"n\",\"tokens\":[3,4]},\
        {\"name\":\"m\",\"tokens\":[1]}]}]}";

    #[test]
    fn structures_are_laid_out_as_in_llama_cpp() {
        const WORD: usize = size_of::<usize>();
        assert_eq!((size_of::<LlamaSampler>(), offset_of!(LlamaSampler, ctx)), (2 * WORD, WORD));
        assert_eq!(size_of::<Interface>(), SLOTS * WORD);
        let slots = [
            offset_of!(Interface, name),
            offset_of!(Interface, accept),
            offset_of!(Interface, apply),
            offset_of!(Interface, reset),
            offset_of!(Interface, clone),
            offset_of!(Interface, free),
            offset_of!(Interface, backend),
            offset_of!(Interface, copy_state),
            offset_of!(Interface, reserved),
        ];
        assert_eq!(slots.map(|offset| offset / WORD), [0, 1, 2, 3, 4, 5, 6, 11, 12]);
        assert_eq!((size_of::<Candidate>(), offset_of!(Candidate, logit), offset_of!(Candidate, p)), (12, 4, 8));
        assert_eq!((size_of::<TokenDataArray>(), offset_of!(TokenDataArray, sorted)), (32, 24));
    }

    #[test]
    fn a_fault_ends_at_the_boundary_and_the_sampler_goes_on() {
        let mut data = [0, 1, 2, 3].map(|id| Candidate { id, logit: 0.5, p: 0.0 });
        let mut list = TokenDataArray { data: data.as_mut_ptr(), size: 4, selected: -1, sorted: 0 };
        // SAFETY: a terminated payload, and a sampler that lives until it is freed once, used by this thread alone.
        unsafe {
            let trie = cache::load(JSON.to_bytes(), |_| Ok(())).unwrap();
            let smpl = Own::new(Held::Trie(TrieState::new(trie, Mode::Sampled)), None);
            let smpl = smpl.into_shell().unwrap();
            assert_eq!(on_sampler(smpl, |_| panic!("at work")), ELIZA_ERR_FFI_FAULT);
            apply(smpl, &raw mut list);
            assert_eq!(list.size, 4);
            let (masked, legal) = (f32::NEG_INFINITY, 0.5);
            assert_eq!(data.map(|one| one.logit), [masked, legal, masked, legal]);
            assert_eq!(eliza_inference_sampler_free(smpl), ELIZA_OK);
        }
    }

    #[test]
    fn every_empty_list_gets_the_smallest_legal_token() {
        // SAFETY: as above.
        unsafe {
            let trie = cache::load(JSON.to_bytes(), |_| Ok(())).unwrap();
            let smpl = Own::new(Held::Trie(TrieState::new(trie, Mode::Sampled)), None);
            let smpl = smpl.into_shell().unwrap();
            for (taken, legal) in [(None, 1), (Some(3), 4), (Some(9), 1)] {
                if let Some(token) = taken {
                    accept(smpl, token);
                }
                let mut list = TokenDataArray { data: std::ptr::null_mut(), size: 0, selected: -1, sorted: 0 };
                apply(smpl, &raw mut list);
                assert_eq!((list.size, (*list.data).id), (1, legal));
            }
            assert_eq!(eliza_inference_sampler_free(smpl), ELIZA_OK);
        }
    }
}
