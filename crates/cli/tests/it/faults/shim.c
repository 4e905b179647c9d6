/* Disk faults, for a process that is started with LD_PRELOAD. They affect the files in the folder
 * ONWARD_FAULT_DATA. Files in the folder ONWARD_FAULT_CONTROL set the current faults:
 *
 *   full      writes have no room (ENOSPC)
 *   readonly  nothing can be written or opened for writing (EROFS)
 *   sync      holds a number k: the k-th sync of the database or its log fails (EIO), others do not
 *   abort     holds a number k: the process dies before the k-th write to the database file itself
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
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

ssize_t write(int file, const void *bytes, size_t count) {
    return refusal(file) ? -1 : REAL(write)(file, bytes, count);
}
ssize_t pwrite(int file, const void *bytes, size_t count, off_t at) {
    return refusal(file) ? -1 : REAL(pwrite)(file, bytes, count, at);
}
ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) {
    return refusal(file) ? -1 : REAL(pwrite64)(file, bytes, count, at);
}
int ftruncate(int file, off_t length) { return refusal(file) ? -1 : REAL(ftruncate)(file, length); }
int ftruncate64(int file, off64_t length) { return refusal(file) ? -1 : REAL(ftruncate64)(file, length); }
int fsync(int file) { return sync_fails(file) ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return sync_fails(file) ? -1 : REAL(fdatasync)(file); }

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
