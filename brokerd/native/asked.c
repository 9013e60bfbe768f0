/* Pulls as they are received: what a request asks for. The twin is in brokerd/processors/pulling/asked.py.
 *
 * A client asks with the same words again and again; only its opaque and two offsets differ. Headers in JSON that were read in full
 * are remembered, as many as there are slots: one that is like them byte by byte, but for these numbers, says what they said. It is
 * looked for in eight slots, by a hash of all but these numbers, whose places are guessed by what precedes them. A header where that
 * guess is wrong is not remembered.
 *
 * Bounds: a header's texts travel with their lengths, and each is compared with the room that is left before it is copied. A
 * remembered header is no longer than its slot, and no byte of a new one is compared that is not there.
 */
#include "asked.h"

#include <stddef.h>

enum {
    PULL_MESSAGE = 11,
    LITE_PULL_MESSAGE = 361,
    SET_SLOTS = 8, /* in which a header may be */
    ONE_OF = 16,   /* of those for which there is no room takes the place of another one */
};

struct look { /* over a header that was not read */
    uint64_t hash;
    size_t count;
    uint16_t begins[ASKED_NUMBERS];
};

/* How much memory the slots need; zeros are none in use. */
EXPORT int64_t native_pull_slots_bytes(void) { return sizeof(struct slots); }

/* ---- Headers like one that was read */

static int is_blank(uint8_t byte) { return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r'; }

static int64_t set_of(uint64_t hash) { return (int64_t)((hash >> 32) % (SLOTS / SET_SLOTS)) * SET_SLOTS; }

/* Take the digits of a number: where they end; NULL for what is to be read in full. */
static const uint8_t *take_digits(const uint8_t *at, const uint8_t *end, int is_opaque, int64_t *number) {
    const uint8_t *begin = at;
    at += at < end && *at == '-';
    const uint8_t *digits = at;
    while (at < end && *at >= '0' && *at <= '9') at++;
    if (is_opaque && at > digits && *digits == '0' && at - begin > 1) return NULL; /* a number in JSON has no zero before others */
    return at < end && integer_of((struct text){begin, (size_t)(at - begin)}, number) ? at : NULL;
}

int is_like(const struct slot *slot, struct text header, int64_t *numbers) {
    const uint8_t *at = header.at, *end = header.at + header.length;
    size_t passed = 0; /* of that of the slot */
    for (size_t n = 0; n < slot->part_count; n++) {
        size_t same = slot->parts[n].begin - passed;
        int which = slot->parts[n].number;
        if ((size_t)(end - at) < same || memcmp(at, slot->header + passed, same) != 0) return 0;
        at = take_digits(at + same, end, which == OPAQUE, &numbers[which]);
        if (at == NULL) return 0;
        passed = slot->parts[n].end;
    }
    size_t rest = slot->length - passed;
    return (size_t)(end - at) == rest && memcmp(at, slot->header + passed, rest) == 0;
}

/* Whether the colon is behind the name of a number that is another one in each request. */
static int is_behind_number(const uint8_t *begin, const uint8_t *colon) {
    static const struct { const char *name; size_t length; } own[] = {{"\"queueOffset\"", 13}, {"\"commitOffset\"", 14}, {"\"opaque\"", 8}};
    while (colon > begin && is_blank(colon[-1])) colon--;
    for (size_t n = 0; n < ASKED_NUMBERS; n++)
        if ((size_t)(colon - begin) >= own[n].length && memcmp(colon - own[n].length, own[n].name, own[n].length) == 0) return 1;
    return 0;
}

static uint64_t mixed(uint64_t hash, const uint8_t *at, const uint8_t *end) {
    uint64_t eight;
    for (; end - at >= 8; at += 8) {
        memcpy(&eight, at, 8);
        hash = (hash ^ eight) * 0x9E3779B97F4A7C15ULL;
        hash ^= hash >> 32;
    }
    eight = 0;
    memcpy(&eight, at, (size_t)(end - at));
    hash = (hash ^ eight ^ (uint64_t)(end - at) << 56) * 0x9E3779B97F4A7C15ULL;
    return hash ^ hash >> 32;
}

/* A number for all of a header but the digits of its own numbers, so that headers that are alike have the same; and where these digits
 * are, as far as that is told by what precedes them. */
static uint64_t look_over(struct text header, struct look *look) {
    const uint8_t *at = header.at, *end = header.at + header.length, *begin = at;
    look->hash = 0, look->count = 0;
    while (look->count < ASKED_NUMBERS && (at = memchr(at, ':', (size_t)(end - at))) != NULL) {
        if (!is_behind_number(header.at, at++)) continue;
        while (at < end && is_blank(*at)) at++;
        at += at < end && *at == '"';
        look->hash = mixed(look->hash, begin, at);
        look->begins[look->count++] = (uint16_t)(at - header.at); /* of a header that is longer than a slot it does not count */
        at += at < end && *at == '-';
        while (at < end && *at >= '0' && *at <= '9') at++;
        begin = at;
    }
    return look->hash = mixed(look->hash, begin, end);
}

/* Take what the header says if it is like that of the slot: -1 when it is not; 0 when it is left to others. */
static int take_like(struct asked *asked, int64_t number, struct text header) {
    int64_t numbers[ASKED_NUMBERS] = {[COMMIT_OFFSET] = -1};
    if (!is_like(&asked->slots->slots[number], header, numbers)) return -1;
    if (numbers[COMMIT_OFFSET] < -1) return 0;
    asked->slots->last = number;
    asked->opaque = numbers[OPAQUE];
    asked->queue_offset = numbers[QUEUE_OFFSET];
    asked->commit_offset = numbers[COMMIT_OFFSET];
    asked->key_length = 0;
    asked->slot = number;
    return 1;
}

/* Look for a slot that the header is like: 1 when there is one. The one that was found last comes first. */
static int find_slot(struct asked *asked, struct text header, struct look *look) {
    const struct slots *slots = asked->slots;
    if (header.length > SLOT_BYTES) return 0;
    if (slots->slots[slots->last].length) {
        int taken = take_like(asked, slots->last, header);
        if (taken >= 0) return taken;
    }
    look_over(header, look);
    int64_t first = set_of(look->hash);
    for (int64_t n = first; n < first + SET_SLOTS && slots->slots[n].length; n++) {
        if (slots->slots[n].hash != (uint32_t)look->hash) continue;
        int taken = take_like(asked, n, header);
        if (taken >= 0) return taken;
    }
    return 0;
}

/* Which number a part of a header is; -1 for a text that is the same each time. */
static int number_of(const struct fields *fields, const struct part *part) {
    if (part->field == MAX_FIELDS) return OPAQUE;
    struct text name = fields->names[part->field];
    return IS(name, "queueOffset") ? QUEUE_OFFSET : IS(name, "commitOffset") ? COMMIT_OFFSET : -1;
}

/* Say where the numbers of a header are: 0 when one of them is not there as digits in quotes. */
static int find_numbers(struct slot *slot, struct text header, const struct fields *fields) {
    size_t wanted = 1; /* the opaque */
    for (size_t n = 0; n < fields->count; n++) wanted += IS(fields->names[n], "queueOffset") || IS(fields->names[n], "commitOffset");
    for (size_t n = 0; n < fields->part_count; n++) {
        const struct part *part = &fields->parts[n];
        int number = number_of(fields, part);
        if (number < 0) continue;
        if (number != OPAQUE && fields->values[part->field].at != header.at + part->begin) return 0; /* with escapes */
        if (slot->part_count == ASKED_NUMBERS) return 0;
        slot->parts[slot->part_count].begin = (uint16_t)part->begin;
        slot->parts[slot->part_count].end = (uint16_t)part->end;
        slot->parts[slot->part_count++].number = (uint16_t)number;
    }
    return slot->part_count == wanted;
}

/* Whether these are the numbers that were found without reading the header: if not, no later one would be found by them. */
static int are_those(const struct slot *slot, const struct look *look) {
    if (look->count != slot->part_count) return 0;
    for (size_t n = 0; n < look->count; n++)
        if (look->begins[n] != slot->parts[n].begin) return 0;
    return 1;
}

/* The place of a new one in its set: -1 when that is full, but of some of those that come one takes the place of another. */
static int64_t place_for(struct slots *slots, uint64_t hash) {
    int64_t first = set_of(hash);
    for (int64_t n = first; n < first + SET_SLOTS; n++)
        if (!slots->slots[n].length) return n;
    int64_t without = ++slots->without;
    return without % ONE_OF ? -1 : first + without / ONE_OF % SET_SLOTS;
}

/* Remember a header that was read: in which slot; -1 for one that is not, or that no other is like. */
static int64_t remember(struct slots *slots, struct text header, const struct fields *fields, const struct look *look) {
    struct slot new;
    new.part_count = 0, new.length = (uint16_t)header.length, new.hash = (uint32_t)look->hash;
    if (header.length > SLOT_BYTES || !find_numbers(&new, header, fields) || !are_those(&new, look)) return -1;
    int64_t number = place_for(slots, look->hash);
    if (number < 0) return -1;
    struct slot *slot = &slots->slots[number];
    memcpy(slot, &new, offsetof(struct slot, header));
    memcpy(slot->header, header.at, header.length);
    slots->last = number;
    return number;
}

/* ---- Others */

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
    struct look look = {0};
    int is_remembered = frame.encoding == 0 && !asked->in_full;
    if (is_remembered && find_slot(asked, frame.header, &look)) return taken;
    if (!read_fields(frame.header, frame.encoding, asked->scratch, asked->scratch_room, &header, &fields)) return 0;
    if ((header.code != PULL_MESSAGE && header.code != LITE_PULL_MESSAGE) || header.frame_flag != 0) return 0;
    asked->opaque = header.opaque;
    asked->commit_offset = -1;
    if (!put_key(asked, &header, &fields, frame.encoding)) return 0;
    asked->slot = is_remembered ? remember(asked->slots, frame.header, &fields, &look) : -1;
    return taken;
}
