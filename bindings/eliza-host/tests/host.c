/* A host of ABI 15 in C: declared.h is generated from the library's sources, so a signature that differs from the
 * published one does not compile. Its arguments: the library, the library of the path-opened interface, a bundle, a model.
 * Both libraries are open in one process, each with its own functions under the same names. */
#include "published.h"

#include "declared.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field, offset) \
    _Static_assert(offsetof(eliza_llm_stream_config_t, field) == (offset), "the place of " #field)
AT(max_tokens, 0);
AT(prompt_cache_key, 24);
AT(mtp_drafter_path, 40);
AT(gbnf_grammar, 48);
AT(n_gpu_layers, 60);
AT(cache_type_k, 64);
AT(context_size, 80);
_Static_assert(sizeof(eliza_llm_stream_config_t) == 88, "the size of the configuration");

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static void *open_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return library;
}

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "there is no %s\n", name);
        exit(1);
    }
    return found;
}

/* A pointer to a function of a library, with the type that is published. POSIX has them as data. */
#define OF(library, name) \
    __typeof__(&name) name##_; \
    do { \
        void *found = find(library, #name); \
        memcpy(&name##_, &found, sizeof found); \
    } while (0)

typedef void *(*open_path)(const char *, int32_t, int32_t, int32_t);
typedef int32_t (*prefill_path)(void *, const int32_t *, size_t, int32_t);
typedef int32_t (*generate_path)(void *, int32_t, float, float, void *);
typedef void (*close_path)(void *);

static const int32_t PROMPT[] = {1, 40, 41, 42, 43};
enum { PROMPT_LEN = sizeof PROMPT / sizeof *PROMPT, ANSWER = 24 };

/* Takes an answer to its end: both libraries have `next` with the same parameters. */
static size_t drain(__typeof__(&eliza_inference_llm_stream_next) next, void *stream, int32_t *answer) {
    size_t n = 0;
    int rc = 0;
    while (rc == 0) {
        size_t step = 0;
        char text[1024];
        rc = next(stream, answer + n, ANSWER + 1 - n, &step, text, sizeof text, NULL, NULL, NULL);
        n += step;
    }
    CHECK(rc == 1);
    return n;
}

/* The greedy answer by the context-opened library. */
static size_t by_context(void *library, const char *bundle, int32_t *answer) {
    OF(library, eliza_inference_create);
    OF(library, eliza_inference_destroy);
    OF(library, eliza_inference_llm_stream_open);
    OF(library, eliza_inference_llm_stream_prefill);
    OF(library, eliza_inference_llm_stream_next);
    OF(library, eliza_inference_llm_stream_close);
    char *error = NULL;
    EliInferenceContext *context = eliza_inference_create_(bundle, &error);
    CHECK(context != NULL && error == NULL);
    eliza_llm_stream_config_t config = {0};
    config.max_tokens = ANSWER;
    config.slot_id = -1;
    EliLlmStream *stream = eliza_inference_llm_stream_open_(context, &config, &error);
    CHECK(stream != NULL);
    CHECK(eliza_inference_llm_stream_prefill_(stream, PROMPT, PROMPT_LEN, &error) == 0);
    size_t n = drain(eliza_inference_llm_stream_next_, stream, answer);
    eliza_inference_llm_stream_close_(stream);
    eliza_inference_destroy_(context);
    return n;
}

/* The same by the path-opened one. */
static size_t by_path(void *library, const char *model, int32_t *answer) {
    OF(library, eliza_inference_llm_stream_next);
    void *found[4] = {find(library, "eliza_inference_llm_stream_open"), find(library, "eliza_inference_llm_stream_prefill"),
                      find(library, "eliza_inference_llm_stream_generate"),
                      find(library, "eliza_inference_llm_stream_close")};
    open_path open_;
    prefill_path prefill_;
    generate_path generate_;
    close_path close_;
    memcpy(&open_, &found[0], sizeof open_);
    memcpy(&prefill_, &found[1], sizeof prefill_);
    memcpy(&generate_, &found[2], sizeof generate_);
    memcpy(&close_, &found[3], sizeof close_);
    void *handle = open_(model, 0, 0, 0);
    CHECK(handle != NULL);
    CHECK(prefill_(handle, PROMPT, PROMPT_LEN, -1) == PROMPT_LEN);
    CHECK(generate_(handle, ANSWER, 0.0f, 1.0f, NULL) == 0);
    size_t n = drain(eliza_inference_llm_stream_next_, handle, answer);
    close_(handle);
    return n;
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    void *host = open_library(argv[1]), *core = open_library(argv[2]);
    CHECK(find(host, "eliza_inference_llm_stream_open") != find(core, "eliza_inference_llm_stream_open"));
    OF(host, eliza_inference_abi_version);
    CHECK(strcmp(eliza_inference_abi_version_(), "15") == 0);
    int32_t one[ANSWER + 1], other[ANSWER + 1];
    size_t n = by_context(host, argv[3], one), m = by_path(core, argv[4], other);
    CHECK(n > 0 && n == m && memcmp(one, other, n * sizeof *one) == 0);
    printf("%zu tokens alike\n", n);
    return 0;
}
