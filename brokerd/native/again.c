/* Stored records whose messages are stored once more, under another topic: looked at, and written from the bytes that they are. The
 * twin is brokerd/store/again.py, which says what is right; a record that this leaves is decoded.
 *
 *   native_again_look     for each record: whether it is what was stored, what its properties say, how large its copy is
 *   native_again_write    the copies of records that were looked at, one behind the other
 *
 * Bounds. A record lies between its begin and the content's end; its parts are measured before they are read, and once more before
 * they are written. Each area has as many elements as there are records, `buckets` a power of two that is larger than their number.
 * What is written to `out` is measured first.
 */
#include "record_parts.h"

enum {
    MAX_BODY_BYTES = 4 * 1024 * 1024,
    MAX_PROPERTIES_BYTES = 32767,
    MAX_TOPIC_BYTES = 127,
    MAX_NAME_BYTES = 31,
    MAX_PROPERTIES = 64, /* that are compared with one another */
    MAX_QUEUE_DIGITS = 9,
    MAX_DIGITS = 16,
    HOST_BYTES = 8,
    SYS_TRANSACTION_PREPARED = 0x4,
};

/* Shared with again.py, whose ctypes and struct formats say the same. */

enum role { TOPIC, QUEUE, NUMBER, KEY, PLACE, TIMES, TAGS, UNUSUAL, ROLES };

struct name { /* of a property that says something */
    uint8_t text[MAX_NAME_BYTES];
    uint8_t length;
    int32_t role;
};

struct group { /* records for one queue */
    int64_t topic_at, topic_length; /* in the content */
    int64_t queue_id;
};

struct slot { /* a queue that copies are for */
    int64_t queue_id, next;
};

struct look { /* what is looked at, and where the results go; one element for each record, of a group for each group */
    const uint8_t *content;
    int64_t length;
    const uint8_t *units;
    const int64_t *own_places;
    int64_t count;
    const struct name *names;
    int64_t names_count, most_bytes;
    uint8_t *ordinary;
    int64_t *at, *group, *number, *place, *is_added, *code, *size, *key_at, *key_length;
    struct group *groups;
    int32_t *buckets; /* 0, or the number of a group and 1 */
    int64_t buckets_count, groups_count;
};

struct copying { /* which of them are written: from `begin` to `end` */
    const struct look *look;
    int64_t begin, end;
    const int64_t *slot_of; /* of a group */
    struct slot *slots;
    int64_t slots_count;
    uint8_t *out;
    int64_t room, position, timestamp_ms, seals;
    int64_t *queue_offsets; /* from the first written one on */
    uint8_t store_host[HOST_BYTES];
};

/* Private */

struct found { /* what properties say */
    struct text values[ROLES]; /* no bytes: not there */
    int count, is_plain;       /* plain: written again from a mapping, they are what they are */
};

/* The parts of a record of RECORD_LEAST_BYTES or more, its properties without a tail; 0 when they do not add up to its size, or it is
 * not of the kind that is known here. */
static int take_apart(const uint8_t *record, int64_t size, struct record_parts *parts) {
    if (get32(record + 4) != RECORD_MAGIC_V1 || get32(record + 36) & (RECORD_BORN_HOST_V6 | RECORD_STORE_HOST_V6)) return 0;
    if (!record_parts_of(record, size, parts) || parts->body.length > MAX_BODY_BYTES) return 0;
    struct text *properties = &parts->properties;
    if (properties->length >= TAIL_BYTES && memcmp(record + size - TAIL_BYTES, TAIL_NAME, TAIL_NAME_BYTES) == 0)
        properties->length -= TAIL_BYTES;
    return 1;
}

/* Take the text before the separator, which is not among the bytes 0 to 2 in it, and the separator. */
static int take_until(const uint8_t **at, const uint8_t *end, uint8_t separator, struct text *text) {
    text->at = *at;
    while (*at < end && **at > 2) ++*at;
    if (*at == end || **at != separator) return 0;
    text->length = (size_t)((*at)++ - text->at);
    return text->length > 0;
}

static int are_same(struct text one, struct text other) {
    return one.length == other.length && memcmp(one.at, other.at, one.length) == 0;
}

/* What the properties say; 0 when one is not whole, is unusual, or says twice what is asked for. */
static int look_at(const struct look *look, struct text properties, struct found *found) {
    struct text seen[MAX_PROPERTIES], name, value;
    const uint8_t *at = properties.at, *end = at + properties.length;
    memset(found, 0, sizeof *found);
    found->is_plain = is_utf8(properties);
    while (at < end) {
        if (!take_until(&at, end, 1, &name) || !take_until(&at, end, 2, &value)) return 0;
        for (int64_t n = 0; n < look->names_count; n++) {
            const struct name *known = &look->names[n];
            if (name.length != known->length || memcmp(name.at, known->text, name.length) != 0) continue;
            if (known->role == UNUSUAL || found->values[known->role].length > 0) return 0;
            found->values[known->role] = value;
        }
        if (found->count == MAX_PROPERTIES || (name.length >= 8 && memcmp(name.at, TAIL_NAME, 8) == 0)) {
            found->is_plain = 0;
        } else {
            seen[found->count++] = name;
        }
    }
    if (found->values[TIMES].length > 0)
        for (int n = 0; n < found->count && found->is_plain; n++)
            for (int m = 0; m < n; m++)
                if (are_same(seen[n], seen[m])) found->is_plain = 0;
    return 1;
}

static int is_topic(struct text text) {
    if (text.length == 0 || text.length > MAX_TOPIC_BYTES) return 0;
    for (size_t n = 0; n < text.length; n++)
        if (text.at[n] <= ' ' || text.at[n] > '~' || text.at[n] == '/') return 0;
    return 1;
}

static const struct name *name_in(const struct look *look, enum role role) {
    for (int64_t n = 0; n < look->names_count; n++)
        if (look->names[n].role == (int32_t)role) return &look->names[n];
    return NULL;
}

static int64_t digits_of(int64_t number) {
    int64_t digits = 1;
    while (number >= 10) number /= 10, digits++;
    return digits;
}

/* The number of the group of records for that queue. */
static int64_t group_of(struct look *look, struct text topic, int64_t queue_id) {
    uint32_t hash = 2166136261u ^ (uint32_t)queue_id;
    for (size_t n = 0; n < topic.length; n++) hash = (hash ^ topic.at[n]) * 16777619u;
    for (int64_t place = hash & (look->buckets_count - 1);; place = (place + 1) & (look->buckets_count - 1)) {
        int32_t *bucket = &look->buckets[place];
        if (*bucket == 0) {
            look->groups[look->groups_count++] = (struct group){topic.at - look->content, (int64_t)topic.length, queue_id};
            return (*bucket = (int32_t)look->groups_count) - 1;
        }
        const struct group *group = &look->groups[*bucket - 1];
        struct text other = {look->content + group->topic_at, (size_t)group->topic_length};
        if (group->queue_id == queue_id && are_same(topic, other)) return *bucket - 1;
    }
}

/* Where the message was first, which its copy says: as the properties have it, or they get it. */
static int find_place(struct look *look, int64_t n, const struct found *found) {
    struct text said = found->values[PLACE];
    int has_place = said.length > 0, has_times = found->values[TIMES].length > 0;
    look->place[n] = look->own_places[n];
    look->is_added[n] = 0;
    if (name_in(look, PLACE) == NULL) return 1;
    if (has_place != has_times || look->own_places[n] < 0) return 0;
    if (!has_place) {
        look->is_added[n] = 1;
        return 1;
    }
    return found->is_plain && natural_of(said, MAX_DIGITS, &look->place[n]) && (said.at[0] != '0' || said.length == 1);
}

static int is_ordinary(struct look *look, int64_t n, const uint8_t *record, int64_t size) {
    struct record_parts parts;
    struct found found;
    int64_t queue_id;
    int32_t code = 0;
    const struct text *values = found.values;
    if (!record_is_intact(record, size) || !take_apart(record, size, &parts) || !is_topic(parts.topic)) return 0;
    if (get32(record + 36) & SYS_TRANSACTION_PREPARED) return 0; /* it, or one that was rolled back: these enter no queue */
    if ((crc32_of(0, parts.body.at, parts.body.length) & CRC_MASK) != get32(record + RECORD_BODY_CRC_AT)) return 0;
    if (!look_at(look, parts.properties, &found) || !is_topic(values[TOPIC])) return 0;
    if (!natural_of(values[QUEUE], MAX_QUEUE_DIGITS, &queue_id) || !find_place(look, n, &found)) return 0;
    look->number[n] = -1;
    if (name_in(look, NUMBER) != NULL && !natural_of(values[NUMBER], MAX_DIGITS, &look->number[n])) return 0;
    if (values[TAGS].length > 0 && !java_hash(values[TAGS], &code)) return 0;
    int64_t properties = (int64_t)parts.properties.length;
    if (look->is_added[n]) properties += name_in(look, PLACE)->length + digits_of(look->place[n]) + 2;
    look->size[n] = RECORD_LEAST_BYTES + (int64_t)(parts.body.length + values[TOPIC].length) + properties;
    if (properties + TAIL_BYTES > MAX_PROPERTIES_BYTES || look->size[n] + TAIL_BYTES > look->most_bytes) return 0;
    look->code[n] = code;
    look->key_at[n] = values[KEY].length > 0 ? values[KEY].at - look->content : 0;
    look->key_length[n] = (int64_t)values[KEY].length;
    look->group[n] = group_of(look, values[TOPIC], queue_id);
    return 1;
}

/* Look at the records, which lie one behind the other as the units have their sizes. */
EXPORT void native_again_look(struct look *look) {
    int64_t at = 0;
    look->groups_count = 0;
    for (int64_t n = 0; n < look->count; n++) {
        const uint8_t *unit = look->units + n * UNIT_BYTES;
        int64_t size = (int32_t)get32(unit + 8);
        look->at[n] = at;
        if (size < 0 || size > look->length - at) at = look->length; /* this one and all behind it are left */
        if (size < RECORD_LEAST_BYTES || size > look->length - at) continue;
        const uint8_t *record = look->content + at;
        at += size;
        if (get32(record) == (uint32_t)size && get64(record + 28) == get64(unit))
            look->ordinary[n] = (uint8_t)is_ordinary(look, n, record, size);
    }
}

/* Write the copy of a record; where it ends, NULL when it is not as it was when it was looked at. */
static uint8_t *put_copy(const struct copying *copying, int64_t n, uint8_t *begin, int64_t position, int64_t *queue_offset) {
    const struct look *look = copying->look;
    struct record_parts parts;
    const uint8_t *record = look->content + look->at[n];
    const struct name *place = look->is_added[n] ? name_in(look, PLACE) : NULL;
    int64_t size = look->size[n] + (copying->seals ? TAIL_BYTES : 0);
    if (!take_apart(record, (int64_t)get32(record), &parts)) return NULL;
    const struct group *group = &look->groups[look->group[n]];
    struct slot *slot = &copying->slots[copying->slot_of[look->group[n]]];
    int64_t properties = (int64_t)parts.properties.length;
    if (place != NULL) properties += place->length + digits_of(look->place[n]) + 2;
    if (look->size[n] != RECORD_LEAST_BYTES + (int64_t)parts.body.length + group->topic_length + properties) return NULL;
    *queue_offset = slot->next++;
    memcpy(begin, record, RECORD_HEAD_BYTES + parts.body.length);
    put32(begin, (uint32_t)size);
    put32(begin + 12, (uint32_t)slot->queue_id);
    put64(begin + 20, (uint64_t)*queue_offset);
    put64(begin + 28, (uint64_t)position);
    put64(begin + 56, (uint64_t)copying->timestamp_ms);
    memcpy(begin + 64, copying->store_host, HOST_BYTES);
    uint8_t *at = begin + RECORD_HEAD_BYTES + parts.body.length;
    *at++ = (uint8_t)group->topic_length;
    at = put_text(at, look->content + group->topic_at, (size_t)group->topic_length);
    put16(at, (uint16_t)(properties + (copying->seals ? TAIL_BYTES : 0)));
    at = put_text(at + 2, parts.properties.at, parts.properties.length);
    if (place != NULL) {
        at = put_text(at, place->text, place->length);
        *at++ = 1;
        at = put_decimal(at, look->place[n]);
        *at++ = 2;
    }
    if (copying->seals) {
        put_tail(at, crc32_of(0, begin, (size_t)(at - begin)));
        at += TAIL_BYTES;
    }
    return at;
}

/* Write the copies; how many bytes, or -1 when they do not fit or were not looked at. */
EXPORT int64_t native_again_write(const struct copying *copying) {
    const struct look *look = copying->look;
    uint8_t *at = copying->out;
    for (int64_t n = copying->begin; n < copying->end; n++) {
        int64_t written = at - copying->out;
        if (!look->ordinary[n] || copying->slot_of[look->group[n]] < 0) return -1;
        if (copying->slot_of[look->group[n]] >= copying->slots_count) return -1;
        if (look->size[n] + (copying->seals ? TAIL_BYTES : 0) > copying->room - written) return -1;
        at = put_copy(copying, n, at, copying->position + written, &copying->queue_offsets[n - copying->begin]);
        if (at == NULL) return -1;
    }
    return at - copying->out;
}
