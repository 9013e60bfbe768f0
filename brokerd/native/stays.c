/* Pulls of a connection that are like the one before them, read and answered by the carrier's thread without the loop: the loop lends
 * the connection for some milliseconds, and does not read from it meanwhile. brokerd/native/stays.py says who stays.
 *
 * What the loop found out counts for so long: what the reader wants and may have, and what he saw of the queue. A request is taken
 * when it is like that one byte by byte, but for its opaque and two offsets, and as many units behind its offset are known as it takes
 * to answer it. Of any other, of one that comes too late, or when the connection is wanted back, or whose answer is not of the usual
 * form, not a byte is taken: the loop gets it as if it had come there.
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

void begin_stay(struct stay *stay, const struct slot *like, const struct wanted *wanted, int32_t descriptor,
                int64_t longest_ns) {
    stay->like = *like;
    stay->wanted = *wanted;
    stay->descriptor = descriptor;
    stay->told = (struct told){.commit_offset = -1};
    stay->until_ns = now_ns() + longest_ns;
    atomic_store(&stay->is_wanted, 0);
    atomic_store(&stay->is_over, 0);
}

/* Prepare the answer to a request, also that none of the messages is wanted: 0 when it is for the loop, which may know more of the
 * queue. */
static int prepare(struct stay *stay, const struct frame *frame, int64_t *commit_offset) {
    struct wanted *wanted = &stay->wanted;
    int64_t numbers[ASKED_NUMBERS] = {[COMMIT_OFFSET] = -1};
    if (frame->encoding != 0 || !is_like(&stay->like, frame->header, numbers) || numbers[COMMIT_OFFSET] < -1) return 0;
    *commit_offset = numbers[COMMIT_OFFSET];
    wanted->opaque = numbers[OPAQUE];
    wanted->queue_offset = numbers[QUEUE_OFFSET];
    if (wanted->queue_offset < wanted->min_offset) return 0;
    int64_t length = prepare_pull(wanted, &stay->answer);
    if (length < 0 || wanted->is_short) return 0;
    return length > 0 || prepare_none(wanted, &stay->answer) > 0;
}

/* Answer a request: 0 when it is for the loop. */
static int answer(struct stay *stay, const struct frame *frame, uint8_t *made, int64_t room) {
    struct told *told = &stay->told;
    int64_t commit_offset, begin_ns = now_ns();
    if (atomic_load(&stay->is_wanted) || begin_ns > stay->until_ns || !prepare(stay, frame, &commit_offset)) return 0;
    int64_t written = send_answer(&stay->answer, made, room, stay->descriptor);
    if (written < 0) return 0;
    told->answers++;
    told->misses += stay->wanted.message_count == 0;
    told->messages += stay->wanted.message_count;
    told->body_bytes += stay->wanted.body_bytes;
    told->next_offset = stay->wanted.next_offset;
    if (commit_offset >= 0) told->commit_offset = commit_offset;
    told->length = stay->answer.length;
    told->written = written;
    told->busy_ns += now_ns() - begin_ns;
    return 1;
}

/* Answer what came: 0 when the next of it is for the loop, which also has to send the rest of an answer. */
static int take(struct stay *stay, uint8_t *made, int64_t room) {
    struct told *told = &stay->told;
    int64_t at = 0;
    int goes_on = 1;
    while (goes_on) {
        struct frame frame;
        int64_t length = find_frame(stay->in + at, told->left - at, STAY_BYTES, &frame);
        if (length == 0) break;
        if (length < 0 || !answer(stay, &frame, made, room)) goes_on = 0;
        else {
            at += length;
            goes_on = told->written == told->length;
        }
    }
    told->left -= at;
    if (at) memmove(stay->in, stay->in + at, (size_t)told->left);
    return goes_on && told->left < STAY_BYTES;
}

int serve_stay(struct stay *stay, uint8_t *made, int64_t room) {
    struct told *told = &stay->told;
    ssize_t came = recv(stay->descriptor, stay->in + told->left, (size_t)(STAY_BYTES - told->left), MSG_DONTWAIT);
    if (came < 0 && (errno == EAGAIN || errno == EINTR)) return 1;
    if (came <= 0) return 0; /* it ended, or is broken: the loop finds that out */
    told->left += came;
    return take(stay, made, room);
}
