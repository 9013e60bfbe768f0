/* What an answer to a pull is made of (pulls.c), for who makes it while the loop goes on (carrier.c). */
#ifndef LOGBOOM_PULLS_H
#define LOGBOOM_PULLS_H

#include "native.h"

enum { MOST_MESSAGES = 64, HEAD_ROOM = 512 /* the text of a head, and ten numbers of 20 digits */ };

#define UNIT_BYTES 20 /* physical offset, size, and the code of a tag */

struct answer {
    const uint8_t *file; /* of the log, mapped */
    int64_t file_length, file_begin;
    int64_t length, head_length, count; /* in bytes, with its records; and of these */
    uint8_t head[HEAD_ROOM];            /* the frame up to its body */
    uint8_t units[MOST_MESSAGES * UNIT_BYTES];
};

/* The bytes of a prepared answer: its length, or 0 when there is no room, or a record is not what was stored. */
EXPORT int64_t native_pull_made(const struct answer *answer, uint8_t *out, int64_t room);

#endif
