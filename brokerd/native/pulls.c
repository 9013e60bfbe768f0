/* Pulls: what a request asks for, and its answer, from a consume queue's units and the mapped file of the log that has their records.
 * The twins are in brokerd/processors/pulling/asked.py and laid_out.py.
 *
 * An answer is made in two steps. The first chooses its messages and writes its head, which takes the loop a microsecond; the second
 * copies the records and checks them where they were copied to, and may be another thread's (carrier.c). Until then the file has to
 * stay mapped, and as long as it is.
 *
 * Bounds: a header's texts travel with their lengths, and each is compared with the room that is left before it is copied. Of an
 * answer, head and records are added up in 64 bits and compared with the room before anything is written.
 */
#include "pulls.h"
#include "headers.h"
#include "record.h"

enum { PULL_MESSAGE = 11, LITE_PULL_MESSAGE = 361 };

#define BLANK_SIZE 0x7FFFFFFF /* of a unit without a message */

/* ---- Requests */

struct asked { /* asked.py has the same; the places are the caller's, of that room */
    uint8_t *key, *scratch;
    int64_t key_room, scratch_room, max_frame_bytes;
    int64_t opaque, queue_offset, commit_offset, key_length;
};

/* Whether a field is there twice: which one counts is the twin's business. Or is null: it counts as not there. */
static int is_unusual(const struct fields *fields, size_t n, uint32_t encoding) {
    if (encoding == 0 && fields->values[n].length == 0 && *fields->values[n].at == 'n') return 1; /* where a text's quote would be */
    for (size_t before = 0; before < n; before++)
        if (equals(fields->names[before], (const char *)fields->names[n].at, fields->names[n].length)) return 1;
    return 0;
}

/* Put all that a pull says to the key, but what is another in each: its opaque and two offsets, of which the first must be there.
 * 0 for what is left to the twin. */
static int put_key(struct asked *asked, const struct header *header, const struct fields *fields, uint32_t encoding) {
    uint8_t *at = asked->key, *end = at + asked->key_room;
    int has_offset = 0;
    if (end - at < 2) return 0;
    put16(at, (uint16_t)header->code);
    at += 2;
    for (size_t n = 0; n < fields->count; n++) {
        struct text name = fields->names[n], value = fields->values[n];
        if (is_unusual(fields, n, encoding)) return 0;
        if (IS(name, "queueOffset")) {
            if (!integer_of(value, &asked->queue_offset)) return 0;
            has_offset = 1;
        } else if (IS(name, "commitOffset")) {
            if (!integer_of(value, &asked->commit_offset) || asked->commit_offset < -1) return 0;
        } else {
            size_t room = (size_t)(end - at);
            if (room < 6 || name.length > UINT16_MAX || name.length > room - 6 || value.length > room - 6 - name.length) return 0;
            put16(at, (uint16_t)name.length);
            put32(at + 2, (uint32_t)value.length);
            at = put_text(put_text(at + 6, name.at, name.length), value.at, value.length);
        }
    }
    asked->key_length = at - asked->key;
    return has_offset;
}

/* Read the frame at `at` of a buffer of so many bytes: how many it has, when it is a pull of the usual form that came whole; else 0. */
EXPORT int64_t native_pull_asked(struct asked *asked, const uint8_t *buffer, int64_t length, int64_t at) {
    struct frame frame;
    struct header header;
    struct fields fields;
    if (at < 0 || at > length) return 0;
    int64_t taken = find_frame(buffer + at, length - at, asked->max_frame_bytes, &frame);
    if (taken <= 0) return 0;
    if (!read_fields(frame.header, frame.encoding, asked->scratch, asked->scratch_room, &header, &fields)) return 0;
    if ((header.code != PULL_MESSAGE && header.code != LITE_PULL_MESSAGE) || header.frame_flag != 0) return 0;
    asked->opaque = header.opaque;
    asked->commit_offset = -1;
    return put_key(asked, &header, &fields, frame.encoding) ? taken : 0;
}

/* ---- Answers */

struct wanted { /* laid_out.py has the same */
    const uint8_t *file;              /* of the log, */
    int64_t file_length, file_begin;  /* and where its bytes begin there */
    int64_t room;                     /* for the whole answer */
    int64_t unit_count, queue_offset; /* so many units, from that one of the queue on */
    int64_t max_count, max_bytes, tag_count; /* -1: all messages are wanted */
    int64_t min_offset, max_offset, opaque, group_sys_flag, version;
    int64_t next_broker, next_broker_when_far, far_below; /* where to read on; where, when what was read ends below that */
    int64_t message_count, body_bytes, next_offset;       /* what was found */
};

/* Whether a code is among the tags, which are in order. */
static int is_tag(const int64_t *tags, int64_t count, int64_t code) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (tags[middle] < code) low = middle + 1;
        else high = middle;
    }
    return low < count && tags[low] == code;
}

/* Choose which of the units go into the answer: 0 when one of them can be no record's. */
static int choose(struct wanted *wanted, const uint8_t *units, const int64_t *tags, struct answer *answer) {
    int64_t count = 0, looked_at = 0, total = 0;
    for (const uint8_t *unit = units; looked_at < wanted->unit_count && count < wanted->max_count; unit += UNIT_BYTES) {
        int64_t size = (int32_t)get32(unit + 8);
        int is_wanted = size != BLANK_SIZE && (wanted->tag_count < 0 || is_tag(tags, wanted->tag_count, (int64_t)get64(unit + 12)));
        if (is_wanted) {
            if (size < RECORD_LEAST_BYTES) return 0;
            if (count > 0 && total + size > wanted->max_bytes) break;
            total += size;
            memcpy(answer->units + UNIT_BYTES * count++, unit, UNIT_BYTES);
        }
        looked_at++;
    }
    answer->count = wanted->message_count = count;
    wanted->body_bytes = total;
    wanted->next_offset = wanted->queue_offset + looked_at;
    return 1;
}

/* Write the frame's prefix and header, at most HEAD_ROOM bytes; where they end. */
static uint8_t *put_head(const struct wanted *wanted, int64_t read_up_to, uint8_t *begin) {
    uint8_t *at = PUT(begin + 8, "{\"code\":0,\"extFields\":{\"suggestWhichBrokerId\":\"");
    at = put_decimal(at, read_up_to < wanted->far_below ? wanted->next_broker_when_far : wanted->next_broker);
    at = put_decimal(PUT(at, "\",\"nextBeginOffset\":\""), wanted->next_offset);
    at = put_decimal(PUT(at, "\",\"minOffset\":\""), wanted->min_offset);
    at = put_decimal(PUT(at, "\",\"maxOffset\":\""), wanted->max_offset);
    at = put_decimal(PUT(at, "\",\"topicSysFlag\":\"0\",\"groupSysFlag\":\""), wanted->group_sys_flag);
    at = put_decimal(PUT(at, "\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":"), wanted->opaque);
    at = PUT(put_decimal(PUT(at, ",\"version\":"), wanted->version), ",\"remark\":\"FOUND\"}");
    put32(begin, (uint32_t)(at - begin - 4 + wanted->body_bytes));
    put32(begin + 4, (uint32_t)(at - begin - 8));
    return at;
}

/* Say what the answer is made of: how many bytes it will have; 0 when none of the messages is wanted; -1 for what is left to the twins.
 * The units are `unit_count` of UNIT_BYTES, the tags `tag_count`. */
EXPORT int64_t native_pull_prepared(struct wanted *wanted, const uint8_t *units, const int64_t *tags, struct answer *answer) {
    if (wanted->max_count < 1 || wanted->max_count > MOST_MESSAGES || !choose(wanted, units, tags, answer)) return -1;
    if (answer->count == 0) return 0;
    if (wanted->body_bytes > wanted->room - HEAD_ROOM) return -1;
    const uint8_t *last = answer->units + UNIT_BYTES * (answer->count - 1);
    answer->file = wanted->file;
    answer->file_length = wanted->file_length;
    answer->file_begin = wanted->file_begin;
    answer->head_length = put_head(wanted, (int64_t)(get64(last) + get32(last + 8)), answer->head) - answer->head;
    answer->length = answer->head_length + wanted->body_bytes; /* in the room: a head is no longer than HEAD_ROOM */
    return answer->length;
}

int64_t native_pull_made(const struct answer *answer, uint8_t *out, int64_t room) {
    if (answer->length > room) return 0;
    uint8_t *at = put_text(out, answer->head, (size_t)answer->head_length), *end = out + answer->length;
    for (int64_t n = 0; n < answer->count; n++) {
        int64_t size = copy_record(answer->file, answer->file_length, answer->file_begin, answer->units + UNIT_BYTES * n, at, end - at);
        if (size == 0) return 0;
        at += size;
    }
    return at - out;
}
