/* Entries of consume queues as send.c finds them while it lays out, and queue_tails.c puts them behind their queues. */
#ifndef LOGBOOM_UNITS_H
#define LOGBOOM_UNITS_H

#include <stdint.h>

/* Shared with brokerd/store/log/laid_out.py, whose struct format says the same. */
struct unit { /* messages of one frame, size and code, one behind the other in log and queue */
    int32_t target, queue_id; /* targets behind the last one: the broker's topics, in the order of `where` of send.c */
    int64_t slot;             /* of the queue, among all that the topics have */
    int64_t queue_offset, position, size, code, count;
};

#endif
