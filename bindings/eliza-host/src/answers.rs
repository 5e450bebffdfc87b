//! Questions to a context that have an answer at once: tokens, embeddings, whether a turn has ended.

use crate::context::{CONTEXTS, Context, EliInferenceContext};
use crate::edge::{ELIZA_OK, array, array_mut, call, give_tokens, invalid, required, store, write_text};
use elizainference::session::{EmbedOptions, Pooling, Session, Sink};
use elizainference::{Error, Result, Token};
use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::time::Duration;

/// Whether texts can be made tokens: 1. Threads: any. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_tokenize_supported() -> c_int {
    1
}

/// The tokens of a text. Needs no weights.
///
/// Ownership: the host frees `*out_tokens` with `eliza_inference_free_tokens` (it is not NULL even where there are
/// none), and `*out_error`. Null rule: `text` may be NULL where `text_len` is 0; `out_tokens` and `out_n` must not be.
/// Threads: any.
///
/// Returns `ELIZA_OK`, `ELIZA_ERR_INVALID_ARG`, `ELIZA_ERR_OOM`, or the code of what is wrong with the model's file.
///
/// # Safety
/// `text` is NULL or points to `text_len` readable bytes; the other pointers are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_tokenize(
    ctx: *mut EliInferenceContext,
    text: *const c_char,
    text_len: usize,
    add_special: c_int,
    parse_special: c_int,
    out_tokens: *mut *mut c_int,
    out_n: *mut usize,
    out_error: *mut *mut c_char,
) -> c_int {
    let tokenize = || {
        let context = CONTEXTS.get(ctx)?;
        required(out_tokens, "out_tokens")?;
        required(out_n, "out_n")?;
        // SAFETY: the host's promise.
        let text = unsafe { array(text.cast::<u8>(), text_len, "text")? };
        let vocabulary = context.vocabulary()?;
        let tokens = vocabulary.tokenize(text, add_special != 0, parse_special != 0)?;
        let copy = give_tokens(&tokens)?;
        // SAFETY: the host's promise.
        unsafe {
            store(out_tokens, copy);
            store(out_n, tokens.len());
        }
        Ok(ELIZA_OK)
    };
    // SAFETY: the host's promise.
    unsafe { call(out_error, tokenize) }
}

/// The text of tokens, with a terminator. Needs no weights.
///
/// Ownership: `out_text` is the host's; it frees `*out_error`. Null rule: `tokens` may be NULL where there are none,
/// `out_text` must not be. Threads: any.
///
/// Returns the bytes written, without the terminator; or `ELIZA_ERR_INVALID_ARG` (a token that does not exist, a buffer
/// that is too small; the text says what it takes) or the code of what is wrong with the model's file.
///
/// # Safety
/// `tokens` is NULL or points to `n_tokens` readable numbers, `out_text` is NULL or points to `max_text_bytes` writable
/// bytes, `out_error` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_detokenize(
    ctx: *mut EliInferenceContext,
    tokens: *const c_int,
    n_tokens: usize,
    remove_special: c_int,
    unparse_special: c_int,
    out_text: *mut c_char,
    max_text_bytes: usize,
    out_error: *mut *mut c_char,
) -> c_int {
    let detokenize = || {
        let context = CONTEXTS.get(ctx)?;
        // SAFETY: the host's promise.
        let (tokens, out) = unsafe {
            (array(tokens, n_tokens, "tokens")?, array_mut(out_text.cast::<u8>(), max_text_bytes, "out_text")?)
        };
        let vocabulary = context.vocabulary()?;
        write_text(&vocabulary.detokenize(tokens, remove_special != 0, unparse_special != 0)?, out)
    };
    // SAFETY: the host's promise.
    unsafe { call(out_error, detokenize) }
}

/// Whether texts can be embedded: 1. Threads: any. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_embed_supported() -> c_int {
    1
}

/// The embedding of a text by the context's text model, divided by its length. Waits for it, and for the weights where
/// they are not in memory.
///
/// Ownership: `out_embedding` is the host's; it frees `*out_error`. Null rule: `out_dim` must not be NULL. Threads:
/// any.
///
/// Returns `ELIZA_OK`, or `ELIZA_ERR_INVALID_ARG` (a pooling other than 1 mean, 2 cls, 3 last; a text without tokens or
/// longer than the context; with fewer than `*out_dim` numbers of room nothing but `*out_dim` is written) or the code
/// of what went wrong with model or device.
///
/// # Safety
/// `text` is NULL or points to `text_len` readable bytes, `out_embedding` is NULL or points to `out_capacity` writable
/// numbers; the other pointers are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_embed(
    ctx: *mut EliInferenceContext,
    text: *const c_char,
    text_len: usize,
    pooling: c_int,
    out_embedding: *mut f32,
    out_capacity: usize,
    out_dim: *mut c_int,
    out_error: *mut *mut c_char,
) -> c_int {
    let embed = || {
        let context = CONTEXTS.get(ctx)?;
        required(out_dim, "out_dim")?;
        let pooling = match pooling {
            1 => Pooling::Mean,
            2 => Pooling::Cls,
            3 => Pooling::Last,
            other => return Err(invalid(format!("pooling is {other}: an embedding needs 1, 2 or 3"))),
        };
        // SAFETY: the host's promise.
        let (text, out) = unsafe {
            (array(text.cast::<u8>(), text_len, "text")?, array_mut(out_embedding, out_capacity, "out_embedding")?)
        };
        let options = EmbedOptions { pooling: Some(pooling), normalize: true, dimensions: 0 };
        let made = with_session(&context, |session| session.embed_texts(&[text], &options))?;
        let row = made.texts.first().ok_or_else(|| Error::Internal("no row of a text".into()))?;
        // SAFETY: the host's promise.
        unsafe { store(out_dim, row.len() as c_int) };
        let Some(out) = out.get_mut(..row.len()) else {
            return Err(invalid(format!("out_capacity is {out_capacity}, the embedding has {} numbers", row.len())));
        };
        out.copy_from_slice(row);
        Ok(ELIZA_OK)
    };
    // SAFETY: the host's promise.
    unsafe { call(out_error, embed) }
}

/// Whether the end of a turn can be scored: 1. Threads: any. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn eliza_inference_llm_eot_supported() -> c_int {
    1
}

/// How probable a token is after others, and which token is the likeliest: by the model's own logits, without
/// sampling. Waits for it, and for the weights where they are not in memory. Of more tokens than the context has, the
/// last ones count.
///
/// Ownership: `token_ids` is read during the call; the host frees `*out_error`. Null rule: `out_target_prob` must not
/// be NULL, `out_top_token` and `out_top_prob` may be. Threads: any.
///
/// Returns `ELIZA_OK`, `ELIZA_ERR_INVALID_ARG` (no tokens, one that does not exist), `ELIZA_ERR_NOT_IMPLEMENTED` (a
/// model of embeddings alone) or the code of what went wrong with model or device.
///
/// # Safety
/// `token_ids` is NULL or points to `num_tokens` readable numbers; the other pointers are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_eot_score(
    ctx: *mut EliInferenceContext,
    token_ids: *const i32,
    num_tokens: usize,
    target_token_id: i32,
    out_target_prob: *mut f32,
    out_top_token: *mut i32,
    out_top_prob: *mut f32,
    out_error: *mut *mut c_char,
) -> c_int {
    let score = || {
        let context = CONTEXTS.get(ctx)?;
        required(out_target_prob, "out_target_prob")?;
        // SAFETY: the host's promise.
        let tokens = unsafe { array(token_ids, num_tokens, "token_ids")? };
        let n_vocab = context.vocabulary()?.info().n_vocab;
        let target = usize::try_from(target_token_id).ok().filter(|&target| target < n_vocab);
        let target = target.ok_or_else(|| {
            invalid(format!("target_token_id is {target_token_id}, but the vocabulary has {n_vocab} tokens"))
        })?;
        let logits = with_session(&context, |session| last_logits(session, tokens))?;
        let [of_target, top] = probabilities(&logits, target)?;
        // SAFETY: the host's promise.
        unsafe {
            store(out_target_prob, of_target.1);
            store(out_top_token, top.0);
            store(out_top_prob, top.1);
        }
        Ok(ELIZA_OK)
    };
    // SAFETY: the host's promise.
    unsafe { call(out_error, score) }
}

/// The logits after the last of `tokens`.
fn last_logits(session: &Session, tokens: &[Token]) -> Result<Vec<f32>> {
    let context = session.info().context as usize;
    session.prefill(&tokens[tokens.len().saturating_sub(context)..], -1)?;
    let mut logits = vec![0.0; session.info().n_vocab];
    let asked = session.logits(1, &mut logits);
    // A prompt that waits for its answer would hold up those that are read ahead. A constraint that was refused before
    // may refuse this, which changes nothing of the logits.
    let _ = session.generate(0, None, None, Sink::Queue);
    asked.map(|_| logits)
}

/// A token and its probability: of `target`, and of the likeliest.
fn probabilities(logits: &[f32], target: usize) -> Result<[(Token, f32); 2]> {
    let top = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    let top = top.ok_or_else(|| Error::Internal("a row without logits".into()))?;
    if let Some(token) = logits.iter().position(|logit| logit.is_nan()) {
        return Err(Error::NanLogits { row: 0, token });
    }
    let weight = |token: usize| f64::from(logits[token] - logits[top]).exp();
    let sum: f64 = (0..logits.len()).map(weight).sum();
    Ok([target, top].map(|token| (token as Token, (weight(token) / sum) as f32)))
}

/// Asks a session of the context that no stream uses.
fn with_session<T>(context: &Arc<Context>, ask: impl FnOnce(&Session) -> Result<T>) -> Result<T> {
    let engine = context.pool.take_any(&context.bundle.model);
    let outcome = engine.session.wait().and_then(|session| {
        // A stream that was closed may not have come to its end.
        while !session.wait_idle(Duration::MAX) {}
        ask(&session)
    });
    context.pool.give_back(engine);
    outcome
}
