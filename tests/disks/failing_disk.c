/* A disk that fails, for what libraries do below Python: calls on a file fail with EIO as long as they are to.
 *
 * FAILING_DISK is the path of a file with two words: the calls (read, write or sync), and a part of the paths of the
 * files whose calls fail. While it is missing, all is well. With a number as the third word, they fail with EDQUOT, and
 * only while all files of the folder, whose path ends with that part, have more bytes than that: a quota. Then a write
 * in place, and a truncation to less, succeed: they take no room.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static __thread long long bytes;

static int add(const char *path, const struct stat *stat, int type, struct FTW *place) {
    (void)path, (void)place;
    if (type == FTW_F) bytes += stat->st_size;
    return 0;
}

static int fails(int fd, const char *call, long long end) {
    const char *control = getenv("FAILING_DISK");
    char calls[16], part[256], link[64], path[4096];
    FILE *file = control ? fopen(control, "re") : NULL;
    if (!file) return 0;
    long long quota;
    int words = fscanf(file, "%15s %255s %lld", calls, part, &quota);
    fclose(file);
    if (words < 2 || strcmp(calls, call)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    char *found = strstr(path, part);
    if (!found) return 0;
    errno = EIO;
    if (words == 2) return 1;
    struct stat stat;
    if (end >= 0 && !fstat(fd, &stat) && end <= stat.st_size) return 0;
    found[strlen(part)] = 0;
    bytes = 0;
    nftw(path, add, 16, FTW_PHYS);
    errno = EDQUOT;
    return bytes > quota;
}

/* end: the size that the file has to have for the call to take no room; below 0: it takes some, or that is not known. */
#define FAILING(result, name, call, end, parameters, arguments)       \
    result name parameters {                                          \
        static result(*real) parameters;                              \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);         \
        return fails(fd, call, end) ? -1 : real arguments;            \
    }

FAILING(ssize_t, read, "read", -1, (int fd, void *data, size_t size), (fd, data, size))
FAILING(ssize_t, pread, "read", -1, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
FAILING(ssize_t, pread64, "read", -1, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
FAILING(ssize_t, write, "write", -1, (int fd, const void *data, size_t size), (fd, data, size))
FAILING(ssize_t, pwrite, "write", at + (off_t)size, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
FAILING(ssize_t, pwrite64, "write", at + (off64_t)size, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
FAILING(int, ftruncate64, "write", size, (int fd, off64_t size), (fd, size))
FAILING(int, fsync, "sync", -1, (int fd), (fd))
FAILING(int, fdatasync, "sync", -1, (int fd), (fd))
FAILING(int, syncfs, "sync", -1, (int fd), (fd))

int posix_fallocate64(int fd, off64_t from, off64_t size) {
    static int (*real)(int, off64_t, off64_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "posix_fallocate64");
    int error = real(fd, from, size);
    return error ? error : fails(fd, "write", -1) ? errno : 0;
}
