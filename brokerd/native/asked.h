/* Pulls as they are received (asked.c), for who takes more of a kind that was read (stays.c). */
#ifndef LOGBOOM_ASKED_H
#define LOGBOOM_ASKED_H

#include "headers.h"

enum { SLOTS = 16384, SLOT_BYTES = 1024, ASKED_NUMBERS = 3 }; /* asked.py says the same of the first two */
enum asked_number { OPAQUE, QUEUE_OFFSET, COMMIT_OFFSET };

struct slot { /* a header that was read */
    struct {
        uint16_t begin, end; /* of a number's digits */
        uint16_t number;
    } parts[ASKED_NUMBERS]; /* in their order */
    uint16_t part_count, length; /* a length of 0: it is not in use */
    uint32_t hash;
    uint8_t header[SLOT_BYTES];
};

struct slots {
    int64_t last;    /* that was found */
    int64_t without; /* how many headers had no room in their set */
    struct slot slots[SLOTS];
};

struct asked { /* asked.py has the same; the places are the caller's, of that room. `key_length` is 0 for what is in the slot */
    uint8_t *key, *scratch;
    struct slots *slots;
    int64_t key_room, scratch_room, max_frame_bytes;
    int64_t opaque, queue_offset, commit_offset, key_length, slot;
    int64_t in_full; /* whether it is to be read so, whatever is remembered, and nothing of it */
};

/* Whether the header is like that of the slot, and its numbers; the commit offset stays what it is where there is none. */
int is_like(const struct slot *slot, struct text header, int64_t *numbers);

#endif
