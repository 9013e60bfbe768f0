/* What the consume-queue entries of the timer topic say. The twin is `timer_code` in brokerd/timers/codes.py, which says what is right.
 *
 * Bounds: a property travels with its end.
 */
#include "text.h"

enum { MESSAGE, RECALL, ROLLED };
enum { KIND_BITS = 2, SLOT_MS = 1000, MAX_DIGITS = 16 };
static const int64_t MAX_DUE_MS = (int64_t)1 << 52;

/* The number that a property is, or -1. */
static int64_t number_of(struct text text) {
    int64_t value;
    return natural_of(text, MAX_DIGITS, &value) ? value : -1;
}

EXPORT int64_t native_timer_code(const uint8_t *properties, int64_t length, int64_t store_timestamp_ms) {
    const uint8_t *at = properties, *end = properties + length;
    int64_t due_ms = -1, leg_ms = -1, slot_ms = -1;
    int is_rolled = 0, is_recall = 0, is_leg_over = 0;
    while (at < end) {
        const uint8_t *behind = memchr(at, 2, (size_t)(end - at)), *value;
        if (behind == NULL) behind = end;
        if (*at == 'T' && (value = memchr(at, 1, (size_t)(behind - at))) != NULL && ++value < behind) {
            struct text name = {at, (size_t)(value - 1 - at)}, text = {value, (size_t)(behind - value)};
            if (IS(name, "TIMER_DUE_MS")) due_ms = number_of(text);
            else if (IS(name, "TIMER_LEG_MS")) leg_ms = number_of(text);
            else if (IS(name, "TIMER_OUT_MS")) slot_ms = number_of(text);
            else if (IS(name, "TIMER_PLACE")) is_rolled = 1;
            else if (IS(name, "TIMER_DEL_UNIQKEY")) is_recall = 1;
            else if (IS(name, "TIMER_DEQUEUE_MS")) is_leg_over = 1; /* the original appended it again */
        }
        at = behind + 1;
    }
    if (due_ms < 0 && slot_ms >= 0) due_ms = is_recall ? slot_ms : slot_ms + SLOT_MS;
    if (leg_ms >= 0 && !is_leg_over) due_ms = leg_ms;
    if (due_ms < 0) due_ms = store_timestamp_ms < 0 ? 0 : store_timestamp_ms;
    if (due_ms > MAX_DUE_MS) due_ms = MAX_DUE_MS;
    return due_ms << KIND_BITS | (is_recall ? RECALL : is_rolled ? ROLLED : MESSAGE);
}
