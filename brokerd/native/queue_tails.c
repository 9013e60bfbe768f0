/* Entries of sends put behind what consume queues have in memory. The twin is `ConsumeQueues.apply`
 * (brokerd/store/queues/consume_queues.py), which native_tails.py beside that gives whatever this leaves.
 *
 *   native_apply_units    one entry after the other, up to the first that is not the next one of a known queue, or has no room
 *
 * What a queue has in memory is told by one struct of an array, so of ten thousand queues, each of which gets a message now and then,
 * one line of it and one of the queue's units are fetched into the cache for a message.
 *
 * Bounds. A slot and a number are compared with how many there are, and what is written with the room of the queue's area, which the
 * caller made. Counts and sizes are send.c's.
 */
#include "queue_tails.h"
#include "units.h"

enum {
    AHEAD = 12,      /* so many entries ahead a queue is fetched, */
    UNITS_AHEAD = 6, /* and where its next unit goes */
};

/* Shared with native_tails.py, whose ctypes and numbers say the same. */

struct apply {
    const struct unit *units;
    int64_t count, at; /* at: the first that is not applied */
    const int64_t *numbers; /* of the queues, by slot; -1 of one that is not known */
    int64_t slots;
    struct tail *tails; /* by number */
    int64_t tails_count;
    int64_t *dirty; /* numbers of queues that became it, for as many as there are units */
    int64_t dirty_count, messages; /* messages: that were put in place */
};

/* Private */

static struct tail *tail_of(const struct apply *apply, const struct unit *unit) {
    if (unit->slot < 0 || unit->slot >= apply->slots) return NULL;
    int64_t number = apply->numbers[unit->slot];
    return number >= 0 && number < apply->tails_count ? &apply->tails[number] : NULL;
}

static void add(struct tail *tail, const struct unit *unit) {
    uint8_t *at = tail->units + tail->used;
    int64_t position = unit->position;
    for (int64_t n = 0; n < unit->count; n++, at += UNIT_BYTES, position += unit->size)
        put_unit(at, position, unit->size, unit->code);
    tail->used += unit->count * UNIT_BYTES;
    tail->next_offset += unit->count;
    tail->last_physical = position - unit->size;
}

static void fetch_ahead(const struct apply *apply, const struct unit *unit) {
    int64_t left = apply->count - apply->at;
    const struct tail *tail = left > AHEAD ? tail_of(apply, unit + AHEAD) : NULL;
    if (tail != NULL) fetch_tail(tail);
    tail = left > UNITS_AHEAD ? tail_of(apply, unit + UNITS_AHEAD) : NULL;
    if (tail != NULL && tail->units != NULL) __builtin_prefetch(tail->units + tail->used, 1);
}

/* Public */

EXPORT void native_apply_units(struct apply *apply) {
    for (; apply->at < apply->count; apply->at++) {
        const struct unit *unit = &apply->units[apply->at];
        fetch_ahead(apply, unit);
        struct tail *tail = tail_of(apply, unit);
        if (tail == NULL || tail->next_offset != unit->queue_offset) return;
        if (unit->count < 1 || unit->count > (tail->room - tail->used) / UNIT_BYTES) return;
        add(tail, unit);
        if (!tail->is_dirty) apply->dirty[apply->dirty_count++] = apply->numbers[unit->slot];
        tail->is_dirty = 1;
        apply->messages += unit->count;
    }
}
