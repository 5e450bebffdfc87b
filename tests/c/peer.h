/* The real libllama, as a host uses it: opened at run time, its interface declared by hand for version 0.5. The folder is
 * PEER_LLAMA_DIR, which `tools/peer.py` prepares; a case that lacks it is skipped. */

#ifndef PEER_H
#define PEER_H

/* As if llama.h were there: the library's header then leaves these types alone. */
#define LLAMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct llama_model;
struct llama_context;
struct llama_vocab;
struct llama_sampler;
struct llama_sampler_i;
typedef int32_t llama_token;
typedef void * llama_sampler_context_t;

typedef struct llama_token_data {
    llama_token id;
    float logit;
    float p;
} llama_token_data;

typedef struct llama_token_data_array {
    llama_token_data * data;
    size_t size;
    int64_t selected;
    bool sorted;
} llama_token_data_array;

#include "host.h"

struct llama_logit_bias {
    llama_token token;
    float bias;
};

struct llama_sampler_chain_params {
    bool no_perf;
};

struct llama_batch {
    int32_t n_tokens;
    llama_token * token;
    float * embd;
    int32_t * pos;
    int32_t * n_seq_id;
    int32_t ** seq_id;
    int8_t * logits;
};

struct llama_model_params {
    void * devices;
    const void * tensor_buft_overrides;
    int32_t n_gpu_layers, split_mode, load_mode, lazy_mode, main_gpu;
    const float * tensor_split;
    void * progress_callback, * progress_callback_user_data;
    const void * kv_overrides;
    bool vocab_only, check_tensors, use_extra_bufts, no_host, no_alloc, load_mtp;
};

struct llama_context_params {
    uint32_t n_ctx, n_batch, n_ubatch, n_seq_max, n_rs_seq, n_outputs_max, n_outputs_max_per_seq;
    int32_t n_threads, n_threads_batch;
    int32_t ctx_type, rope_scaling_type, pooling_type, attention_type, flash_attn_type;
    float rope_freq_base, rope_freq_scale, yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
    uint32_t yarn_orig_ctx;
    float defrag_thold;
    void * cb_eval, * cb_eval_user_data;
    int32_t type_k, type_v;
    void * abort_callback, * abort_callback_data;
    bool embeddings, offload_kqv, no_perf, op_offload, swa_full, kv_unified;
    void * samplers;
    size_t n_samplers;
    void * ctx_other;
};

#define PEER_API(X) \
    X(void, ggml_backend_load_all_from_path, (const char *)) \
    X(void, llama_log_set, (void (*)(int, const char *, void *), void *)) \
    X(const char *, llama_version, (void)) \
    X(struct llama_model_params, llama_model_default_params, (void)) \
    X(struct llama_context_params, llama_context_default_params, (void)) \
    X(struct llama_sampler_chain_params, llama_sampler_chain_default_params, (void)) \
    X(struct llama_model *, llama_model_load_from_file, (const char *, struct llama_model_params)) \
    X(void, llama_model_free, (struct llama_model *)) \
    X(struct llama_context *, llama_init_from_model, (struct llama_model *, struct llama_context_params)) \
    X(void, llama_free, (struct llama_context *)) \
    X(const struct llama_vocab *, llama_model_get_vocab, (const struct llama_model *)) \
    X(int32_t, llama_vocab_n_tokens, (const struct llama_vocab *)) \
    X(bool, llama_vocab_is_eog, (const struct llama_vocab *, llama_token)) \
    X(void *, llama_get_memory, (const struct llama_context *)) \
    X(void, llama_memory_clear, (void *, bool)) \
    X(struct llama_batch, llama_batch_get_one, (llama_token *, int32_t)) \
    X(int32_t, llama_decode, (struct llama_context *, struct llama_batch)) \
    X(bool, llama_set_sampler, (struct llama_context *, int32_t, struct llama_sampler *)) \
    X(struct llama_sampler *, llama_sampler_init, (struct llama_sampler_i *, llama_sampler_context_t)) \
    X(const char *, llama_sampler_name, (const struct llama_sampler *)) \
    X(void, llama_sampler_accept, (struct llama_sampler *, llama_token)) \
    X(void, llama_sampler_apply, (struct llama_sampler *, llama_token_data_array *)) \
    X(void, llama_sampler_reset, (struct llama_sampler *)) \
    X(struct llama_sampler *, llama_sampler_clone, (const struct llama_sampler *)) \
    X(void, llama_sampler_copy, (const struct llama_sampler *, struct llama_sampler *)) \
    X(void, llama_sampler_free, (struct llama_sampler *)) \
    X(llama_token, llama_sampler_sample, (struct llama_sampler *, struct llama_context *, int32_t)) \
    X(struct llama_sampler *, llama_sampler_chain_init, (struct llama_sampler_chain_params)) \
    X(void, llama_sampler_chain_add, (struct llama_sampler *, struct llama_sampler *)) \
    X(struct llama_sampler *, llama_sampler_chain_get, (struct llama_sampler *, int32_t)) \
    X(int, llama_sampler_chain_n, (const struct llama_sampler *)) \
    X(struct llama_sampler *, llama_sampler_chain_remove, (struct llama_sampler *, int32_t)) \
    X(struct llama_sampler *, llama_sampler_init_greedy, (void)) \
    X(struct llama_sampler *, llama_sampler_init_dist, (uint32_t)) \
    X(struct llama_sampler *, llama_sampler_init_top_k, (int32_t)) \
    X(struct llama_sampler *, llama_sampler_init_top_p, (float, size_t)) \
    X(struct llama_sampler *, llama_sampler_init_temp, (float)) \
    X(struct llama_sampler *, llama_sampler_init_penalties, (int32_t, int32_t, float, float, float)) \
    X(struct llama_sampler *, llama_sampler_init_logit_bias, (int32_t, int32_t, const struct llama_logit_bias *))

struct peer {
#define FIELD(result, name, arguments) result (*name) arguments;
    PEER_API(FIELD)
#undef FIELD
    struct llama_model * model;
    const struct llama_vocab * vocab;
    int32_t n_vocab;
};
extern struct peer peer;

/* Opens libllama, with the scope that PEER_SCOPE names (`local` or `global`), and the case's model; or skips the case. */
void peer_open(void);
/* A context of 256 cells, f32 cache, without flash attention. */
struct llama_context * peer_context(void);
void peer_close(void);

/* A closed set of token sequences, and a walk through it by the plainest means. */
enum { MAX_NAMES = 16, MAX_DEPTH = 6 };
struct names {
    llama_token tokens[MAX_NAMES][MAX_DEPTH];
    size_t len[MAX_NAMES];
    size_t n;
};
struct walk {
    const struct names * names;
    llama_token taken[MAX_DEPTH];
    size_t depth;
    bool released;
};
void add_name(struct names * names, size_t len, const llama_token * tokens);
/* Random names over a few of the tokens from 3 on, so that many share a beginning. */
void random_names(struct names * names, uint64_t * seed, int32_t n_vocab);
/* The payload of a trie; in memory that the next call uses again. */
const char * names_json(const struct names * names);
bool walk_allows(const struct walk * walk, llama_token token);
/* Whether any token may come. */
bool walk_is_free(const struct walk * walk);
void walk_take(struct walk * walk, llama_token token);

uint32_t random_u32(uint64_t * seed);
float random_logit(uint64_t * seed);

#endif
