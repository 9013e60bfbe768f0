/* Pulls of a connection that are like some before them, read and answered by the carrier's thread without the loop: the loop lends
 * the connection for some milliseconds, and does not read from it meanwhile. brokerd/native/stays.py says who stays.
 *
 * What the loop found out counts for so long: of each kind of request, which is one queue's, what the reader wants and may have, and
 * what he saw of the queue. A request is taken when it is like one of a kind byte by byte, but for its opaque and two offsets, and as
 * many units behind its offset are known as it takes to answer it. Who asks for several queues goes round them mostly: so that kind is
 * compared first which is behind the last one. Of any other, of one that comes too late, or when the connection is wanted back, or
 * whose answer is not of the usual form, not a byte is taken: the loop gets it as if it had come there.
 *
 * Bounds: no more is read than there is room for, and what was taken makes room. An answer's are those of pulls.c.
 */
#define _POSIX_C_SOURCE 200809L
#include "stays.h"

#include <errno.h>
#include <sys/socket.h>
#include <time.h>

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

void begin_stay(struct stay *stay, const struct slots *slots, const struct kind_put *kinds, int64_t count, int32_t descriptor,
                int64_t longest_ns) {
    stay->kind_count = (int32_t)count;
    stay->last = 0; /* the request before this was of the first kind */
    for (int64_t n = 0; n < count; n++) {
        stay->kinds[n].like = slots->slots[kinds[n].slot];
        stay->kinds[n].wanted = *kinds[n].wanted;
        stay->kinds[n].told = (struct told){.commit_offset = -1};
    }
    stay->descriptor = descriptor;
    stay->end = (struct end){0, 0, 0};
    stay->until_ns = now_ns() + longest_ns;
    atomic_store(&stay->is_wanted, 0);
    atomic_store(&stay->is_over, 0);
}

/* Of which kind a request is, and its numbers: NULL for another one. */
static struct kind *find_kind(struct stay *stay, struct text header, int64_t *numbers) {
    for (int32_t n = 1; n <= stay->kind_count; n++) {
        int32_t number = (stay->last + n) % stay->kind_count;
        numbers[COMMIT_OFFSET] = -1;
        if (!is_like(&stay->kinds[number].like, header, numbers)) continue;
        stay->last = number;
        return &stay->kinds[number];
    }
    return NULL;
}

/* Prepare the answer to a request, also that none of the messages is wanted: of which kind it is; NULL when it is for the loop, which
 * may know more of the queue. */
static struct kind *prepare(struct stay *stay, const struct frame *frame, int64_t *commit_offset) {
    int64_t numbers[ASKED_NUMBERS];
    struct kind *kind = frame->encoding == 0 ? find_kind(stay, frame->header, numbers) : NULL;
    if (kind == NULL || numbers[COMMIT_OFFSET] < -1) return NULL;
    struct wanted *wanted = &kind->wanted;
    *commit_offset = numbers[COMMIT_OFFSET];
    wanted->opaque = numbers[OPAQUE];
    wanted->queue_offset = numbers[QUEUE_OFFSET];
    if (wanted->queue_offset < wanted->min_offset) return NULL;
    int64_t length = prepare_pull(wanted, &stay->answer);
    if (length < 0 || wanted->is_short) return NULL;
    return length > 0 || prepare_none(wanted, &stay->answer) > 0 ? kind : NULL;
}

/* Answer a request: 0 when it is for the loop. */
static int answer(struct stay *stay, const struct frame *frame, uint8_t *made, int64_t room) {
    int64_t commit_offset, begin_ns = now_ns();
    if (atomic_load(&stay->is_wanted) || begin_ns > stay->until_ns) return 0;
    struct kind *kind = prepare(stay, frame, &commit_offset);
    if (kind == NULL) return 0;
    int64_t written = send_answer(&stay->answer, made, room, stay->descriptor);
    if (written < 0) return 0;
    struct told *told = &kind->told;
    told->answers++;
    told->misses += kind->wanted.message_count == 0;
    told->messages += kind->wanted.message_count;
    told->body_bytes += kind->wanted.body_bytes;
    told->next_offset = kind->wanted.next_offset;
    if (commit_offset >= 0) told->commit_offset = commit_offset;
    stay->end.length = stay->answer.length;
    stay->end.written = written;
    told->busy_ns += now_ns() - begin_ns;
    return 1;
}

/* Answer what came: 0 when the next of it is for the loop, which also has to send the rest of an answer. */
static int take(struct stay *stay, uint8_t *made, int64_t room) {
    struct end *end = &stay->end;
    int64_t at = 0;
    int goes_on = 1;
    while (goes_on) {
        struct frame frame;
        int64_t length = find_frame(stay->in + at, end->left - at, STAY_BYTES, &frame);
        if (length == 0) break;
        if (length < 0 || !answer(stay, &frame, made, room)) goes_on = 0;
        else {
            at += length;
            goes_on = end->written == end->length;
        }
    }
    end->left -= at;
    if (at) memmove(stay->in, stay->in + at, (size_t)end->left);
    return goes_on && end->left < STAY_BYTES;
}

int serve_stay(struct stay *stay, uint8_t *made, int64_t room) {
    struct end *end = &stay->end;
    ssize_t came = recv(stay->descriptor, stay->in + end->left, (size_t)(STAY_BYTES - end->left), MSG_DONTWAIT);
    if (came < 0 && (errno == EAGAIN || errno == EINTR)) return 1;
    if (came <= 0) return 0; /* it ended, or is broken: the loop finds that out */
    end->left += came;
    return take(stay, made, room);
}
