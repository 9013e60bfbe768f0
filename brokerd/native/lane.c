/* Sends of connections that stay with the carrier's thread: it reads them, lays them out by send.c, writes them to the log and answers
 * them, while the loop lends it the end of the log and what its own calls of send.c use. brokerd/native/lane.py says who stays, and
 * brokerd/sending/lending.py when the lane is lent: then whoever appends is acknowledged at once, as nobody else has to have what he
 * appended, nor the disk.
 *
 * One has the lane. The loop lends it, and takes it back before it appends anything or looks at what was taken; while the thread
 * is at work it waits for that, which waits for no peer. All that is taken between is one run (brokerd/store/run.py) that goes
 * on from call to call. A message is answered when it is in the log's file, so it is there when this process dies; the loop
 * takes note later. Answers leave when the lane may be taken back already.
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
    lane->lent.error = write_all((int32_t)lane->lent.descriptor, areas->records, results->records_size, before.end_offset - lane->lent.file_begin);
    if (lane->lent.error) {
        lane->lent.tried_end = results->end_offset;
        *results = before;
        return 0;
    }
    note_taken(areas);
    if (results->frames == 0 && results->stop == STOP_ROOM) {
        if (before.units) lane->is_full = 1; /* others may have room when the loop has taken these */
        else results->stop = STOP_LEFT;
    }
    for (int n = 0, end = 0; n < count; n++) {
        struct sender *sender = senders[n];
        int is_at_end = n < results->sources, is_looked_at = n <= results->sources;
        const struct progress *progress = &areas->progress[n];
        lane->taken[n] = is_looked_at ? progress->position : 0;
        lane->sizes[n] = is_looked_at ? progress->answers_end - end : 0;
        end += (int)lane->sizes[n];
        sender->sent.frames += is_looked_at ? progress->frames : 0;
        if (is_at_end) sender->is_behind = progress->frames == MOST_SENT ? HAS_MORE : NOT_BEHIND;
        else if (is_looked_at && results->stop != STOP_ROOM) sender->is_behind = NOT_BEHIND;
        else sender->is_behind = is_looked_at && progress->frames ? HAS_MORE : PASSED_OVER;
        if (is_looked_at && !is_at_end && results->stop != STOP_ROOM) atomic_store(&sender->is_wanted, 1);
    }
    memcpy(lane->answers, areas->answers, (size_t)results->answers_size);
    lane->lent.frames += results->frames;
    lane->lent.passes++;
    return 1;
}

/* Send answers; what the socket does not take is the loop's, with the connection. */
static void answer(struct sender *sender, const uint8_t *at, int64_t length) {
    int64_t wrote = length ? write_some(sender->descriptor, at, length) : 0;
    if (wrote == length) return;
    sender->sent.rest = length - wrote;
    memcpy(sender->rest, at + wrote, (size_t)sender->sent.rest);
    atomic_store(&sender->is_wanted, 1);
}

enum served serve_senders(struct lane *lane, struct sender **senders, int count) {
    int32_t mine = LENT;
    int64_t begin_ns = now_ns();
    if (!atomic_compare_exchange_strong(&lane->whose, &mine, AT_WORK)) return NOT_SERVED;
    if (begin_ns > lane->until_ns || lane->is_full || lane->lent.error) {
        atomic_store(&lane->whose, LENT);
        return NOT_SERVED;
    }
    for (int n = 0; n < count; n++)
        if (!receive(senders[n])) atomic_store(&senders[n]->is_wanted, 1);
    int had_any = lane->lent.frames > 0, is_taken = take(lane, senders, count);
    int has_first = !had_any && lane->lent.frames > 0;
    lane->lent.busy_ns += now_ns() - begin_ns;
    atomic_store(&lane->whose, LENT);
    const uint8_t *at = lane->answers;
    for (int n = 0; n < count; n++) {
        struct sender *sender = senders[n];
        struct sent *sent = &sender->sent;
        if (!is_taken) {
            atomic_store(&sender->is_wanted, 1);
            continue;
        }
        answer(sender, at, lane->sizes[n]);
        at += lane->sizes[n];
        sent->left -= lane->taken[n];
        if (lane->taken[n]) memmove(sender->in, sender->in + lane->taken[n], (size_t)sent->left);
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
    lent->frames = lent->passes = lent->busy_ns = lent->tried_end = lent->error = 0;
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

/* How many frames each of those who stay had taken. */
EXPORT void native_senders_frames(const struct lane *lane, int64_t *frames) {
    for (int n = 0; n < SENDERS; n++) frames[n] = lane->senders[n].sent.frames;
}

/* Whether it is over; then, what was done in it, with the rest of the last answers, and what was read and is to be taken yet. */
EXPORT int32_t native_sender_look(const struct lane *lane, int64_t number, struct sent *sent, uint8_t *rest, uint8_t *left) {
    const struct sender *sender = &lane->senders[number];
    if (!atomic_load(&sender->is_over)) return 0;
    *sent = sender->sent;
    memcpy(rest, sender->rest, (size_t)sent->rest);
    memcpy(left, sender->in, (size_t)sent->left);
    return 1;
}

/* Return when it is over, soon. */
EXPORT void native_sender_finish(const struct lane *lane, int64_t number) {
    for (int tries = 0; !atomic_load(&lane->senders[number].is_over); tries++) rest(tries);
}
