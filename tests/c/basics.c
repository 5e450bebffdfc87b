/* What needs no model: versions, layouts, handles that are none, panics, strings. */

#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void version(void) {
    char text[64];
    CHECK_EQ(ELIZA_STREAM_ABI_NUMBER,
             ELIZA_STREAM_ABI_MAJOR * 1000000 + ELIZA_STREAM_ABI_MINOR * 1000 + ELIZA_STREAM_ABI_PATCH);
    snprintf(text, sizeof text, "eliza-stream/%d.%d.%d", ELIZA_STREAM_ABI_MAJOR, ELIZA_STREAM_ABI_MINOR,
             ELIZA_STREAM_ABI_PATCH);
    CHECK(strcmp(text, ELIZA_STREAM_ABI_VERSION) == 0);
    CHECK(strcmp(lib.abi_version(), ELIZA_STREAM_ABI_VERSION) == 0);
    CHECK_EQ(lib.llm_stream_supported(), 1);
    CHECK(lib.default_thread_count() >= 1);
}

/* Where the fields lie is part of the interface; hosts without a C compiler write them by offset. */
static void layouts(void) {
    if (sizeof(void *) != 8) skip("the offsets are those of 64-bit pointers");
    CHECK_EQ(sizeof(eliza_llm_open_options_t), 168);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, context_size_tokens), 4);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, num_threads), 8);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, gpu_layers), 12);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, model_path), 16);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, device), 24);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, kv_type), 32);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, progress), 40);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, progress_user_data), 48);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, slots), 56);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, flags), 60);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, kv_type_v), 64);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, n_batch), 72);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, snapshots), 76);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, tensor_devices), 80);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, store_directory), 88);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, store_bytes), 96);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, parallel), 104);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, max_slowdown_percent), 108);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, draft), 112);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, vocab), 120);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, server_timeout_ms), 144);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, fallback), 152);
    CHECK_EQ(offsetof(eliza_llm_open_options_t, tensor_split), 160);
    CHECK_EQ(sizeof(eliza_llm_sampling_options_t), 224);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, seed), 4);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, frequency_penalty), 28);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, gbnf_grammar), 32);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, stop), 40);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, n_logit_bias), 72);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, on_span_end), 80);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, n_candidates), 92);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, on_context_full), 96);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, n_keep), 100);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, special_text), 104);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, top_n_sigma), 112);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, dry_allowed_length), 144);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, generator), 176);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, samplers), 184);
    CHECK_EQ(offsetof(eliza_llm_sampling_options_t, reasoning_end), 216);
    CHECK_EQ(sizeof(eliza_llm_usage_t), 240);
    CHECK_EQ(offsetof(eliza_llm_usage_t, branching_steps), 112);
    CHECK_EQ(offsetof(eliza_llm_usage_t, span_candidates), 152);
    CHECK_EQ(offsetof(eliza_llm_usage_t, context_shifts), 160);
    CHECK_EQ(offsetof(eliza_llm_usage_t, sample_us), 168);
    CHECK_EQ(offsetof(eliza_llm_usage_t, sampled_tokens), 176);
    CHECK_EQ(offsetof(eliza_llm_usage_t, prompt_tokens_restored), 184);
    CHECK_EQ(offsetof(eliza_llm_usage_t, snapshots), 200);
    CHECK_EQ(offsetof(eliza_llm_usage_t, grammar_states), 216);
    CHECK_EQ(offsetof(eliza_llm_usage_t, accepted_tokens), 232);
    CHECK_EQ(offsetof(eliza_llm_usage_t, finish_reason), 4);
    CHECK_EQ(offsetof(eliza_llm_usage_t, decode_us), 64);
    CHECK_EQ(offsetof(eliza_llm_usage_t, gpu_bytes_read), 104);
    CHECK_EQ(sizeof(eliza_llm_candidate_t), 12);
    CHECK_EQ(sizeof(eliza_llm_sampled_t), 40);
    CHECK_EQ(offsetof(eliza_llm_sampled_t, candidates), 16);
    CHECK_EQ(offsetof(eliza_llm_sampled_t, n_candidates), 32);
}

/* Every call on a handle that is not open: -1 or NULL, a text, and no crash. */
void check_not_open(FfiLlmHandle handle, const char * reason) {
    int32_t tokens[4] = {1, 2, 3, 4};
    int ids[2] = {1, 2};
    float logits[4], * rows = NULL;
    const size_t one = 1, two = 2;
    int * given = NULL;
    char text[64], * error = NULL;
    size_t n = 0;
    eliza_llm_sampling_options_t options;
    eliza_llm_usage_t usage;
    eliza_llm_sampled_t sampled;
    memset(&options, 0, sizeof options);
    memset(&usage, 0, sizeof usage);
    memset(&sampled, 0, sizeof sampled);
    options.struct_size = sizeof options;
    usage.struct_size = sizeof usage;
    sampled.struct_size = sizeof sampled;

#define REFUSED(call) \
    do { \
        CHECK_EQ(call, -1); \
        CHECK_TEXT(lib.take_last_error(), reason); \
    } while (0)
#define REFUSED_WITH_TEXT(call) \
    do { \
        error = NULL; \
        REFUSED(call); \
        CHECK_TEXT(error, reason); \
    } while (0)

    REFUSED(lib.llm_stream_prefill(handle, tokens, 4, -1));
    REFUSED(lib.llm_stream_generate(handle, 5, 0.0f, 1.0f, on_token));
    REFUSED_WITH_TEXT(lib.llm_stream_generate_ex(handle, 5, 0.0f, 1.0f, on_token_ex, &recorder, &error));
    REFUSED(lib.llm_stream_generate_ex(handle, 5, 0.0f, 1.0f, NULL, NULL, NULL));
    REFUSED(lib.llm_stream_cancel(handle));
    REFUSED(lib.set_token_trie(handle, "{}", 2, 0));
    REFUSED(lib.clear_token_trie(handle));
    REFUSED(lib.arm_token_trie(handle, NULL));
    REFUSED(lib.llm_stream_status(handle));
    CHECK(lib.llm_stream_take_error(handle) == NULL);
    CHECK_TEXT(lib.take_last_error(), reason);
    REFUSED_WITH_TEXT(lib.llm_stream_next(handle, tokens, 4, &n, text, sizeof text, NULL, NULL, &error));
    REFUSED_WITH_TEXT(lib.llm_stream_poll(handle, 0, tokens, 4, &n, text, sizeof text, &error));
    REFUSED(lib.llm_stream_poll(handle, 0, tokens, 4, NULL, text, sizeof text, NULL));
    REFUSED(lib.llm_stream_sampling_defaults(handle, &options));
    REFUSED_WITH_TEXT(lib.llm_stream_configure(handle, &options, &error));
    REFUSED_WITH_TEXT(lib.llm_stream_set_chain(handle, -1, "temp=0.8", &error));
    REFUSED(lib.llm_stream_usage(handle, &usage));
    CHECK(lib.llm_stream_usage_json(handle) == NULL);
    CHECK_TEXT(lib.take_last_error(), reason);
    REFUSED(lib.llm_stream_sampled(handle, -1, &sampled));
    REFUSED_WITH_TEXT(lib.llm_stream_tokenize(handle, "a", 1, 0, 0, &given, &n, &error));
    REFUSED_WITH_TEXT(lib.llm_stream_detokenize(handle, ids, 2, 0, 0, text, sizeof text, &error));
    CHECK(given == NULL);
    REFUSED(lib.llm_stream_is_eog(handle, 1));
    REFUSED_WITH_TEXT(lib.llm_stream_logits(handle, 1, logits, 4, &error));
    REFUSED_WITH_TEXT(lib.llm_stream_logits(handle, 1, NULL, 0, &error));
    REFUSED_WITH_TEXT(lib.llm_stream_embed(handle, NULL, "a", &one, 1, &rows, &n, &n, &error));
    REFUSED_WITH_TEXT(lib.llm_stream_embed_tokens(handle, NULL, ids, &two, 1, &rows, &n, &n, &error));
    REFUSED_WITH_TEXT(lib.llm_stream_start_embed(handle, NULL, ids, &two, 1, &error));
    REFUSED_WITH_TEXT(lib.llm_stream_take_embeddings(handle, &rows, &n, &n, &error));
    REFUSED_WITH_TEXT(lib.llm_stream_rank(handle, "a", 1, "b", &one, 1, logits, &error));
    REFUSED_WITH_TEXT(lib.llm_stream_tokenize_pair(handle, "a", 1, "b", 1, &given, &n, &error));
#define NO_TEXT(call) \
    do { \
        error = NULL; \
        CHECK((call) == NULL); \
        CHECK_TEXT(error, reason); \
        CHECK_TEXT(lib.take_last_error(), reason); \
    } while (0)
    NO_TEXT(lib.llm_stream_metadata_json(handle, NULL, &error));
    NO_TEXT(lib.llm_stream_model_json(handle, &error));
    NO_TEXT(lib.llm_stream_token_json(handle, 1, &error));
    NO_TEXT(lib.llm_stream_chat_prompt_json(handle, "{\"messages\": []}", &error));
    NO_TEXT(lib.llm_stream_chat_parts_json(handle, "{\"messages\": []}", "a", 1, 1, &error));
#undef NO_TEXT
    lib.llm_stream_close(handle);
    lib.llm_stream_close(handle);
    CHECK(lib.take_last_error() == NULL);
#undef REFUSED
#undef REFUSED_WITH_TEXT
}

static void foreign_handles(void) {
    uint64_t local = 7;
    uint64_t * heap = (uint64_t *)malloc(sizeof *heap);
    CHECK(heap != NULL);
    *heap = 9;
    check_not_open(NULL, "NULL");
    check_not_open((FfiLlmHandle)(void *)&local, "not open");
    check_not_open((FfiLlmHandle)(void *)heap, "not open");
    check_not_open((FfiLlmHandle)(uintptr_t)1, "not open");
    check_not_open((FfiLlmHandle)(uintptr_t)(1u << 20), "not open");
    check_not_open((FfiLlmHandle)UINTPTR_MAX, "not open");
    CHECK(local == 7 && *heap == 9);
    free(heap);
}

static void panics_without_handle(void) {
    char * error = NULL;
    if (lib.testing_panic == NULL) skip("the library was built without the feature testing");
    CHECK_EQ(lib.testing_panic(NULL, "the roof is on fire", &error), ELIZA_ERR_FFI_FAULT);
    CHECK_TEXT(error, "the roof is on fire");
    CHECK_TEXT(lib.take_last_error(), "testing.rs:");
    CHECK_EQ(lib.testing_panic(NULL, "again", NULL), ELIZA_ERR_FFI_FAULT);
    CHECK_TEXT(lib.take_last_error(), "again");
    CHECK(lib.take_last_error() == NULL);
}

static void conversions(void) {
    static const int32_t values[] = {0, 1, -1, -40, INT32_MAX, INT32_MIN};
    char * echo;
    if (lib.testing_echo_bytes == NULL) skip("the library was built without the feature testing");
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        CHECK_EQ(lib.testing_return_status(values[i]), values[i]);
    }
    echo = lib.testing_echo_bytes("h\xc3\xa9llo \xf0\x9f\x98\x80", 11);
    CHECK(echo != NULL && strcmp(echo, "h\xc3\xa9llo \xf0\x9f\x98\x80") == 0);
    lib.free_string(echo);
    echo = lib.testing_echo_bytes("a\0b", 3);
    CHECK(echo != NULL && strcmp(echo, "a\xef\xbf\xbd" "b") == 0);
    lib.free_string(echo);
    echo = lib.testing_echo_bytes(NULL, 0);
    CHECK(echo != NULL && echo[0] == '\0');
    lib.free_string(echo);
    CHECK(lib.testing_echo_bytes("\xff", 1) == NULL);
    CHECK_TEXT(lib.take_last_error(), "utf-8");
    CHECK(lib.testing_echo_bytes(NULL, 1) == NULL);
    CHECK_TEXT(lib.take_last_error(), "bytes is NULL");
    CHECK(lib.testing_echo_bytes("x", SIZE_MAX) == NULL);
    CHECK_TEXT(lib.take_last_error(), "impossible length");
    lib.free_string(NULL);
    lib.free_tokens(NULL);
}

/* The queue of the process is bounded and gives the newest first. */
static void error_queue(void) {
    char * text;
    int taken = 0;
    for (int i = 0; i < 100; i++) {
        char path[64];
        snprintf(path, sizeof path, "/nonexistent/model-%d.gguf", i);
        CHECK(lib.llm_stream_open(path, 0, 1, 0) == NULL);
    }
    CHECK_TEXT(lib.take_last_error(), "model-99.gguf");
    CHECK_TEXT(lib.take_last_error(), "model-98.gguf");
    while ((text = lib.take_last_error()) != NULL) {
        taken++;
        lib.free_string(text);
    }
    CHECK_EQ(taken, 14);
}

const struct test_case basics_cases[] = {
    {"version", version},
    {"layouts", layouts},
    {"foreign_handles", foreign_handles},
    {"panics_without_handle", panics_without_handle},
    {"conversions", conversions},
    {"error_queue", error_queue},
    {NULL, NULL},
};
