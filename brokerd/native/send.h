/* Sends: what a call is told, and tells. (send.c) */
#ifndef LOGBOOM_SEND_H
#define LOGBOOM_SEND_H

#include "headers.h"
#include "moments.h"
#include "record.h"
#include "units.h"

enum {
    MAX_TOPIC_BYTES = 127,
    HOST_BYTES = 8, /* with an IPv4 address */
    HOST_V6_BYTES = HOST_BYTES + RECORD_LONGER_HOST,
    NAME_BYTES = 32, /* of a message that gets one here */
    NAME_BEGIN_BYTES = NAME_BYTES / 2,
};

/* Shared with native_kernel.py, whose ctypes and struct formats say the same. */

struct target { /* a topic that takes ordinary sends; an array of them is sorted by length, then bytes of the name */
    uint8_t name[MAX_TOPIC_BYTES];
    uint8_t name_length;
    int32_t queues;
    int32_t first_slot; /* of its queue 0 */
};

struct slot { /* a queue; or a topic, and the queue of it that its last message went to whose queue the broker chose */
    int64_t next;     /* the offset of its next message, if a call of this run used it; else a guess, until the caller has compared it */
    uint64_t touched; /* the number of the last call that used it */
};

struct touched {
    int64_t slot;
    int64_t first, next; /* what the call took for it when it began, and what comes behind what it took */
};

struct rows { /* what comes next in queues, as their owner has it */
    const int64_t *of_slots; /* which of the numbers are theirs; -1 where that is not known */
    int64_t *numbers;
    int64_t slots, count;
};

struct tally { /* of a target: what the call of that number took for it */
    uint64_t number;
    int64_t messages, bytes;
};

struct moment { /* when a message waits, in the order of their queue; the caller may count them */
    int64_t due_ms, code;
    int64_t frame; /* how many frames the call took before its own */
};

struct half { /* a message that begins a transaction */
    int64_t queue_offset, position, size, since_ms;
    int64_t key_at, key_length; /* of its name, in the records */
    int64_t immunity_ms;
};

enum stop { STOP_END, STOP_LEFT, STOP_ROOM, STOP_TERMS };
#define HALVES_UNASKED (-(INT64_C(1) << 62)) /* nobody found out what room there is; brokerd/sending/native_kernel.py says the same */

struct source { /* what one peer sent, in a buffer of its own */
    int64_t length, position, most; /* of the buffer; where to begin; frames */
    const struct reading *readings; /* frames of this very buffer that were read, in their order; of others nothing is known */
    int64_t reading_count;
    int64_t peer_length;
    uint8_t peer[HOST_V6_BYTES];
};

struct progress { /* in a source; and of the answers and opaques of all sources, how many are there behind it */
    int64_t position, frames, answers_end, opaques_end;
};

struct request { /* what a call is about */
    int64_t count, most; /* of sources; frames of all of them */
    uint64_t number;     /* another one for each call, larger than the one before */
    uint64_t since;      /* that of the first call of this run */
    struct rows rows;
    int64_t end_offset, limit, now_ms, seals;
    int64_t next_name, half_count, half_bytes; /* the number of the next name; the room for transactions that begin, or HALVES_UNASKED */
    int64_t is_lent; /* nobody compares guesses with what is known: what needs that is left */
};

struct results { /* also how far a call has come; sources: of which all was taken that is to be */
    int64_t sources, end_offset, frames, stop;
    int64_t records_size, answers_size, units, messages, opaques, touched, moments, names, halves, early, turned, tallied;
    int64_t unmet; /* of the touched queues: nobody said which row has their number, so it is a guess */
};

struct areas { /* what stays where it is from call to call; rooms in elements */
    struct request *request;
    struct source *sources;
    const uint8_t **buffers; /* of the sources, in their order; progress, too */
    struct progress *progress;
    struct results *results;
    const struct target *targets;
    int64_t target_count;
    struct slot *slots, *turns; /* turns: of the targets */
    struct tally *tallies;      /* of the targets, and of the broker's topics behind them */
    int64_t timer_slot; /* of the queue in which messages wait for a moment; behind it that of halves, then those of the levels */
    struct terms *terms;
    const int64_t *delays_ms; /* of the levels, from the first on */
    int64_t delay_count;
    uint8_t *records, *answers, *scratch;
    struct unit *units;
    int64_t *opaques;
    struct touched *touched, *turned;
    struct moment *moments;
    struct half *halves;
    int64_t *tallied; /* which targets the call took anything for */
    int64_t *early; /* which answers are for who does not wait; as many as opaques */
    int64_t records_room, answers_room, scratch_room, units_room, opaques_room, touched_room, turned_room, moments_room, halves_room, tallied_room;
    const uint8_t *cluster; /* in which requests are answered */
    int64_t cluster_length, max_frame_bytes, store_host_length;
    uint8_t store_host[HOST_V6_BYTES], names_begin[NAME_BEGIN_BYTES];
};

/* Lay out what the sources have behind what earlier calls laid out for the same run, as `results` says: numbers and names, units and
 * topics go on; records, answers, opaques, sources and frames are those of this call alone. Numbers that are guesses, and moments, are left. */
void send_more(const struct areas *areas);

/* What comes behind what was taken so far in the queues that were touched. */
void note_taken(const struct areas *areas);

#endif
