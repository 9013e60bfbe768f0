/* What a record of the log looks like, for whoever writes or checks one here: remoting/record/layout.py and checksum.py. */
#ifndef LOGBOOM_RECORD_H
#define LOGBOOM_RECORD_H

#include "native.h"

#define RECORD_MAGIC_V1 0xDAA320A7u
#define RECORD_MAGIC_V2 0xDAA320ABu
#define RECORD_BODY_CRC_AT 8
#define RECORD_HEAD_BYTES 88 /* up to the body, with IPv4 hosts */

#define RECORD_LEAST_BEHIND_BODY 3
#define RECORD_LEAST_BYTES (RECORD_HEAD_BYTES + RECORD_LEAST_BEHIND_BODY)
#define RECORD_BORN_HOST_V6 0x10
#define RECORD_STORE_HOST_V6 0x20
#define RECORD_LONGER_HOST 12 /* what an IPv6 address takes more */

#define CRC_MASK 0x7FFFFFFFu

/* The tail: a name, the checksum's digits from the least significant one on, and what ends a property. */
#define TAIL_NAME "__CRC32#\x01"
#define TAIL_NAME_BYTES 9
#define TAIL_DIGITS 10
#define TAIL_BYTES (TAIL_NAME_BYTES + TAIL_DIGITS + 1)

/* The digits of a number below 10^8, for put64 to write from the least significant one on: all eight at once, first fours of them in
 * the halves of the result, then twos, then ones. Multiplying and shifting divides by 100 and by 10. */
static inline uint64_t eight_digits(uint32_t number) {
    uint64_t fours = number / 10000 | (uint64_t)(number % 10000) << 32;
    uint64_t hundreds = fours * 10486 >> 20 & 0x0000007F0000007F;
    uint64_t twos = hundreds | (fours - 100 * hundreds) << 16;
    uint64_t tens = twos * 103 >> 10 & 0x000F000F000F000F;
    return (tens | (twos - 10 * tens) << 8) + 0x3030303030303030;
}

/* Write TAIL_BYTES to `at`: the tail for the CRC-32 of what precedes it. */
static inline void put_tail(uint8_t *at, uint32_t checksum) {
    checksum &= CRC_MASK;
    memcpy(at, TAIL_NAME, TAIL_NAME_BYTES);
    put64(at + TAIL_NAME_BYTES, eight_digits(checksum % 100000000));
    checksum /= 100000000;
    at[TAIL_NAME_BYTES + 8] = (uint8_t)('0' + checksum % 10);
    at[TAIL_NAME_BYTES + 9] = (uint8_t)('0' + checksum / 10);
    at[TAIL_BYTES - 1] = 2;
}

/* Whether the `size` bytes, at least RECORD_HEAD_BYTES + 3, are what was stored: by the tail, or without one by the body's checksum.
 * (reads.c) */
int record_is_intact(const uint8_t *record, int64_t size);

/* Whether the `size` bytes, likewise, are the record that was stored at that offset of the log. (runs.c) */
int is_record_of(const uint8_t *record, int64_t offset, int64_t size);

/* Copy the record that a queue's unit names to `into`, which has so much room: its size, or 0 when it has no room, is not in the file,
 * whose `length` bytes begin at `begin` of the log, or is not what was stored there. (runs.c) */
int64_t copy_record(const uint8_t *file, int64_t length, int64_t begin, const uint8_t *unit, uint8_t *into, int64_t room);

#endif
