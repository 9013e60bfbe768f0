/* Headers of sends, in both encodings: which fields a frame has. (headers.c) */
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

/* Read the `length` bytes of a header; texts with escapes go to the scratch. 0 for what is left: of what the twin's parsers take, this
 * takes a part, with the same outcome. */
int read_header(const uint8_t *at, size_t length, uint32_t encoding, uint8_t *scratch, int64_t scratch_room,
                struct header *header);

#endif
