/*
 * A disk that is full, or that fails to sync, on demand: a preload library for the crash harness.
 *
 * $TIDEGATE_DISK_FAULT names a file whose first byte says what is wrong now: 'f' fails writes with ENOSPC, 's' fails
 * syncs with EIO, anything else fails nothing. Only regular files whose path contains $TIDEGATE_DISK_PART are concerned.
 * It knows nothing of databases.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const volatile char *fault;
static const char *part = "";

__attribute__((constructor)) static void start(void) {
    const char *wanted = getenv("TIDEGATE_DISK_FAULT");
    const char *path = getenv("TIDEGATE_DISK_PART");
    if (!wanted) return;
    if (path) part = path;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, wanted, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return;
    void *page = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) fault = page;
    syscall(SYS_close, fd);
}

/* Whether this operation is to fail. The path is looked up only then: it costs a call. */
static int strikes(char kind, int fd) {
    char link[64], path[4096];
    struct stat about;
    int error = errno;
    if (!fault || *fault != kind || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        errno = error;
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    errno = error;
    if (length <= 0) return 0;
    path[length] = 0;
    return strstr(path, part) != NULL;
}

#define FAIL(code)    \
    do {              \
        errno = code; \
        return -1;    \
    } while (0)
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) {
    if (strikes('f', fd)) FAIL(ENOSPC);
    return NEXT(pwrite)(fd, bytes, length, at);
}
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) {
    if (strikes('f', fd)) FAIL(ENOSPC);
    return NEXT(pwrite64)(fd, bytes, length, at);
}
ssize_t write(int fd, const void *bytes, size_t length) {
    if (strikes('f', fd)) FAIL(ENOSPC);
    return NEXT(write)(fd, bytes, length);
}
ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) {
    if (strikes('f', fd)) FAIL(ENOSPC);
    return NEXT(pwritev)(fd, pieces, count, at);
}
int posix_fallocate(int fd, off_t at, off_t length) {
    if (strikes('f', fd)) return ENOSPC;
    return NEXT(posix_fallocate)(fd, at, length);
}
int fsync(int fd) {
    if (strikes('s', fd)) FAIL(EIO);
    return NEXT(fsync)(fd);
}
int fdatasync(int fd) {
    if (strikes('s', fd)) FAIL(EIO);
    return NEXT(fdatasync)(fd);
}
