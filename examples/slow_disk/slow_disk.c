/* A bad disk to practise on: every open and every read of a file below one folder takes longer.
 *
 *     cc -O2 -shared -fPIC -o slow_disk.so slow_disk.c -ldl
 *     LD_PRELOAD=$PWD/slow_disk.so SLOW_DISK=data/cosmoflow-demo SLOW_DISK_MS=20 mlhpc run cosmoflow ...
 *
 * SLOW_DISK     the folder; nothing is delayed if it is unset or does not exist
 * SLOW_DISK_MS  the delay per request in milliseconds, 10 if unset
 *
 * Linux with glibc. Reads through mmap, and those of a C stream after its fopen, are not delayed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static char folder[4096];
static struct timespec delay;

__attribute__((constructor)) static void configure(void) {
    const char *path = getenv("SLOW_DISK"), *ms = getenv("SLOW_DISK_MS");
    double seconds = (ms ? atof(ms) : 10) / 1000;
    if (!path || !realpath(path, folder)) folder[0] = 0;
    delay.tv_sec = (time_t)seconds;
    delay.tv_nsec = (long)((seconds - delay.tv_sec) * 1e9);
}

/* The kernel names the file of a descriptor: relative paths and links need no work of ours. */
static void wait_for(int fd) {
    char link[32], path[4096];
    size_t length = strlen(folder);
    int before = errno;
    if (!length || fd < 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t count = readlink(link, path, sizeof path - 1);
    if (count > (ssize_t)length && !strncmp(path, folder, length) && path[length] == '/') nanosleep(&delay, NULL);
    errno = before;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { REAL(name); MODE(flags) int fd = real(path, flags, mode); wait_for(fd); return fd; }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { REAL(name); MODE(flags) int fd = real(at, path, flags, mode); wait_for(fd); return fd; }
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { REAL(name); FILE *file = real(path, mode); if (file) wait_for(fileno(file)); return file; }
#define READ(name, declared, passed) \
    ssize_t name declared { REAL(name); wait_for(fd); return real passed; }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)
READ(read, (int fd, void *to, size_t size), (fd, to, size))
READ(pread, (int fd, void *to, size_t size, off_t from), (fd, to, size, from))
READ(pread64, (int fd, void *to, size_t size, off64_t from), (fd, to, size, from))
READ(readv, (int fd, const struct iovec *to, int count), (fd, to, count))
READ(preadv, (int fd, const struct iovec *to, int count, off_t from), (fd, to, count, from))
READ(preadv64, (int fd, const struct iovec *to, int count, off64_t from), (fd, to, count, from))
