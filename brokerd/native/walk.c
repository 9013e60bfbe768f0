/* Log bytes taken apart into what is derived from them: where records are, whether they are what was stored, and the entries of
 * consume queues, in columns. The twin is brokerd/store/log/derive.py, which says what is right.
 *
 *   native_walk_count     how many whole records there are, as their sizes and marks say
 *   native_walk           an entry for each that belongs into a queue, and where and why that ended
 *   native_walk_gather    the entries of each queue together, in their order, as units and codes
 *
 * Bounds. A record is looked at when all its bytes are there; its end travels with it, and lengths in it are added up in 64 bits and
 * compared with that end. Each column has `room` elements, as do `groups`; `buckets` is a power of two that is larger than that.
 * What is gathered has room for the entries and the groups that the walk has found.
 */
#include "queue_tails.h"
#include "record_parts.h"
#include "walk.h"

enum {
    FILLER_BYTES = 8,
    START_BYTES = 36, /* what must be there to know that a record starts */
    TRANSACTION_PREPARED = 0x4, /* what is this, or was rolled back, which has this bit, too, enters no queue */
};
#define MAGIC_BLANK 0xCBD43194u

/* Shared with native_derive.py, whose ctypes say the same. */

enum stop { END, PARTIAL, DAMAGED };

typedef int64_t code_rule(const uint8_t *properties, int64_t length, int64_t store_timestamp_ms);

struct rule { /* of a topic whose entries have codes of their own; without a function the twin makes them */
    const uint8_t *topic;
    int64_t topic_length;
    code_rule *code_of;
};

struct gathered { /* the entries of a group, which are neighbours now */
    int64_t begin, count;
    int64_t first, is_dense; /* the first one's queue offset, and whether those of the others follow it, one by one */
};

/* Private */

static int has_zero(struct text text) { return text.length > 0 && memchr(text.at, 0, text.length) != NULL; }

/* The hash of the last TAGS; 0 when the twin has to make it. */
static int tags_code(struct text properties, int64_t *code) {
    const uint8_t *at = properties.at, *end = at + properties.length, *tag = NULL;
    for (;;) {
        if (end - at >= 5 && memcmp(at, "TAGS\x01", 5) == 0) tag = at + 5;
        at = at < end ? memchr(at, 2, (size_t)(end - at)) : NULL;
        if (at == NULL) break;
        at++;
    }
    *code = 0;
    if (tag == NULL || tag == end) return 1;
    const uint8_t *tag_end = memchr(tag, 2, (size_t)(end - tag));
    int32_t hash;
    if (!java_hash((struct text){tag, (size_t)((tag_end == NULL ? end : tag_end) - tag)}, &hash)) return 0;
    *code = hash;
    return 1;
}

static int is_of(const struct walk *walk, const struct group *group, struct text topic, int64_t queue_id) {
    return group->queue_id == queue_id && group->topic_length == (int64_t)topic.length &&
           memcmp(walk->data + group->topic_at, topic.at, topic.length) == 0;
}

static int64_t rule_of(const struct walk *walk, struct text topic) {
    for (int64_t n = 0; n < walk->rules_count; n++)
        if (equals(topic, (const char *)walk->rules[n].topic, (size_t)walk->rules[n].topic_length)) return n;
    return -1;
}

/* The number of the group of that queue, which begins there if need be. */
static int64_t group_of(struct walk *walk, struct text topic, int64_t queue_id) {
    uint32_t hash = queue_hash(topic, queue_id);
    for (int64_t place = hash & (walk->buckets_count - 1);; place = (place + 1) & (walk->buckets_count - 1)) {
        int32_t *bucket = &walk->buckets[place];
        if (*bucket == 0) {
            int64_t rule = rule_of(walk, topic);
            walk->groups[walk->groups_count++] =
                (struct group){topic.at - walk->data, (int64_t)topic.length, queue_id, 0, 0, rule, hash};
            return (*bucket = (int32_t)walk->groups_count) - 1;
        }
        if (is_of(walk, &walk->groups[*bucket - 1], topic, queue_id)) return *bucket - 1;
    }
}

/* What starts at the position: whether that is whole, its size as far as that is known, and whether it is a record. */
static enum stop look(const struct walk *walk, int64_t at, int64_t *size, int *is_record) {
    int64_t left = walk->length - at, offset = walk->offset + at;
    *size = *is_record = 0;
    if (left < FILLER_BYTES) return left ? PARTIAL : END;
    uint32_t magic = get32(walk->data + at + 4);
    int64_t found = get32(walk->data + at), rest = walk->file_size - offset % walk->file_size;
    *is_record = magic == RECORD_MAGIC_V1 || magic == RECORD_MAGIC_V2;
    if (*is_record) {
        if (found < RECORD_LEAST_BYTES || found > walk->most_bytes || found + FILLER_BYTES > rest) return DAMAGED;
        if (left >= START_BYTES && get64(walk->data + at + 28) != (uint64_t)offset) return DAMAGED;
    } else if (magic != MAGIC_BLANK || found != rest) {
        return DAMAGED;
    }
    *size = found;
    return found > left ? PARTIAL : END;
}

/* Take the whole record; 0 when it is not what was stored. */
static int take(struct walk *walk, int64_t at, int64_t size) {
    const uint8_t *record = walk->data + at;
    struct record_parts parts;
    if (walk->checks_content && !record_is_intact(record, size)) return 0;
    if (!record_parts_of(record, size, &parts) || parts.topic.length == 0) return 0;
    if (walk->checks_content && (has_zero(parts.topic) || has_zero(parts.properties))) return 0;
    walk->last_timestamp_ms = parts.timestamp_ms;
    if (get32(record + 36) & TRANSACTION_PREPARED) return 1;
    int64_t n = walk->count++, queue_id = (int32_t)get32(record + 12);
    int64_t number = n > 0 ? walk->group[n - 1] : -1;
    if (number < 0 || !is_of(walk, &walk->groups[number], parts.topic, queue_id))
        number = group_of(walk, parts.topic, queue_id);
    struct group *group = &walk->groups[number];
    const struct rule *rule = group->rule < 0 ? NULL : &walk->rules[group->rule];
    int is_made = rule == NULL || rule->code_of != NULL;
    walk->code[n] = 0;
    if (rule == NULL)
        is_made = tags_code(parts.properties, &walk->code[n]);
    else if (is_made)
        walk->code[n] = rule->code_of(parts.properties.at, (int64_t)parts.properties.length, parts.timestamp_ms);
    walk->place[n] = walk->offset + at;
    walk->group[n] = number;
    walk->queue_offset[n] = group->last_queue_offset = (int64_t)get64(record + 20);
    walk->size[n] = size;
    walk->timestamp_ms[n] = parts.timestamp_ms;
    walk->properties_at[n] = parts.properties.at - walk->data;
    walk->is_left[n] = (uint8_t)!is_made;
    walk->left_count += !is_made;
    group->count++;
    return 1;
}

EXPORT int64_t native_walk_count(const struct walk *walk) {
    int64_t at = 0, size, count = 0;
    int is_record;
    while (at < walk->length && look(walk, at, &size, &is_record) == END) {
        at += size;
        count += is_record;
    }
    return count;
}

EXPORT void native_walk(struct walk *walk) {
    int64_t at = 0, size;
    int is_record;
    walk->count = walk->groups_count = walk->left_count = 0;
    walk->last_timestamp_ms = -1;
    for (;;) {
        enum stop stop = look(walk, at, &size, &is_record);
        int is_whole = stop == END && size > 0;
        if (is_whole && is_record && (walk->count == walk->room || !take(walk, at, size))) stop = DAMAGED, size = 0;
        if (stop != END || !is_whole) {
            walk->end = at;
            walk->stop = stop;
            walk->needs = stop == PARTIAL ? size : 0;
            return;
        }
        at += size;
    }
}

EXPORT void native_walk_gather(const struct walk *walk, struct gathered *gathered, uint8_t *units, int64_t *codes) {
    int64_t begin = 0;
    for (int64_t number = 0; number < walk->groups_count; number++) {
        gathered[number] = (struct gathered){begin, 0, 0, 1};
        begin += walk->groups[number].count;
    }
    for (int64_t n = 0; n < walk->count; n++) {
        struct gathered *queue = &gathered[walk->group[n]];
        int64_t at = queue->begin + queue->count, queue_offset = walk->queue_offset[n];
        if (queue->count++ == 0) queue->first = queue_offset;
        /* unsigned: what a record says its offset is may be anything */
        else if ((uint64_t)queue_offset != (uint64_t)queue->first + (uint64_t)(queue->count - 1)) queue->is_dense = 0;
        put_unit(units + at * UNIT_BYTES, walk->place[n], walk->size[n], walk->code[n]);
        codes[at] = walk->code[n];
    }
}
