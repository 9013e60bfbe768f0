/* A settable wall clock for one process: LD_PRELOAD this, and name a 16-byte file in CHAOS_WALL_CLOCK.
 *
 *   bytes 0-7   nanoseconds to add to the wall clock; whoever writes them makes the clock jump
 *   bytes 8-15  how often the process was told a time that is not the machine's
 *
 * Only the wall clock is touched: what measures durations (the monotonic clocks) stays true, as when somebody sets a machine's date.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shared;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("CHAOS_WALL_CLOCK");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) abort(); /* a clock that silently does not jump would make a test pass for nothing */
    close(fd);
    shared = map;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) || !shared || !shared[0]) return (int)failed;
    __atomic_add_fetch(&shared[1], 1, __ATOMIC_RELAXED);
    int64_t total = now->tv_sec * 1000000000LL + now->tv_nsec + shared[0];
    now->tv_sec = total / 1000000000;
    now->tv_nsec = total % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (where) *where = precise.tv_sec;
    return precise.tv_sec;
}
