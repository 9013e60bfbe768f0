/* Which timers are due when: entries of the timer topic's queue between two keys, and the records of one slot of the timer log. The
 * twins are brokerd/timers/due_entries.py and brokerd/timers/files/chain.py, which say what is right.
 *
 *   native_due_select    the entries with keys behind one and up to another
 *   native_due_sort      these in order of their keys
 *   native_due_span      the first and the last code of entries
 *   native_due_chain     the records of a slot that are in a block of the timer log, from the newest to the oldest
 *
 * Bounds: `count` units lie where they are said to be, and there is room for as many results; a record is looked at when all of it
 * lies in the block. A record that is not as it should be is left, and the walk ends in front of it.
 */
#include "native.h"

enum {
    KIND_BITS = 2,
    RECORD_BYTES = 52,
    SLOT_MS = 1000,
    OFFSET_BITS = 50,
    MAGIC = 1,
    MAGIC_DELETE = 4,
    MAGIC_ELSEWHERE = 8,
    MAGIC_BITS = 0xF,
};
static const int64_t MAX_MS = (int64_t)1 << 53, MAX_OFFSET = ((int64_t)1 << OFFSET_BITS) - 1;

/* Shared with native_due_entries.py and files/native_chain.py, whose ctypes say the same. */

struct key {
    int64_t due_ms, offset;
};

struct entry {
    int64_t code, offset;
};

struct chain { /* a walk along a slot's records: where it is, and what it has seen */
    int64_t slot_ms;
    struct key after;
    uint64_t last_kept; /* packed: keys behind it are passed over */
    int64_t at, stop, before, visited, messages;
};

/* Private */

static int is_behind(struct key key, struct key other) {
    return key.due_ms > other.due_ms || (key.due_ms == other.due_ms && key.offset > other.offset);
}

static struct key key_of(const struct entry *entry) { return (struct key){entry->code >> KIND_BITS, entry->offset}; }

static int comes_later(const struct entry *entry, const struct entry *other) { return is_behind(key_of(entry), key_of(other)); }

/* Of a heap with the latest in front, in which the entry `at` may be too early: let it sink. */
static void sink(struct entry *heap, int64_t count, int64_t at) {
    struct entry entry = heap[at];
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && comes_later(heap + child + 1, heap + child)) child++;
        if (!comes_later(heap + child, &entry)) break;
        heap[at] = heap[child];
    }
    heap[at] = entry;
}

static uint64_t packed(struct key key, int64_t slot_ms) {
    int64_t since_ms = key.due_ms - slot_ms + SLOT_MS, offset = key.offset + 1;
    if (since_ms < 0) return 0;
    return ((uint64_t)since_ms << OFFSET_BITS) + (uint64_t)(offset < MAX_OFFSET ? offset : MAX_OFFSET);
}

/* The least and the largest code of `count` entries, at least one. */
EXPORT void native_due_span(const uint8_t *units, int64_t count, int64_t *least, int64_t *largest) {
    *least = *largest = (int64_t)get64(units + 12);
    for (int64_t n = 1; n < count; n++) {
        int64_t code = (int64_t)get64(units + n * UNIT_BYTES + 12);
        if (code < *least) *least = code;
        if (code > *largest) *largest = code;
    }
}

/* The entries among `count`, of queue offsets from `first` on, with keys behind `after` and up to `end`: how many. */
EXPORT int64_t native_due_select(const uint8_t *units, int64_t count, int64_t first, const struct key *after, const struct key *end,
                                 struct entry *into) {
    int64_t found = 0;
    for (int64_t n = 0; n < count; n++, units += UNIT_BYTES) {
        struct entry entry = {(int64_t)get64(units + 12), first + n};
        struct key key = key_of(&entry);
        if (is_behind(key, *after) && !is_behind(key, *end)) into[found++] = entry;
    }
    return found;
}

EXPORT void native_due_sort(struct entry *entries, int64_t count) {
    int64_t n = 1;
    while (n < count && comes_later(entries + n, entries + n - 1)) n++;
    if (n >= count) return; /* mostly: who sends for one time after another */
    for (int64_t at = count / 2; at-- > 0;) sink(entries, count, at);
    for (int64_t last = count; --last > 0;) {
        struct entry latest = entries[0];
        entries[0] = entries[last];
        entries[last] = latest;
        sink(entries, last, 0);
    }
}

/* Walk along the chain while it is in the block, whose `length` bytes begin at `position` of the timer log, over `most` records: how
 * many. `keys` has room for as many, `kept` says how many it got. */
EXPORT int64_t native_due_chain(struct chain *chain, const uint8_t *block, int64_t length, int64_t position, int64_t most,
                                uint64_t *keys, int64_t *kept) {
    int64_t looked = 0;
    *kept = 0;
    while (looked < most && chain->at != chain->stop) {
        int64_t at = chain->at;
        if (at < position || at - position > length - RECORD_BYTES) break;
        const uint8_t *record = block + (at - position);
        int64_t previous = (int64_t)get64(record + 4), write_ms = (int64_t)get64(record + 16);
        int64_t offset = (int64_t)get64(record + 44);
        uint32_t magic = get32(record + 12);
        if (get32(record) != RECORD_BYTES || !(magic & MAGIC) || (magic & ~(uint32_t)MAGIC_BITS) || previous < -1) break;
        if (write_ms < 0 || write_ms > MAX_MS || previous >= at || offset < 0 || offset >= chain->before) break;
        int64_t at_ms = write_ms + (int32_t)get32(record + 24);
        int64_t slot_ms = at_ms < SLOT_MS ? SLOT_MS : at_ms - at_ms % SLOT_MS;
        if (at_ms < 0 || slot_ms != chain->slot_ms) break;
        looked++;
        chain->before = offset;
        chain->messages += !(magic & (MAGIC_DELETE | MAGIC_ELSEWHERE));
        chain->visited = at;
        chain->at = previous;
        if (magic & MAGIC_ELSEWHERE) continue;
        struct key key = {at_ms + 1, offset};
        uint64_t pack = packed(key, slot_ms);
        if (is_behind(key, chain->after) && pack <= chain->last_kept) keys[(*kept)++] = pack;
    }
    return looked;
}
