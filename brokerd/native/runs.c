/* Records of one queue, copied out of a file of the log, where others lie between them. The twins are in
 * brokerd/store/log/run_copies.py, which says what is right.
 *
 * Bounds: a record is looked at when it lies in the file's bytes and there is room for it; it is checked where it was copied to.
 */
#include "record.h"

int is_record_of(const uint8_t *record, int64_t offset, int64_t size) {
    return get32(record) == (uint32_t)size && get64(record + 28) == (uint64_t)offset && record_is_intact(record, size);
}

int64_t copy_record(const uint8_t *file, int64_t length, int64_t begin, const uint8_t *unit, uint8_t *into, int64_t room) {
    int64_t offset = (int64_t)get64(unit), size = (int32_t)get32(unit + 8);
    if (size < RECORD_LEAST_BYTES || size > room) return 0;
    if (offset < begin || offset - begin > length - size) return 0;
    memcpy(into, file + (offset - begin), (size_t)size);
    return is_record_of(into, offset, size) ? size : 0;
}

/* Copy the records that the units name, one behind the other, into `room` bytes: how many. It ends before the first one that
 * `copy_record` does not copy. `entries` has UNIT_BYTES for each unit, and gets what they are when the first record begins at `place`. */
EXPORT int64_t native_copied(const uint8_t *file, int64_t length, int64_t begin, const uint8_t *units, int64_t count, uint8_t *into,
                             int64_t room, int64_t place, uint8_t *entries) {
    int64_t used = 0;
    for (int64_t n = 0; n < count; n++, units += UNIT_BYTES, entries += UNIT_BYTES) {
        int64_t size = copy_record(file, length, begin, units, into + used, room - used);
        if (!size) return n;
        put64(entries, (uint64_t)(place + used));
        memcpy(entries + 8, units + 8, UNIT_BYTES - 8);
        used += size;
    }
    return count;
}
