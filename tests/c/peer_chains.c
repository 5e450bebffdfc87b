/* The token trie in chains of the real libllama. */

#include "peer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* 10 11, 10 11 12, 10 20, 30, 40 41 42 43. */
static void few_names(struct names * names) {
    static const llama_token tokens[][4] = {{10, 11}, {10, 11, 12}, {10, 20}, {30}, {40, 41, 42, 43}};
    static const size_t len[] = {2, 3, 2, 1, 4};
    names->n = 0;
    for (size_t i = 0; i < 5; i++) add_name(names, len[i], tokens[i]);
}

static struct llama_sampler * trie(const char * json, int mode) {
    struct llama_sampler * smpl = lib.init_token_trie(peer.vocab, json, mode);
    if (smpl == NULL) fail(__FILE__, __LINE__, "%s", lib.take_last_error());
    return smpl;
}

/* A chain from a text: a letter for each sampler. */
static struct llama_sampler * chain_of(const char * text, const char * json, int mode) {
    static const struct llama_logit_bias biases[] = {{10, 1.5f}, {30, -3.0f}, {7, 6.0f}, {200, 4.0f}};
    static const struct llama_logit_bias bans[] = {{10, -INFINITY}, {30, -INFINITY}, {40, -INFINITY}};
    struct llama_sampler * chain = peer.llama_sampler_chain_init(peer.llama_sampler_chain_default_params());
    for (; *text != '\0'; text++) {
        struct llama_sampler * smpl = NULL;
        switch (*text) {
            case 't': smpl = trie(json, mode); break;
            case 'b': smpl = peer.llama_sampler_init_logit_bias(peer.n_vocab, 4, biases); break;
            case 'n': smpl = peer.llama_sampler_init_logit_bias(peer.n_vocab, 3, bans); break;
            case 'p': smpl = peer.llama_sampler_init_penalties(peer.n_vocab, 64, 1.3f, 0.2f, 0.3f); break;
            case 'k': smpl = peer.llama_sampler_init_top_k(40); break;
            case '1': smpl = peer.llama_sampler_init_top_k(1); break;
            case 'P': smpl = peer.llama_sampler_init_top_p(0.9f, 1); break;
            case 'e': smpl = peer.llama_sampler_init_temp(0.7f); break;
            case 'z': smpl = peer.llama_sampler_init_temp(0.0f); break;
            case 'd': smpl = peer.llama_sampler_init_dist(42); break;
            case 'g': smpl = peer.llama_sampler_init_greedy(); break;
            default: fail(__FILE__, __LINE__, "no sampler %c", *text);
        }
        CHECK(smpl != NULL);
        peer.llama_sampler_chain_add(chain, smpl);
    }
    return chain;
}

struct row {
    llama_token_data data[1024];
    llama_token_data_array list;
};

static void whole(struct row * row) {
    row->list.data = row->data;
    row->list.size = (size_t)peer.n_vocab;
    row->list.selected = -1;
    row->list.sorted = false;
}

static void random_row(struct row * row, uint64_t * seed) {
    CHECK(peer.n_vocab <= 1024);
    for (int32_t i = 0; i < peer.n_vocab; i++) {
        row->data[i].id = i;
        row->data[i].logit = random_logit(seed);
        row->data[i].p = 0.0f;
    }
    whole(row);
}

/* Candidates of the list that are not at minus infinity. */
static size_t unmasked(const struct row * row) {
    size_t n = 0;
    for (size_t i = 0; i < row->list.size; i++) n += row->list.data[i].logit != -INFINITY;
    return n;
}

/* What the chain takes from the row, which must be allowed. */
static llama_token take(struct llama_sampler * chain, struct row * row, struct walk * walk) {
    llama_token token;
    peer.llama_sampler_apply(chain, &row->list);
    CHECK(row->list.selected >= 0 && (size_t)row->list.selected < row->list.size);
    token = row->list.data[row->list.selected].id;
    CHECK(walk_allows(walk, token));
    peer.llama_sampler_accept(chain, token);
    walk_take(walk, token);
    return token;
}

static void spans(const char * text, int mode, const struct names * names, size_t n, uint64_t * seed) {
    struct llama_sampler * chain = chain_of(text, names_json(names), mode);
    static struct row row;
    for (size_t span = 0; span < n; span++) {
        struct walk walk = {names, {0}, 0, false};
        peer.llama_sampler_reset(chain);
        for (int step = 0; step < 2 * MAX_DEPTH; step++) {
            random_row(&row, seed);
            take(chain, &row, &walk);
        }
        /* Released it leaves everything, unless others truncate. */
        CHECK(walk.released);
        random_row(&row, seed);
        peer.llama_sampler_apply(chain, &row.list);
        if (strpbrk(text, "k1Pnz") == NULL) CHECK_EQ(unmasked(&row), peer.n_vocab);
    }
    peer.llama_sampler_free(chain);
}

static void peer_legal(void) {
    static const char * const chains[] = {
        "bptg", "ktd", "tg", "td", "tpePd", "ttd", "ttg", "1tg", "1td", "Ptd", "gt", "dt", "ntd", "ntg", "ztd", "zeptPd", "kttd",
    };
    uint64_t seed = 1;
    struct names names;
    peer_open();
    for (size_t i = 0; i < sizeof chains / sizeof chains[0]; i++) {
        for (int mode = 0; mode < 2; mode++) {
            few_names(&names);
            spans(chains[i], mode, &names, 8, &seed);
            for (int round = 0; round < 8; round++) {
                random_names(&names, &seed, peer.n_vocab);
                spans(chains[i], mode, &names, 2, &seed);
            }
        }
    }
    peer_close();
}

/* After biases and penalties the greedy mode takes the token that the host's own samplers and a loop over the legal tokens
 * find; the other mode leaves the legal tokens in their places, with what those samplers made of them. Illegal ones are at
 * minus infinity in both. */
static void peer_choices(void) {
    uint64_t seed = 2;
    struct names names;
    static struct row row, adjusted;
    peer_open();
    for (int round = 0; round < 60; round++) {
        random_names(&names, &seed, peer.n_vocab);
        struct llama_sampler * ours = chain_of("bptg", names_json(&names), round % 2);
        struct llama_sampler * hosts = chain_of("bp", NULL, 0);
        struct walk walk = {&names, {0}, 0, false};
        for (int step = 0; step < 8; step++) {
            llama_token best = -1, token;
            random_row(&row, &seed);
            memcpy(&adjusted, &row, sizeof row);
            whole(&adjusted);
            peer.llama_sampler_apply(hosts, &adjusted.list);
            for (llama_token id = 0; id < peer.n_vocab; id++) {
                CHECK_EQ(adjusted.list.data[id].id, id);
                if (!walk_allows(&walk, id)) continue;
                if (best < 0 || adjusted.list.data[id].logit > adjusted.list.data[best].logit) best = id;
            }
            bool was_free = walk_is_free(&walk);
            struct walk before = walk;
            token = take(ours, &row, &walk);
            CHECK_EQ(token, best);
            bool greedy = !was_free && round % 2 == 0;
            CHECK_EQ(row.list.size, greedy ? 1 : peer.n_vocab);
            for (llama_token i = 0; i < peer.n_vocab; i++) {
                llama_token id = row.data[i].id;
                CHECK_EQ(id, !greedy ? i : i == 0 ? best : i == best ? 0 : i);
                CHECK(row.data[i].logit == (walk_allows(&before, id) ? adjusted.list.data[id].logit : -INFINITY));
            }
            peer.llama_sampler_accept(hosts, token);
        }
        peer.llama_sampler_free(ours);
        peer.llama_sampler_free(hosts);
    }
    peer_close();
}

/* A host passes its prompt through the chain, and the prompt spells whole leaves. */
static void peer_replay(void) {
    static const llama_token prompt[] = {30, 10, 11, 12, 5, 7, 10, 11, 40, 41, 42, 43, 10, 20, 9};
    uint64_t seed = 3;
    struct names names;
    static struct row row;
    peer_open();
    few_names(&names);
    struct llama_sampler * chain = chain_of("ptg", names_json(&names), 1);
    for (int round = 0; round < 10; round++) {
        struct walk walk = {&names, {0}, 0, false};
        for (size_t i = 0; i < sizeof prompt / sizeof prompt[0]; i++) peer.llama_sampler_accept(chain, prompt[i]);
        while (!walk.released) {
            random_row(&row, &seed);
            take(chain, &row, &walk);
        }
        peer.llama_sampler_reset(chain);
    }
    /* Inside a span a host accepts what was forced at once. */
    random_row(&row, &seed);
    for (int32_t i = 0; i < 100; i++) row.data[i].logit = i == 40 ? 50.0f : -50.0f;
    peer.llama_sampler_apply(chain, &row.list);
    for (llama_token token = 40; token < 44; token++) peer.llama_sampler_accept(chain, token);
    random_row(&row, &seed);
    peer.llama_sampler_apply(chain, &row.list);
    CHECK_EQ(unmasked(&row), peer.n_vocab);
    peer.llama_sampler_free(chain);
    peer_close();
}

/* Who owns what: clone, copy, remove, free, alone and in chains. */
static void peer_ownership(void) {
    uint64_t seed = 4;
    struct names names;
    static struct row row;
    peer_open();
    few_names(&names);
    const char * json = names_json(&names);
    struct llama_sampler * single = trie(json, 1);
    CHECK(strcmp(peer.llama_sampler_name(single), "token-trie") == 0);
    peer.llama_sampler_free(single);

    struct llama_sampler * chain = chain_of("btg", json, 1);
    struct walk walk = {&names, {0}, 0, false}, behind;
    random_row(&row, &seed);
    for (int32_t i = 0; i < 100; i++) row.data[i].logit = i == 40 ? 50.0f : -50.0f;
    CHECK_EQ(take(chain, &row, &walk), 40);
    behind = walk;
    struct llama_sampler * clone = peer.llama_sampler_clone(chain);
    CHECK(clone != NULL && peer.llama_sampler_chain_n(clone) == 3);
    random_row(&row, &seed);
    CHECK_EQ(take(chain, &row, &walk), 41);
    random_row(&row, &seed);
    CHECK_EQ(take(chain, &row, &walk), 42);
    random_row(&row, &seed);
    CHECK_EQ(take(clone, &row, &behind), 41); /* the clone stayed where it was */
    /* A copy of the chain, in place: same shells, the other's state. */
    struct llama_sampler * shell = peer.llama_sampler_chain_get(clone, 1);
    peer.llama_sampler_copy(chain, clone);
    random_row(&row, &seed);
    CHECK_EQ(take(clone, &row, &walk), 43);
    shell = peer.llama_sampler_chain_get(clone, 1);
    CHECK_EQ(lib.sampler_arm(shell, NULL), ELIZA_OK); /* reached inside its chain */
    walk.depth = 0;
    walk.released = false;
    random_row(&row, &seed);
    take(clone, &row, &walk);
    peer.llama_sampler_free(clone);
    walk = behind;
    walk.taken[walk.depth++] = 42;
    random_row(&row, &seed);
    CHECK_EQ(take(chain, &row, &walk), 43); /* and the original stayed where it was */
    CHECK(walk.released);

    /* Taken out of the chain it is the host's again. */
    single = peer.llama_sampler_chain_remove(chain, 1);
    CHECK(single != NULL && peer.llama_sampler_chain_n(chain) == 2);
    CHECK_EQ(lib.sampler_free(single), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.take_last_error(), "llama_sampler_free");
    CHECK_EQ(lib.sampler_reset(peer.llama_sampler_chain_get(chain, 1)), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(lib.take_last_error(), "not one of this library");
    struct llama_sampler * other = trie(json, 1), * third = lib.sampler_clone(single);
    peer.llama_sampler_copy(single, other); /* released, as the one it is a copy of */
    peer.llama_sampler_free(single);
    random_row(&row, &seed);
    peer.llama_sampler_apply(other, &row.list);
    CHECK_EQ(unmasked(&row), peer.n_vocab);
    peer.llama_sampler_reset(third);
    random_row(&row, &seed);
    peer.llama_sampler_apply(third, &row.list);
    CHECK_EQ(unmasked(&row), 3);
    peer.llama_sampler_chain_add(chain, other);
    peer.llama_sampler_free(third);
    peer.llama_sampler_free(chain);
    peer_close();
}

/* The chain handed to llama_set_sampler: the samplers before the trie run in the graph, the trie on the host. */
static void peer_backend(void) {
    static const char * const chains[] = {"ktd", "ktg", "td", "bptg"};
    struct names names;
    peer_open();
    few_names(&names);
    for (size_t i = 0; i < sizeof chains / sizeof chains[0]; i++) {
        struct llama_context * context = peer_context();
        struct llama_sampler * chain = chain_of(chains[i], names_json(&names), 1);
        struct walk walk = {&names, {0}, 0, false};
        llama_token prompt[] = {1, 403, 407, 261, 378};
        peer.llama_set_sampler(context, 0, chain);
        CHECK_EQ(peer.llama_decode(context, peer.llama_batch_get_one(prompt, 5)), 0);
        for (int step = 0; step < 10; step++) {
            llama_token token = peer.llama_sampler_sample(chain, context, -1); /* applies and accepts */
            walk_take(&walk, token);
            CHECK_EQ(peer.llama_decode(context, peer.llama_batch_get_one(&token, 1)), 0);
        }
        CHECK(walk.released);
        peer.llama_set_sampler(context, 0, NULL);
        peer.llama_free(context);
        peer.llama_sampler_free(chain);
    }
    peer_close();
}

static void peer_payloads(void) {
    static const struct { const char * json; const char * reason; int mode; } cases[] = {
        {NULL, "trie_descriptor_json is NULL", 0},
        {"", "", 0},
        {"[]", "", 1},
        {"{\"descriptors\":[{\"path\":\"a\",\"leaves\":[]}]}", "no leaf", 0},
        {"{\"descriptors\":[{\"path\":\"a\",\"leaves\":[{\"name\":\"x\",\"tokens\":[-1]}]}]}", "-1", 0},
        {"{\"descriptors\":[{\"path\":\"a\",\"leaves\":[{\"name\":\"x\",\"tokens\":[1,512]}]}]}",
         "descriptors[0].leaves[0].tokens[1]: token 512 is outside the vocabulary of 512 tokens", 0},
        {"{\"descriptors\":[{\"path\":\"a\",\"leaves\":[{\"name\":\"x\",\"tokens\":[1]}]}]}", "mode 2", 2},
        {"{\"descriptors\":[{\"path\":\"a\",\"leaves\":[{\"name\":\"x\",\"tokens\":[1]}]}]}", "mode is -1", -1},
    };
    struct llama_sampler * smpl;
    peer_open();
    if (peer.n_vocab != 512) skip("the cases are for a vocabulary of 512 tokens");
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            CHECK(lib.init_token_trie(peer.vocab, cases[i].json, cases[i].mode) == NULL);
            CHECK_TEXT(lib.take_last_error(), cases[i].reason);
        }
        check_no_errors(NULL);
        /* Without a vocabulary nothing says that 512 is wrong. */
        smpl = lib.init_token_trie(NULL, cases[5].json, 0);
        CHECK(smpl != NULL);
        peer.llama_sampler_free(smpl);
        /* Named by the host, it is still the libllama that can be asked for the size of a vocabulary. */
        CHECK_EQ(lib.set_host_sampler_init(peer.llama_sampler_init), ELIZA_OK);
    }
    CHECK_EQ(lib.set_host_sampler_init(NULL), ELIZA_OK);
    peer_close();
}

static int made;
static struct llama_sampler * counted_init(struct llama_sampler_i * iface, void * ctx) {
    made++;
    return peer.llama_sampler_init(iface, ctx);
}

/* The function that the host gives goes before what is found in the process. */
static void peer_explicit(void) {
    uint64_t seed = 5;
    struct names names;
    peer_open();
    few_names(&names);
    CHECK_EQ(lib.set_host_sampler_init(counted_init), ELIZA_OK);
    struct llama_sampler * chain = chain_of("tg", names_json(&names), 1);
    CHECK_EQ(made, 1);
    struct llama_sampler * clone = peer.llama_sampler_clone(chain);
    CHECK_EQ(made, 2);
    CHECK_EQ(lib.set_host_sampler_init(NULL), ELIZA_OK);
    struct llama_sampler * other = chain_of("tg", names_json(&names), 1);
    CHECK_EQ(made, 2);
    peer.llama_sampler_free(chain);
    peer.llama_sampler_free(clone);
    peer.llama_sampler_free(other);
    spans("td", 1, &names, 3, &seed);
    peer_close();
}

/* The same tokens as our own engine, generation by generation: greedy over random tries, both with an f32 cache. */
static void peer_generations(void) {
    enum { GENERATIONS = 200, LENGTH = 12 };
    static const char * const prompts[] = {"Once upon a time", "The dog ran to", "Lily and Ben saw a big", "One day,"};
    static struct result result;
    uint64_t seed = 6;
    struct names names;
    eliza_llm_open_options_t options;
    char * error = NULL;
    peer_open();
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model_path = model_path();
    options.context_size_tokens = 256;
    options.num_threads = 1;
    options.kv_type = "f32";
    FfiLlmHandle handle = lib.llm_stream_open_ex(&options, &error);
    if (handle == NULL) fail(__FILE__, __LINE__, "open: %s", error);
    struct llama_context * context = peer_context();
    size_t compared = 0;
    for (int round = 0; round < GENERATIONS; round++) {
        size_t n_prompt, at = 0;
        int * prompt = tokens_of(handle, prompts[round % 4], &n_prompt);
        random_names(&names, &seed, peer.n_vocab);
        const char * json = names_json(&names);

        CHECK_EQ(lib.set_token_trie(handle, json, strlen(json), ELIZA_TRIE_GREEDY), 0);
        CHECK_EQ(lib.llm_stream_prefill(handle, prompt, n_prompt, -1), n_prompt);
        CHECK_EQ(lib.llm_stream_generate(handle, LENGTH, 0.0f, 1.0f, NULL), 0);
        pull_all(handle, 32, 512, &result);

        struct llama_sampler * chain = chain_of("tg", json, ELIZA_TRIE_GREEDY);
        struct walk walk = {&names, {0}, 0, false};
        peer.llama_memory_clear(peer.llama_get_memory(context), true);
        CHECK_EQ(peer.llama_decode(context, peer.llama_batch_get_one(prompt, (int32_t)n_prompt)), 0);
        for (; at < LENGTH; at++) {
            llama_token token = peer.llama_sampler_sample(chain, context, -1);
            walk_take(&walk, token);
            if (peer.llama_vocab_is_eog(peer.vocab, token)) break;
            if (at >= result.n_tokens) fail(__FILE__, __LINE__, "round %d: libllama goes on with %d", round, (int)token);
            if (token != result.tokens[at]) {
                fail(__FILE__, __LINE__, "round %d, step %zu: libllama takes %d, we %d", round, at, (int)token, (int)result.tokens[at]);
            }
            CHECK_EQ(peer.llama_decode(context, peer.llama_batch_get_one(&token, 1)), 0);
            compared++;
        }
        CHECK_EQ(result.n_tokens, at);
        peer.llama_sampler_free(chain);
        lib.free_tokens(prompt);
    }
    CHECK(compared > 5 * GENERATIONS);
    peer.llama_free(context);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
    peer_close();
}

const struct test_case peer_cases[] = {
    {"peer_legal", peer_legal},
    {"peer_choices", peer_choices},
    {"peer_replay", peer_replay},
    {"peer_ownership", peer_ownership},
    {"peer_backend", peer_backend},
    {"peer_payloads", peer_payloads},
    {"peer_explicit", peer_explicit},
    {"peer_generations", peer_generations},
    {NULL, NULL},
};
