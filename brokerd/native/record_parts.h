/* What a record that is there as a whole consists of. */
#ifndef LOGBOOM_RECORD_PARTS_H
#define LOGBOOM_RECORD_PARTS_H

#include "record.h"
#include "text.h"

struct record_parts {
    int64_t timestamp_ms;
    struct text body, topic, properties;
};

/* The parts of a record of RECORD_LEAST_BYTES or more; 0 when they do not add up to its size. */
static inline int record_parts_of(const uint8_t *record, int64_t size, struct record_parts *parts) {
    uint32_t flags = get32(record + 36);
    int64_t born = flags & RECORD_BORN_HOST_V6 ? RECORD_LONGER_HOST : 0, stored = flags & RECORD_STORE_HOST_V6 ? RECORD_LONGER_HOST : 0;
    int64_t body_at = RECORD_HEAD_BYTES + born + stored;
    if (body_at > size) return 0;
    int64_t body_length = (int32_t)get32(record + body_at - 4), body_end = body_at + body_length;
    if (body_length < 0 || body_end + RECORD_LEAST_BEHIND_BODY > size) return 0;
    int64_t topic_at = body_end + 1, topic_length = record[body_end];
    if (get32(record + 4) != RECORD_MAGIC_V1) {
        topic_at = body_end + 2;
        topic_length = (int16_t)get16(record + body_end);
        if (topic_length < 0) return 0;
    }
    int64_t properties_at = topic_at + topic_length + 2;
    if (properties_at > size || properties_at + (int16_t)get16(record + properties_at - 2) != size) return 0;
    parts->timestamp_ms = (int64_t)get64(record + 56 + born);
    parts->body = (struct text){record + body_at, (size_t)body_length};
    parts->topic = (struct text){record + topic_at, (size_t)topic_length};
    parts->properties = (struct text){record + properties_at, (size_t)(size - properties_at)};
    return 1;
}

#endif
