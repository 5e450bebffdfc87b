/* host CASE: opens the library as a host does and runs one case. host --list: names them all.
 *
 * The library must not write to stdout or stderr: both are files here, and empty at the end. */

#include "host.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern int message_fd;

#ifndef GROUPS
#define GROUPS basics_cases, opening_cases, streaming_cases, concurrency_cases, constraint_cases, saving_cases, sampler_cases, \
    asking_cases
#endif
static const struct test_case * const groups[] = {GROUPS};

static void resolve(void * function, const char * name, int required) {
    void * symbol = dlsym(lib.object, name);
    if (required && symbol == NULL) fail(__FILE__, __LINE__, "the library lacks %s", name);
    memcpy(function, &symbol, sizeof symbol);
}

static void load(void) {
    const char * path = getenv("ELIZA_LIBRARY");
    if (path == NULL) fail(__FILE__, __LINE__, "ELIZA_LIBRARY names no library");
    lib.object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (lib.object == NULL) fail(__FILE__, __LINE__, "%s", dlerror());
#define RESOLVE(name) resolve(&lib.name, "eliza_inference_" #name, 1);
    EXPORTS(RESOLVE)
#undef RESOLVE
    resolve(&lib.init_token_trie, "llama_sampler_init_token_trie", 1);
    resolve(&lib.testing_panic, "eliza_testing_panic", 0);
    resolve(&lib.testing_return_status, "eliza_testing_return_status", 0);
    resolve(&lib.testing_echo_bytes, "eliza_testing_echo_bytes", 0);
}

int main(int argc, char ** argv) {
    FILE * output = NULL;
    const struct test_case * found = NULL;
    if (argc != 2) fail(__FILE__, __LINE__, "usage: %s CASE | --list", argv[0]);
    for (size_t group = 0; group < sizeof groups / sizeof groups[0]; group++) {
        for (const struct test_case * at = groups[group]; at->name != NULL; at++) {
            if (strcmp(argv[1], "--list") == 0) puts(at->name);
            if (strcmp(argv[1], at->name) == 0) found = at;
        }
    }
    if (strcmp(argv[1], "--list") == 0) return 0;
    if (found == NULL) fail(__FILE__, __LINE__, "no case %s", argv[1]);
#if !defined(__SANITIZE_ADDRESS__) /* its reports go to stderr */
    output = tmpfile();
    message_fd = dup(2);
    if (output == NULL || message_fd < 0 || dup2(fileno(output), 1) < 0 || dup2(fileno(output), 2) < 0) {
        fail(__FILE__, __LINE__, "cannot redirect the output");
    }
#endif
    load();
    found->run();
    if (output != NULL) {
        char text[512] = "";
        fflush(NULL);
        rewind(output);
        if (fread(text, 1, sizeof text - 1, output) != 0) fail(__FILE__, __LINE__, "the library wrote: %s", text);
        fclose(output);
        dup2(message_fd, 2);
        close(message_fd);
        close(1);
    }
    return 0;
}
