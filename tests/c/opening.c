/* Opening, closing, and everything that can be wrong with a file or an option. */

#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void check_not_open(FfiLlmHandle handle, const char * reason);

/* A file in the system's scratch folder with these bytes; the caller unlinks and frees. */
static char * scratch_file(const void * bytes, size_t len) {
    const char * folder = getenv("TMPDIR");
    char * path = (char *)malloc(512);
    int fd;
    CHECK(path != NULL);
    snprintf(path, 512, "%s/eliza-host-XXXXXX", folder == NULL ? "/tmp" : folder);
    fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
    close(fd);
    return path;
}

static void refused_file(const void * bytes, size_t len, const char * reason) {
    char * path = scratch_file(bytes, len);
    char * error = NULL;
    eliza_llm_open_options_t options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model_path = path;
    CHECK(lib.llm_stream_open(path, 0, 1, 0) == NULL);
    CHECK_TEXT(lib.take_last_error(), reason);
    CHECK(lib.llm_stream_open_ex(&options, &error) == NULL);
    CHECK_TEXT(error, reason);
    CHECK_TEXT(lib.take_last_error(), reason);
    check_no_errors(NULL);
    unlink(path);
    free(path);
}

static void wrong_files(void) {
    unsigned char header[24] = {'G', 'G', 'U', 'F', 3};
    CHECK(lib.llm_stream_open("/nonexistent/model.gguf", 0, 1, 0) == NULL);
    CHECK_TEXT(lib.take_last_error(), "/nonexistent/model.gguf");
    CHECK(lib.llm_stream_open("/", 0, 1, 0) == NULL);
    CHECK_TEXT(lib.take_last_error(), "");
    CHECK(lib.llm_stream_open("", 0, 1, 0) == NULL);
    CHECK_TEXT(lib.take_last_error(), "");
    CHECK(lib.llm_stream_open(NULL, 0, 1, 0) == NULL);
    CHECK_TEXT(lib.take_last_error(), "model_path is NULL");
    static const struct { const char * path; int32_t code; } codes[] = {
        {"/nonexistent/model.gguf", ELIZA_ERR_IO}, {NULL, ELIZA_ERR_INVALID_ARG}, {"/proc/self/exe", ELIZA_ERR_BUNDLE_INVALID},
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        int32_t code = 1;
        CHECK(lib.llm_stream_open(codes[i].path, 0, 1, 0) == NULL);
        CHECK_TEXT(lib.take_last_failure(&code), "");
        CHECK_EQ(code, codes[i].code);
        CHECK(lib.take_last_failure(&code) == NULL);
        CHECK_EQ(code, ELIZA_OK);
    }
    refused_file("", 0, "GGUF");
    refused_file("This is a text, and no model at all.", 36, "GGUF");
    refused_file("GGUF", 4, "GGUF");
    refused_file(header, sizeof header, "");
    memset(header + 8, 0xff, 16); /* as many tensors and keys as can be said */
    refused_file(header, sizeof header, "GGUF");
}

/* A path may hold any bytes; one that is not UTF-8 is a file like others, and one that is gone. */
static void path_bytes(void) {
    CHECK(lib.llm_stream_open("/nonexistent/\xff\xfe.gguf", 0, 1, 0) == NULL);
#ifdef _WIN32
    CHECK_TEXT(lib.take_last_error(), "not UTF-8");
#else
    CHECK_TEXT(lib.take_last_error(), "/nonexistent/");
#endif
    check_no_errors(NULL);
}

static void wrong_options(void) {
    const char * model = model_path();
    eliza_llm_open_options_t options;
    char * error = NULL;
    CHECK(lib.llm_stream_open(model, -1, 1, 0) == NULL);
    CHECK_TEXT(lib.take_last_error(), "context_size_tokens is -1");
    CHECK(lib.llm_stream_open(model, 0, -2, 0) == NULL);
    CHECK_TEXT(lib.take_last_error(), "num_threads is -2");
    CHECK(lib.llm_stream_open(model, 0, 1, -2) == NULL);
    CHECK_TEXT(lib.take_last_error(), "gpu_layers is -2");

    CHECK(lib.llm_stream_open_ex(NULL, &error) == NULL);
    CHECK_TEXT(error, "eliza_llm_open_options_t is NULL");
#define REFUSED(change, reason) \
    do { \
        memset(&options, 0, sizeof options); \
        options.struct_size = sizeof options; \
        options.model_path = model; \
        change; \
        error = NULL; \
        CHECK(lib.llm_stream_open_ex(&options, &error) == NULL); \
        CHECK_TEXT(error, reason); \
        CHECK_TEXT(lib.take_last_error(), reason); \
    } while (0)
    lib.free_string(lib.take_last_error());
    REFUSED(options.struct_size = 0, "struct_size is 0");
    REFUSED(options.struct_size = 16, "model_path is NULL");
    REFUSED(options.kv_type = "q3_z", "q3_z");
    REFUSED(options.kv_type = "\xff", "kv_type is not UTF-8");
    REFUSED(options.slots = 17, "slots");
    REFUSED(options.flags = 4, "flags");
    REFUSED(options.device = "no such device", "no such device");
    REFUSED(options.tensor_split = "3;1", "`3;1`");
    REFUSED((options.gpu_layers = -1, options.tensor_split = "0,0"), "`0,0`");
    REFUSED((options.gpu_layers = -1, options.device = "a;b", options.tensor_split = "1,1,1"), "3 shares for the 2 devices");
    REFUSED(options.tensor_split = "1,1", "0 GPU layers");
    REFUSED(options.tensor_devices = "exps", "PATTERN=DEVICE");
    REFUSED(options.tensor_devices = "ffn_up=tpu", "`tpu`");
    REFUSED(options.tensor_devices = "no such tensor=cpu", "`no such tensor=cpu`");
#undef REFUSED
    check_no_errors(NULL);
}

/* Too little memory is told before anything is loaded, with what would fit; with enough the same open works. */
static void too_little_memory(void) {
    eliza_llm_open_options_t options;
    char * error = NULL;
    FfiLlmHandle handle;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model_path = model_path();
    CHECK_EQ(setenv("ELIZA_MEMORY_LIMIT", "100K", 1), 0);
    CHECK(lib.llm_stream_open_ex(&options, &error) == NULL);
    CHECK_TEXT(error, "Out of memory");
    CHECK_TEXT(lib.take_last_error(), "102400 are available");
    CHECK(lib.llm_stream_open(model_path(), 0, 1, 0) == NULL);
    CHECK_TEXT(lib.take_last_error(), "kv_cache");
    CHECK_EQ(unsetenv("ELIZA_MEMORY_LIMIT"), 0);
    handle = open_model(256);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_OK);
    /* A second engine over a model that is loaded. */
    CHECK_EQ(setenv("ELIZA_MEMORY_LIMIT", "1K", 1), 0);
    CHECK(lib.llm_stream_open(model_path(), 256, 1, 0) == NULL);
    CHECK_TEXT(lib.take_last_error(), "Another engine");
    CHECK_EQ(unsetenv("ELIZA_MEMORY_LIMIT"), 0);
    lib.llm_stream_close(handle);
    check_no_errors(NULL);
}

static void open_and_close(void) {
    FfiLlmHandle handle = open_model(256);
    CHECK((uint64_t)(uintptr_t)handle < (uint64_t)1 << 52);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_OK);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
    check_not_open(handle, "not open");
    /* The slot is used again, the old handle stays dead. */
    FfiLlmHandle next = open_model(256);
    CHECK(next != handle);
    check_not_open(handle, "not open");
    CHECK_EQ(lib.llm_stream_status(next), ELIZA_OK);
    lib.llm_stream_close(next);
    lib.llm_stream_close(NULL);
}

struct progress {
    int calls;
    float last;
    int cancel;
};

static int32_t on_progress(float done, void * user_data) {
    struct progress * progress = (struct progress *)user_data;
    CHECK(done >= progress->last && done <= 1.0f);
    progress->calls++;
    progress->last = done;
    return progress->cancel;
}

static void open_with_options(void) {
    static const char * const kv_types[] = {NULL, "f16", "f32", "q8_0"};
    struct result first, other;
    for (size_t i = 0; i < sizeof kv_types / sizeof kv_types[0]; i++) {
        eliza_llm_open_options_t options;
        struct progress progress = {0, 0.0f, 0};
        char * error = NULL;
        FfiLlmHandle handle;
        memset(&options, 0, sizeof options);
        options.struct_size = sizeof options;
        options.context_size_tokens = 256;
        options.num_threads = 1;
        options.model_path = model_path();
        options.kv_type = kv_types[i];
        options.progress = on_progress;
        options.progress_user_data = &progress;
        options.slots = 2;
        handle = lib.llm_stream_open_ex(&options, &error);
        if (handle == NULL) fail(__FILE__, __LINE__, "kv_type %s: %s", kv_types[i], error);
        CHECK(progress.calls > 0 && progress.last == 1.0f);
        greedy(handle, 20, i == 0 ? &first : &other);
        if (i == 1) CHECK(first.n_tokens == other.n_tokens && memcmp(first.tokens, other.tokens, 4 * first.n_tokens) == 0);
        /* Two slots, and no third. */
        prefill(handle, 0);
        prefill(handle, 1);
        size_t n;
        int * tokens = tokens_of(handle, "Once", &n);
        CHECK_EQ(lib.llm_stream_prefill(handle, tokens, n, 2), -1);
        CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_INVALID_ARG);
        CHECK_TEXT(lib.llm_stream_take_error(handle), "2");
        lib.free_tokens(tokens);
        check_no_errors(handle);
        lib.llm_stream_close(handle);
    }
}

/* A model that drafts for itself says what it says alone; what does not fit is refused by its name. */
static void open_with_a_draft_model(void) {
    struct result alone, drafted;
    eliza_llm_open_options_t options;
    char * error = NULL;
    FfiLlmHandle handle = open_model(256);
    ignore_eos(handle);
    greedy(handle, 60, &alone);
    lib.llm_stream_close(handle);
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.context_size_tokens = 256;
    options.num_threads = 1;
    options.model_path = model_path();
    options.draft = model_path();
    handle = lib.llm_stream_open_ex(&options, &error);
    if (handle == NULL) fail(__FILE__, __LINE__, "draft: %s", error);
    ignore_eos(handle);
    greedy(handle, 60, &drafted);
    CHECK(alone.n_tokens == drafted.n_tokens && memcmp(alone.tokens, drafted.tokens, 4 * alone.n_tokens) == 0);
    lib.llm_stream_close(handle);
    options.draft = "/nonexistent/draft.gguf";
    CHECK(lib.llm_stream_open_ex(&options, &error) == NULL && strstr(error, "draft.gguf") != NULL);
    lib.free_string(error);
    options.draft = model_path();
    options.parallel = 2;
    CHECK(lib.llm_stream_open_ex(&options, &error) == NULL && strstr(error, "parallel is 2") != NULL);
    lib.free_string(error);
}

/* A server that is not there, and a model in its place. No text has the key. */
static void open_a_server(void) {
    static const char address[] = "vllm:http://127.0.0.1:9/v1#name";
    struct result alone, answered;
    eliza_llm_open_options_t options;
    char * error = NULL;
    char * usage;
    int32_t code = 1;
    FfiLlmHandle handle = open_model(0);
    ignore_eos(handle);
    greedy(handle, 20, &alone);
    lib.llm_stream_close(handle);
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.num_threads = 1;
    options.model_path = address;
    options.vocab = "/nonexistent/vocab.gguf";
    CHECK(lib.llm_stream_open_ex(&options, &error) == NULL);
    if (strstr(error, "feature `remote`") != NULL) skip("the library was built without the feature remote");
    CHECK(strstr(error, "vocab.gguf") != NULL);
    lib.free_string(error);
    options.vocab = model_path();
    options.api_key = "sk-0123456789";
    options.server_timeout_ms = 500;
    CHECK(lib.llm_stream_open_ex(&options, &error) == NULL);
    CHECK(strstr(error, "vllm:http://127.0.0.1:9: the connection failed") != NULL && strstr(error, "sk-01") == NULL);
    lib.free_string(error);
    CHECK_TEXT(lib.take_last_failure(&code), "127.0.0.1:9");
    CHECK_EQ(code, ELIZA_ERR_REMOTE);
    options.model_path = "vllm:http://192.0.2.1/v1";
    CHECK(lib.llm_stream_open_ex(&options, &error) == NULL && strstr(error, "https") != NULL);
    lib.free_string(error);
    options.model_path = "vllm:http://me:secret@host/v1";
    CHECK(lib.llm_stream_open_ex(&options, &error) == NULL && strstr(error, "secret") == NULL);
    lib.free_string(error);
    options.certificates = "/nonexistent/roots.pem";
    options.model_path = address;
    CHECK(lib.llm_stream_open_ex(&options, &error) == NULL && strstr(error, "roots.pem") != NULL);
    lib.free_string(error);
    options.certificates = NULL;
    options.fallback = model_path();
    handle = lib.llm_stream_open_ex(&options, &error);
    if (handle == NULL) fail(__FILE__, __LINE__, "fallback: %s", error);
    ignore_eos(handle);
    greedy(handle, 20, &answered);
    CHECK(alone.n_tokens == answered.n_tokens && memcmp(alone.tokens, answered.tokens, 4 * alone.n_tokens) == 0);
    usage = lib.llm_stream_usage_json(handle);
    CHECK(usage != NULL && strstr(usage, "\"served_by\":") != NULL && strstr(usage, "sk-01") == NULL);
    lib.free_string(usage);
    lib.llm_stream_close(handle);
    while ((error = lib.take_last_error()) != NULL) lib.free_string(error);
}

static void open_cancelled_by_progress(void) {
    eliza_llm_open_options_t options;
    struct progress progress = {0, 0.0f, 1};
    char * error = NULL;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model_path = model_path();
    options.progress = on_progress;
    options.progress_user_data = &progress;
    CHECK(lib.llm_stream_open_ex(&options, &error) == NULL);
    CHECK_EQ(progress.calls, 1);
    CHECK_TEXT(error, "Cancelled");
    CHECK_TEXT(lib.take_last_error(), "Cancelled");
}

struct log {
    int lines;
    int prompt_seen;
};

static void on_log(int32_t level, const char * message, void * user_data) {
    struct log * log = (struct log *)user_data;
    CHECK(level >= ELIZA_LOG_ERROR && level <= ELIZA_LOG_DEBUG && is_utf8(message, strlen(message)));
    __atomic_add_fetch(&log->lines, 1, __ATOMIC_RELAXED);
    if (strstr(message, "Once") != NULL) __atomic_store_n(&log->prompt_seen, 1, __ATOMIC_RELAXED);
}

static void log_sink(void) {
    static struct log log;
    struct result result;
    int lines;
    CHECK_EQ(lib.set_log_sink(on_log, &log), ELIZA_OK);
    FfiLlmHandle handle = open_model(256);
    greedy(handle, 10, &result);
    lib.llm_stream_close(handle);
    CHECK(__atomic_load_n(&log.lines, __ATOMIC_RELAXED) > 0);
    CHECK_EQ(__atomic_load_n(&log.prompt_seen, __ATOMIC_RELAXED), 0);
    CHECK_EQ(lib.set_log_sink(NULL, NULL), ELIZA_OK);
    lines = log.lines;
    handle = open_model(256);
    lib.llm_stream_close(handle);
    CHECK_EQ(log.lines, lines);
}

/* A trie for another model: warnings. */
static void warn(FfiLlmHandle handle) {
    static const char payload[] =
        "{\"modelId\":\"another\",\"descriptors\":[{\"path\":\"a\",\"leaves\":[{\"name\":\"x\",\"tokens\":[5]}]}]}";
    CHECK_EQ(lib.set_token_trie(handle, payload, sizeof payload - 1, ELIZA_TRIE_GREEDY), ELIZA_OK);
}

static void log_queue(void) {
    FfiLlmHandle handle = open_model(64);
    int32_t level = -1;
    int i, waiting;
    char * line = lib.next_log_line(&level);
    CHECK(line == NULL);
    CHECK_EQ(level, ELIZA_OK);
    for (i = 0; i < 300; i++) warn(handle);
    for (waiting = 0; (line = lib.next_log_line(&level)) != NULL; waiting++) {
        CHECK_EQ(level, ELIZA_LOG_WARN);
        CHECK(is_utf8(line, strlen(line)) && strncmp(line, "Token trie: ", 12) == 0);
        lib.free_string(line);
    }
    CHECK_EQ(waiting, 256);
    CHECK_EQ(level, ELIZA_OK);
    /* A sink, or none, ends the queue, and the next call begins a new one. */
    warn(handle);
    CHECK_EQ(lib.set_log_sink(NULL, NULL), ELIZA_OK);
    CHECK(lib.next_log_line(NULL) == NULL);
    warn(handle);
    line = lib.next_log_line(NULL);
    CHECK(line != NULL);
    lib.free_string(line);
    CHECK_EQ(lib.set_log_sink(NULL, NULL), ELIZA_OK);
    lib.llm_stream_close(handle);
}

const struct test_case opening_cases[] = {
    {"wrong_files", wrong_files},
    {"path_bytes", path_bytes},
    {"wrong_options", wrong_options},
    {"too_little_memory", too_little_memory},
    {"open_and_close", open_and_close},
    {"open_with_options", open_with_options},
    {"open_with_a_draft_model", open_with_a_draft_model},
    {"open_a_server", open_a_server},
    {"open_cancelled_by_progress", open_cancelled_by_progress},
    {"log_sink", log_sink},
    {"log_queue", log_queue},
    {NULL, NULL},
};
