/* The syncs of a log's last file, over and over, without the interpreter. brokerd/native/syncs.py owns the memory and lends the thread.
 *
 * The loop says what is wanted: all before `end`, of which what is before `complete` are whole records, and numbers what it says. The
 * thread looks at the number first, then at `complete`, then at `end`, which the loop writes the other way round: so what it syncs
 * is at least what had that number, and `complete` is not behind `end`. A sync that ended is told by `done` and the event.
 *
 * Who appends beside the loop (lane.c) wants, too: all before `lane_end`, which are whole records. The loop may not know of these yet, so
 * `done` may be behind what it takes for the log's end. It hears of what it wanted, which needs no sync of its own if all of it is
 * durable by then; he hears of a sync when he listens.
 *
 * `asleep` says whether the bell has to be rung. It is set before the thread looks a last time, and read behind a change of what it
 * looks at; all of it in one order that everybody sees the same. So either the thread sees the change or it is woken.
 *
 * Who wakes the thread for little begins to write that before: the disk is then at work while the thread wakes up, and the sync waits
 * for what is on its way. Nothing is promised by it.
 */
#define _GNU_SOURCE /* sync_file_range */
#include "syncs.h"

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { DURATIONS = 256 };
enum { LITTLE_BYTES = 16384 }; /* the loop begins to write so much: of more, the thread has more to do than to wake up */
#define SECOND_NS INT64_C(1000000000)
enum { LEFT = 0, PAST_FILE = 1, TO_NOTE = 2 }; /* syncs.py says the same */

struct syncs {
    int64_t answered;      /* the number up to which all is durable; the thread's, as what follows */
    int64_t done_complete; /* whole records before it are durable */
    int64_t count;         /* of the syncs of this call */
    int64_t durations_ns[DURATIONS];
    _Atomic int64_t done;  /* all before it is durable */
    _Atomic int64_t begun; /* up to there the last sync goes */
    _Atomic int64_t number, end, complete;
    _Atomic int64_t lane_end;
    _Atomic int32_t asleep, leaving, serving;
    _Atomic int32_t lane_listens;
    _Atomic int32_t descriptor; /* of the file; one that is closed meanwhile, or another one's by then, does no harm */
    _Atomic int64_t begin;      /* of the file, in the log */
    int32_t event; /* a descriptor that the loop watches */
    int32_t lane_event; /* likewise who appends beside it */
    sem_t bell;
};

/* How much memory one needs. */
EXPORT int64_t native_syncs_bytes(void) { return sizeof(struct syncs); }

/* Make one of memory that is zero, with two eventfds that do not block. 0 when the system has no room for it. */
EXPORT int32_t native_syncs_begin(struct syncs *syncs, int32_t event, int32_t lane_event) {
    syncs->event = event;
    syncs->lane_event = lane_event;
    return sem_init(&syncs->bell, 0, 0) == 0;
}

static void wake(struct syncs *syncs) {
    if (atomic_exchange(&syncs->asleep, 0)) sem_post(&syncs->bell);
}

/* Have the disk begin with what is wanted, if that is little. */
static void begin_to_write(struct syncs *syncs, int64_t end) {
    int64_t done = atomic_load(&syncs->done), begin = atomic_load(&syncs->begin);
    if (done < begin || end <= done || end - done > LITTLE_BYTES) return;
    int begun = sync_file_range(atomic_load(&syncs->descriptor), done - begin, end - done, SYNC_FILE_RANGE_WRITE);
    (void)begun; /* what the disk refuses, the sync is told, too */
}

/* Want all before `end` durable. The number is higher than the one before. */
EXPORT void native_syncs_want(struct syncs *syncs, int64_t number, int64_t end, int64_t complete) {
    atomic_store(&syncs->end, end);
    atomic_store(&syncs->complete, complete);
    atomic_store(&syncs->number, number);
    if (!atomic_exchange(&syncs->asleep, 0)) return;
    begin_to_write(syncs, end);
    sem_post(&syncs->bell);
}

/* The log was cut while nobody was in `native_syncs_serve`: it ends there. */
EXPORT void native_syncs_set_back(struct syncs *syncs, int64_t end) {
    atomic_store(&syncs->end, end);
    atomic_store(&syncs->complete, end);
    if (atomic_load(&syncs->lane_end) > end) atomic_store(&syncs->lane_end, end);
    if (atomic_load(&syncs->done) > end) atomic_store(&syncs->done, end);
    if (atomic_load(&syncs->begun) > end) atomic_store(&syncs->begun, end);
}

/* All before this is durable. */
EXPORT int64_t native_syncs_done(struct syncs *syncs) { return atomic_load(&syncs->done); }

/* Whether the thread syncs the file that begins there, and goes on. */
EXPORT int32_t native_syncs_serves(struct syncs *syncs, int64_t begin) {
    return atomic_load(&syncs->serving) && !atomic_load(&syncs->leaving) && atomic_load(&syncs->begin) == begin;
}

void want_beside(struct syncs *syncs, int64_t end) {
    atomic_store(&syncs->lane_end, end);
    if (!atomic_exchange(&syncs->asleep, 0)) return;
    begin_to_write(syncs, end);
    sem_post(&syncs->bell);
}

int64_t durable_beside(struct syncs *syncs) { return atomic_load(&syncs->done); }

int64_t begun_beside(struct syncs *syncs) { return atomic_load(&syncs->begun); }

int64_t listen_beside(struct syncs *syncs) {
    atomic_store(&syncs->lane_listens, 1);
    return atomic_load(&syncs->done);
}

int32_t event_beside(const struct syncs *syncs) { return syncs->lane_event; }

/* Have `native_syncs_serve` return soon, or not. */
EXPORT void native_syncs_leave(struct syncs *syncs, int32_t leaving) {
    atomic_store(&syncs->leaving, leaving);
    if (leaving) wake(syncs);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static void tell(int32_t event) {
    const uint64_t one = 1;
    ssize_t told = write(event, &one, sizeof one);
    (void)told; /* it blocks for an event that is set already */
}

/* What is wanted by number or beside it. */
static int is_wanted(struct syncs *syncs) {
    return atomic_load(&syncs->number) != syncs->answered || atomic_load(&syncs->lane_end) > atomic_load(&syncs->done);
}

/* Wait until something is wanted, or for so long; 0 is for ever. A wall clock that is set back makes it longer, which is no harm:
 * what comes wakes it. */
static void rest(struct syncs *syncs, int64_t most_ns) {
    struct timespec until;
    atomic_store(&syncs->asleep, 1);
    if (is_wanted(syncs) || atomic_load(&syncs->leaving)) return;
    if (!most_ns) {
        while (sem_wait(&syncs->bell) != 0) continue; /* a signal came */
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    most_ns += until.tv_nsec;
    until.tv_sec += most_ns / SECOND_NS;
    until.tv_nsec = most_ns % SECOND_NS;
    while (sem_timedwait(&syncs->bell, &until) != 0 && errno == EINTR) continue;
}

static int32_t serve(struct syncs *syncs, int32_t descriptor, int64_t limit, int64_t note_after_ns) {
    int64_t first_ns = 0;
    for (;;) {
        if (atomic_load(&syncs->leaving) && (syncs->count || !is_wanted(syncs))) return LEFT;
        if (!is_wanted(syncs)) {
            int64_t most_ns = 0;
            if (first_ns && (most_ns = first_ns + note_after_ns - now_ns()) <= 0) return TO_NOTE;
            rest(syncs, most_ns);
            continue;
        }
        int64_t number = atomic_load(&syncs->number), complete = atomic_load(&syncs->complete), end = atomic_load(&syncs->end);
        int64_t lane_end = atomic_load(&syncs->lane_end);
        if (lane_end > end) complete = end = lane_end;
        if (end > limit) return PAST_FILE;
        int is_asked = number != syncs->answered;
        if (end <= atomic_load(&syncs->done)) { /* it was, beside the loop */
            syncs->answered = number;
            syncs->done_complete = complete;
            tell(syncs->event);
            continue;
        }
        int64_t begin_ns = now_ns();
        atomic_store(&syncs->begun, end);
        while (fdatasync(descriptor) != 0)
            if (errno != EINTR) return -errno;
        int64_t end_ns = now_ns();
        syncs->answered = number;
        syncs->done_complete = complete;
        atomic_store(&syncs->done, end);
        if (atomic_exchange(&syncs->lane_listens, 0)) tell(syncs->lane_event);
        if (is_asked) tell(syncs->event);
        syncs->durations_ns[syncs->count++] = end_ns - begin_ns;
        if (!first_ns) first_ns = begin_ns;
        if (syncs->count == DURATIONS || end_ns - first_ns >= note_after_ns) return TO_NOTE;
    }
}

/* Sync the file whenever something is wanted. Returns when somebody wants that, though not before one sync if one is wanted; when what
 * is wanted goes on behind `limit`, where the file ends that has what is behind `begin`; so long after the first sync of this call that
 * word of it is to be left; or with the error of a sync, negative. */
EXPORT int32_t native_syncs_serve(struct syncs *syncs, int32_t descriptor, int64_t begin, int64_t limit, int64_t note_after_ns) {
    atomic_store(&syncs->descriptor, descriptor);
    atomic_store(&syncs->begin, begin);
    syncs->count = 0;
    atomic_store(&syncs->serving, 1);
    int32_t ending = serve(syncs, descriptor, limit, note_after_ns);
    atomic_store(&syncs->serving, 0);
    return ending;
}

/* Nobody is in `native_syncs_serve`, or will be. */
EXPORT void native_syncs_close(struct syncs *syncs) { sem_destroy(&syncs->bell); }
