/* Sends of connections that stay with the carrier's thread: it reads them, lays them out by send.c, writes them to the log and answers
 * them, while the loop lends it the end of the log and what its own calls of send.c use. brokerd/native/lane.py says who stays, and
 * brokerd/sending/lending.py when the lane is lent: then no other broker has to have what is appended, and the disk has to where the
 * loop lends syncs with it (syncs.c).
 *
 * One has the lane. The loop lends it, and takes it back before it appends anything or looks at what was taken; while the thread
 * is at work it waits for that, which waits for no peer. All that is taken between is one run (brokerd/store/run.py) that goes
 * on from call to call. A message is answered when it is in the log's file, so it is there when this process dies, and with syncs
 * when one that covers it has ended; the loop takes note later. Answers leave when the lane may be taken back already. Those that
 * wait for a sync go along with a connection that goes back to the loop: nobody waits for the disk here.
 *
 * What is not taken whole, is for another topic than its own, or needs what only the loop knows, is the loop's, with the
 * connection, which gets it as if it had come there. When the disk refuses a write nothing of it is answered, and everybody goes
 * back to the loop, which cleans up and tries for itself.
 *
 * Bounds: no more is read than there is room for; send.c has those of the rest.
 */
#define _POSIX_C_SOURCE 200809L
#include "lane.h"
#include "send.h"

#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

_Static_assert((int)PEER_BYTES == (int)HOST_V6_BYTES, "send.h has the same addresses");

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

void begin_sender(struct sender *sender, const uint8_t *peer, int64_t peer_length, int32_t descriptor, const uint8_t *begun, int64_t begun_length) {
    sender->descriptor = descriptor;
    sender->is_behind = NOT_BEHIND;
    sender->peer_length = peer_length;
    memcpy(sender->peer, peer, (size_t)peer_length);
    memcpy(sender->in, begun, (size_t)begun_length);
    sender->sent = (struct sent){.left = begun_length};
    sender->kept = sender->first = 0;
    atomic_fetch_add(&sender->times, 1);
    atomic_store(&sender->is_wanted, 0);
    atomic_store(&sender->is_over, 0);
}

/* Read what came: 0 when nothing more will, or the connection is broken, as the loop finds out. */
static int receive(struct sender *sender) {
    struct sent *sent = &sender->sent;
    if (sent->left == SENDER_BYTES) return 1;
    ssize_t came = recv(sender->descriptor, sender->in + sent->left, (size_t)(SENDER_BYTES - sent->left), MSG_DONTWAIT);
    if (came < 0) return errno == EAGAIN || errno == EINTR;
    sent->left += came;
    return came > 0;
}

/* Write all of it: 0, or why not. */
static int write_all(int32_t descriptor, const uint8_t *at, int64_t length, int64_t position) {
    while (length > 0) {
        ssize_t wrote = pwrite(descriptor, at, (size_t)length, position);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return errno;
        if (wrote == 0) return EIO;
        at += wrote;
        position += wrote;
        length -= wrote;
    }
    return 0;
}

/* The number of a time among those that are told apart: microseconds, of which the first bits count that STEP_BITS says, and one. */
static int time_of(int64_t ns) {
    int64_t us = ns / 1000;
    int octave = 0;
    for (; us >= 2 << STEP_BITS; us /= 2) octave++;
    int time = (octave << STEP_BITS) + (int)us;
    return time < TIMES ? time : TIMES - 1;
}

/* So many messages waited so long for the disk. */
static void note_waited(struct lane *lane, int64_t messages, int64_t ns) {
    atomic_fetch_add(&lane->waited[time_of(ns)], messages);
    atomic_fetch_add(&lane->timed, messages);
}

/* How much of what the senders' buffers have was taken, and what there is to answer: whether anything of that waits. */
static int note_shares(struct lane *lane, struct sender **senders, int count, const struct areas *areas) {
    const struct results *results = areas->results;
    int64_t answers_end = 0, opaques_end = 0, early = 0;
    int waits = 0;
    for (int n = 0; n < count; n++) {
        struct sender *sender = senders[n];
        int is_at_end = n < results->sources, is_looked_at = n <= results->sources;
        const struct progress *progress = &areas->progress[n];
        struct share *share = &lane->shares[n];
        *share = (struct share){0};
        if (is_looked_at) {
            int64_t early_before = early;
            *share = (struct share){progress->answers_end - answers_end, progress->opaques_end - opaques_end, progress->position, 0};
            answers_end = progress->answers_end;
            opaques_end = progress->opaques_end;
            while (early < results->early && areas->early[early] < opaques_end) early++;
            share->waits = lane->lent.syncs && early - early_before < share->count;
            waits |= share->waits;
            atomic_fetch_add(&sender->sent.frames, progress->frames);
        }
        if (is_at_end) sender->is_behind = progress->frames == MOST_SENT ? HAS_MORE : NOT_BEHIND;
        else if (is_looked_at && results->stop != STOP_ROOM) sender->is_behind = NOT_BEHIND;
        else sender->is_behind = is_looked_at && progress->frames ? HAS_MORE : PASSED_OVER;
        if (is_looked_at && !is_at_end && results->stop != STOP_ROOM) atomic_store(&sender->is_wanted, 1);
    }
    return waits;
}

/* Take what the senders' buffers have, and write it: whether it is in the log. What of them is taken, and how much there is to answer, is noted. */
static int take(struct lane *lane, struct sender **senders, int count) {
    struct areas *areas = (struct areas *)(uintptr_t)lane->lent.areas;
    struct results *results = areas->results;
    const struct results before = *results;
    areas->request->count = count;
    for (int n = 0; n < count; n++) {
        struct sender *sender = senders[n];
        struct source *source = &areas->sources[n];
        *source = (struct source){sender->sent.left, 0, MOST_SENT, NULL, 0, sender->peer_length, {0}};
        memcpy(source->peer, sender->peer, sizeof source->peer);
        areas->buffers[n] = sender->in;
    }
    send_more(areas);
    int error = write_all((int32_t)lane->lent.descriptor, areas->records, results->records_size, before.end_offset - lane->lent.file_begin);
    if (error) {
        atomic_store(&lane->lent.error, error);
        lane->lent.tried_end = results->end_offset;
        *results = before;
        return 0;
    }
    if (lane->lent.syncs && results->records_size) {
        lane->syncs = (struct syncs *)(uintptr_t)lane->lent.syncs;
        lane->last_end = results->end_offset;
        want_beside(lane->syncs, results->end_offset);
    }
    note_taken(areas);
    if (results->frames == 0 && results->stop == STOP_ROOM) {
        if (before.units) lane->is_full = 1; /* others may have room when the loop has taken these */
        else results->stop = STOP_LEFT;
    }
    int64_t messages = results->messages - before.messages;
    int waits = note_shares(lane, senders, count, areas);
    lane->untimed = waits ? messages : 0;
    if (lane->lent.syncs && messages && !waits) note_waited(lane, messages, 0); /* there is nobody to answer, or at once */
    memcpy(lane->answers, areas->answers, (size_t)results->answers_size);
    lane->is_much = results->frames >= MUCH_FRAMES || results->records_size >= MUCH_BYTES;
    atomic_fetch_add(&lane->lent.frames, results->frames);
    lane->lent.passes++;
    return 1;
}

/* Send so much; what the socket does not take is the loop's, with the connection. It is to leave before what is kept. */
static void answer(struct sender *sender, const uint8_t *at, int64_t length) {
    int64_t wrote = length && !sender->sent.rest ? write_some(sender->descriptor, at, length) : 0;
    if (wrote == length) return;
    uint8_t *kept = sender->kept_answers + sender->sent.rest;
    memmove(kept + length - wrote, kept, (size_t)(sender->kept - sender->sent.rest));
    memcpy(kept, at + wrote, (size_t)(length - wrote));
    sender->sent.rest += length - wrote;
    sender->kept += length - wrote;
    atomic_store(&sender->is_wanted, 1);
}

int pass_on(struct sender *sender, int64_t times, const uint8_t *at, int64_t length) {
    /* In this order: the loop, which may have another one stay here meanwhile, counts that before he is not over. */
    if (atomic_load(&sender->is_over) || atomic_load(&sender->times) != times) return 0;
    if (sender->kept + length > KEPT_BYTES - LANE_ANSWERS_BYTES) { /* a pass has as much */
        atomic_store(&sender->is_wanted, 1);
        return 0;
    }
    answer(sender, at, length);
    return 1;
}

/* Keep answers until the log is durable up to there. There is room for them. */
static void keep(struct lane *lane, struct sender *sender, const uint8_t *at, const struct share *share, int64_t end, int64_t since_ns) {
    if (!sender->sent.waiting) atomic_store(&sender->since_ns, since_ns); /* before it counts */
    sender->waiting[(sender->first + sender->sent.waiting++) % MOST_WAITING] = (struct waiting){end, share->size, share->count, since_ns, lane->untimed};
    lane->untimed = 0;
    memcpy(sender->kept_answers + sender->kept, at, (size_t)share->size);
    sender->kept += share->size;
}

int may_take_more(const struct sender *sender) {
    return sender->sent.waiting < MOST_WAITING && sender->kept <= KEPT_BYTES - LANE_ANSWERS_BYTES;
}

static int is_durable(const struct sender *sender, int64_t done) {
    return sender->sent.waiting && sender->waiting[sender->first].end <= done;
}

/* Send what waits for no more than that. */
static void answer_until(struct lane *lane, struct sender *sender, int64_t done) {
    struct sent *sent = &sender->sent;
    int64_t length = 0, at_ns = now_ns();
    for (; is_durable(sender, done); sent->waiting--) {
        const struct waiting *first = &sender->waiting[sender->first];
        length += first->length;
        if (first->messages) note_waited(lane, first->messages, at_ns - first->since_ns);
        sender->first = (sender->first + 1) % MOST_WAITING;
        atomic_store(&sender->since_ns, sender->waiting[sender->first].since_ns);
    }
    int64_t wrote = sent->rest ? 0 : write_some(sender->descriptor, sender->kept_answers, length);
    sent->rest += length - wrote;
    sender->kept -= wrote;
    if (wrote) memmove(sender->kept_answers, sender->kept_answers + wrote, (size_t)sender->kept);
    if (sent->rest) atomic_store(&sender->is_wanted, 1);
}

void answer_durable(struct lane *lane, struct sender **senders, int count) {
    int64_t done = -1;
    for (int n = 0; n < count; n++) {
        if (!senders[n]->sent.waiting) continue;
        if (done < 0) done = durable_beside(lane->syncs);
        if (is_durable(senders[n], done)) answer_until(lane, senders[n], done);
    }
}

int may_be_left(struct lane *lane) { return !lane->is_much && lane->last_end <= begun_beside(lane->syncs); }

int waits_for_sync(struct lane *lane, struct sender **senders, int count) {
    int64_t done = -1;
    for (int n = 0; n < count; n++) {
        if (!senders[n]->sent.waiting) continue;
        if (done < 0) done = listen_beside(lane->syncs);
        if (is_durable(senders[n], done)) return 0;
    }
    return done >= 0;
}

enum served serve_senders(struct lane *lane, struct sender **senders, int count) {
    int32_t mine = LENT;
    int64_t begin_ns = now_ns();
    if (!atomic_compare_exchange_strong(&lane->whose, &mine, AT_WORK)) return NOT_SERVED;
    if (begin_ns > lane->until_ns || lane->is_full || atomic_load(&lane->lent.error)) {
        atomic_store(&lane->whose, LENT);
        return NOT_SERVED;
    }
    for (int n = 0; n < count; n++)
        if (!receive(senders[n])) atomic_store(&senders[n]->is_wanted, 1);
    int had_any = atomic_load(&lane->lent.frames) > 0, is_taken = take(lane, senders, count);
    int has_first = !had_any && atomic_load(&lane->lent.frames) > 0;
    const struct areas *areas = (const struct areas *)(uintptr_t)lane->lent.areas;
    int64_t end_offset = areas->results->end_offset, taken_ns = now_ns();
    lane->lent.busy_ns += taken_ns - begin_ns;
    atomic_store(&lane->whose, LENT);
    const uint8_t *at = lane->answers;
    for (int n = 0; n < count; n++) {
        struct sender *sender = senders[n];
        struct sent *sent = &sender->sent;
        const struct share *share = &lane->shares[n];
        if (!is_taken) {
            atomic_store(&sender->is_wanted, 1);
            continue;
        }
        if (share->waits) keep(lane, sender, at, share, end_offset, taken_ns);
        else answer(sender, at, share->size);
        at += share->size;
        sent->left -= share->taken;
        if (share->taken) memmove(sender->in, sender->in + share->taken, (size_t)sent->left);
        if (sent->left == SENDER_BYTES) atomic_store(&sender->is_wanted, 1); /* a frame that is too long for this */
    }
    return has_first || !is_taken ? FIRST_SERVED : SERVED;
}

/* ---- For the loop, which has the lane where nothing else is said */

/* Let the thread go on, which may have to wait for the disk. */
static void rest(int tries) {
    const struct timespec while_it_works = {0, 20000};
    if (tries < 100) sched_yield();
    else nanosleep(&while_it_works, NULL);
}

/* How much memory a lane needs. */
EXPORT int64_t native_lane_bytes(void) { return sizeof(struct lane); }

/* Lend it, with what the caller put into `lent`; the run of `areas` has begun, and nothing of it is laid out. Whether the thread waited for
 * it, and is to be woken. */
EXPORT int32_t native_lane_lend(struct lane *lane) {
    struct lent *lent = &lane->lent;
    struct areas *areas = (struct areas *)(uintptr_t)lent->areas;
    *areas->results = (struct results){.end_offset = areas->request->end_offset};
    lent->passes = lent->busy_ns = lent->tried_end = 0;
    atomic_store(&lent->frames, 0);
    atomic_store(&lent->error, 0);
    lane->until_ns = now_ns() + lent->for_ns;
    lane->is_full = 0;
    atomic_store(&lane->whose, LENT);
    atomic_fetch_add(&lane->times, 1);
    return atomic_exchange(&lane->is_missed, 0);
}

/* Take it back. It was lent. */
EXPORT void native_lane_take_back(struct lane *lane) {
    int32_t mine = LENT;
    for (int tries = 0; !atomic_compare_exchange_strong(&lane->whose, &mine, LOOPS); tries++) {
        mine = LENT;
        rest(tries);
    }
}

/* How many messages waited for the disk since this was asked last, time by time: how many different times there were, TIMES at most. */
EXPORT int64_t native_lane_waited(struct lane *lane, struct timed *timed) {
    int64_t count = 0;
    for (int64_t time = 0; time < TIMES; time++)
        if (atomic_load(&lane->waited[time])) timed[count++] = (struct timed){time, atomic_exchange(&lane->waited[time], 0)};
    return count;
}

/* How many frames each of those who stay had taken. */
EXPORT void native_senders_frames(const struct lane *lane, int64_t *frames) {
    for (int n = 0; n < SENDERS; n++) frames[n] = atomic_load(&lane->senders[n].sent.frames);
}

/* How many passes wait of each of those who stay, and since when the first of them does: that counts when any does. */
EXPORT void native_senders_waiting(const struct lane *lane, int64_t *waiting) {
    for (int n = 0; n < SENDERS; n++) {
        *waiting++ = atomic_load(&lane->senders[n].sent.waiting);
        *waiting++ = atomic_load(&lane->senders[n].since_ns);
    }
}

/* Whether it is over; then, what was done in it, with the rest of its answers, what waits, whose answers are behind that, and what was
 * read and is to be taken yet. */
EXPORT int32_t native_sender_look(const struct lane *lane, int64_t number, struct sent *sent, struct waiting *waiting, uint8_t *kept,
                                  uint8_t *left) {
    const struct sender *sender = &lane->senders[number];
    if (!atomic_load(&sender->is_over)) return 0;
    *sent = sender->sent;
    for (int n = 0; n < sent->waiting; n++) waiting[n] = sender->waiting[(sender->first + n) % MOST_WAITING];
    memcpy(kept, sender->kept_answers, (size_t)sender->kept);
    memcpy(left, sender->in, (size_t)sent->left);
    return 1;
}

/* Return when it is over, soon. */
EXPORT void native_sender_finish(const struct lane *lane, int64_t number) {
    for (int tries = 0; !atomic_load(&lane->senders[number].is_over); tries++) rest(tries);
}
