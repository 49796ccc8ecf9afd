/* A disk that fails, for what libraries do below Python: calls on a file fail with EIO as long as they are to.
 *
 * FAILING_DISK is the path of a file with two words: the calls (read, write or sync), and a part of the paths of the
 * files whose calls fail. While it is missing, all is well.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(int fd, const char *call) {
    const char *control = getenv("FAILING_DISK");
    char calls[16], part[256], link[64], path[4096];
    FILE *file = control ? fopen(control, "re") : NULL;
    if (!file) return 0;
    int words = fscanf(file, "%15s %255s", calls, part);
    fclose(file);
    if (words != 2 || strcmp(calls, call)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (!strstr(path, part)) return 0;
    errno = EIO;
    return 1;
}

#define FAILING(result, name, call, parameters, arguments)            \
    result name parameters {                                          \
        static result(*real) parameters;                              \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);         \
        return fails(fd, call) ? -1 : real arguments;                 \
    }

FAILING(ssize_t, read, "read", (int fd, void *data, size_t size), (fd, data, size))
FAILING(ssize_t, pread, "read", (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
FAILING(ssize_t, pread64, "read", (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
FAILING(ssize_t, write, "write", (int fd, const void *data, size_t size), (fd, data, size))
FAILING(ssize_t, pwrite, "write", (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
FAILING(ssize_t, pwrite64, "write", (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
FAILING(int, ftruncate64, "write", (int fd, off64_t size), (fd, size))
FAILING(int, fsync, "sync", (int fd), (fd))
FAILING(int, fdatasync, "sync", (int fd), (fd))
FAILING(int, syncfs, "sync", (int fd), (fd))
