/* Let the n-th operation on files below a folder fail; to be preloaded (benchmarks/inject_faults.py).

   Counted are calls that write, sync, truncate, rename or create. With errno ENOSPC the disk stays full: a write comes out
   half, then every further one fails. Any other error happens once. The clock of the day can jump by years at every look. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static char folder[PATH_MAX];
static size_t folder_length;
static long fail_at, counted;
static int error_number;
static char failed[PATH_MAX + 64];

void arm(const char *prefix, long number, int error) {
    folder_length = strlen(prefix);
    memcpy(folder, prefix, folder_length + 1);
    counted = 0;
    fail_at = number;
    error_number = error;
    failed[0] = 0;
}
long operations(void) { return counted; }

static long jump_seconds, looks;

void jump(long seconds) { jump_seconds = seconds; }
static long jumped(void) { return jump_seconds * (__atomic_add_fetch(&looks, 1, __ATOMIC_SEQ_CST) % 3 - 1); }
const char *failed_operation(void) { return failed; }

static int below(const char *path) {
    char whole[2 * PATH_MAX], here[PATH_MAX];
    if (!folder_length || !path) return 0;
    if (path[0] != '/') {
        if (!getcwd(here, sizeof here)) return 0;
        snprintf(whole, sizeof whole, "%s/%s", here, path);
        path = whole;
    }
    return !strncmp(path, folder, folder_length) && (!path[folder_length] || path[folder_length] == '/');
}

/* 0: go on; 1: fail with errno set; 2: fail, but a write comes out half. */
static int verdict(const char *operation, const char *path) {
    long number = __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST);
    if (!fail_at || number < fail_at) return 0;
    if (number > fail_at && error_number != ENOSPC) return 0;
    if (number == fail_at) snprintf(failed, sizeof failed, "%s %s", operation, path);
    errno = error_number;
    return number == fail_at && error_number == ENOSPC ? 2 : 1;
}
static int of_path(const char *operation, const char *path) { return below(path) ? verdict(operation, path) : 0; }
static int of_file(const char *operation, int file) {
    char link[64], path[PATH_MAX];
    if (!folder_length) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return of_path(operation, path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *bytes, size_t size) {
    int how = of_file("write", file);
    if (how == 2 && size > 1) return NEXT(write)(file, bytes, size / 2);
    return how ? -1 : NEXT(write)(file, bytes, size);
}
ssize_t pwrite(int file, const void *bytes, size_t size, off_t at) {
    return of_file("write", file) ? -1 : NEXT(pwrite)(file, bytes, size, at);
}
ssize_t pwrite64(int file, const void *bytes, size_t size, off64_t at) {
    return of_file("write", file) ? -1 : NEXT(pwrite64)(file, bytes, size, at);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    return of_file("write", file) ? -1 : NEXT(writev)(file, parts, count);
}
size_t fwrite(const void *bytes, size_t size, size_t count, FILE *stream) {
    int how = of_file("write", fileno(stream));
    if (how == 2) return NEXT(fwrite)(bytes, size, count / 2, stream);
    return how ? 0 : NEXT(fwrite)(bytes, size, count, stream);
}
int fsync(int file) { return of_file("sync", file) ? -1 : NEXT(fsync)(file); }
int fdatasync(int file) { return of_file("sync", file) ? -1 : NEXT(fdatasync)(file); }
int ftruncate(int file, off_t size) { return of_file("truncate", file) ? -1 : NEXT(ftruncate)(file, size); }
int ftruncate64(int file, off64_t size) { return of_file("truncate", file) ? -1 : NEXT(ftruncate64)(file, size); }
int rename(const char *old, const char *new) { return of_path("rename", new) ? -1 : NEXT(rename)(old, new); }
int renameat(int at, const char *old, int to, const char *new) {
    return of_path("rename", new) ? -1 : NEXT(renameat)(at, old, to, new);
}
int mkdir(const char *path, mode_t mode) { return of_path("mkdir", path) ? -1 : NEXT(mkdir)(path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { return of_path("mkdir", path) ? -1 : NEXT(mkdirat)(at, path, mode); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failure = NEXT(clock_gettime)(clock, now);
    if (!failure && jump_seconds && clock == CLOCK_REALTIME) now->tv_sec += jumped();
    return failure;
}
int gettimeofday(struct timeval *now, void *zone) {
    int failure = NEXT(gettimeofday)(now, zone);
    if (!failure && jump_seconds) now->tv_sec += jumped();
    return failure;
}
time_t time(time_t *store) {
    time_t now = NEXT(time)(NULL) + (jump_seconds ? jumped() : 0);
    if (store) *store = now;
    return now;
}

#define MODE(flags)                                 \
    mode_t mode = 0;                                \
    if ((flags) & (O_CREAT | O_TMPFILE)) {          \
        va_list rest;                               \
        va_start(rest, flags);                      \
        mode = va_arg(rest, mode_t);                \
        va_end(rest);                               \
    }                                               \
    if (((flags) & O_CREAT) && of_path("create", path)) return -1;

int open(const char *path, int flags, ...) {
    MODE(flags)
    return NEXT(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags)
    return NEXT(open64)(path, flags, mode);
}
int openat(int at, const char *path, int flags, ...) {
    MODE(flags)
    return NEXT(openat)(at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
    MODE(flags)
    return NEXT(openat64)(at, path, flags, mode);
}
