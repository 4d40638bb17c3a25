/*
 * Moves the wall clock of one program, while it runs: preloaded (LD_PRELOAD), it adds an offset to what
 * the program reads by clock_gettime(CLOCK_REALTIME and its coarse form), gettimeofday and time.
 * The offset is one signed 64-bit number of milliseconds in native byte order, in the file that
 * LOCKWARDEN_CLOCK_FILE names. The file is mapped, so that rewriting it in place takes effect at once.
 * Monotonic clocks are left alone. For tests only.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef int (*clock_gettime_type)(clockid_t, struct timespec *);

static volatile const int64_t no_offset = 0;
static volatile const int64_t *offset_ms = &no_offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("LOCKWARDEN_CLOCK_FILE");
    if (path == NULL)
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        abort(); /* a test that believes in a moved clock must not go on with a true one */
    void *place = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (place == MAP_FAILED)
        abort();
    close(file);
    offset_ms = place;
}

/* Looked up at the first call, which may come before the constructor (from an allocator's start). */
static int true_clock(clockid_t id, struct timespec *now) {
    static clock_gettime_type known;
    clock_gettime_type function = known;
    if (function == NULL) {
        function = (clock_gettime_type)dlsym(RTLD_NEXT, "clock_gettime");
        if (function == NULL)
            abort();
        known = function;
    }
    return function(id, now);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = true_clock(id, now);
    if (failed || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t ms = *offset_ms;
    now->tv_sec += ms / 1000;
    now->tv_nsec += (ms % 1000) * 1000000;
    if (now->tv_nsec >= 1000000000) {
        now->tv_nsec -= 1000000000;
        now->tv_sec += 1;
    } else if (now->tv_nsec < 0) {
        now->tv_nsec += 1000000000;
        now->tv_sec -= 1;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone; /* obsolete, and no server asks for it */
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *place) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return (time_t)-1;
    if (place != NULL)
        *place = exact.tv_sec;
    return exact.tv_sec;
}
