/* What the records of timers say that wait since they were sent, for those who follow the timer topic's queue: who counts what waits, and
 * the timer files. The twins are brokerd/timers/said.py and, for the files, brokerd/timers/files/pending.py, which say what is right.
 *
 *   native_timer_said    look at the records that units of the queue name
 *   native_timer_link    put what was said into the timer log and the wheel
 *
 * Bounds: a record is looked at when it lies in the source's bytes and is what was stored; its properties travel with their end. The wheel
 * is written at `time % slots`, and the records to be written have room for as many as there are rows.
 */
#include "record_parts.h"

enum {
    KIND_BITS = 2,
    KIND_MASK = 3,
    SLOT_MS = 1000,
    MINUTE_MS = 60000,
    MAX_DIGITS = 16,
    MAX_TOPICS = 64,
    LOG_RECORD_BYTES = 52,
    SLOT_BYTES = 32,
    MAGIC = 1,
    MAGIC_ROLL = 2,
};
static const int64_t MAX_DELAY_MS = 0x7FFFFFFF;

struct row { /* shared with native_said.py */
    int64_t code, offset, size; /* of the entry: its code, and where its record is */
    int64_t topic;              /* number of the topic */
    int64_t slot_ms, due_ms, stored_ms, has_leg;
    int64_t counted; /* `said.counted_as` */
};

struct topic { /* where in the source its name is */
    int64_t at, length;
};

/* Private */

struct reader {
    const uint8_t *at, *end;
};

/* The last property of those that are left, with the name; its separator is gone. 0 when that is another one. */
static int take_last(struct reader *r, const char *name, size_t length, struct text *value) {
    const uint8_t *begin = r->end;
    while (begin > r->at && begin[-1] != 2) begin--;
    if (begin == r->at) return 0; /* a separator stands before it */
    size_t found = (size_t)(r->end - begin);
    if (found <= length || memcmp(begin, name, length) != 0) return 0;
    *value = (struct text){begin + length, found - length};
    r->end = begin - 1;
    return 1;
}
#define TAKE_LAST(r, name, value) take_last(r, name "\1", sizeof name, value)

/* Whether something else is said of when it is appended again: a name is somewhere in the text, also in the middle of others. */
static int has_other(struct text text, int has_leg) {
    const uint8_t *at = text.at, *end = text.at + text.length;
    while (end - at >= 12 && (at = memchr(at, 'T', (size_t)(end - at - 11))) != NULL) {
        if (!has_leg && memcmp(at, "TIMER_LEG_MS", 12) == 0) return 1;
        if (end - at >= 16 && memcmp(at, "TIMER_DEQUEUE_MS", 16) == 0) return 1;
        at++;
    }
    return 0;
}

/* `codes.added_of`; the topic's name is one of the record's. 0 for what is to be looked at in Python. */
static int added_of(struct text properties, struct text *topic, struct row *row) {
    struct reader r = {properties.at, properties.at + properties.length};
    struct text value;
    const uint8_t *behind;
    if (properties.length >= TAIL_BYTES && memcmp(r.end - TAIL_BYTES, TAIL_NAME, TAIL_NAME_BYTES) == 0) r.end -= TAIL_BYTES;
    if (r.end == r.at || r.end[-1] != 2) return 0;
    r.end--;
    row->has_leg = TAKE_LAST(&r, "TIMER_LEG_MS", &value);
    if (row->has_leg && !natural_of(value, MAX_DIGITS, &row->due_ms)) return 0;
    if (!TAKE_LAST(&r, "TIMER_DUE_MS", &value) || !natural_of(value, MAX_DIGITS, &row->due_ms)) return 0;
    if (!TAKE_LAST(&r, "TIMER_OUT_MS", &value) || !natural_of(value, MAX_DIGITS, &row->slot_ms)) return 0;
    behind = r.end;
    if (!TAKE_LAST(&r, "REAL_QID", &value) || !TAKE_LAST(&r, "REAL_TOPIC", topic)) return 0;
    return !has_other((struct text){properties.at, (size_t)(behind - properties.at)}, (int)row->has_leg);
}

/* The number of the topic, which may be new; -1 when there are too many. */
static int64_t number_of(struct topic *topics, int64_t *count, const uint8_t *source, struct text name) {
    for (int64_t n = *count - 1; n >= 0; n--)
        if ((size_t)topics[n].length == name.length && memcmp(source + topics[n].at, name.at, name.length) == 0) return n;
    if (*count == MAX_TOPICS) return -1;
    topics[*count] = (struct topic){name.at - source, (int64_t)name.length};
    return (*count)++;
}

/* Public */

/* Look at the records that `count` units name, which lie in `length` bytes that begin at `begin` of the log: how many rows there are. It
 * ends before the first one that does not wait since it was sent, is due at `least_ms` or before, or is not as expected. `topics` has
 * room for MAX_TOPICS; `topic_count` says how many there are. */
EXPORT int64_t native_timer_said(const uint8_t *source, int64_t length, int64_t begin, const uint8_t *units, int64_t count,
                                 int64_t least_ms, struct row *rows, struct topic *topics, int64_t *topic_count) {
    *topic_count = 0;
    for (int64_t n = 0; n < count; n++, units += UNIT_BYTES) {
        struct row *row = &rows[n];
        struct record_parts parts;
        struct text topic;
        int64_t offset = (int64_t)get64(units), size = (int32_t)get32(units + 8), code = (int64_t)get64(units + 12);
        if (code & KIND_MASK || code >> KIND_BITS <= least_ms) return n;
        if (size < RECORD_LEAST_BYTES || offset < begin || offset - begin > length - size) return n;
        const uint8_t *record = source + (offset - begin);
        if (get32(record) != (uint32_t)size || get64(record + 28) != (uint64_t)offset) return n;
        if (!record_is_intact(record, size) || !record_parts_of(record, size, &parts)) return n;
        if (!added_of(parts.properties, &topic, row)) return n;
        row->topic = number_of(topics, topic_count, source, topic);
        if (row->topic < 0) return n;
        row->code = code;
        row->offset = offset;
        row->size = size;
        row->stored_ms = parts.timestamp_ms;
        int64_t due_ms = row->due_ms > row->slot_ms ? row->due_ms : row->slot_ms + 1;
        row->counted = ((due_ms - 1) / MINUTE_MS * MAX_TOPICS + row->topic) * 2 + (due_ms > code >> KIND_BITS);
    }
    return count;
}

struct link { /* shared with native_said.py */
    uint8_t *wheel;
    int64_t slots, least_slot_ms; /* of the wheel; the first one that is alive */
    const int64_t *topic_hashes;
    int64_t queue_offset, position; /* of the first row: in the queue, and in the timer log */
    uint8_t *records;
    int64_t *touched;               /* which places of the wheel were written */
    int64_t first_slot_ms, last_slot_ms; /* out: of those that were written */
};

/* Put the timers of `count` rows: how many were. It ends before the first one whose place in the wheel is taken. */
EXPORT int64_t native_timer_link(struct link *link, const struct row *rows, int64_t count) {
    uint8_t *out = link->records;
    for (int64_t n = 0; n < count; n++, out += LOG_RECORD_BYTES) {
        const struct row *row = &rows[n];
        int64_t due_ms = row->code >> KIND_BITS, before_ms = due_ms - 1;
        int64_t slot_ms = before_ms - before_ms % SLOT_MS, position = link->position + n * LOG_RECORD_BYTES;
        if (slot_ms < SLOT_MS) slot_ms = SLOT_MS;
        int64_t time = slot_ms / SLOT_MS, place = time % link->slots;
        uint8_t *slot = link->wheel + place * SLOT_BYTES;
        int64_t other = (int64_t)get64(slot), first = position, previous = -1, messages = 0;
        if (other == time) {
            first = (int64_t)get64(slot + 8);
            previous = (int64_t)get64(slot + 16);
            messages = (int32_t)get32(slot + 24);
            if (first == -1) first = position;
        } else if (other >= link->least_slot_ms / SLOT_MS) { /* whatever the file says, in which it is */
            return n;
        }
        int64_t least_ms = before_ms - MAX_DELAY_MS, most_ms = before_ms + MAX_DELAY_MS;
        int64_t write_ms = row->stored_ms < least_ms ? least_ms : row->stored_ms > most_ms ? most_ms : row->stored_ms;
        put32(out, LOG_RECORD_BYTES);
        put64(out + 4, (uint64_t)previous);
        put32(out + 12, MAGIC | (row->has_leg ? MAGIC_ROLL : 0));
        put64(out + 16, (uint64_t)write_ms);
        put32(out + 24, (uint32_t)(before_ms - write_ms));
        put64(out + 28, (uint64_t)row->offset);
        put32(out + 36, (uint32_t)row->size);
        put32(out + 40, (uint32_t)link->topic_hashes[row->topic]);
        put64(out + 44, (uint64_t)(link->queue_offset + n));
        put64(slot, (uint64_t)time);
        put64(slot + 8, (uint64_t)first);
        put64(slot + 16, (uint64_t)position);
        put32(slot + 24, (uint32_t)(messages + 1));
        put32(slot + 28, 0);
        link->touched[n] = place;
        if (n == 0 || slot_ms < link->first_slot_ms) link->first_slot_ms = slot_ms;
        if (n == 0 || slot_ms > link->last_slot_ms) link->last_slot_ms = slot_ms;
    }
    return count;
}
