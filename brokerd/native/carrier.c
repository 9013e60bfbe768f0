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
 * A connection may also stay here (stays.c): then the thread reads its requests, too, until the loop wants it back, or what it asks
 * is for the loop. Pieces go before the requests of those who stay.
 *
 * Two variables say who has to be woken. Each is set before its owner looks a last time at what he waits for, and read by the other
 * one behind a change of that; all of it in one order that everybody sees the same. So either he sees the change or he is woken.
 */
#define _POSIX_C_SOURCE 200809L
#include "lane.h"
#include "stays.h"

#include <poll.h>
#include <sched.h>
#include <semaphore.h>
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
    struct stay *stay;           /* or nothing is written, and the connection stays here from then on, */
    struct sender *sender;       /* for what it pulls or sends */
    int32_t descriptor;
    int64_t times; /* bytes for a sender who stays, since that time */
};

enum asleep { AWAKE, ALONE, WITH_OTHERS };

struct carrier {
    _Atomic uint64_t put, done;
    _Atomic int32_t asleep;   /* the thread waits for the bell, or for the summons and those who stay */
    _Atomic int32_t recalled; /* one of those is wanted back */
    _Atomic int32_t asked;  /* the loop wants to hear when something is done */
    _Atomic int32_t ending;
    int32_t event;   /* a descriptor that the loop watches */
    int32_t summons; /* likewise the thread */
    sem_t bell;
    uint64_t answer_count; /* that were put */
    struct piece pieces[PIECES];
    struct answer answers[ANSWERS];
    uint8_t made[MADE_BYTES]; /* by the thread */
    struct stay stays[STAYS];
    struct lane *lane;
};

struct room { /* who stays; the thread's own */
    struct stay *stays[STAYS];
    struct sender *senders[SENDERS];
    int count, sender_count;
    uint64_t missed; /* how often the lane was lent up to when it was found not to be; 0: it was not missed since it was lent */
};

struct missed { /* a piece of which so much was written, or NOT_MADE */
    int64_t number, written;
};

/* How much memory a carrier needs. */
EXPORT int64_t native_carrier_bytes(void) { return sizeof(struct carrier); }

/* Make a carrier of memory that is zero, with two eventfds that do not block. 0 when the system has no room for it. */
EXPORT int32_t native_carrier_begin(struct carrier *carrier, struct lane *lane, int32_t event, int32_t summons) {
    carrier->lane = lane;
    atomic_store(&lane->times, 1); /* 0 is no time at which it was missed */
    carrier->event = event;
    carrier->summons = summons;
    return sem_init(&carrier->bell, 0, 0) == 0;
}

static void set(int32_t event) {
    const uint64_t one = 1;
    ssize_t told = write(event, &one, sizeof one);
    (void)told; /* it blocks for an event that is set already */
}

static void wake(struct carrier *carrier) {
    int32_t asleep = atomic_exchange(&carrier->asleep, AWAKE);
    if (asleep == ALONE) sem_post(&carrier->bell);
    else if (asleep == WITH_OTHERS) set(carrier->summons);
}

/* Put so many pieces: `places` has where in the bytes each begins and ends. */
EXPORT void native_carrier_put(struct carrier *carrier, const uint8_t *bytes, const int64_t *places, const int32_t *descriptors,
                               int64_t count) {
    uint64_t put = atomic_load(&carrier->put);
    for (int64_t n = 0; n < count; n++, places += 2)
        carrier->pieces[put++ % PIECES] = (struct piece){bytes + places[0], NULL, places[1] - places[0], 0, -1, NULL, NULL, descriptors[n], 0};
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

/* Why it takes no more, the loop finds out when it writes the rest. */
int64_t write_some(int32_t descriptor, const uint8_t *at, int64_t length) {
    ssize_t sent = send(descriptor, at, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 ? 0 : sent;
}

int64_t send_answer(const struct answer *answer, uint8_t *made, int64_t room, int32_t descriptor) {
    int64_t length = native_pull_made(answer, made, room);
    return length ? write_some(descriptor, made, length) : NOT_MADE;
}

static int is_whole(const struct piece *piece) { return piece->written == piece->length; }

/* Give a connection back to the loop. */
static void leave(struct carrier *carrier, _Atomic int32_t *is_over) {
    atomic_store(is_over, 1);
    set(carrier->event);
}

static void leave_lane(struct carrier *carrier, struct sender *sender) {
    atomic_fetch_add(&carrier->lane->left, 1);
    leave(carrier, &sender->is_over);
}

/* Whether all of a piece was written. Nothing of it is while what is before it was not: the loop has the rest of that. */
static int carry(struct carrier *carrier, struct piece *piece, struct room *room) {
    int may_be = piece->before < 0 || is_whole(&carrier->pieces[piece->before % PIECES]);
    if (piece->stay) {
        if (may_be && !atomic_load(&piece->stay->is_wanted)) room->stays[room->count++] = piece->stay;
        else leave(carrier, &piece->stay->is_over);
        return 1;
    }
    if (piece->times) {
        piece->written = pass_on(piece->sender, piece->times, piece->at, piece->length) ? piece->length : 0;
        if (atomic_load(&piece->sender->is_wanted)) atomic_store(&carrier->recalled, 1); /* before he sends anything more */
        return is_whole(piece);
    }
    if (piece->sender) {
        if (may_be && !atomic_load(&piece->sender->is_wanted)) room->senders[room->sender_count++] = piece->sender;
        else leave_lane(carrier, piece->sender);
        return 1;
    }
    if (!may_be) return 0;
    piece->written = piece->answer ? send_answer(piece->answer, carrier->made, MADE_BYTES, piece->descriptor)
                                   : write_some(piece->descriptor, piece->at, piece->length);
    return is_whole(piece);
}

/* Answer what is wanted: how much of it the socket took, or what else came of it. A large answer is put for the thread. Only the
 * answers that were put, and not looked at, are kept. */
EXPORT int64_t native_pull_answered(struct wanted *wanted, struct carrier *carrier, uint8_t *made, int64_t room) {
    struct answer *answer = &carrier->answers[carrier->answer_count % ANSWERS];
    int32_t descriptor = (int32_t)wanted->descriptor;
    int64_t length = wanted->length = prepare_pull(wanted, answer);
    if (length <= 0) return length == 0 ? NOTHING_WANTED : LEFT;
    if (length < wanted->least_carried) return send_answer(answer, made, room, descriptor);
    uint64_t put = atomic_load(&carrier->put);
    carrier->pieces[put % PIECES] = (struct piece){NULL, answer, length, 0, wanted->behind, NULL, NULL, descriptor, 0};
    carrier->answer_count++;
    atomic_store(&carrier->put, put + 1);
    wake(carrier);
    return CARRIED;
}

/* Carry what was put; how many pieces are done now. */
static uint64_t carry_all(struct carrier *carrier, uint64_t done, struct room *room) {
    while (done < atomic_load(&carrier->put)) {
        int is_done = carry(carrier, &carrier->pieces[done % PIECES], room);
        atomic_store(&carrier->done, ++done);
        if (atomic_exchange(&carrier->asked, 0) || !is_done) set(carrier->event);
    }
    return done;
}

static void show_out(struct carrier *carrier, struct room *room, int number) {
    struct stay *stay = room->stays[number];
    room->stays[number] = room->stays[--room->count];
    leave(carrier, &stay->is_over);
}

/* Give back those who are wanted, or all. */
static void let_go(struct carrier *carrier, struct room *room, int all) {
    for (int n = room->count - 1; n >= 0; n--)
        if (all || atomic_load(&room->stays[n]->is_wanted)) show_out(carrier, room, n);
    for (int n = room->sender_count - 1; n >= 0; n--) {
        struct sender *sender = room->senders[n];
        if (!all && !atomic_load(&sender->is_wanted)) continue;
        room->senders[n] = room->senders[--room->sender_count];
        leave_lane(carrier, sender);
    }
}

/* Whether those who send may be looked after: not since the lane was missed, until it is lent once more. */
static int has_lane(struct carrier *carrier, struct room *room) {
    if (!room->missed) return 1;
    atomic_store(&carrier->lane->is_missed, 1);
    if (atomic_load(&carrier->lane->times) == room->missed) return 0;
    room->missed = 0; /* who lent it may have seen that it was missed, and wakes this thread, which is no harm */
    return 1;
}

/* Serve those who send that have sent something, or were left behind. */
static void serve(struct carrier *carrier, struct room *room, struct sender **ready, int count) {
    uint64_t times = atomic_load(&carrier->lane->times); /* before: it may be lent meanwhile */
    enum served served = serve_senders(carrier->lane, ready, count);
    if (served == NOT_SERVED) room->missed = times;
    if (served != SERVED) set(carrier->event);
}

/* Whether answers wait for the disk. */
static int have_waiting(const struct room *room) {
    for (int n = 0; n < room->sender_count; n++)
        if (room->senders[n]->sent.waiting) return 1;
    return 0;
}

/* Wait for requests of those who stay, or for the summons, and answer them; what is put meanwhile goes before each. While answers
 * wait for the sync that is under way, sends that come one by one are left unread: they wait for the next one anyway, which begins when
 * all that came by then is written; only then those answers leave. How many pieces are done now. */
static uint64_t attend(struct carrier *carrier, uint64_t done, struct room *room) {
    enum { OTHERS = 2 };
    struct pollfd polled[OTHERS + STAYS + SENDERS] = {{.fd = carrier->summons, .events = POLLIN}, {.fd = -1}};
    struct sender *ready[SENDERS];
    int stays = room->count, senders = has_lane(carrier, room) ? room->sender_count : 0, ready_count = 0, patience_ms = -1;
    if (have_waiting(room)) {
        polled[1] = (struct pollfd){.fd = event_beside(carrier->lane->syncs), .events = POLLIN};
        if (!waits_for_sync(carrier->lane, room->senders, room->sender_count)) patience_ms = 0;
        else if (may_be_left(carrier->lane)) senders = 0;
    }
    struct pollfd *of_stays = polled + OTHERS, *of_senders = of_stays + stays;
    for (int n = 0; n < stays; n++) of_stays[n] = (struct pollfd){.fd = room->stays[n]->descriptor, .events = POLLIN};
    for (int n = 0; n < senders; n++) {
        int may_be = may_take_more(room->senders[n]); /* else nothing is polled, as -1 is nobody's */
        of_senders[n] = (struct pollfd){.fd = may_be ? room->senders[n]->descriptor : -1, .events = POLLIN};
        if (may_be && room->senders[n]->is_behind) patience_ms = 0;
    }
    if (poll(polled, (nfds_t)(OTHERS + stays + senders), patience_ms) < 0) return done; /* a signal came */
    atomic_store(&carrier->asleep, AWAKE);
    for (int n = 0; n < OTHERS; n++) {
        uint64_t count;
        ssize_t heard = polled[n].revents ? read(polled[n].fd, &count, sizeof count) : 0;
        (void)heard;
    }
    for (int n = 0; n < senders; n++)
        if (room->senders[n]->is_behind == PASSED_OVER && of_senders[n].fd >= 0) ready[ready_count++] = room->senders[n];
    for (int n = 0; n < senders; n++) {
        int is_behind = room->senders[n]->is_behind, may_be = of_senders[n].fd >= 0;
        if (is_behind != PASSED_OVER && ((may_be && is_behind) || of_senders[n].revents)) ready[ready_count++] = room->senders[n];
    }
    for (int n = stays - 1; n >= 0; n--) { /* who takes the place of one that is given back had his turn, or came meanwhile */
        if (!of_stays[n].revents) continue;
        if (atomic_load(&carrier->recalled)) return done; /* the loop may wait for that; who is ready is so the next time */
        done = carry_all(carrier, done, room);
        if (!serve_stay(room->stays[n], carrier->made, MADE_BYTES)) show_out(carrier, room, n);
    }
    if (ready_count && !atomic_load(&carrier->recalled)) serve(carrier, room, ready, ready_count);
    answer_durable(carrier->lane, room->senders, room->sender_count);
    let_go(carrier, room, 0);
    return done;
}

/* The thread. */
EXPORT void native_carry(struct carrier *carrier) {
    struct room room = {0};
    uint64_t done = 0;
    for (;;) {
        done = carry_all(carrier, done, &room);
        if (atomic_exchange(&carrier->recalled, 0)) let_go(carrier, &room, 0);
        int is_alone = room.count == 0 && room.sender_count == 0;
        atomic_store(&carrier->asleep, is_alone ? ALONE : WITH_OTHERS);
        /* who put it, or wants one back, may have woken this already, which is no harm */
        if (done < atomic_load(&carrier->put) || atomic_load(&carrier->recalled)) continue;
        if (atomic_load(&carrier->ending)) break;
        if (!is_alone) done = attend(carrier, done, &room);
        else while (sem_wait(&carrier->bell) != 0) continue; /* a signal came */
    }
    let_go(carrier, &room, 1);
}

/* ---- Those who stay, for the loop */

/* Have a connection stay, behind the piece `before`; -1: behind none. Its requests are of these kinds, KINDS at most, the first of which
 * was asked last; what is wanted holds so long. `number` is free: it is not over since it was put. */
EXPORT void native_stay_put(struct carrier *carrier, int64_t number, const struct asked *asked, const struct kind_put *kinds, int64_t count,
                            int64_t descriptor, int64_t before, int64_t longest_ns) {
    struct stay *stay = &carrier->stays[number];
    uint64_t put = atomic_load(&carrier->put);
    begin_stay(stay, asked->slots, kinds, count, (int32_t)descriptor, longest_ns);
    carrier->pieces[put % PIECES] = (struct piece){NULL, NULL, 0, 0, before, stay, NULL, stay->descriptor, 0};
    atomic_store(&carrier->put, put + 1);
    wake(carrier);
}

/* Whether it is over; then, how it ended, what was done of each kind, and `left` bytes that were read and are to be taken yet. */
EXPORT int32_t native_stay_look(const struct carrier *carrier, int64_t number, struct end *end, struct told *told, uint8_t *left) {
    const struct stay *stay = &carrier->stays[number];
    if (!atomic_load(&stay->is_over)) return 0;
    *end = stay->end;
    for (int32_t n = 0; n < stay->kind_count; n++) told[n] = stay->kinds[n].told;
    memcpy(left, stay->in, (size_t)stay->end.left);
    return 1;
}

/* The answer that was not written whole, made again: its length, or 0 when one of its records is no more what was stored. */
EXPORT int64_t native_stay_made(const struct carrier *carrier, int64_t number, uint8_t *out, int64_t room) {
    return native_pull_made(&carrier->stays[number].answer, out, room);
}

/* Have it be over soon. */
EXPORT void native_stay_recall(struct carrier *carrier, int64_t number) {
    atomic_store(&carrier->stays[number].is_wanted, 1);
    atomic_store(&carrier->recalled, 1);
    wake(carrier);
}

/* Return when it is, soon; likewise. */
EXPORT void native_stay_finish(struct carrier *carrier, int64_t number) {
    while (!atomic_load(&carrier->stays[number].is_over)) sched_yield();
}

/* Have a connection stay likewise for what it sends; `peer` is its address, `begun` what was read of a frame, SENDER_BYTES of it at most. How
 * often this number was used up to now. */
EXPORT int64_t native_sender_put(struct carrier *carrier, int64_t number, const uint8_t *peer, int64_t peer_length,
                                 const uint8_t *begun, int64_t begun_length, int64_t descriptor, int64_t before) {
    struct sender *sender = &carrier->lane->senders[number];
    uint64_t put = atomic_load(&carrier->put);
    begin_sender(sender, peer, peer_length, (int32_t)descriptor, begun, begun_length);
    carrier->pieces[put % PIECES] = (struct piece){NULL, NULL, 0, 0, before, NULL, sender, sender->descriptor, 0};
    atomic_store(&carrier->put, put + 1);
    wake(carrier);
    return atomic_load(&sender->times);
}

/* Have bytes sent to him, who stays since that time, as `native_carrier_put` does; not written are all of them, when he is over. */
EXPORT void native_sender_pass(struct carrier *carrier, int64_t number, int64_t times, const uint8_t *at, int64_t length) {
    struct sender *sender = &carrier->lane->senders[number];
    uint64_t put = atomic_load(&carrier->put);
    carrier->pieces[put % PIECES] = (struct piece){at, NULL, length, 0, -1, NULL, sender, sender->descriptor, times};
    atomic_store(&carrier->put, put + 1);
    wake(carrier);
}

/* Likewise have it be over soon. */
EXPORT void native_sender_recall(struct carrier *carrier, int64_t number) {
    atomic_store(&carrier->lane->senders[number].is_wanted, 1);
    atomic_store(&carrier->recalled, 1);
    wake(carrier);
}

/* The lane was lent while the thread waited for that. */
EXPORT void native_carrier_summon(struct carrier *carrier) { wake(carrier); }

/* The thread has returned. */
EXPORT void native_carrier_close(struct carrier *carrier) { sem_destroy(&carrier->bell); }
