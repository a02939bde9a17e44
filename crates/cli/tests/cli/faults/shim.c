/* Fault injection into libc: loaded by LD_PRELOAD, it makes the n-th call of one kind fail.
 *
 * FAULT_KIND    what fails: read, open, write, sync, rename, unlink, mkdir, mmap, truncate, stat, thread, lock, disk; of connections
 *               socket, option, accept, connect, receive, send, poll
 * FAULT_ERROR   the errno that the call returns, or 0 for a short read or write
 * FAULT_AT      which call of the kind fails, from 1; for disk, how many bytes fit onto it
 * FAULT_UNDER   only calls about paths that begin with this count (threads and connections aside)
 * FAULT_SAID    a file that is created when the fault fires, so that a loop over the calls knows when to end
 * FAULT_CLOCK   seconds that the clock jumps (monotonic and real time) at every FAULT_AT-th query
 *
 * Other calls go to libc unchanged. Of the variants of a call in libc (open, open64, openat, ...) only those that a Rust
 * program uses are wrapped. Linux with glibc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const char *kind, *under, *said;
static long at, error_number, clock_jump, budget;
static long calls; /* of the kind */
static int is_ready;

__attribute__((constructor)) static void begin(void) {
    kind = getenv("FAULT_KIND");
    under = getenv("FAULT_UNDER");
    said = getenv("FAULT_SAID");
    at = getenv("FAULT_AT") ? atol(getenv("FAULT_AT")) : 0;
    error_number = getenv("FAULT_ERROR") ? atol(getenv("FAULT_ERROR")) : 0;
    clock_jump = getenv("FAULT_CLOCK") ? atol(getenv("FAULT_CLOCK")) : 0;
    budget = at;
    is_ready = 1;
}

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }
#define NEXT(name) ({ static __typeof__(&name) f; if (!f) f = (__typeof__(&name))next(#name); f; })

static void tell(void) {
    if (!said) return;
    long fd = syscall(SYS_openat, AT_FDCWD, said, O_CREAT | O_WRONLY, 0600);
    if (fd >= 0) syscall(SYS_close, fd);
}

static int is_kind(const char *name) { return is_ready && kind && !strcmp(kind, name); }

/* Whether a path counts. Relative ones do not: tests use absolute paths. */
static int is_under(const char *path) { return path && under && !strncmp(path, under, strlen(under)); }

static int fd_counts(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long len = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (len <= 0) return 0;
    path[len] = 0;
    return is_under(path);
}

/* Whether a path counts that is relative to an open folder. */
static int is_at(int folder, const char *path) { return is_under(path) || (path && *path != '/' && fd_counts(folder)); }

/* Whether this call of the kind is the one that fails. */
static int fires(void) {
    if (__atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) != at) return 0;
    tell();
    return 1;
}

#define FAIL_WHERE(name, counts)                                                                                      \
    if (is_kind(name) && (counts) && fires()) {                                                                       \
        errno = (int)error_number;                                                                                    \
        return -1;                                                                                                    \
    }

/* Whether a descriptor is a network connection, and not one between threads of the program. */
static int is_network(int fd) {
    struct sockaddr_storage own;
    socklen_t len = sizeof own;
    if (getsockname(fd, (struct sockaddr *)&own, &len)) return 0;
    return own.ss_family == AF_INET || own.ss_family == AF_INET6;
}

/* Reading and writing: error 0 is a short call. */
#define SHORTENED(name, counts, len)                                                                                  \
    if (is_kind(name) && (counts) && fires()) {                                                                       \
        if (error_number) {                                                                                           \
            errno = (int)error_number;                                                                                \
            return -1;                                                                                                \
        }                                                                                                             \
        if ((len) > 1) (len) /= 2;                                                                                    \
    }

/* How much of a write fits onto the disk; -1 if it is full. */
static long fits(int fd, size_t len) {
    if (!is_kind("disk") || !fd_counts(fd)) return (long)len;
    if (budget <= 0 && len > 0) {
        tell();
        errno = ENOSPC;
        return -1;
    }
    long now = (long)len < budget ? (long)len : budget;
    budget -= now;
    return now;
}

ssize_t read(int fd, void *to, size_t len) {
    SHORTENED("read", fd_counts(fd), len)
    return NEXT(read)(fd, to, len);
}

ssize_t pread64(int fd, void *to, size_t len, off64_t offset) {
    SHORTENED("read", fd_counts(fd), len)
    return NEXT(pread64)(fd, to, len, offset);
}

ssize_t readv(int fd, const struct iovec *parts, int count) {
    FAIL_WHERE("read", error_number && fd_counts(fd))
    return NEXT(readv)(fd, parts, count);
}

ssize_t write(int fd, const void *from, size_t len) {
    SHORTENED("write", fd_counts(fd), len)
    long now = fits(fd, len);
    if (now < 0) return -1;
    return NEXT(write)(fd, from, (size_t)now);
}

ssize_t pwrite64(int fd, const void *from, size_t len, off64_t offset) {
    SHORTENED("write", fd_counts(fd), len)
    long now = fits(fd, len);
    if (now < 0) return -1;
    return NEXT(pwrite64)(fd, from, (size_t)now, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    FAIL_WHERE("write", error_number && fd_counts(fd))
    if (is_kind("send") && is_network(fd) && count > 0 && fires()) {
        if (!error_number) return NEXT(write)(fd, parts[0].iov_base, (parts[0].iov_len + 1) / 2);
        errno = (int)error_number;
        return -1;
    }
    if (is_kind("disk") && fd_counts(fd) && count > 0) {
        long now = fits(fd, parts[0].iov_len);
        if (now < 0) return -1;
        return NEXT(write)(fd, parts[0].iov_base, (size_t)now);
    }
    return NEXT(writev)(fd, parts, count);
}

#define MODE(flags)                                                                                                   \
    int mode = 0;                                                                                                     \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                            \
        va_list all;                                                                                                  \
        va_start(all, flags);                                                                                         \
        mode = va_arg(all, int);                                                                                      \
        va_end(all);                                                                                                  \
    }

int open(const char *path, int flags, ...) {
    MODE(flags)
    FAIL_WHERE("open", is_under(path))
    return NEXT(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE(flags)
    FAIL_WHERE("open", is_under(path))
    return NEXT(open64)(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    MODE(flags)
    FAIL_WHERE("open", is_at(folder, path))
    return NEXT(openat)(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags)
    FAIL_WHERE("open", is_at(folder, path))
    return NEXT(openat64)(folder, path, flags, mode);
}

int fsync(int fd) {
    FAIL_WHERE("sync", fd_counts(fd))
    return NEXT(fsync)(fd);
}

int fdatasync(int fd) {
    FAIL_WHERE("sync", fd_counts(fd))
    return NEXT(fdatasync)(fd);
}

int rename(const char *from, const char *to) {
    FAIL_WHERE("rename", is_under(to))
    return NEXT(rename)(from, to);
}

int renameat(int a, const char *from, int b, const char *to) {
    FAIL_WHERE("rename", is_at(b, to))
    return NEXT(renameat)(a, from, b, to);
}

int link(const char *from, const char *to) {
    FAIL_WHERE("rename", is_under(to))
    return NEXT(link)(from, to);
}

int linkat(int a, const char *from, int b, const char *to, int flags) {
    FAIL_WHERE("rename", is_at(b, to))
    return NEXT(linkat)(a, from, b, to, flags);
}

int symlink(const char *target, const char *to) {
    FAIL_WHERE("rename", is_under(to))
    return NEXT(symlink)(target, to);
}

int symlinkat(const char *target, int folder, const char *to) {
    FAIL_WHERE("rename", is_at(folder, to))
    return NEXT(symlinkat)(target, folder, to);
}

int unlink(const char *path) {
    FAIL_WHERE("unlink", is_under(path))
    return NEXT(unlink)(path);
}

int unlinkat(int folder, const char *path, int flags) {
    FAIL_WHERE("unlink", is_at(folder, path))
    return NEXT(unlinkat)(folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    FAIL_WHERE("mkdir", is_under(path))
    return NEXT(mkdir)(path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode) {
    FAIL_WHERE("mkdir", is_at(folder, path))
    return NEXT(mkdirat)(folder, path, mode);
}

void *mmap(void *where, size_t len, int protection, int flags, int fd, off_t offset) {
    if (fd >= 0 && is_kind("mmap") && fd_counts(fd) && fires()) {
        errno = (int)error_number;
        return MAP_FAILED;
    }
    return NEXT(mmap)(where, len, protection, flags, fd, offset);
}

void *mmap64(void *where, size_t len, int protection, int flags, int fd, off64_t offset) {
    if (fd >= 0 && is_kind("mmap") && fd_counts(fd) && fires()) {
        errno = (int)error_number;
        return MAP_FAILED;
    }
    return NEXT(mmap64)(where, len, protection, flags, fd, offset);
}

int ftruncate64(int fd, off64_t len) {
    FAIL_WHERE("truncate", fd_counts(fd))
    return NEXT(ftruncate64)(fd, len);
}

int statx(int folder, const char *restrict path, int flags, unsigned mask, struct statx *restrict found) {
    /* Rust probes for this call with a null pointer, which glibc declares to be impossible. */
    const char *volatile asked = path;
    const char *name = asked;
    FAIL_WHERE("stat", name && (*name ? is_under(name) : fd_counts(folder)))
    return NEXT(statx)(folder, path, flags, mask, found);
}

int fstat64(int fd, struct stat64 *found) {
    FAIL_WHERE("stat", fd_counts(fd))
    return NEXT(fstat64)(fd, found);
}

int flock(int fd, int operation);
int flock(int fd, int operation) {
    FAIL_WHERE("lock", fd_counts(fd))
    return NEXT(flock)(fd, operation);
}

int socket(int family, int type, int protocol) {
    FAIL_WHERE("socket", family == AF_INET || family == AF_INET6)
    return NEXT(socket)(family, type, protocol);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t len) {
    FAIL_WHERE("option", is_network(fd))
    return NEXT(setsockopt)(fd, level, name, value, len);
}

int accept4(int fd, struct sockaddr *from, socklen_t *len, int flags) {
    FAIL_WHERE("accept", is_network(fd))
    return NEXT(accept4)(fd, from, len, flags);
}

int connect(int fd, const struct sockaddr *to, socklen_t len) {
    FAIL_WHERE("connect", to->sa_family == AF_INET || to->sa_family == AF_INET6)
    return NEXT(connect)(fd, to, len);
}

ssize_t recv(int fd, void *to, size_t len, int flags) {
    SHORTENED("receive", is_network(fd), len)
    return NEXT(recv)(fd, to, len, flags);
}

ssize_t send(int fd, const void *from, size_t len, int flags) {
    SHORTENED("send", is_network(fd), len)
    return NEXT(send)(fd, from, len, flags);
}

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout) {
    FAIL_WHERE("poll", 1)
    return NEXT(epoll_wait)(fd, events, most, timeout);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with) {
    if (is_kind("thread") && fires()) return (int)error_number;
    return NEXT(pthread_create)(thread, how, run, with);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __thread int is_within;
    static __typeof__(&clock_gettime) f;
    if (!f && !is_within) {
        is_within = 1;
        f = (__typeof__(&clock_gettime))next("clock_gettime");
        is_within = 0;
    }
    if (!f) return (int)syscall(SYS_clock_gettime, clock, now);
    int done = f(clock, now);
    if (!done && clock_jump && is_ready && at > 0) {
        long asked = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
        now->tv_sec += clock_jump * (asked / at % 2);
        if (now->tv_sec < 0) now->tv_sec = 0;
    }
    return done;
}
