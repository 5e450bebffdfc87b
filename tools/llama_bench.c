/* What llama.cpp needs for the same work, for tools/bench*.py: one JSON object on standard output.
 *
 *   llama_bench FOLDER load    MODEL THREADS
 *   llama_bench FOLDER bench   MODEL THREADS GPU_LAYERS PROMPT DECODE REPS
 *   llama_bench FOLDER streams MODEL THREADS SEQUENCES DEPTH DECODE REPS
 *   llama_bench FOLDER turns   MODEL THREADS DEPTH PROMPT DECODE TURNS
 *   llama_bench FOLDER grammar MODEL THREADS SPANS NAMES PROMPT ...
 *   llama_bench FOLDER guided  MODEL THREADS REPS GRAMMAR MOST PROMPT ...
 *
 * FOLDER holds the libraries of llama.cpp that the program is linked with (tools/peer.py), version 0.5. NAMES is a file with one
 * name a line, a PROMPT a file as it is, GRAMMAR one in GBNF. MOST is the most tokens of an answer. As
 * llama.cpp's own tools do, it attaches a pool of threads that lasts. */

#define _POSIX_C_SOURCE 200809L

#include "../tests/install/llama/llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

struct threadpool_params {
    bool cpumask[512];
    int n_threads, prio;
    uint32_t poll;
    bool strict_cpu, paused;
};
void * ggml_backend_dev_by_type(int type);
void * ggml_backend_dev_backend_reg(void * device);
void * ggml_backend_reg_get_proc_address(void * registry, const char * name);
struct threadpool_params ggml_threadpool_params_default(int n_threads);
void llama_attach_threadpool(struct llama_context * context, void * pool, void * pool_for_batches);
float * llama_get_logits_ith(struct llama_context * context, int32_t i);
struct llama_sampler * llama_sampler_init_grammar(const struct llama_vocab * vocab, const char * grammar, const char * root);
bool llama_vocab_is_eog(const struct llama_vocab * vocab, llama_token token);

static struct llama_model * model;
static struct llama_context * context;
static const struct llama_vocab * vocab;
static int32_t n_vocab;
static double load_ms;

static void die(const char * what, const char * detail) {
    fprintf(stderr, "llama_bench: %s%s\n", what, detail);
    exit(1);
}

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e3 * (double)time.tv_sec + 1e-6 * (double)time.tv_nsec;
}

static int compare(const void * a, const void * b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double * values, size_t n) {
    qsort(values, n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void only_errors(int level, const char * text, void * data) {
    (void)data;
    if (level == 4) fputs(text, stderr);
}

/* Loads the model, and makes a context with room for so many tokens, for so many sequences together. */
static void load_for(const char * folder, const char * path, int threads, int gpu_layers, int room, int sequences) {
    struct llama_model_params how = llama_model_default_params();
    struct llama_context_params sizes = llama_context_default_params();
    struct threadpool_params pool = ggml_threadpool_params_default(threads);
    void * (*make_pool)(struct threadpool_params *);
    void * found;
    double start;
    if (strncmp(llama_version(), "0.5.", 4) != 0) die("libllama is not version 0.5 but ", llama_version());
    if (pool.n_threads != threads) die("the parameters of a thread pool are laid out in another way", "");
    llama_log_set(only_errors, NULL);
    ggml_backend_load_all_from_path(folder);
    how.n_gpu_layers = gpu_layers;
    sizes.n_ctx = (uint32_t)room;
    sizes.n_seq_max = (uint32_t)sequences;
    sizes.n_threads = sizes.n_threads_batch = threads;
    start = now_ms();
    model = llama_model_load_from_file(path, how);
    if (model == NULL) die("cannot load ", path);
    context = llama_init_from_model(model, sizes);
    if (context == NULL) die("no context for ", path);
    load_ms = now_ms() - start;
    vocab = llama_model_get_vocab(model);
    n_vocab = llama_vocab_n_tokens(vocab);
    found = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(0)), "ggml_threadpool_new");
    memcpy(&make_pool, &found, sizeof found);
    if (make_pool == NULL) die("libggml makes no thread pools", "");
    llama_attach_threadpool(context, make_pool(&pool), NULL);
}

static void load(const char * folder, const char * path, int threads, int gpu_layers, int room) {
    load_for(folder, path, threads, gpu_layers, room, 1);
}

static void decode(llama_token * tokens, int n) {
    if (llama_decode(context, llama_batch_get_one(tokens, n)) != 0) die("llama_decode failed", "");
}

static void forget(void) {
    llama_memory_clear(llama_get_memory(context), true);
}

/* So many tokens of the vocabulary, to be freed. */
static llama_token * some_tokens(size_t n) {
    llama_token * tokens = malloc(n * sizeof *tokens);
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (llama_token)((i + 1) * UINT64_C(0x9e3779b97f4a7c15) % (uint64_t)n_vocab);
    }
    return tokens;
}

static void bench(int n_prompt, int n_decode, int reps) {
    size_t n = (size_t)(n_prompt > n_decode ? n_prompt : n_decode) + 1, kept = 0;
    llama_token * tokens = some_tokens(n);
    double * prompt = malloc((size_t)reps * sizeof *prompt);
    double * decoding = malloc((size_t)reps * sizeof *decoding);
    struct rusage usage;
    for (int rep = 0; rep <= reps; rep++) { /* the first warms up */
        double start;
        if (n_prompt > 0) {
            forget();
            start = now_ms();
            decode(tokens, n_prompt);
            (void)llama_get_logits_ith(context, -1); /* waits for a GPU */
            prompt[kept] = 1e3 * n_prompt / (now_ms() - start);
        }
        if (n_decode > 0) {
            forget();
            decode(tokens, 1);
            (void)llama_get_logits_ith(context, -1);
            start = now_ms();
            for (int i = 1; i <= n_decode; i++) {
                decode(tokens + i, 1);
                (void)llama_get_logits_ith(context, -1);
            }
            decoding[kept] = 1e3 * n_decode / (now_ms() - start);
        }
        if (rep > 0) kept++;
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"prompt_tok_s\": %.3f, \"decode_tok_s\": %.3f, \"load_ms\": %.3f, \"peak_rss_bytes\": %lld}\n",
           n_prompt > 0 ? median(prompt, kept) : 0, n_decode > 0 ? median(decoding, kept) : 0, load_ms,
           (long long)usage.ru_maxrss * 1024);
    free(tokens);
    free(prompt);
    free(decoding);
}

/* A conversation, as `eliza-inference bench --turns` has it, by a host that keeps the sequence and only appends to it. */
static void conversation(int depth, int n_prompt, int n_decode, int turns) {
    enum { PIECE = 512 };
    llama_token * tokens = some_tokens((size_t)(depth > n_prompt ? depth : n_prompt));
    double * later = malloc((size_t)turns * sizeof *later), cold = 0;
    for (int turn = 0; turn <= turns; turn++) { /* the first is the text before */
        int n = turn == 0 ? depth : n_prompt;
        double start = now_ms(), took;
        for (int from = 0; from < n; from += PIECE) decode(tokens + from, n - from < PIECE ? n - from : PIECE);
        (void)llama_get_logits_ith(context, -1);
        took = now_ms() - start;
        if (turn == 0) cold = took; else later[turn - 1] = took;
        for (int i = 0; turn > 0 && i < n_decode; i++) {
            decode(tokens + i % n_prompt, 1);
            (void)llama_get_logits_ith(context, -1);
        }
    }
    printf("{\"first_token_ms\": %.3f, \"later_first_token_ms\": %.3f}\n", cold, median(later, (size_t)turns));
    free(tokens);
    free(later);
}

enum { MAX_SEQUENCES = 16, DEEPEST = 512 };

/* A token of each sequence in one batch, after so many tokens of each. */
static void streams(int sequences, int depth, int n_decode, int reps) {
    llama_token tokens[DEEPEST];
    int32_t positions[DEEPEST], counts[DEEPEST], ids[DEEPEST];
    int32_t * of[DEEPEST];
    int8_t wanted[DEEPEST];
    struct llama_batch batch = {0, tokens, NULL, positions, counts, of, wanted};
    double * rates = malloc((size_t)reps * sizeof *rates);
    size_t kept = 0;
    if (sequences > MAX_SEQUENCES || depth < 1 || depth > DEEPEST) die("too many sequences, or too deep", "");
    for (int i = 0; i < DEEPEST; i++) {
        counts[i] = 1;
        of[i] = &ids[i];
    }
    for (int rep = 0; rep <= reps; rep++) { /* the first warms up */
        double start = 0;
        forget();
        for (int sequence = 0; sequence < sequences; sequence++) {
            for (int i = 0; i < depth; i++) {
                tokens[i] = (llama_token)(((uint64_t)i + 1 + (uint64_t)sequence * 977) * UINT64_C(0x9e3779b97f4a7c15) % (uint64_t)n_vocab);
                positions[i] = i;
                ids[i] = sequence;
                wanted[i] = i == depth - 1;
            }
            batch.n_tokens = depth;
            if (llama_decode(context, batch) != 0) die("llama_decode failed", "");
        }
        batch.n_tokens = sequences;
        start = now_ms();
        for (int step = 0; step < n_decode; step++) {
            for (int i = 0; i < sequences; i++) {
                tokens[i] = (llama_token)((step + 1 + i * 31) % n_vocab);
                positions[i] = depth + step;
                ids[i] = i;
                wanted[i] = 1;
            }
            if (llama_decode(context, batch) != 0) die("llama_decode failed", "");
            (void)llama_get_logits_ith(context, -1);
        }
        if (rep > 0) rates[kept++] = 1e3 * n_decode * sequences / (now_ms() - start);
    }
    printf("{\"aggregate_tokens_per_second\": %.3f}\n", median(rates, kept));
    free(rates);
}

/* The file with a NUL at its end. */
static char * read_file(const char * path) {
    FILE * file = fopen(path, "rb");
    size_t size = 0, room = 1 << 20;
    char * text = malloc(room);
    if (file == NULL) die("cannot read ", path);
    size = fread(text, 1, room - 1, file);
    if (!feof(file)) die("more than a megabyte: ", path);
    fclose(file);
    text[size] = '\0';
    return text;
}

enum { MAX_LIST = 1024, MAX_NAME = 256, MAX_SPAN = 64, MAX_PROMPT = 400 };

static const char * names[MAX_LIST];
static size_t n_names;
static char grammar[MAX_LIST * (MAX_NAME + 8)];

/* The names of a file, and the grammar that lets one of them through. */
static void read_names(const char * path) {
    char * at = grammar + sprintf(grammar, "root ::= ");
    for (char * name = strtok(read_file(path), "\r\n"); name != NULL; name = strtok(NULL, "\r\n")) {
        if (n_names == MAX_LIST || strlen(name) >= MAX_NAME || strpbrk(name, "\"\\") != NULL) die("not a plain list: ", path);
        at += sprintf(at, "%s\"%s\"", n_names == 0 ? "" : " | ", name);
        names[n_names++] = name;
    }
}

static bool is_name(const char * text) {
    for (size_t i = 0; i < n_names; i++) {
        if (strcmp(text, names[i]) == 0) return true;
    }
    return false;
}

static llama_token_data_array fill(llama_token_data * candidates) {
    const float * logits = llama_get_logits_ith(context, -1);
    for (int32_t i = 0; i < n_vocab; i++) candidates[i] = (llama_token_data){i, logits[i], 0};
    return (llama_token_data_array){candidates, (size_t)n_vocab, -1, false};
}

/* The likeliest token that the grammar allows. First all candidates go through the grammar, or only the likeliest, and all of them
 * where that is refused. */
static llama_token choose(struct llama_sampler * rules, struct llama_sampler * greedy, bool check, llama_token_data * candidates) {
    llama_token_data_array all = fill(candidates);
    llama_token token;
    if (check) {
        llama_sampler_apply(greedy, &all);
        llama_token_data one = {all.data[all.selected].id, 1, 0};
        llama_token_data_array alone = {&one, 1, -1, false};
        llama_sampler_apply(rules, &alone);
        if (!isinf(one.logit)) {
            llama_sampler_accept(rules, one.id);
            return one.id;
        }
        all = fill(candidates);
    }
    llama_sampler_apply(rules, &all);
    llama_sampler_apply(greedy, &all);
    token = all.data[all.selected].id;
    llama_sampler_accept(rules, token);
    return token;
}

struct span {
    double ms, ms_behind;
    int tokens;
    char text[MAX_NAME + 64];
};

/* The sampler of a grammar, with the prompt evaluated. */
static struct llama_sampler * begin(const char * prompt, const char * text) {
    struct llama_sampler * rules = llama_sampler_init_grammar(vocab, text, "root");
    llama_token tokens[MAX_PROMPT];
    int n = llama_tokenize(vocab, prompt, (int32_t)strlen(prompt), tokens, MAX_PROMPT, true, false);
    if (rules == NULL) die("the grammar is refused", "");
    if (n <= 0) die("a prompt has no tokens, or too many", "");
    forget();
    decode(tokens, n);
    (void)llama_get_logits_ith(context, -1);
    return rules;
}

/* A name after a prompt: the time to its last token, and to the token after it. */
static struct span choose_name(const char * prompt, bool check, llama_token_data * candidates) {
    struct llama_sampler * rules = begin(prompt, grammar);
    struct llama_sampler * greedy = llama_sampler_init_greedy();
    struct span span = {0, 0, 0, ""};
    llama_token token;
    size_t length = 0;
    double start;
    start = now_ms();
    for (;;) {
        int32_t added;
        token = choose(rules, greedy, check, candidates);
        added = llama_token_to_piece(vocab, token, span.text + length, 64, 0, false);
        if (added < 0 || (length += (size_t)added) > MAX_NAME || ++span.tokens > MAX_SPAN) die("no name came out", "");
        span.text[length] = '\0';
        if (is_name(span.text)) break;
        decode(&token, 1);
    }
    span.ms = now_ms() - start;
    decode(&token, 1);
    (void)llama_sampler_sample(greedy, context, -1);
    span.ms_behind = now_ms() - start;
    llama_sampler_free(rules);
    llama_sampler_free(greedy);
    return span;
}

static void spans(int reps, char ** prompts, size_t n_prompts) {
    llama_token_data * candidates = malloc((size_t)n_vocab * sizeof *candidates);
    double * ms = malloc((size_t)reps * n_prompts * sizeof *ms);
    double * behind = malloc((size_t)reps * n_prompts * sizeof *behind);
    char * texts[MAX_LIST];
    if (n_prompts == 0 || n_prompts > MAX_LIST) die("no prompts, or too many", "");
    for (size_t i = 0; i < n_prompts; i++) texts[i] = read_file(prompts[i]);
    printf("{");
    for (int check = 0; check <= 1; check++) {
        size_t n = 0, tokens = 0;
        double all = 0;
        for (int rep = 0; rep <= reps; rep++) { /* the first warms up */
            for (size_t i = 0; i < n_prompts; i++) {
                struct span span = choose_name(texts[i], check == 1, candidates);
                if (rep == 0) continue;
                all += span.ms;
                tokens += (size_t)span.tokens;
                ms[n] = span.ms;
                behind[n++] = span.ms_behind;
            }
        }
        printf("\"%s\": {\"ms_per_span\": %.3f, \"ms_to_token_behind\": %.3f, \"tokens_per_second\": %.3f}, ",
               check ? "check_then_mask" : "mask_first", median(ms, n), median(behind, n), 1e3 * (double)tokens / all);
    }
    printf("\"names\": [");
    for (size_t i = 0; i < n_prompts; i++) {
        printf("%s\"%s\"", i == 0 ? "" : ", ", choose_name(texts[i], false, candidates).text);
        free(texts[i]);
    }
    printf("]}\n");
    free(candidates);
    free(ms);
    free(behind);
}

/* Prints a text as JSON has it. */
static void print_text(const char * text) {
    putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        if ((unsigned char)*text < 0x20) printf("\\u%04x", *text);
        else putchar(*text);
    }
    putchar('"');
}

struct answer {
    double ms;
    int tokens;
    bool ended;
    char * text;
};

/* What a grammar lets through after a prompt: the time to its last token. */
static struct answer answer(const char * prompt, const char * rules_text, int most, bool check, llama_token_data * candidates) {
    struct llama_sampler * rules = begin(prompt, rules_text);
    struct llama_sampler * greedy = llama_sampler_init_greedy();
    struct answer answer = {0, 0, false, malloc((size_t)most * 256 + 1)};
    size_t length = 0;
    double start;
    start = now_ms();
    while (answer.tokens < most) {
        llama_token token = choose(rules, greedy, check, candidates);
        int32_t added;
        if (llama_vocab_is_eog(vocab, token)) {
            answer.ended = true;
            break;
        }
        added = llama_token_to_piece(vocab, token, answer.text + length, 256, 0, true);
        if (added > 0) length += (size_t)added;
        answer.tokens++;
        answer.ms = now_ms() - start;
        decode(&token, 1);
    }
    answer.text[length] = '\0';
    llama_sampler_free(rules);
    llama_sampler_free(greedy);
    return answer;
}

static void guided(int reps, const char * rules_path, int most, char ** prompts, size_t n_prompts) {
    llama_token_data * candidates = malloc((size_t)n_vocab * sizeof *candidates);
    double * ms = malloc((size_t)reps * n_prompts * sizeof *ms);
    char * rules = read_file(rules_path);
    printf("{");
    for (int check = 0; check <= 1; check++) {
        size_t n = 0, tokens = 0, ended = 0;
        printf("\"%s\": {\"texts\": [", check ? "check_then_mask" : "mask_first");
        for (size_t i = 0; i < n_prompts; i++) {
            char * prompt = read_file(prompts[i]);
            for (int rep = 0; rep < reps; rep++) {
                struct answer one = answer(prompt, rules, most, check == 1, candidates);
                ms[n++] = one.ms;
                tokens += (size_t)one.tokens;
                ended += one.ended;
                if (rep == 0) {
                    if (i > 0) printf(", ");
                    print_text(one.text);
                }
                free(one.text);
            }
            free(prompt);
        }
        printf("], \"ms_per_answer\": %.3f, \"tokens\": %.3f, \"ended\": %.3f}%s", median(ms, n), (double)tokens / (double)n,
               (double)ended / (double)n, check ? "" : ", ");
    }
    printf("}\n");
    free(rules);
    free(candidates);
    free(ms);
}

int main(int argc, char ** argv) {
    const char * what = argc > 4 ? argv[2] : "";
    if (strcmp(what, "load") == 0 && argc == 5) {
        load(argv[1], argv[3], atoi(argv[4]), 0, 512);
        printf("{\"load_ms\": %.3f}\n", load_ms);
    } else if (strcmp(what, "bench") == 0 && argc == 9) {
        int prompt = atoi(argv[6]), decoded = atoi(argv[7]);
        load(argv[1], argv[3], atoi(argv[4]), atoi(argv[5]), (prompt > decoded ? prompt : decoded) + 1);
        bench(prompt, decoded, atoi(argv[8]));
    } else if (strcmp(what, "grammar") == 0 && argc > 7) {
        load(argv[1], argv[3], atoi(argv[4]), 0, MAX_PROMPT + MAX_SPAN);
        read_names(argv[6]);
        spans(atoi(argv[5]), argv + 7, (size_t)argc - 7);
    } else if (strcmp(what, "streams") == 0 && argc == 9 && atoi(argv[8]) > 0) {
        int sequences = atoi(argv[5]), depth = atoi(argv[6]), decoded = atoi(argv[7]);
        load_for(argv[1], argv[3], atoi(argv[4]), 0, sequences * (depth + decoded + 1), sequences);
        streams(sequences, depth, decoded, atoi(argv[8]));
    } else if (strcmp(what, "turns") == 0 && argc == 9 && atoi(argv[5]) > 0 && atoi(argv[6]) > 0 && atoi(argv[8]) > 0) {
        int depth = atoi(argv[5]), prompt = atoi(argv[6]), decoded = atoi(argv[7]), turns = atoi(argv[8]);
        load(argv[1], argv[3], atoi(argv[4]), 0, depth + turns * (prompt + decoded));
        conversation(depth, prompt, decoded, turns);
    } else if (strcmp(what, "guided") == 0 && argc > 8 && atoi(argv[7]) > 0) {
        load(argv[1], argv[3], atoi(argv[4]), 0, MAX_PROMPT + atoi(argv[7]));
        guided(atoi(argv[5]), argv[6], atoi(argv[7]), argv + 8, (size_t)argc - 8);
    } else {
        fprintf(stderr, "llama_bench FOLDER load MODEL THREADS\n"
                        "llama_bench FOLDER bench MODEL THREADS GPU_LAYERS PROMPT DECODE REPS\n"
                        "llama_bench FOLDER grammar MODEL THREADS SPANS NAMES PROMPT ...\n"
                        "llama_bench FOLDER guided MODEL THREADS REPS GRAMMAR MOST PROMPT ...\n");
        return 2;
    }
    llama_free(context);
    llama_model_free(model);
    return 0;
}
