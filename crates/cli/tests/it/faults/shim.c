/* Disk faults, for a process that is started with LD_PRELOAD. They affect the files in the folder
 * ONWARD_FAULT_DATA. Files in the folder ONWARD_FAULT_CONTROL set the current faults:
 *
 *   full      writes have no room (ENOSPC)
 *   readonly  nothing can be written or opened for writing (EROFS)
 *   sync      holds a number k: the k-th sync of the database or its log fails (EIO), others do not
 *   abort     holds a number k: the process dies before the k-th write to the database file itself
 *
 * With ONWARD_FAULT_POWER, which names a file, every change to the database and its log is also appended to that file,
 * and a sync does nothing but stand there: `power.rs` reads it and decides what of it a power cut would have left.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int control(const char *flag, char *path) {
    const char *folder = getenv("ONWARD_FAULT_CONTROL");
    return folder && snprintf(path, PATH_MAX, "%s/%s", folder, flag) < PATH_MAX && access(path, F_OK) == 0;
}

/* Whether this call is the k-th since the process began to count. */
static int is_turn(const char *flag, int *count) {
    char path[PATH_MAX];
    if (!control(flag, path)) return 0;
    FILE *file = fopen(path, "r");
    int turn = 0;
    if (!file) return 0;
    if (fscanf(file, "%d", &turn) != 1) turn = 0;
    fclose(file);
    return turn > 0 && __sync_add_and_fetch(count, 1) == turn;
}

/* The part of a path after the data folder; NULL for other files. */
static const char *in_data(const char *path) {
    const char *folder = getenv("ONWARD_FAULT_DATA");
    size_t length = folder ? strlen(folder) : 0;
    return length && strncmp(path, folder, length) == 0 && path[length] == '/' ? path + length + 1 : NULL;
}

static const char *name_of(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return NULL;
    path[length] = 0;
    return in_data(path);
}

/* 0, or the error with which a write to this file must fail. */
static int refusal(int file) {
    static int writes;
    int kept = errno, error = 0;
    char flag[PATH_MAX], path[PATH_MAX];
    int is_full = control("full", flag), is_readonly = control("readonly", flag), aborts = control("abort", flag);
    if (is_full || is_readonly || aborts) {
        const char *name = name_of(file, path);
        if (name && is_full) error = ENOSPC;
        if (name && is_readonly) error = EROFS;
        if (name && aborts && strcmp(name, "onward.db") == 0 && is_turn("abort", &writes)) abort();
    }
    errno = error ? error : kept;
    return error;
}

static int sync_fails(int file) {
    static int syncs;
    int kept = errno;
    char flag[PATH_MAX], path[PATH_MAX];
    if (control("sync", flag)) {
        const char *name = name_of(file, path);
        if (name && strncmp(name, "onward.db", 9) == 0 && is_turn("sync", &syncs)) {
            errno = EIO;
            return 1;
        }
    }
    errno = kept;
    return 0;
}

/* A change or a sync as `power.rs` reads it. The file's name and the bytes of a write follow. */
struct entry {
    /* W: bytes at `at`, T: `at` is the new length, B and E: the begin and the end of the sync `id`, U: removed */
    uint8_t what;
    uint8_t name;
    uint16_t unused;
    uint32_t bytes;
    uint64_t at;
    uint64_t id;
};

/* Held from before a change until it is in the log, so that the log has the order in which changes were made. */
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;

static int put(int log, const void *bytes, size_t count) {
    while (count > 0) {
        ssize_t done = REAL(write)(log, bytes, count);
        if (done < 0 && errno != EINTR) return -1;
        if (done > 0) bytes = (const char *)bytes + done, count -= done;
    }
    return 0;
}

/* The name, if a power cut would lose what this file has not synced. The index in shared memory is made anew at each
 * start. */
static const char *of_store(const char *name) {
    if (!name || !getenv("ONWARD_FAULT_POWER")) return NULL;
    return strncmp(name, "onward.db", 9) == 0 && strcmp(name, "onward.db-shm") != 0 ? name : NULL;
}

static const char *is_logged(int file, char *path) {
    if (!getenv("ONWARD_FAULT_POWER")) return NULL;
    int kept = errno;
    const char *name = of_store(name_of(file, path));
    errno = kept;
    return name;
}

/* Call it with `order` held. */
static void note(char what, const char *name, uint64_t at, uint64_t id, const void *bytes, size_t count) {
    static int log = -1;
    int kept = errno;
    if (log < 0) log = REAL(open)(getenv("ONWARD_FAULT_POWER"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    struct entry entry = {what, strlen(name), 0, count, at, id};
    if (log < 0 || put(log, &entry, sizeof entry) || put(log, name, entry.name) || put(log, bytes, count)) abort();
    errno = kept;
}

static ssize_t write_at(int file, const void *bytes, size_t count, off64_t at, int has_place) {
    if (refusal(file)) return -1;
    char path[PATH_MAX];
    const char *name = is_logged(file, path);
    if (!name) return has_place ? REAL(pwrite64)(file, bytes, count, at) : REAL(write)(file, bytes, count);
    pthread_mutex_lock(&order);
    if (!has_place) at = lseek64(file, 0, SEEK_CUR);
    ssize_t done = has_place ? REAL(pwrite64)(file, bytes, count, at) : REAL(write)(file, bytes, count);
    if (done > 0) note('W', name, at, 0, bytes, done);
    pthread_mutex_unlock(&order);
    return done;
}

static int truncate_to(int file, off64_t length) {
    if (refusal(file)) return -1;
    char path[PATH_MAX];
    const char *name = is_logged(file, path);
    if (!name) return REAL(ftruncate64)(file, length);
    pthread_mutex_lock(&order);
    int done = REAL(ftruncate64)(file, length);
    if (done == 0) note('T', name, length, 0, NULL, 0);
    pthread_mutex_unlock(&order);
    return done;
}

static int sync_with(int file, int (*sync)(int)) {
    static uint64_t syncs;
    if (sync_fails(file)) return -1;
    char path[PATH_MAX];
    const char *name = is_logged(file, path);
    if (!name) return sync(file);
    pthread_mutex_lock(&order);
    uint64_t id = ++syncs;
    note('B', name, 0, id, NULL, 0);
    pthread_mutex_unlock(&order);
    /* As long as a disk takes. Other threads write meanwhile, and this sync does not count for what they write. */
    usleep(3000);
    pthread_mutex_lock(&order);
    note('E', name, 0, id, NULL, 0);
    pthread_mutex_unlock(&order);
    return 0;
}

ssize_t write(int file, const void *bytes, size_t count) { return write_at(file, bytes, count, 0, 0); }
ssize_t pwrite(int file, const void *bytes, size_t count, off_t at) { return write_at(file, bytes, count, at, 1); }
ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) { return write_at(file, bytes, count, at, 1); }
int ftruncate(int file, off_t length) { return truncate_to(file, length); }
int ftruncate64(int file, off64_t length) { return truncate_to(file, length); }
int fsync(int file) { return sync_with(file, REAL(fsync)); }
int fdatasync(int file) { return sync_with(file, REAL(fdatasync)); }

int unlink(const char *path) {
    const char *name = of_store(in_data(path));
    if (!name) return REAL(unlink)(path);
    pthread_mutex_lock(&order);
    int done = REAL(unlink)(path);
    if (done == 0) note('U', name, 0, 0, NULL, 0);
    pthread_mutex_unlock(&order);
    return done;
}

static int open_refused(const char *path, int flags) {
    int kept = errno;
    char flag[PATH_MAX];
    if ((flags & O_ACCMODE) != O_RDONLY && in_data(path) && control("readonly", flag)) {
        errno = EROFS;
        return 1;
    }
    errno = kept;
    return 0;
}

#define OPEN(name)                                     \
    int name(const char *path, int flags, ...) {       \
        mode_t mode = 0;                               \
        if (flags & (O_CREAT | O_TMPFILE)) {           \
            va_list rest;                              \
            va_start(rest, flags);                     \
            mode = va_arg(rest, mode_t);               \
            va_end(rest);                              \
        }                                              \
        if (open_refused(path, flags)) return -1;      \
        return REAL(name)(path, flags, mode);          \
    }
OPEN(open)
OPEN(open64)
