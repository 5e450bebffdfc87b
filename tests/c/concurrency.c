/* Several threads, calls from inside callbacks, closing and unloading while work runs. */

#include "host.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void check_not_open(FfiLlmHandle handle, const char * reason);

static int32_t finish_reason(FfiLlmHandle handle) {
    eliza_llm_usage_t usage;
    memset(&usage, 0, sizeof usage);
    usage.struct_size = sizeof usage;
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    return usage.finish_reason;
}

/* Starts a generation whose callback is held at the first event. */
static void start_held(FfiLlmHandle handle) {
    recorder_reset();
    recorder.shut = 1;
    recorder.handle = handle;
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate_ex(handle, 200, 0.0f, 1.0f, on_token_ex, &recorder, NULL), 0);
    wait_held();
}

static void busy_while_generating(void) {
    FfiLlmHandle handle = open_model(512);
    int32_t tokens[1] = {1};
    eliza_llm_sampling_options_t options;
    char * error = NULL;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    ignore_eos(handle);
    start_held(handle);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_STATUS_GENERATING);
#define BUSY(call, status) \
    do { \
        CHECK_EQ(call, status); \
        CHECK_TEXT(lib.llm_stream_take_error(handle), "Busy"); \
        check_no_errors(handle); \
    } while (0)
    BUSY(lib.llm_stream_generate(handle, 5, 0.0f, 1.0f, on_token), -1);
    BUSY(lib.llm_stream_generate_ex(handle, 5, 0.0f, 1.0f, NULL, NULL, &error), ELIZA_ERR_BUSY);
    CHECK_TEXT(error, "Busy");
    BUSY(lib.llm_stream_prefill(handle, tokens, 1, -1), -1);
    BUSY(lib.llm_stream_configure(handle, &options, NULL), ELIZA_ERR_BUSY);
    BUSY(lib.llm_stream_set_chain(handle, -1, "temp=0.5", NULL), ELIZA_ERR_BUSY);
    BUSY(lib.set_token_trie(handle, "{}", 2, 0), -1);
    BUSY(lib.clear_token_trie(handle), -1);
    BUSY(lib.arm_token_trie(handle, NULL), -1);
#undef BUSY
    recorder_shut(0);
    wait_done();
    /* None of it did harm: the whole generation came, and its end is what the handle stands at. */
    CHECK_EQ(recorder.n_events, 201);
    while (lib.llm_stream_status(handle) == ELIZA_STATUS_GENERATING) sleep_ms(1);
    CHECK_EQ(lib.llm_stream_status(handle), 1);
    CHECK_EQ(finish_reason(handle), ELIZA_FINISH_LENGTH);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

static void cancel_in_callback(struct recorder * to, const struct event * event) {
    if (to->n_events == 5) CHECK_EQ(lib.llm_stream_cancel(to->handle), ELIZA_OK);
    if (!event->done) CHECK_EQ(lib.llm_stream_status(to->handle), ELIZA_STATUS_GENERATING);
}

static void cancel(void) {
    static struct result result;
    FfiLlmHandle handle = open_model(512);
    ignore_eos(handle);
    /* When nothing runs, nothing happens, to the next generation neither. */
    CHECK_EQ(lib.llm_stream_cancel(handle), ELIZA_OK);
    greedy(handle, 5, &result);
    CHECK_EQ(result.n_tokens, 5);
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_cancel(handle), ELIZA_OK);
    CHECK_EQ(lib.llm_stream_generate(handle, 5, 0.0f, 1.0f, NULL), 0);
    pull_all(handle, 32, 512, &result);
    CHECK_EQ(result.n_tokens, 5);

    /* From another thread. */
    start_held(handle);
    CHECK_EQ(lib.llm_stream_cancel(handle), ELIZA_OK);
    CHECK_EQ(lib.llm_stream_cancel(handle), ELIZA_OK);
    recorder_shut(0);
    wait_done();
    CHECK(recorder.n_events <= 3);
    while (lib.llm_stream_status(handle) == ELIZA_STATUS_GENERATING) sleep_ms(1);
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_CANCELLED);
    CHECK_EQ(finish_reason(handle), ELIZA_FINISH_CANCELLED);

    /* From inside the callback. */
    recorder_reset();
    recorder.handle = handle;
    recorder.act = cancel_in_callback;
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 200, 0.0f, 1.0f, on_token), 0);
    wait_done();
    CHECK_EQ(recorder.n_events, 6);

    /* While pulling. */
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, -1, 0.0f, 1.0f, NULL), 0);
    CHECK_EQ(lib.llm_stream_cancel(handle), ELIZA_OK);
    pull_all(handle, 32, 512, &result);
    CHECK(result.last_step == ELIZA_ERR_CANCELLED || finish_reason(handle) == ELIZA_FINISH_CONTEXT);
    lib.free_string(lib.llm_stream_take_error(handle));
    /* And the handle goes on. */
    greedy(handle, 5, &result);
    CHECK_EQ(result.n_tokens, 5);
    lib.llm_stream_close(handle);
}

static void * cancel_soon(void * argument) {
    sleep_ms(1);
    CHECK_EQ(lib.llm_stream_cancel((FfiLlmHandle)argument), ELIZA_OK);
    return NULL;
}

/* A prefill that blocks is cancelled from another thread, or was faster; then all is as before. */
static void cancel_prefill(void) {
    FfiLlmHandle handle = open_model(512);
    int32_t prompt[500];
    size_t n;
    int * tokens = tokens_of(handle, "Once upon a time", &n);
    for (int i = 0; i < 500; i++) prompt[i] = tokens[(i * 7 + i / 3) % (int)n];
    for (int round = 0; round < 10; round++) {
        pthread_t thread;
        int32_t placed;
        prompt[0] = tokens[round % (int)n];
        CHECK(pthread_create(&thread, NULL, cancel_soon, handle) == 0);
        placed = lib.llm_stream_prefill(handle, prompt, 500, -1);
        pthread_join(thread, NULL);
        CHECK(placed == 500 || placed == -1);
        if (placed == -1) {
            CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_CANCELLED);
            CHECK_TEXT(lib.llm_stream_take_error(handle), "Cancelled");
        }
    }
    CHECK_EQ(lib.llm_stream_prefill(handle, prompt, 500, -1), 500);
    lib.free_tokens(tokens);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

/* A prefill that was started: the handle works until it is over, and cancel ends it. */
static void started_prefill(void) {
    FfiLlmHandle handle = open_model(512);
    int32_t prompt[500], status;
    size_t n;
    char * error = NULL;
    int * tokens = tokens_of(handle, "Once upon a time", &n);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 500; i++) prompt[i] = tokens[(i * 7 + i / 3 + round) % (int)n];
        CHECK_EQ(lib.llm_stream_start_prefill(handle, prompt, 500, -1, &error), ELIZA_OK);
        if (round % 2 == 0) CHECK_EQ(lib.llm_stream_cancel(handle), ELIZA_OK);
        while ((status = lib.llm_stream_status(handle)) == ELIZA_STATUS_GENERATING) sleep_ms(1);
        CHECK(status == ELIZA_OK || (round % 2 == 0 && status == ELIZA_ERR_CANCELLED));
        if (status != ELIZA_OK) CHECK_TEXT(lib.llm_stream_take_error(handle), "Cancelled");
    }
    CHECK_EQ(lib.llm_stream_generate(handle, 3, 0.0f, 1.0f, NULL), 0);
    static struct result result;
    pull_all(handle, 32, 512, &result);
    CHECK_EQ(lib.llm_stream_start_prefill(handle, NULL, 0, -1, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "no tokens");
    CHECK_TEXT(lib.llm_stream_take_error(handle), "no tokens");
    CHECK_EQ(lib.llm_stream_start_prefill(NULL, prompt, 1, -1, NULL), -1);
    CHECK_TEXT(lib.take_last_error(), "NULL");
    lib.free_tokens(tokens);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
}

static void close_in_callback_act(struct recorder * to, const struct event * event) {
    if (to->n_events == 3) {
        lib.llm_stream_close(to->handle);
        lib.llm_stream_close(to->handle);
        CHECK_EQ(lib.llm_stream_status(to->handle), -1);
    }
    /* The text of this very event is still there. */
    CHECK(memcmp(event->text, event->copy, event->len < sizeof event->copy ? event->len : sizeof event->copy) == 0);
}

static void close_in_callback(void) {
    FfiLlmHandle handle = open_model(512);
    ignore_eos(handle);
    recorder_reset();
    recorder.handle = handle;
    recorder.act = close_in_callback_act;
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 200, 0.0f, 1.0f, on_token), 0);
    wait_done();
    CHECK_EQ(recorder.n_events, 4);
    CHECK(recorder.events[3].done);
    lib.free_string(lib.take_last_error());
    check_not_open(handle, "not open");
    /* In the terminal event, too. */
    handle = open_model(512);
    recorder_reset();
    recorder.handle = handle;
    recorder.act = close_in_callback_act;
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 2, 0.0f, 1.0f, on_token), 0);
    wait_done();
    lib.free_string(lib.take_last_error());
    check_not_open(handle, "not open");
}

static void close_while_generating(void) {
    FfiLlmHandle handle = open_model(512);
    ignore_eos(handle);
    /* The callback is held, and close does not wait for it: a host may call it on the thread the callback needs. */
    start_held(handle);
    lib.llm_stream_close(handle);
    check_not_open(handle, "not open");
    recorder_shut(0);
    wait_done();
    CHECK(recorder.n_events <= 3);
}

struct puller {
    FfiLlmHandle handle;
    int last_step;
};

static void * pull_to_the_end(void * argument) {
    struct puller * puller = (struct puller *)argument;
    int32_t tokens[4];
    char text[32];
    do {
        puller->last_step = lib.llm_stream_next(puller->handle, tokens, 4, NULL, text, sizeof text, NULL, NULL, NULL);
    } while (puller->last_step == ELIZA_STREAM_MORE);
    return NULL;
}

static void * prefill_again_and_again(void * argument) {
    FfiLlmHandle handle = (FfiLlmHandle)argument;
    int32_t prompt[400];
    for (int round = 0;; round++) {
        for (int i = 0; i < 400; i++) prompt[i] = 5 + (i + round) % 7;
        if (lib.llm_stream_prefill(handle, prompt, 400, -1) < 0) return NULL;
    }
}

/* Whatever blocks on another thread returns with an error. */
static void close_under_other_threads(void) {
    for (int round = 0; round < 5; round++) {
        struct puller puller;
        pthread_t thread;
        char * text;
        puller.handle = open_model(512);
        puller.last_step = 0;
        ignore_eos(puller.handle);
        prefill(puller.handle, -1);
        CHECK_EQ(lib.llm_stream_generate(puller.handle, -1, 0.0f, 1.0f, NULL), 0);
        CHECK(pthread_create(&thread, NULL, pull_to_the_end, &puller) == 0);
        sleep_ms(round);
        lib.llm_stream_close(puller.handle);
        pthread_join(thread, NULL);
        CHECK(puller.last_step == ELIZA_STREAM_FINAL || puller.last_step < 0);

        FfiLlmHandle handle = open_model(512);
        CHECK(pthread_create(&thread, NULL, prefill_again_and_again, handle) == 0);
        sleep_ms(3 * round);
        lib.llm_stream_close(handle);
        pthread_join(thread, NULL);
        while ((text = lib.take_last_error()) != NULL) lib.free_string(text);
    }
}

struct session {
    pthread_t thread;
    struct result result;
};

static void * one_session(void * argument) {
    struct session * session = (struct session *)argument;
    FfiLlmHandle handle = open_model(256);
    ignore_eos(handle);
    for (int round = 0; round < 2; round++) greedy(handle, 60, &session->result);
    lib.llm_stream_close(handle);
    return NULL;
}

static void eight_sessions(void) {
    enum { SESSIONS = 8 };
    static struct session sessions[SESSIONS], alone;
    one_session(&alone);
    CHECK_EQ(alone.result.n_tokens, 60);
    for (int i = 0; i < SESSIONS; i++) {
        CHECK(pthread_create(&sessions[i].thread, NULL, one_session, &sessions[i]) == 0);
    }
    for (int i = 0; i < SESSIONS; i++) {
        pthread_join(sessions[i].thread, NULL);
        CHECK_EQ(sessions[i].result.n_tokens, 60);
        CHECK(memcmp(sessions[i].result.tokens, alone.result.tokens, 60 * sizeof(int32_t)) == 0);
        CHECK(strcmp(sessions[i].result.text, alone.result.text) == 0);
    }
    check_no_errors(NULL);
}

/* Texts stay readable after close, until sixteen further handles were closed. */
static void text_lifetime(void) {
    FfiLlmHandle handle = open_model(512);
    ignore_eos(handle);
    recorder_reset();
    prefill(handle, -1);
    CHECK_EQ(lib.llm_stream_generate(handle, 100, 0.0f, 1.0f, on_token), 0);
    wait_done();
    lib.llm_stream_close(handle);
    for (int closed = 0; closed < 16; closed++) {
        for (size_t i = 0; i < recorder.n_events; i++) {
            const struct event * event = &recorder.events[i];
            CHECK(event->len < sizeof event->copy && memcmp(event->text, event->copy, event->len + 1) == 0);
        }
        if (closed < 15) lib.llm_stream_close(open_model(256));
    }
}

static void unload_while_generating(void) {
    FfiLlmHandle handle = open_model(512);
    const char * path = getenv("ELIZA_LIBRARY");
    ignore_eos(handle);
    start_held(handle);
    CHECK(dlclose(lib.object) == 0);
    /* Still mapped: its threads are running. */
    void * again = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    CHECK(again != NULL);
    recorder_shut(0);
    wait_done();
    CHECK_EQ(recorder.n_events, 201);
    CHECK_EQ(recorder.events[200].token, -1);
    lib.llm_stream_close(handle);
}

const struct test_case concurrency_cases[] = {
    {"busy_while_generating", busy_while_generating},
    {"cancel", cancel},
    {"cancel_prefill", cancel_prefill},
    {"started_prefill", started_prefill},
    {"close_in_callback", close_in_callback},
    {"close_while_generating", close_while_generating},
    {"close_under_other_threads", close_under_other_threads},
    {"eight_sessions", eight_sessions},
    {"text_lifetime", text_lifetime},
    {"unload_while_generating", unload_while_generating},
    {NULL, NULL},
};
