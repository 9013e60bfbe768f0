/* Entries that walk.c found in the log put behind what their queues have in memory. The twin is `ConsumeQueues.apply`
 * (brokerd/store/queues/consume_queues.py), which named_tails.py beside that gives whatever this leaves.
 *
 *   native_name_queues    queues to be found by topic and id
 *   native_apply_walk     of each queue all entries, or none of them
 *
 * A replica and a start read back what they dispatch, and of ten thousand queues nearly every message is of another one: what is
 * done for a queue is done for a message. So a queue is found here, not by a key that Python would have to make first.
 *
 * Bounds. `buckets` is a power of two that is larger than the number of queues, so a search ends at an empty one. Numbers are compared
 * with how many tails there are, and what is written with the room of the queue's area, which the caller made. The groups of a walk's
 * entries are walk.c's, and there is a spot for each.
 */
#include "queue_tails.h"
#include "walk.h"

enum { AHEAD = 8 }; /* so many groups ahead the place of a queue among the buckets is fetched */

/* Shared with named_tails.py, whose ctypes and numbers say the same. */

struct named { /* a queue that is known */
    int64_t topic_at, topic_length; /* among all topics */
    int64_t topic, queue_id, number; /* topic: the number of that */
};

struct names {
    const uint8_t *topics;
    const struct named *queues;
    int64_t count;
    int32_t *buckets; /* 0, or the index of a queue and 1 */
    int64_t buckets_count;
};

enum fate { FITS, IS_PLACED, IS_UNKNOWN, IS_ODD, HAS_NO_ROOM }; /* odd: not what comes next, one behind the other */

struct spot { /* what becomes of a group; FITS before the first call */
    int64_t fate, topic, number;
    int64_t first, count; /* queue offset */
};

struct landing {
    const struct walk *walk;
    const struct names *names;
    struct tail *tails; /* by number */
    int64_t tails_count;
    struct spot *spots;
    int64_t *dirty; /* numbers of queues that became it, for as many as there are groups */
    int64_t dirty_count, messages, left_count; /* messages: that were put in place; left: groups that were not */
};

/* Private */

static int64_t bucket_of(const struct names *names, int64_t hash) { return hash & (names->buckets_count - 1); }

static struct text topic_of(const struct names *names, const struct named *named) {
    return (struct text){names->topics + named->topic_at, (size_t)named->topic_length};
}

static const struct named *find(const struct names *names, struct text topic, int64_t queue_id, int64_t hash) {
    for (int64_t place = bucket_of(names, hash);; place = (place + 1) & (names->buckets_count - 1)) {
        if (names->buckets[place] == 0) return NULL;
        const struct named *named = &names->queues[names->buckets[place] - 1];
        if (named->queue_id == queue_id && equals(topic, (const char *)names->topics + named->topic_at, (size_t)named->topic_length))
            return named;
    }
}

/* How many entries a group has, where they begin, and whether their queue offsets follow one another. */
static void count_entries(const struct landing *landing) {
    const struct walk *walk = landing->walk;
    for (int64_t number = 0; number < walk->groups_count; number++) {
        struct spot *spot = &landing->spots[number];
        if (spot->fate != IS_PLACED) spot->fate = FITS, spot->count = 0;
    }
    for (int64_t n = 0; n < walk->count; n++) {
        struct spot *spot = &landing->spots[walk->group[n]];
        if (spot->fate == IS_PLACED) continue;
        if (spot->count == 0) spot->first = walk->queue_offset[n];
        /* unsigned: what a record says its offset is may be anything */
        else if ((uint64_t)walk->queue_offset[n] != (uint64_t)spot->first + (uint64_t)spot->count) spot->fate = IS_ODD;
        spot->count++;
    }
}

static void find_queues(const struct landing *landing) {
    const struct walk *walk = landing->walk;
    for (int64_t number = 0; number < walk->groups_count; number++) {
        const struct group *group = &walk->groups[number];
        if (walk->groups_count - number > AHEAD)
            __builtin_prefetch(&landing->names->buckets[bucket_of(landing->names, group[AHEAD].hash)]);
        struct spot *spot = &landing->spots[number];
        if (spot->fate != FITS) continue;
        struct text topic = {walk->data + group->topic_at, (size_t)group->topic_length};
        const struct named *named = find(landing->names, topic, group->queue_id, group->hash);
        if (named == NULL || named->number < 0 || named->number >= landing->tails_count) {
            spot->fate = IS_UNKNOWN;
            continue;
        }
        spot->topic = named->topic;
        spot->number = named->number;
        fetch_tail(&landing->tails[named->number]);
    }
}

/* Which groups are put in place; what they need is fetched. */
static void decide(struct landing *landing) {
    for (struct spot *spot = landing->spots; spot < landing->spots + landing->walk->groups_count; spot++) {
        if (spot->fate == FITS) {
            struct tail *tail = &landing->tails[spot->number];
            if (tail->next_offset != spot->first)
                spot->fate = IS_ODD;
            else if (spot->count > (tail->room - tail->used) / UNIT_BYTES)
                spot->fate = HAS_NO_ROOM;
            else
                __builtin_prefetch(tail->units + tail->used, 1);
        }
        landing->left_count += spot->fate != FITS && spot->fate != IS_PLACED;
    }
}

static void place(struct landing *landing) {
    const struct walk *walk = landing->walk;
    for (int64_t n = 0; n < walk->count; n++) {
        const struct spot *spot = &landing->spots[walk->group[n]];
        if (spot->fate != FITS) continue;
        struct tail *tail = &landing->tails[spot->number];
        put_unit(tail->units + tail->used, walk->place[n], walk->size[n], walk->code[n]);
        tail->used += UNIT_BYTES;
        tail->next_offset++;
        tail->last_physical = walk->place[n];
    }
    for (struct spot *spot = landing->spots; spot < landing->spots + walk->groups_count; spot++) {
        if (spot->fate != FITS) continue;
        spot->fate = IS_PLACED;
        landing->messages += spot->count;
        struct tail *tail = &landing->tails[spot->number];
        if (!tail->is_dirty) landing->dirty[landing->dirty_count++] = spot->number;
        tail->is_dirty = 1;
    }
}

/* Public */

/* Have the queues from one on among the buckets, behind those that are there. */
EXPORT void native_name_queues(const struct names *names, int64_t first) {
    for (int64_t index = first; index < names->count; index++) {
        const struct named *named = &names->queues[index];
        int64_t bucket = bucket_of(names, queue_hash(topic_of(names, named), named->queue_id));
        while (names->buckets[bucket] != 0) bucket = (bucket + 1) & (names->buckets_count - 1);
        names->buckets[bucket] = (int32_t)(index + 1);
    }
}

/* Called again, it looks at those that were left. */
EXPORT void native_apply_walk(struct landing *landing) {
    landing->dirty_count = landing->messages = landing->left_count = 0;
    count_entries(landing);
    find_queues(landing);
    decide(landing);
    place(landing);
}
