/* The properties of messages: what they tell, and how they are written again. (properties.c) */
#ifndef LOGBOOM_PROPERTIES_H
#define LOGBOOM_PROPERTIES_H

#include "moments.h"

enum { MAX_COMPLETED_PROPERTIES = 64 }; /* of one message whose properties are not stored as they came */

struct look { /* what properties tell; texts without bytes: not there */
    struct text key, tag, level, transaction, group, immunity;
    int32_t tags_code;
    struct text asks[ASKS]; /* for a moment */
    int is_timed, is_open;  /* the last separator is not there */
    int is_request, is_early; /* for an answer by a message; not to be acknowledged before it is answered */
    int is_plain;           /* may be stored as they came */
    size_t length;          /* of others when they were written again, without what completes them */
};

struct properties { /* those that differ in their names, in the order in which they came first, each as it came last */
    struct text names[MAX_COMPLETED_PROPERTIES], values[MAX_COMPLETED_PROPERTIES];
    size_t count, length; /* of them, and of their text with all separators */
};

/* Whether properties may ask for a delay level or a moment. */
int asks_for_time(struct text text);

/* What the properties tell; 0 when they are for the twin. */
int look_at(struct text properties, struct look *look);

/* Read properties, which `look_at` has gone through, as the twin does that writes them again. 0 for what is more than that: a name that
 * is reserved, or that says something and is there twice, and what is not UTF-8. */
int read_again(struct text properties, struct properties *read);

/* Write what was read to `at`, which has room for it. */
uint8_t *put_again(const struct properties *read, uint8_t *at);

#endif
