/* What C knows of a queue's units in memory. */
#ifndef LOGBOOM_QUEUE_TAILS_H
#define LOGBOOM_QUEUE_TAILS_H

#include "native.h"

/* Shared with brokerd/store/queues/native_tails.py, whose numbers say the same. */
struct tail {
    int64_t next_offset, last_physical;
    uint8_t *units;     /* those in memory */
    int64_t used, room; /* of them, in bytes */
    int64_t is_dirty;
};

static inline void put_unit(uint8_t *at, int64_t position, int64_t size, int64_t code) {
    put64(at, (uint64_t)position);
    put32(at + 8, (uint32_t)size);
    put64(at + 12, (uint64_t)code);
}

static inline void fetch_tail(const struct tail *tail) {
    __builtin_prefetch(tail, 1);
    __builtin_prefetch(&tail->is_dirty, 1); /* it may lie in two lines */
}

#endif
