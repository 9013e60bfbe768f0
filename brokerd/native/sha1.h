/* SHA-1 of several messages side by side. (sha1.c) */
#ifndef LOGBOOM_SHA1_H
#define LOGBOOM_SHA1_H

#include "native.h"

enum { SHA1_LANES = 16, SHA1_WORDS = 5, SHA1_BYTES = 20, SHA1_BLOCK_BYTES = 64 };

struct sha1_lanes { /* word by word, of each lane one */
    uint32_t words[SHA1_WORDS][SHA1_LANES];
};

/* How many lanes are best on this processor when so many messages are there; of none, what works on any. */
int sha1_lanes_for(int64_t messages);

/* Take, in each of the first `lanes` lanes, that many blocks of SHA1_BLOCK_BYTES one behind the other. sha1_lanes_for said how many
 * lanes. */
void sha1_step(struct sha1_lanes *of, const uint8_t *const *blocks, int64_t count, int lanes);

#endif
