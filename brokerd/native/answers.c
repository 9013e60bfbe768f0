/* Answers of gRPC receives: stored records as protobuf messages. Their twin, which says what is right and which the numbers of fields
 * are, is brokerd/proxy/received.py; the layout of records is that of remoting/record/layout.py.
 *
 * What is laid out here is the message as most are: a short topic name, IPv4 hosts, a body that is not compressed, properties in ASCII,
 * a unique key, none of the properties that change what a message is but its group, few of the user's own. All others are left to
 * the twin.
 *
 * Bounds: a record comes with its length, and its parts must add up to it before they are read. What an answer can take at most is
 * compared with the room that is left before anything of it is written.
 */
#include "record.h"
#include "text.h"

#define MAX_USER_PROPERTIES 16
#define PROPERTY_BYTES 12 /* more than tags and lengths add to name and value; a key of one letter becomes three bytes of two */
#define FIXED_BYTES 512 /* more than all fields of fixed or bounded length, tags and lengths take */
#define MAX_TIMESTAMP_S 253402300799 /* the end of year 9999 */
#define MAX_INT32 0x7FFFFFFF
#define LEAST_OF_EIGHT_DIGITS 0x10000000u
#define HEAD_ROOM 8 /* for what stands before a part whose length is known only when it is there */

typedef struct {
    const uint8_t *at;
    int64_t length;
} piece;

/* What one message is about; brokerd/proxy/answers.py has the same order. */
enum { RECORD_LENGTH, HANDLE_LENGTH, QUEUE_ID, QUEUE_OFFSET, ATTEMPT, NUMBERS };
/* What became of it: where its answer begins and ends (nowhere: 0, 0), and where in the record its tag is. */
enum { BEGIN, END, TAG_AT, TAG_LENGTH, RESULTS };

static uint8_t *put_varint(uint8_t *to, uint64_t value) {
    for (; value > 0x7F; value >>= 7) *to++ = (uint8_t)(value | 0x80);
    *to++ = (uint8_t)value;
    return to;
}

static uint8_t *put_field(uint8_t *to, uint8_t tag, piece content) {
    *to++ = tag;
    return put_text(put_varint(to, (uint64_t)content.length), content.at, (size_t)content.length);
}

/* The length goes before `begin` of what ends at `end`, and the tag before it. Where the tag is. */
static uint8_t *put_before(uint8_t tag, uint8_t *begin, const uint8_t *end) {
    uint8_t length[10];
    int64_t count = put_varint(length, (uint64_t)(end - begin)) - length;
    memcpy(begin - count, length, (size_t)count);
    *(begin - count - 1) = tag;
    return begin - count - 1;
}

static uint8_t *put_timestamp(uint8_t *to, uint8_t tag, int64_t time_ms) {
    int64_t ms = time_ms > 0 ? time_ms : 0, seconds = ms / 1000;
    uint8_t *begin = to + 2;
    uint8_t *end = begin;
    *end++ = 0x08;
    end = put_varint(end, (uint64_t)(seconds < MAX_TIMESTAMP_S ? seconds : MAX_TIMESTAMP_S));
    *end++ = 0x10;
    end = put_varint(end, (uint64_t)(ms % 1000) * 1000000);
    put_before(tag, begin, end); /* which is shorter than 128 bytes, so that one byte is its length */
    return end;
}

static uint8_t *put_host(uint8_t *to, uint8_t tag, const uint8_t *host, int with_port) {
    uint8_t *begin = to + 2;
    uint8_t *end = begin;
    for (int n = 0; n < 4; n++) {
        if (n) *end++ = '.';
        end = put_decimal(end, host[n]);
    }
    if (with_port) {
        *end++ = ':';
        end = put_decimal(end, get32(host + 4));
    }
    put_before(tag, begin, end);
    return end;
}

/* The digest of a body: its CRC-32 in upper-case hexadecimal digits, eight of them or without leading zeros. */
static uint8_t *put_digest(uint8_t *to, uint32_t crc, int eight_digits) {
    int count = 8;
    if (!eight_digits && crc < LEAST_OF_EIGHT_DIGITS)
        for (count = 1; crc >> 4 * count; count++) {
        }
    *to++ = 0x22;
    *to++ = (uint8_t)(4 + count);
    *to++ = 0x08;
    *to++ = 0x01;
    *to++ = 0x12;
    *to++ = (uint8_t)count;
    while (count--) *to++ = (uint8_t)"0123456789ABCDEF"[crc >> 4 * count & 0xF];
    return to;
}

/* Whether a name is among those of the list, each of which has its length before it in one byte. */
static int is_in(piece list, piece name) {
    const uint8_t *at = list.at, *end = at + list.length;
    for (; at < end; at += 1 + *at)
        if (*at == name.length && memcmp(at + 1, name.at, (size_t)name.length) == 0) return 1;
    return 0;
}

static int is(piece name, const char *wanted, int64_t length) {
    return name.length == length && memcmp(name.at, wanted, (size_t)length) == 0;
}

typedef struct {
    piece tag, keys, id, born_host, group;
    struct {
        piece name, value;
    } users[MAX_USER_PROPERTIES];
    int user_count;
    int64_t count; /* of all */
} properties;

/* Sort the properties; 0 when they are not for here. The last one of a name counts. */
static int sort(properties *sorted, piece text, piece reserved, piece seldom) {
    const uint8_t *at = text.at, *end = at + text.length;
    for (const uint8_t *byte = at; byte < end; byte++)
        if (*byte > 0x7F) return 0;
    while (at < end) {
        const uint8_t *stop = memchr(at, 2, (size_t)(end - at));
        if (!stop) stop = end;
        const uint8_t *split = memchr(at, 1, (size_t)(stop - at));
        if (split && split > at && split + 1 < stop) {
            piece name = {at, split - at}, value = {split + 1, stop - split - 1};
            if (is(name, "TAGS", 4)) sorted->tag = value;
            else if (is(name, "KEYS", 4)) sorted->keys = value;
            else if (is(name, "UNIQ_KEY", 8)) sorted->id = value;
            else if (is(name, "__BORNHOST", 10)) sorted->born_host = value;
            else if (is(name, "__SHARDINGKEY", 13)) sorted->group = value;
            else if (is_in(seldom, name)) return 0;
            else if (!is_in(reserved, name)) {
                for (int n = 0; n < sorted->user_count; n++)
                    if (is(sorted->users[n].name, (const char *)name.at, name.length)) return 0;
                if (sorted->user_count == MAX_USER_PROPERTIES) return 0;
                sorted->users[sorted->user_count].name = name;
                sorted->users[sorted->user_count++].value = value;
            }
        }
        sorted->count++;
        at = stop + 1;
    }
    return sorted->id.length > 0;
}

/* What all answers of a receive have alike: topic, encoding and type without a message group and with one, invisible time, as
 * fields; and lists of names. */
typedef struct {
    piece label, kind, group_kind, duration, reserved, seldom;
    int eight_digits;
} common;

/* Keys, with blanks between them, are a field each. */
static uint8_t *put_keys(uint8_t *to, piece keys) {
    const uint8_t *key = keys.at, *end = key + keys.length;
    while (key < end) {
        const uint8_t *stop = memchr(key, ' ', (size_t)(end - key));
        if (!stop) stop = end;
        if (stop > key) to = put_field(to, 0x12, (piece){key, stop - key});
        key = stop + 1;
    }
    return to;
}

/* Lay out one answer in the room; its results are set, or 0 is returned and it is for the twin. */
static int encode(piece record, piece handle, const int64_t *numbers, const common *all, uint8_t *out, int64_t at, int64_t room,
                  int64_t *results) {
    const uint8_t *r = record.at;
    if (record.length < RECORD_HEAD_BYTES + 3 || get32(r + 4) != RECORD_MAGIC_V1 || get32(r) != (uint64_t)record.length) return 0;
    if (get32(r + 36) & (0x1 | 0x10 | 0x20)) return 0; /* compressed, or IPv6 hosts */
    if (get32(r + 68) > MAX_INT32) return 0; /* a port that is none */
    piece body = {r + RECORD_HEAD_BYTES, (int32_t)get32(r + 84)};
    int64_t topic_length_at = RECORD_HEAD_BYTES + body.length;
    if (body.length < 0 || topic_length_at + 3 > record.length) return 0;
    int64_t properties_length_at = topic_length_at + 1 + r[topic_length_at];
    if (properties_length_at + 2 > record.length) return 0;
    piece text = {r + properties_length_at + 2, (int16_t)get16(r + properties_length_at)};
    if (text.length < 0 || properties_length_at + 2 + text.length != record.length) return 0;
    properties sorted;
    memset(&sorted, 0, sizeof sorted);
    if (!sort(&sorted, text, all->reserved, all->seldom)) return 0;
    int64_t of_text = text.length + sorted.keys.length + PROPERTY_BYTES * sorted.count;
    if (all->label.length + handle.length + body.length + of_text + FIXED_BYTES > room) return 0;

    uint8_t *begin = out + at + HEAD_ROOM;
    uint8_t *to = put_text(begin, all->label.at, (size_t)all->label.length);
    for (int n = 0; n < sorted.user_count; n++) {
        uint8_t *entry = to + HEAD_ROOM;
        uint8_t *end = put_field(put_field(entry, 0x0a, sorted.users[n].name), 0x12, sorted.users[n].value);
        uint8_t *field = put_before(0x12, entry, end);
        memmove(to, field, (size_t)(end - field));
        to += end - field;
    }
    uint8_t *system = to + HEAD_ROOM, *end = system;
    if (sorted.tag.length) end = put_field(end, 0x0a, sorted.tag);
    if (sorted.keys.length) end = put_keys(end, sorted.keys);
    end = put_field(end, 0x1a, sorted.id);
    end = put_digest(end, crc32_of(0, body.at, (size_t)body.length), all->eight_digits);
    piece kind = sorted.group.length ? all->group_kind : all->kind;
    end = put_text(end, kind.at, (size_t)kind.length);
    end = put_timestamp(end, 0x3a, (int64_t)get64(r + 40));
    end = sorted.born_host.length ? put_field(end, 0x42, sorted.born_host) : put_host(end, 0x42, r + 48, 0);
    end = put_timestamp(end, 0x4a, (int64_t)get64(r + 56));
    end = put_host(end, 0x52, r + 64, 1);
    end = put_field(end, 0x62, handle);
    *end++ = 0x68;
    end = put_varint(end, (uint64_t)numbers[QUEUE_ID]);
    *end++ = 0x70;
    end = put_varint(end, (uint64_t)numbers[QUEUE_OFFSET]);
    end = put_text(end, all->duration.at, (size_t)all->duration.length);
    *end++ = 0x80;
    *end++ = 0x01;
    int64_t attempt = numbers[ATTEMPT];
    end = put_varint(end, (uint64_t)(attempt < 1 ? 1 : attempt > MAX_INT32 ? MAX_INT32 : attempt));
    if (sorted.group.length) {
        *end++ = 0x8a;
        end = put_field(end, 0x01, sorted.group);
    }
    uint8_t *field = put_before(0x1a, system, end);
    memmove(to, field, (size_t)(end - field));
    to = put_field(to + (end - field), 0x22, body);
    begin = put_before(0x12, begin, to);
    results[BEGIN] = begin - out;
    results[END] = to - out;
    results[TAG_AT] = sorted.tag.length ? sorted.tag.at - r : 0;
    results[TAG_LENGTH] = sorted.tag.length;
    return 1;
}

/* Lay out the answers of `count` messages in the `capacity` bytes of `out`. Of each message there are its record, NUMBERS numbers,
 * and its handle, one behind the other; for each, RESULTS results are set. `lengths` are those of the six pieces
 * before. */
EXPORT void native_encode_answers(const uint8_t *const *records, const int64_t *numbers, int64_t count, const uint8_t *handles,
                                  const uint8_t *label, const uint8_t *kind, const uint8_t *group_kind,
                                  const uint8_t *duration, const uint8_t *reserved, const uint8_t *seldom, const int64_t *lengths,
                                  int32_t eight_digits, uint8_t *out, int64_t capacity, int64_t *results) {
    common all = {{label, lengths[0]},    {kind, lengths[1]},   {group_kind, lengths[2]}, {duration, lengths[3]},
                  {reserved, lengths[4]}, {seldom, lengths[5]}, eight_digits};
    int64_t at = 0;
    for (int64_t n = 0; n < count; n++, numbers += NUMBERS, results += RESULTS) {
        piece record = {records[n], numbers[RECORD_LENGTH]}, handle = {handles, numbers[HANDLE_LENGTH]};
        memset(results, 0, RESULTS * sizeof *results);
        if (encode(record, handle, numbers, &all, out, at, capacity - at, results)) at = results[END];
        handles += handle.length;
    }
}
