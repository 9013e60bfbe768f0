/* What a walk over bytes of the log found, as walk.c makes it and derived_tails.c puts it behind queues. */
#ifndef LOGBOOM_WALK_H
#define LOGBOOM_WALK_H

#include "text.h"

/* Shared with brokerd/store/log/native_derive.py, whose ctypes and numbers say the same. */

struct rule;

struct group { /* the records of one queue */
    int64_t topic_at, topic_length; /* in the data */
    int64_t queue_id, count, last_queue_offset;
    int64_t rule; /* the number of its topic's, -1 without one */
    int64_t hash; /* `queue_hash` */
};

struct walk {
    const uint8_t *data;
    int64_t length, offset; /* of the log, where the data begin */
    int64_t file_size, most_bytes, checks_content;
    const struct rule *rules;
    int64_t rules_count;
    int64_t *place, *group, *queue_offset, *size, *code, *timestamp_ms, *properties_at; /* one element for each entry */
    uint8_t *is_left; /* the twin makes the code, from the properties */
    struct group *groups;
    int32_t *buckets; /* 0, or the number of a group and 1 */
    int64_t buckets_count, room;
    int64_t count, groups_count, left_count;
    int64_t end, stop, needs, last_timestamp_ms; /* of the last record, entry or not; -1 without one */
};

static inline uint32_t queue_hash(struct text topic, int64_t queue_id) {
    uint32_t hash = 2166136261u ^ (uint32_t)queue_id;
    for (size_t n = 0; n < topic.length; n++) hash = (hash ^ topic.at[n]) * 16777619u;
    hash = (hash ^ hash >> 16) * 0x7FEB352Du;
    return hash ^ hash >> 15;
}

#endif
