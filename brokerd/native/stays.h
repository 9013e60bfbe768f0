/* Connections whose pulls the carrier's thread reads and answers. (stays.c) */
#ifndef LOGBOOM_STAYS_H
#define LOGBOOM_STAYS_H

#include "asked.h"
#include "pulls.h"

#include <stdatomic.h>

/* At once; of requests that came; and of those of one connection that it may tell apart. stays.py says the same */
enum { STAYS = 16, STAY_BYTES = 2048, KINDS = 16 };

struct told { /* of a kind, stays.py has the same */
    int64_t answers, messages, body_bytes, next_offset; /* that were given; and where the last one ends */
    int64_t commit_offset;                              /* the last one that was told; -1: none */
    int64_t misses;                                     /* answers without a message */
    int64_t busy_ns;
};

struct end { /* of a stay, likewise */
    int64_t length, written; /* of the last answer */
    int64_t left;            /* bytes that were read, and not taken */
};

struct kind { /* requests that are like one another */
    struct slot like;
    struct wanted wanted;
    struct told told;
};

struct kind_put { /* where one is found, in numbers, as the loop has it; stays.py has the same */
    int64_t slot; /* in which one of these requests is */
    const struct wanted *wanted;
};

struct stay {
    _Atomic int32_t is_over, is_wanted; /* back by the loop */
    int32_t descriptor;
    int64_t until_ns;
    int32_t kind_count, last; /* what may be asked, and which of it was asked last */
    struct answer answer;     /* the last one */
    struct end end;
    uint8_t in[STAY_BYTES];
    struct kind kinds[KINDS];
};

/* For so long at most; of so many kinds, KINDS at most, of those that were read. */
void begin_stay(struct stay *stay, const struct slots *slots, const struct kind_put *kinds, int64_t count, int32_t descriptor,
                int64_t longest_ns);

/* Read what came, and answer it; `made` is where answers are made. 0 when the loop is to have the connection again. */
int serve_stay(struct stay *stay, uint8_t *made, int64_t room);

/* Make an answer and write what the socket takes of it now: how much, or NOT_MADE. (carrier.c) */
int64_t send_answer(const struct answer *answer, uint8_t *made, int64_t room, int32_t descriptor);

#endif
