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

/* As UTF-8, which the C library's own function is not. */
static inline char * utf8_getenv(const char * name) {
    static char texts[4][4096];
    static int next;
    wchar_t wide_name[64], wide[2048];
    char * text = texts[next++ % 4];
    MultiByteToWideChar(CP_UTF8, 0, name, -1, wide_name, 64);
    if (GetEnvironmentVariableW(wide_name, wide, 2048) == 0) return NULL;
    return WideCharToMultiByte(CP_UTF8, 0, wide, -1, text, 4096, NULL, NULL) == 0 ? NULL : text;
}
#define getenv utf8_getenv

static inline int unsetenv(const char * name) {
    return SetEnvironmentVariableA(name, NULL) ? 0 : -1;
}

#endif
