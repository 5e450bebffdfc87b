/* chat MODEL [MAX_TOKENS [TEMPERATURE [SEED]]]: a conversation, line by line from standard input.
 *
 * Ctrl-C ends the answer that is being written, and without one the program. */

#include "eliza_inference.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOT = 0 }; /* The conversation stays in one slot, so each turn evaluates only what is new. */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1; /* Not the place to call the library: it is asked for between two polls. */
}

/* The text of a failure, to stderr; takes it. */
static int complain(char * text) {
    fprintf(stderr, "%s\n", text != NULL ? text : "unknown error");
    eliza_inference_free_string(text);
    return 1;
}

/* The whole conversation so far, as it goes to the model. */
struct transcript {
    char * text;
    size_t size, room;
};

static void add(struct transcript * to, const char * text) {
    size_t more = strlen(text);
    if (to->size + more + 1 > to->room) {
        to->room = 2 * (to->size + more + 1);
        to->text = realloc(to->text, to->room);
        if (to->text == NULL) abort();
    }
    memcpy(to->text + to->size, text, more + 1);
    to->size += more;
}

static int set_options(FfiLlmHandle handle, uint32_t seed) {
    static const char * const stop[] = {"\nUser:"};
    eliza_llm_sampling_options_t options = {0};
    char * error = NULL;
    options.struct_size = sizeof options;
    if (eliza_inference_llm_stream_sampling_defaults(handle, &options) != ELIZA_OK) {
        return complain(eliza_inference_llm_stream_take_error(handle));
    }
    options.seed = seed;
    options.stop = stop;
    options.n_stop = 1;
    return eliza_inference_llm_stream_configure(handle, &options, &error) == ELIZA_OK ? 0 : complain(error);
}

/* Evaluates the transcript, prints the answer as it comes, and adds it to the transcript. */
static int answer(FfiLlmHandle handle, struct transcript * transcript, int max_tokens, float temperature) {
    char * error = NULL;
    int * tokens = NULL;
    size_t n = 0;
    int step;
    eliza_llm_usage_t usage = {0};

    if (eliza_inference_llm_stream_tokenize(handle, transcript->text, transcript->size, 1, 0, &tokens, &n, &error) != ELIZA_OK) {
        return complain(error);
    }
    step = eliza_inference_llm_stream_prefill(handle, tokens, n, SLOT) < 0 ? -1 : ELIZA_STREAM_MORE;
    eliza_inference_free_tokens(tokens);
    if (step == ELIZA_STREAM_MORE) {
        step = eliza_inference_llm_stream_generate(handle, max_tokens, temperature, 1.0f, NULL);
    }
    if (step < 0) return complain(eliza_inference_llm_stream_take_error(handle));

    interrupted = 0;
    while (step == ELIZA_STREAM_MORE) {
        int32_t ids[32];
        char text[512];
        step = eliza_inference_llm_stream_poll(handle, 100, ids, 32, NULL, text, sizeof text, &error);
        fputs(text, stdout);
        fflush(stdout);
        add(transcript, text);
        if (interrupted) eliza_inference_llm_stream_cancel(handle);
    }
    interrupted = 0;
    putchar('\n');
    if (step < 0 && step != ELIZA_ERR_CANCELLED) return complain(error);
    eliza_inference_free_string(error);

    usage.struct_size = sizeof usage;
    if (eliza_inference_llm_stream_usage(handle, &usage) == ELIZA_OK) {
        fprintf(stderr, "[%llu prompt tokens, %llu of them kept from before, %llu generated]\n",
                (unsigned long long)usage.prompt_tokens, (unsigned long long)usage.prompt_tokens_reused,
                (unsigned long long)usage.completion_tokens);
    }
    return 0;
}

int main(int argc, char ** argv) {
    struct transcript transcript = {NULL, 0, 0};
    char line[4096];
    int failed = 0;
    int max_tokens = argc > 2 ? atoi(argv[2]) : 256;
    float temperature = argc > 3 ? (float)atof(argv[3]) : 0.8f;
    uint32_t seed = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : ELIZA_SEED_RANDOM;
    FfiLlmHandle handle;

    if (argc < 2 || argc > 5) {
        fprintf(stderr, "usage: chat MODEL [MAX_TOKENS [TEMPERATURE [SEED]]]\n");
        return 2;
    }
    handle = eliza_inference_llm_stream_open(argv[1], 0, 0, 0);
    if (handle == NULL) return complain(eliza_inference_take_last_error());
    failed = set_options(handle, seed);

    signal(SIGINT, on_interrupt);
    while (!failed && !interrupted && fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        add(&transcript, transcript.size == 0 ? "User: " : "\nUser: ");
        add(&transcript, line);
        add(&transcript, "\nAssistant:");
        failed = answer(handle, &transcript, max_tokens, temperature);
    }
    free(transcript.text);
    eliza_inference_llm_stream_close(handle);
    return failed;
}
