//! What hosts of ABI 15 look for and this library does not do: speech, vision, and events of a draft model. It is
//! there, since their loaders want all of it or nothing, and says that it is not supported.

use crate::context::{CONTEXTS, EliInferenceContext};
use crate::edge::{ELIZA_OK, call, made, unsupported};
use crate::stream::EliLlmStream;
use std::ffi::{c_char, c_int, c_uchar, c_void};

/// A detector of speech; none is ever opened.
pub struct EliVad {
    _opaque: [u8; 0],
}

/// A detector of a wake word; none is ever opened.
pub struct EliWakeWord {
    _opaque: [u8; 0],
}

/// A speaker encoder; none is ever opened.
pub struct EliSpeaker {
    _opaque: [u8; 0],
}

/// A diarizer; none is ever opened.
pub struct EliDiariz {
    _opaque: [u8; 0],
}

/// A transcription; none is ever opened.
pub struct EliAsrStream {
    _opaque: [u8; 0],
}

/// What a host's callback of a draft model would be told; it is never called.
pub struct EliVerifierEvent {
    _opaque: [u8; 0],
}

/// A host's callback for sound; it is never called. The name is the host's.
#[allow(non_camel_case_types)]
pub type eliza_tts_chunk_cb = Option<unsafe extern "C" fn(*const f32, usize, c_int, *mut c_void) -> c_int>;

/// A host's callback for guessed tokens; it is never called. The name is the host's.
#[allow(non_camel_case_types)]
pub type eliza_verifier_cb = Option<unsafe extern "C" fn(*const EliVerifierEvent, *mut c_void)>;

/// Functions by what they answer. `probe`: 0. `call`: `ELIZA_ERR_NOT_IMPLEMENTED`, with a text in `out_error`, which is
/// their last parameter and added here. `open`: NULL, likewise. `rate`: `ELIZA_ERR_NOT_IMPLEMENTED` without a text.
/// `close`: nothing.
macro_rules! lacking {
    () => {};
    (probe $name:ident(); $($rest:tt)*) => {
        /// Not supported: 0. Threads: any. Never fails.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            0
        }
        lacking!($($rest)*);
    };
    (call $what:literal $name:ident($($arg:ident: $type:ty),* $(,)?); $($rest:tt)*) => {
        /// Not supported: `ELIZA_ERR_NOT_IMPLEMENTED`. Ownership: the host frees `*out_error`; nothing else is read or
        /// written. Null rule: all pointers may be NULL. Threads: any.
        ///
        /// # Safety
        /// `out_error` is NULL or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type,)* out_error: *mut *mut c_char) -> c_int {
            let _ = ($($arg,)*);
            // SAFETY: the host's promise.
            unsafe { call(out_error, || Err(unsupported($what))) }
        }
        lacking!($($rest)*);
    };
    (open $what:literal $name:ident($($arg:ident: $type:ty),* $(,)?) -> $made:ty; $($rest:tt)*) => {
        /// Not supported: NULL. Ownership: the host frees `*out_error`; nothing else is read or written. Null rule: all
        /// pointers may be NULL. Threads: any.
        ///
        /// # Safety
        /// `out_error` is NULL or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type,)* out_error: *mut *mut c_char) -> $made {
            let _ = ($($arg,)*);
            // SAFETY: the host's promise.
            unsafe { made(out_error, || Err(unsupported($what))) }
        }
        lacking!($($rest)*);
    };
    (rate $name:ident(); $($rest:tt)*) => {
        /// Not supported: `ELIZA_ERR_NOT_IMPLEMENTED`. Null rule: NULL is fine. Threads: any. Never fails otherwise.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_ctx: *mut EliInferenceContext) -> c_int {
            crate::edge::ELIZA_ERR_NOT_IMPLEMENTED
        }
        lacking!($($rest)*);
    };
    (close $name:ident($arg:ident: $type:ty); $($rest:tt)*) => {
        /// Does nothing, since none was ever opened. Null rule: NULL is fine. Threads: any. Never fails.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($arg: $type) {
            let _ = $arg;
        }
        lacking!($($rest)*);
    };
}

lacking! {
    call "speech" eliza_inference_tts_synthesize(
        ctx: *mut EliInferenceContext, text: *const c_char, text_len: usize, speaker_preset_id: *const c_char,
        out_pcm: *mut f32, max_samples: usize);
    probe eliza_inference_tts_stream_supported();
    call "speech" eliza_inference_tts_synthesize_stream(
        ctx: *mut EliInferenceContext, text: *const c_char, text_len: usize, speaker_preset_id: *const c_char,
        on_chunk: eliza_tts_chunk_cb, user_data: *mut c_void);
    call "speech" eliza_inference_encode_reference(
        ctx: *mut EliInferenceContext, pcm: *const f32, n_samples: usize, sample_rate_hz: c_int, out_k: *mut c_int,
        out_ref_t: *mut c_int, out_tokens: *mut *mut c_int);

    probe eliza_inference_kokoro_supported();
    call "speech" eliza_inference_kokoro_load(
        ctx: *mut EliInferenceContext, gguf_path: *const c_char, voice_bin_path: *const c_char, style_dim: c_int);
    call "speech" eliza_inference_kokoro_synthesize(
        ctx: *mut EliInferenceContext, text: *const c_char, text_len: usize, speed: f32, out_pcm: *mut f32,
        max_samples: usize);
    call "speech" eliza_inference_kokoro_synthesize_ipa(
        ctx: *mut EliInferenceContext, ipa: *const c_char, ipa_len: usize, speed: f32, out_pcm: *mut f32,
        max_samples: usize);
    rate eliza_inference_kokoro_sample_rate();
    rate eliza_inference_kokoro_g2p_kind();

    call "transcription" eliza_inference_asr_transcribe(
        ctx: *mut EliInferenceContext, pcm: *const f32, n_samples: usize, sample_rate_hz: c_int, out_text: *mut c_char,
        max_text_bytes: usize);
    probe eliza_inference_asr_timestamps_supported();
    call "transcription" eliza_inference_asr_transcribe_timed(
        ctx: *mut EliInferenceContext, pcm: *const f32, n_samples: usize, sample_rate_hz: c_int, out_text: *mut c_char,
        max_text_bytes: usize, out_word_start_ms: *mut c_int, out_word_end_ms: *mut c_int, io_n_words: *mut usize);
    probe eliza_inference_asr_stream_supported();
    open "transcription" eliza_inference_asr_stream_open(
        ctx: *mut EliInferenceContext, sample_rate_hz: c_int) -> *mut EliAsrStream;
    call "transcription" eliza_inference_asr_stream_feed(
        stream: *mut EliAsrStream, pcm: *const f32, n_samples: usize);
    call "transcription" eliza_inference_asr_stream_partial(
        stream: *mut EliAsrStream, out_text: *mut c_char, max_text_bytes: usize, out_tokens: *mut c_int,
        io_n_tokens: *mut usize);
    call "transcription" eliza_inference_asr_stream_finish(
        stream: *mut EliAsrStream, out_text: *mut c_char, max_text_bytes: usize, out_tokens: *mut c_int,
        io_n_tokens: *mut usize);
    close eliza_inference_asr_stream_close(stream: *mut EliAsrStream);

    probe eliza_inference_vad_supported();
    open "detection of speech" eliza_inference_vad_open(
        ctx: *mut EliInferenceContext, sample_rate_hz: c_int) -> *mut EliVad;
    call "detection of speech" eliza_inference_vad_process(
        vad: *mut EliVad, pcm: *const f32, n_samples: usize, out_probability: *mut f32);
    call "detection of speech" eliza_inference_vad_reset(vad: *mut EliVad);
    close eliza_inference_vad_close(vad: *mut EliVad);

    probe eliza_inference_wakeword_supported();
    open "wake words" eliza_inference_wakeword_open(
        ctx: *mut EliInferenceContext, sample_rate_hz: c_int, head_name: *const c_char) -> *mut EliWakeWord;
    call "wake words" eliza_inference_wakeword_score(
        wake: *mut EliWakeWord, pcm: *const f32, n_samples: usize, out_probability: *mut f32);
    call "wake words" eliza_inference_wakeword_reset(wake: *mut EliWakeWord);
    close eliza_inference_wakeword_close(wake: *mut EliWakeWord);

    probe eliza_inference_speaker_supported();
    open "speakers" eliza_inference_speaker_open(
        ctx: *mut EliInferenceContext, gguf_path: *const c_char) -> *mut EliSpeaker;
    call "speakers" eliza_inference_speaker_embed(
        speaker: *mut EliSpeaker, pcm: *const f32, n_samples: usize, out_embedding: *mut f32);
    close eliza_inference_speaker_free(embedding: *mut f32);
    close eliza_inference_speaker_close(speaker: *mut EliSpeaker);

    probe eliza_inference_diariz_supported();
    open "diarization" eliza_inference_diariz_open(
        ctx: *mut EliInferenceContext, gguf_path: *const c_char) -> *mut EliDiariz;
    call "diarization" eliza_inference_diariz_segment(
        diariz: *mut EliDiariz, pcm: *const f32, n_samples: usize, out_labels: *mut i8, io_n_labels: *mut usize);
    close eliza_inference_diariz_close(diariz: *mut EliDiariz);

    probe eliza_inference_vision_supported();
    call "vision" eliza_inference_describe_image(
        ctx: *mut EliInferenceContext, image_bytes: *const c_uchar, n_bytes: usize, mmproj_path: *const c_char,
        prompt: *const c_char, out_text: *mut c_char, max_text_bytes: usize);
    probe eliza_inference_vision_stream_supported();
    open "vision" eliza_inference_describe_image_stream_open(
        ctx: *mut EliInferenceContext, image_bytes: *const c_uchar, n_bytes: usize, mmproj_path: *const c_char,
        prompt: *const c_char) -> *mut EliLlmStream;
}

/// Stops speech: `ELIZA_OK`, since none is ever being made.
///
/// Ownership: the host frees `*out_error`. Threads: any. Returns `ELIZA_ERR_INVALID_ARG` for a context that is not
/// open.
///
/// # Safety
/// `out_error` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_cancel_tts(
    ctx: *mut EliInferenceContext,
    out_error: *mut *mut c_char,
) -> c_int {
    // SAFETY: the host's promise.
    unsafe { call(out_error, || CONTEXTS.get(ctx).map(|_| ELIZA_OK)) }
}

/// Takes a callback away, which never was there: `ELIZA_OK`. To set one is not supported;
/// `eliza_inference_llm_stream_next` counts the guessed tokens of its step.
///
/// Ownership: the host frees `*out_error`; `cb` and `user_data` are not kept. Null rule: `cb` and `user_data` may be
/// NULL. Threads: any. Returns `ELIZA_ERR_NOT_IMPLEMENTED` for a callback, `ELIZA_ERR_INVALID_ARG` for a context that
/// is not open.
///
/// # Safety
/// `out_error` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_set_verifier_callback(
    ctx: *mut EliInferenceContext,
    cb: eliza_verifier_cb,
    _user_data: *mut c_void,
    out_error: *mut *mut c_char,
) -> c_int {
    let set = || {
        CONTEXTS.get(ctx)?;
        cb.map_or(Ok(ELIZA_OK), |_| Err(unsupported("events of a draft model")))
    };
    // SAFETY: the host's promise.
    unsafe { call(out_error, set) }
}
