//! Rows of whole texts: embeddings, and the scores of rerankers.

use std::ffi::{c_char, c_int};

use super::errors::{ask_out, on_handle};
use super::handle::FfiLlmHandle;
use super::state::Stream;
use super::status::ELIZA_OK;
use super::{args, strings};
use crate::panic;
use crate::session::{EmbedOptions, Embeddings, Pooling};
use crate::{Error, Result, Token};

/// `pooling`: as the model's file says.
pub const ELIZA_POOLING_DEFAULT: i32 = 0;
/// `pooling`: the row of every token.
pub const ELIZA_POOLING_NONE: i32 = 1;
/// `pooling`: the mean of the rows of all tokens.
pub const ELIZA_POOLING_MEAN: i32 = 2;
/// `pooling`: the row of the first token.
pub const ELIZA_POOLING_CLS: i32 = 3;
/// `pooling`: the row of the last token.
pub const ELIZA_POOLING_LAST: i32 = 4;
/// `pooling`: the scores of the model's classifier.
pub const ELIZA_POOLING_RANK: i32 = 5;

/// How rows of texts are made. All zeroes, but for the size, is what most models want.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct EmbeddingOptions {
    /// sizeof(eliza_llm_embedding_options_t), set by the caller.
    pub struct_size: u32,
    /// How the rows of a text's tokens become one: `ELIZA_POOLING_DEFAULT` (0) to `ELIZA_POOLING_RANK`.
    pub pooling: i32,
    /// How many of a row's first numbers are kept, for models trained for that (Matryoshka); 0: all.
    pub dimensions: u32,
    /// 1 leaves rows as they are; 0 divides each by its length. Scores are never divided.
    pub no_normalize: u32,
}

// SAFETY: repr(C), the size first, then numbers: all may be zero.
unsafe impl args::Sized32 for EmbeddingOptions {
    const NAME: &'static str = "eliza_llm_embedding_options_t";
}

/// Where the host gets rows.
#[derive(Clone, Copy)]
struct Out {
    rows: *mut *mut f32,
    n_rows: *mut usize,
    width: *mut usize,
}

/// The rows of texts: their embeddings. Blocks until they are computed; short texts share passes.
///
/// The texts follow one another in `texts`, `text_lens` has the bytes of each. They get the begin- and end-of-text
/// tokens that the model wants; the text of special tokens is text. `options` NULL is all zeroes. Rows come in the
/// order of the texts, one for each, or with `ELIZA_POOLING_NONE` one for each token; each has `*out_width` numbers. A
/// text of more tokens than the context is refused, never cut. A prompt that waits for its generate is forgotten.
///
/// Ownership: everything is read only during the call; the host frees `*out_rows` with `eliza_inference_free_rows` (it
/// is not NULL even where there are no rows) and `*out_error`. Null rule: `options` may be NULL, and so may `texts` and
/// `text_lens` where there is nothing in them; the out-pointers must not be NULL, but `out_error` may be; a NULL or
/// closed handle is -1. Threads: any; fails while the handle is at work, and inside the callback.
/// `eliza_inference_llm_stream_cancel` from another thread ends it early.
///
/// Returns `ELIZA_OK`, -1 (handle; or only the vocabulary is open), `ELIZA_ERR_INVALID_ARG` (a text without tokens or
/// too long, no such pooling, more dimensions than there are), `ELIZA_ERR_BUSY`, `ELIZA_ERR_CANCELLED`,
/// `ELIZA_ERR_OOM`, `ELIZA_ERR_DEVICE` or `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_embed(
    handle: FfiLlmHandle,
    options: *const EmbeddingOptions,
    texts: *const c_char,
    text_lens: *const usize,
    n_texts: usize,
    out_rows: *mut *mut f32,
    out_n_rows: *mut usize,
    out_width: *mut usize,
    out_error: *mut *mut c_char,
) -> i32 {
    let out = Out { rows: out_rows, n_rows: out_n_rows, width: out_width };
    let embed = |stream: &Stream| {
        // SAFETY: the header asks for what `parts` and `options_of` do.
        let (texts, options) = unsafe { (parts(texts.cast::<u8>(), text_lens, n_texts)?, options_of(options)?) };
        out.check()?;
        let made = stream.session.embed_texts(&texts, &options)?;
        // SAFETY: the out-pointers are not null, hence writable.
        unsafe { out.give(&made) }
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, embed) }.unwrap_or_else(|code| code)
}

/// As `eliza_inference_llm_stream_embed`, of texts that are tokens already: they follow one another in `tokens`, and
/// `token_counts` has the number of each. Nothing is added to them.
///
/// Ownership, null rule, threads and results are those of `eliza_inference_llm_stream_embed`; a token that does not
/// exist is `ELIZA_ERR_INVALID_ARG`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_embed_tokens(
    handle: FfiLlmHandle,
    options: *const EmbeddingOptions,
    tokens: *const i32,
    token_counts: *const usize,
    n_texts: usize,
    out_rows: *mut *mut f32,
    out_n_rows: *mut usize,
    out_width: *mut usize,
    out_error: *mut *mut c_char,
) -> i32 {
    let out = Out { rows: out_rows, n_rows: out_n_rows, width: out_width };
    let embed = |stream: &Stream| {
        // SAFETY: the header asks for what `lists` and `options_of` do.
        let (texts, options) = unsafe { (lists(tokens, token_counts, n_texts)?, options_of(options)?) };
        out.check()?;
        let made = stream.session.embed(texts, &options)?;
        // SAFETY: the out-pointers are not null, hence writable.
        unsafe { out.give(&made) }
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, embed) }.unwrap_or_else(|code| code)
}

/// As `eliza_inference_llm_stream_embed_tokens`, but returns at once: for hosts with one thread.
///
/// `eliza_inference_llm_stream_status` is `ELIZA_STATUS_GENERATING` until the rows are computed;
/// `eliza_inference_llm_stream_take_embeddings` then has them. Poll about every millisecond, to leave the cores to the
/// library. Rows that were not taken are dropped.
///
/// Ownership: everything is copied, `*out_error` is the host's to free. Null rule and threads are those of
/// `eliza_inference_llm_stream_embed`.
///
/// Returns `ELIZA_OK` when it was started, or -1 (handle), `ELIZA_ERR_INVALID_ARG`, `ELIZA_ERR_BUSY` or
/// `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_start_embed(
    handle: FfiLlmHandle,
    options: *const EmbeddingOptions,
    tokens: *const i32,
    token_counts: *const usize,
    n_texts: usize,
    out_error: *mut *mut c_char,
) -> i32 {
    let start = |stream: &Stream| {
        // SAFETY: the header asks for what `lists` and `options_of` do.
        let (texts, options) = unsafe { (lists(tokens, token_counts, n_texts)?, options_of(options)?) };
        stream.session.start_embed(texts, &options).map(|()| ELIZA_OK)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, start) }.unwrap_or_else(|code| code)
}

/// The rows of `eliza_inference_llm_stream_start_embed`; each are given once.
///
/// Ownership: the host frees `*out_rows` with `eliza_inference_free_rows` (it is not NULL even where there are no rows)
/// and `*out_error`. Null rule: the out-pointers must not be NULL, but `out_error` may be; a NULL or closed handle is
/// -1. Threads: any, any time, inside the callback too.
///
/// Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_BUSY` (they are being computed), `ELIZA_ERR_INVALID_ARG` (nothing was
/// started, or all was taken), or the code of the error that ended the computation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_take_embeddings(
    handle: FfiLlmHandle,
    out_rows: *mut *mut f32,
    out_n_rows: *mut usize,
    out_width: *mut usize,
    out_error: *mut *mut c_char,
) -> i32 {
    let out = Out { rows: out_rows, n_rows: out_n_rows, width: out_width };
    let take = |stream: &Stream| {
        out.check()?;
        let made = stream.session.take_embeddings()?;
        // SAFETY: the out-pointers are not null, hence writable.
        unsafe { out.give(&made) }
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { ask_out(handle, out_error, take) }.unwrap_or_else(|code| code)
}

/// How well each text answers a question: the first score of the model's classifier, which has to be a reranker. Higher
/// is better; some models give probabilities, others any number. Blocks until they are computed.
///
/// Question and text are put together as the model's file says. The texts follow one another in `texts`, `text_lens`
/// has the bytes of each; `out_scores` gets as many numbers as there are texts, in their order.
///
/// Ownership: everything is read only during the call; `out_scores` is the host's, `*out_error` is the host's to free.
/// Null rule: an array may be NULL where there is nothing in it; `out_error` may be NULL; a NULL or closed handle is
/// -1. Threads and results are those of `eliza_inference_llm_stream_embed`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_rank(
    handle: FfiLlmHandle,
    query: *const c_char,
    query_len: usize,
    texts: *const c_char,
    text_lens: *const usize,
    n_texts: usize,
    out_scores: *mut f32,
    out_error: *mut *mut c_char,
) -> i32 {
    let rank = |stream: &Stream| {
        // SAFETY: the header asks for `query_len` readable bytes, for what `parts` does, and `n_texts` writable
        // numbers.
        let (query, texts, out) = unsafe {
            let query = args::array(query.cast::<u8>(), query_len, "query")?;
            let texts = parts(texts.cast::<u8>(), text_lens, n_texts)?;
            (query, texts, args::array_mut(out_scores, n_texts, "out_scores")?)
        };
        let scores = stream.session.rank(query, &texts)?;
        out.iter_mut().zip(scores).for_each(|(out, score)| *out = score);
        Ok(ELIZA_OK)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { on_handle(handle, out_error, rank) }.unwrap_or_else(|code| code)
}

/// The tokens of a question and a text, put together as the model's file says: those that
/// `eliza_inference_llm_stream_rank` scores, for `eliza_inference_llm_stream_start_embed` with `ELIZA_POOLING_RANK`.
///
/// Ownership: question and text are read only during the call; the host frees `*out_tokens` with
/// `eliza_inference_free_tokens`, and `*out_error`. Null rule: an array may be NULL where its length is 0; `out_tokens`
/// and `out_n` must not be NULL; `out_error` may be; a NULL or closed handle is -1. Threads: any, any time, inside the
/// callback too.
///
/// Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_INVALID_ARG`, `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_OOM` or
/// `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_llm_stream_tokenize_pair(
    handle: FfiLlmHandle,
    query: *const c_char,
    query_len: usize,
    text: *const c_char,
    text_len: usize,
    out_tokens: *mut *mut c_int,
    out_n: *mut usize,
    out_error: *mut *mut c_char,
) -> c_int {
    let tokenize = |stream: &Stream| {
        if out_tokens.is_null() || out_n.is_null() {
            return Err(Error::InvalidArgument("out_tokens or out_n is NULL".into()));
        }
        // SAFETY: the header asks for readable bytes.
        let (query, text) = unsafe {
            (args::array(query.cast::<u8>(), query_len, "query")?, args::array(text.cast::<u8>(), text_len, "text")?)
        };
        let tokens = stream.session.tokenize_pair(query, text)?;
        let copy = strings::give_tokens(&tokens);
        if copy.is_null() {
            return Err(Error::OutOfMemory(format!("No memory for {} token ids", tokens.len())));
        }
        // SAFETY: the host's out-pointers are not null, hence writable.
        unsafe {
            args::store(out_tokens, copy);
            args::store(out_n, tokens.len());
        }
        Ok(ELIZA_OK)
    };
    // SAFETY: the host's out_error is null or writable.
    unsafe { ask_out(handle, out_error, tokenize) }.unwrap_or_else(|code| code)
}

/// Frees rows of texts that this library returned.
///
/// Ownership: takes them. Null rule: NULL is allowed and does nothing. Threads: any. Never fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_free_rows(rows: *mut f32) {
    let _ = panic::catch(|| {
        // SAFETY: null, or rows from `Out::give`, as the header demands, hence from malloc.
        unsafe { libc::free(rows.cast()) };
        Ok(())
    });
}

impl Out {
    fn check(self) -> Result<()> {
        match self.rows.is_null() || self.n_rows.is_null() || self.width.is_null() {
            true => Err(Error::InvalidArgument("out_rows, out_n_rows or out_width is NULL".into())),
            false => Ok(()),
        }
    }

    /// Gives the host a copy of the rows.
    ///
    /// # Safety
    /// The pointers are writable.
    unsafe fn give(self, made: &Embeddings) -> Result<i32> {
        let n: usize = made.texts.iter().map(Vec::len).sum();
        // SAFETY: malloc accepts any size.
        let copy = unsafe { libc::malloc((n * size_of::<f32>()).max(size_of::<f32>())) }.cast::<f32>();
        if copy.is_null() {
            return Err(Error::OutOfMemory(format!("No memory for rows of {n} numbers")));
        }
        let mut end = copy;
        for rows in &made.texts {
            // SAFETY: `copy` is fresh memory of `n` numbers, the sum of all rows, aligned for any type.
            unsafe {
                end.copy_from_nonoverlapping(rows.as_ptr(), rows.len());
                end = end.add(rows.len());
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            args::store(self.rows, copy);
            args::store(self.n_rows, n / made.width.max(1));
            args::store(self.width, made.width);
        }
        Ok(ELIZA_OK)
    }
}

/// The host's options; null is all zeroes.
///
/// # Safety
/// `options` is null or points to as many readable bytes as its first field says.
unsafe fn options_of(options: *const EmbeddingOptions) -> Result<EmbedOptions> {
    let zeroes = EmbeddingOptions { struct_size: 0, pooling: 0, dimensions: 0, no_normalize: 0 };
    // SAFETY: the caller's promise.
    let options = if options.is_null() { zeroes } else { unsafe { args::read(options)? } };
    let pooling = match usize::try_from(options.pooling) {
        Ok(0) => None,
        Ok(n) if n <= Pooling::ALL.len() => Some(Pooling::ALL[n - 1]),
        _ => {
            let problem = format!("pooling is {}: 0 to {} are possible", options.pooling, Pooling::ALL.len());
            return Err(Error::InvalidArgument(problem));
        }
    };
    let dimensions = options.dimensions as usize;
    Ok(EmbedOptions { pooling, normalize: options.no_normalize == 0, dimensions })
}

/// Texts out of one array.
///
/// # Safety
/// `lens` is null or points to `n` readable numbers, `all` is null or points to as many readable elements as these add
/// up to; unchanged for `'a`.
unsafe fn parts<'a, T>(all: *const T, lens: *const usize, n: usize) -> Result<Vec<&'a [T]>> {
    // SAFETY: the caller's promise.
    let lens = unsafe { args::array(lens, n, "the lengths of the texts")? };
    let sum = lens.iter().try_fold(0usize, |sum, &len| sum.checked_add(len));
    let sum = sum.ok_or_else(|| Error::InvalidArgument("the lengths of the texts are impossible".into()))?;
    // SAFETY: the caller's promise.
    let mut rest = unsafe { args::array(all, sum, "the texts")? };
    let mut parts = crate::reserve::list(n, "texts")?;
    for &len in lens {
        let (part, after) = rest.split_at(len);
        parts.push(part);
        rest = after;
    }
    Ok(parts)
}

/// As [`parts`], copied.
///
/// # Safety
/// As there.
unsafe fn lists(tokens: *const i32, counts: *const usize, n: usize) -> Result<Vec<Vec<Token>>> {
    // SAFETY: the caller's promise.
    Ok(unsafe { parts(tokens, counts, n)? }.into_iter().map(<[Token]>::to_vec).collect())
}
