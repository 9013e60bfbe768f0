/* Records of one queue out of a file of the log, into one piece: out of its mapping, or where it has none read from it. The twin is
 * RecordReads.joined in brokerd/store/log/checked_reads.py, which says what is right.
 *
 *   native_joined    of a file that is there as a mapping, or as a descriptor
 *
 * A mapping is for files whose pages are in memory: a look at a sector that the disk refuses to give ends the process. A read is told
 * of that, and leaves the records to the twin. So this file reads files, those whose descriptors it is given.
 *
 * Bounds: a record is looked at when it lies in the file's bytes and there is room for it; it is checked where it was copied to.
 */
#define _POSIX_C_SOURCE 200809L /* pread is no part of C */
#include "log_files.h"
#include "record.h"

#include <errno.h>
#include <unistd.h>

/* Whether so many bytes were read: there may be fewer, or none that the disk gives. */
static int read_whole(int descriptor, uint8_t *into, int64_t length, int64_t position) {
    while (length > 0) {
        ssize_t more = pread(descriptor, into, (size_t)length, (off_t)position);
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) return 0;
        into += more;
        position += more;
        length -= more;
    }
    return 1;
}

/* How many of the units name records that lie side by side, from the first on, and of how many bytes: 0 when the first one has no room,
 * or is not in the file. */
static int64_t side_by_side(const struct log_file *file, const uint8_t *units, int64_t count, int64_t room, int64_t *bytes) {
    int64_t first = (int64_t)get64(units), n = 0;
    *bytes = 0;
    if (first < file->begin) return 0;
    int64_t there = file->length - (first - file->begin); /* no overflow: neither is negative */
    if (room > there) room = there;
    for (; n < count; n++, units += UNIT_BYTES) {
        int64_t size = (int32_t)get32(units + 8);
        if ((int64_t)get64(units) != first + *bytes || size < RECORD_LEAST_BYTES || size > room - *bytes) break;
        *bytes += size;
    }
    return n;
}

static int are_intact(const uint8_t *units, int64_t count, const uint8_t *records) {
    for (; count > 0; count--, units += UNIT_BYTES) {
        int64_t size = (int32_t)get32(units + 8);
        if (!is_record_of(records, (int64_t)get64(units), size)) return 0;
        records += size;
    }
    return 1;
}

static int64_t read_records(const struct log_file *file, const uint8_t *units, int64_t count, uint8_t *into, int64_t room) {
    int64_t used = 0;
    while (count > 0) {
        int64_t bytes, together = side_by_side(file, units, count, room - used, &bytes);
        if (!together) return 0;
        if (!read_whole((int)file->descriptor, into + used, bytes, (int64_t)get64(units) - file->begin)) return 0;
        if (!are_intact(units, together, into + used)) return 0;
        used += bytes;
        count -= together;
        units += UNIT_BYTES * together;
    }
    return used;
}

int64_t copy_records(const struct log_file *file, const uint8_t *units, int64_t count, uint8_t *into, int64_t room) {
    if (!file->mapped) return read_records(file, units, count, into, room);
    int64_t used = 0;
    for (; count > 0; count--, units += UNIT_BYTES) {
        int64_t size = copy_record(file->mapped, file->length, file->begin, units, into + used, room - used);
        if (!size) return 0;
        used += size;
    }
    return used;
}

/* Fill exactly `total` bytes with the records that the units name, one behind the other; 0 unless all of them are copied. */
EXPORT int64_t native_joined(const uint8_t *mapped, int64_t length, int64_t begin, int64_t descriptor, const uint8_t *units, int64_t count,
                             uint8_t *into, int64_t total) {
    struct log_file file = {mapped, length, begin, descriptor};
    return count > 0 && copy_records(&file, units, count, into, total) == total;
}
