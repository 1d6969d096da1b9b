/*
 * Loses power on demand: a preload library for the crash harness.
 *
 * kill -9 keeps the page cache, so it cannot show a missing fsync. This library stands between a program and the C
 * library, remembers the old bytes of every write to files under $TIDEGATE_POWERLOSS_DIR, and forgets them when that
 * file is synced. On SIGUSR1 it puts the old bytes back, newest first, sizes included, and ends the process at once:
 * what is left is what a disk would hold. With $TIDEGATE_POWERLOSS_KEEP=percent:seed some of the unsynced writes are
 * then put in again, in order, because a disk may write any of them early.
 *
 * It knows nothing of databases. Directory entries count as durable at once. It never closes its own descriptors:
 * closing one would drop the POSIX locks that the program holds on the same file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_FILES 256
#define MAX_DESCRIPTORS 4096
#define EXIT_POWER_LOST 99
#define EXIT_SHIM_BROKEN 98

struct undo {
    struct undo *older;
    unsigned long number;
    int file;       /* index into files, or -1 once it is synced */
    int truncation; /* else a write */
    off_t at;       /* where the bytes stood; for a truncation the new size */
    off_t old_size;
    size_t length; /* bytes saved */
    size_t written;
    unsigned char *bytes;
    unsigned char *redo;
};

struct file {
    dev_t device;
    ino_t inode;
    int own; /* our own descriptor, open as long as the process lives */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct file files[MAX_FILES];
static int file_count;
static int descriptors[MAX_DESCRIPTORS]; /* index into files plus one */
static struct undo *newest;
static unsigned long undo_number;
static char folder[4096];
static size_t folder_length;
static unsigned keep_percent;
static unsigned long long keep_state = 1;

static void broken(const char *why) {
    static const char prefix[] = "powerloss shim: ";
    syscall(SYS_write, 2, prefix, sizeof prefix - 1);
    syscall(SYS_write, 2, why, strlen(why));
    syscall(SYS_write, 2, "\n", 1);
    syscall(SYS_exit_group, EXIT_SHIM_BROKEN);
}

static void *must_allocate(size_t size) {
    void *memory = malloc(size ? size : 1);
    if (!memory) broken("out of memory");
    return memory;
}

static void read_all(int fd, unsigned char *to, size_t length, off_t at) {
    size_t done = 0;
    while (done < length) {
        long count = syscall(SYS_pread64, fd, to + done, length - done, at + (off_t)done);
        if (count <= 0) broken("cannot read old bytes");
        done += (size_t)count;
    }
}

static void write_all(int fd, const unsigned char *from, size_t length, off_t at) {
    size_t done = 0;
    while (done < length) {
        long count = syscall(SYS_pwrite64, fd, from + done, length - done, at + (off_t)done);
        if (count <= 0) broken("cannot put bytes back");
        done += (size_t)count;
    }
}

static off_t size_of(int fd) {
    struct stat about;
    if (fstat(fd, &about) != 0) broken("cannot stat");
    return about.st_size;
}

static int tracked(int fd) {
    return folder_length && fd >= 0 && fd < MAX_DESCRIPTORS ? descriptors[fd] - 1 : -1;
}

/* Remembers which file a new descriptor belongs to. The index that processes share in memory is not durable anyway. */
static void track(int fd) {
    char link[64], path[4096];
    struct stat about;
    if (!folder_length || fd < 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length <= 0) return;
    path[length] = 0;
    if (strncmp(path, folder, folder_length) != 0 || path[folder_length] != '/') return;
    if (length > 4 && strcmp(path + length - 4, "-shm") == 0) return;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) return;
    if (fd >= MAX_DESCRIPTORS) broken("too many descriptors");
    pthread_mutex_lock(&lock);
    int index = 0;
    while (index < file_count && !(files[index].device == about.st_dev && files[index].inode == about.st_ino)) index++;
    if (index == file_count) {
        if (file_count == MAX_FILES) broken("too many files");
        long own = syscall(SYS_openat, AT_FDCWD, link, O_RDWR | O_CLOEXEC, 0);
        if (own < 0) broken("cannot open a file again");
        files[file_count++] = (struct file){about.st_dev, about.st_ino, (int)own};
    }
    descriptors[fd] = index + 1;
    pthread_mutex_unlock(&lock);
}

/* Saves what a change of [at, at + length) or of the size is about to destroy. Called with the lock held. */
static void remember(int index, int truncation, off_t at, size_t length) {
    struct undo *undo = must_allocate(sizeof *undo);
    off_t size = size_of(files[index].own);
    off_t from = at, to = truncation ? size : at + (off_t)length;
    if (to > size) to = size;
    *undo = (struct undo){newest, ++undo_number, index, truncation, at, size, 0, truncation ? 0 : length, NULL, NULL};
    if (to > from) {
        undo->length = (size_t)(to - from);
        undo->bytes = must_allocate(undo->length);
        read_all(files[index].own, undo->bytes, undo->length, from);
    }
    newest = undo;
}

/* A sync makes durable what was written before it began. */
static int synced(int fd, long number) {
    int index = tracked(fd);
    if (index < 0) return (int)syscall(number, fd);
    pthread_mutex_lock(&lock);
    unsigned long covers = undo_number;
    pthread_mutex_unlock(&lock);
    int answer = (int)syscall(number, fd);
    if (answer != 0) return answer;
    pthread_mutex_lock(&lock);
    for (struct undo **next = &newest; *next;) {
        struct undo *undo = *next;
        if (undo->file == index && undo->number <= covers) {
            *next = undo->older;
            free(undo->bytes);
            free(undo);
        } else {
            next = &undo->older;
        }
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

static unsigned next_percent(void) {
    keep_state = keep_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)((keep_state >> 33) % 100);
}

static void apply_again(const struct undo *undo) {
    int own = files[undo->file].own;
    if (undo->truncation) {
        syscall(SYS_ftruncate, own, undo->at);
    } else {
        write_all(own, undo->redo, undo->written, undo->at);
    }
}

static void lose_power(void) {
    struct undo *oldest = NULL;
    pthread_mutex_lock(&lock);
    for (struct undo *undo = newest, *older; undo; undo = older) {
        int own = files[undo->file].own;
        if (!undo->truncation && keep_percent) {
            /* All later writes are undone, so what stands there now is what this one wrote. */
            off_t size = size_of(own);
            off_t there = size > undo->at ? size - undo->at : 0;
            if ((off_t)undo->written > there) undo->written = (size_t)there;
            undo->redo = must_allocate(undo->written);
            read_all(own, undo->redo, undo->written, undo->at);
        }
        if (undo->length) write_all(own, undo->bytes, undo->length, undo->at);
        if (syscall(SYS_ftruncate, own, undo->old_size) != 0) broken("cannot set a size back");
        older = undo->older;
        undo->older = oldest;
        oldest = undo;
    }
    for (struct undo *undo = oldest; undo && keep_percent; undo = undo->older) {
        if (next_percent() < keep_percent) apply_again(undo);
    }
    syscall(SYS_exit_group, EXIT_POWER_LOST);
}

static void *wait_for_power_loss(void *unused) {
    sigset_t set;
    int signal_number;
    (void)unused;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    while (sigwait(&set, &signal_number) != 0) {
    }
    lose_power();
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    const char *wanted = getenv("TIDEGATE_POWERLOSS_DIR");
    const char *keep = getenv("TIDEGATE_POWERLOSS_KEEP");
    pthread_t thread;
    sigset_t set;
    if (!wanted || !*wanted) return;
    if (!realpath(wanted, folder)) broken("TIDEGATE_POWERLOSS_DIR is not a folder");
    folder_length = strlen(folder);
    if (keep && sscanf(keep, "%u:%llu", &keep_percent, &keep_state) != 2) broken("TIDEGATE_POWERLOSS_KEEP is not percent:seed");
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    /* Blocked here, before any other thread exists, so that all threads inherit it. */
    if (pthread_sigmask(SIG_BLOCK, &set, NULL) != 0) broken("cannot block SIGUSR1");
    if (pthread_create(&thread, NULL, wait_for_power_loss, NULL) != 0) broken("cannot start a thread");
}

static int opened(long fd, int flags) {
    if (fd >= 0) {
        if (flags & O_TRUNC && folder_length) {
            /* Not used by what we test; a truncation at open would go unseen. */
            char link[64], path[4096];
            snprintf(link, sizeof link, "/proc/self/fd/%ld", fd);
            long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
            if (length > (long)folder_length && strncmp(path, folder, folder_length) == 0) broken("O_TRUNC in the folder");
        }
        track((int)fd);
    }
    return (int)fd;
}

static mode_t mode_of(int flags, va_list list) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
}

#define OPEN(name)                                                              \
    int name(const char *path, int flags, ...) {                                \
        va_list list;                                                           \
        va_start(list, flags);                                                  \
        mode_t mode = mode_of(flags, list);                                     \
        va_end(list);                                                           \
        return opened(syscall(SYS_openat, AT_FDCWD, path, flags, mode), flags); \
    }
#define OPENAT(name)                                                       \
    int name(int at, const char *path, int flags, ...) {                   \
        va_list list;                                                      \
        va_start(list, flags);                                             \
        mode_t mode = mode_of(flags, list);                                \
        va_end(list);                                                      \
        return opened(syscall(SYS_openat, at, path, flags, mode), flags);  \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
    if (tracked(fd) >= 0) {
        pthread_mutex_lock(&lock);
        descriptors[fd] = 0;
        pthread_mutex_unlock(&lock);
    }
    return (int)syscall(SYS_close, fd);
}

static ssize_t written_at(int fd, const void *bytes, size_t length, off_t at) {
    int index = tracked(fd);
    if (index < 0) return syscall(SYS_pwrite64, fd, bytes, length, at);
    pthread_mutex_lock(&lock);
    remember(index, 0, at, length);
    ssize_t count = syscall(SYS_pwrite64, fd, bytes, length, at);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return count;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) { return written_at(fd, bytes, length, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) { return written_at(fd, bytes, length, at); }

ssize_t write(int fd, const void *bytes, size_t length) {
    int index = tracked(fd);
    if (index < 0) return syscall(SYS_write, fd, bytes, length);
    pthread_mutex_lock(&lock);
    off_t at = fcntl(fd, F_GETFL) & O_APPEND ? size_of(fd) : syscall(SYS_lseek, fd, 0, SEEK_CUR);
    remember(index, 0, at, length);
    ssize_t count = syscall(SYS_write, fd, bytes, length);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return count;
}

static int truncated(int fd, off_t size) {
    int index = tracked(fd);
    if (index < 0) return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    remember(index, 1, size, 0);
    int answer = (int)syscall(SYS_ftruncate, fd, size);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return answer;
}

int ftruncate(int fd, off_t size) { return truncated(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncated(fd, size); }
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* Ways to change a file that this library does not follow must not be used on its files. */
static void *mapped(void *address, size_t length, int protection, int flags, int fd, off_t at) {
    if (tracked(fd) >= 0 && protection & PROT_WRITE && flags & MAP_SHARED) broken("a shared writable mapping");
    return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, at);
}
void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t at) {
    return mapped(address, length, protection, flags, fd, at);
}
void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t at) {
    return mapped(address, length, protection, flags, fd, at);
}
int posix_fallocate(int fd, off_t at, off_t length) {
    if (tracked(fd) >= 0) broken("posix_fallocate");
    return syscall(SYS_fallocate, fd, 0, at, length) == 0 ? 0 : errno;
}
