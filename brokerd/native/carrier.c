/* Answers that leave beside the loop: a thread of this process writes to sockets what the loop puts here, each piece to one of them.
 * brokerd/native/carrier.py owns the memory and the thread, which never holds the interpreter's lock.
 *
 * One puts, one carries: pieces are a ring, numbered from 0 on. Below `done` all were tried, from there to `put` they wait. What a
 * socket did not take whole (it is full, or broken) is left to the loop, which finds it by `native_carrier_look`. The caller keeps
 * the bytes and the descriptor of a piece until it is done, puts no second piece of a descriptor before that, and has no more than
 * PIECES pieces that he did not look at.
 *
 * Two variables say who has to be woken. Each is set before its owner looks a last time at what he waits for, and read by the other
 * one behind a change of that; all of it in one order that everybody sees the same. So either he sees the change or he is woken.
 */
#define _POSIX_C_SOURCE 200809L
#include "native.h"

#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECES = 4096 }; /* carrier.py says the same */

struct piece {
    const uint8_t *at;
    int64_t length, written;
    int32_t descriptor;
};

struct carrier {
    _Atomic uint64_t put, done;
    _Atomic int32_t asleep; /* the thread waits for the bell */
    _Atomic int32_t asked;  /* the loop wants to hear when something is done */
    _Atomic int32_t ending;
    int32_t event; /* a descriptor that the loop watches */
    sem_t bell;
    struct piece pieces[PIECES];
};

struct missed { /* a piece of which so much was written */
    int64_t number, written;
};

/* How much memory a carrier needs. */
EXPORT int64_t native_carrier_bytes(void) { return sizeof(struct carrier); }

/* Make a carrier of memory that is zero; `event` is an eventfd that does not block. 0 when the system has no room for it. */
EXPORT int32_t native_carrier_begin(struct carrier *carrier, int32_t event) {
    carrier->event = event;
    return sem_init(&carrier->bell, 0, 0) == 0;
}

static void wake(struct carrier *carrier) {
    if (atomic_exchange(&carrier->asleep, 0)) sem_post(&carrier->bell);
}

/* Put so many pieces: `places` has where in the bytes each begins and ends. */
EXPORT void native_carrier_put(struct carrier *carrier, const uint8_t *bytes, const int64_t *places, const int32_t *descriptors,
                               int64_t count) {
    uint64_t put = atomic_load(&carrier->put);
    for (int64_t n = 0; n < count; n++, places += 2)
        carrier->pieces[put++ % PIECES] = (struct piece){bytes + places[0], places[1] - places[0], 0, descriptors[n]};
    atomic_store(&carrier->put, put);
    wake(carrier);
}

/* How many pieces are done. Those from `seen` on that were not written whole are listed, `count` of them. */
EXPORT int64_t native_carrier_look(struct carrier *carrier, int64_t seen, struct missed *missed, int64_t *count) {
    int64_t done = (int64_t)atomic_load(&carrier->done);
    *count = 0;
    for (; seen < done; seen++) {
        const struct piece *piece = &carrier->pieces[seen % PIECES];
        if (piece->written < piece->length) missed[(*count)++] = (struct missed){seen, piece->written};
    }
    return done;
}

/* Have the event set when the next piece is done. What was done before this is seen by a look behind it. */
EXPORT void native_carrier_ask(struct carrier *carrier) { atomic_store(&carrier->asked, 1); }

/* Return when so many pieces are done: soon, as nothing here waits for a peer. */
EXPORT void native_carrier_finish(struct carrier *carrier, int64_t number) {
    while ((int64_t)atomic_load(&carrier->done) < number) sched_yield();
}

/* Have `native_carry` return when all that was put is done. */
EXPORT void native_carrier_end(struct carrier *carrier) {
    atomic_store(&carrier->ending, 1);
    wake(carrier);
}

/* Write what the socket takes now; whether that was all. Why it takes no more, the loop finds out when it writes the rest. */
static int carry(struct piece *piece) {
    ssize_t sent = send(piece->descriptor, piece->at, (size_t)piece->length, MSG_DONTWAIT | MSG_NOSIGNAL);
    piece->written = sent < 0 ? 0 : sent;
    return piece->written == piece->length;
}

static void tell(struct carrier *carrier) {
    const uint64_t one = 1;
    ssize_t told = write(carrier->event, &one, sizeof one);
    (void)told; /* it blocks for an event that is set already */
}

/* The thread. */
EXPORT void native_carry(struct carrier *carrier) {
    uint64_t done = 0;
    for (;;) {
        while (done < atomic_load(&carrier->put)) {
            int is_whole = carry(&carrier->pieces[done % PIECES]);
            atomic_store(&carrier->done, ++done);
            if (atomic_exchange(&carrier->asked, 0) || !is_whole) tell(carrier);
        }
        atomic_store(&carrier->asleep, 1);
        if (done < atomic_load(&carrier->put)) continue; /* who put it may have rung the bell, which is no harm */
        if (atomic_load(&carrier->ending)) return;
        while (sem_wait(&carrier->bell) != 0) continue; /* a signal came */
    }
}

/* The thread has returned. */
EXPORT void native_carrier_close(struct carrier *carrier) { sem_destroy(&carrier->bell); }
