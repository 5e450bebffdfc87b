/* Included before everything else of the harness. */
#ifndef ELIZA_TEST_ENVIRONMENT_H
#define ELIZA_TEST_ENVIRONMENT_H

#include <stdlib.h>

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

/* The library asks the system, not the C library. */
static inline int setenv(const char * name, const char * value, int replace) {
    (void)replace;
    return SetEnvironmentVariableA(name, value) ? 0 : -1;
}

static inline int unsetenv(const char * name) {
    return SetEnvironmentVariableA(name, NULL) ? 0 : -1;
}

#endif
