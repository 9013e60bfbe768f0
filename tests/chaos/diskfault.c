/* A disk that fails on order, for one process: LD_PRELOAD this, and name a file of 256 bytes in CHAOS_DISK_FAULT.
 *
 *   bytes 0-7     1: in force. Written last by whoever gives the order, who writes 0 before changing it
 *   bytes 8-15    which calls: 1 reads, 2 writes, 4 syncs, 8 making a file larger
 *   bytes 16-23   the errno that they end with; 0: reads and writes transfer half of what was asked for
 *   bytes 24-31   each so-manieth of these calls
 *   bytes 32-39   how many calls there were so far while it was in force, on the chosen files
 *   bytes 40-47   how many of them were hit
 *   bytes 48-55   1: those wait instead until this is in force no more, and reach the kernel then
 *   bytes 128-255 a part of the path of the chosen files, ended by a zero
 *
 * A call that is hit with an errno does not reach the kernel. What a process reads through a mapping is no call, and is not hit.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { READS = 1, WRITES = 2, SYNCS = 4, GROWS = 8 };
enum { PASS, SHORT, FAIL };

struct order {
    int64_t in_force, calls, error, every, seen, hit, stands, unused[9];
    char part[128];
};

static volatile struct order *order;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("CHAOS_DISK_FAULT");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *order, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) abort(); /* a disk that silently does not fail would make a test pass for nothing */
    close(fd);
    order = map;
}

static int is_chosen(int fd) {
    char link[40], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlink, link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, (const char *)order->part) != NULL;
}

static int fate_of(int call, int fd) {
    if (!order || !order->in_force || !(order->calls & call)) return PASS;
    int before = errno;
    int chosen = is_chosen(fd);
    errno = before;
    if (!chosen) return PASS;
    int64_t seen = __atomic_add_fetch(&order->seen, 1, __ATOMIC_RELAXED);
    if (order->every > 1 && seen % order->every) return PASS;
    __atomic_add_fetch(&order->hit, 1, __ATOMIC_RELAXED);
    if (order->stands) {
        const struct timespec a_while = {.tv_nsec = 5000000};
        while (order->in_force) nanosleep(&a_while, NULL);
        errno = before;
        return PASS;
    }
    if (!order->error) return SHORT;
    errno = (int)order->error;
    return FAIL;
}

static size_t half(size_t count) { return count > 1 ? count / 2 : count; }

ssize_t read(int fd, void *buffer, size_t count) {
    int fate = fate_of(READS, fd);
    return fate == FAIL ? -1 : syscall(SYS_read, fd, buffer, fate == SHORT ? half(count) : count);
}

ssize_t pread64(int fd, void *buffer, size_t count, off64_t offset) {
    int fate = fate_of(READS, fd);
    return fate == FAIL ? -1 : syscall(SYS_pread64, fd, buffer, fate == SHORT ? half(count) : count, offset);
}

ssize_t write(int fd, const void *buffer, size_t count) {
    int fate = fate_of(WRITES, fd);
    return fate == FAIL ? -1 : syscall(SYS_write, fd, buffer, fate == SHORT ? half(count) : count);
}

ssize_t pwrite64(int fd, const void *buffer, size_t count, off64_t offset) {
    int fate = fate_of(WRITES, fd);
    return fate == FAIL ? -1 : syscall(SYS_pwrite64, fd, buffer, fate == SHORT ? half(count) : count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *buffers, int count, off64_t offset) {
    int fate = fate_of(WRITES, fd);
    if (fate == FAIL) return -1;
    if (fate == SHORT && count > 0) return syscall(SYS_pwrite64, fd, buffers[0].iov_base, half(buffers[0].iov_len), offset);
    return syscall(SYS_pwritev, fd, buffers, (long)count, offset, 0L);
}

ssize_t pwritev64v2(int fd, const struct iovec *buffers, int count, off64_t offset, int flags) {
    return flags ? syscall(SYS_pwritev2, fd, buffers, (long)count, offset, 0L, flags) : pwritev64(fd, buffers, count, offset);
}

int ftruncate64(int fd, off64_t length) {
    struct stat now;
    if (order && order->in_force && !fstat(fd, &now) && length > now.st_size && fate_of(GROWS, fd) == FAIL) return -1;
    return (int)syscall(SYS_ftruncate, fd, length);
}

int fdatasync(int fd) { return fate_of(SYNCS, fd) == FAIL ? -1 : (int)syscall(SYS_fdatasync, fd); }

int fsync(int fd) { return fate_of(SYNCS, fd) == FAIL ? -1 : (int)syscall(SYS_fsync, fd); }

ssize_t pread(int fd, void *buffer, size_t count, off_t offset) __attribute__((alias("pread64")));
ssize_t pwrite(int fd, const void *buffer, size_t count, off_t offset) __attribute__((alias("pwrite64")));
ssize_t pwritev(int fd, const struct iovec *buffers, int count, off_t offset) __attribute__((alias("pwritev64")));
ssize_t pwritev2(int fd, const struct iovec *buffers, int count, off_t offset, int flags) __attribute__((alias("pwritev64v2")));
int ftruncate(int fd, off_t length) __attribute__((alias("ftruncate64")));
