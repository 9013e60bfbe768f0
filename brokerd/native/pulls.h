/* What an answer to a pull is made of (pulls.c), for who makes it while the loop goes on (carrier.c). */
#ifndef LOGBOOM_PULLS_H
#define LOGBOOM_PULLS_H

#include "log_files.h"

enum { MOST_MESSAGES = 64, HEAD_ROOM = 512 /* the text of a head, and eleven numbers of 20 digits */ };

struct answer {
    struct log_file file;
    int64_t length, head_length, count; /* in bytes, with its records; and of these */
    uint8_t head[HEAD_ROOM];            /* the frame up to its body */
    uint8_t units[MOST_MESSAGES * UNIT_BYTES];
};

struct wanted { /* laid_out.py has the same, of which brokerd/store/sight.py has the beginning */
    struct log_file file;
    const uint8_t *units;             /* of the queue */
    int64_t units_begin, units_end;   /* from this one on, before that one */
    int64_t min_offset, max_offset;   /* of the queue, to be told */
    int64_t queue_offset, opaque;     /* what is asked for */
    int64_t room;                     /* for the whole answer */
    int64_t most_units, max_count, max_bytes; /* to look at; to choose */
    const int64_t *tags;              /* -1 of them: all messages are wanted */
    int64_t tag_count;
    int64_t group_sys_flag, version;
    int64_t next_broker, next_broker_when_far, far_below; /* where to read on; where, when what was read ends below that */
    int64_t next_broker_when_none;     /* and where, when none of the messages is wanted */
    int64_t descriptor, least_carried; /* who sends it; and from which length on a thread does, (carrier.c) */
    int64_t behind;                    /* that piece; -1: none */
    int64_t message_count, body_bytes, next_offset, length; /* what was found */
    int64_t is_short; /* the look ended where what is known of the queue does, and for nothing else */
    int64_t later;    /* it ended before a record that is wanted and in a later file: where that is; -1: it did not */
};

/* Say what the answer is made of: how many bytes it will have; 0 when none of the messages is wanted; -1 for what is left to the twins,
 * also when the look was short of more that the queue has, or all that is wanted is in later files. */
int64_t prepare_pull(struct wanted *wanted, struct answer *answer);

/* When that was 0: what says so, and where to go on. */
int64_t prepare_none(const struct wanted *wanted, struct answer *answer);

/* The bytes of a prepared answer: its length, or 0 when there is no room, or a record is not what was stored. */
EXPORT int64_t native_pull_made(const struct answer *answer, uint8_t *out, int64_t room);

#endif
