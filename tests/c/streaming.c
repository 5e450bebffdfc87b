/* One stream: tokens, prompt, pull and callback, options, what was used. */

#include "host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void tokens_and_back(void) {
    FfiLlmHandle handle = open_model(256);
    static const char text[] = "Once upon a time, h\xc3\xa9llo \xf0\x9f\x98\x80\n";
    size_t n = 0, none = 9;
    int * tokens = tokens_of(handle, text, &n);
    char back[256], * error = NULL;
    int len;
    CHECK(n > 3);
    len = lib.llm_stream_detokenize(handle, tokens, n, 1, 0, NULL, 0, NULL);
    CHECK(len > 0 && len < 200);
    memset(back, 'x', sizeof back);
    CHECK_EQ(lib.llm_stream_detokenize(handle, tokens, n, 1, 0, back, (size_t)len + 1, &error), len);
    CHECK_EQ(strlen(back), len);
    CHECK(back[len + 1] == 'x');
    CHECK(strstr(back, "Once upon a time, h\xc3\xa9llo \xf0\x9f\x98\x80\n") != NULL);
    CHECK_EQ(lib.llm_stream_detokenize(handle, tokens, n, 1, 0, back, (size_t)len, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "max_text_bytes");
    CHECK_TEXT(lib.llm_stream_take_error(handle), "max_text_bytes");
    lib.free_tokens(tokens);

    tokens = NULL;
    CHECK_EQ(lib.llm_stream_tokenize(handle, NULL, 0, 0, 0, &tokens, &none, &error), ELIZA_OK);
    CHECK(tokens != NULL && none == 0);
    CHECK_EQ(lib.llm_stream_detokenize(handle, NULL, 0, 0, 0, back, sizeof back, &error), 0);
    CHECK_EQ(back[0], 0);
    lib.free_tokens(tokens);

    const int wrong[] = {1, 1 << 30, -1};
    CHECK_EQ(lib.llm_stream_detokenize(handle, wrong, 3, 0, 0, back, sizeof back, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "tokens[1] is 1073741824");
    CHECK_EQ(lib.llm_stream_detokenize(handle, wrong + 2, 1, 0, 0, back, sizeof back, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "tokens[0] is -1");
    CHECK_EQ(lib.llm_stream_detokenize(handle, NULL, 1, 0, 0, back, sizeof back, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "tokens is NULL");
    CHECK_EQ(lib.llm_stream_detokenize(handle, wrong, 1, 0, 0, NULL, 5, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "out_text is NULL");
    CHECK_EQ(lib.llm_stream_tokenize(handle, NULL, 1, 0, 0, &tokens, &n, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "text is NULL");
    CHECK_EQ(lib.llm_stream_tokenize(handle, "a", 1, 0, 0, NULL, &n, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "out_tokens");
    CHECK_EQ(lib.llm_stream_tokenize(handle, "a", 1, 0, 0, &tokens, NULL, NULL), ELIZA_ERR_INVALID_ARG);
    while ((error = lib.llm_stream_take_error(handle)) != NULL) lib.free_string(error);
    lib.llm_stream_close(handle);
}

static void prompts(void) {
    FfiLlmHandle handle = open_model(256);
    size_t n;
    int * tokens = tokens_of(handle, "Once upon a time there was a little cat", &n);
    int32_t many[300];
    eliza_llm_usage_t usage;
    memset(&usage, 0, sizeof usage);
    usage.struct_size = sizeof usage;

#define REFUSED(call, status, reason) \
    do { \
        CHECK_EQ(call, -1); \
        CHECK_EQ(lib.llm_stream_status(handle), status); \
        CHECK_TEXT(lib.llm_stream_take_error(handle), reason); \
        check_no_errors(handle); \
    } while (0)
    REFUSED(lib.llm_stream_prefill(handle, NULL, 3, -1), ELIZA_ERR_INVALID_ARG, "prompt_tokens is NULL");
    REFUSED(lib.llm_stream_prefill(handle, NULL, 0, -1), ELIZA_ERR_INVALID_ARG, "");
    REFUSED(lib.llm_stream_prefill(handle, (const int32_t *)1, 3, -1), ELIZA_ERR_INVALID_ARG, "aligned");
    REFUSED(lib.llm_stream_prefill(handle, tokens, SIZE_MAX, -1), ELIZA_ERR_INVALID_ARG, "impossible length");
    REFUSED(lib.llm_stream_prefill(handle, tokens, n, 16), ELIZA_ERR_INVALID_ARG, "16");
    REFUSED(lib.llm_stream_prefill(handle, tokens, n, -2), ELIZA_ERR_INVALID_ARG, "-2");
    for (int i = 0; i < 300; i++) many[i] = tokens[i % (int)n];
    REFUSED(lib.llm_stream_prefill(handle, many, 300, -1), ELIZA_ERR_OOM, "256");
    many[1] = 1 << 30;
    REFUSED(lib.llm_stream_prefill(handle, many, 3, -1), ELIZA_ERR_INVALID_ARG, "1073741824");
    many[1] = -1;
    REFUSED(lib.llm_stream_prefill(handle, many, 3, -1), ELIZA_ERR_INVALID_ARG, "-1");
    /* A failed prefill leaves nothing to generate from. */
    REFUSED(lib.llm_stream_generate(handle, 5, 0.0f, 1.0f, NULL), ELIZA_ERR_BUSY, "");
#undef REFUSED

    /* A pinned slot keeps what two prompts share. */
    CHECK_EQ(lib.llm_stream_prefill(handle, tokens, n, 3), n);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_OK);
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK(usage.prompt_tokens == n && usage.prompt_tokens_reused == 0);
    CHECK_EQ(lib.llm_stream_prefill(handle, tokens, n, 3), n);
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK(usage.prompt_tokens == n && usage.prompt_tokens_reused >= n - 1);
    check_no_errors(handle);
    lib.free_tokens(tokens);
    lib.llm_stream_close(handle);
}

/* A context larger than any is capped at what the model was trained with; a prompt larger than that is refused. */
static void context_too_large(void) {
    enum { TOO_MANY = 1 << 20 };
    FfiLlmHandle handle = open_model(INT32_MAX);
    int32_t * tokens = (int32_t *)calloc(TOO_MANY, sizeof *tokens);
    CHECK(tokens != NULL);
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_prefill(handle, tokens, TOO_MANY, -1), -1);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_OOM);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "1048576");
    prefill(handle, -1);
    check_no_errors(handle);
    free(tokens);
    lib.llm_stream_close(handle);
}

/* The same generation, pulled in steps of several sizes, polled, and by both callbacks. */
static void every_way_gives_the_same(void) {
    static struct result whole, parts;
    FfiLlmHandle handle = open_model(512);
    eliza_llm_usage_t usage;
    static const size_t caps[][2] = {{1, 8}, {1, 512}, {3, 9}, {63, 1023}};
    ignore_eos(handle);
    greedy(handle, 100, &whole);
    CHECK_EQ(whole.n_tokens, 100);
    CHECK_EQ(whole.last_step, ELIZA_STREAM_FINAL);
    CHECK(whole.text_len > 0);
    CHECK_EQ(lib.llm_stream_status(handle), 1);
    memset(&usage, 0, sizeof usage);
    usage.struct_size = sizeof usage;
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK_EQ(usage.finish_reason, ELIZA_FINISH_LENGTH);
    CHECK_EQ(usage.completion_tokens, 100);
    CHECK(usage.forward_passes + usage.accepted_tokens >= 99 && usage.decode_us >= usage.first_token_us);
    CHECK(usage.accepted_tokens <= usage.drafted_tokens);

    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++) {
        prefill(handle, -1);
        CHECK_EQ(lib.llm_stream_generate(handle, 100, 0.0f, 1.0f, NULL), 0);
        pull_all(handle, caps[i][0], caps[i][1], &parts);
        CHECK_EQ(parts.n_tokens, whole.n_tokens);
        CHECK(memcmp(parts.tokens, whole.tokens, 100 * sizeof(int32_t)) == 0);
        CHECK(parts.text_len == whole.text_len && memcmp(parts.text, whole.text, whole.text_len) == 0);
    }

    /* Poll without waiting until it is over. */
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 100, 0.0f, 1.0f, NULL), 0);
    size_t n_tokens = 0, text_len = 0;
    int step;
    do {
        int32_t tokens[8];
        char text[64], * error = NULL;
        size_t n = 0;
        step = lib.llm_stream_poll(handle, n_tokens < 50 ? 0 : 5, tokens, 8, &n, text, sizeof text, &error);
        CHECK(step >= 0 && n <= 8);
        CHECK(memcmp(tokens, whole.tokens + n_tokens, n * sizeof(int32_t)) == 0);
        CHECK(memcmp(text, whole.text + text_len, strlen(text)) == 0);
        n_tokens += n;
        text_len += strlen(text);
    } while (step == ELIZA_STREAM_MORE);
    CHECK(step == ELIZA_STREAM_FINAL && n_tokens == 100 && text_len == whole.text_len);

    for (int ex = 0; ex < 2; ex++) {
        recorder_reset();
        prefill(handle, -1);
        if (ex) CHECK_EQ(lib.llm_stream_generate_ex(handle, 100, 0.0f, 1.0f, on_token_ex, &recorder, NULL), 0);
        else CHECK_EQ(lib.llm_stream_generate(handle, 100, 0.0f, 1.0f, on_token), 0);
        wait_done();
        CHECK_EQ(recorder.n_events, 101);
        CHECK(recorder.events[100].done && recorder.events[100].token == -1);
        text_len = 0;
        for (int i = 0; i < 101; i++) {
            const struct event * event = &recorder.events[i];
            if (i < 100) CHECK_EQ(event->token, whole.tokens[i]);
            /* The text is still there, long after the callback returned; NUL characters are its own in the exact form. */
            for (size_t at = 0; at < event->len; at++) {
                const char * byte = event->text[at] == '\0' ? "\xef\xbf\xbd" : &event->text[at];
                size_t n = event->text[at] == '\0' ? 3 : 1;
                CHECK(memcmp(byte, whole.text + text_len, n) == 0);
                text_len += n;
            }
            CHECK_EQ(event->text[event->len], 0);
        }
        CHECK_EQ(text_len, whole.text_len);
    }
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* What is asked at the wrong time or of the wrong kind is refused, with a reason, and changes nothing. */
static void wrong_calls(void) {
    FfiLlmHandle handle = open_model(256);
    int32_t tokens[4];
    char text[64], * error = NULL;
    size_t n;
#define REFUSED(call, status, reason) \
    do { \
        error = NULL; \
        CHECK_EQ(call, status); \
        CHECK_TEXT(error, reason); \
        CHECK_TEXT(lib.llm_stream_take_error(handle), reason); \
        check_no_errors(handle); \
    } while (0)
#define NEXT(tokens, tokens_cap, text, text_cap) \
    lib.llm_stream_next(handle, tokens, tokens_cap, &n, text, text_cap, NULL, NULL, &error)
    REFUSED(NEXT(tokens, 4, text, 64), ELIZA_ERR_INVALID_ARG, "");
    REFUSED(lib.llm_stream_generate_ex(handle, 5, 0.0f, 1.0f, NULL, NULL, &error), ELIZA_ERR_BUSY, "");
    prefill(handle, -1);
    REFUSED(NEXT(tokens, 4, text, 64), ELIZA_ERR_INVALID_ARG, "");
    REFUSED(lib.llm_stream_generate_ex(handle, 5, INFINITY, 1.0f, NULL, NULL, &error), ELIZA_ERR_INVALID_ARG, "emperature");
    CHECK_EQ(lib.llm_stream_generate(handle, 5, 0.0f, 1.0f, NULL), 0);
    REFUSED(NEXT(NULL, 4, text, 64), ELIZA_ERR_INVALID_ARG, "tokens_out is NULL");
    REFUSED(NEXT(tokens, 4, NULL, 64), ELIZA_ERR_INVALID_ARG, "text_out is NULL");
    REFUSED(NEXT(tokens, 0, text, 64), ELIZA_ERR_INVALID_ARG, "");
    REFUSED(NEXT(tokens, 4, text, 7), ELIZA_ERR_INVALID_ARG, "8");
    REFUSED(NEXT(NULL, 0, NULL, 0), ELIZA_ERR_INVALID_ARG, "");
    while ((n = 0, lib.llm_stream_next(handle, tokens, 4, NULL, text, 64, NULL, NULL, NULL)) == ELIZA_STREAM_MORE) {}
    REFUSED(lib.llm_stream_generate_ex(handle, 5, 0.0f, 1.0f, NULL, NULL, &error), ELIZA_ERR_BUSY, "");
    /* With a callback there is nothing to pull. */
    recorder_reset();
    recorder.shut = 1;
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 5, 0.0f, 1.0f, on_token), 0);
    wait_held();
    REFUSED(NEXT(tokens, 4, text, 64), ELIZA_ERR_INVALID_ARG, "callback");
    REFUSED(lib.llm_stream_poll(handle, 0, tokens, 4, &n, text, 64, &error), ELIZA_ERR_INVALID_ARG, "callback");
    recorder_shut(0);
    wait_done();
    check_no_errors(handle);
    lib.llm_stream_close(handle);
#undef NEXT
#undef REFUSED
}

static void lengths(void) {
    FfiLlmHandle handle = open_model(256);
    static struct result result;
    eliza_llm_usage_t usage;
    ignore_eos(handle);
    memset(&usage, 0, sizeof usage);
    usage.struct_size = sizeof usage;
    greedy(handle, 0, &result);
    CHECK(result.n_tokens == 0 && result.text_len == 0 && result.last_step == ELIZA_STREAM_FINAL);
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK_EQ(usage.finish_reason, ELIZA_FINISH_LENGTH);
    recorder_reset();
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 0, 0.0f, 1.0f, on_token), 0);
    wait_done();
    CHECK(recorder.n_events == 1 && recorder.events[0].token == -1 && recorder.events[0].len == 0);

    greedy(handle, -1, &result);
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK_EQ(usage.finish_reason, ELIZA_FINISH_CONTEXT);
    CHECK(usage.prompt_tokens + usage.completion_tokens >= 256 && usage.completion_tokens == result.n_tokens);
    CHECK_EQ(lib.llm_stream_status(handle), 1);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* A question between a call that returned -1 and the status that tells its code changes nothing, as another thread may ask it. */
static void l4_questions_keep_the_code(void) {
    static const char * const names[] = {"Tom"};
    FfiLlmHandle handle = open_model(256);
    eliza_llm_sampling_options_t options;
    eliza_llm_sampled_t sampled;
    static struct result result;
    char text[64];
    size_t n;
    greedy(handle, 3, &result);
    for (int question = 0; question < 5; question++) {
        CHECK_EQ(lib.llm_stream_prefill(handle, NULL, 3, -1), -1);
        switch (question) {
            case 0: lib.free_tokens(tokens_of(handle, "Once", &n)); break;
            case 1: CHECK(lib.llm_stream_detokenize(handle, result.tokens, 1, 0, 1, text, sizeof text, NULL) >= 0); break;
            case 2: lib.free_string(lib.build_token_trie(handle, "p", names, 1, NULL, NULL, 0, NULL, NULL)); break;
            case 3:
                memset(&sampled, 0, sizeof sampled);
                sampled.struct_size = sizeof sampled;
                CHECK_EQ(lib.llm_stream_sampled(handle, -1, &sampled), ELIZA_OK);
                break;
            default:
                memset(&options, 0, sizeof options);
                options.struct_size = sizeof options;
                CHECK_EQ(lib.llm_stream_sampling_defaults(handle, &options), ELIZA_OK);
        }
        CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_INVALID_ARG);
        CHECK_TEXT(lib.llm_stream_take_error(handle), "prompt_tokens is NULL");
        /* The next call that does something does. */
        CHECK_EQ(lib.clear_token_trie(handle), 0);
        CHECK(lib.llm_stream_status(handle) >= 0);
    }
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* A full context stops the generation, or lets it go on as long as it is asked to. */
static void context_shifts(void) {
    FfiLlmHandle handle = open_model(64);
    static struct result stopped, shifted;
    eliza_llm_sampling_options_t options;
    eliza_llm_usage_t usage;
    char * error = NULL, * json;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    CHECK_EQ(lib.llm_stream_sampling_defaults(handle, &options), ELIZA_OK);
    CHECK(options.on_context_full == ELIZA_CONTEXT_STOP && options.n_keep == 0);
    options.ignore_eos = 1;
    CHECK_EQ(lib.llm_stream_configure(handle, &options, NULL), ELIZA_OK);
    greedy(handle, 300, &stopped);
    memset(&usage, 0, sizeof usage);
    usage.struct_size = sizeof usage;
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK(usage.finish_reason == ELIZA_FINISH_CONTEXT && usage.context_shifts == 0 && stopped.n_tokens < 64);

    options.on_context_full = ELIZA_CONTEXT_SHIFT;
    options.n_keep = 64;
    CHECK_EQ(lib.llm_stream_configure(handle, &options, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "n_keep is 64: in a context of 64 tokens a shift can keep 61");
    lib.free_string(lib.llm_stream_take_error(handle));
    options.n_keep = 4;
    CHECK_EQ(lib.llm_stream_configure(handle, &options, NULL), ELIZA_OK);
    greedy(handle, 300, &shifted);
    CHECK_EQ(shifted.n_tokens, 300);
    CHECK(memcmp(shifted.tokens, stopped.tokens, stopped.n_tokens * sizeof(int32_t)) == 0);
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK_EQ(usage.finish_reason, ELIZA_FINISH_LENGTH);
    /* 63 tokens in the slot, 59 after those kept: 29 go each time. */
    CHECK_EQ(usage.context_shifts, (300 - 1 - stopped.n_tokens) / 29 + 1);
    json = lib.llm_stream_usage_json(handle);
    CHECK(json != NULL && strstr(json, "\"context_shifts\":") != NULL);
    lib.free_string(json);
    /* What is read back can be set. */
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    CHECK_EQ(lib.llm_stream_sampling_defaults(handle, &options), ELIZA_OK);
    CHECK(options.on_context_full == ELIZA_CONTEXT_SHIFT && options.n_keep == 4);
    CHECK_EQ(lib.llm_stream_configure(handle, &options, NULL), ELIZA_OK);
    /* A host of before the option has a shorter structure, and the context stops. */
    options.struct_size = offsetof(eliza_llm_sampling_options_t, on_context_full);
    CHECK_EQ(lib.llm_stream_configure(handle, &options, NULL), ELIZA_OK);
    greedy(handle, 300, &shifted);
    CHECK_EQ(shifted.n_tokens, stopped.n_tokens);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

static void sampling_options(void) {
    FfiLlmHandle handle = open_model(512);
    static struct result first, second;
    eliza_llm_sampling_options_t options, defaults;
    char * error = NULL;
    memset(&defaults, 0xa5, sizeof defaults);
    defaults.struct_size = sizeof defaults;
    CHECK_EQ(lib.llm_stream_sampling_defaults(handle, &defaults), ELIZA_OK);
    CHECK(defaults.struct_size == sizeof defaults && defaults.seed == ELIZA_SEED_RANDOM);
    CHECK(defaults.stop == NULL && defaults.n_stop == 0 && defaults.n_logit_bias == 0 && defaults.gbnf_grammar == NULL);

    /* One seed, one text; another seed, another. */
    options = defaults;
    options.ignore_eos = 1;
    for (uint32_t seed = 1; seed <= 3; seed++) {
        options.seed = seed == 3 ? 2 : 1;
        CHECK_EQ(lib.llm_stream_configure(handle, &options, &error), ELIZA_OK);
        prefill(handle, -1);
        CHECK_EQ(lib.llm_stream_generate(handle, 60, 1.0f, 1.0f, NULL), 0);
        pull_all(handle, 32, 512, seed == 1 ? &first : &second);
        CHECK_EQ(second.n_tokens == 0 || memcmp(first.tokens, second.tokens, 60 * sizeof(int32_t)) == 0, seed != 3);
    }

    /* A bias of minus infinity forbids the token that greedy takes first. */
    greedy(handle, 1, &first);
    float never = -INFINITY;
    options.logit_bias_ids = first.tokens;
    options.logit_bias_values = &never;
    options.n_logit_bias = 1;
    CHECK_EQ(lib.llm_stream_configure(handle, &options, &error), ELIZA_OK);
    greedy(handle, 20, &second);
    for (int i = 0; i < 20; i++) CHECK(second.tokens[i] != first.tokens[0]);

    /* A stop string ends the generation and is not part of the text. */
    options = defaults;
    options.ignore_eos = 1;
    CHECK_EQ(lib.llm_stream_configure(handle, &options, &error), ELIZA_OK);
    greedy(handle, 60, &first);
    CHECK(first.text_len > 12);
    size_t at = first.text_len / 2;
    while (((unsigned char)first.text[at] & 0xc0) == 0x80) at++;
    char stop[16] = "";
    size_t stop_len = 1;
    while (((unsigned char)first.text[at + stop_len] & 0xc0) == 0x80) stop_len++;
    memcpy(stop, first.text + at, stop_len);
    const char * stops[] = {"never in any text at all", stop};
    options.stop = stops;
    options.n_stop = 2;
    CHECK_EQ(lib.llm_stream_configure(handle, &options, &error), ELIZA_OK);
    greedy(handle, 60, &second);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_OK);
    CHECK(second.text_len < first.text_len && memcmp(second.text, first.text, second.text_len) == 0);
    CHECK(strstr(second.text, stop) == NULL);
    CHECK(strncmp(first.text + second.text_len, stop, stop_len) == 0);

#define REFUSED(change, status, reason) \
    do { \
        options = defaults; \
        change; \
        error = NULL; \
        CHECK_EQ(lib.llm_stream_configure(handle, &options, &error), status); \
        CHECK_TEXT(error, reason); \
        CHECK_TEXT(lib.llm_stream_take_error(handle), reason); \
        CHECK_EQ(lib.llm_stream_status(handle), status); \
        check_no_errors(handle); \
    } while (0)
    const char * empty = "";
    REFUSED(options.gbnf_grammar = "\xff", ELIZA_ERR_INVALID_ARG, "gbnf_grammar");
    REFUSED(options.struct_size = 1, ELIZA_ERR_INVALID_ARG, "struct_size is 1");
    REFUSED(options.min_p = NAN, ELIZA_ERR_INVALID_ARG, "min_p");
    REFUSED((options.stop = &empty, options.n_stop = 1), ELIZA_ERR_INVALID_ARG, "stop");
    REFUSED(options.n_stop = 1, ELIZA_ERR_INVALID_ARG, "stop is NULL");
    REFUSED(options.on_span_end = 7, ELIZA_ERR_INVALID_ARG, "on_span_end is 7");
#undef REFUSED
    CHECK_EQ(lib.llm_stream_configure(handle, NULL, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "NULL");
    lib.free_string(lib.llm_stream_take_error(handle));
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* A host compiled against a smaller structure: nothing after its size is read or written. */
static void sized_structures(void) {
    FfiLlmHandle handle = open_model(256);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char * pages = (char *)mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    static const uint32_t sizes[] = {4, 8, 12, 16, 40};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char * end = pages + page - sizes[i];
        memset(end, 0, sizes[i]);
        memcpy(end, &sizes[i], 4);
        CHECK_EQ(lib.llm_stream_usage(handle, (eliza_llm_usage_t *)(void *)end), ELIZA_OK);
        CHECK_EQ(lib.llm_stream_sampling_defaults(handle, (eliza_llm_sampling_options_t *)(void *)end), ELIZA_OK);
        CHECK(memcmp(end, &sizes[i], 4) == 0);
        /* What is read could end inside a pointer, where the size is not a multiple of the alignment. */
        int whole = sizes[i] % sizeof(void *) == 0;
        CHECK_EQ(lib.llm_stream_configure(handle, (eliza_llm_sampling_options_t *)(void *)end, NULL),
                 whole ? ELIZA_OK : ELIZA_ERR_INVALID_ARG);
    }
    /* And against a larger one: what the library does not know stays as it was. */
    struct { eliza_llm_usage_t usage; char more[16]; } larger;
    memset(&larger, 0x77, sizeof larger);
    larger.usage.struct_size = sizeof larger;
    CHECK_EQ(lib.llm_stream_usage(handle, &larger.usage), ELIZA_OK);
    CHECK_EQ(larger.usage.struct_size, sizeof larger);
    CHECK_EQ(larger.usage.prompt_tokens, 0);
    for (size_t i = 0; i < sizeof larger.more; i++) CHECK_EQ(larger.more[i], 0x77);
    CHECK_EQ(lib.llm_stream_usage(handle, NULL), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "eliza_llm_usage_t is NULL");
    munmap(pages, 2 * page);
    lib.llm_stream_close(handle);
}

static void chains_and_candidates(void) {
    FfiLlmHandle handle = open_model(256);
    static struct result by_default, by_chain;
    eliza_llm_sampling_options_t options;
    eliza_llm_candidate_t candidates[8];
    eliza_llm_sampled_t sampled;
    char * error = NULL;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    CHECK_EQ(lib.llm_stream_sampling_defaults(handle, &options), ELIZA_OK);
    options.n_candidates = 5;
    options.ignore_eos = 1;
    CHECK_EQ(lib.llm_stream_configure(handle, &options, &error), ELIZA_OK);

    memset(&sampled, 0, sizeof sampled);
    sampled.struct_size = sizeof sampled;
    sampled.candidates = candidates;
    sampled.candidates_cap = 8;
    CHECK_EQ(lib.llm_stream_sampled(handle, -1, &sampled), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "sampled");

    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 10, 0.8f, 0.95f, NULL), 0);
    pull_all(handle, 32, 512, &by_default);
    CHECK_EQ(lib.llm_stream_sampled(handle, -1, &sampled), ELIZA_OK);
    CHECK_EQ(sampled.token, by_default.tokens[9]);
    CHECK(sampled.n_candidates >= 1 && sampled.n_candidates <= 5);
    CHECK(sampled.probability > 0.0f && sampled.probability <= 1.0f);
    CHECK(fabsf(expf(sampled.logprob) - sampled.probability) < 1e-3f);
    for (size_t i = 1; i < sampled.n_candidates; i++) CHECK(candidates[i].probability <= candidates[i - 1].probability);
    /* Less room than candidates: the count tells. */
    sampled.candidates_cap = 1;
    candidates[1].token = -99;
    size_t all = sampled.n_candidates;
    CHECK_EQ(lib.llm_stream_sampled(handle, -1, &sampled), ELIZA_OK);
    CHECK(sampled.n_candidates == all && candidates[1].token == -99);
    sampled.candidates = NULL;
    CHECK_EQ(lib.llm_stream_sampled(handle, -1, &sampled), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "candidates is NULL");

    /* A chain that keeps one token is greedy, whatever the temperature; NaN leaves the chain's own. */
    greedy(handle, 20, &by_default);
    CHECK_EQ(lib.llm_stream_set_chain(handle, -1, "top_k=1;temp=1.5", &error), ELIZA_OK);
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 20, NAN, NAN, NULL), 0);
    pull_all(handle, 32, 512, &by_chain);
    CHECK(memcmp(by_default.tokens, by_chain.tokens, 20 * sizeof(int32_t)) == 0);
    CHECK(lib.llm_stream_set_chain(handle, -1, "top_q=1", &error) < 0);
    CHECK_TEXT(error, "top_q");
    CHECK_TEXT(lib.llm_stream_take_error(handle), "top_q");
    CHECK_EQ(lib.llm_stream_set_chain(handle, 99, "temp=1", &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "99");
    lib.free_string(lib.llm_stream_take_error(handle));
    CHECK_EQ(lib.llm_stream_set_chain(handle, -1, NULL, &error), ELIZA_OK);

    char * json = lib.llm_stream_usage_json(handle);
    CHECK(json != NULL && json[0] == '{' && strstr(json, "prompt_tokens") != NULL);
    lib.free_string(json);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

static void panics_on_a_handle(void) {
    FfiLlmHandle handle;
    char * error = NULL;
    static struct result result;
    if (lib.testing_panic == NULL) skip("the library was built without the feature testing");
    handle = open_model(256);
    CHECK_EQ(lib.testing_panic(handle, "a beam broke", &error), ELIZA_ERR_FFI_FAULT);
    CHECK_TEXT(error, "a beam broke");
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_FFI_FAULT);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "a beam broke");
    check_no_errors(handle);
    /* The handle and the process go on. */
    greedy(handle, 5, &result);
    CHECK_EQ(result.last_step, ELIZA_STREAM_FINAL);
    lib.llm_stream_close(handle);
}

const struct test_case streaming_cases[] = {
    {"tokens_and_back", tokens_and_back},
    {"prompts", prompts},
    {"context_too_large", context_too_large},
    {"every_way_gives_the_same", every_way_gives_the_same},
    {"wrong_calls", wrong_calls},
    {"l4_questions_keep_the_code", l4_questions_keep_the_code},
    {"lengths", lengths},
    {"sampling_options", sampling_options},
    {"context_shifts", context_shifts},
    {"sized_structures", sized_structures},
    {"chains_and_candidates", chains_and_candidates},
    {"panics_on_a_handle", panics_on_a_handle},
    {NULL, NULL},
};
