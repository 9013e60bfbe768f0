/* What the records of timers say, for who follows the timer topic's queue. The twin is brokerd/timers/said.py, which says what is
 * right; a record that this leaves is decoded alone.
 *
 * Bounds: a record lies between its begin and the content's end; its parts are measured before they are read. Each column has as many
 * elements as there are records.
 */
#include "record_parts.h"

enum { UNIT_BYTES = 20, MAX_DIGITS = 16, MAX_COMPARED = 16 };

/* What is looked for, in the order of `names`. */
enum said_name { TOPIC, DUE, SLOT, LEG, PLACE, MOVED, DEQUEUE, NAMES };

/* Shared with native_said.py, whose ctypes say the same. */
struct said {
    const uint8_t *content;
    int64_t length;
    const uint8_t *units;
    int64_t count;
    int64_t *topic, *due_ms, *slot_ms, *stored_ms, *place, *moved, *has_leg;
    int64_t *topics; /* of each topic, where it is in the content and how long */
    int64_t topics_count;
};

/* Private */

static const struct {
    const char *text;
    size_t length;
} names[NAMES] = {
#define NAME(text) {text, sizeof text - 1}
    NAME("REAL_TOPIC"), NAME("TIMER_DUE_MS"), NAME("TIMER_OUT_MS"),     NAME("TIMER_LEG_MS"),
    NAME("TIMER_PLACE"), NAME("TIMER_MOVED"),  NAME("TIMER_DEQUEUE_MS"),
#undef NAME
};

/* What the properties say: the last of a name counts, and one without a value does not. */
static void values_in(struct text properties, struct text *values) {
    const uint8_t *at = properties.at, *end = at + properties.length;
    memset(values, 0, NAMES * sizeof *values);
    while (at < end) {
        const uint8_t *behind = memchr(at, 2, (size_t)(end - at));
        if (behind == NULL) behind = end;
        if (at < behind && (*at == 'T' || *at == 'R')) {
            const uint8_t *close = memchr(at, 1, (size_t)(behind - at));
            struct text name = {at, (size_t)((close == NULL ? behind : close) - at)};
            for (int n = 0; n < NAMES; n++) {
                if (!equals(name, names[n].text, names[n].length)) continue;
                if (close != NULL && close + 1 < behind) values[n] = (struct text){close + 1, (size_t)(behind - close - 1)};
            }
        }
        at = behind + 1;
    }
}

/* The number that a property is; 0 when it is none. One that is not there is as it was. */
static int read_number(struct text text, int64_t *number) {
    int64_t value = 0;
    if (text.length == 0) return 1;
    if (text.length > MAX_DIGITS) return 0;
    for (size_t n = 0; n < text.length; n++) {
        if (text.at[n] < '0' || text.at[n] > '9') return 0;
        value = value * 10 + (text.at[n] - '0');
    }
    *number = value;
    return 1;
}

/* The number of the topic. One that was not among the last ones gets a new number, which does no harm. */
static int64_t topic_of(struct said *said, struct text topic) {
    for (int64_t n = said->topics_count - 1; n >= 0 && n >= said->topics_count - MAX_COMPARED; n--) {
        struct text other = {said->content + said->topics[2 * n], (size_t)said->topics[2 * n + 1]};
        if (equals(topic, (const char *)other.at, other.length)) return n;
    }
    said->topics[2 * said->topics_count] = topic.at - said->content;
    said->topics[2 * said->topics_count + 1] = (int64_t)topic.length;
    return said->topics_count++;
}

static void look_at(struct said *said, int64_t n, const uint8_t *record, int64_t size) {
    struct record_parts parts;
    struct text values[NAMES];
    int64_t leg_ms;
    if (get32(record + 4) != RECORD_MAGIC_V1 || !record_is_intact(record, size) || !record_parts_of(record, size, &parts)) return;
    if (parts.topic.length == 0 || memchr(parts.topic.at, 0, parts.topic.length) != NULL) return;
    if (memchr(parts.properties.at, 0, parts.properties.length) != NULL) return; /* a sector that was not written */
    values_in(parts.properties, values);
    if (values[TOPIC].length == 0 || values[DUE].length == 0 || values[SLOT].length == 0) return;
    if (!read_number(values[DUE], &said->due_ms[n]) || !read_number(values[SLOT], &said->slot_ms[n])) return;
    if (!read_number(values[LEG], &leg_ms)) return;
    said->place[n] = -1;
    said->moved[n] = 0;
    if (!read_number(values[PLACE], &said->place[n]) || !read_number(values[MOVED], &said->moved[n])) return;
    if (said->due_ms[n] <= said->slot_ms[n]) said->due_ms[n] = said->slot_ms[n] + 1;
    said->stored_ms[n] = parts.timestamp_ms;
    said->has_leg[n] = values[LEG].length > 0 && values[DEQUEUE].length == 0;
    said->topic[n] = topic_of(said, values[TOPIC]);
}

/* Look at the records, which lie one behind the other as the units have their sizes. The topic of one that is left is -1. */
EXPORT void native_said(struct said *said) {
    int64_t at = 0;
    said->topics_count = 0;
    for (int64_t n = 0; n < said->count; n++) {
        const uint8_t *unit = said->units + n * UNIT_BYTES;
        int64_t size = (int32_t)get32(unit + 8);
        said->topic[n] = -1;
        if (size < 0 || size > said->length - at) at = said->length; /* this one and all behind it are left */
        if (size < RECORD_LEAST_BYTES || size > said->length - at) {
            if (size > 0 && size <= said->length - at) at += size;
            continue;
        }
        const uint8_t *record = said->content + at;
        at += size;
        if (get32(record) == (uint32_t)size && get64(record + 28) == get64(unit)) look_at(said, n, record, size);
    }
}
