/* Connections whose sends the carrier's thread takes, while the loop lends it the end of the log. (lane.c) */
#ifndef LOGBOOM_LANE_H
#define LOGBOOM_LANE_H

#include "syncs.h"

#include <stdatomic.h>

/* At once; of what came; of answers in a pass; frames of one at a time; of an address; passes of one that wait for the disk. lane.py says
 * the same */
enum { SENDERS = 128, SENDER_BYTES = 128 * 1024, LANE_ANSWERS_BYTES = 256 * 1024, MOST_SENT = 128, PEER_BYTES = 20, MOST_WAITING = 64 };
enum { MUCH_FRAMES = 8, MUCH_BYTES = 8 * 1024 }; /* of a pass: the next one is worth its while, too */
enum { KEPT_BYTES = 2 * LANE_ANSWERS_BYTES }; /* of answers of one */
enum { STEP_BITS = 3, TIMES = 304 }; /* steps of an octave are so many bits, and all times that are told apart; lane.py says the same */

struct sent { /* of a sender, lane.py has the same */
    _Atomic int64_t frames; /* that were taken: the loop looks at it while the thread goes on */
    int64_t rest;    /* bytes of answers that may leave, and the socket did not take */
    int64_t left;    /* bytes that were read, and not taken */
    _Atomic int64_t waiting; /* passes of which the answers wait; likewise */
};

struct waiting { /* answers that leave when all before `end` of the log is durable, likewise */
    int64_t end, length, count, since_ns;
    int64_t messages; /* whose time is known when these leave: all of a pass are with its first answers */
};

struct timed { /* messages that waited for the disk about so long, likewise */
    int64_t time, messages;
};

enum behind { NOT_BEHIND, HAS_MORE, PASSED_OVER }; /* there may be whole frames among what is left; there was no room for the first, so he comes
                                                      before others the next time */

struct sender {
    _Atomic int32_t is_over, is_wanted; /* back by the loop */
    _Atomic int64_t times;              /* that this was used */
    int32_t descriptor, is_behind;
    int64_t peer_length;
    struct sent sent;
    int64_t kept; /* bytes: the rest, and behind it what waits, whose passes are a ring */
    _Atomic int64_t since_ns; /* the first of these waits, when any does */
    int32_t first;
    struct waiting waiting[MOST_WAITING];
    uint8_t peer[PEER_BYTES];
    uint8_t in[SENDER_BYTES], kept_answers[KEPT_BYTES];
};

struct lent { /* lane.py has the same */
    int64_t areas;                  /* of the loop's calls; where they are */
    int64_t descriptor, file_begin; /* of the log's last file, and where that begins in the log */
    int64_t for_ns;                 /* so long what was looked at before counts */
    int64_t syncs;                  /* what is answered waits for these; where they are, 0 for none */
    /* And what was done with it: */
    _Atomic int64_t frames; /* lane.py looks at it while the thread goes on, and at the error: each is read and written whole */
    int64_t passes, busy_ns;
    int64_t tried_end;     /* a write failed, which may have left something up to there; */
    _Atomic int64_t error; /* and why. 0: none did */
};

enum whose { LOOPS, LENT, AT_WORK };

struct lane {
    struct lent lent;
    _Atomic int64_t left; /* stays that are over, in all: counted before each is. lane.py finds it behind what is lent, */
    _Atomic int64_t timed; /* and messages of which it is known how long they waited for the disk, in all */
    _Atomic int32_t whose;
    _Atomic int32_t is_missed; /* the thread waits for the next time that it is lent */
    _Atomic uint64_t times;    /* it was lent */
    int64_t until_ns;
    int32_t is_full; /* a call has no room: the loop is to take what there is */
    struct syncs *syncs; /* that anything waits for; the thread's */
    int64_t last_end;    /* of the log, behind what the last pass took */
    int64_t untimed;     /* messages of it that are with nobody's answers yet */
    int is_much;         /* what that took */
    _Atomic int64_t waited[TIMES]; /* messages, by how long they waited for the disk (time_of in lane.c) */
    struct share { /* of the present ones: bytes of answers and their number, and bytes of what came */
        int64_t size, count, taken;
        int waits;
    } shares[SENDERS];
    uint8_t answers[LANE_ANSWERS_BYTES];
    struct sender senders[SENDERS];
};

void begin_sender(struct sender *sender, const uint8_t *peer, int64_t peer_length, int32_t descriptor, const uint8_t *begun, int64_t begun_length);

enum served { NOT_SERVED, SERVED, FIRST_SERVED };

/* Read what the senders sent, and take of it what may be taken; those with nothing more to be served by the thread are wanted back.
 * NOT_SERVED when the lane is not the thread's, or not any more: then nothing is read. FIRST_SERVED: the loop does not know of any yet. */
enum served serve_senders(struct lane *lane, struct sender **senders, int count);

/* Send what the loop answers meanwhile, if he is still the one who stayed at that time: whether it is sent, or kept to be. */
int pass_on(struct sender *sender, int64_t times, const uint8_t *at, int64_t length);

/* Whether more may be read of what it sends. */
int may_take_more(const struct sender *sender);

/* Send what waits and is durable by now. */
void answer_durable(struct lane *lane, struct sender **senders, int count);

/* Whether what is sent now had better be read when the sync ends that is under way: no sooner is it durable then, and it is read with
 * all that comes meanwhile. */
int may_be_left(struct lane *lane);

/* Have the syncs' event set when one ends, unless something may be answered now, or nothing waits: whether to wait. */
int waits_for_sync(struct lane *lane, struct sender **senders, int count);

/* Write what the socket takes now: how much. (carrier.c) */
int64_t write_some(int32_t descriptor, const uint8_t *at, int64_t length);

#endif
