/* What a host asks: devices, plans, metadata, tokens, logits, a vocabulary alone, and the options of an open. */

#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static eliza_llm_open_options_t options_of(const char * model) {
    eliza_llm_open_options_t options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model_path = model;
    options.context_size_tokens = 256;
    options.num_threads = 1;
    return options;
}

static FfiLlmHandle opened(const eliza_llm_open_options_t * options) {
    char * error = NULL;
    FfiLlmHandle handle = lib.llm_stream_open_ex(options, &error);
    if (handle == NULL) fail(__FILE__, __LINE__, "open: %s", error);
    return handle;
}

/* The number that follows the first `"key":` in JSON. */
static double number_of(const char * json, const char * key) {
    char quoted[64];
    const char * at;
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    at = strstr(json, quoted);
    if (at == NULL) fail(__FILE__, __LINE__, "%s lacks %s", json, key);
    return strtod(at + strlen(quoted), NULL);
}

static char * planned(eliza_llm_open_options_t * options) {
    char * error = NULL;
    char * json = lib.plan_json(options, &error);
    if (json == NULL) fail(__FILE__, __LINE__, "plan: %s", error);
    CHECK(json[0] == '{' && is_utf8(json, strlen(json)));
    return json;
}

static void devices_and_plans(void) {
    eliza_llm_open_options_t options = options_of(model_path());
    char * error = NULL, * small, * large;
    int32_t code = 0;
    char * devices = lib.devices_json(&error);
    CHECK(devices != NULL && devices[0] == '[' && strstr(devices, "\"CPU") != NULL && strstr(devices, "\"cpu\"") != NULL);
    CHECK(number_of(devices, "score") >= 0);
    lib.free_string(devices);
    large = planned(&options);
    CHECK(number_of(large, "n_batch") == 512 && strstr(large, "\"kv_type_v\":\"f16\"") != NULL);
    options.n_batch = 16;
    small = planned(&options);
    CHECK(number_of(small, "n_batch") == 16);
    CHECK(number_of(small, "workspace") < number_of(large, "workspace"));
    CHECK(number_of(small, "kv_cache") == number_of(large, "kv_cache"));
    CHECK(number_of(small, "total_bytes") < number_of(large, "total_bytes"));
    lib.free_string(small);
    lib.free_string(large);
    /* What open refuses is refused, with the same code. */
    options.n_batch = 513;
    CHECK(lib.plan_json(&options, &error) == NULL);
    CHECK_TEXT(error, "n_batch is 513");
    CHECK_TEXT(lib.take_last_failure(&code), "n_batch");
    CHECK_EQ(code, ELIZA_ERR_INVALID_ARG);
    CHECK(lib.plan_json(NULL, NULL) == NULL);
    CHECK_TEXT(lib.take_last_error(), "eliza_llm_open_options_t is NULL");
    options = options_of("/nonexistent/model.gguf");
    CHECK(lib.plan_json(&options, &error) == NULL);
    CHECK_TEXT(error, "/nonexistent/model.gguf");
    CHECK_TEXT(lib.take_last_failure(&code), "");
    CHECK_EQ(code, ELIZA_ERR_IO);
    check_no_errors(NULL);
}

static void check_same(char * text, char * other) {
    CHECK(text != NULL && other != NULL);
    if (strcmp(text, other) != 0) fail(__FILE__, __LINE__, "%s is not %s", text, other);
    lib.free_string(text);
    lib.free_string(other);
}

#define HELLO "{\"messages\": [{\"role\": \"user\", \"content\": \"Once <s>\"}], \"add_generation_prompt\": true}"

static int has_template(FfiLlmHandle handle) {
    char * text = lib.llm_stream_metadata_json(handle, "tokenizer.chat_template", NULL);
    int found = text != NULL;
    lib.free_string(text);
    if (!found) CHECK_TEXT(lib.llm_stream_take_error(handle), "tokenizer.chat_template");
    return found;
}

/* A prompt of messages: the template's own special tokens are tokens, the messages' are text. */
static void chat_prompt(FfiLlmHandle handle) {
    static const struct { const char * inputs, * problem; } refused[] = {
        {"{", "not JSON"}, {"[]", "a JSON object"}, {"{}", "messages"}, {"\xff", "not UTF-8"}, {NULL, "inputs_json is NULL"},
    };
    char * error = NULL, * text;
    if (!has_template(handle)) {
        CHECK(lib.llm_stream_chat_prompt_json(handle, HELLO, &error) == NULL);
        CHECK_TEXT(error, "tokenizer.chat_template");
        CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_NOT_IMPLEMENTED);
        CHECK_TEXT(lib.llm_stream_take_error(handle), "tokenizer.chat_template");
        return;
    }
    text = lib.llm_stream_chat_prompt_json(handle, HELLO, &error);
    CHECK(text != NULL && strstr(text, "{\"text\":\"<s>user: Once <s>\\nassistant:\",\"tokens\":[1,") == text);
    CHECK(text != NULL && strstr(strchr(text, '['), ",1,") == NULL);
    lib.free_string(text);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        CHECK(lib.llm_stream_chat_prompt_json(handle, refused[i].inputs, &error) == NULL);
        CHECK_TEXT(error, refused[i].problem);
        CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_INVALID_ARG);
        CHECK_TEXT(lib.llm_stream_take_error(handle), refused[i].problem);
    }
}

/* An answer comes apart in any pieces; without marks all of it is the answer. */
static void chat_parts(FfiLlmHandle handle) {
    char * error = NULL, * text;
    if (!has_template(handle)) {
        CHECK(lib.llm_stream_chat_parts_json(handle, HELLO, "", 0, 0, &error) == NULL);
        CHECK_TEXT(error, "tokenizer.chat_template");
        CHECK_TEXT(lib.llm_stream_take_error(handle), "tokenizer.chat_template");
        return;
    }
    CHECK(lib.llm_stream_chat_parts_json(handle, NULL, "a", 1, 0, &error) == NULL);
    CHECK_TEXT(error, "no answer");
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "no answer");
    CHECK(lib.llm_stream_chat_parts_json(handle, "{}", "a", 1, 0, NULL) == NULL);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "messages");
    text = lib.llm_stream_chat_parts_json(handle, HELLO, "a \xc3", 3, 0, &error);
    CHECK_TEXT(text, "[{\"type\":\"answer\",\"text\":\"a\"}]");
    text = lib.llm_stream_chat_parts_json(handle, NULL, "\xa9", 1, 0, &error);
    CHECK_TEXT(text, "[{\"type\":\"answer\",\"text\":\" \xc3\xa9\"}]");
    CHECK_TEXT(lib.llm_stream_chat_parts_json(handle, NULL, NULL, 0, 1, &error), "[]");
    CHECK(lib.llm_stream_chat_parts_json(handle, NULL, NULL, 0, 1, NULL) == NULL);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "no answer");
    CHECK_TEXT(lib.llm_stream_chat_parts_json(handle, HELLO, "whole", 5, 1, &error), "\"text\":\"whole\"}]");
}

static void metadata(void) {
    static const char * const keys[] = {NULL, "general.architecture", "tokenizer.ggml.tokens", "llama.block_count"};
    const char * model = model_path();
    FfiLlmHandle handle = open_model(256);
    char * error = NULL, * text;
    int32_t code = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        check_same(lib.file_metadata_json(model, keys[i], &error), lib.llm_stream_metadata_json(handle, keys[i], &error));
    }
    text = lib.file_metadata_json(model, "general.architecture", NULL);
    CHECK(text != NULL && strcmp(text, "\"llama\"") == 0);
    lib.free_string(text);
    text = lib.file_metadata_json(model, NULL, NULL);
    CHECK(text != NULL && strstr(text, "\"tokenizer.ggml.tokens\":{\"type\":\"String\",\"length\":") != NULL);
    lib.free_string(text);
    CHECK(lib.file_metadata_json(model, "no.such.key", &error) == NULL);
    CHECK_TEXT(error, "no.such.key");
    CHECK_TEXT(lib.take_last_failure(&code), "no.such.key");
    CHECK_EQ(code, ELIZA_ERR_INVALID_ARG);
    CHECK(lib.llm_stream_metadata_json(handle, "no.such.key", &error) == NULL);
    CHECK_TEXT(error, "no.such.key");
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "no.such.key");
    chat_prompt(handle);
    chat_parts(handle);
    CHECK(lib.file_metadata_json(NULL, NULL, NULL) == NULL);
    CHECK_TEXT(lib.take_last_error(), "path is NULL");
    CHECK(lib.file_metadata_json(model, "\xff", NULL) == NULL);
    CHECK_TEXT(lib.take_last_error(), "key is not UTF-8");
    CHECK(lib.file_metadata_json("/proc/self/exe", NULL, NULL) == NULL);
    CHECK_TEXT(lib.take_last_failure(&code), "GGUF");
    CHECK_EQ(code, ELIZA_ERR_BUNDLE_INVALID);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

static void model_and_tokens(void) {
    FfiLlmHandle handle = open_model(256);
    char * error = NULL, * model = lib.llm_stream_model_json(handle, &error), * text;
    size_t n;
    int * tokens = tokens_of(handle, "Once", &n);
    int32_t n_vocab, eos, ends = 0;
    CHECK(model != NULL && strstr(model, "\"architecture\":\"llama\"") != NULL);
    CHECK(number_of(model, "context") == 256 && number_of(model, "threads") == 2 && number_of(model, "slots") == 16);
    CHECK(number_of(model, "n_layer") > 0 && number_of(model, "parameters") > 0 && number_of(model, "bytes") > 0);
    n_vocab = (int32_t)number_of(model, "n_vocab");
    eos = (int32_t)number_of(model, "eos");
    for (int32_t token = 0; token < n_vocab; token++) ends += lib.llm_stream_is_eog(handle, token);
    CHECK(ends >= 1 && lib.llm_stream_is_eog(handle, eos) == 1 && lib.llm_stream_is_eog(handle, tokens[n - 1]) == 0);
    for (size_t i = 0; i < 2; i++) {
        int32_t token = i == 0 ? -1 : n_vocab;
        CHECK_EQ(lib.llm_stream_is_eog(handle, token), ELIZA_ERR_INVALID_ARG);
        CHECK_TEXT(lib.llm_stream_take_error(handle), "token");
        CHECK(lib.llm_stream_token_json(handle, token, &error) == NULL);
        CHECK_TEXT(error, "token");
        CHECK_TEXT(lib.llm_stream_take_error(handle), "token");
    }
    /* What a token spells is what detokenizing it gives. */
    for (int32_t token = 0; token < n_vocab && token < 2000; token++) {
        char piece[256];
        int id = token, length = lib.llm_stream_detokenize(handle, &id, 1, 0, 0, NULL, 0, NULL);
        text = lib.llm_stream_token_json(handle, token, &error);
        CHECK(text != NULL && (int32_t)number_of(text, "id") == token && strstr(text, "\"attributes\":[") != NULL);
        CHECK((strstr(text, "\"is_eog\":true") != NULL) == (lib.llm_stream_is_eog(handle, token) == 1));
        CHECK(length >= 0 && length < (int)sizeof piece);
        lib.free_string(text);
    }
    text = lib.llm_stream_token_json(handle, eos, &error);
    CHECK(text != NULL && strstr(text, "\"control\"") != NULL && strstr(text, "\"piece\":\"\",\"bytes\":[]") != NULL);
    lib.free_string(text);
    lib.free_string(model);
    lib.free_tokens(tokens);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* The rows are those that a prompt ending there gives, bit for bit, and a generation after them is the same. */
static void logits(void) {
    static struct result before, after;
    FfiLlmHandle handle = open_model(256);
    char * error = NULL;
    size_t n;
    int * tokens = tokens_of(handle, "Once upon a time there was", &n);
    int32_t n_vocab, all;
    float * rows, * row;
    CHECK_EQ(lib.llm_stream_logits(handle, 1, NULL, 0, &error), n_vocab = lib.llm_stream_logits(handle, 1, NULL, 0, NULL));
    CHECK(n_vocab > 0 && n > 3);
    all = lib.llm_stream_logits(handle, (int32_t)n, NULL, 0, NULL);
    CHECK_EQ(all, n_vocab * (int32_t)n);
    rows = (float *)malloc((size_t)all * sizeof *rows);
    row = (float *)malloc((size_t)n_vocab * sizeof *row);
    CHECK(rows != NULL && row != NULL);
    CHECK_EQ(lib.llm_stream_logits(handle, 1, row, (size_t)n_vocab, &error), ELIZA_ERR_BUSY);
    CHECK_TEXT(error, "prefill");
    CHECK_TEXT(lib.llm_stream_take_error(handle), "prefill");

    ignore_eos(handle);
    CHECK_EQ(lib.llm_stream_prefill(handle, tokens, n, 0), n);
    CHECK_EQ(lib.llm_stream_generate(handle, 20, 0.0f, 1.0f, NULL), 0);
    pull_all(handle, 32, 512, &before);
    CHECK_EQ(lib.llm_stream_prefill(handle, tokens, n, 0), n);
    CHECK_EQ(lib.llm_stream_logits(handle, (int32_t)n, rows, (size_t)all - 1, &error), all); /* does not fit: only asks */
    CHECK_EQ(lib.llm_stream_logits(handle, (int32_t)n, rows, (size_t)all, &error), all);
    CHECK_EQ(lib.llm_stream_logits(handle, 1, row, (size_t)n_vocab, &error), n_vocab);
    CHECK(memcmp(row, rows + (n - 1) * (size_t)n_vocab, (size_t)n_vocab * sizeof *row) == 0);
    CHECK_EQ(lib.llm_stream_generate(handle, 20, 0.0f, 1.0f, NULL), 0);
    pull_all(handle, 32, 512, &after);
    CHECK(before.n_tokens == 20 && memcmp(before.tokens, after.tokens, sizeof before.tokens) == 0);
    for (size_t length = 1; length <= n; length++) {
        CHECK_EQ(lib.llm_stream_prefill(handle, tokens, length, 1), length);
        CHECK_EQ(lib.llm_stream_logits(handle, 1, row, (size_t)n_vocab, &error), n_vocab);
        CHECK(memcmp(row, rows + (length - 1) * (size_t)n_vocab, (size_t)n_vocab * sizeof *row) == 0);
    }

#define REFUSED(n_last, cap, reason) \
    do { \
        CHECK_EQ(lib.llm_stream_logits(handle, n_last, row, cap, &error), ELIZA_ERR_INVALID_ARG); \
        CHECK_TEXT(error, reason); \
        CHECK_TEXT(lib.llm_stream_take_error(handle), reason); \
    } while (0)
    REFUSED(0, 0, "n_last is 0");
    REFUSED(-1, 0, "n_last is -1");
    REFUSED(513, 0, "n_last is 513");
    CHECK_EQ(lib.llm_stream_logits(handle, 1, NULL, 5, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "out is NULL");
    CHECK_TEXT(lib.llm_stream_take_error(handle), "out is NULL");
#undef REFUSED
    free(rows);
    rows = (float *)malloc((size_t)(all + n_vocab) * sizeof *rows);
    CHECK(rows != NULL);
    CHECK_EQ(lib.llm_stream_logits(handle, (int32_t)n + 1, rows, (size_t)(all + n_vocab), &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "positions");
    CHECK_TEXT(lib.llm_stream_take_error(handle), "positions");
    free(rows);
    free(row);
    lib.free_tokens(tokens);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* Text, tokens and questions without weights; everything else says what is missing. */
static void vocabulary_alone(void) {
    eliza_llm_open_options_t options = options_of(model_path());
    eliza_llm_sampling_options_t sampling;
    const char * names[] = {"yes", "no"};
    FfiLlmHandle handle, whole = open_model(256);
    char * error = NULL, * text, buffer[64];
    size_t n, m;
    int * tokens, * expected = tokens_of(whole, "Once upon a time", &m);
    float row[4];
    int32_t token;
    memset(&sampling, 0, sizeof sampling);
    sampling.struct_size = sizeof sampling;
    options.flags = ELIZA_OPEN_VOCAB_ONLY;
    handle = opened(&options);
    tokens = tokens_of(handle, "Once upon a time", &n);
    CHECK(n == m && memcmp(tokens, expected, n * sizeof *tokens) == 0);
    CHECK(lib.llm_stream_detokenize(handle, tokens, n, 1, 0, buffer, sizeof buffer, &error) > 0);
    check_same(lib.build_token_trie(handle, "a", names, 2, "", "", 0, NULL, &error),
               lib.build_token_trie(whole, "a", names, 2, "", "", 0, NULL, &error));
    check_same(lib.llm_stream_metadata_json(handle, NULL, &error), lib.llm_stream_metadata_json(whole, NULL, &error));
    check_same(lib.llm_stream_token_json(handle, 5, &error), lib.llm_stream_token_json(whole, 5, &error));
    if (has_template(handle)) {
        check_same(lib.llm_stream_chat_prompt_json(handle, HELLO, &error), lib.llm_stream_chat_prompt_json(whole, HELLO, &error));
    }
    CHECK_EQ(lib.llm_stream_is_eog(handle, 5), lib.llm_stream_is_eog(whole, 5));
    text = lib.llm_stream_model_json(handle, &error);
    CHECK(text != NULL && strstr(text, "\"vocab_only\":true") != NULL && number_of(text, "context") == 0);
    lib.free_string(text);
    check_no_errors(handle);

#define REFUSED(call) \
    do { \
        CHECK_EQ(call, -1); \
        CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_NOT_IMPLEMENTED); \
        CHECK_TEXT(lib.llm_stream_take_error(handle), "only the vocabulary is open"); \
    } while (0)
    REFUSED(lib.llm_stream_prefill(handle, tokens, n, -1));
    REFUSED(lib.llm_stream_start_prefill(handle, tokens, n, -1, NULL));
    REFUSED(lib.llm_stream_generate(handle, 1, 0.0f, 1.0f, NULL));
    REFUSED(lib.llm_stream_generate_ex(handle, 1, 0.0f, 1.0f, NULL, NULL, NULL));
    REFUSED(lib.llm_stream_next(handle, &token, 1, &n, buffer, sizeof buffer, NULL, NULL, NULL));
    REFUSED(lib.llm_stream_poll(handle, 0, &token, 1, &n, buffer, sizeof buffer, NULL));
    REFUSED(lib.llm_stream_configure(handle, &sampling, NULL));
    REFUSED(lib.llm_stream_set_chain(handle, -1, "temp=0.5", NULL));
    REFUSED(lib.llm_stream_logits(handle, 1, row, 4, NULL));
    REFUSED(lib.llm_stream_logits(handle, 1, NULL, 0, NULL));
    REFUSED(lib.llm_stream_save_slot(handle, -1, "never.slot", NULL));
    REFUSED(lib.llm_stream_restore_slot(handle, -1, "never.slot", NULL));
    REFUSED(lib.set_token_trie(handle, "{}", 2, 0));
    REFUSED(lib.clear_token_trie(handle));
    REFUSED(lib.arm_token_trie(handle, NULL));
#undef REFUSED
    CHECK(lib.score_token_trie(handle, &error) == NULL);
    CHECK_TEXT(error, "only the vocabulary is open");
    CHECK_TEXT(lib.llm_stream_take_error(handle), "only the vocabulary is open");
    CHECK_EQ(lib.llm_stream_cancel(handle), 0);
    lib.free_tokens(tokens);
    lib.free_tokens(expected);
    lib.llm_stream_close(whole);
    lib.llm_stream_close(handle);
    check_no_errors(NULL);
}

/* Small passes give the same tokens; other formats of values work and are told. */
static void options_of_an_open(void) {
    static const char * const types[] = {"f16", "f32", "q8_0"};
    static struct result whole, parts;
    eliza_llm_open_options_t options = options_of(model_path());
    char * error = NULL, * text;
    FfiLlmHandle handle = opened(&options);
    greedy(handle, 20, &whole);
    lib.llm_stream_close(handle);
    for (uint32_t n_batch = 1; n_batch < 4; n_batch++) {
        options.n_batch = n_batch;
        handle = opened(&options);
        text = lib.llm_stream_model_json(handle, &error);
        CHECK(text != NULL && number_of(text, "n_batch") == n_batch);
        lib.free_string(text);
        greedy(handle, 20, &parts);
        CHECK(whole.n_tokens == parts.n_tokens && memcmp(whole.tokens, parts.tokens, sizeof whole.tokens) == 0);
        lib.llm_stream_close(handle);
    }
    options.n_batch = 0;
    for (size_t k = 0; k < 3; k++) {
        for (size_t v = 0; v < 3; v++) {
            char wanted[64];
            options.kv_type = types[k];
            options.kv_type_v = types[v];
            handle = opened(&options);
            greedy(handle, 20, &parts);
            CHECK(parts.n_tokens > 0);
            snprintf(wanted, sizeof wanted, "\"kv_type\":\"%s\",\"kv_type_v\":\"%s\"", types[k], types[v]);
            text = lib.llm_stream_model_json(handle, &error);
            CHECK(text != NULL && strstr(text, wanted) != NULL);
            lib.free_string(text);
            lib.llm_stream_close(handle);
        }
    }
    check_no_errors(NULL);
}

/* What choosing tokens took, and how many were chosen. */
static void sampling_is_counted(void) {
    static struct result result;
    eliza_llm_usage_t usage;
    FfiLlmHandle handle = open_model(256);
    memset(&usage, 0, sizeof usage);
    usage.struct_size = sizeof usage;
    ignore_eos(handle);
    greedy(handle, 20, &result);
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK_EQ(usage.sampled_tokens, 20);
    CHECK(usage.sample_us <= usage.decode_us);
    CHECK_EQ(usage.context_shifts, 0);
    /* A host of version 1.0 has a shorter structure, and keeps what is after it. */
    memset(&usage, 0x77, sizeof usage);
    usage.struct_size = 160;
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK_EQ(usage.completion_tokens, 20);
    CHECK(usage.context_shifts == 0x7777777777777777u && usage.sampled_tokens == 0x7777777777777777u);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* Rows of texts, as texts and as tokens, at once and in the background. */
static void embeddings(void) {
    static const char texts[] = "Once upon a timea little dog";
    const size_t lens[] = {16, 12};
    eliza_llm_embedding_options_t options = {sizeof options, ELIZA_POOLING_NONE, 0, 1};
    FfiLlmHandle handle = open_model(256);
    char * error = NULL;
    size_t counts[2], n_rows, width, of_tokens;
    int * first = tokens_of(handle, "Once upon a time", &counts[0]), * second = tokens_of(handle, "a little dog", &counts[1]);
    const size_t n = counts[0] + counts[1];
    int * both = (int *)malloc(n * sizeof *both);
    float * rows, * same;
    memcpy(both, first, counts[0] * sizeof *both);
    memcpy(both + counts[0], second, counts[1] * sizeof *both);

    CHECK_EQ(lib.llm_stream_embed(handle, &options, texts, lens, 2, &rows, &n_rows, &width, &error), ELIZA_OK);
    CHECK(n_rows == n && width > 0);
    CHECK_EQ(lib.llm_stream_embed_tokens(handle, &options, both, counts, 2, &same, &of_tokens, &width, &error), ELIZA_OK);
    CHECK(of_tokens == n && memcmp(rows, same, n * width * sizeof *rows) == 0);
    lib.free_rows(same);
    lib.free_rows(rows);

    /* Of each text one row, as long as 1. */
    options.pooling = ELIZA_POOLING_MEAN;
    options.no_normalize = 0;
    CHECK_EQ(lib.llm_stream_embed(handle, &options, texts, lens, 2, &rows, &n_rows, &width, &error), ELIZA_OK);
    CHECK(n_rows == 2);
    for (size_t row = 0; row < 2; row++) {
        double squares = 0;
        for (size_t i = 0; i < width; i++) squares += (double)rows[row * width + i] * rows[row * width + i];
        CHECK(squares > 0.9999 && squares < 1.0001);
    }
    CHECK_EQ(lib.llm_stream_start_embed(handle, &options, both, counts, 2, &error), ELIZA_OK);
    while (lib.llm_stream_status(handle) == ELIZA_STATUS_GENERATING) sleep_ms(1);
    CHECK_EQ(lib.llm_stream_take_embeddings(handle, &same, &n_rows, &width, &error), ELIZA_OK);
    CHECK(n_rows == 2 && memcmp(rows, same, 2 * width * sizeof *rows) == 0);
    lib.free_rows(same);
    CHECK_EQ(lib.llm_stream_take_embeddings(handle, &same, &n_rows, &width, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "no embeddings");
    CHECK_TEXT(lib.llm_stream_take_error(handle), "no embeddings");
    lib.free_rows(rows);

    options.dimensions = 8;
    CHECK_EQ(lib.llm_stream_embed(handle, &options, texts, lens, 2, &rows, &n_rows, &width, &error), ELIZA_OK);
    CHECK(n_rows == 2 && width == 8);
    lib.free_rows(rows);
    CHECK_EQ(lib.llm_stream_embed(handle, NULL, NULL, NULL, 0, &rows, &n_rows, &width, &error), ELIZA_OK);
    CHECK(rows != NULL && n_rows == 0);
    lib.free_rows(rows);
    lib.free_rows(NULL);

#define REFUSED(call, reason) \
    do { \
        CHECK_EQ(call, ELIZA_ERR_INVALID_ARG); \
        CHECK_TEXT(error, reason); \
        CHECK_TEXT(lib.llm_stream_take_error(handle), reason); \
    } while (0)
    REFUSED(lib.llm_stream_embed(handle, &options, texts, lens, 2, NULL, &n_rows, &width, &error), "out_rows");
    REFUSED(lib.llm_stream_embed(handle, &options, NULL, lens, 2, &rows, &n_rows, &width, &error), "the texts");
    REFUSED(lib.llm_stream_embed(handle, &options, texts, NULL, 2, &rows, &n_rows, &width, &error), "the lengths");
    options.dimensions = 100000;
    REFUSED(lib.llm_stream_embed(handle, &options, texts, lens, 2, &rows, &n_rows, &width, &error), "dimensions");
    options.dimensions = 0;
    options.pooling = 6;
    REFUSED(lib.llm_stream_embed(handle, &options, texts, lens, 2, &rows, &n_rows, &width, &error), "pooling is 6");
    options.pooling = ELIZA_POOLING_RANK;
    REFUSED(lib.llm_stream_embed(handle, &options, texts, lens, 2, &rows, &n_rows, &width, &error), "classifier");
    options.pooling = ELIZA_POOLING_LAST;
    counts[0] = 0;
    REFUSED(lib.llm_stream_start_embed(handle, &options, both, counts, 2, &error), "text 0 has no tokens");
    both[0] = -3;
    counts[0] = 1;
    REFUSED(lib.llm_stream_embed_tokens(handle, &options, both, counts, 1, &rows, &n_rows, &width, &error), "is -3");
    both = (int *)realloc(both, 257 * sizeof *both);
    for (size_t i = 0; i < 257; i++) both[i] = 1;
    counts[0] = 257;
    REFUSED(lib.llm_stream_embed_tokens(handle, &options, both, counts, 1, &rows, &n_rows, &width, &error), "257 tokens");
#undef REFUSED
    free(both);
    lib.free_tokens(first);
    lib.free_tokens(second);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* A model that gives embeddings and scores, and continues no text. */
static void ranks(void) {
    static const char texts[] = "a little doga little girl";
    const size_t lens[] = {12, 13};
    eliza_llm_embedding_options_t options = {sizeof options, ELIZA_POOLING_RANK, 0, 0};
    eliza_llm_open_options_t open = {sizeof open};
    char path[4096], * error = NULL, * slash;
    float scores[2], swapped[2], * rows;
    size_t n, n_rows, width;
    int * pair;
    FfiLlmHandle handle;
    snprintf(path, sizeof path, "%s", model_path());
    slash = strrchr(path, '/');
    snprintf(slash == NULL ? path : slash + 1, 16, "bert.gguf");
    open.model_path = path;
    handle = opened(&open);
    CHECK_EQ(lib.llm_stream_rank(handle, "Who?", 4, texts, lens, 2, scores, &error), ELIZA_OK);
    CHECK(scores[0] != scores[1]);
    CHECK_EQ(lib.llm_stream_rank(handle, "Who?", 4, "a little girla little dog", (const size_t[]){13, 12}, 2, swapped, &error), 0);
    for (size_t i = 0; i < 2; i++) CHECK(scores[i] - swapped[1 - i] < 1e-4 && swapped[1 - i] - scores[i] < 1e-4);
    CHECK_EQ(lib.llm_stream_tokenize_pair(handle, "Who?", 4, texts, 12, &pair, &n, &error), ELIZA_OK);
    CHECK_EQ(lib.llm_stream_embed_tokens(handle, &options, pair, &n, 1, &rows, &n_rows, &width, &error), ELIZA_OK);
    CHECK(n_rows == 1 && width == 2 && rows[0] - scores[0] < 1e-4 && scores[0] - rows[0] < 1e-4);
    CHECK_EQ(lib.llm_stream_prefill(handle, pair, n, -1), -1);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_NOT_IMPLEMENTED);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "gives embeddings");
    lib.free_rows(rows);
    lib.free_tokens(pair);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

const struct test_case asking_cases[] = {
    {"devices_and_plans", devices_and_plans},
    {"metadata", metadata},
    {"model_and_tokens", model_and_tokens},
    {"logits", logits},
    {"embeddings", embeddings},
    {"ranks", ranks},
    {"vocabulary_alone", vocabulary_alone},
    {"options_of_an_open", options_of_an_open},
    {"sampling_is_counted", sampling_is_counted},
    {NULL, NULL},
};
