/* Frames, and headers of sends in both encodings: which fields they have. (headers.c) */
#ifndef LOGBOOM_HEADERS_H
#define LOGBOOM_HEADERS_H

#include "text.h"

enum { SEND_MESSAGE = 10, SEND_MESSAGE_V2 = 310, SEND_BATCH_MESSAGE = 320 };

enum named { SHORT = 1, LONG = 2 };
enum field { TOPIC, QUEUE_ID, SYS_FLAG, BORN_TIMESTAMP, FLAG, PROPERTIES, RECONSUME_TIMES, IS_BATCH, FIELDS };

struct header {
    int64_t code, opaque, frame_flag;
    int named;                  /* how those that are there are named: SHORT, LONG */
    struct text fields[FIELDS]; /* no bytes: not there */
};

enum { MAX_FIELDS = 32 };

/* What may differ in a header in JSON that is otherwise like the one that was read in full, byte by byte: the text of a field, or the
 * opaque. */
struct part {
    size_t begin, end; /* in that header; of a text without its quotes */
    size_t field;      /* MAX_FIELDS: the opaque */
    int named;         /* which field of a send it is; FIELDS: none */
    int is_read;       /* each time: the opaque, and a text with escapes, which the scratch may have no more */
};

struct fields { /* all that a header has, as they came; of null there is no byte */
    struct text names[MAX_FIELDS], values[MAX_FIELDS];
    size_t count;
    int is_cut;   /* there are others, for which there was no room */
    int is_alike; /* the names, and the header but for its parts, are those of the one that was read in full */
    struct text model; /* that one */
    struct part parts[MAX_FIELDS + 1]; /* of it, in their order */
    size_t part_count;                 /* 0: the next header is read in full */
    uint64_t changed;                  /* a bit for each of its parts: the last header has another one */
};

struct frame {
    struct text header, body;
    uint32_t encoding;
};

/* A frame that was read: who has the same bytes at the same place of a buffer need not read them again. (signed.c reads, send.c takes) */
struct reading {
    int64_t at, size; /* where it begins in the buffer; with the prefix */
    struct header header;
    struct text body;
};

/* Find the frame at `at`, of which `left` bytes are there: its length with the prefix; 0 when it has not come whole, -1 for none that a
 * correct peer sends. */
int64_t find_frame(const uint8_t *at, int64_t left, int64_t max_frame_bytes, struct frame *frame);

/* Read a header; texts with escapes go to the scratch, which then begins behind them, all its fields to `fields` if somebody wants them. 0
 * for what is left: of what the twin's parsers take, this takes a part, with the same outcome. Clients write one header like the
 * other: where `header` and `fields` are those of the header before, only what differs from the last one that was read in full is
 * read; that is still where it was, and its texts with escapes need not be. There was none: no parts. */
int read_header(struct text text, uint32_t encoding, uint8_t **scratch, uint8_t *scratch_end, struct header *header,
                struct fields *fields);

/* The same of a header of any request, for itself: code, opaque, flag, and all its fields. */
int read_fields(struct text text, uint32_t encoding, uint8_t *scratch, int64_t scratch_room, struct header *header,
                struct fields *fields);

#endif
