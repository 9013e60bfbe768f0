/* What a record of the log looks like, for whoever writes or checks one here: remoting/record/layout.py and checksum.py. */
#ifndef LOGBOOM_RECORD_H
#define LOGBOOM_RECORD_H

#include "native.h"

#define RECORD_MAGIC_V1 0xDAA320A7u
#define RECORD_HEAD_BYTES 88 /* up to the body, with IPv4 hosts */

#define CRC_MASK 0x7FFFFFFFu

/* The tail: a name, the checksum's digits from the least significant one on, and what ends a property. */
#define TAIL_NAME "__CRC32#\x01"
#define TAIL_NAME_BYTES 9
#define TAIL_DIGITS 10
#define TAIL_BYTES (TAIL_NAME_BYTES + TAIL_DIGITS + 1)

/* Write TAIL_BYTES to `at`: the tail for the CRC-32 of what precedes it. */
static inline void put_tail(uint8_t *at, uint32_t checksum) {
    checksum &= CRC_MASK;
    memcpy(at, TAIL_NAME, TAIL_NAME_BYTES);
    for (int i = TAIL_NAME_BYTES; i < TAIL_NAME_BYTES + TAIL_DIGITS; i++, checksum /= 10)
        at[i] = (uint8_t)('0' + checksum % 10);
    at[TAIL_BYTES - 1] = 2;
}

#endif
