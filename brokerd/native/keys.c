/* What the indexes of keys say of records: their keys, hashed. For the tier's as items, and the order in which an object has them: the twins
 * are in brokerd/tiers/index/keys.py. For the log's, as postings (brokerd/store/index/postings.py), or put into its last file at once
 * (`IndexFile.put` in brokerd/store/index/index_file.py). All of these say what is right.
 *
 * Bounds: a record's size is compared with what is left of the records before anything of it is read; its properties travel with their
 * end. `items` has `room` items, as has `spare`, and so have the columns of postings; a record with more keys than are left of that is
 * the twin's. A slot is a hash modulo how many there are.
 */
#include "record_parts.h"

enum { ITEM_BYTES = 24, RADIX_BITS = 8, RADIX = 1 << RADIX_BITS, HASH_BYTES = 4, FILLER_BYTES = 8, TRANSACTION = 0xC };

/* Private */

static uint32_t mixed(uint32_t hash) {
    hash = (hash ^ hash >> 16) * 0x85EBCA6Bu;
    hash = (hash ^ hash >> 13) * 0xC2B2AE35u;
    return hash ^ hash >> 16;
}

/* Java's hash of what goes on with the text; 0 when that is not ASCII, and the twin has to make it. */
static int add_to_hash(uint32_t *hash, struct text text) {
    for (size_t n = 0; n < text.length; n++) {
        if (text.at[n] >= 0x80) return 0;
        *hash = *hash * 31 + text.at[n];
    }
    return 1;
}

static uint32_t absolute(uint32_t hash) { return hash <= 0x7FFFFFFF ? hash : (0 - hash) & 0x7FFFFFFF; }

/* The mixed hash of what goes on with the text. */
static int hash_on(uint32_t before, struct text text, uint32_t *hash) {
    if (!add_to_hash(&before, text)) return 0;
    *hash = mixed(absolute(before));
    return 1;
}

struct keys {
    struct text unique, words;
};

/* The last values that are not empty. */
static struct keys keys_in(struct text properties) {
    struct keys keys = {{NULL, 0}, {NULL, 0}};
    const uint8_t *at = properties.at, *end = at + properties.length;
    while (at < end) {
        const uint8_t *behind = memchr(at, 2, (size_t)(end - at));
        if (behind == NULL) behind = end;
        if (behind - at > 9 && memcmp(at, "UNIQ_KEY\x01", 9) == 0)
            keys.unique = (struct text){at + 9, (size_t)(behind - at - 9)};
        else if (behind - at > 5 && memcmp(at, "KEYS\x01", 5) == 0)
            keys.words = (struct text){at + 5, (size_t)(behind - at - 5)};
        at = behind + 1;
    }
    return keys;
}

struct putting {
    uint8_t *items;
    int64_t count, room;
    uint32_t prefix;
};

static int put_item(struct putting *to, struct text key, uint32_t queue_id, int64_t queue_offset, int64_t timestamp_ms) {
    uint32_t hash;
    if (to->count >= to->room || !hash_on(to->prefix, key, &hash)) return 0;
    uint8_t *item = to->items + to->count++ * ITEM_BYTES;
    put32(item, hash);
    put32(item + 4, queue_id);
    put64(item + 8, (uint64_t)queue_offset);
    put64(item + 16, (uint64_t)timestamp_ms);
    return 1;
}

static int put_keys(struct putting *to, const struct record_parts *parts, uint32_t queue_id, int64_t queue_offset) {
    struct keys keys = keys_in(parts->properties);
    if (keys.unique.length > 0 && !put_item(to, keys.unique, queue_id, queue_offset, parts->timestamp_ms)) return 0;
    const uint8_t *at = keys.words.at, *end = keys.words.at == NULL ? NULL : at + keys.words.length;
    while (at < end) {
        const uint8_t *behind = memchr(at, ' ', (size_t)(end - at));
        if (behind == NULL) behind = end;
        struct text word = {at, (size_t)(behind - at)};
        if (word.length > 0 && !put_item(to, word, queue_id, queue_offset, parts->timestamp_ms)) return 0;
        at = behind + 1;
    }
    return 1;
}

struct postings { /* columns, of `room` numbers each */
    int64_t *hashes, *offsets, *timestamps;
    int64_t count, room;
};

static int add_posting(struct postings *to, uint32_t prefix, struct text key, int64_t offset, int64_t timestamp_ms) {
    if (to->count >= to->room || !add_to_hash(&prefix, key)) return 0;
    to->hashes[to->count] = absolute(prefix);
    to->offsets[to->count] = offset;
    to->timestamps[to->count++] = timestamp_ms;
    return 1;
}

/* The keys of one record; 0 when one is the twin's. */
static int add_postings(struct postings *to, const struct record_parts *parts, int64_t offset) {
    struct keys keys = keys_in(parts->properties);
    uint32_t prefix = 0;
    if (!add_to_hash(&prefix, parts->topic)) return 0;
    prefix = prefix * 31 + '#';
    if (keys.unique.length > 0 && !add_posting(to, prefix, keys.unique, offset, parts->timestamp_ms)) return 0;
    const uint8_t *at = keys.words.at, *end = keys.words.at == NULL ? NULL : at + keys.words.length;
    while (at < end) {
        const uint8_t *behind = memchr(at, ' ', (size_t)(end - at));
        if (behind == NULL) behind = end;
        struct text word = {at, (size_t)(behind - at)};
        if (word.length > 0 && !add_posting(to, prefix, word, offset, parts->timestamp_ms)) return 0;
        at = behind + 1;
    }
    return 1;
}

enum { LINE_BYTES = 64, TAIL_LINES = 4, AHEAD = 2 };

/* Have the processor fetch what will be looked at of a record some further on, if those between are as large as this one, which begins
 * where so many bytes are left: its head, and what is behind its body. */
static void fetch_ahead(const uint8_t *record, int64_t size, int64_t left) {
    if (left < (AHEAD + 1) * size) return;
    const uint8_t *head = record + AHEAD * size, *behind = head + size;
    for (int line = 0; line < TAIL_LINES && behind - line * LINE_BYTES > head; line++)
        __builtin_prefetch(behind - 1 - line * LINE_BYTES);
    __builtin_prefetch(head);
    __builtin_prefetch(head + LINE_BYTES);
}

/* Take the postings of whole records from `at` on, one record after the other, while `put` takes them: where it ended. */
static int64_t walk(const uint8_t *data, int64_t length, int64_t at, int64_t offset, int64_t file_bytes, struct postings *to,
                    int (*put)(void *, struct postings *), void *into) {
    while (length - at >= RECORD_LEAST_BYTES) {
        const uint8_t *record = data + at;
        int64_t size = (int32_t)get32(record), before = to->count, rest = file_bytes - (offset + at) % file_bytes;
        uint32_t magic = get32(record + 4);
        struct record_parts parts;
        if (magic != RECORD_MAGIC_V1 && magic != RECORD_MAGIC_V2) break;
        if (size < RECORD_LEAST_BYTES || size > length - at || size > rest - FILLER_BYTES) break;
        if (get64(record + 28) != (uint64_t)(offset + at) || !record_parts_of(record, size, &parts)) break;
        fetch_ahead(record, size, length - at);
        int is_rolled_back = (get32(record + 36) & TRANSACTION) == TRANSACTION;
        if ((!is_rolled_back && !add_postings(to, &parts, offset + at)) || (put != NULL && !put(into, to))) {
            to->count = before;
            break;
        }
        at += size;
    }
    return at;
}

enum { MOST_KEYS = 64, PAGE_BITS = 10, INDEX_ITEM_BYTES = 20 }; /* keys: of a record that is put here; index_file.py has the bits, too */

/* Shared with native_items.py */
struct index_file { /* the last of the log's index, which has an item already */
    int32_t *slots;
    int64_t slot_count;
    uint8_t *pages; /* of so many slots each: 1 where one has changed */
    uint8_t *items; /* what comes behind its last one */
    int64_t room;   /* of these */
    int64_t count;  /* that are there now */
    int64_t items_end; /* the file has no items from that number on */
    int64_t begin_timestamp_ms;
    int64_t next_item, slots_used, end_timestamp_ms, end_offset; /* of its header */
};

static uint32_t seconds_since(int64_t begin_ms, int64_t timestamp_ms) {
    if (begin_ms <= 0 || timestamp_ms <= begin_ms) return 0;
    int64_t seconds = (timestamp_ms - begin_ms) / 1000; /* no overflow: both are positive */
    return seconds > INT32_MAX ? INT32_MAX : (uint32_t)seconds;
}

/* Put the postings of a record into the file; 0 when it has no room for them. */
static int put_in_file(void *into, struct postings *from) {
    struct index_file *file = into;
    if (from->count > file->room - file->count || from->count > file->items_end - file->next_item) return 0;
    for (int64_t n = 0; n < from->count; n++) {
        int64_t place = from->hashes[n] % file->slot_count;
        int32_t previous = file->slots[place];
        uint8_t *item = file->items + file->count++ * INDEX_ITEM_BYTES;
        put32(item, (uint32_t)from->hashes[n]);
        put64(item + 4, (uint64_t)from->offsets[n]);
        put32(item + 12, seconds_since(file->begin_timestamp_ms, from->timestamps[n]));
        put32(item + 16, (uint32_t)previous);
        file->slots[place] = (int32_t)file->next_item++;
        file->pages[place >> PAGE_BITS] = 1;
        file->slots_used += previous == 0;
        file->end_timestamp_ms = from->timestamps[n];
        file->end_offset = from->offsets[n];
    }
    from->count = 0;
    return 1;
}

/* Public */

/* Put the keys of the whole records at the begin of bytes that are at `offset` of a log with files of that size into the index's file:
 * where that ended, before what is not like that, or has no room, which is the twin's. */
EXPORT int64_t native_put_keys(struct index_file *file, const uint8_t *data, int64_t length, int64_t offset, int64_t file_bytes) {
    int64_t hashes[MOST_KEYS], offsets[MOST_KEYS], timestamps[MOST_KEYS];
    struct postings of_record = {hashes, offsets, timestamps, 0, MOST_KEYS};
    return walk(data, length, 0, offset, file_bytes, &of_record, put_in_file, file);
}

/* The postings of the whole records from `*place` on in bytes that begin at `offset` of a log with files of that size; how many they are.
 * `place` has where it ended: before what is not like that, or has no room, which is the twin's. */
EXPORT int64_t native_postings(const uint8_t *data, int64_t length, int64_t offset, int64_t file_bytes, int64_t *hashes, int64_t *offsets,
                               int64_t *timestamps, int64_t room, int64_t *place) {
    struct postings to = {hashes, offsets, timestamps, 0, room};
    *place = walk(data, length, *place, offset, file_bytes, &to, NULL, NULL);
    return to.count;
}

/* The items of whole records, one behind the other; how many they are. `prefix` is the hash of what comes before a key. `place` has where
 * in the records to begin, and which queue offset that is; then where it ended: before the end where the twin does the next one. */
EXPORT int64_t native_key_items(
    const uint8_t *records, int64_t length, uint32_t prefix, uint32_t queue_id, uint8_t *items, int64_t room, int64_t *place) {
    struct putting to = {items, 0, room, prefix};
    int64_t at = place[0], queue_offset = place[1];
    while (length - at >= RECORD_LEAST_BYTES) {
        int64_t size = (int32_t)get32(records + at), before = to.count;
        struct record_parts parts;
        if (size < RECORD_LEAST_BYTES || size > length - at || !record_parts_of(records + at, size, &parts)) break;
        if (!put_keys(&to, &parts, queue_id, queue_offset)) {
            to.count = before;
            break;
        }
        at += size;
        queue_offset++;
    }
    place[0] = at;
    place[1] = queue_offset;
    return to.count;
}

/* Bring the items, fewer than 2^31, in the order of their hashes, those of one hash in the order in which they were; and how far from its
 * expected place one is at most. `spare` is as large. */
EXPORT int64_t native_sort_items(uint8_t *items, uint8_t *spare, int64_t count) {
    uint8_t *from = items, *to = spare;
    for (int digit = HASH_BYTES - 1; digit >= 0; digit--) {
        int64_t begins[RADIX] = {0}, begin = 0;
        for (int64_t n = 0; n < count; n++) begins[from[n * ITEM_BYTES + digit]]++;
        for (int n = 0; n < RADIX; n++) {
            int64_t here = begins[n];
            begins[n] = begin;
            begin += here;
        }
        for (int64_t n = 0; n < count; n++)
            memcpy(to + begins[from[n * ITEM_BYTES + digit]]++ * ITEM_BYTES, from + n * ITEM_BYTES, ITEM_BYTES);
        uint8_t *other = from;
        from = to;
        to = other;
    }
    int64_t spread = 0; /* after an even number of passes all of it is in `items` again */
    for (int64_t n = 0; n < count; n++) {
        int64_t off = n - (int64_t)((uint64_t)get32(items + n * ITEM_BYTES) * (uint64_t)count >> 32);
        if (off < 0) off = -off;
        if (off > spread) spread = off;
    }
    return spread;
}
