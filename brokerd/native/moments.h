/* Messages for a moment of their own: when they are due, what is added to their properties, and the handle that recalls them.
 * The rules' home is brokerd/timers/rules.py, that of handles brokerd/timers/handles.py. (moments.c) */
#ifndef LOGBOOM_MOMENTS_H
#define LOGBOOM_MOMENTS_H

#include "blake2s.h"
#include "text.h"

enum {
    MAX_BROKER_NAME_BYTES = 255,
    MAX_NAMED_KEY_BYTES = 255, /* a message with a longer key gets no handle */
    MOMENT_PROPERTIES_BYTES = 320, /* more than the names, numbers and topic that are added */
    HANDLE_BYTES = 1024,       /* more than any handle has */
    ROLL_ROOM_BYTES = 64,
};

enum terms_state { TERMS_UNASKED, TERMS_KNOWN, TERMS_NONE };

struct terms { /* by which messages wait in this turn; shared with native_kernel.py */
    int64_t state;
    int64_t now_ms, least_due_ms, window_ms, max_ahead_ms;
    int64_t broker_name_length;
    uint8_t key[TAG_KEY_BYTES];
    uint8_t broker_name[MAX_BROKER_NAME_BYTES + 1];
    uint32_t keyed[TAG_STATE]; /* ours: what the tags of this key begin with, as soon as one was made */
    uint64_t is_keyed;
    uint64_t are_needed; /* ours: whether a message asked for a moment */
};

enum ask { DELAY_SEC, DELAY_MS, DELIVER_MS, ASKS };

struct wait {
    int64_t due_ms, leg_ms; /* leg_ms: when it is appended again before that; -1 when it is not */
};

enum asked { ASKED_ODDLY, HAS_COME, IS_AHEAD }; /* for a moment; oddly: the twin must look at it */

/* Which of the properties that ask for a moment has this name; ASKS for another one. */
enum ask ask_of(struct text name);

/* Which moment a message asks for (no bytes: not there), and when it waits if that is ahead. */
enum asked wait_for(const struct terms *terms, const struct text *asks, struct wait *wait);

/* The code of its entry: `codes.encode_code` for what waits since it was sent. */
int64_t code_of(const struct wait *wait);

/* Write, in at most MOMENT_PROPERTIES_BYTES, what a message for that queue waits with. */
uint8_t *put_moment(uint8_t *at, const struct wait *wait, struct text topic, int64_t queue_id);

/* Write, in at most HANDLE_BYTES, what recalls the message; nothing when its key is too long. The topic has at most 127 bytes. */
uint8_t *put_handle(uint8_t *at, struct terms *terms, struct text topic, const struct wait *wait, struct text key,
                    int64_t place);

#endif
