#include "peer.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct peer peer;

static void quiet(int level, const char * text, void * user_data) {
    (void)level;
    (void)text;
    (void)user_data;
}

/* libllama.so or libllama.v0.5.0.so, but not libllama-common.so. */
static void * open_libllama(const char * folder, int scope) {
    char path[4096] = "";
    struct dirent * entry;
    DIR * files = opendir(folder);
    void * object;
    if (files == NULL) skip("the folder of libllama is not there (PEER_LLAMA_DIR)");
    while ((entry = readdir(files)) != NULL) {
        if (strncmp(entry->d_name, "libllama.", 9) == 0) snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    }
    closedir(files);
    if (path[0] == '\0') skip("there is no libllama in PEER_LLAMA_DIR");
    object = dlopen(path, RTLD_NOW | scope);
    if (object == NULL) fail(__FILE__, __LINE__, "%s", dlerror());
    return object;
}

void peer_open(void) {
    const char * folder = getenv("PEER_LLAMA_DIR"), * scope = getenv("PEER_SCOPE");
    struct llama_model_params model;
    struct llama_context_params context;
    void * object;
    if (folder == NULL) skip("no libllama (PEER_LLAMA_DIR)");
    object = open_libllama(folder, scope != NULL && strcmp(scope, "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL);
    if (scope != NULL && (dlsym(RTLD_DEFAULT, "llama_sampler_init") != NULL) != (strcmp(scope, "global") == 0)) {
        fail(__FILE__, __LINE__, "libllama is not opened with the scope %s", scope);
    }
#define RESOLVE(result, name, arguments) \
    { \
        void * symbol = dlsym(object, #name); \
        if (symbol == NULL) skip("this libllama lacks " #name); \
        memcpy(&peer.name, &symbol, sizeof symbol); \
    }
    PEER_API(RESOLVE)
#undef RESOLVE
    peer.llama_log_set(quiet, NULL);
    peer.ggml_backend_load_all_from_path(folder);
    model = peer.llama_model_default_params();
    context = peer.llama_context_default_params();
    if (strncmp(peer.llama_version(), "0.5.", 4) != 0 || model.n_gpu_layers != -1 || !model.use_extra_bufts || context.n_ctx != 512
        || context.n_batch != 2048 || context.flash_attn_type != -1 || context.type_v != 1 || !context.swa_full || context.n_samplers != 0) {
        skip("this libllama is not laid out as version 0.5");
    }
    model.n_gpu_layers = 0;
    peer.model = peer.llama_model_load_from_file(model_path(), model);
    if (peer.model == NULL) fail(__FILE__, __LINE__, "libllama cannot load %s", model_path());
    peer.vocab = peer.llama_model_get_vocab(peer.model);
    peer.n_vocab = peer.llama_vocab_n_tokens(peer.vocab);
}

struct llama_context * peer_context(void) {
    struct llama_context_params params = peer.llama_context_default_params();
    struct llama_context * context;
    params.n_ctx = 256;
    params.n_batch = params.n_ubatch = 64;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = 0;
    params.flash_attn_type = 0;
    context = peer.llama_init_from_model(peer.model, params);
    CHECK(context != NULL);
    return context;
}

void peer_close(void) {
    peer.llama_model_free(peer.model);
    check_no_errors(NULL);
}

void add_name(struct names * names, size_t len, const llama_token * tokens) {
    CHECK(names->n < MAX_NAMES && len > 0 && len <= MAX_DEPTH);
    memcpy(names->tokens[names->n], tokens, len * sizeof *tokens);
    names->len[names->n++] = len;
}

void random_names(struct names * names, uint64_t * seed, int32_t n_vocab) {
    llama_token alphabet[5];
    size_t n = 1 + random_u32(seed) % MAX_NAMES;
    for (size_t i = 0; i < 5; i++) alphabet[i] = 3 + (llama_token)(random_u32(seed) % (uint32_t)(n_vocab - 3));
    names->n = 0;
    while (names->n < n) {
        llama_token tokens[MAX_DEPTH];
        size_t len = 1 + random_u32(seed) % MAX_DEPTH;
        for (size_t i = 0; i < len; i++) tokens[i] = alphabet[random_u32(seed) % 5];
        add_name(names, len, tokens);
    }
}

const char * names_json(const struct names * names) {
    static char json[8192];
    size_t len = (size_t)sprintf(json, "{\"descriptors\":[{\"path\":\"p\",\"leaves\":[");
    for (size_t i = 0; i < names->n; i++) {
        len += (size_t)sprintf(json + len, "%s{\"name\":\"%zu\",\"tokens\":[", i == 0 ? "" : ",", i);
        for (size_t t = 0; t < names->len[i]; t++) {
            len += (size_t)sprintf(json + len, "%s%d", t == 0 ? "" : ",", (int)names->tokens[i][t]);
        }
        len += (size_t)sprintf(json + len, "]}");
    }
    sprintf(json + len, "]}]}");
    return json;
}

/* How names begin with what was taken, and go on with `token`; -1: go on at all; -2: end there. */
static bool some_name(const struct walk * walk, llama_token token) {
    for (size_t i = 0; i < walk->names->n; i++) {
        const llama_token * tokens = walk->names->tokens[i];
        size_t len = walk->names->len[i];
        if (len < walk->depth || memcmp(tokens, walk->taken, walk->depth * sizeof *tokens) != 0) continue;
        if (token == -2 ? len == walk->depth : len > walk->depth && (token == -1 || tokens[walk->depth] == token)) return true;
    }
    return false;
}

bool walk_is_free(const struct walk * walk) {
    return walk->released || some_name(walk, -2);
}

bool walk_allows(const struct walk * walk, llama_token token) {
    return walk_is_free(walk) || some_name(walk, token);
}

void walk_take(struct walk * walk, llama_token token) {
    CHECK(walk_allows(walk, token));
    if (walk->released) return;
    if (some_name(walk, token)) {
        walk->taken[walk->depth++] = token;
        walk->released = !some_name(walk, -1);
    } else {
        walk->released = true;
    }
}

uint32_t random_u32(uint64_t * seed) {
    uint64_t x = *seed += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ (x >> 31)) >> 32);
}

float random_logit(uint64_t * seed) {
    return (float)random_u32(seed) / 4294967296.0f * 20.0f - 10.0f;
}
