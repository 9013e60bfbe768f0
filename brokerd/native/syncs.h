/* Syncs that are wanted beside the loop. (syncs.c) */
#ifndef LOGBOOM_SYNCS_H
#define LOGBOOM_SYNCS_H

#include "native.h"

struct syncs;

/* Want all before `end` durable, which are whole records. One thread says so, while the loop wants nothing and cuts nothing. */
void want_beside(struct syncs *syncs, int64_t end);

/* All before this is durable. */
int64_t durable_beside(struct syncs *syncs);

/* And all before this will be when the sync ends that is under way, or it was the last one. */
int64_t begun_beside(struct syncs *syncs);

/* Have the event set when the next sync ends. The same. */
int64_t listen_beside(struct syncs *syncs);

/* That event's descriptor, which stays as long as the memory does. */
int32_t event_beside(const struct syncs *syncs);

#endif
