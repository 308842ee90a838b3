/* A slow disk: an LD_PRELOAD library that delays system calls on some files of some ranks, and logs every delay with
 * its time, so that a test knows what was injected from a second clock. Delays are sleeps: they cost no processor time.
 * Out of its reach are files that are mapped into memory (LMDB): their page faults are no calls.
 *
 * SLOW_READS        rules "call:part of the path=milliseconds", separated by commas; call is open, read (also pread),
 *                   preadv, or sleep: a pause of the main thread, with the path "main", as which an emulated step
 *                   passes. The first rule that matches counts; with 0 milliseconds, calls are only logged.
 * SLOW_READS_RANKS  ranks with the slow disk, separated by commas; all if it is not set
 * SLOW_READS_WHEN   "turns N B": of the matching calls of a process, those of every N-th group of B, beginning with the
 *                   group of the rank's number; "random P SEED": each with probability P; always if it is not set
 * SLOW_READS_LOG    file with one line for every matching call, delayed or not: rank, process, time of CLOCK_MONOTONIC
 *                   at its begin, seconds of the delay, call, path
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static long matched; /* calls of this process that matched a rule with a delay */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int rank_of_process(void) {
  const char *rank = getenv("MLHPC_RANK");
  return rank ? atoi(rank) : 0;
}

static int is_slow(int rank) {
  const char *ranks = getenv("SLOW_READS_RANKS");
  if (!ranks) return 1;
  for (char *end; *ranks; ranks = *end ? end + 1 : end)
    if (strtol(ranks, &end, 10) == rank) return 1;
  return 0;
}

static int is_due(int rank, long number) {
  const char *when = getenv("SLOW_READS_WHEN");
  long every, group, seed;
  double share;
  if (!when) return 1;
  if (sscanf(when, "turns %ld %ld", &every, &group) == 2) return (number / group) % every == rank % every;
  if (sscanf(when, "random %lf %ld", &share, &seed) != 2) return 1;
  uint64_t x = (uint64_t)(seed * 1000003 + rank * 7919 + number + 1) * 0x9E3779B97F4A7C15u; /* splitmix64 */
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return (double)((x ^ (x >> 31)) >> 11) / 9007199254740992.0 < share;
}

static void delay(const char *call, const char *path) {
  const char *rules = getenv("SLOW_READS"), *log = getenv("SLOW_READS_LOG");
  size_t length = strlen(call);
  char rule[1024];
  for (; rules && *rules; rules += strcspn(rules, ","), rules += *rules == ',') {
    snprintf(rule, sizeof rule, "%.*s", (int)strcspn(rules, ","), rules);
    char *value = strrchr(rule, '=');
    if (!value || strncmp(rule, call, length) || rule[length] != ':') continue;
    *value = 0;
    if (!strstr(path, rule + length + 1)) continue;
    int rank = rank_of_process();
    double ms = atof(value + 1), begin = now();
    if (ms > 0 && !(is_due(rank, __sync_fetch_and_add(&matched, 1)) && is_slow(rank))) ms = 0;
    struct timespec pause = {(time_t)(ms / 1e3), (long)(1e6 * (ms - 1e3 * (double)(time_t)(ms / 1e3)))};
    if (ms > 0) syscall(SYS_nanosleep, &pause, NULL);
    char line[1400];
    int n = snprintf(line, sizeof line, "%d %d %.6f %.6f %s %s\n", rank, getpid(), begin, now() - begin, call, path);
    int fd = log ? (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (fd >= 0) {
      if (syscall(SYS_write, fd, line, (size_t)n) < 0) abort();
      syscall(SYS_close, fd);
    }
    return;
  }
}

static void delay_opening(const char *path, int flags) {
  if (path && (flags & O_ACCMODE) == O_RDONLY && !(flags & O_DIRECTORY)) delay("open", path);
}

static void delay_reading(const char *call, int fd) {
  const char *rules = getenv("SLOW_READS");
  char link[64], path[1024];
  if (!rules || !strstr(rules, "read")) return;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n > 0) path[n] = 0, delay(call, path);
}

/* Found when the library is loaded: in a child between fork and exec, the lock of dlsym may be held for ever. */
#define NEXT(name)                                                     \
  static __typeof__(name) *next_##name;                                \
  __attribute__((constructor)) static void find_##name(void) {         \
    next_##name = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);         \
  }
#define MODE(flags)                                                    \
  mode_t mode = 0;                                                     \
  if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) {       \
    va_list more;                                                      \
    va_start(more, flags), mode = va_arg(more, mode_t), va_end(more);  \
  }
#define OPEN(name)                                                     \
  NEXT(name)                                                           \
  int name(const char *path, int flags, ...) {                         \
    MODE(flags)                                                        \
    delay_opening(path, flags);                                        \
    return next_##name(path, flags, mode);                             \
  }
#define OPENAT(name)                                                   \
  NEXT(name)                                                           \
  int name(int folder, const char *path, int flags, ...) {             \
    MODE(flags)                                                        \
    delay_opening(path, flags);                                        \
    return next_##name(folder, path, flags, mode);                     \
  }
#define FOPEN(name)                                                    \
  NEXT(name)                                                           \
  FILE *name(const char *restrict path, const char *restrict how) {    \
    delay_opening(path, *how == 'r' ? O_RDONLY : O_WRONLY);            \
    return next_##name(path, how);                                     \
  }
#define READING(call, name, with, given)                               \
  NEXT(name)                                                           \
  ssize_t name with {                                                  \
    delay_reading(call, fd);                                           \
    return next_##name given;                                          \
  }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)
READING("read", read, (int fd, void *to, size_t size), (fd, to, size))
READING("read", pread, (int fd, void *to, size_t size, off_t at), (fd, to, size, at))
READING("read", pread64, (int fd, void *to, size_t size, off64_t at), (fd, to, size, at))
READING("preadv", preadv, (int fd, const struct iovec *to, int n, off_t at), (fd, to, n, at))
READING("preadv", preadv64, (int fd, const struct iovec *to, int n, off64_t at), (fd, to, n, at))
READING("preadv", preadv2, (int fd, const struct iovec *to, int n, off_t at, int how), (fd, to, n, at, how))
READING("preadv", preadv64v2, (int fd, const struct iovec *to, int n, off64_t at, int how), (fd, to, n, at, how))

NEXT(clock_nanosleep)
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
  int result = next_clock_nanosleep(clock, flags, until, left);
  if (syscall(SYS_gettid) == getpid()) delay("sleep", "main");
  return result;
}
