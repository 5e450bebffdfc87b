/* What a token costs a host in C: overhead MODEL TOKENS RUNS, linked with the library. Prints the medians, in nanoseconds a
 * token, of a callback and of poll with one token a step. The model does nothing: a trie with one leaf forces every token. */
#define _POSIX_C_SOURCE 200809L
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "eliza_inference.h"

static atomic_int over;
static size_t seen;

static void on_token(int32_t token, const char * text, size_t len, bool done, void * data) {
    (void)token, (void)text, (void)data;
    seen += len;
    if (done) over = 1;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_size(const void * a, const void * b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

int main(int argc, char ** argv) {
    if (argc != 4) return 2;
    int n = atoi(argv[2]), runs = atoi(argv[3]), pulled;
    FfiLlmHandle h = eliza_inference_llm_stream_open(argv[1], 4096, 1, 0);
    if (h == NULL) return fprintf(stderr, "%s\n", eliza_inference_take_last_error()), 1;
    char * json = malloc(128 + (size_t)n * 8), * end = json;
    double * times = malloc(sizeof(double) * (size_t)runs);
    end += sprintf(end, "{\"modelId\":\"\",\"descriptors\":[{\"path\":\"a\",\"leaves\":[{\"name\":\"\",\"tokens\":[");
    for (int i = 0; i < n; i++) end += sprintf(end, "%s%d", i == 0 ? "" : ",", 300 + i % 100);
    end += sprintf(end, "]}]}]}");
    if (eliza_inference_set_token_trie(h, json, strlen(json), 0) != 0) return 1;
    int32_t prompt[2] = {300, 301}, token;
    for (pulled = 0; pulled < 2; pulled++) {
        for (int run = 0; run < runs; run++) {
            if (eliza_inference_llm_stream_prefill(h, prompt, 2, 0) != 2) return 1;
            double began = now();
            over = 0;
            if (eliza_inference_llm_stream_generate_ex(h, n, 0, 1, pulled ? NULL : on_token, NULL, NULL) != 0) return 1;
            while (!pulled && !over) {}
            for (int step = 0; pulled && step == 0;) {
                char text[256];
                size_t count;
                step = eliza_inference_llm_stream_poll(h, 0, &token, 1, &count, text, sizeof text, NULL);
                seen += count;
            }
            times[run] = (now() - began) / n;
        }
        qsort(times, (size_t)runs, sizeof *times, by_size);
        printf("%.0f\n", times[runs / 2]);
    }
    eliza_inference_llm_stream_close(h);
    return seen == 0;
}
