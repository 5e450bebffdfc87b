/* Slots saved to files and restored, through the C calls. */

#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file of this process alone. */
static const char * file_of(const char * name) {
    static char path[256];
    snprintf(path, sizeof path, "saved-%s-%ld.slot", name, (long)getpid());
    return path;
}

static void generated(FfiLlmHandle handle, int32_t count, struct result * result) {
    CHECK_EQ(lib.llm_stream_generate(handle, count, 0.0f, 1.0f, NULL), 0);
    pull_all(handle, 32, 512, result);
}

/* A stream that was cut and went on in another handle says what it would have said in one. */
static void save_and_restore(void) {
    static struct result whole, begun, rest;
    const char * path = file_of("stream");
    char * error = NULL;
    FfiLlmHandle first = open_model(256), second = open_model(256);
    size_t n;
    int * tokens = tokens_of(first, "Once upon a time", &n);
    lib.free_tokens(tokens);
    ignore_eos(first);
    ignore_eos(second);
    prefill(first, 0);
    generated(first, 20, &whole);
    CHECK_EQ(whole.n_tokens, 20);
    prefill(first, 0);
    generated(first, 8, &begun);
    CHECK_EQ(lib.llm_stream_save_slot(first, -1, path, &error), ELIZA_OK);
    lib.llm_stream_close(first);
    CHECK_EQ(lib.llm_stream_restore_slot(second, 3, path, &error), n + 8);
    CHECK_EQ(lib.llm_stream_status(second), ELIZA_OK);
    generated(second, 12, &rest);
    CHECK_EQ(rest.n_tokens, 12);
    CHECK(memcmp(begun.tokens, whole.tokens, 8 * sizeof *whole.tokens) == 0);
    CHECK(memcmp(rest.tokens, whole.tokens + 8, 12 * sizeof *whole.tokens) == 0);
    check_no_errors(second);
    lib.llm_stream_close(second);
    remove(path);
}

static void wrong_files_to_restore(void) {
    const char * path = file_of("wrong");
    char * error = NULL;
    FfiLlmHandle handle = open_model(256);
    FILE * file;
    int last;
    CHECK_EQ(lib.llm_stream_save_slot(handle, 0, path, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "empty");
    prefill(handle, 0);
    CHECK_EQ(lib.llm_stream_save_slot(handle, 0, NULL, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "path");
    CHECK_EQ(lib.llm_stream_save_slot(handle, 99, path, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "99");
    CHECK_EQ(lib.llm_stream_restore_slot(handle, 0, path, &error), ELIZA_ERR_IO);
    CHECK_TEXT(error, path);
    CHECK_EQ(lib.llm_stream_restore_slot(handle, 0, NULL, NULL), ELIZA_ERR_INVALID_ARG);
    CHECK_EQ(lib.llm_stream_save_slot(handle, 0, path, &error), ELIZA_OK);
    /* The last byte is another one. */
    file = fopen(path, "r+b");
    CHECK(file != NULL && fseek(file, -1, SEEK_END) == 0);
    last = fgetc(file);
    CHECK(last != EOF && fseek(file, -1, SEEK_END) == 0 && fputc(last ^ 1, file) != EOF && fclose(file) == 0);
    CHECK_EQ(lib.llm_stream_restore_slot(handle, 0, path, &error), ELIZA_ERR_SAVED_SLOT);
    CHECK(strstr(error, path) != NULL);
    CHECK_TEXT(error, "checksum");
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_SAVED_SLOT);
    while ((error = lib.llm_stream_take_error(handle)) != NULL) lib.free_string(error);
    /* Nothing has changed: the prefill still counts. */
    static struct result result;
    generated(handle, 4, &result);
    CHECK(result.n_tokens > 0);
    CHECK_EQ(lib.llm_stream_save_slot(NULL, 0, path, &error), -1);
    CHECK_TEXT(error, "NULL");
    CHECK_EQ(lib.llm_stream_restore_slot(NULL, 0, path, &error), -1);
    CHECK_TEXT(error, "NULL");
    while ((error = lib.take_last_error()) != NULL) lib.free_string(error);
    check_no_errors(handle);
    lib.llm_stream_close(handle);
    remove(path);
}

/* What the handle tells in its usage as JSON. */
static bool tells(FfiLlmHandle handle, const char * what) {
    char * json = lib.llm_stream_usage_json(handle);
    bool found = json != NULL && strstr(json, what) != NULL;
    lib.free_string(json);
    return found;
}

/* Conversations are kept in a folder under keys, and prompts are evaluated before they are asked for. */
static void conversations(void) {
    static struct result result;
    char folder[64], * error = NULL;
    snprintf(folder, sizeof folder, "saved-store-%ld", (long)getpid());
    struct eliza_llm_open_options_t options;
    struct eliza_llm_usage_t usage;
    FfiLlmHandle handle;
    size_t n;
    int * tokens;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model_path = model_path();
    options.context_size_tokens = 256;
    options.slots = 3;
    options.store_directory = folder;
    options.store_bytes = 1 << 20;
    options.snapshots = 8;
    memset(&usage, 0, sizeof usage);
    usage.struct_size = sizeof usage;
    handle = lib.llm_stream_open_ex(&options, &error);
    CHECK(handle != NULL);
    ignore_eos(handle);
    tokens = tokens_of(handle, "Once upon a time there was", &n);
    CHECK_EQ(lib.llm_stream_prewarm(handle, tokens, n, 1, &error), ELIZA_OK);
    while (!tells(handle, "\"prewarms\":0")) usleep(1000);
    CHECK_EQ(lib.llm_stream_pin_slot(handle, 1, 1, &error), ELIZA_OK);
    CHECK_EQ(lib.llm_stream_prefill(handle, tokens, n, 0), n);
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK_EQ(usage.prompt_tokens_reused, n - 1);
    CHECK_EQ(usage.evaluated_tokens, 1);
    generated(handle, 4, &result);
    CHECK_EQ(lib.llm_stream_persist(handle, 0, "a/b", &error), ELIZA_OK);
    CHECK_EQ(lib.llm_stream_resume(handle, -1, "nobody", &error), 0);
    CHECK_EQ(lib.llm_stream_resume(handle, 2, "a/b", &error), n + 4);
    CHECK_EQ(lib.llm_stream_usage(handle, &usage), ELIZA_OK);
    CHECK_EQ(usage.prompt_tokens_restored, n + 3);
    generated(handle, 4, &result);
    CHECK_EQ(lib.llm_stream_forget(handle, "a/b", &error), 1);
    CHECK_EQ(lib.llm_stream_forget(handle, "a/b", &error), 0);
    check_no_errors(handle);
    CHECK_EQ(lib.llm_stream_prewarm(handle, tokens, 0, 1, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "no tokens");
    CHECK_EQ(lib.llm_stream_pin_slot(handle, -1, 1, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "-1");
    CHECK_EQ(lib.llm_stream_persist(handle, 0, "", &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "key");
    CHECK_EQ(lib.llm_stream_resume(handle, 0, NULL, &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "key");
    CHECK_EQ(lib.llm_stream_persist(NULL, 0, "a", &error), -1);
    CHECK_TEXT(error, "NULL");
    CHECK_EQ(lib.llm_stream_prewarm(NULL, tokens, n, 0, NULL), -1);
    lib.free_tokens(tokens);
    lib.llm_stream_close(handle);
    handle = open_model(256);
    CHECK_EQ(lib.llm_stream_resume(handle, 0, "a", &error), ELIZA_ERR_INVALID_ARG);
    CHECK_TEXT(error, "without a store");
    while ((error = lib.llm_stream_take_error(handle)) != NULL) lib.free_string(error);
    while ((error = lib.take_last_error()) != NULL) lib.free_string(error);
    lib.llm_stream_close(handle);
    strcat(folder, "/lock");
    remove(folder);
    folder[strlen(folder) - 5] = 0;
    CHECK_EQ(remove(folder), 0);
}

/* Slots of one handle generate at the same time, each as the handle would alone. */
static void slots_at_once(void) {
    static struct result alone, each;
    struct eliza_llm_open_options_t options;
    char * error = NULL;
    FfiLlmHandle handles[3], handle;
    int * tokens;
    size_t n, i;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model_path = model_path();
    options.context_size_tokens = 512;
    options.slots = 3;
    handle = lib.llm_stream_open_ex(&options, &error);
    CHECK(handle != NULL && lib.llm_stream_open_slot(handle, 0, &error) == NULL);
    CHECK_TEXT(error, "take turns");
    CHECK_EQ(lib.llm_stream_status(handle), ELIZA_ERR_NOT_IMPLEMENTED);
    tokens = tokens_of(handle, "Once upon a time there was", &n);
    CHECK_EQ(lib.llm_stream_prefill(handle, tokens, n, -1), n);
    generated(handle, 40, &alone);
    lib.llm_stream_close(handle);
    options.flags = 4;
    CHECK(lib.llm_stream_open_ex(&options, &error) == NULL);
    CHECK_TEXT(error, "must be 0 to 3");
    options.flags = ELIZA_OPEN_CONCURRENT_SLOTS;
    handles[0] = lib.llm_stream_open_ex(&options, &error);
    handles[1] = lib.llm_stream_open_slot(handles[0], 1, &error);
    handles[2] = lib.llm_stream_open_slot(handles[0], -1, NULL);
    CHECK(handles[0] != NULL && handles[1] != NULL && handles[2] != NULL);
    CHECK(lib.llm_stream_open_slot(handles[0], 1, &error) == NULL);
    CHECK_TEXT(error, "Slot 1 is that of another handle");
    CHECK(lib.llm_stream_open_slot(handles[0], 3, &error) == NULL);
    CHECK_TEXT(error, "slot 3");
    CHECK_EQ(lib.llm_stream_prefill(handles[0], tokens, n, 1), -1);
    CHECK_EQ(lib.llm_stream_status(handles[0]), ELIZA_ERR_INVALID_ARG);
    CHECK(lib.llm_stream_open_slot(NULL, 0, &error) == NULL);
    CHECK_TEXT(error, "NULL");
    for (i = 0; i < 3; i++) {
        CHECK_EQ(lib.llm_stream_prefill(handles[i], tokens, n, -1), n);
        CHECK_EQ(lib.llm_stream_generate(handles[i], 40, 0.0f, 1.0f, NULL), 0);
    }
    /* The first handle may go before the others. */
    for (i = 0; i < 3; i++) {
        pull_all(handles[i], 32, 512, &each);
        CHECK(each.n_tokens == alone.n_tokens && strcmp(each.text, alone.text) == 0);
        while ((error = lib.llm_stream_take_error(handles[i])) != NULL) lib.free_string(error);
        lib.llm_stream_close(handles[i]);
    }
    while ((error = lib.take_last_error()) != NULL) lib.free_string(error);
    lib.free_tokens(tokens);
}

const struct test_case saving_cases[] = {
    {"conversations", conversations},
    {"save_and_restore", save_and_restore},
    {"slots_at_once", slots_at_once},
    {"wrong_files_to_restore", wrong_files_to_restore},
    {NULL, NULL},
};
