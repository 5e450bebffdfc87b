/* llama_chain MODEL TRIE.json PROMPT N: a token trie in a sampler chain of llama.cpp, whose model it is.
 *
 * Prints the N tokens that follow the prompt, always the likeliest; the first of them spell one of the trie's names. */

#include "ggml-backend.h"
#include "llama.h"

#include "eliza_inference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PAYLOAD = 1 << 20, MAX_PROMPT = 1024 };

/* Greedy, after the trie. The chain owns it and is freed with it. NULL where the payload is refused. */
static struct llama_sampler * make_chain(const struct llama_vocab * vocab, const char * payload) {
    struct llama_sampler * chain;
    struct llama_sampler * trie = llama_sampler_init_token_trie(vocab, payload, ELIZA_TRIE_GREEDY);
    if (trie == NULL) {
        char * why = eliza_inference_take_last_error();
        fprintf(stderr, "%s\n", why != NULL ? why : "unknown error");
        eliza_inference_free_string(why);
        return NULL;
    }
    chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, trie);
    llama_sampler_chain_add(chain, llama_sampler_init_greedy());
    return chain;
}

static int generate(struct llama_context * context, const struct llama_vocab * vocab, struct llama_sampler * chain,
                    const char * prompt, int n) {
    llama_token tokens[MAX_PROMPT];
    int32_t n_tokens = llama_tokenize(vocab, prompt, (int32_t)strlen(prompt), tokens, MAX_PROMPT, true, false);
    if (n_tokens <= 0) return 1;
    for (int i = 0; i < n; i++) {
        char text[64];
        int32_t length;
        if (llama_decode(context, llama_batch_get_one(tokens, n_tokens)) != 0) return 1;
        tokens[0] = llama_sampler_sample(chain, context, -1); /* accepts it as well */
        n_tokens = 1;
        if (llama_vocab_is_eog(vocab, tokens[0])) break;
        length = llama_token_to_piece(vocab, tokens[0], text, sizeof text, 0, false);
        if (length > 0) fwrite(text, 1, (size_t)length, stdout);
    }
    putchar('\n');
    return 0;
}

int main(int argc, char ** argv) {
    static char payload[MAX_PAYLOAD];
    struct llama_model * model;
    struct llama_context_params params;
    struct llama_context * context = NULL;
    struct llama_sampler * chain = NULL;
    FILE * file;
    int failed = 1;

    if (argc != 5) {
        fprintf(stderr, "usage: llama_chain MODEL TRIE.json PROMPT N\n");
        return 2;
    }
    file = fopen(argv[2], "rb");
    if (file == NULL) {
        perror(argv[2]);
        return 1;
    }
    payload[fread(payload, 1, sizeof payload - 1, file)] = '\0';
    fclose(file);

    ggml_backend_load_all();
    model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (model == NULL) {
        fprintf(stderr, "%s cannot be loaded\n", argv[1]);
        return 1;
    }
    params = llama_context_default_params();
    params.n_ctx = 2048;
    params.n_threads = params.n_threads_batch = eliza_inference_default_thread_count();
    context = llama_init_from_model(model, params);
    if (context != NULL) chain = make_chain(llama_model_get_vocab(model), payload);
    if (chain != NULL) failed = generate(context, llama_model_get_vocab(model), chain, argv[3], atoi(argv[4]));
    llama_sampler_free(chain);
    llama_free(context);
    llama_model_free(model);
    return failed;
}
