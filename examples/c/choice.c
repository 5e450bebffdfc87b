/* choice MODEL PROMPT NAME...: which of the names follows the prompt.
 *
 * Prints the scores of all names as JSON, then the most probable one. A space between prompt and name belongs to the name. */

#include "eliza_inference.h"

#include <stdio.h>
#include <string.h>

/* The text of a failure, to stderr; takes it. */
static int complain(char * text) {
    fprintf(stderr, "%s\n", text != NULL ? text : "unknown error");
    eliza_inference_free_string(text);
    return 1;
}

static int choose(FfiLlmHandle handle, const char * prompt, const char * const * names, size_t n_names) {
    eliza_llm_sampling_options_t options = {0};
    char * error = NULL, * warnings = NULL, * trie, * scores;
    int * tokens = NULL;
    size_t n = 0;
    int step;

    /* The generation ends where the name does. */
    options.struct_size = sizeof options;
    if (eliza_inference_llm_stream_sampling_defaults(handle, &options) != ELIZA_OK) {
        return complain(eliza_inference_llm_stream_take_error(handle));
    }
    options.on_span_end = ELIZA_SPAN_STOP;
    if (eliza_inference_llm_stream_configure(handle, &options, &error) != ELIZA_OK) return complain(error);

    /* The names are tokenized as the text after the prompt. */
    trie = eliza_inference_build_token_trie(handle, "choice", names, n_names, prompt, NULL, 0, &warnings, &error);
    if (trie == NULL) return complain(error);
    if (warnings != NULL) fprintf(stderr, "%s\n", warnings);
    eliza_inference_free_string(warnings);
    step = eliza_inference_set_token_trie(handle, trie, strlen(trie), ELIZA_TRIE_SCORE_LEAVES);
    eliza_inference_free_string(trie);
    if (step < 0) return complain(eliza_inference_llm_stream_take_error(handle));

    if (eliza_inference_llm_stream_tokenize(handle, prompt, strlen(prompt), 1, 0, &tokens, &n, &error) != ELIZA_OK) {
        return complain(error);
    }
    step = eliza_inference_llm_stream_prefill(handle, tokens, n, -1) < 0 ? -1 : ELIZA_STREAM_MORE;
    eliza_inference_free_tokens(tokens);
    if (step < 0) return complain(eliza_inference_llm_stream_take_error(handle));

    scores = eliza_inference_score_token_trie(handle, &error);
    if (scores == NULL) return complain(error);
    puts(scores);
    eliza_inference_free_string(scores);

    step = eliza_inference_llm_stream_generate(handle, -1, 0.0f, 1.0f, NULL);
    if (step < 0) return complain(eliza_inference_llm_stream_take_error(handle));
    while (step == ELIZA_STREAM_MORE) {
        int32_t ids[32];
        char text[512];
        step = eliza_inference_llm_stream_next(handle, ids, 32, NULL, text, sizeof text, NULL, NULL, &error);
        fputs(text, stdout);
    }
    putchar('\n');
    return step < 0 ? complain(error) : 0;
}

int main(int argc, char ** argv) {
    FfiLlmHandle handle;
    int failed;

    if (argc < 4) {
        fprintf(stderr, "usage: choice MODEL PROMPT NAME...\n");
        return 2;
    }
    handle = eliza_inference_llm_stream_open(argv[1], 0, 0, 0);
    if (handle == NULL) return complain(eliza_inference_take_last_error());
    failed = choose(handle, argv[2], (const char * const *)(argv + 3), (size_t)(argc - 3));
    eliza_inference_llm_stream_close(handle);
    return failed;
}
