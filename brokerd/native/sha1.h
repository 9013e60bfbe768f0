/* SHA-1 of many messages at once, a block of each in one step. (sha1.c) */
#ifndef LOGBOOM_SHA1_H
#define LOGBOOM_SHA1_H

#include "native.h"

enum { SHA1_LANES = 16, SHA1_WORDS = 5, SHA1_BYTES = 20, SHA1_BLOCK_BYTES = 64 };

struct sha1_lanes { /* word by word, of each lane one */
    uint32_t words[SHA1_WORDS][SHA1_LANES];
};

/* Whether this processor is fast at it; where it is not, sha1_step must not be called. */
int sha1_is_fast(void);

/* Take a block of SHA1_BLOCK_BYTES in each lane. */
void sha1_step(struct sha1_lanes *lanes, const uint8_t *const blocks[SHA1_LANES]);

#endif
