/* choice MODEL TRIE.json PROMPT: which of a closed set of names follows the prompt.
 *
 * Prints the scores of all names as JSON, then the most probable one. `eliza-inference trie` makes the payload from names. */

#include "eliza_inference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text of a failure, to stderr; takes it. */
static int complain(char * text) {
    fprintf(stderr, "%s\n", text != NULL ? text : "unknown error");
    eliza_inference_free_string(text);
    return 1;
}

/* A whole file; the caller frees it. NULL where it cannot be read. */
static char * read_file(const char * path, size_t * size) {
    FILE * file = fopen(path, "rb");
    char * bytes = NULL;
    size_t room = 0, n;
    *size = 0;
    if (file == NULL) return NULL;
    do {
        if (*size == room) {
            room = room == 0 ? 4096 : 2 * room;
            bytes = realloc(bytes, room);
            if (bytes == NULL) abort();
        }
        n = fread(bytes + *size, 1, room - *size, file);
        *size += n;
    } while (n > 0);
    fclose(file);
    return bytes;
}

static int choose(FfiLlmHandle handle, const char * trie, size_t trie_size, const char * prompt) {
    eliza_llm_sampling_options_t options = {0};
    char * error = NULL, * scores;
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

    if (eliza_inference_set_token_trie(handle, trie, trie_size, ELIZA_TRIE_SCORE_LEAVES) < 0) {
        return complain(eliza_inference_llm_stream_take_error(handle));
    }
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
    char * trie;
    size_t trie_size;
    int failed;

    if (argc != 4) {
        fprintf(stderr, "usage: choice MODEL TRIE.json PROMPT\n");
        return 2;
    }
    trie = read_file(argv[2], &trie_size);
    if (trie == NULL) {
        perror(argv[2]);
        return 1;
    }
    handle = eliza_inference_llm_stream_open(argv[1], 0, 0, 0);
    failed = handle == NULL ? complain(eliza_inference_take_last_error()) : choose(handle, trie, trie_size, argv[3]);
    eliza_inference_llm_stream_close(handle);
    free(trie);
    return failed;
}
