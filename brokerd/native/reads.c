/* Whole records that are about to be given out, or were received: whether they are what was stored. Their twin is in
 * brokerd/store/log/record_checks.py; the layout is that of remoting/record/layout.py, the checksums those of remoting/record/checksum.py.
 *
 * Bounds: a record is looked at when all its bytes are in the content and there are enough for a head; from then on its end
 * travels with it. Lengths in it are added up in 64 bits and compared with that end before anything is read behind them.
 */
#include "record.h"

#define UNIT_BYTES 20 /* physical offset, size, and a code that does not count here */
#define LEAST_BEHIND_BODY 3 /* the lengths of topic and properties */
#define LEAST_BYTES (RECORD_HEAD_BYTES + LEAST_BEHIND_BODY)
#define LONGER_HOST 12 /* what an IPv6 address takes more */
#define BORN_HOST_V6 0x10
#define STORE_HOST_V6 0x20
#define LEAST_LIKE 5 /* bytes of a tail's name, of which no stored property has so many in their places */

static int are_digits(const uint8_t *at) {
    for (int n = 0; n < TAIL_DIGITS; n++)
        if (at[n] < '0' || at[n] > '9') return 0;
    return 1;
}

/* Of a record without a tail: whether its parts add up to its size, and its body has the checksum that its head names. */
static int has_its_body(const uint8_t *record, int64_t size) {
    uint32_t flags = get32(record + 36);
    int64_t body_at = RECORD_HEAD_BYTES + LONGER_HOST * (!!(flags & BORN_HOST_V6) + !!(flags & STORE_HOST_V6));
    if (body_at > size) return 0;
    int64_t body_length = (int32_t)get32(record + body_at - 4), body_end = body_at + body_length;
    if (body_length < 0 || body_end + LEAST_BEHIND_BODY > size) return 0;
    int64_t topic_end;
    if (get32(record + 4) == RECORD_MAGIC_V1) {
        topic_end = body_end + 1 + record[body_end];
    } else {
        int64_t topic_length = (int16_t)get16(record + body_end);
        if (topic_length < 0) return 0;
        topic_end = body_end + 2 + topic_length;
    }
    if (topic_end + 2 > size || topic_end + 2 + (int16_t)get16(record + topic_end) != size) return 0;
    return (crc32_of(0, record + body_at, (size_t)body_length) & CRC_MASK) == get32(record + 8);
}

/* Whether the `size` bytes, at least LEAST_BYTES, are what was stored: by the tail, or without one by the body's checksum. */
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
        if (size < LEAST_BYTES || size > length - at) return n;
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
        if (begins[n] < 0 || begins[n] > length - LEAST_BYTES) return n;
        const uint8_t *record = content + begins[n];
        int64_t size = (int32_t)get32(record);
        if (size < LEAST_BYTES || size > length - begins[n] || !record_is_intact(record, size)) return n;
    }
    return count;
}

/* The number of the first of `count` records that does not lie where its entry says, has another size, or is not what was stored; `count`
 * when all are good. `entries` has UNIT_BYTES for each, with places that count from `begin` on; the records have to fill the content. */
EXPORT int64_t native_first_astray(const uint8_t *content, int64_t length, int64_t begin, const uint8_t *entries, int64_t count) {
    int64_t at = 0;
    for (int64_t n = 0; n < count; n++, entries += UNIT_BYTES) {
        int64_t size = (int32_t)get32(entries + 8);
        if (size < LEAST_BYTES || size > length - at || get64(entries) != (uint64_t)begin + (uint64_t)at) return n;
        if (get32(content + at) != (uint32_t)size || !record_is_intact(content + at, size)) return n;
        at += size;
    }
    return at == length ? count : count - 1;
}
