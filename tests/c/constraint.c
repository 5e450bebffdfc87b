/* Token tries through the C calls; their rules themselves are tested where they are written. */

#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char * const names[] = {"Tom", "Lily", "Ben", "Lucy", "Max"};
enum { NAMES = 5 };

/* Appends one descriptor whose leaves are some of the names. */
static size_t add_descriptor(FfiLlmHandle handle, char * json, const char * path, size_t first, size_t last) {
    size_t len = (size_t)sprintf(json, "{\"path\":\"%s\",\"leaves\":[", path);
    for (size_t i = first; i < last; i++) {
        size_t n;
        int * tokens;
        int status = lib.llm_stream_tokenize(handle, names[i], strlen(names[i]), 0, 0, &tokens, &n, NULL);
        CHECK(status == ELIZA_OK && n > 0);
        len += (size_t)sprintf(json + len, "%s{\"name\":\"%s\",\"tokens\":[", i == first ? "" : ",", names[i]);
        for (size_t t = 0; t < n; t++) len += (size_t)sprintf(json + len, "%s%d", t == 0 ? "" : ",", tokens[t]);
        len += (size_t)sprintf(json + len, "]}");
        lib.free_tokens(tokens);
    }
    return len + (size_t)sprintf(json + len, "]}");
}

static size_t payload(FfiLlmHandle handle, char * json) {
    size_t len = (size_t)sprintf(json, "{\"modelId\":\"\",\"descriptors\":[");
    len += add_descriptor(handle, json + len, "hero", 0, 3);
    len += (size_t)sprintf(json + len, ",");
    len += add_descriptor(handle, json + len, "friend", 3, NAMES);
    return len + (size_t)sprintf(json + len, "]}");
}

/* Generates one span and checks that it is one of these names. */
static void span_is(FfiLlmHandle handle, size_t first, size_t last, float temperature) {
    static struct result result;
    eliza_llm_usage_t usage;
    size_t i;
    CHECK_EQ(lib.llm_stream_generate(handle, 50, temperature, 1.0f, NULL), 0);
    pull_all(handle, 32, 512, &result);
    memset(&usage, 0, sizeof usage);
    usage.struct_size = sizeof usage;
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK_EQ(usage.finish_reason, ELIZA_FINISH_SPAN);
    const char * text = result.text;
    while (*text == ' ') text++;
    for (i = first; i < last && strcmp(text, names[i]) != 0; i++) {}
    if (i == last) fail(__FILE__, __LINE__, "\"%s\" is no name of this span", result.text);
}

static void stop_at_span_end(FfiLlmHandle handle) {
    eliza_llm_sampling_options_t options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    CHECK_EQ(lib.llm_stream_sampling_defaults(handle, &options), ELIZA_OK);
    options.on_span_end = ELIZA_SPAN_STOP;
    CHECK_EQ(lib.llm_stream_configure(handle, &options, NULL), ELIZA_OK);
}

static void tries(void) {
    FfiLlmHandle handle = open_model(512);
    char json[4096];
    size_t len = payload(handle, json);
    stop_at_span_end(handle);
    for (int mode = ELIZA_TRIE_GREEDY; mode <= ELIZA_TRIE_SAMPLED; mode++) {
        CHECK_EQ(lib.set_token_trie(handle, json, len, mode), 0);
        prefill(handle, -1);
        span_is(handle, 0, 3, 1.5f);
        /* A prefill arms the descriptor armed last; arming chooses another, by name or the next. */
        CHECK_EQ(lib.arm_token_trie(handle, "friend"), 0);
        prefill(handle, -1);
        span_is(handle, 3, NAMES, 1.5f);
        CHECK_EQ(lib.arm_token_trie(handle, NULL), 0);
        prefill(handle, -1);
        span_is(handle, 0, 3, 1.5f);
        CHECK_EQ(lib.arm_token_trie(handle, NULL), 0);
        prefill(handle, -1);
        span_is(handle, 3, NAMES, 1.5f);
    }
    check_no_errors(handle);
    CHECK_EQ(lib.arm_token_trie(handle, "villain"), -1);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "villain");
    CHECK_EQ(lib.arm_token_trie(handle, "\xff"), -1);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "path is not UTF-8");
    CHECK_EQ(lib.clear_token_trie(handle), 0);
    CHECK_EQ(lib.clear_token_trie(handle), 0);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* How often a text stands in another. */
static size_t times(const char * text, const char * part) {
    size_t n = 0;
    for (const char * at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) n++;
    return n;
}

/* Every leaf has a score; a generation in mode 2 takes the first one. */
static void scores(void) {
    FfiLlmHandle handle = open_model(512);
    char json[4096], best[64], * error = NULL, * ranking;
    size_t len = payload(handle, json);
    stop_at_span_end(handle);
    CHECK(lib.score_token_trie(handle, &error) == NULL);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "no token trie");
    CHECK_TEXT(lib.llm_stream_take_error(handle), "no token trie");
    CHECK_EQ(lib.set_token_trie(handle, json, len, ELIZA_TRIE_SCORE_LEAVES), 0);
    CHECK(lib.score_token_trie(handle, NULL) == NULL);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_BUSY);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "prefill");
    for (int round = 0; round < 2; round++) {
        prefill(handle, -1);
        ranking = lib.score_token_trie(handle, &error);
        CHECK(ranking != NULL);
        CHECK(strstr(ranking, round == 0 ? "\"path\":\"hero\"" : "\"path\":\"friend\"") != NULL);
        CHECK_EQ(times(ranking, "\"logprob\":-"), round == 0 ? 3 : NAMES - 3);
        CHECK_EQ(times(ranking, "\"logprob_per_token\":-"), round == 0 ? 3 : NAMES - 3);
        CHECK_EQ(sscanf(strstr(ranking, "\"name\":\"") + 8, "%63[^\"]", best), 1);
        lib.free_string(ranking);
        static struct result result;
        CHECK_EQ(lib.llm_stream_generate(handle, 50, 1.5f, 1.0f, NULL), 0);
        pull_all(handle, 32, 512, &result);
        CHECK(strstr(result.text, best) != NULL);
        CHECK_EQ(lib.arm_token_trie(handle, "friend"), 0);
    }
    CHECK(lib.score_token_trie(NULL, NULL) == NULL);
    CHECK_TEXT(lib.take_last_error(), "NULL");
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* A payload made of names is one that can be set, and a generation is one of them. */
static void payload_from_names(void) {
    static const char * const odd[] = {"Tom", "Tommy", "Tom"}, * const missing[] = {"Tom", NULL}, * const empty[] = {""};
    FfiLlmHandle handle = open_model(256);
    char * error = NULL, * warnings = NULL;
    stop_at_span_end(handle);
    char * json = lib.build_token_trie(handle, "hero", names, NAMES, "Once upon a time", NULL, 0, &warnings, &error);
    CHECK(json != NULL && error == NULL);
    CHECK(strstr(json, "\"path\":\"hero\"") != NULL);
    CHECK_EQ(times(json, "\"name\":"), NAMES);
    lib.free_string(warnings);
    CHECK_EQ(lib.set_token_trie(handle, json, strlen(json), ELIZA_TRIE_GREEDY), 0);
    lib.free_string(json);
    prefill(handle, -1);
    span_is(handle, 0, NAMES, 0.0f);
    json = lib.build_token_trie(handle, "hero", odd, 3, NULL, NULL, 0, &warnings, NULL);
    CHECK(json != NULL);
    lib.free_string(json);
    CHECK_TEXT(warnings, "\"Tom\" is given more than once");
    CHECK(lib.build_token_trie(handle, "hero", names, 0, NULL, NULL, 0, NULL, &error) == NULL);
    CHECK_TEXT(error, "There are no names");
    CHECK_TEXT(lib.llm_stream_take_error(handle), "There are no names");
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_INVALID_ARG);
    CHECK(lib.build_token_trie(handle, "hero", missing, 2, NULL, NULL, 0, NULL, NULL) == NULL);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "names[1] is NULL");
    CHECK(lib.build_token_trie(handle, "hero", empty, 1, NULL, NULL, 0, NULL, NULL) == NULL);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "name is empty");
    CHECK(lib.build_token_trie(handle, NULL, names, NAMES, NULL, NULL, 0, NULL, NULL) == NULL);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "path is NULL");
    CHECK(lib.build_token_trie(NULL, "hero", names, NAMES, NULL, NULL, 0, NULL, NULL) == NULL);
    CHECK_TEXT(lib.take_last_error(), "NULL");
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* A refused payload is not lost on a host that looks at nothing: generation is barred until it is put right. */
static void refused_payloads(void) {
    static const struct { const char * json; const char * reason; } cases[] = {
        {"", ""},
        {"{", ""},
        {"[]", ""},
        {"{\"descriptors\":[]}", ""},
        {"{\"descriptors\":[{\"path\":\"a\",\"leaves\":[{\"name\":\"x\",\"tokens\":[1073741824]}]}]}", "1073741824"},
        {"{\"descriptors\":[{\"path\":\"a\",\"leaves\":[{\"name\":\"x\",\"tokens\":[-1]}]}]}", "-1"},
        {"{\"descriptors\":[{\"path\":\"a\",\"leaves\":[{\"name\":\"x\",\"tokens\":\"1\"}]}]}", "tokens"},
    };
    FfiLlmHandle handle = open_model(256);
    static struct result result;
    char json[4096];
    size_t len = payload(handle, json);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_EQ(lib.set_token_trie(handle, cases[i].json, strlen(cases[i].json), 0), -1);
        CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_TRIE);
        CHECK_TEXT(lib.llm_stream_take_error(handle), cases[i].reason);
        prefill(handle, -1);
        CHECK_EQ(lib.llm_stream_generate(handle, 5, 0.0f, 1.0f, NULL), -1);
        CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_TRIE);
        CHECK_TEXT(lib.llm_stream_take_error(handle), cases[i].reason);
        if (i % 2 == 0) CHECK_EQ(lib.clear_token_trie(handle), 0);
        else CHECK_EQ(lib.set_token_trie(handle, json, len, 0), 0);
        greedy(handle, 5, &result);
        CHECK_EQ(lib.clear_token_trie(handle), 0);
    }
    CHECK_EQ(lib.set_token_trie(handle, NULL, 5, 0), -1);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "trie_payload_json is NULL");
    CHECK_EQ(lib.set_token_trie(handle, json, len, 7), -1);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "mode is 7");
    CHECK_EQ(lib.arm_token_trie(handle, NULL), -1);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "");
    /* One byte too few is no valid payload. */
    CHECK_EQ(lib.set_token_trie(handle, json, len - 1, 0), -1);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "");
    CHECK_EQ(lib.clear_token_trie(handle), 0);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* A number in the cache's part of the usage. */
static long long cached(FfiLlmHandle handle, const char * what) {
    char key[32], * json = lib.llm_stream_usage_json(handle);
    long long number = -1;
    CHECK(json != NULL);
    sprintf(key, "\"%s\":", what);
    const char * cache = strstr(json, "\"trie_cache\":");
    CHECK(cache != NULL && strstr(cache, key) != NULL);
    CHECK_EQ(sscanf(strstr(cache, key) + strlen(key), "%lld", &number), 1);
    lib.free_string(json);
    return number;
}

/* Payloads of 20,000 leaves, of which 64 MiB hold a few dozen. */
static void m2_trie_cache_is_bounded_by_bytes(void) {
    enum { LEAVES = 20000, PAYLOADS = 60 };
    static char json[LEAVES * 64];
    FfiLlmHandle handle = open_model(64);
    long long each = 0;
    /* Refused ones, of which the sender need not know the model, do not stay. */
    for (int i = 0; i < PAYLOADS; i++) {
        int refused = i < 5;
        size_t len = (size_t)sprintf(json, "{\"descriptors\":[{\"path\":\"%d\",\"leaves\":[", i);
        for (int leaf = 0; leaf < LEAVES; leaf++) {
            int last = refused && leaf + 1 == LEAVES ? 1 << 30 : leaf % 100;
            len += (size_t)sprintf(json + len, "%s{\"name\":\"%d\",\"tokens\":[%d,%d,%d]}", leaf == 0 ? "" : ",", leaf,
                                   leaf / 10000, leaf / 100 % 100, last);
        }
        len += (size_t)sprintf(json + len, "]}]}");
        CHECK_EQ(lib.set_token_trie(handle, json, len, 0), refused ? -1 : 0);
        if (refused) CHECK_TEXT(lib.llm_stream_take_error(handle), "1073741824");
        if (refused) CHECK_EQ(cached(handle, "entries"), 0);
        if (i == 5) each = cached(handle, "bytes");
    }
    CHECK(each > 1000000 && each * (PAYLOADS - 5) > 64 << 20);
    CHECK(cached(handle, "bytes") <= 64 << 20);
    CHECK(cached(handle, "bytes") > (64 << 20) - 2 * each);
    CHECK_EQ(lib.set_trie_cache_limit(3 * (uint64_t)each + (uint64_t)each / 2), ELIZA_OK);
    CHECK_EQ(cached(handle, "entries"), 3);
    CHECK_EQ(lib.set_trie_cache_limit(0), ELIZA_OK);
    CHECK(cached(handle, "entries") == 0 && cached(handle, "bytes") == 0);
    CHECK_EQ(lib.set_trie_cache_limit(UINT64_MAX), ELIZA_OK);
    /* The trie in force is the handle's, whatever the cache holds. */
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 3, 0.0f, 1.0f, NULL), 0);
    static struct result result;
    pull_all(handle, 32, 512, &result);
    CHECK_EQ(result.n_tokens, 3);
    CHECK(result.tokens[0] < 2 && result.tokens[1] < 100 && result.tokens[2] < 100);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* What a generation says that ends for this reason, or where it is ELIZA_FINISH_NONE for any. */
static const char * held(FfiLlmHandle handle, int finish) {
    static struct result result;
    eliza_llm_usage_t usage;
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 60, 0.0f, 1.0f, NULL), 0);
    pull_all(handle, 32, 512, &result);
    memset(&usage, 0, sizeof usage);
    usage.struct_size = sizeof usage;
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    if (finish != ELIZA_FINISH_NONE) CHECK_EQ(usage.finish_reason, finish);
    return result.text;
}

static void grammars(void) {
    static const char answer[] = "{\"gbnf\": \"root ::= \\\"Yes\\\" | \\\"No, never\\\"\"}";
    static const char wrong[] = "{\"gbnf\": \"root ::= [a\"}";
    eliza_llm_sampling_options_t options;
    eliza_llm_usage_t usage;
    char * error = NULL;
    FfiLlmHandle handle = open_model(512);
    CHECK_EQ(lib.set_grammar(handle, answer, sizeof answer - 1), 0);
    for (int i = 0; i < 2; i++) {
        const char * text = held(handle, ELIZA_FINISH_STOP);
        CHECK(strcmp(text, "Yes") == 0 || strcmp(text, "No, never") == 0);
    }
    memset(&usage, 0, sizeof usage);
    usage.struct_size = sizeof usage;
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK(usage.branching_steps > 0 && usage.grammar_states > 0);

    /* A refused one bars generating, whatever was in force. */
    CHECK_EQ(lib.set_grammar(handle, wrong, sizeof wrong - 1), -1);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "line 1");
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 1, 0.0f, 1.0f, NULL), -1);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "line 1");
    CHECK_EQ(lib.set_grammar(handle, NULL, 3), -1);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "json");
    CHECK_EQ(lib.clear_grammar(handle), 0);
    CHECK_EQ(lib.clear_grammar(handle), 0);
    CHECK_EQ(lib.set_grammar(NULL, answer, sizeof answer - 1), -1);
    CHECK_EQ(lib.clear_grammar(NULL), -1);
    CHECK_TEXT(lib.take_last_error(), "");
    CHECK_TEXT(lib.take_last_error(), "");

    /* The field of the options: a text sets, NULL keeps, "" clears. */
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    CHECK_EQ(lib.llm_stream_sampling_defaults(handle, &options), ELIZA_OK);
    CHECK(options.gbnf_grammar == NULL);
    options.gbnf_grammar = "root ::= \"(\" [0-9] \")\"";
    CHECK_EQ(lib.llm_stream_configure(handle, &options, &error), ELIZA_OK);
    const char * text = held(handle, ELIZA_FINISH_STOP);
    CHECK(strlen(text) == 3 && text[0] == '(' && text[2] == ')');
    options.gbnf_grammar = NULL;
    CHECK_EQ(lib.llm_stream_configure(handle, &options, &error), ELIZA_OK);
    CHECK_EQ(strlen(held(handle, ELIZA_FINISH_STOP)), 3);
    options.gbnf_grammar = "root ::= other";
    CHECK_EQ(lib.llm_stream_configure(handle, &options, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "other");
    CHECK_TEXT(lib.llm_stream_take_error(handle), "other");
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 1, 0.0f, 1.0f, NULL), -1);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "other");
    options.gbnf_grammar = "";
    CHECK_EQ(lib.llm_stream_configure(handle, &options, &error), ELIZA_OK);
    CHECK(strlen(held(handle, ELIZA_FINISH_NONE)) > 3);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

const struct test_case constraint_cases[] = {
    {"tries", tries},
    {"scores", scores},
    {"payload_from_names", payload_from_names},
    {"refused_payloads", refused_payloads},
    {"grammars", grammars},
    {"m2_trie_cache_is_bounded_by_bytes", m2_trie_cache_is_bounded_by_bytes},
    {NULL, NULL},
};
