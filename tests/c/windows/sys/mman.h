/* Two pages, of which the second is locked: all that the harness does with mmap. */
#ifndef ELIZA_TEST_MMAN_H
#define ELIZA_TEST_MMAN_H

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#define PROT_NONE 0
#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_PRIVATE 0
#define MAP_ANONYMOUS 0
#define MAP_FAILED NULL
#define _SC_PAGESIZE 0

static inline long sysconf(int name) {
    SYSTEM_INFO info;
    (void)name;
    GetSystemInfo(&info);
    return (long)info.dwPageSize;
}

static inline void * mmap(void * at, size_t len, int access, int flags, int file, long offset) {
    (void)access, (void)flags, (void)file, (void)offset;
    return VirtualAlloc(at, len, MEM_COMMIT | MEM_RESERVE, PAGE_READWRITE);
}

static inline int mprotect(void * at, size_t len, int access) {
    DWORD before;
    (void)access;
    return VirtualProtect(at, len, PAGE_NOACCESS, &before) ? 0 : -1;
}

static inline int munmap(void * at, size_t len) {
    (void)len;
    return VirtualFree(at, 0, MEM_RELEASE) ? 0 : -1;
}

#endif
