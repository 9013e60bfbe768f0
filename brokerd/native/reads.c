/* Whole records that are about to be given out, or were received: whether they are what was stored. Their twin is in
 * brokerd/store/log/record_checks.py; the layout is that of remoting/record/layout.py, the checksums those of remoting/record/checksum.py.
 *
 * Bounds: a record is looked at when all its bytes are in the content and there are enough for a head; from then on its end
 * travels with it. Lengths in it are added up in 64 bits and compared with that end before anything is read behind them.
 */
#include "record_parts.h"

#define LEAST_LIKE 5 /* bytes of a tail's name, of which no stored property has so many in their places */

static int are_digits(const uint8_t *at) {
    for (int n = 0; n < TAIL_DIGITS; n++)
        if (at[n] < '0' || at[n] > '9') return 0;
    return 1;
}

/* Of a record without a tail: whether its parts add up to its size, and its body has the checksum that its head names. */
static int has_its_body(const uint8_t *record, int64_t size) {
    struct record_parts parts;
    if (!record_parts_of(record, size, &parts)) return 0;
    return (crc32_of(0, parts.body.at, parts.body.length) & CRC_MASK) == get32(record + RECORD_BODY_CRC_AT);
}

/* Whether the `size` bytes, at least RECORD_LEAST_BYTES, are what was stored: by the tail, or without one by the body's checksum. */
int record_is_intact(const uint8_t *record, int64_t size) {
    const uint8_t *tail = record + size - TAIL_BYTES, *digits = tail + TAIL_NAME_BYTES;
    uint8_t wanted[TAIL_BYTES];
    int alike = 0;
    for (int n = 0; n < TAIL_NAME_BYTES; n++) alike += tail[n] == (uint8_t)TAIL_NAME[n];
    if (alike == TAIL_NAME_BYTES || are_digits(digits)) {
        put_tail(wanted, crc32_of(0, record, (size_t)(size - TAIL_BYTES)));
        if (alike == TAIL_NAME_BYTES) return memcmp(tail, wanted, TAIL_BYTES) == 0;
        if (memcmp(digits, wanted + TAIL_NAME_BYTES, TAIL_DIGITS + 1) == 0) return 0; /* the tail's own name changed */
    }
    return alike < LEAST_LIKE && has_its_body(record, size); /* or the name and something else did */
}

/* The number of the first of `count` records that is not at its place, of its size, or what was stored; `count` when all are good.
 * `units` has UNIT_BYTES for each, as a queue has them; `content` has the records one behind the other. */
EXPORT int64_t native_first_bad(const uint8_t *content, int64_t length, const uint8_t *units, int64_t count) {
    int64_t at = 0;
    for (int64_t n = 0; n < count; n++, units += UNIT_BYTES) {
        int64_t size = (int32_t)get32(units + 8);
        if (size < RECORD_LEAST_BYTES || size > length - at) return n;
        const uint8_t *record = content + at;
        if (get32(record) != (uint32_t)size || get64(record + 28) != get64(units) || !record_is_intact(record, size)) return n;
        at += size;
    }
    return count;
}

/* The number of the first of the whole records, `count` of them, that is not what was stored; `count` when all are good. `begins` says
 * where in the content they begin. */
EXPORT int64_t native_first_damaged(const uint8_t *content, int64_t length, const int64_t *begins, int64_t count) {
    for (int64_t n = 0; n < count; n++) {
        if (begins[n] < 0 || begins[n] > length - RECORD_LEAST_BYTES) return n;
        const uint8_t *record = content + begins[n];
        int64_t size = (int32_t)get32(record);
        if (size < RECORD_LEAST_BYTES || size > length - begins[n] || !record_is_intact(record, size)) return n;
    }
    return count;
}

/* The number of the first of `count` records that does not lie where its entry says, has another size, or is not what was stored; `count`
 * when all are good. `entries` has UNIT_BYTES for each, with places that count from `begin` on; the records have to fill the content. */
EXPORT int64_t native_first_astray(const uint8_t *content, int64_t length, int64_t begin, const uint8_t *entries, int64_t count) {
    int64_t at = 0;
    for (int64_t n = 0; n < count; n++, entries += UNIT_BYTES) {
        int64_t size = (int32_t)get32(entries + 8);
        if (size < RECORD_LEAST_BYTES || size > length - at || get64(entries) != (uint64_t)begin + (uint64_t)at) return n;
        if (get32(content + at) != (uint32_t)size || !record_is_intact(content + at, size)) return n;
        at += size;
    }
    return at == length ? count : count - 1;
}
