/* Answers that leave beside the loop: a thread of this process writes to sockets what the loop puts here, each piece to one of them.
 * brokerd/native/carrier.py owns the memory and the thread, which never holds the interpreter's lock.
 *
 * A piece is bytes, or an answer to a pull that was prepared (pulls.c): the thread makes its bytes before it writes them.
 *
 * One puts, one carries: pieces are a ring, numbered from 0 on. Below `done` all were tried, from there to `put` they wait. What a
 * socket did not take whole (it is full, or broken) is left to the loop, which finds it by `native_carrier_look`; likewise an answer
 * of which a record is not what was stored, and nothing was written. The caller keeps the bytes, or the file that the answer is made
 * of, and the descriptor of a piece until it is done, and has no more than PIECES - NEAR pieces, ANSWERS of them answers, that he did
 * not look at. He puts a second piece of a descriptor before that only if it says which one is before it, at most NEAR pieces: so that
 * one is there when it is looked for.
 *
 * Two variables say who has to be woken. Each is set before its owner looks a last time at what he waits for, and read by the other
 * one behind a change of that; all of it in one order that everybody sees the same. So either he sees the change or he is woken.
 */
#define _POSIX_C_SOURCE 200809L
#include "pulls.h"

#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECES = 4096, ANSWERS = 16, NEAR = 64 }; /* carrier.py says the same */
enum { MADE_BYTES = 256 * 1024 + HEAD_ROOM }; /* of an answer, likewise */
enum { NOT_MADE = -1, CARRIED = -2, NOTHING_WANTED = -3, LEFT = -4 }; /* carrier.py says the same */

struct piece {
    const uint8_t *at;           /* bytes */
    const struct answer *answer; /* or what to make them of */
    int64_t length, written;     /* NOT_MADE, or so many bytes */
    int64_t before;              /* the piece of this descriptor that is to be whole before; -1: none is under way */
    int32_t descriptor;
};

struct carrier {
    _Atomic uint64_t put, done;
    _Atomic int32_t asleep; /* the thread waits for the bell */
    _Atomic int32_t asked;  /* the loop wants to hear when something is done */
    _Atomic int32_t ending;
    int32_t event; /* a descriptor that the loop watches */
    sem_t bell;
    uint64_t answer_count; /* that were put */
    struct piece pieces[PIECES];
    struct answer answers[ANSWERS];
    uint8_t made[MADE_BYTES]; /* by the thread */
};

struct missed { /* a piece of which so much was written, or NOT_MADE */
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
        carrier->pieces[put++ % PIECES] = (struct piece){bytes + places[0], NULL, places[1] - places[0], 0, -1, descriptors[n]};
    atomic_store(&carrier->put, put);
    wake(carrier);
}

/* The answer of a piece that was missed, made again: its length, or 0 when one of its records is no more what was stored. */
EXPORT int64_t native_carrier_made(const struct carrier *carrier, int64_t number, uint8_t *out, int64_t room) {
    return native_pull_made(carrier->pieces[number % PIECES].answer, out, room);
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

/* Return when so many pieces are done: soon, as nothing here waits for a peer, though maybe for the log's disk. */
EXPORT void native_carrier_finish(struct carrier *carrier, int64_t number) {
    while ((int64_t)atomic_load(&carrier->done) < number) sched_yield();
}

/* Have `native_carry` return when all that was put is done. */
EXPORT void native_carrier_end(struct carrier *carrier) {
    atomic_store(&carrier->ending, 1);
    wake(carrier);
}

/* Write what the socket takes now: how much. Why it takes no more, the loop finds out when it writes the rest. */
static int64_t written(int32_t descriptor, const uint8_t *at, int64_t length) {
    ssize_t sent = send(descriptor, at, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 ? 0 : sent;
}

/* Make an answer and write what the socket takes of it now: how much, or NOT_MADE. Also for the loop, which has `made` of its own. */
static int64_t answer_sent(const struct answer *answer, uint8_t *made, int64_t room, int32_t descriptor) {
    int64_t length = native_pull_made(answer, made, room);
    return length ? written(descriptor, made, length) : NOT_MADE;
}

static int is_whole(const struct piece *piece) { return piece->written == piece->length; }

/* Whether all of a piece was written. Nothing of it is while what is before it was not: the loop has the rest of that. */
static int carry(struct carrier *carrier, struct piece *piece) {
    if (piece->before >= 0 && !is_whole(&carrier->pieces[piece->before % PIECES])) return 0;
    piece->written = piece->answer ? answer_sent(piece->answer, carrier->made, MADE_BYTES, piece->descriptor)
                                   : written(piece->descriptor, piece->at, piece->length);
    return is_whole(piece);
}

/* Answer what is wanted: how much of it the socket took, or what else came of it. A large answer is put for the thread. Only the
 * answers that were put, and not looked at, are kept. */
EXPORT int64_t native_pull_answered(struct wanted *wanted, struct carrier *carrier, uint8_t *made, int64_t room) {
    struct answer *answer = &carrier->answers[carrier->answer_count % ANSWERS];
    int32_t descriptor = (int32_t)wanted->descriptor;
    int64_t length = wanted->length = prepare_pull(wanted, answer);
    if (length <= 0) return length == 0 ? NOTHING_WANTED : LEFT;
    if (length < wanted->least_carried) return answer_sent(answer, made, room, descriptor);
    uint64_t put = atomic_load(&carrier->put);
    carrier->pieces[put % PIECES] = (struct piece){NULL, answer, length, 0, wanted->behind, descriptor};
    carrier->answer_count++;
    atomic_store(&carrier->put, put + 1);
    wake(carrier);
    return CARRIED;
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
            int is_done = carry(carrier, &carrier->pieces[done % PIECES]);
            atomic_store(&carrier->done, ++done);
            if (atomic_exchange(&carrier->asked, 0) || !is_done) tell(carrier);
        }
        atomic_store(&carrier->asleep, 1);
        if (done < atomic_load(&carrier->put)) continue; /* who put it may have rung the bell, which is no harm */
        if (atomic_load(&carrier->ending)) return;
        while (sem_wait(&carrier->bell) != 0) continue; /* a signal came */
    }
}

/* The thread has returned. */
EXPORT void native_carrier_close(struct carrier *carrier) { sem_destroy(&carrier->bell); }
