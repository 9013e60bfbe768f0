/* Connections whose sends the carrier's thread takes, while the loop lends it the end of the log. (lane.c) */
#ifndef LOGBOOM_LANE_H
#define LOGBOOM_LANE_H

#include "native.h"

#include <stdatomic.h>

/* At once; of what came; of answers to one; frames of one at a time; of an address. lane.py says the same */
enum { SENDERS = 128, SENDER_BYTES = 128 * 1024, LANE_ANSWERS_BYTES = 256 * 1024, MOST_SENT = 128, PEER_BYTES = 20 };

struct sent { /* of a sender, lane.py has the same */
    int64_t frames; /* that were taken */
    int64_t rest;   /* bytes of the last answers that the socket did not take */
    int64_t left;   /* bytes that were read, and not taken */
};

enum behind { NOT_BEHIND, HAS_MORE, PASSED_OVER }; /* there may be whole frames among what is left; there was no room for the first, so he comes
                                                      before others the next time */

struct sender {
    _Atomic int32_t is_over, is_wanted; /* back by the loop */
    int32_t descriptor, is_behind;
    int64_t peer_length;
    struct sent sent;
    uint8_t peer[PEER_BYTES];
    uint8_t in[SENDER_BYTES], rest[LANE_ANSWERS_BYTES];
};

struct lent { /* lane.py has the same */
    int64_t areas;                  /* of the loop's calls; where they are */
    int64_t descriptor, file_begin; /* of the log's last file, and where that begins in the log */
    int64_t for_ns;                 /* so long what was looked at before counts */
    /* And what was done with it: */
    int64_t frames, passes, busy_ns;
    int64_t tried_end, error; /* a write failed, which may have left something up to there; and why. 0: none did */
};

enum whose { LOOPS, LENT, AT_WORK };

struct lane {
    struct lent lent;
    _Atomic int32_t whose;
    _Atomic int32_t is_missed; /* the thread waits for the next time that it is lent */
    _Atomic uint64_t times;    /* it was lent */
    int64_t until_ns;
    int32_t is_full; /* a call has no room: the loop is to take what there is */
    int64_t sizes[SENDERS], taken[SENDERS]; /* of the present ones: bytes of answers, and of what came */
    uint8_t answers[LANE_ANSWERS_BYTES];
    struct sender senders[SENDERS];
};

void begin_sender(struct sender *sender, const uint8_t *peer, int64_t peer_length, int32_t descriptor, const uint8_t *begun, int64_t begun_length);

enum served { NOT_SERVED, SERVED, FIRST_SERVED };

/* Read what the senders sent, and take of it what may be taken; those with nothing more to be served by the thread are wanted back.
 * NOT_SERVED when the lane is not the thread's, or not any more: then nothing is read. FIRST_SERVED: the loop does not know of any yet. */
enum served serve_senders(struct lane *lane, struct sender **senders, int count);

/* Write what the socket takes now: how much. (carrier.c) */
int64_t write_some(int32_t descriptor, const uint8_t *at, int64_t length);

#endif
