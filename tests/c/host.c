#include "host.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct library lib;
struct recorder recorder;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* Messages go to the real stderr, which main() keeps here while the library must not find one. */
int message_fd = 2;

void fail(const char * file, int line, const char * format, ...) {
    char text[4096];
    int n = snprintf(text, sizeof text, "%s:%d: ", file, line);
    va_list arguments;
    va_start(arguments, format);
    n += vsnprintf(text + n, sizeof text - (size_t)n - 1, format, arguments);
    va_end(arguments);
    if (n > (int)sizeof text - 2) n = (int)sizeof text - 2;
    text[n++] = '\n';
    if (write(message_fd, text, (size_t)n) < 0) _exit(2);
    _exit(1);
}

void skip(const char * reason) {
    char text[1024];
    int n = snprintf(text, sizeof text, "skipped: %s\n", reason);
    if (write(message_fd, text, (size_t)n) < 0) _exit(2);
    _exit(77);
}

void check_text(const char * file, int line, const char * what, char * text, const char * part) {
    if (text == NULL) fail(file, line, "%s gave no text, expected \"%s\"", what, part);
    if (text[0] == '\0' || strstr(text, part) == NULL) fail(file, line, "%s says \"%s\", not \"%s\"", what, text, part);
    if (!is_utf8(text, strlen(text))) fail(file, line, "%s is not UTF-8", what);
    lib.free_string(text);
}

const char * model_path(void) {
    const char * path = getenv("ELIZA_TEST_MODEL");
    if (path == NULL || access(path, R_OK) != 0) skip("the model is not there (ELIZA_TEST_MODEL)");
    return path;
}

FfiLlmHandle open_model(int32_t context) {
    FfiLlmHandle handle = lib.llm_stream_open(model_path(), context, 2, 0);
    if (handle == NULL) fail(__FILE__, __LINE__, "open: %s", lib.take_last_error());
    return handle;
}

int * tokens_of(FfiLlmHandle handle, const char * text, size_t * n) {
    int * tokens = NULL;
    char * error = NULL;
    int status = lib.llm_stream_tokenize(handle, text, strlen(text), 1, 0, &tokens, n, &error);
    if (status != ELIZA_OK) fail(__FILE__, __LINE__, "tokenize: %d %s", status, error);
    CHECK(tokens != NULL);
    return tokens;
}

void prefill(FfiLlmHandle handle, int32_t slot) {
    size_t n = 0;
    int * tokens = tokens_of(handle, "Once upon a time", &n);
    int32_t placed = lib.llm_stream_prefill(handle, tokens, n, slot);
    if (placed < 0) fail(__FILE__, __LINE__, "prefill: %s", lib.llm_stream_take_error(handle));
    CHECK_EQ(placed, n);
    lib.free_tokens(tokens);
}

void ignore_eos(FfiLlmHandle handle) {
    eliza_llm_sampling_options_t options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    CHECK_EQ(lib.llm_stream_sampling_defaults(handle, &options), ELIZA_OK);
    options.ignore_eos = 1;
    CHECK_EQ(lib.llm_stream_configure(handle, &options, NULL), ELIZA_OK);
}

void check_no_errors(FfiLlmHandle handle) {
    char * text = handle == NULL ? NULL : lib.llm_stream_take_error(handle);
    if (text != NULL) fail(__FILE__, __LINE__, "an error is left on the handle: %s", text);
    text = lib.take_last_error();
    if (text != NULL) fail(__FILE__, __LINE__, "an error is left in the process: %s", text);
}

int is_utf8(const char * text, size_t len) {
    const unsigned char * at = (const unsigned char *)text;
    const unsigned char * end = at + len;
    while (at < end) {
        unsigned long code;
        int more, i;
        unsigned char lead = *at++;
        if (lead < 0x80) continue;
        if (lead >= 0xc2 && lead < 0xe0) { more = 1; code = lead & 0x1fu; }
        else if (lead >= 0xe0 && lead < 0xf0) { more = 2; code = lead & 0x0fu; }
        else if (lead >= 0xf0 && lead < 0xf5) { more = 3; code = lead & 0x07u; }
        else return 0;
        if (end - at < more) return 0;
        for (i = 0; i < more; i++) {
            if ((*at & 0xc0) != 0x80) return 0;
            code = code << 6 | (*at++ & 0x3fu);
        }
        if ((more == 2 && code < 0x800) || (more == 3 && code < 0x10000)) return 0;
        if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
    }
    return 1;
}

void pull_all(FfiLlmHandle handle, size_t tokens_cap, size_t text_cap, struct result * result) {
    enum { GUARD = 0x5a };
    int32_t tokens[64];
    char text[1024];
    memset(result, 0, sizeof *result);
    CHECK(tokens_cap < 64 && text_cap < sizeof text);
    do {
        size_t n = 99, len;
        int32_t drafted = 99, accepted = 99;
        char * error = NULL;
        memset(text, GUARD, sizeof text);
        memset(tokens, GUARD, sizeof tokens);
        result->last_step = lib.llm_stream_next(handle, tokens, tokens_cap, &n, text, text_cap, &drafted, &accepted, &error);
        if (result->last_step < 0 && result->last_step != ELIZA_ERR_CANCELLED) {
            CHECK(error != NULL);
            fail(__FILE__, __LINE__, "next: %d %s", result->last_step, error);
        }
        lib.free_string(error);
        CHECK(n <= tokens_cap && 0 <= accepted && accepted <= drafted);
        CHECK(memchr(text, 0, text_cap) != NULL);
        len = strlen(text);
        CHECK(is_utf8(text, len));
        for (size_t i = text_cap; i < sizeof text; i++) CHECK_EQ(text[i], GUARD);
        for (size_t i = tokens_cap * sizeof(int32_t); i < sizeof tokens; i++) CHECK_EQ(((char *)tokens)[i], GUARD);
        CHECK(result->n_tokens + n <= 2048 && result->text_len + len < sizeof result->text);
        memcpy(result->tokens + result->n_tokens, tokens, n * sizeof(int32_t));
        memcpy(result->text + result->text_len, text, len);
        result->n_tokens += n;
        result->text_len += len;
    } while (result->last_step == ELIZA_STREAM_MORE);
}

void greedy(FfiLlmHandle handle, int32_t max_new_tokens, struct result * result) {
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, max_new_tokens, 0.0f, 1.0f, NULL), 0);
    pull_all(handle, 32, 512, result);
}

void recorder_reset(void) {
    memset(&recorder, 0, sizeof recorder);
}

void on_token_ex(int32_t token, const char * text, size_t len, bool done, void * user_data) {
    struct recorder * to = (struct recorder *)user_data;
    struct event * event;
    pthread_mutex_lock(&lock);
    CHECK(to->n_done == 0);
    CHECK(to->n_events < MAX_EVENTS);
    CHECK(text != NULL && text[len] == '\0');
    CHECK(is_utf8(text, len));
    CHECK(done ? token == -1 : token >= 0);
    event = &to->events[to->n_events];
    event->token = token;
    event->text = text;
    event->len = len;
    event->done = done;
    memcpy(event->copy, text, len < sizeof event->copy ? len : sizeof event->copy);
    to->n_events++;
    pthread_cond_broadcast(&changed);
    while (to->shut) {
        to->waiting = 1;
        pthread_cond_broadcast(&changed);
        pthread_cond_wait(&changed, &lock);
    }
    to->waiting = 0;
    pthread_mutex_unlock(&lock);
    if (to->act != NULL) to->act(to, event);
    /* Only now may the main thread go on from the terminal event. */
    pthread_mutex_lock(&lock);
    if (done) to->n_done++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void on_token(int32_t token, const char * text, bool done) {
    CHECK(text != NULL);
    on_token_ex(token, text, strlen(text), done, &recorder);
}

void recorder_shut(int shut) {
    pthread_mutex_lock(&lock);
    recorder.shut = shut;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void wait_held(void) {
    pthread_mutex_lock(&lock);
    while (!recorder.waiting) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void wait_events(size_t n) {
    pthread_mutex_lock(&lock);
    while (recorder.n_events < n && recorder.n_done == 0) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void wait_done(void) {
    pthread_mutex_lock(&lock);
    while (recorder.n_done == 0) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void sleep_ms(long ms) {
    struct timespec time;
    time.tv_sec = ms / 1000;
    time.tv_nsec = ms % 1000 * 1000000;
    nanosleep(&time, NULL);
}
