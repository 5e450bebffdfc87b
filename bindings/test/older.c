/* A library of the first interface, before it had token tries: what is bound without them, and no model at all. It says
 * "one two three" in a thread, to a callback or to poll. */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*callback)(int32_t, const char *, size_t, bool, void *);
static const char * const words[] = {"one", " two", " three"};
static callback told;
static void * told_data;
static int next_word, limit, status;

const char * eliza_inference_abi_version(void) { return "eliza-stream/1.0.0"; }
void * eliza_inference_llm_stream_open(const char * path, int32_t context, int32_t threads, int32_t layers) {
    (void)path, (void)context, (void)threads, (void)layers;
    return (void *)7;
}
void * eliza_inference_llm_stream_open_ex(const void * options, char ** error) {
    (void)options, (void)error;
    return (void *)7;
}
int32_t eliza_inference_llm_stream_prefill(void * h, const int32_t * tokens, size_t n, int32_t slot) {
    (void)h, (void)tokens, (void)slot;
    return (int32_t)n;
}
static void * speak(void * nothing) {
    for (int i = 0; i < limit; i++) told(i, words[i], strlen(words[i]), false, told_data);
    status = 0;
    told(-1, "", 0, true, told_data);
    return nothing;
}
int32_t eliza_inference_llm_stream_generate_ex(void * h, int32_t max, float t, float p, callback cb, void * data, char ** e) {
    pthread_t thread;
    (void)h, (void)t, (void)p, (void)e;
    limit = max < 0 || max > 3 ? 3 : max;
    next_word = 0, status = 2, told = cb, told_data = data;
    if (cb != NULL && pthread_create(&thread, NULL, speak, NULL) == 0) pthread_detach(thread);
    return 0;
}
int32_t eliza_inference_llm_stream_generate(void * h, int32_t max, float t, float p, void * cb) {
    (void)cb;
    return eliza_inference_llm_stream_generate_ex(h, max, t, p, NULL, NULL, NULL);
}
int eliza_inference_llm_stream_poll(void * h, int32_t ms, int32_t * tokens, size_t cap, size_t * n, char * text, size_t size,
                                    char ** error) {
    (void)h, (void)ms, (void)cap, (void)size, (void)error;
    *n = 0, text[0] = 0;
    if (next_word == limit) return status = 0, 1;
    tokens[0] = next_word, *n = 1;
    strcpy(text, words[next_word++]);
    return 0;
}
int32_t eliza_inference_llm_stream_cancel(void * h) { return (void)h, 0; }
void eliza_inference_llm_stream_close(void * h) { (void)h; }
int32_t eliza_inference_llm_stream_status(void * h) { return (void)h, status; }
char * eliza_inference_llm_stream_take_error(void * h) { return (void)h, NULL; }
char * eliza_inference_take_last_error(void) { return NULL; }
void eliza_inference_free_string(char * text) { free(text); }
int32_t eliza_inference_llm_stream_usage(void * h, int32_t * usage) { return (void)h, usage[1] = 2, 0; }
char * eliza_inference_llm_stream_usage_json(void * h) {
    static const char json[] = "{\"model\":{},\"usage\":{\"completion_tokens\":3}}";
    char * copy = malloc(sizeof json);
    return (void)h, copy == NULL ? NULL : memcpy(copy, json, sizeof json);
}
