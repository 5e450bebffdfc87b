/* What every case shares: the library's functions as dlsym found them, checks, and small helpers of a host. */

#ifndef HOST_H
#define HOST_H

#include "eliza_inference.h"

#include <stdarg.h>

/* Every function of the header, without its prefix. */
#define EXPORTS(X) \
    X(abi_version) X(llm_stream_supported) X(default_thread_count) \
    X(llm_stream_open) X(llm_stream_open_ex) X(llm_stream_open_slot) X(llm_stream_close) \
    X(llm_stream_prefill) X(llm_stream_start_prefill) X(llm_stream_generate) X(llm_stream_generate_ex) X(llm_stream_cancel) \
    X(set_token_trie) X(clear_token_trie) X(arm_token_trie) X(score_token_trie) X(build_token_trie) X(set_trie_cache_limit) \
    X(set_grammar) X(clear_grammar) \
    X(llm_stream_save_slot) X(llm_stream_restore_slot) \
    X(llm_stream_persist) X(llm_stream_resume) X(llm_stream_forget) X(llm_stream_prewarm) X(llm_stream_pin_slot) \
    X(set_host_sampler_init) X(sampler_name) X(sampler_accept) X(sampler_apply) X(sampler_reset) X(sampler_arm) \
    X(sampler_clone) X(sampler_free) X(sampler_init_grammar) \
    X(llm_stream_status) X(llm_stream_take_error) X(take_last_error) X(take_last_failure) \
    X(llm_stream_next) X(llm_stream_poll) \
    X(llm_stream_sampling_defaults) X(llm_stream_configure) X(llm_stream_set_chain) \
    X(llm_stream_usage) X(llm_stream_usage_json) X(llm_stream_sampled) \
    X(llm_stream_tokenize) X(llm_stream_detokenize) X(llm_stream_tokenize_pair) \
    X(llm_stream_embed) X(llm_stream_embed_tokens) X(llm_stream_start_embed) X(llm_stream_take_embeddings) X(llm_stream_rank) \
    X(devices_json) X(plan_json) X(file_metadata_json) \
    X(llm_stream_metadata_json) X(llm_stream_model_json) X(llm_stream_is_eog) X(llm_stream_token_json) X(llm_stream_logits) \
    X(llm_stream_chat_prompt_json) X(llm_stream_chat_parts_json) \
    X(free_string) X(free_tokens) X(free_rows) X(set_log_sink) X(next_log_line)

/* Exports of the feature `testing`, not in the header. */
typedef int (*testing_panic_fn)(FfiLlmHandle handle, const char * message, char ** out_error);
typedef int32_t (*testing_return_status_fn)(int32_t status);
typedef char * (*testing_echo_bytes_fn)(const char * bytes, size_t len);

struct library {
    void * object;
#define FIELD(name) __typeof__(&eliza_inference_##name) name;
    EXPORTS(FIELD)
#undef FIELD
    __typeof__(&llama_sampler_init_token_trie) init_token_trie;
    testing_panic_fn testing_panic;
    testing_return_status_fn testing_return_status;
    testing_echo_bytes_fn testing_echo_bytes;
};

extern struct library lib;

struct test_case {
    const char * name;
    void (*run)(void);
};

extern const struct test_case basics_cases[], opening_cases[], streaming_cases[], concurrency_cases[], constraint_cases[],
    saving_cases[], sampler_cases[], asking_cases[];
/* Of the program that drives the real libllama, and of the one that goes through the C++ header. */
extern const struct test_case peer_cases[], wrapper_cases[];

/* Ends the process, as failed or as skipped, with a message. */
#if defined(__GNUC__)
__attribute__((noreturn, format(printf, 3, 4)))
#endif
void fail(const char * file, int line, const char * format, ...);
#if defined(__GNUC__)
__attribute__((noreturn))
#endif
void skip(const char * reason);

#define CHECK(condition) \
    do { if (!(condition)) fail(__FILE__, __LINE__, "%s", #condition); } while (0)
#define CHECK_EQ(actual, expected) \
    do { \
        long long actual_ = (long long)(actual), expected_ = (long long)(expected); \
        if (actual_ != expected_) fail(__FILE__, __LINE__, "%s is %lld, not %lld", #actual, actual_, expected_); \
    } while (0)
/* A text of the library: there, holding `part`; frees it. */
#define CHECK_TEXT(text, part) check_text(__FILE__, __LINE__, #text, (text), (part))
void check_text(const char * file, int line, const char * what, char * text, const char * part);

/* The model of this run, or skips the case. */
const char * model_path(void);
/* A handle on it: `context` tokens, 2 threads. */
FfiLlmHandle open_model(int32_t context);
/* Token ids of a prompt; the caller frees them by lib.free_tokens. */
int * tokens_of(FfiLlmHandle handle, const char * text, size_t * n);
/* Prefills "Once upon a time" into a slot. */
void prefill(FfiLlmHandle handle, int32_t slot);
/* Lets generation go on after an end-of-generation token. */
void ignore_eos(FfiLlmHandle handle);
/* Nothing is left of errors, on the handle and in the process. */
void check_no_errors(FfiLlmHandle handle);

/* What one generation gave. */
struct result {
    int32_t tokens[2048];
    size_t n_tokens;
    char text[65536];
    size_t text_len;
    int last_step;
};
/* Pulls to the end in steps of `tokens_cap` tokens and `text_cap` bytes, checking each step. */
void pull_all(FfiLlmHandle handle, size_t tokens_cap, size_t text_cap, struct result * result);
/* Prefills, generates greedily and pulls. */
void greedy(FfiLlmHandle handle, int32_t max_new_tokens, struct result * result);
int is_utf8(const char * text, size_t len);

/* Events of a callback generation, and a gate at which the callback can be held. One at a time per process. */
enum { MAX_EVENTS = 2048 };
struct event {
    int32_t token;
    const char * text;
    char copy[64];
    size_t len;
    bool done;
};
struct recorder {
    struct event events[MAX_EVENTS];
    size_t n_events;
    size_t n_done;
    int shut;             /* the callback waits while this is set */
    int waiting;          /* the callback is waiting now */
    FfiLlmHandle handle;  /* for `act` */
    void (*act)(struct recorder * recorder, const struct event * event); /* runs in the callback */
};
extern struct recorder recorder;
void recorder_reset(void);
void on_token(int32_t token, const char * text, bool done);
void on_token_ex(int32_t token, const char * text, size_t len, bool done, void * user_data);
void recorder_shut(int shut);
/* Wait until the callback is held, until there are `n` events, until the terminal event. */
void wait_held(void);
void wait_events(size_t n);
void wait_done(void);

void sleep_ms(long ms);

#endif
