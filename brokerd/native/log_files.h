/* A file of the log, for who copies records out of it. (log_files.c) */
#ifndef LOGBOOM_LOG_FILES_H
#define LOGBOOM_LOG_FILES_H

#include "native.h"

struct log_file { /* the first numbers of wanted.py */
    const uint8_t *mapped; /* its bytes; NULL: they are read from the descriptor */
    int64_t length, begin; /* how many it has, and where they begin in the log */
    int64_t descriptor;    /* which stays open meanwhile */
};

/* Fill `into`, which has so much room, with the records that the units name, one behind the other: how many bytes; 0 unless all of them
 * have room, are in the file, and are what was stored there. */
int64_t copy_records(const struct log_file *file, const uint8_t *units, int64_t count, uint8_t *into, int64_t room);

#endif
