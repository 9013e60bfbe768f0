/* Units of consume queues into their files and out of them, and what covers them. The twins are QueueFiles.write and read_checked in
 * brokerd/store/queues/consume_queue.py, which say what is right.
 *
 *   native_write_units    each part to its file, synced, then its checksums, which are not
 *   native_read_units     some blocks of a file, held against their checksums
 *
 * This file touches files: those whose names it is given, below two directories, which it opens and closes, and no more of them at a
 * time than two. A checkpoint of ten thousand queues is a hundred thousand system calls, and each one made from Python waits for the
 * interpreter's lock when it is over, which the loop then waits for, too. To read a few units of one of ten thousand takes eight.
 *
 * Bounds: a path is put together in an area of PATH_ROOM bytes and left when it is longer. A part's units lie within one file, whose
 * size is compared before anything is written. Checksums are made in an area of a fixed size. What is not there yet, or not in its
 * full size, is left to the twin, before anything of it was written.
 */
#define _POSIX_C_SOURCE 200809L /* pread, pwrite and fdatasync are no part of C */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "native.h"

enum { BLOCK_UNITS = 128, ENTRY_BYTES = 8, ENTRIES = 64, PATH_ROOM = 4096, MOST_FILE_UNITS = 10000000 };

static const int64_t MOST_UNITS = INT64_MAX / UNIT_BYTES - MOST_FILE_UNITS; /* of a queue: a place in bytes fits into 64 bits */

/* Shared with native_writes.py, which packs the same. */

enum { IS_WRITTEN = 0, IS_LEFT = -1 }; /* or an errno */

struct part {
    int64_t name_at, name_length; /* a directory below both */
    int64_t units_at, count;      /* a byte of all units, and how many units are there */
    int64_t first;                /* which one of the queue the first is */
    int64_t outcome;
};

struct writes {
    const char *queues, *checks; /* directories with a slash and a zero behind them */
    const char *names;
    const uint8_t *units;
    struct part *parts;
    int64_t count, file_units;
};

/* Shared with native_reads.py. */

struct reads {
    const char *queues, *checks; /* as above */
    const char *name;            /* of a directory below both, */
    int64_t name_length;
    int64_t file_units, first, count;
    uint8_t *into;
    int64_t room;
};

/* Private */

struct place {
    int64_t file_units, first, count; /* the units' place in their file */
    const uint8_t *units;
};

static int write_all(int file, const uint8_t *data, size_t length, int64_t position) {
    while (length > 0) {
        ssize_t written = pwrite(file, data, length, (off_t)position);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written < 0 ? errno : EIO;
        data += written;
        position += written;
        length -= (size_t)written;
    }
    return 0;
}

/* How many bytes there are, up to `length`, fewer at the end of the file; or -1 and errno. */
static ssize_t read_all(int file, uint8_t *data, size_t length, int64_t position) {
    size_t there = 0;
    while (there < length) {
        ssize_t more = pread(file, data + there, length - there, (off_t)position + (off_t)there);
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) return -1;
        if (more == 0) break;
        there += (size_t)more;
    }
    return (ssize_t)there;
}

/* What fails is final: bytes that were not synced may be gone from memory, too. */
static int sync_data(int file) {
    int failed;
    do failed = fdatasync(file);
    while (failed && errno == EINTR);
    return failed ? errno : 0;
}

static int is_whole(int file, int64_t bytes) {
    struct stat found;
    return fstat(file, &found) == 0 && found.st_size >= bytes;
}

/* What covers the blocks of the units, behind what covered the first of them before. */
static int cover(const struct place *place, int checks) {
    uint8_t entries[ENTRIES * ENTRY_BYTES] = {0};
    int64_t inside = place->first % BLOCK_UNITS, position = place->first / BLOCK_UNITS * ENTRY_BYTES;
    ssize_t there = read_all(checks, entries, ENTRY_BYTES, position);
    if (there < 0) return errno;
    if (there < ENTRY_BYTES) memset(entries, 0, ENTRY_BYTES);
    uint32_t before = get32(entries + 4);
    int is_next = get32(entries) == inside;
    for (int64_t at = 0, filled = 0; at < place->count;) {
        int64_t count = BLOCK_UNITS - inside;
        if (count > place->count - at) count = place->count - at;
        uint32_t crc = crc32_of(before, place->units + at * UNIT_BYTES, (size_t)(count * UNIT_BYTES));
        put32(entries + filled * ENTRY_BYTES, is_next ? (uint32_t)(inside + count) : 0);
        put32(entries + filled * ENTRY_BYTES + 4, is_next ? crc : 0);
        at += count;
        filled++;
        inside = 0, before = 0, is_next = 1;
        if (filled == ENTRIES || at == place->count) {
            int failed = write_all(checks, entries, (size_t)(filled * ENTRY_BYTES), position);
            if (failed) return failed;
            position += filled * ENTRY_BYTES;
            filled = 0;
        }
    }
    return 0;
}

static int64_t write_open(const struct place *place, int file, int checks) {
    int64_t blocks = (place->file_units + BLOCK_UNITS - 1) / BLOCK_UNITS;
    if (!is_whole(file, place->file_units * UNIT_BYTES) || !is_whole(checks, blocks * ENTRY_BYTES)) return IS_LEFT;
    int failed = write_all(file, place->units, (size_t)(place->count * UNIT_BYTES), place->first * UNIT_BYTES);
    if (!failed) failed = sync_data(file);
    return failed ? failed : cover(place, checks); /* IS_WRITTEN is no errno */
}

/* A queue below a directory, by its name, and the file that has unit `first`; -1 and errno when it is not there, or cannot be opened
 * by us. */
static int open_file(const char *directory, const char *name, int64_t name_length, int64_t first, int64_t file_units, int how) {
    char path[PATH_ROOM];
    long long begin = (long long)(first / file_units * file_units * UNIT_BYTES);
    int length = snprintf(path, sizeof path, "%s%.*s/%020lld", directory, (int)name_length, name, begin);
    if (length < 0 || length >= PATH_ROOM) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(path, how | O_CLOEXEC);
}

static int open_part(const char *directory, const struct writes *writes, const struct part *part) {
    return open_file(directory, writes->names + part->name_at, part->name_length, part->first, writes->file_units, O_RDWR);
}

static int64_t write_part(const struct writes *writes, const struct part *part) {
    if (part->count <= 0 || part->first < 0 || part->first > MOST_UNITS || part->name_length > PATH_ROOM) return IS_LEFT;
    struct place place = {writes->file_units, part->first % writes->file_units, part->count, writes->units + part->units_at};
    if (place.count > place.file_units - place.first) return IS_LEFT;
    int file = open_part(writes->queues, writes, part);
    if (file < 0) return IS_LEFT;
    int checks = open_part(writes->checks, writes, part);
    int64_t outcome = checks < 0 ? IS_LEFT : write_open(&place, file, checks);
    if (checks >= 0) close(checks);
    close(file);
    return outcome;
}

/* What covers some blocks: 0 when that cannot be told. Nothing does where there is no such file, or it ends before. */
static int read_entries(const struct reads *reads, int64_t block, int64_t blocks, uint8_t *entries) {
    size_t length = (size_t)(blocks * ENTRY_BYTES);
    memset(entries, 0, length);
    int checks = open_file(reads->checks, reads->name, reads->name_length, reads->first, reads->file_units, O_RDONLY);
    if (checks < 0) return errno == ENOENT;
    ssize_t there = read_all(checks, entries, length, block * ENTRY_BYTES);
    close(checks);
    if (there >= 0) memset(entries + there / ENTRY_BYTES * ENTRY_BYTES, 0, length - (size_t)(there / ENTRY_BYTES * ENTRY_BYTES));
    return there >= 0;
}

/* Whether each block is what was covered. */
static int pass(const uint8_t *entries, const uint8_t *units, int64_t count) {
    for (int64_t at = 0; at < count; at += BLOCK_UNITS, entries += ENTRY_BYTES) {
        int64_t covered = get32(entries);
        if (covered > BLOCK_UNITS) covered = BLOCK_UNITS;
        if (covered > count - at) covered = count - at;
        if (covered && crc32_of(0, units + at * UNIT_BYTES, (size_t)(covered * UNIT_BYTES)) != get32(entries + 4)) return 0;
    }
    return 1;
}

/* Public */

/* Read the blocks of a file in which the units are, up to the file's end: where in `into` the first one is, or -1 when it is left to
 * the twin, as units are not what was covered, a file is not whole, or there are too many. */
EXPORT int64_t native_read_units(const struct reads *reads) {
    int64_t file_units = reads->file_units;
    if (file_units <= 0 || file_units > MOST_FILE_UNITS || reads->first < 0 || reads->first > MOST_UNITS) return IS_LEFT;
    if (reads->count <= 0 || reads->name_length > PATH_ROOM) return IS_LEFT;
    int64_t inside = reads->first % file_units, block = inside / BLOCK_UNITS;
    int64_t end = reads->count > file_units - inside ? file_units : inside + reads->count;
    int64_t blocks = (end + BLOCK_UNITS - 1) / BLOCK_UNITS - block, count = blocks * BLOCK_UNITS;
    if (count > file_units - block * BLOCK_UNITS) count = file_units - block * BLOCK_UNITS;
    uint8_t entries[ENTRIES * ENTRY_BYTES];
    if (blocks > ENTRIES || count * UNIT_BYTES > reads->room) return IS_LEFT;
    if (!read_entries(reads, block, blocks, entries)) return IS_LEFT; /* before the units: what they cover was written before them */
    int file = open_file(reads->queues, reads->name, reads->name_length, reads->first, file_units, O_RDONLY);
    if (file < 0) return IS_LEFT;
    size_t length = (size_t)(count * UNIT_BYTES);
    int is_there = is_whole(file, file_units * UNIT_BYTES) &&
                   read_all(file, reads->into, length, block * BLOCK_UNITS * UNIT_BYTES) == (ssize_t)length;
    close(file);
    return is_there && pass(entries, reads->into, count) ? (inside - block * BLOCK_UNITS) * UNIT_BYTES : IS_LEFT;
}

/* Each part's outcome; ends behind the first that failed, as nobody would hear of those behind it. */
EXPORT void native_write_units(struct writes *writes) {
    if (writes->file_units <= 0 || writes->file_units > MOST_FILE_UNITS) return;
    for (struct part *part = writes->parts; part < writes->parts + writes->count; part++) {
        part->outcome = write_part(writes, part);
        if (part->outcome > 0) return;
    }
}
