/* The token trie as a sampler, in a process without libllama: the shell from the C allocator, the library's own calls on it,
 * and a host that hands over its llama_sampler_init. */

#include "host.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Leaves 10 11, 10 11 12, 10 20, 30; and 40 of the second descriptor. */
static const char JSON[] =
    "{\"modelId\":\"\",\"descriptors\":[{\"path\":\"first\",\"leaves\":["
    "{\"name\":\"a\",\"tokens\":[10,11]},{\"name\":\"b\",\"tokens\":[10,11,12]},"
    "{\"name\":\"c\",\"tokens\":[10,20]},{\"name\":\"d\",\"tokens\":[30]}]},"
    "{\"path\":\"second\",\"leaves\":[{\"name\":\"e\",\"tokens\":[40]}]}]}";

enum { N_VOCAB = 64 };
static llama_token_data row[N_VOCAB];

/* A row in id order, the logit of each token falling with its id; 30 is the likeliest of all. */
static llama_token_data_array candidates(void) {
    llama_token_data_array list;
    for (int i = 0; i < N_VOCAB; i++) {
        row[i].id = i;
        row[i].logit = i == 30 ? 9.0f : -0.1f * (float)i;
        row[i].p = 0.0f;
    }
    list.data = row;
    list.size = N_VOCAB;
    list.selected = -1;
    list.sorted = false;
    return list;
}

static void takes(struct llama_sampler * smpl, int32_t token) {
    CHECK_EQ(lib.sampler_accept(smpl, token), ELIZA_OK);
}

/* Of a whole row so many are left above minus infinity, with the logits that they had, the first and the last of them these;
 * all stand in their places. */
static void left(const llama_token_data_array * list, size_t n, int32_t first, int32_t last) {
    size_t found = 0;
    CHECK(list->data == row && list->size == N_VOCAB);
    for (int i = 0; i < N_VOCAB; i++) {
        CHECK_EQ(row[i].id, i);
        if (row[i].logit == -INFINITY) continue;
        CHECK(row[i].logit == (i == 30 ? 9.0f : -0.1f * (float)i));
        if (found++ == 0) CHECK_EQ(i, first);
        if (found == n) CHECK_EQ(i, last);
    }
    CHECK_EQ(found, n);
}

/* Applied to a whole row, the sampler leaves these tokens; `n` = N_VOCAB: all. */
static void leaves(struct llama_sampler * smpl, size_t n, int32_t first, int32_t last) {
    llama_token_data_array list = candidates();
    list.sorted = true;
    CHECK_EQ(lib.sampler_apply(smpl, &list), ELIZA_OK);
    CHECK_EQ(list.selected, -1);
    CHECK_EQ(list.sorted, n == N_VOCAB);
    left(&list, n, first, last);
}

static void sampler_layouts(void) {
    CHECK_EQ(sizeof(llama_token_data), 12);
    CHECK_EQ(offsetof(llama_token_data, logit), 4);
    CHECK_EQ(offsetof(llama_token_data, p), 8);
    CHECK_EQ(sizeof(llama_token_data_array), sizeof(void *) == 8 ? 32 : 24);
    CHECK_EQ(offsetof(llama_token_data_array, size), sizeof(void *));
    CHECK_EQ(offsetof(llama_token_data_array, selected), 2 * sizeof(void *));
    CHECK_EQ(offsetof(llama_token_data_array, sorted), 2 * sizeof(void *) + 8);
}

static void sampler_alone(void) {
    struct llama_sampler * smpl = lib.init_token_trie(NULL, JSON, ELIZA_TRIE_SAMPLED), * clone;
    CHECK(smpl != NULL);
    CHECK(strcmp(lib.sampler_name(smpl), "token-trie") == 0);
    /* A prompt that spells leaves changes nothing. */
    takes(smpl, 30);
    takes(smpl, 10);
    takes(smpl, 11);
    leaves(smpl, 2, 10, 30);
    leaves(smpl, 2, 10, 30);
    takes(smpl, 10);
    leaves(smpl, 2, 11, 20);
    takes(smpl, 11);
    leaves(smpl, N_VOCAB, 0, N_VOCAB - 1); /* a leaf that goes on: anything may come */
    clone = lib.sampler_clone(smpl);
    CHECK(clone != NULL);
    takes(smpl, 5);
    takes(clone, 12);
    leaves(smpl, N_VOCAB, 0, N_VOCAB - 1);
    leaves(clone, N_VOCAB, 0, N_VOCAB - 1);
    CHECK_EQ(lib.sampler_reset(smpl), ELIZA_OK);
    leaves(smpl, 2, 10, 30);
    leaves(clone, N_VOCAB, 0, N_VOCAB - 1);
    CHECK_EQ(lib.sampler_arm(clone, "second"), ELIZA_OK);
    leaves(clone, 1, 40, 40);
    CHECK_EQ(lib.sampler_arm(clone, NULL), ELIZA_OK);
    leaves(clone, 2, 10, 30);
    CHECK_EQ(lib.sampler_arm(clone, "third"), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.take_last_error(), "\"second\"");
    CHECK_EQ(lib.sampler_free(smpl), ELIZA_OK);
    takes(clone, 10);
    leaves(clone, 2, 11, 20);
    CHECK_EQ(lib.sampler_free(clone), ELIZA_OK);
    CHECK_EQ(lib.sampler_free(NULL), ELIZA_OK);
    /* Greedy leaves the likeliest, which changes places with the first; the others stand as before. */
    smpl = lib.init_token_trie(NULL, JSON, ELIZA_TRIE_GREEDY);
    CHECK(smpl != NULL);
    llama_token_data_array list = candidates();
    list.sorted = true;
    CHECK_EQ(lib.sampler_apply(smpl, &list), ELIZA_OK);
    CHECK(list.size == 1 && list.data == row && list.sorted && list.selected == -1);
    CHECK(row[0].id == 30 && row[0].logit == 9.0f);
    CHECK(row[30].id == 0 && row[30].logit == -INFINITY);
    CHECK(row[10].id == 10 && row[10].logit == -1.0f);
    CHECK(row[63].id == 63 && row[63].logit == -INFINITY);
    CHECK_EQ(lib.sampler_free(smpl), ELIZA_OK);
    check_no_errors(NULL);
}

/* Lists that earlier samplers left nothing legal of, and lists that are none. */
static void sampler_odd_lists(void) {
    struct llama_sampler * smpl = lib.init_token_trie(NULL, JSON, ELIZA_TRIE_SAMPLED);
    llama_token_data_array list = candidates();
    llama_token_data * misaligned;
    char bytes[64];
    list.data += 40;
    list.size = 20;
    list.sorted = true;
    CHECK_EQ(lib.sampler_apply(smpl, &list), ELIZA_OK);
    CHECK_EQ(list.size, 1);
    CHECK_EQ(list.data[0].id, 10);
    CHECK(list.sorted && list.data == row + 40);
    list.data = NULL;
    list.size = 0;
    CHECK_EQ(lib.sampler_apply(smpl, &list), ELIZA_OK);
    CHECK_EQ(list.size, 1);
    CHECK_EQ(list.data[0].id, 10);
    list = candidates();
    row[10].logit = row[30].logit = -INFINITY;
    CHECK_EQ(lib.sampler_apply(smpl, &list), ELIZA_OK);
    CHECK_EQ(list.size, 1);
    CHECK(list.data[0].id == 10 && list.data[0].logit == 0.0f);
    /* What was selected stays selected, or gives way to the likeliest legal candidate. */
    list = candidates();
    list.selected = 10;
    CHECK_EQ(lib.sampler_apply(smpl, &list), ELIZA_OK);
    CHECK_EQ(list.data[list.selected].id, 10);
    list = candidates();
    list.selected = 7;
    CHECK_EQ(lib.sampler_apply(smpl, &list), ELIZA_OK);
    CHECK_EQ(list.data[list.selected].id, 30);
    check_no_errors(NULL);

    list = candidates();
    list.data = NULL;
    CHECK_EQ(lib.sampler_apply(smpl, &list), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.take_last_error(), "cur_p->data is NULL");
    CHECK(list.size == N_VOCAB && list.selected == -1);
    list.data = row;
    list.size = (size_t)-1 / 4;
    CHECK_EQ(lib.sampler_apply(smpl, &list), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.take_last_error(), "impossible length");
    misaligned = (llama_token_data *)(void *)(bytes + 1 + (size_t)bytes % 2);
    list.data = misaligned;
    list.size = 2;
    CHECK_EQ(lib.sampler_apply(smpl, &list), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.take_last_error(), "aligned");
    CHECK_EQ(lib.sampler_apply(smpl, NULL), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.take_last_error(), "cur_p is NULL");
    CHECK_EQ(lib.sampler_free(smpl), ELIZA_OK);
}

static void sampler_refusals(void) {
    static const struct { const char * json; const char * reason; int mode; } cases[] = {
        {NULL, "trie_descriptor_json is NULL", 0},
        {"", "", 0},
        {"{", "", 0},
        {"\xff", "UTF-8", 0},
        {"{\"descriptors\":[]}", "no leaf", 0},
        {"{\"descriptors\":[{\"path\":\"a\",\"leaves\":[{\"name\":\"x\",\"tokens\":[-1]}]}]}", "-1", 0},
        {JSON, "mode 2", ELIZA_TRIE_SCORE_LEAVES},
        {JSON, "mode is 7", 7},
    };
    void * words[2] = {NULL, NULL}, * table[32] = {NULL};
    struct llama_sampler * foreign = (struct llama_sampler *)(void *)words;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK(lib.init_token_trie(NULL, cases[i].json, cases[i].mode) == NULL);
        CHECK_TEXT(lib.take_last_error(), cases[i].reason);
    }
    for (int round = 0; round < 2; round++) {
        const char * reason = round == 0 ? "The sampler is NULL" : "not one of this library";
        struct llama_sampler * wrong = round == 0 ? NULL : foreign;
        llama_token_data_array list = candidates();
        words[0] = table;
        CHECK(lib.sampler_name(wrong) == NULL);
        CHECK_TEXT(lib.take_last_error(), reason);
        CHECK(lib.sampler_clone(wrong) == NULL);
        CHECK_TEXT(lib.take_last_error(), reason);
        CHECK_EQ(lib.sampler_accept(wrong, 1), ELIZA_ERR_INVALID_ARG);
        CHECK_TEXT(lib.take_last_error(), reason);
        CHECK_EQ(lib.sampler_apply(wrong, &list), ELIZA_ERR_INVALID_ARG);
        CHECK_TEXT(lib.take_last_error(), reason);
        CHECK_EQ(list.size, N_VOCAB);
        CHECK_EQ(lib.sampler_reset(wrong), ELIZA_ERR_INVALID_ARG);
        CHECK_TEXT(lib.take_last_error(), reason);
        CHECK_EQ(lib.sampler_arm(wrong, NULL), ELIZA_ERR_INVALID_ARG);
        CHECK_TEXT(lib.take_last_error(), reason);
    }
    CHECK_EQ(lib.sampler_free(foreign), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.take_last_error(), "not one of this library");
    check_no_errors(NULL);
}

/* A stand-in for llama.cpp, with its structures declared anew. */
struct shell {
    struct table * iface;
    void * ctx;
};
struct table {
    const char * (*name)(const struct shell *);
    void (*accept)(struct shell *, int32_t);
    void (*apply)(struct shell *, llama_token_data_array *);
    void (*reset)(struct shell *);
    struct shell * (*clone)(const struct shell *);
    void (*free)(struct shell *);
    void * backend[5];
    void (*copy_state)(const struct shell *, struct shell *);
    void * reserved[20];
};
static int made;

static struct llama_sampler * host_init(struct llama_sampler_i * iface, void * ctx) {
    struct shell * shell = (struct shell *)malloc(sizeof *shell);
    if (shell == NULL) fail(__FILE__, __LINE__, "no memory");
    shell->iface = (struct table *)(void *)iface;
    shell->ctx = ctx;
    made++;
    return (struct llama_sampler *)(void *)shell;
}

static struct llama_sampler * host_init_fails(struct llama_sampler_i * iface, void * ctx) {
    (void)iface;
    (void)ctx;
    return NULL;
}

static void host_free(struct shell * shell) {
    shell->iface->free(shell);
    free(shell);
}

static void sampler_of_a_host(void) {
    struct llama_sampler * smpl;
    struct shell * shell, * clone;
    llama_token_data_array list = candidates();
    CHECK_EQ(lib.set_host_sampler_init(host_init_fails), ELIZA_OK);
    CHECK(lib.init_token_trie(NULL, JSON, 1) == NULL);
    CHECK_TEXT(lib.take_last_error(), "no memory");
    CHECK_EQ(lib.set_host_sampler_init(host_init), ELIZA_OK);
    smpl = lib.init_token_trie(NULL, JSON, 1);
    CHECK(smpl != NULL && made == 1);
    shell = (struct shell *)(void *)smpl;
    for (int i = 0; i < 5; i++) CHECK(shell->iface->backend[i] == NULL);
    for (int i = 0; i < 20; i++) CHECK(shell->iface->reserved[i] == NULL);
    CHECK(strcmp(shell->iface->name(shell), "token-trie") == 0);
    shell->iface->accept(shell, 30);
    shell->iface->apply(shell, &list);
    left(&list, 2, 10, 30);
    shell->iface->accept(shell, 10);
    clone = shell->iface->clone(shell);
    CHECK(clone != NULL && made == 2 && clone->iface == shell->iface && clone->ctx != shell->ctx);
    shell->iface->reset(shell);
    leaves(smpl, 2, 10, 30);
    list = candidates();
    clone->iface->apply(clone, &list);
    left(&list, 2, 11, 20);
    shell->iface->copy_state(clone, shell);
    shell->iface->copy_state(shell, shell);
    leaves(smpl, 2, 11, 20);
    /* The library does not free what it did not make. */
    CHECK_EQ(lib.sampler_free(smpl), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.take_last_error(), "llama_sampler_free");
    host_free(clone);
    leaves(smpl, 2, 11, 20);
    /* A clone comes from where the original does, whatever was set since. */
    CHECK_EQ(lib.set_host_sampler_init(NULL), ELIZA_OK);
    clone = (struct shell *)(void *)lib.sampler_clone(smpl);
    CHECK(clone != NULL && made == 3);
    /* The state may be freed while the shell lives on; what comes then is an error and no crash. */
    clone->iface->free(clone);
    clone->iface->accept(clone, 11);
    CHECK_TEXT(lib.take_last_error(), "not one of this library");
    free(clone);
    host_free(shell);
    check_no_errors(NULL);
}

/* The three tests that the sampler's founding document states, through the table as it does. */
static struct shell * sampler_of(const char * json) {
    CHECK_EQ(lib.set_host_sampler_init(host_init), ELIZA_OK);
    return (struct shell *)(void *)lib.init_token_trie(NULL, json, 0);
}

static void InitializeEmptyDescriptor(void) {
    CHECK(sampler_of("{ \"modelId\": \"test\", \"descriptors\": [] }") == NULL);
    CHECK_TEXT(lib.take_last_error(), "no leaf");
    check_no_errors(NULL);
}

static void MaskInvalidTokens(void) {
    struct shell * sampler = sampler_of(
        "{\"modelId\": \"test\", \"descriptors\": [{\"path\": \"action\", \"leaves\": ["
        "{ \"name\": \"THINK\", \"tokens\": [100, 101] }, { \"name\": \"EXECUTE\", \"tokens\": [200] }]}]}");
    llama_token_data candidates[] = {{100, 5.0f, 0.0f}, {200, 4.0f, 0.0f}, {999, 6.0f, 0.0f}};
    llama_token_data_array logits = {candidates, 3, -1, false};
    CHECK(sampler != NULL);
    sampler->iface->apply(sampler, &logits);
    CHECK(logits.data[0].logit == 5.0f);
    CHECK(logits.data[1].logit == 4.0f);
    CHECK(isinf(logits.data[2].logit) && logits.data[2].logit < 0.0f);
    host_free(sampler);
    check_no_errors(NULL);
}

static void TrieWalking(void) {
    struct shell * sampler = sampler_of(
        "{\"modelId\": \"test\", \"descriptors\": [{\"path\": \"action\", \"leaves\": ["
        "{\"name\": \"THINK\", \"tokens\": [100, 101]}]}]}");
    llama_token_data candidates[] = {{100, 1.0f, 0.0f}};
    llama_token_data_array logits = {candidates, 1, -1, false};
    CHECK(sampler != NULL);
    sampler->iface->apply(sampler, &logits);
    CHECK(logits.data[0].logit == 1.0f);
    sampler->iface->accept(sampler, 100);
    logits.data[0].id = 101;
    sampler->iface->apply(sampler, &logits);
    CHECK(logits.data[0].logit == 1.0f);
    sampler->iface->accept(sampler, 101);
    sampler->iface->apply(sampler, &logits);
    CHECK(logits.data == candidates && logits.size == 1 && logits.data[0].id == 101 && logits.data[0].logit == 1.0f);
    host_free(sampler);
    check_no_errors(NULL);
}

/* A grammar over the vocabulary of a handle, which may be gone by then. */
static void sampler_grammar(void) {
    static const char json[] = "{\"gbnf\": \"root ::= \\\"a\\\" [bc] \\\"d\\\"\"}";
    static const char other[] = "{\"gbnf\": \"root ::= [\"}";
    FfiLlmHandle handle = open_model(128);
    struct llama_sampler * smpl = lib.sampler_init_grammar(handle, NULL, json, sizeof json - 1), * clone;
    CHECK(smpl != NULL);
    CHECK(lib.sampler_init_grammar(handle, NULL, other, sizeof other - 1) == NULL);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "line 1");
    CHECK(lib.sampler_init_grammar(handle, NULL, NULL, 4) == NULL);
    CHECK_TEXT(lib.llm_stream_take_error(handle), "json");
    CHECK(lib.sampler_init_grammar(NULL, NULL, json, sizeof json - 1) == NULL);
    CHECK_TEXT(lib.take_last_error(), "");
    /* Any eog token will do to show that the end is not legal yet. */
    int32_t eog = 0;
    while (lib.llm_stream_is_eog(handle, eog) == 0) eog++;
    lib.llm_stream_close(handle);
    CHECK(strcmp(lib.sampler_name(smpl), "grammar") == 0);
    enum { ROOM = 4096 };
    static llama_token_data all[ROOM];
    llama_token_data_array list;
    int32_t path[4];
    clone = lib.sampler_clone(smpl);
    CHECK(clone != NULL);
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < ROOM; i++) {
            all[i].id = i;
            all[i].logit = -0.001f * (float)i;
            all[i].p = 0.0f;
        }
        list.data = all;
        list.size = eog + 1 > 512 ? (size_t)eog + 1 : 512;
        list.selected = -1;
        list.sorted = true;
        CHECK(list.size <= ROOM);
        CHECK_EQ(lib.sampler_apply(smpl, &list), ELIZA_OK);
        CHECK(!list.sorted);
        size_t legal = 0;
        for (size_t i = 0; i < list.size; i++) {
            if (all[i].logit == -INFINITY) continue;
            if (legal++ == 0) path[step] = all[i].id;
        }
        CHECK(legal > 0 && legal < 64);
        if (all[eog].logit != -INFINITY) {
            CHECK(step > 0 && legal >= 1);
            break;
        }
        takes(smpl, path[step]);
    }
    CHECK_EQ(lib.sampler_accept(clone, eog), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.take_last_error(), "does not fit");
    takes(clone, path[0]);
    CHECK_EQ(lib.sampler_reset(clone), ELIZA_OK);
    takes(clone, path[0]);
    CHECK_EQ(lib.sampler_arm(clone, NULL), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.take_last_error(), "arm");
    list.data = NULL;
    list.size = 0;
    CHECK_EQ(lib.sampler_apply(clone, &list), ELIZA_OK);
    CHECK(list.size == 1 && list.data[0].id >= 0);
    CHECK_EQ(lib.sampler_free(smpl), ELIZA_OK);
    CHECK_EQ(lib.sampler_free(clone), ELIZA_OK);
    check_no_errors(NULL);
}

const struct test_case sampler_cases[] = {
    {"sampler_layouts", sampler_layouts},
    {"sampler_alone", sampler_alone},
    {"sampler_odd_lists", sampler_odd_lists},
    {"sampler_refusals", sampler_refusals},
    {"sampler_of_a_host", sampler_of_a_host},
    {"sampler_grammar", sampler_grammar},
    {"InitializeEmptyDescriptor", InitializeEmptyDescriptor},
    {"MaskInvalidTokens", MaskInvalidTokens},
    {"TrieWalking", TrieWalking},
    {NULL, NULL},
};
