/* What is told of a signed send. (signed.c tells, proven.c checks it) */
#ifndef LOGBOOM_SIGNED_H
#define LOGBOOM_SIGNED_H

#include "headers.h"
#include "sha1.h"

enum { SIGNATURE_BYTES = 28 /* 20 bytes in Base64 */ };

/* All shared with native_signed.py. */

struct signed_send { /* places in the buffer, then in the texts */
    int64_t body_at, end;
    int64_t signature_at, covered_at, covered_end; /* each goes as far as the next begins; behind the last, the body's first bytes */
    int64_t sender;                                /* which of the senders */
};

/* How many of the body's first bytes lie behind so many covered ones: as many as make whole blocks of both. */
static inline int64_t drawn_bytes(int64_t covered, int64_t body) {
    int64_t drawn = -covered & (SHA1_BLOCK_BYTES - 1);
    return drawn < body ? drawn : body;
}

struct sender { /* somebody who sends to a topic, and which send of the call is his first */
    int64_t at, end, first;
};

struct signed_areas { /* what stays where it is from call to call */
    uint8_t *scratch, *texts;
    struct signed_send *sends;
    struct sender *senders;
    struct reading *readings; /* of several calls, one behind the other; their texts lie in the buffers and in the scratch */
    int64_t scratch_room, texts_room, readings_room, max_frame_bytes;
    int64_t sender_count;                /* what native_signed found */
    int64_t reading_count, scratch_used; /* whoever sets the first to the room lets all begin anew */
    int64_t times_begun;                 /* anew: what was read before is gone */
};

#endif
