/* What the harness takes from POSIX and mingw does not have. Paths are UTF-8, as the library's are. */
#ifndef ELIZA_TEST_DLFCN_H
#define ELIZA_TEST_DLFCN_H

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#define RTLD_NOW 0
#define RTLD_LOCAL 0
#define RTLD_NOLOAD 1

static inline void * dlopen(const char * path, int mode) {
    wchar_t wide[1024];
    if (MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, 1024) == 0) return NULL;
    return (void *)(mode == RTLD_NOLOAD ? GetModuleHandleW(wide) : LoadLibraryW(wide));
}

static inline void * dlsym(void * object, const char * name) {
    union { FARPROC function; void * object; } found;
    found.function = GetProcAddress((HMODULE)object, name);
    return found.object;
}

static inline int dlclose(void * object) {
    return FreeLibrary((HMODULE)object) ? 0 : -1;
}

static inline const char * dlerror(void) {
    return "LoadLibrary failed";
}

#endif
