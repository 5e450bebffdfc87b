/*
 * eliza_inference.h: run GGUF language models on the user's own device and stream their tokens.
 *
 * Interface eliza-stream 1.1.0. Licence: MIT OR Apache-2.0. Works as C99 and as C++17.
 * Generated from src/ffi by cbindgen; edit there, then `make header`.
 *
 * ---- From a file to a stream ---------------------------------------------------------------------------
 *
 * A host loads the library, opens a model, prefills a prompt, generates, and pulls the text. Error handling
 * is shown once; every call that can fail says below what it returns.
 *
 *     #include "eliza_inference.h"
 *     #include <stdio.h>
 *
 *     int main(void) {
 *         // 1. Load. Context 0 and threads 0 choose defaults; 0 GPU layers computes on the CPU.
 *         FfiLlmHandle h = eliza_inference_llm_stream_open("model.gguf", 0, 0, 0);
 *         if (h == NULL) {
 *             char * why = eliza_inference_take_last_error();
 *             fprintf(stderr, "%s\n", why ? why : "unknown");
 *             eliza_inference_free_string(why);
 *             return 1;
 *         }
 *
 *         // 2. Text to token ids, with the special tokens that the model wants; then prefill.
 *         int * ids = NULL;
 *         size_t n = 0;
 *         char * error = NULL;
 *         int step = eliza_inference_llm_stream_tokenize(h, "Once upon a time", 16, 1, 0, &ids, &n, &error);
 *         if (step == ELIZA_OK && eliza_inference_llm_stream_prefill(h, ids, n, -1) < 0) step = -1;
 *         eliza_inference_free_tokens(ids);
 *
 *         // 3. Generate at most 200 tokens at temperature 0.8, top-p 0.95. NULL instead of a callback: we pull.
 *         if (step == 0) step = eliza_inference_llm_stream_generate(h, 200, 0.8f, 0.95f, NULL);
 *         while (step == 0) {
 *             int32_t tokens[32];
 *             char text[256];
 *             size_t count;
 *             step = eliza_inference_llm_stream_next(h, tokens, 32, &count, text, sizeof text, NULL, NULL, &error);
 *             fputs(text, stdout); // whole characters, always terminated
 *         }
 *         if (step < 0) {
 *             if (error == NULL) error = eliza_inference_llm_stream_take_error(h);
 *             fprintf(stderr, "%s\n", error ? error : "unknown");
 *         }
 *         eliza_inference_free_string(error);
 *
 *         // 4. Another thread may call eliza_inference_llm_stream_cancel(h) at any time: the loop then ends
 *         //    within about a token with ELIZA_ERR_CANCELLED. A new prefill starts the next turn, reusing
 *         //    what its prompt shares with the tokens before. Close when done; twice does no harm.
 *         eliza_inference_llm_stream_close(h);
 *         return step < 0;
 *     }
 *
 * ---- Rules that hold for every function ----------------------------------------------------------------
 *
 * Failure.   Open, prefill, generate, cancel and the token trie calls return exactly -1, or
 *            NULL; `..._status` has the code and `..._take_error` or `eliza_inference_take_last_error` the
 *            text. All other calls return a negative code, and give the text to `out_error` where they have
 *            one; a NULL `out_error` is allowed, the text also waits for `..._take_error`. `out_error` is
 *            written on failure only.
 * Handles.   Numbers, not addresses. NULL, closed, or foreign handles are an error (-1), never a crash.
 * Strings.   In and out UTF-8. Every returned `char *` that is not const is from the C allocator and goes to
 *            `eliza_inference_free_string`. Arguments are copied before a call returns.
 * Callbacks. Run on a thread of the library, one at a time per handle, with no lock held; cancel, close, status
 *            and usage may be called from inside one. They must not unwind.
 * Streams.   Each generate that returned 0 ends in exactly one terminal event: token id -1 and `is_done` true, or
 *            a pull result other than 0. Also after cancel, close and errors. Text comes in whole
 *            characters: bytes of an incomplete one are held back until the token that completes it.
 * Structs.   Begin with `struct_size`, which the caller sets to sizeof; the library never touches more.
 * Output.    Nothing is written to stdout or stderr. Log lines go to `eliza_inference_set_log_sink` only.
 * Unloading. The library stays mapped after dlclose, for its threads may still run. Close handles first.
 *
 * ---- Which calls may run together ----------------------------------------------------------------------
 *
 *   process calls (open, version, free, log, last error,   any thread, any time, several at once
 *     devices, plan, file metadata, trie cache limit)
 *   calls on different handles                             any thread, any time, several at once
 *   cancel, close, status, usage, sampled,                 any thread, any time, also while another call on
 *     take_error, tokenize, detokenize,                      the same handle blocks, and inside its callback
 *     tokenize_pair, build_token_trie, model, metadata,
 *     is_eog, token, take_embeddings, prewarm, forget
 *   prefill, start_prefill, generate, configure, set_      any thread, one at a time per handle; while the
 *     chain, set_, clear_, arm_, score_token_trie,           handle works they fail as busy
 *     save_slot, restore_slot, persist, resume,
 *     pin_slot, open_slot, logits, embed, embed_tokens,
 *     start_embed, rank
 *   next, poll                                             one thread at a time per handle
 *   llama_sampler_init_token_trie                          any thread, any time, several at once
 *   the calls on a sampler, by whomever                    one thread at a time per sampler
 */


#ifndef ELIZA_INFERENCE_H
#define ELIZA_INFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The library's name and interface version, as eliza_inference_abi_version() returns it. */
#define ELIZA_STREAM_ABI_VERSION "eliza-stream/1.1.0"

/* Types of llama.cpp that samplers pass. Where llama.h is needed as well, include it first: then these stand aside. */
#ifndef LLAMA_H
struct llama_vocab;
struct llama_sampler;
struct llama_sampler_i;

typedef struct llama_token_data {
    int32_t id;
    float logit;
    float p;
} llama_token_data;

typedef struct llama_token_data_array {
    llama_token_data * data; /* samplers may move it, also to memory of their own */
    size_t size;
    int64_t selected; /* an index in `data`, not a token id; -1: nothing is selected */
    bool sorted;      /* by logit, the largest first */
} llama_token_data_array;
#endif


/**
 * Major version of the interface: a change breaks hosts.
 */
#define ELIZA_STREAM_ABI_MAJOR 1

/**
 * Minor version: functions or structure fields were added.
 */
#define ELIZA_STREAM_ABI_MINOR 1

/**
 * Patch version: behaviour was corrected.
 */
#define ELIZA_STREAM_ABI_PATCH 0

/**
 * The three parts as one number, `major * 1000000 + minor * 1000 + patch`, for comparisons in the preprocessor.
 */
#define ELIZA_STREAM_ABI_NUMBER 1001000

/**
 * The call succeeded.
 */
#define ELIZA_OK 0

/**
 * The request is well-formed, but this build or machine does not do it (a GPU where there is none, a model
 * architecture or option not known here). Remedy: read the text; choose another device, file or option.
 *
 * The same number is the one failure value of the calls that know no other (open, prefill, generate, cancel, the token
 * trie calls), whatever the reason, and the result of every call on a handle that is NULL, closed or not ours;
 * `eliza_inference_llm_stream_status` then returns the code, and the error text has the reason.
 */
#define ELIZA_ERR_NOT_IMPLEMENTED -1

/**
 * An argument is outside its range; the text names it. Remedy: correct the call.
 */
#define ELIZA_ERR_INVALID_ARG -2

/**
 * The file is not valid GGUF, or not a model that can run: the text names the key, tensor and file
 * offset. Remedy: download or convert the model again.
 */
#define ELIZA_ERR_BUNDLE_INVALID -3

/**
 * A fault of the library itself, caught at its boundary. The process and other handles are not affected; this handle
 * should be closed. Remedy: report the text as a bug.
 */
#define ELIZA_ERR_FFI_FAULT -4

/**
 * Memory could not be allocated, or a fixed capacity (the context, a slot, the handle table) is full. Remedy: a
 * smaller context, a shorter prompt, a smaller model, fewer handles.
 */
#define ELIZA_ERR_OOM -5

/**
 * The host's header and the library do not belong together. Not returned by this version: it is for the check
 * that a host makes of `eliza_inference_abi_version`.
 */
#define ELIZA_ERR_ABI_MISMATCH -6

/**
 * The work was cancelled by the host. Nothing is wrong.
 */
#define ELIZA_ERR_CANCELLED -7

/**
 * The operating system refused a file; the text has its path and the system's reason. Remedy: check path
 * and permissions.
 */
#define ELIZA_ERR_IO -10

/**
 * The model computed a value that is not a number; the text names row and token. Remedy: the model file or
 * the device driver is broken; try the CPU, then another file.
 */
#define ELIZA_ERR_NAN -20

/**
 * A token-trie payload was refused; the text names the place in it. Remedy: correct the payload. The
 * handle generates again after a successful set or a clear.
 */
#define ELIZA_ERR_TRIE -30

/**
 * The handle is not in the state that the call needs: it is generating, or was not prefilled since the last
 * generation. Remedy: wait for the terminal event, or cancel; prefill first.
 */
#define ELIZA_ERR_BUSY -40

/**
 * What the status call reports while a generation runs; never an error.
 */
#define ELIZA_STATUS_GENERATING 2

/**
 * A GPU or its driver failed: it could not be opened, was lost, or refused a command; the text has the device's name
 * and the driver's reason. Other handles are not affected. Remedy: close the handle and open again, or use the CPU.
 */
#define ELIZA_ERR_DEVICE -50

/**
 * A file cannot be restored as a saved slot: it is damaged, cut short, of another kind, another model, another type of
 * KV cache, longer than the context, or inside a span of a token trie that is not set. The text names the file, the
 * place and the reason. The checks find damage, not intent: take saved slots from the same sources as models. Remedy:
 * set what it was saved with, or evaluate the prompt again.
 */
#define ELIZA_ERR_SAVED_SLOT -60

/**
 * A server failed, refused, was silent for too long, or answered what was not asked for. The text has its address and
 * what it said. Remedy: as the text says; what was generated until then was delivered.
 */
#define ELIZA_ERR_REMOTE -70

/**
 * Nothing was generated yet, or the generation still runs.
 */
#define ELIZA_FINISH_NONE 0

/**
 * The model ended its answer, or a stop string was met.
 */
#define ELIZA_FINISH_STOP 1

/**
 * `max_new_tokens` were generated.
 */
#define ELIZA_FINISH_LENGTH 2

/**
 * The host cancelled, or closed the handle.
 */
#define ELIZA_FINISH_CANCELLED 3

/**
 * The generation failed; the error text says why.
 */
#define ELIZA_FINISH_ERROR 4

/**
 * The context is full.
 */
#define ELIZA_FINISH_CONTEXT 5

/**
 * A constrained span ended and the option `on_span_end` says stop.
 */
#define ELIZA_FINISH_SPAN 6

/**
 * `flags`: the vocabulary alone is opened, without weights. Tokenize, detokenize, build_token_trie and the questions
 * about model, metadata and tokens work; every call that needs weights or a context fails with
 * `ELIZA_ERR_NOT_IMPLEMENTED`. The other options but `model_path` have no effect.
 */
#define ELIZA_OPEN_VOCAB_ONLY 1

/**
 * `flags`: slots can have handles of their own, made by `eliza_inference_llm_stream_open_slot`, which generate at the
 * same time and share the context of the handle. Without it the slots of a handle take turns.
 */
#define ELIZA_OPEN_CONCURRENT_SLOTS 2

/**
 * `mode` of a token trie: the likeliest legal token.
 */
#define ELIZA_TRIE_GREEDY 0

/**
 * `mode` of a token trie: temperature and truncations over the legal tokens, then a draw.
 */
#define ELIZA_TRIE_SAMPLED 1

/**
 * `mode` of a token trie: every leaf is scored by its log-probability, and the best one wins.
 */
#define ELIZA_TRIE_SCORE_LEAVES 2

/**
 * `next` and `poll`: the generation goes on.
 */
#define ELIZA_STREAM_MORE 0

/**
 * `next` and `poll`: the generation ended, and all of its output was taken.
 */
#define ELIZA_STREAM_FINAL 1

/**
 * `seed`: a new one for each generation.
 */
#define ELIZA_SEED_RANDOM 4294967295

/**
 * `on_span_end`: generation goes on without the constraint.
 */
#define ELIZA_SPAN_CONTINUE 0

/**
 * `on_span_end`: generation ends, with `ELIZA_FINISH_SPAN`.
 */
#define ELIZA_SPAN_STOP 1

/**
 * `on_context_full`: generation ends, with `ELIZA_FINISH_CONTEXT`.
 */
#define ELIZA_CONTEXT_STOP 0

/**
 * `on_context_full`: half of the tokens after the first `n_keep` are removed, and generation goes on.
 */
#define ELIZA_CONTEXT_SHIFT 1

/**
 * `generator`: each draw is a function of seed and position.
 */
#define ELIZA_GENERATOR_COUNTER 0

/**
 * `generator`: llama.cpp's (mt19937), with the tokens of llama.cpp for the same seed, samplers and logits.
 */
#define ELIZA_GENERATOR_MT19937 1

/**
 * `pooling`: as the model's file says.
 */
#define ELIZA_POOLING_DEFAULT 0

/**
 * `pooling`: the row of every token.
 */
#define ELIZA_POOLING_NONE 1

/**
 * `pooling`: the mean of the rows of all tokens.
 */
#define ELIZA_POOLING_MEAN 2

/**
 * `pooling`: the row of the first token.
 */
#define ELIZA_POOLING_CLS 3

/**
 * `pooling`: the row of the last token.
 */
#define ELIZA_POOLING_LAST 4

/**
 * `pooling`: the scores of the model's classifier.
 */
#define ELIZA_POOLING_RANK 5

/**
 * `level` of a log line: something failed.
 */
#define ELIZA_LOG_ERROR 1

/**
 * `level` of a log line: something is not as it should be, and work goes on.
 */
#define ELIZA_LOG_WARN 2

/**
 * `level` of a log line: a rare event, such as a model loaded.
 */
#define ELIZA_LOG_INFO 3

/**
 * `level` of a log line: details for finding a fault.
 */
#define ELIZA_LOG_DEBUG 4

/**
 * An open model with its own context. The type is only used by pointer, and that pointer is a number.
 */
typedef struct eliza_llm_session eliza_llm_session;

/**
 * An open model with its own context, or with a slot of another handle's, and one generation at a time.
 *
 * Made by `eliza_inference_llm_stream_open`, `..._open_ex` or `..._open_slot`, ended by
 * `eliza_inference_llm_stream_close`. It is a token of at most 52 bits, not an address: never dereference it. NULL
 * means failure. Any call on a handle that is NULL, closed or not ours returns -1 (NULL where a pointer is returned),
 * and `eliza_inference_take_last_error` has the reason.
 */
typedef struct eliza_llm_session *FfiLlmHandle;

/**
 * Receives the fraction of a model that is loaded, 0 to 1, on the thread that opens it. Returning anything but 0
 * cancels: the open then fails with "Cancelled". It is also asked while memory is planned (with 0), while
 * another open of the same file is waited for (how far that one is), and while the context is made ready (with 1).
 *
 * No lock is held meanwhile: it may open other files, prefill, generate, cancel and close other handles, and take its
 * time. But it cannot open the file whose load it is called for, which is `ELIZA_ERR_BUSY`, and must not wait for
 * another thread that opens that file, because that thread waits for this load.
 */
typedef int32_t (*eliza_llm_progress_cb)(float progress, void *user_data);

/**
 * How to open a model. Zeroes are defaults for every field but `struct_size` and `model_path`.
 */
typedef struct eliza_llm_open_options_t {
    /**
     * sizeof(eliza_llm_open_options_t), set by the caller.
     */
    uint32_t struct_size;
    /**
     * Context in tokens, shared by the slots; 0 chooses min(4096, what the model was trained with). Otherwise
     * rounded up to a power of two and capped at what the model was trained with.
     */
    int32_t context_size_tokens;
    /**
     * Number of threads that compute; 0 chooses `eliza_inference_default_thread_count`.
     */
    int32_t num_threads;
    /**
     * Layers on the GPU, counted from the end: 0 none, -1 all.
     */
    int32_t gpu_layers;
    /**
     * The GGUF file: UTF-8, on Unix any bytes. Or the address of a server that has the model, "KIND:URL#MODEL", such
     * as "vllm:https://host:8000/v1#name"; kinds are "vllm", "sglang", "llama-server" and "openai", and without a name
     * the server's first model answers. Of the other options only `slots` and those of servers have an effect then,
     * and `context_size_tokens` where the server does not say its context. Required.
     */
    const char *model_path;
    /**
     * Name of the device, or a part of it; or of several GPUs, separated by semicolons, which divide the layers, see
     * `tensor_split`. NULL is the best device.
     */
    const char *device;
    /**
     * Format of the key/value memory: "f16", "f32" or "q8_0"; NULL is "f16". Of the values `kv_type_v` may say
     * otherwise.
     */
    const char *kv_type;
    /**
     * Called with the progress of loading; may be NULL.
     */
    eliza_llm_progress_cb progress;
    /**
     * Passed to `progress`.
     */
    void *progress_user_data;
    /**
     * How many conversations the context is shared by, 1 to 16; 0 chooses 16.
     */
    uint32_t slots;
    /**
     * 0, or `ELIZA_OPEN_VOCAB_ONLY` (1) or `ELIZA_OPEN_CONCURRENT_SLOTS` (2).
     */
    uint32_t flags;
    /**
     * Format of the values in the key/value memory, where it is not that of the keys; NULL is `kv_type`.
     */
    const char *kv_type_v;
    /**
     * The most tokens of a prompt that are evaluated in one pass, 1 to 512; 0 is 512. Fewer take less memory, and more
     * passes.
     */
    uint32_t n_batch;
    /**
     * How many earlier recurrent states, and earlier windows of sliding layers, are kept, after which a prompt can go
     * on, 1 to 256; 0 keeps as many as fit into a share of the cache. Models with neither need none.
     */
    uint32_t snapshots;
    /**
     * Tensors that are placed whatever their layer: rules `PATTERN=DEVICE`, separated by semicolons, or NULL. The
     * pattern is a regular expression that has to match some part of a tensor's name, the device "cpu" or "gpu"; the
     * first rule that matches counts. "exps=cpu" keeps experts on the CPU.
     */
    const char *tensor_devices;
    /**
     * The folder in which `eliza_inference_llm_stream_persist` keeps conversations, which is created where it is not
     * there, or NULL. Several handles and processes may have the same.
     */
    const char *store_directory;
    /**
     * The most bytes that the conversations in it take; 0: no limit.
     */
    uint64_t store_bytes;
    /**
     * How many handles share an engine, 1 to 16; 0 is 1. Handles that are opened with the same file and the same
     * options join the engine of the first: they generate at the same time, and every step reads the weights once for
     * all of them, which changes no token of anybody's. Each has a context of its own and `slots` slots, 16 in all;
     * the memory for all of them is taken by the first. Where an engine has no place left, another one is made.
     */
    uint32_t parallel;
    /**
     * While prompts of others are read, a handle's time for a token grows to at most this many percent of the time
     * without them, as well as the passes so far tell; 0 is 250, 100 lets prompts wait for the tokens of all others.
     */
    uint32_t max_slowdown_percent;
    /**
     * The GGUF file of a draft model, a small one, or NULL: what it guesses is evaluated in the pass of the token
     * before, where that has paid. It changes no token. With another vocabulary it guesses by text, which pays less.
     * The model's own file, where that has a block that predicts further tokens (NextN, MTP): the block guesses.
     * It works on the CPU, takes memory for weights and a context of its own, and goes with no shared engine.
     */
    const char *draft;
    /**
     * For a server: the GGUF file with the vocabulary of its model, which needs no tensors; or NULL, then the server
     * tokenizes, and a token of the handle is a byte of its texts.
     */
    const char *vocab;
    /**
     * For a server: the key that is sent to it, over https or to this machine alone; NULL is that of the environment
     * variable `ELIZA_REMOTE_KEY`. It is in no log, error or description.
     */
    const char *api_key;
    /**
     * For a server: a PEM file with the only certificates that are trusted; NULL trusts those of the platform.
     */
    const char *certificates;
    /**
     * For a server: how long it may be silent, in milliseconds; 0 is 60000.
     */
    uint32_t server_timeout_ms;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Models in the place of the first, files or addresses, a line each, or NULL. Every prompt is given to the first
     * model that can be opened, has room for it and does not fail before its first token; usage says which. All have
     * the vocabulary of the first that was opened; those after it are opened when they are needed.
     */
    const char *fallback;
    /**
     * How large a part of the weights that are on GPUs each of several has: numbers, separated by commas, relative to
     * each other, such as "3,1", one for each that `device` names; where that names one or is NULL, the best so many
     * GPUs are taken. NULL divides by their free memory. Every GPU has layers that follow each other, and the last one
     * the output head.
     */
    const char *tensor_split;
} eliza_llm_open_options_t;

/**
 * Receives one event of a generation: a token with the text that it completes, or at the end, once, `token_id` -1 with
 * the held-back rest of the text, usually empty, and `is_done` true. Called on a thread of the library.
 *
 * `token_text` is UTF-8, terminated, never NULL, and stays readable after the call until the next prefill or generate
 * on the handle; after close as long as at most 15 further handles are closed. A NUL character in the text is
 * U+FFFD here.
 */
typedef void (*eliza_llm_stream_token_cb)(int32_t token_id, const char *token_text, bool is_done);

/**
 * As `eliza_llm_stream_token_cb`, with the text exactly as generated, its length in bytes, and the host's
 * own pointer.
 */
typedef void (*eliza_llm_stream_token_cb2)(int32_t token_id,
                                           const char *token_text,
                                           size_t token_text_len,
                                           bool is_done,
                                           void *user_data);

/**
 * Makes the shell of a sampler from its functions, which outlive it, and its state: llama.cpp's `llama_sampler_init`.
 * It must not unwind.
 */
typedef struct llama_sampler *(*eliza_sampler_init_fn)(struct llama_sampler_i *iface, void *ctx);

/**
 * The sampling options of the generations on a handle. Fill them by `eliza_inference_llm_stream_sampling_defaults`,
 * change fields, and pass them to `eliza_inference_llm_stream_configure`.
 */
typedef struct eliza_llm_sampling_options_t {
    /**
     * sizeof(eliza_llm_sampling_options_t), set by the caller.
     */
    uint32_t struct_size;
    /**
     * Seed of the draws; `ELIZA_SEED_RANDOM` (0xFFFFFFFF) takes a new one for each generation.
     */
    uint32_t seed;
    /**
     * Keep only this many of the likeliest tokens; 0 or below: all.
     */
    int32_t top_k;
    /**
     * Keep only tokens at least this likely, relative to the likeliest; 0: all.
     */
    float min_p;
    /**
     * Divides the logits of repeated tokens; 1 or 0: off.
     */
    float repeat_penalty;
    /**
     * The penalties' window in tokens; 0 or below turns them off.
     */
    int32_t repeat_last_n;
    /**
     * Subtracted from the logit of every token seen; 0: off.
     */
    float presence_penalty;
    /**
     * Subtracted from the logit of a token for each time it was seen; 0: off.
     */
    float frequency_penalty;
    /**
     * A grammar in GBNF whose root is `root`, in force from now on as by `eliza_inference_set_grammar`; "" clears the
     * grammar, NULL keeps what was set.
     */
    const char *gbnf_grammar;
    /**
     * Stop strings, terminated UTF-8, none empty: generation ends before the first that appears.
     */
    const char *const *stop;
    /**
     * How many stop strings.
     */
    size_t n_stop;
    /**
     * Tokens whose logits are shifted.
     */
    const int32_t *logit_bias_ids;
    /**
     * By how much each is shifted.
     */
    const float *logit_bias_values;
    /**
     * How many of each.
     */
    size_t n_logit_bias;
    /**
     * What the end of a constrained span does: `ELIZA_SPAN_CONTINUE` (0) or `ELIZA_SPAN_STOP` (1).
     */
    uint32_t on_span_end;
    /**
     * 1 refuses a token trie where there would be a warning (made for another model); else 0.
     */
    uint32_t strict_trie;
    /**
     * 1 forbids end-of-generation tokens where no token trie decides; else 0.
     */
    uint32_t ignore_eos;
    /**
     * How many candidates `eliza_inference_llm_stream_sampled` can report, likeliest first; 0: none.
     */
    uint32_t n_candidates;
    /**
     * What a full context does: `ELIZA_CONTEXT_STOP` (0) or `ELIZA_CONTEXT_SHIFT` (1).
     */
    uint32_t on_context_full;
    /**
     * Number of tokens at the beginning that a shift keeps, a begin-of-text token included; with `ELIZA_CONTEXT_STOP`
     * 0.
     */
    uint32_t n_keep;
    /**
     * 1 spells control tokens in the text of a generation, which else have none, for
     * `eliza_inference_llm_stream_chat_parts_json`; else 0.
     */
    uint32_t special_text;
    /**
     * 1 never evaluates tokens that the text suggests before they are sampled, which changes no token and is done
     * where it has paid in the generation so far; else 0.
     */
    uint32_t no_guessing;
    /**
     * Keep only tokens whose logit is at most so many standard deviations below the greatest; 0 or below: all.
     */
    float top_n_sigma;
    /**
     * Keep only tokens of the most typical surprise with this probability in sum; 0, 1 or above: all.
     */
    float typical_p;
    /**
     * XTC: how often all tokens of at least the threshold's probability are removed but the least likely; 0: never.
     */
    float xtc_probability;
    /**
     * The probability from which on XTC removes tokens; above 0.5: none.
     */
    float xtc_threshold;
    /**
     * Half the width of the range in which the temperature grows with the entropy; 0: a plain temperature.
     */
    float dynatemp_range;
    /**
     * The power to which the normalised entropy is raised.
     */
    float dynatemp_exponent;
    /**
     * DRY: subtracted from the logit of a token that prolongs a repetition of the allowed length; 0: off.
     */
    float dry_multiplier;
    /**
     * DRY: the factor for each token that the repetition is longer; below 1 turns it off.
     */
    float dry_base;
    /**
     * DRY: the length in tokens from which on a repetition counts.
     */
    int32_t dry_allowed_length;
    /**
     * DRY: its window in tokens; 0 or below turns it off.
     */
    int32_t dry_last_n;
    /**
     * 1 or 2: this version of mirostat in place of all samplers but the temperature; 0: none.
     */
    uint32_t mirostat;
    /**
     * The surprise of a token that mirostat aims at, in bits.
     */
    float mirostat_tau;
    /**
     * How far mirostat moves with every token.
     */
    float mirostat_eta;
    /**
     * Adaptive-p: draw near this probability; 0 or below: off.
     */
    float adaptive_target;
    /**
     * How much of its mean adaptive-p keeps with every token, 0 to 0.99.
     */
    float adaptive_decay;
    /**
     * The tokens that top-p, min-p, typical-p and XTC keep at least.
     */
    uint32_t min_keep;
    /**
     * Where random numbers come from: `ELIZA_GENERATOR_COUNTER` (0) or `ELIZA_GENERATOR_MT19937` (1).
     */
    uint32_t generator;
    /**
     * How many tokens the model may think in each block, before `reasoning_end` is forced. Only with that.
     */
    uint32_t reasoning_budget;
    /**
     * The samplers and their order, such as "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature". NULL:
     * the order in force, at first the file's, else the one named here.
     */
    const char *samplers;
    /**
     * DRY: texts at which a repetition ends. With none the texts in force, at first a line feed, ':', '"' and '*';
     * "none" alone is no text.
     */
    const char *const *dry_breakers;
    /**
     * How many of them.
     */
    size_t n_dry_breakers;
    /**
     * The text with which thinking begins, such as "<think>"; only with `reasoning_end`.
     */
    const char *reasoning_start;
    /**
     * The text with which thinking ends, such as "</think>", which is forced after `reasoning_budget` tokens of
     * thinking; NULL: no limit.
     */
    const char *reasoning_end;
} eliza_llm_sampling_options_t;

/**
 * Counters and times since the last prefill began; times are microseconds.
 */
typedef struct eliza_llm_usage_t {
    /**
     * sizeof(eliza_llm_usage_t), set by the caller.
     */
    uint32_t struct_size;
    /**
     * Why the generation ended: `ELIZA_FINISH_*`.
     */
    int32_t finish_reason;
    /**
     * Tokens of the prompt, reused ones included.
     */
    uint64_t prompt_tokens;
    /**
     * Prompt tokens that were still in the slot and not evaluated again.
     */
    uint64_t prompt_tokens_reused;
    /**
     * Tokens emitted; an end-of-generation token is not.
     */
    uint64_t completion_tokens;
    /**
     * Emitted tokens that were forced by the token trie or the grammar.
     */
    uint64_t forced_tokens;
    /**
     * Model evaluations, those of the prompt included.
     */
    uint64_t forward_passes;
    /**
     * From the start of the prefill to its end.
     */
    uint64_t prefill_us;
    /**
     * From the start of the generation to its first token event; 0 until then.
     */
    uint64_t first_token_us;
    /**
     * From the start of the generation to its end, callbacks included; grows while it runs.
     */
    uint64_t decode_us;
    /**
     * Kernels dispatched on a GPU; 0 on the CPU, as the next four.
     */
    uint64_t gpu_dispatches;
    /**
     * Command buffers submitted to a GPU.
     */
    uint64_t gpu_submissions;
    /**
     * Times the library waited for a GPU.
     */
    uint64_t gpu_waits;
    /**
     * Bytes written to a GPU.
     */
    uint64_t gpu_bytes_uploaded;
    /**
     * Bytes read from a GPU.
     */
    uint64_t gpu_bytes_read;
    /**
     * Sampled tokens for which the token trie or the grammar left a choice.
     */
    uint64_t branching_steps;
    /**
     * Of those, the ones for which all logits were computed, not only those of the legal tokens: more than 512 (of a
     * grammar 256) are legal, or they are sampled by a chain that compares tokens before the mask.
     */
    uint64_t whole_row_steps;
    /**
     * How many more model evaluations it would have taken to evaluate the generated tokens one by one.
     */
    uint64_t forward_passes_saved;
    /**
     * Logits computed.
     */
    uint64_t logits_computed;
    /**
     * Emitted tokens for which the token trie or the grammar allowed only some tokens.
     */
    uint64_t span_tokens;
    /**
     * The sum of the numbers of tokens that were allowed there.
     */
    uint64_t span_candidates;
    /**
     * How often a full context was shifted to go on.
     */
    uint64_t context_shifts;
    /**
     * Time spent sampling on the host; sampling on a device is part of its pass and not counted.
     */
    uint64_t sample_us;
    /**
     * Tokens that were sampled, by host or device: all but forced tokens and those of leaves that were scored.
     */
    uint64_t sampled_tokens;
    /**
     * Reused prompt tokens that came from a file, by a restore or resume.
     */
    uint64_t prompt_tokens_restored;
    /**
     * Tokens evaluated, of the prompt and of what was generated, repeated ones counted each time.
     */
    uint64_t evaluated_tokens;
    /**
     * Earlier recurrent states and windows of sliding layers that are kept now, of all slots.
     */
    uint64_t snapshots;
    /**
     * Token masks that were computed for the grammar while the generation ran; others were known.
     */
    uint64_t grammar_masks;
    /**
     * States of the grammar that were known at the end of the generation.
     */
    uint64_t grammar_states;
    /**
     * Tokens that were guessed and evaluated before they were sampled, once they are told right from wrong.
     */
    uint64_t drafted_tokens;
    /**
     * Those of them that were sampled: each saved a pass.
     */
    uint64_t accepted_tokens;
} eliza_llm_usage_t;

/**
 * One token that could have been drawn.
 */
typedef struct eliza_llm_candidate_t {
    /**
     * The token id.
     */
    int32_t token;
    /**
     * Its logit after the chain.
     */
    float logit;
    /**
     * Its probability in the draw.
     */
    float probability;
} eliza_llm_candidate_t;

/**
 * How a token was sampled.
 */
typedef struct eliza_llm_sampled_t {
    /**
     * sizeof(eliza_llm_sampled_t), set by the caller.
     */
    uint32_t struct_size;
    /**
     * The token that was drawn.
     */
    int32_t token;
    /**
     * Natural logarithm of its probability in the draw.
     */
    float logprob;
    /**
     * Its probability in the draw.
     */
    float probability;
    /**
     * The host's array for candidates, likeliest first; NULL for none.
     */
    struct eliza_llm_candidate_t *candidates;
    /**
     * Room in `candidates`.
     */
    size_t candidates_cap;
    /**
     * How many candidates there are; at most `candidates_cap` of them were written.
     */
    size_t n_candidates;
} eliza_llm_sampled_t;

/**
 * How rows of texts are made. All zeroes, but for the size, is what most models want.
 */
typedef struct eliza_llm_embedding_options_t {
    /**
     * sizeof(eliza_llm_embedding_options_t), set by the caller.
     */
    uint32_t struct_size;
    /**
     * How the rows of a text's tokens become one: `ELIZA_POOLING_DEFAULT` (0) to `ELIZA_POOLING_RANK`.
     */
    int32_t pooling;
    /**
     * How many of a row's first numbers are kept, for models trained for that (Matryoshka); 0: all.
     */
    uint32_t dimensions;
    /**
     * 1 leaves rows as they are; 0 divides each by its length. Scores are never divided.
     */
    uint32_t no_normalize;
} eliza_llm_embedding_options_t;

/**
 * Receives one log line: its level (`ELIZA_LOG_*`) and its text in UTF-8, valid during the call. Called on any
 * thread, several at once; it must not call back into the library.
 */
typedef void (*eliza_log_cb)(int32_t level, const char *message, void *user_data);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the interface that the loaded library has: the text of `ELIZA_STREAM_ABI_VERSION` in the
 * library's own header. Compare the name and the major version before the first other call.
 *
 * Ownership: static, do not free. Threads: any. Never NULL, never fails.
 */
const char *eliza_inference_abi_version(void);

/**
 * Whether the library can stream from a language model: 1.
 *
 * Threads: any. Never fails.
 */
int eliza_inference_llm_stream_supported(void);

/**
 * How many threads a handle opened with `num_threads` 0 computes with: at least 1.
 *
 * Threads: any. Returns the count, or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_default_thread_count(void);

/**
 * Opens a model with its own context: `eliza_inference_llm_stream_open_ex` for hosts that pass no structure.
 *
 * `model_path` is a GGUF file. `context_size_tokens` 0 chooses min(4096, what the model was trained with), otherwise
 * it is rounded up to a power of two and capped at what the model was trained with. `num_threads` 0 chooses
 * `eliza_inference_default_thread_count`. `gpu_layers` 0 is CPU only, -1 all layers on the GPU. Handles on one file
 * share its weights. Blocks while the file is loaded; other handles work meanwhile.
 *
 * The file stays open until its last handle is closed, and must not be written to or deleted until then: a model whose
 * output matrix is not its embedding looks up a row of it for every token, and saving a slot looks at pages of all
 * weights. Such a call on a file that was cut short or changed returns `ELIZA_ERR_IO` with "the file was changed after
 * it was opened", never anything worse; changed is what has another size or time of modification. A file that was
 * deleted or replaced by another gives the same, with "was deleted or replaced"; Windows does not tell, and the file
 * is read on. To replace a model under open handles keep a second name of the old file (a hard link) until they are
 * closed.
 *
 * Ownership: the path is copied; the host ends the handle with `eliza_inference_llm_stream_close`. Null rule: a NULL
 * path is an error. Threads: any, several at once.
 *
 * Returns NULL on failure, with the reason in `eliza_inference_take_last_error`: a file that cannot be read, is not a
 * model or of an unknown architecture, too little memory for the context, a GPU asked for where none works.
 */
FfiLlmHandle eliza_inference_llm_stream_open(const char *model_path,
                                             int32_t context_size_tokens,
                                             int32_t num_threads,
                                             int32_t gpu_layers);

/**
 * Opens a model with its own context. Blocks while the file is loaded.
 *
 * Ownership: everything in `options` is copied; the host ends the handle with `eliza_inference_llm_stream_close`, and
 * frees `*out_error`. Null rule: `options` and its `model_path` must not be NULL; `out_error` may be. Threads: any,
 * several at once; `progress` runs on the calling thread.
 *
 * Returns NULL on failure, with the reason in `*out_error` and in `eliza_inference_take_last_error`: as
 * `eliza_inference_llm_stream_open`, or an option out of range, or a cancelled load.
 */
FfiLlmHandle eliza_inference_llm_stream_open_ex(const struct eliza_llm_open_options_t *options,
                                                char **out_error);

/**
 * Opens a handle of one slot of another handle: a stream with options, trie or grammar, status, usage and cancel of
 * its own, which generates at the same time as the handle itself and those of its other slots. Every step reads the
 * weights once for all of them, which changes no token of anybody's. The handle must have been opened with
 * `ELIZA_OPEN_CONCURRENT_SLOTS`.
 *
 * `slot_id` -1 takes a slot that has no handle, an empty one where there is one. The new handle has this slot alone,
 * with the tokens in it, whether a call names it or -1; the first has it again once the new one is closed, and keeps
 * one slot at least. The sampling options are those that the handle has now. All share its context: where that is
 * full, a slot is emptied whose handle has no prompt and generates nothing.
 *
 * Ownership: the host ends the new handle with `eliza_inference_llm_stream_close`, before or after the first one, and
 * frees `*out_error`. Null rule: `out_error` may be NULL; a NULL or closed handle gives NULL. Threads: any; fails
 * while the handle is at work.
 *
 * Returns NULL on failure; `eliza_inference_llm_stream_status` is then `ELIZA_ERR_NOT_IMPLEMENTED` (opened without the
 * flag), `ELIZA_ERR_INVALID_ARG` (no such slot, one that has a handle, the last one), `ELIZA_ERR_BUSY` (at work, or
 * the slot has the prompt for the next generate), `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`.
 */
FfiLlmHandle eliza_inference_llm_stream_open_slot(FfiLlmHandle handle,
                                                  int32_t slot_id,
                                                  char **out_error);

/**
 * Ends a handle. A running generation is cancelled and its terminal event still comes; nothing is waited for
 * while one runs, and memory is freed after it. Texts stay readable until 16 further handles were closed.
 *
 * Ownership: takes the handle; it is stale from now on, and closing it again does nothing. Null rule: NULL
 * does nothing. Threads: any, any time, inside the callback too; a call that blocks on another thread returns soon
 * with an error. Never fails.
 */
void eliza_inference_llm_stream_close(FfiLlmHandle handle);

/**
 * The devices of this machine as a JSON array, best first: `[{"name": "CPU (avx512)", "kind": "cpu", "score": 100,
 * "reason": "...", "shader_compiler": null, "memory_bytes": 16000000000, "available_bytes": 8000000000,
 * "memory_of_host": true}]`. `kind` is "cpu" or "gpu"; a device with score 0 cannot be used, for the reason given;
 * `shader_compiler` is "DXC" or "FXC" with DX12, else null; `memory_bytes` and `available_bytes` are null where the
 * system does not report them; `memory_of_host` is true for a device without memory of its own. The option `device`
 * takes a name, whole or in part.
 *
 * Ownership: the host frees the string with `eliza_inference_free_string`, and `*out_error`. Null rule: `out_error`
 * may be NULL. Threads: any, any time, several at once. The first call of a process may take about 100 ms, because
 * drivers are loaded. Returns NULL on failure, with the code in `eliza_inference_take_last_failure`.
 */
char *eliza_inference_devices_json(char **out_error);

/**
 * The memory of each device that `eliza_inference_llm_stream_open_ex` with the same options would take, from the
 * file's header alone: nothing is loaded, and `progress` is not called.
 *
 * The answer is one JSON object: `{"model": "...", "context": 4096, "kv_type": "f16", "kv_type_v": "f16", "n_batch":
 * 512, "n_layer": 28, "gpu_layers": 0, "draft": null, "devices": [...], "fits": true, "largest_context": 40960,
 * "largest_gpu_layers": null}`. Each device has `name`, `bytes` by component (`embedding`, `layers`, `head`,
 * `kv_cache`, `workspace`, `other`), `total_bytes`, `file_backed_bytes` (pages of the file, which the system may
 * drop), `available_bytes` and `memory_of_host`. The first device is the CPU, where a draft model is counted too;
 * `draft` tells its part: `model`, `total_bytes`, `file_backed_bytes`. `fits` is null where a device's free memory is
 * unknown; `largest_context` is the largest that fits, `largest_gpu_layers` the most layers on the GPU where those in
 * `options` do not fit; null is none, or unknown.
 *
 * Ownership: everything in `options` is copied; the host frees the string with `eliza_inference_free_string`, and
 * `*out_error`. Null rule: `options` and its `model_path` must not be NULL; `out_error` may be. Threads: any, any
 * time, several at once. Returns NULL on failure, with the code in `eliza_inference_take_last_failure`: as
 * `eliza_inference_llm_stream_open_ex`, except for errors that only loading finds.
 */
char *eliza_inference_plan_json(const struct eliza_llm_open_options_t *options,
                                char **out_error);

/**
 * Evaluates a prompt and keeps its KV cache in a slot; the longest common prefix with the tokens of any slot is
 * reused. Blocks until done.
 *
 * `slot_id` -1 takes the slot whose tokens the prompt goes on from, else an empty one, else the least recently used; 0
 * and up selects a slot, one for each conversation. Success re-arms the token trie, if any, and makes the texts of the
 * last generation invalid.
 *
 * The prompt of an encoder-decoder is what its encoder reads, in one pass, or not at all where the slot had the same
 * one before; a generation is the decoder's answer.
 *
 * Ownership: the tokens are copied. Null rule: `prompt_tokens` must not be NULL; a NULL or closed handle
 * is -1. Threads: any; fails while the handle is at work. `eliza_inference_llm_stream_cancel` from another thread ends
 * it early.
 *
 * Returns how many tokens are in place, reused ones included, which is `num_tokens`, or -1; then
 * `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (no tokens, a token or slot out of range),
 * `ELIZA_ERR_OOM` (longer than the context), `ELIZA_ERR_BUSY`, `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_NAN` or
 * `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_prefill(FfiLlmHandle handle,
                                           const int32_t *prompt_tokens,
                                           size_t num_tokens,
                                           int32_t slot_id);

/**
 * As `eliza_inference_llm_stream_prefill`, but returns at once: for hosts with one thread, whose timers and aborts go
 * on while the prompt is evaluated.
 *
 * `eliza_inference_llm_stream_status` is `ELIZA_STATUS_GENERATING` until the prefill is over, then `ELIZA_OK` or the
 * code of its error, whose text `eliza_inference_llm_stream_take_error` has. Poll about every millisecond, to leave
 * the cores to the library.
 *
 * Ownership: the tokens are copied, `*out_error` is the host's to free. Null rule: `prompt_tokens` must not be NULL;
 * `out_error` may be; a NULL or closed handle is -1. Threads: any; fails while the handle is at work.
 *
 * Returns `ELIZA_OK` when it was started, or -1 (handle), `ELIZA_ERR_INVALID_ARG` (no tokens, a token or slot out of
 * range), `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_start_prefill(FfiLlmHandle handle,
                                                 const int32_t *prompt_tokens,
                                                 size_t num_tokens,
                                                 int32_t slot_id,
                                                 char **out_error);

/**
 * Prewarm: evaluates a prompt in a slot when the handle has nothing else to do, and returns at once. A later prefill
 * of a prompt that begins with these tokens, in whatever slot, does not evaluate them again: for the part that many
 * conversations begin with, or for the next turn while the user is typing.
 *
 * `slot_id` is as in `eliza_inference_llm_stream_prefill`. Prompts are warmed up in their order; they wait while a
 * generation runs and while a prompt waits for its generate. Every call that needs the model ends the one that is
 * evaluated: what was evaluated stays in its slot. Status, usage and texts are those of other calls; how many prompts
 * wait or are evaluated is "prewarms" in `eliza_inference_llm_stream_usage_json`. An error that comes later is logged
 * and waits for `eliza_inference_llm_stream_take_error`.
 *
 * Ownership: the tokens are copied, `*out_error` is the host's to free. Null rule: `prompt_tokens` must not be NULL;
 * `out_error` may be; a NULL or closed handle is -1. Threads: any, any time, inside the callback too.
 *
 * Returns `ELIZA_OK`, or -1 (handle), `ELIZA_ERR_INVALID_ARG` (no tokens, a token or slot out of range),
 * `ELIZA_ERR_OOM` (longer than the context), `ELIZA_ERR_BUSY` (64 prompts wait) or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_prewarm(FfiLlmHandle handle,
                                           const int32_t *prompt_tokens,
                                           size_t num_tokens,
                                           int32_t slot_id,
                                           char **out_error);

/**
 * Pins a slot (`pinned` 1), or unpins it (0). A pinned slot keeps its tokens when others need room, and no prompt
 * takes it as its fresh slot: conversations in other slots share what they begin with. A prefill that names the slot
 * replaces its tokens all the same.
 *
 * Ownership: `*out_error` is the host's to free. Null rule: `out_error` may be NULL; a NULL or closed handle is -1.
 * Threads: any; fails while the handle is at work.
 *
 * Returns `ELIZA_OK`, or -1 (handle), `ELIZA_ERR_INVALID_ARG` (no such slot; -1 is none), `ELIZA_ERR_BUSY` or
 * `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_pin_slot(FfiLlmHandle handle,
                                            int32_t slot_id,
                                            int32_t pinned,
                                            char **out_error);

/**
 * Starts a generation after a prefill and returns at once; a callback then receives its tokens.
 *
 * At most `max_new_tokens` are generated; 0 ends at once, a negative number goes on until the model stops or the
 * context is full. `temperature` 0 or below takes the likeliest token; `top_p` 1 keeps all. A NaN (or JavaScript's
 * NaN) leaves either to the options, the chain, or the model's defaults.
 *
 * Null rule: without a callback the host pulls, by `eliza_inference_llm_stream_next` or `..._poll`; a NULL or
 * closed handle is -1. Threads: any. The callback runs on a thread of the library and must stay valid
 * until the terminal event; cancel, close and status may be called inside it.
 *
 * Returns 0 when the generation was started; exactly one terminal event follows. Otherwise -1, and no event;
 * `eliza_inference_llm_stream_status` is then `ELIZA_ERR_BUSY` (generating, or not prefilled since the last generate),
 * `ELIZA_ERR_TRIE` (the last set_token_trie was refused), `ELIZA_ERR_INVALID_ARG` or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_generate(FfiLlmHandle handle,
                                            int32_t max_new_tokens,
                                            float temperature,
                                            float top_p,
                                            eliza_llm_stream_token_cb token_callback);

/**
 * As `eliza_inference_llm_stream_generate`, for a callback with its own data and the text's length.
 *
 * Ownership: `user_data` stays the host's, is only passed on, and must stay valid until the terminal event.
 * `*out_error` is the host's to free. Null rule: callback NULL means pulling; `user_data` and `out_error` may be
 * NULL; a NULL or closed handle is -1. Threads: as `eliza_inference_llm_stream_generate`.
 *
 * Returns `ELIZA_OK` when the generation was started; exactly one terminal event follows. Otherwise the code:
 * -1 (handle), `ELIZA_ERR_BUSY`, `ELIZA_ERR_TRIE`, `ELIZA_ERR_INVALID_ARG` or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_generate_ex(FfiLlmHandle handle,
                                               int32_t max_new_tokens,
                                               float temperature,
                                               float top_p,
                                               eliza_llm_stream_token_cb2 token_callback,
                                               void *user_data,
                                               char **out_error);

/**
 * Asks what runs on the handle to stop, and never waits: a prefill, a generation, and every tokenize and
 * build_token_trie. The generation ends within about a token, and its terminal event still comes. Nothing happens when
 * nothing runs.
 *
 * Null rule: a NULL or closed handle is -1. Threads: any, any time, inside the callback too. Returns `ELIZA_OK`, or
 * -1 for a handle that is not open.
 */
int32_t eliza_inference_llm_stream_cancel(FfiLlmHandle handle);

/**
 * Constrains what follows to the leaves of a token trie, and arms its first descriptor.
 *
 * The payload is JSON, UTF-8, `payload_len` bytes without a terminator: `{"modelId": "...", "descriptors": [{"path":
 * "...", "leaves": [{"name": "...", "tokens": [1, 2]}]}]}`. The constraint persists, and each successful prefill arms
 * it again, until it is cleared or replaced. After a set that fails, whatever the reason, generate fails until a set
 * succeeds or `eliza_inference_clear_token_trie` is called, so ignoring the result never leads to unconstrained
 * output.
 *
 * Ownership: the payload is copied. Null rule: the payload must not be NULL; a NULL or closed handle is -1. Threads:
 * any; fails while the handle is at work and then changes nothing.
 *
 * Returns 0, or -1; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_TRIE` (the text names the place in the
 * payload), `ELIZA_ERR_INVALID_ARG` (mode, pointer), `ELIZA_ERR_NOT_IMPLEMENTED`, `ELIZA_ERR_BUSY` or
 * `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_set_token_trie(FfiLlmHandle handle,
                                       const char *trie_payload_json,
                                       size_t payload_len,
                                       int mode);

/**
 * Removes the constraint, and lets generate succeed again after a refused payload. Nothing happens when there is none.
 *
 * Null rule: a NULL or closed handle is -1. Threads: any; fails while the handle is at work and then changes
 * nothing. Returns 0, or -1; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_clear_token_trie(FfiLlmHandle handle);

/**
 * Arms one descriptor of the trie, by its path; what is generated next is one of its leaves.
 *
 * Null rule: a NULL `path` arms the next descriptor in payload order, after the last the first; a NULL or closed
 * handle is -1. Threads: any; fails while the handle is at work and then changes nothing. Returns 0, or -1; then
 * `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (no such path: the text names the known ones; no trie
 * is set; not UTF-8), `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_arm_token_trie(FfiLlmHandle handle,
                                       const char *path);

/**
 * Scores every leaf of the descriptor armed last as a continuation of the prompt, and blocks until that is done. The
 * slot is unchanged: a generate may follow, and more scoring.
 *
 * The answer is JSON, the most probable leaf first: `{"path": "...", "leaves": [{"name": "...", "tokens": 2,
 * "logprob": -0.7, "logprob_per_token": -0.35}]}`. `logprob` is the natural logarithm of the probability that exactly
 * this leaf follows: the product of its tokens' probabilities, each among the whole vocabulary by the model's own
 * logits, without any chain; where the leaf is a prefix of others, also of the probability that none of their tokens
 * follows. A leaf that cannot follow has `null`.
 *
 * Ownership: the host frees the string with `eliza_inference_free_string`, and `*out_error`. Null rule: `out_error`
 * may be NULL; a NULL or closed handle gives NULL. Threads: any; fails while the handle is at work, and inside the
 * callback. `eliza_inference_llm_stream_cancel` from another thread ends it early.
 *
 * Returns NULL on failure; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (no trie is set),
 * `ELIZA_ERR_TRIE` (the last set_token_trie was refused), `ELIZA_ERR_BUSY` (at work, or not prefilled since the last
 * generate), `ELIZA_ERR_OOM` (the context has no room for the leaves), `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_NAN` or
 * `ELIZA_ERR_FFI_FAULT`.
 */
char *eliza_inference_score_token_trie(FfiLlmHandle handle,
                                       char **out_error);

/**
 * Makes the payload of one descriptor from names, by the model's own tokenizer: what
 * `eliza_inference_set_token_trie` takes.
 *
 * Names are tokenized in the text in which they will be generated: `before`, a name and `after` are one text. `before`
 * is the text before the name in the reply, at least from the last line break on; `after` is the closing delimiter, a
 * part of every leaf. `parse_special`, 0 or not, recognises the texts of control tokens in all three. Warnings (a name
 * that is a prefix of another, one that is tokenized alone, names given twice) are written to `out_warnings`, a line
 * each.
 *
 * Ownership: the host frees the string, `*out_warnings` and `*out_error` with `eliza_inference_free_string`;
 * `*out_warnings` is written on success only, NULL where there are none. Null rule: `path` and `names` must not be
 * NULL, nor any name; `before` and `after` NULL are empty; `out_warnings` and `out_error` may be NULL; a NULL or
 * closed handle gives NULL. Threads: any, any time, inside the callback too. `eliza_inference_llm_stream_cancel` from
 * another thread ends it early; a cancel before the call does not.
 *
 * Returns NULL on failure; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (no names, an empty
 * one, one that the vocabulary cannot spell, not UTF-8), `ELIZA_ERR_TRIE` (more than a payload may hold),
 * `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`, and while a generation runs that generation's.
 */
char *eliza_inference_build_token_trie(FfiLlmHandle handle,
                                       const char *path,
                                       const char *const *names,
                                       size_t n_names,
                                       const char *before,
                                       const char *after,
                                       int parse_special,
                                       char **out_warnings,
                                       char **out_error);

/**
 * Bounds the compiled payloads that the process keeps for later sets: 64 MiB at the start, and never more than 128 of
 * them. The least recently used are dropped first; one that is larger than the bound is compiled again at every set.
 * Tries in use stay valid, whatever the bound.
 *
 * 0 keeps none. `eliza_inference_llm_stream_usage_json` reports the bytes kept. Threads: any, any time. Returns
 * `ELIZA_OK` or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_set_trie_cache_limit(uint64_t bytes);

/**
 * Holds what follows to a grammar, from its start. It takes the place of a token trie.
 *
 * The source is JSON, UTF-8, `json_len` bytes without a terminator: `{"gbnf": "root ::= ..."}`, with `"root"` where
 * another rule is the root; `{"json_schema": {...}}`, with `"compact": true` for no white space and `"keywords"`,
 * which says what becomes of those that no grammar can keep: "exact" (they are refused, the default), "lenient" (they
 * are ignored) or "llama.cpp" (schemas are read as llama.cpp does); `{"regex": "..."}`; `{"skeleton": {...}}`;
 * `{"spans": [...]}`; or `{"lark": "..."}` in a library with the feature `llguidance`. Besides, each may have `"lazy":
 * true` with `"triggers": [{"type": "word", "value": "..."}]` (types word, pattern, pattern_full and token), for a
 * grammar that begins with the first of them, and `"jump_ahead"`: "bytes" (forced text is tokenized at once), "tokens"
 * (a token is taken without sampling where it is the only legal one) or "off". The grammar persists, and each
 * successful prefill begins it again, until it is cleared or replaced. After a set that fails, whatever the reason,
 * generate fails until a set succeeds or `eliza_inference_clear_grammar` is called. Where only an end-of-generation
 * token is legal the generation ends.
 *
 * Ownership: the source is copied. Null rule: `json` must not be NULL; a NULL or closed handle is -1. Threads: any;
 * fails while the handle is at work and then changes nothing.
 *
 * Returns 0, or -1; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (the text names the line and
 * column, the key or the span), `ELIZA_ERR_OOM` (more than a grammar may hold), `ELIZA_ERR_NOT_IMPLEMENTED`,
 * `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_set_grammar(FfiLlmHandle handle,
                                    const char *json,
                                    size_t json_len);

/**
 * Removes the grammar, and lets generate succeed again after a refused one. Nothing happens when there is none; a
 * token trie stays.
 *
 * Null rule: a NULL or closed handle is -1. Threads: any; fails while the handle is at work and then changes
 * nothing. Returns 0, or -1; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_clear_grammar(FfiLlmHandle handle);

/**
 * Saves a slot to a file, and blocks until that is done: its tokens, its part of the KV cache, and where its last
 * generation stopped, the state of a token trie included. The handle is unchanged.
 *
 * `slot_id` -1 is the slot of the last prefill or restore; of any other slot only tokens and cache are saved. An
 * existing file is replaced as a whole; after a failure it is unchanged. It contains the prompt, and is readable by
 * its owner alone where the system has file owners. Chain, options and the trie itself are not in it.
 *
 * Ownership: the path is copied; the host frees `*out_error`. Null rule: `path` must not be NULL, `out_error` may be;
 * a NULL or closed handle is -1. Threads: any; fails while the handle is at work, and inside the callback.
 * `eliza_inference_llm_stream_cancel` from another thread ends it early.
 *
 * Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_INVALID_ARG` (no such slot, an empty one, a path without a file's name),
 * `ELIZA_ERR_IO`, `ELIZA_ERR_BUSY`, `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_DEVICE` or `ELIZA_ERR_FFI_FAULT`.
 */
int eliza_inference_llm_stream_save_slot(FfiLlmHandle handle,
                                         int32_t slot_id,
                                         const char *path,
                                         char **out_error);

/**
 * Restores what `eliza_inference_llm_stream_save_slot` wrote into a slot, whose content it replaces, and blocks until
 * that is done. The file may come from another process, machine, device or placement of layers; model and type of the
 * KV cache must be the same. Trust it as you trust the model file: a checksum finds damage, but the author of a file
 * determines what the stream has read, and its state in a constraint.
 *
 * A generate may follow at once, without a prefill, and goes on where the saved stream stopped, inside a span too. For
 * that the same token trie must be set in the same mode before; for a stream that was saved outside a constraint the
 * trie of the handle is armed, as by a prefill. A prefill reuses what was restored as far as the prompts agree.
 * `slot_id` -1 takes a fresh slot, as in a prefill. The texts of the last generation become invalid.
 *
 * Ownership: the path is copied; the host frees `*out_error`. Null rule: `path` must not be NULL, `out_error` may be;
 * a NULL or closed handle is -1. Threads: any; fails while the handle is at work, and inside the callback.
 * `eliza_inference_llm_stream_cancel` from another thread ends it early.
 *
 * Returns how many tokens the stream has, those included that were emitted and not evaluated yet; -1 (handle),
 * `ELIZA_ERR_SAVED_SLOT` (damaged, of another model or cache type, longer than the context, inside a constraint by
 * another trie; the text names the place), `ELIZA_ERR_IO`, `ELIZA_ERR_INVALID_ARG` or `ELIZA_ERR_BUSY`, and nothing
 * has changed; `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_OOM`, `ELIZA_ERR_DEVICE` or `ELIZA_ERR_FFI_FAULT`, and the slot may
 * be empty: it needs a new prefill or restore.
 */
int eliza_inference_llm_stream_restore_slot(FfiLlmHandle handle,
                                            int32_t slot_id,
                                            const char *path,
                                            char **out_error);

/**
 * Keeps a slot in the handle's folder of conversations (`store_directory` of the options of open), and blocks until
 * that is done: as `eliza_inference_llm_stream_save_slot`, in place of what is kept under that key. Where the folder
 * is limited (`store_bytes`), the conversations that were used the longest time ago are removed for it.
 *
 * `key` is the host's name for the conversation, 1 to 4096 bytes of UTF-8. A process that is killed meanwhile, and a
 * full disk, leave what was kept before.
 *
 * Ownership: the key is copied; the host frees `*out_error`. Null rule: `key` must not be NULL, `out_error` may be; a
 * NULL or closed handle is -1. Threads: as `eliza_inference_llm_stream_save_slot`.
 *
 * Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_INVALID_ARG` (no folder, a bad key, no such slot, an empty one),
 * `ELIZA_ERR_IO` (also for a conversation larger than the limit), `ELIZA_ERR_BUSY`, `ELIZA_ERR_CANCELLED`,
 * `ELIZA_ERR_DEVICE` or `ELIZA_ERR_FFI_FAULT`.
 */
int eliza_inference_llm_stream_persist(FfiLlmHandle handle,
                                       int32_t slot_id,
                                       const char *key,
                                       char **out_error);

/**
 * Restores the conversation that `eliza_inference_llm_stream_persist` kept under a key, of this process or an earlier
 * one, as `eliza_inference_llm_stream_restore_slot` does: a generate may follow at once, and a prefill reuses it.
 *
 * Ownership, null rule and threads are those of `eliza_inference_llm_stream_persist`.
 *
 * Returns how many tokens the stream has; 0, and nothing has changed, where nothing is kept under that key; else as
 * `eliza_inference_llm_stream_restore_slot`, with `ELIZA_ERR_INVALID_ARG` also without a folder and for a bad key.
 */
int eliza_inference_llm_stream_resume(FfiLlmHandle handle,
                                      int32_t slot_id,
                                      const char *key,
                                      char **out_error);

/**
 * Removes the conversation that is kept under a key.
 *
 * Ownership and null rule are those of `eliza_inference_llm_stream_persist`. Threads: any, any time, inside the
 * callback too.
 *
 * Returns 1 where there was one, 0 where there was none, -1 (handle), `ELIZA_ERR_INVALID_ARG` (no folder, a bad key),
 * `ELIZA_ERR_IO` or `ELIZA_ERR_FFI_FAULT`.
 */
int eliza_inference_llm_stream_forget(FfiLlmHandle handle,
                                      const char *key,
                                      char **out_error);

/**
 * Makes a sampler that constrains a llama.cpp chain to the leaves of a token trie, armed at its first descriptor.
 *
 * The payload is that of `eliza_inference_set_token_trie`, here with a terminator. Its place in the chain is after
 * biases and penalties and before what truncates (top-k, top-p, min-p ...). In another place no illegal token is drawn
 * either, but a truncation before it may have dropped every legal candidate, and then the trie chooses without logits.
 * Inside a span the logits of illegal candidates become minus infinity, in place; `ELIZA_TRIE_GREEDY` then leaves one
 * candidate, the likeliest legal one, and `ELIZA_TRIE_SAMPLED` the rest of the chain to draw from the legal ones.
 * Completing a leaf releases the constraint until `llama_sampler_reset`, `eliza_inference_sampler_arm` or a new
 * sampler. A host may pass its prompt through `llama_sampler_accept`: at the start of a span a token counts only if
 * the sampler was applied since the last one.
 *
 * The sampler is made by the `llama_sampler_init` that `eliza_inference_set_host_sampler_init` was given, else by that
 * of the libllama in the process, however it was loaded, so that a chain can own it and `llama_sampler_free` free it.
 * Where there is no libllama it is from the C allocator: the functions `eliza_inference_sampler_...` drive it, and it
 * must not be given to a libllama that is loaded later. With a libllama, tokens are checked against `vocab`.
 *
 * Ownership: the payload is copied, `vocab` is used only during the call; the host owns the sampler until it gives it
 * to a chain. Null rule: the payload must not be NULL; a NULL `vocab` leaves the tokens unchecked. Threads: any,
 * several at once; one sampler is used by one thread at a time. Neither it nor any call on it ever unwinds into the
 * host or ends the process; a failure inside a chain leaves the candidates unchanged, and its text is in
 * `eliza_inference_take_last_error`.
 *
 * Returns the sampler, or NULL with the reason in `eliza_inference_take_last_error`: a payload that is refused, a mode
 * that is not 0 or 1 (`ELIZA_TRIE_SCORE_LEAVES` needs the model, which a sampler does not see), no memory.
 */
struct llama_sampler *llama_sampler_init_token_trie(const struct llama_vocab *vocab,
                                                    const char *trie_descriptor_json,
                                                    int mode);

/**
 * Makes a sampler that holds a llama.cpp chain to a grammar. The source is that of `eliza_inference_set_grammar`; its
 * `jump_ahead` says nothing here. The vocabulary is that of an open handle, which may be one of a vocabulary alone
 * (`vocab_only`), of the same model as the host's.
 *
 * Its place in the chain is before what truncates. The logits of illegal candidates become minus infinity, in place;
 * where no legal one is in the list, the first entry becomes the smallest legal token with logit 0, and `size` 1.
 * Tokens that end the generation are legal where the grammar may end. A sampled token is passed to it by
 * `llama_sampler_accept`, the prompt is not: a token that does not fit changes nothing, and the reason is in
 * `eliza_inference_take_last_error`. `llama_sampler_reset` begins the grammar again. Who frees it, and what drives it,
 * is as with `llama_sampler_init_token_trie`.
 *
 * Ownership: the source is copied; the sampler may outlive the handle. `vocab` is used only during the call. Null
 * rule: `json` must not be NULL; a NULL `vocab` leaves the number of its tokens unchecked. Threads: any, several at
 * once; one sampler is used by one thread at a time.
 *
 * Returns the sampler, or NULL with the reason in `eliza_inference_llm_stream_take_error` (of a NULL or closed handle
 * in `eliza_inference_take_last_error`): a grammar that is refused, a vocabulary of another size, no memory.
 */
struct llama_sampler *eliza_inference_sampler_init_grammar(FfiLlmHandle handle,
                                                           const struct llama_vocab *vocab,
                                                           const char *json,
                                                           size_t json_len);

/**
 * Says which `llama_sampler_init` makes the samplers of `llama_sampler_init_token_trie`, instead of the one found in
 * the process. Needed where llama.cpp is linked into the program without exporting its symbols, and where the process
 * holds more than one libllama: a sampler must come from the copy that frees it.
 *
 * Null rule: NULL goes back to the search. Threads: any. Returns `ELIZA_OK` or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_set_host_sampler_init(eliza_sampler_init_fn init);

/**
 * The name of a sampler of this library, `token-trie` or `grammar`.
 *
 * Ownership: static, do not free. Null rule: NULL for a sampler that is NULL or not of this library. Threads: one at a
 * time per sampler.
 */
const char *eliza_inference_sampler_name(const struct llama_sampler *smpl);

/**
 * Passes a sampled token, to a token trie also one of the prompt, to a sampler: `llama_sampler_accept`.
 *
 * Null rule: a NULL sampler is an error. Threads: one at a time per sampler. Returns `ELIZA_OK`,
 * `ELIZA_ERR_INVALID_ARG` (not a sampler of this library, a token that the grammar does not allow) or
 * `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_sampler_accept(struct llama_sampler *smpl, int32_t token);

/**
 * Sets the logits of the illegal tokens in a list of candidates to minus infinity, in place: `llama_sampler_apply`.
 * Legal ones keep place and logit; with `ELIZA_TRIE_GREEDY` the likeliest of them is then swapped with the first
 * entry, and `size` becomes 1. Where no legal candidate was in the list, the first entry becomes the smallest legal
 * token with logit 0, and `size` 1. Outside a span the list stays as it is.
 *
 * Null rule: a NULL sampler, a NULL list and NULL data of a size are errors. Threads: one at a time per sampler.
 * Returns `ELIZA_OK`, `ELIZA_ERR_INVALID_ARG` (not a sampler of this library, no list) or `ELIZA_ERR_FFI_FAULT`; then
 * the list is as it was.
 */
int32_t eliza_inference_sampler_apply(struct llama_sampler *smpl,
                                      struct llama_token_data_array *cur_p);

/**
 * Arms the first descriptor of a token trie sampler again, or begins its grammar again: `llama_sampler_reset`.
 *
 * Null rule: a NULL sampler is an error. Threads: one at a time per sampler. Returns `ELIZA_OK`,
 * `ELIZA_ERR_INVALID_ARG` (not a sampler of this library) or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_sampler_reset(struct llama_sampler *smpl);

/**
 * Arms one descriptor of a token trie sampler, by its path; also of one in a chain, which llama.cpp has no call for.
 *
 * Null rule: a NULL `path` arms the next descriptor in payload order, after the last the first; a NULL sampler is an
 * error. Threads: one at a time per sampler. Returns `ELIZA_OK`, `ELIZA_ERR_INVALID_ARG` (not a sampler of this
 * library, no such path: the text names the known ones, not UTF-8) or `ELIZA_ERR_FFI_FAULT`; then nothing changes.
 */
int32_t eliza_inference_sampler_arm(struct llama_sampler *smpl,
                                    const char *path);

/**
 * An independent sampler in the same state: `llama_sampler_clone`. It is allocated in the same way as the original.
 *
 * Ownership: the host owns the clone. Null rule: a NULL sampler is an error. Threads: one at a time per sampler.
 * Returns NULL with the reason in `eliza_inference_take_last_error`.
 */
struct llama_sampler *eliza_inference_sampler_clone(const struct llama_sampler *smpl);

/**
 * Frees a token trie sampler that no `llama_sampler_init` made. One that a libllama made is freed by its
 * `llama_sampler_free`, or by the chain that owns it; here that is an error and nothing happens.
 *
 * Ownership: takes it. Null rule: NULL does nothing. Threads: any. Returns `ELIZA_OK`, `ELIZA_ERR_INVALID_ARG` (a
 * sampler of llama.cpp) or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_sampler_free(struct llama_sampler *smpl);

/**
 * The status of the handle, and the code of a call that returned -1.
 *
 * Returns `ELIZA_STATUS_GENERATING` (2) while a prefill or a generation runs. Otherwise the outcome of the call or
 * generation that finished last on the handle (queries count only where they fail): the code of a failed call, or the
 * end of the generation, which is `ELIZA_OK` (0) when the model stopped, at a stop string or at a span's end, 1 when a
 * limit ended it (`max_new_tokens` or the context), `ELIZA_ERR_CANCELLED`, or the code of its error; and `ELIZA_OK`
 * before any call. The exact finish reason is in `eliza_inference_llm_stream_usage`. The call changes nothing.
 *
 * Null rule: a NULL or closed handle is -1. Threads: any, any time, inside the callback too.
 */
int32_t eliza_inference_llm_stream_status(FfiLlmHandle handle);

/**
 * The text of the newest error on the handle that was not taken: of a failed call or generation. Each is returned
 * once; the last 16 are kept.
 *
 * Ownership: the host frees the string with `eliza_inference_free_string`. Returns NULL when there is no error
 * left, and for a NULL or closed handle, whose reason `eliza_inference_take_last_error` has. Threads: any, any time,
 * inside the callback too.
 */
char *eliza_inference_llm_stream_take_error(FfiLlmHandle handle);

/**
 * The text of the newest error without an open handle that was not taken: why an open returned NULL, or a call on a
 * handle that is not open failed. Each is returned once; the last 16 of the process are kept, of all threads.
 *
 * Ownership: the host frees the string with `eliza_inference_free_string`. Returns NULL when there is none.
 * Threads: any, any time.
 */
char *eliza_inference_take_last_error(void);

/**
 * As `eliza_inference_take_last_error`, with the code that belongs to the text, for hosts that distinguish errors by
 * code.
 *
 * Ownership: the host frees the string with `eliza_inference_free_string`. Null rule: `out_code` may be NULL. Returns
 * NULL when there is none; `*out_code` is then `ELIZA_OK`, else the code, -1 for a call on a handle that is not open.
 * Threads: any, any time.
 */
char *eliza_inference_take_last_failure(int32_t *out_code);

/**
 * Takes output of the generation: waits for the next token, then writes up to `tokens_cap` tokens and their text.
 *
 * The text is whole characters in UTF-8, always terminated; no byte after `text_cap` is written. A step ends early
 * rather than cut the text of a token; only a token whose text alone is longer than the buffer has its text spread
 * over steps, the later ones without tokens. NUL characters are U+FFFD. The last step may hold tokens and text too.
 *
 * Ownership: the buffers are the host's, `*out_error` is the host's to free. Null rule: `tokens_out` and `text_out`
 * must not be NULL; `num_tokens_out`, `drafter_drafted_out`, `drafter_accepted_out` (tokens that were guessed since
 * the last step, and those of them that were right) and `out_error` may be; a NULL or closed handle is -1. Threads:
 * one at a time per handle.
 *
 * Returns `ELIZA_STREAM_MORE` (0), `ELIZA_STREAM_FINAL` (1), or a code: `ELIZA_ERR_CANCELLED` for the end of a
 * cancelled generation (the outputs are valid); -1 (handle); `ELIZA_ERR_INVALID_ARG` for a NULL buffer, `tokens_cap`
 * 0, `text_cap` below 8, no generation to read, or one that has a callback; or the code of the error that ended the
 * generation: `ELIZA_ERR_NAN`, `ELIZA_ERR_OOM`, `ELIZA_ERR_FFI_FAULT`.
 */
int eliza_inference_llm_stream_next(FfiLlmHandle handle,
                                    int32_t *tokens_out,
                                    size_t tokens_cap,
                                    size_t *num_tokens_out,
                                    char *text_out,
                                    size_t text_cap,
                                    int32_t *drafter_drafted_out,
                                    int32_t *drafter_accepted_out,
                                    char **out_error);

/**
 * As `eliza_inference_llm_stream_next`, but waits at most `timeout_ms` milliseconds for the next token: 0 does not
 * wait at all, a negative number waits without end. Nothing in time is `ELIZA_STREAM_MORE` with no tokens.
 *
 * Ownership, null rule, threads and results are those of `eliza_inference_llm_stream_next`.
 */
int eliza_inference_llm_stream_poll(FfiLlmHandle handle,
                                    int32_t timeout_ms,
                                    int32_t *tokens_out,
                                    size_t tokens_cap,
                                    size_t *num_tokens_out,
                                    char *text_out,
                                    size_t text_cap,
                                    char **out_error);

/**
 * Fills the options with those in force on the handle: after open the model file's defaults, and the library's where
 * the file has none. The pointers and their counts are set to NULL and 0.
 *
 * Ownership: `options` is the host's; set its `struct_size` first. Null rule: `options` must not be NULL; a NULL or
 * closed handle is -1. Threads: any, any time. Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_INVALID_ARG` (NULL,
 * `struct_size`) or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_sampling_defaults(FfiLlmHandle handle,
                                                     struct eliza_llm_sampling_options_t *options);

/**
 * Sets how later generations on the handle sample; it holds until set again.
 *
 * Fields that the host's version of the structure does not have count as 0. Temperature and top-p are
 * arguments of generate.
 *
 * Ownership: everything is copied, `*out_error` is the host's to free. Null rule: `options` must not be NULL; its
 * arrays may be where their count is 0; `out_error` may be; a NULL or closed handle is -1. Threads: any; fails while
 * the handle is at work.
 *
 * Returns `ELIZA_OK`, or changes nothing and returns -1 (handle), `ELIZA_ERR_INVALID_ARG`, `ELIZA_ERR_OOM` (more than
 * a grammar may hold), `ELIZA_ERR_NOT_IMPLEMENTED`, `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`. After a grammar that is
 * refused generate fails, as after `eliza_inference_set_grammar`.
 */
int32_t eliza_inference_llm_stream_configure(FfiLlmHandle handle,
                                             const struct eliza_llm_sampling_options_t *options,
                                             char **out_error);

/**
 * Sets the sampler chain of later generations on a slot, in place of the sampling options: for example
 * "top_k=40;top_p=0.95;min_p=0.05;temp=0.8". `slot_id` -1 means fresh slots.
 *
 * Ownership: the text is copied, `*out_error` is the host's to free. Null rule: a NULL `chain_text` goes back to the
 * options; `out_error` may be NULL; a NULL or closed handle is -1. Threads: any; fails while the handle is at work.
 *
 * Returns `ELIZA_OK`, or changes nothing and returns -1 (handle), `ELIZA_ERR_INVALID_ARG` (the text names the sampler
 * or value), `ELIZA_ERR_NOT_IMPLEMENTED`, `ELIZA_ERR_BUSY` or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_set_chain(FfiLlmHandle handle,
                                             int32_t slot_id,
                                             const char *chain_text,
                                             char **out_error);

/**
 * The usage of the last prompt and the generation after it; also while that runs.
 *
 * Ownership: `out` is the host's; set its `struct_size` first. Null rule: `out` must not be NULL; a NULL or closed
 * handle is -1. Threads: any, any time, inside the callback too. Returns `ELIZA_OK`, -1 (handle),
 * `ELIZA_ERR_INVALID_ARG` (NULL, `struct_size`) or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_usage(FfiLlmHandle handle,
                                         struct eliza_llm_usage_t *out);

/**
 * Usage, model, device and sizes as one JSON object.
 *
 * Ownership: the host frees the string with `eliza_inference_free_string`. Returns NULL for a NULL or closed handle
 * and after a fault; the reason is kept as for any call. Threads: any, any time, inside the callback too.
 */
char *eliza_inference_llm_stream_usage_json(FfiLlmHandle handle);

/**
 * How the last sampled token of a slot was drawn; `slot_id` -1 is the fresh slot. Tokens that a trie forced were not
 * sampled. Candidates are kept when the option `n_candidates` asks for them.
 *
 * Ownership: `out` and its array are the host's; set `struct_size`, `candidates` and `candidates_cap` first. Null
 * rule: `out` must not be NULL; `candidates` may be where `candidates_cap` is 0; a NULL or closed handle is -1.
 * Threads: any, any time, inside the callback too. Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_INVALID_ARG` (NULL,
 * `struct_size`, nothing sampled yet) or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_sampled(FfiLlmHandle handle,
                                           int32_t slot_id,
                                           struct eliza_llm_sampled_t *out);

/**
 * Turns text into token ids.
 *
 * `add_special` adds the begin- and end-of-text tokens that the model wants (usually BOS); `parse_special` turns the
 * text of special tokens into those tokens, which is for templates and not for users' text. Both are switches, 0 or
 * not. The text may have 1 GiB at most; time and memory grow with its length, whatever its content.
 *
 * Ownership: `text` is read only during the call; the host frees `*out_tokens` with `eliza_inference_free_tokens` (it
 * is not NULL even when there are no tokens), and `*out_error`. Null rule: `text` may be NULL where `text_len`
 * is 0; `out_tokens` and `out_n` must not be NULL; `out_error` may be; a NULL or closed handle is -1. Threads: any,
 * any time, inside the callback too. `eliza_inference_llm_stream_cancel` from another thread ends it early; a cancel
 * before the call does not.
 *
 * Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_INVALID_ARG`, `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_OOM` or
 * `ELIZA_ERR_FFI_FAULT`.
 */
int eliza_inference_llm_stream_tokenize(FfiLlmHandle handle,
                                        const char *text,
                                        size_t text_len,
                                        int add_special,
                                        int parse_special,
                                        int **out_tokens,
                                        size_t *out_n,
                                        char **out_error);

/**
 * Turns token ids into text.
 *
 * `remove_special` leaves out the special tokens that tokenizing adds at the beginning and the end; `unparse_special`
 * writes control tokens as their text instead of leaving them out. Both are switches, 0 or not. The bytes are UTF-8
 * where the tokens spell whole characters, and followed by a NUL.
 *
 * Ownership: `out_text` is the host's, `*out_error` is the host's to free. Null rule: `tokens` may be NULL where
 * `n_tokens` is 0; `out_text` may be NULL where `max_text_bytes` is 0, to ask for the length; `out_error`
 * may be NULL; a NULL or closed handle is -1. Threads: any, any time, inside the callback too.
 *
 * Returns the length of the text in bytes without the NUL, which was written if `max_text_bytes` is greater than it or
 * 0; or -1 (handle), `ELIZA_ERR_INVALID_ARG` (a token out of range, a buffer too small: the text names the bytes
 * needed; nothing is written then), `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`.
 */
int eliza_inference_llm_stream_detokenize(FfiLlmHandle handle,
                                          const int *tokens,
                                          size_t n_tokens,
                                          int remove_special,
                                          int unparse_special,
                                          char *out_text,
                                          size_t max_text_bytes,
                                          char **out_error);

/**
 * The rows of texts: their embeddings. Blocks until they are computed; short texts share passes.
 *
 * The texts follow one another in `texts`, `text_lens` has the bytes of each. They get the begin- and end-of-text
 * tokens that the model wants; the text of special tokens is text. `options` NULL is all zeroes. Rows come in the
 * order of the texts, one for each, or with `ELIZA_POOLING_NONE` one for each token; each has `*out_width` numbers. A
 * text of more tokens than the context is refused, never cut. A prompt that waits for its generate is forgotten.
 *
 * Ownership: everything is read only during the call; the host frees `*out_rows` with `eliza_inference_free_rows` (it
 * is not NULL even where there are no rows) and `*out_error`. Null rule: `options` may be NULL, and so may `texts` and
 * `text_lens` where there is nothing in them; the out-pointers must not be NULL, but `out_error` may be; a NULL or
 * closed handle is -1. Threads: any; fails while the handle is at work, and inside the callback.
 * `eliza_inference_llm_stream_cancel` from another thread ends it early.
 *
 * Returns `ELIZA_OK`, -1 (handle; or only the vocabulary is open), `ELIZA_ERR_INVALID_ARG` (a text without tokens or
 * too long, no such pooling, more dimensions than there are), `ELIZA_ERR_BUSY`, `ELIZA_ERR_CANCELLED`,
 * `ELIZA_ERR_OOM`, `ELIZA_ERR_DEVICE` or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_embed(FfiLlmHandle handle,
                                         const struct eliza_llm_embedding_options_t *options,
                                         const char *texts,
                                         const size_t *text_lens,
                                         size_t n_texts,
                                         float **out_rows,
                                         size_t *out_n_rows,
                                         size_t *out_width,
                                         char **out_error);

/**
 * As `eliza_inference_llm_stream_embed`, of texts that are tokens already: they follow one another in `tokens`, and
 * `token_counts` has the number of each. Nothing is added to them.
 *
 * Ownership, null rule, threads and results are those of `eliza_inference_llm_stream_embed`; a token that does not
 * exist is `ELIZA_ERR_INVALID_ARG`.
 */
int32_t eliza_inference_llm_stream_embed_tokens(FfiLlmHandle handle,
                                                const struct eliza_llm_embedding_options_t *options,
                                                const int32_t *tokens,
                                                const size_t *token_counts,
                                                size_t n_texts,
                                                float **out_rows,
                                                size_t *out_n_rows,
                                                size_t *out_width,
                                                char **out_error);

/**
 * As `eliza_inference_llm_stream_embed_tokens`, but returns at once: for hosts with one thread.
 *
 * `eliza_inference_llm_stream_status` is `ELIZA_STATUS_GENERATING` until the rows are computed;
 * `eliza_inference_llm_stream_take_embeddings` then has them. Poll about every millisecond, to leave the cores to the
 * library. Rows that were not taken are dropped.
 *
 * Ownership: everything is copied, `*out_error` is the host's to free. Null rule and threads are those of
 * `eliza_inference_llm_stream_embed`.
 *
 * Returns `ELIZA_OK` when it was started, or -1 (handle), `ELIZA_ERR_INVALID_ARG`, `ELIZA_ERR_BUSY` or
 * `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_start_embed(FfiLlmHandle handle,
                                               const struct eliza_llm_embedding_options_t *options,
                                               const int32_t *tokens,
                                               const size_t *token_counts,
                                               size_t n_texts,
                                               char **out_error);

/**
 * The rows of `eliza_inference_llm_stream_start_embed`; each are given once.
 *
 * Ownership: the host frees `*out_rows` with `eliza_inference_free_rows` (it is not NULL even where there are no rows)
 * and `*out_error`. Null rule: the out-pointers must not be NULL, but `out_error` may be; a NULL or closed handle is
 * -1. Threads: any, any time, inside the callback too.
 *
 * Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_BUSY` (they are being computed), `ELIZA_ERR_INVALID_ARG` (nothing was
 * started, or all was taken), or the code of the error that ended the computation.
 */
int32_t eliza_inference_llm_stream_take_embeddings(FfiLlmHandle handle,
                                                   float **out_rows,
                                                   size_t *out_n_rows,
                                                   size_t *out_width,
                                                   char **out_error);

/**
 * How well each text answers a question: the first score of the model's classifier, which has to be a reranker. Higher
 * is better; some models give probabilities, others any number. Blocks until they are computed.
 *
 * Question and text are put together as the model's file says. The texts follow one another in `texts`, `text_lens`
 * has the bytes of each; `out_scores` gets as many numbers as there are texts, in their order.
 *
 * Ownership: everything is read only during the call; `out_scores` is the host's, `*out_error` is the host's to free.
 * Null rule: an array may be NULL where there is nothing in it; `out_error` may be NULL; a NULL or closed handle is
 * -1. Threads and results are those of `eliza_inference_llm_stream_embed`.
 */
int32_t eliza_inference_llm_stream_rank(FfiLlmHandle handle,
                                        const char *query,
                                        size_t query_len,
                                        const char *texts,
                                        const size_t *text_lens,
                                        size_t n_texts,
                                        float *out_scores,
                                        char **out_error);

/**
 * The tokens of a question and a text, put together as the model's file says: those that
 * `eliza_inference_llm_stream_rank` scores, for `eliza_inference_llm_stream_start_embed` with `ELIZA_POOLING_RANK`.
 *
 * Ownership: question and text are read only during the call; the host frees `*out_tokens` with
 * `eliza_inference_free_tokens`, and `*out_error`. Null rule: an array may be NULL where its length is 0; `out_tokens`
 * and `out_n` must not be NULL; `out_error` may be; a NULL or closed handle is -1. Threads: any, any time, inside the
 * callback too.
 *
 * Returns `ELIZA_OK`, -1 (handle), `ELIZA_ERR_INVALID_ARG`, `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_OOM` or
 * `ELIZA_ERR_FFI_FAULT`.
 */
int eliza_inference_llm_stream_tokenize_pair(FfiLlmHandle handle,
                                             const char *query,
                                             size_t query_len,
                                             const char *text,
                                             size_t text_len,
                                             int **out_tokens,
                                             size_t *out_n,
                                             char **out_error);

/**
 * Frees rows of texts that this library returned.
 *
 * Ownership: takes them. Null rule: NULL is allowed and does nothing. Threads: any. Never fails.
 */
void eliza_inference_free_rows(float *rows);

/**
 * The prompt that the model's chat template makes of messages, as one JSON object: `text`, and `tokens`, an array of
 * ids to prefill.
 *
 * `inputs_json` is an object: `messages` (an array of objects with `role`, `content`, and where there are some
 * `tool_calls` and `reasoning_content`), and where wanted `tools`, `documents`, `add_generation_prompt` (true: the
 * prompt ends where the model's turn begins; false where it is not given) and whatever else the template reads, such
 * as `enable_thinking`. `answer_start` is the text that the model's turn begins with, whose special tokens are tokens.
 * Messages in the form of OpenAI's API are adapted to what the template reads (`docs/chat.md`).
 * What they spell stays text: no special token comes of a message.
 *
 * Ownership: `inputs_json` is copied; the host frees the string with `eliza_inference_free_string`, and `*out_error`.
 * Null rule: `inputs_json` must not be NULL; `out_error` may be; a NULL or closed handle gives NULL. Threads: any, any
 * time, inside the callback too. `eliza_inference_llm_stream_cancel` from another thread ends it early. Returns NULL
 * on failure; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (inputs that are none, messages that
 * the template refuses, a broken template; the text has its words), `ELIZA_ERR_NOT_IMPLEMENTED` (the file has no
 * template, and its tokens are of no known family), `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`,
 * and while a generation runs that generation's.
 */
char *eliza_inference_llm_stream_chat_prompt_json(FfiLlmHandle handle,
                                                  const char *inputs_json,
                                                  char **out_error);

/**
 * Takes an answer apart as it comes, into what the user is to read, what the model thought, and calls of functions.
 *
 * `text` is the answer's next piece, of any size: how it is cut changes nothing. The result is a JSON array of the
 * parts that it completes: `{"type": "answer", "text": "..."}`, `{"type": "reasoning", "text": "..."}`, and `{"type":
 * "tool_call", "name": "...", "arguments": "{...}", "id": "..."}`, whose `arguments` are a JSON object as text, and
 * whose `id` only some models give. Texts of one type that follow each other belong together. What looks like a call
 * and is none is a part of the answer.
 *
 * `inputs_json` begins a new answer, the one to the prompt that `eliza_inference_llm_stream_chat_prompt_json` makes of
 * the same inputs; without it the text goes on. `last`, 0 or not, ends the answer: the result has what was held back.
 * An answer that is there whole takes one call. Control tokens have to be spelled in the text: set `special_text` of
 * `eliza_llm_sampling_options_t`.
 *
 * Ownership: everything is copied; the host frees the string with `eliza_inference_free_string`, and `*out_error`.
 * Null rule: `inputs_json` may be NULL, and `text` where `text_len` is 0; `out_error` may be; a NULL or closed handle
 * gives NULL. Threads: any, any time, inside the callback too; a handle reads one answer. Returns NULL on failure and
 * has then changed nothing; `eliza_inference_llm_stream_status` is then `ELIZA_ERR_INVALID_ARG` (no answer was begun,
 * or inputs that make no prompt), `ELIZA_ERR_NOT_IMPLEMENTED` (no template, as for the prompt), `ELIZA_ERR_OOM` or
 * `ELIZA_ERR_FFI_FAULT`, and while a generation runs that generation's.
 */
char *eliza_inference_llm_stream_chat_parts_json(FfiLlmHandle handle,
                                                 const char *inputs_json,
                                                 const char *text,
                                                 size_t text_len,
                                                 int last,
                                                 char **out_error);

/**
 * The metadata of a model file as JSON, from its header alone.
 *
 * A NULL `key` gives one object of all keys in the file's order; an array of more than 16 elements is written as
 * `{"type": "String", "length": 32000}`. With a key, the key's whole value. Numbers that are not finite are null;
 * 64-bit integers are written exactly.
 *
 * Ownership: `path` and `key` are copied; the host frees the string with `eliza_inference_free_string`, and
 * `*out_error`. Null rule: `path` must not be NULL; `key` and `out_error` may be. Threads: any, any time, several at
 * once. Returns NULL on failure, with the code in `eliza_inference_take_last_failure`: `ELIZA_ERR_IO`,
 * `ELIZA_ERR_BUNDLE_INVALID`, `ELIZA_ERR_INVALID_ARG` (a key that the file does not have), `ELIZA_ERR_OOM` or
 * `ELIZA_ERR_FFI_FAULT`.
 */
char *eliza_inference_file_metadata_json(const char *path,
                                         const char *key,
                                         char **out_error);

/**
 * As `eliza_inference_file_metadata_json`, of the file that is open.
 *
 * Ownership: `key` is copied; the host frees the string with `eliza_inference_free_string`, and `*out_error`. Null
 * rule: `key` and `out_error` may be NULL; a NULL or closed handle gives NULL. Threads: any, any time, inside the
 * callback too. Returns NULL on failure; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (a key
 * that the file does not have), `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`, and while a generation runs that
 * generation's.
 */
char *eliza_inference_llm_stream_metadata_json(FfiLlmHandle handle,
                                               const char *key,
                                               char **out_error);

/**
 * A description of the open model as one JSON object: `path`, `names` (what a token trie may call the model), `name`,
 * `architecture`, `vocab_only`; `n_vocab`, `n_embd`, `n_layer`, `n_head`, `n_head_kv`, `n_ff` (the largest where
 * layers differ), `train_context`, `parameters`, `bytes` of the file; `context`, `slots`, `threads`, `n_batch`,
 * `kv_type`, `kv_type_v` and `device` of the handle; `vocabulary` (its kind), `special` (an object of token ids by
 * role: `bos`, `eos`, `eot`, `eom`, `unk`, `sep`, `pad`, `mask`, `nl`, `fim_pre`, `fim_suf`, `fim_mid`, `fim_pad`,
 * `fim_rep`, `fim_sep`; null where no token has the role), `eog` (all tokens that end a generation), `add_bos` and
 * `add_eos` (whether tokenizing with `add_special` adds them). What the file does not have is null.
 *
 * Ownership: the host frees the string with `eliza_inference_free_string`, and `*out_error`. Null rule: `out_error`
 * may be NULL; a NULL or closed handle gives NULL. Threads: any, any time, inside the callback too. Returns NULL on
 * failure, with the reason in `*out_error`: the handle, or a fault.
 */
char *eliza_inference_llm_stream_model_json(FfiLlmHandle handle,
                                            char **out_error);

/**
 * Whether a token ends a generation: 1 or 0.
 *
 * Null rule: a NULL or closed handle is -1. Threads: any, any time, inside the callback too. Returns 1, 0, -1
 * (handle), `ELIZA_ERR_INVALID_ARG` (no such token) or `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_llm_stream_is_eog(FfiLlmHandle handle, int32_t token);

/**
 * A token as one JSON object: `id`; `text` as the file has it; `piece`, what it spells in a generated text (null where
 * that is no whole UTF-8, empty for control tokens), and its `bytes`; `score` (null where the file has none);
 * `attributes`, a list of "unknown", "unused", "normal", "control", "user_defined", "byte", "lstrip", "rstrip";
 * `is_eog`.
 *
 * Ownership: the host frees the string with `eliza_inference_free_string`, and `*out_error`. Null rule: `out_error`
 * may be NULL; a NULL or closed handle gives NULL. Threads: any, any time, inside the callback too. Returns NULL on
 * failure; then `eliza_inference_llm_stream_status` is `ELIZA_ERR_INVALID_ARG` (no such token) or
 * `ELIZA_ERR_FFI_FAULT`, and while a generation runs that generation's.
 */
char *eliza_inference_llm_stream_token_json(FfiLlmHandle handle,
                                            int32_t token,
                                            char **out_error);

/**
 * The model's own logits of the last `n_last` positions (1 to 512) of the slot that was prefilled last: rows of as
 * many numbers as the vocabulary has tokens, the first position first, without chain or bias. Blocks until they are
 * computed.
 *
 * The last position needs no evaluation. Earlier positions are evaluated again, which takes as long as a prefill of
 * `n_last` tokens. The slot is unchanged: a generate may follow, and further queries.
 *
 * Ownership: `out` is the host's, `*out_error` is the host's to free. Null rule: `out` may be NULL where `cap`, its
 * length in numbers, is 0, to ask how many there would be; `out_error` may be NULL; a NULL or closed handle is -1.
 * Threads: any; fails while the handle is at work, and inside the callback. `eliza_inference_llm_stream_cancel` from
 * another thread ends it early.
 *
 * Returns how many numbers there are, `n_last` times the vocabulary's size; they were written if `cap` is at least
 * that, else nothing was computed. Or -1 (handle), `ELIZA_ERR_INVALID_ARG` (`n_last` out of range or more than the
 * slot has; more than 1 in a slot whose context was shifted), `ELIZA_ERR_BUSY` (at work, or not prefilled since the
 * last generate), `ELIZA_ERR_CANCELLED`, `ELIZA_ERR_DEVICE`, `ELIZA_ERR_OOM` or `ELIZA_ERR_FFI_FAULT`; what `out`
 * holds is undefined then.
 */
int32_t eliza_inference_llm_stream_logits(FfiLlmHandle handle,
                                          int32_t n_last,
                                          float *out,
                                          size_t cap,
                                          char **out_error);

/**
 * Frees a string that this library returned.
 *
 * Ownership: takes it. Null rule: NULL is allowed and does nothing. Threads: any. Never fails.
 */
void eliza_inference_free_string(char *str);

/**
 * Frees a token array that `eliza_inference_llm_stream_tokenize` returned.
 *
 * Ownership: takes it. Null rule: NULL is allowed and does nothing. Threads: any. Never fails.
 */
void eliza_inference_free_tokens(int *tokens);

/**
 * Sends the library's log lines to the host; without a sink there are none. No line holds prompt or
 * output text. A sink, and NULL too, takes the place of the queue of `eliza_inference_next_log_line`.
 *
 * Ownership: `user_data` stays the host's and is only passed on. A line that another thread is just writing may
 * still arrive after the sink was replaced, so keep callback and data valid until every handle is closed. Null
 * rule: a NULL `sink` ends logging; `user_data` may be NULL. Threads: any; the sink is called on any.
 * Returns `ELIZA_OK`, `ELIZA_ERR_NOT_IMPLEMENTED` when the process has a Rust logger that is not ours, or
 * `ELIZA_ERR_FFI_FAULT`.
 */
int32_t eliza_inference_set_log_sink(eliza_log_cb sink,
                                     void *user_data);

/**
 * The oldest log line that was not taken: for hosts whose functions cannot be called on the library's threads, and
 * which poll instead.
 *
 * The first call makes lines wait for it, in place of a sink, until `eliza_inference_set_log_sink` is called; the
 * newest 256 do. The lines are those that a sink would get.
 *
 * Ownership: the host frees the string with `eliza_inference_free_string`. Null rule: `out_level` may be NULL.
 * Threads: any. Returns NULL when there is no line; `*out_level` is then `ELIZA_OK`, or `ELIZA_ERR_NOT_IMPLEMENTED`
 * when there never will be one because the process has a Rust logger that is not ours. Otherwise `*out_level` is
 * `ELIZA_LOG_*`.
 */
char *eliza_inference_next_log_line(int32_t *out_level);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ELIZA_INFERENCE_H */
