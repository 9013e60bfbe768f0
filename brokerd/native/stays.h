/* Connections whose pulls the carrier's thread reads and answers. (stays.c) */
#ifndef LOGBOOM_STAYS_H
#define LOGBOOM_STAYS_H

#include "asked.h"
#include "pulls.h"

#include <stdatomic.h>

enum { STAYS = 16, STAY_BYTES = 2048 }; /* at once; of requests that came. stays.py says the same */

struct told { /* of a stay, stays.py has the same */
    int64_t answers, messages, body_bytes, next_offset; /* that were given; and where the last one ends */
    int64_t commit_offset;                              /* the last one that was told; -1: none */
    int64_t misses;                                     /* answers without a message */
    int64_t busy_ns;
    int64_t length, written; /* of the last answer */
    int64_t left;            /* bytes that were read, and not taken */
};

struct stay {
    _Atomic int32_t is_over, is_wanted; /* back by the loop */
    int32_t descriptor;
    int64_t until_ns;
    struct slot like; /* its requests */
    struct wanted wanted;
    struct answer answer; /* the last one */
    struct told told;
    uint8_t in[STAY_BYTES];
};

/* For so long at most. */
void begin_stay(struct stay *stay, const struct slot *like, const struct wanted *wanted, int32_t descriptor, int64_t longest_ns);

/* Read what came, and answer it; `made` is where answers are made. 0 when the loop is to have the connection again. */
int serve_stay(struct stay *stay, uint8_t *made, int64_t room);

/* Make an answer and write what the socket takes of it now: how much, or NOT_MADE. (carrier.c) */
int64_t send_answer(const struct answer *answer, uint8_t *made, int64_t room, int32_t descriptor);

#endif
