/* Answers to pulls, from a consume queue's units and the file of the log that has their records. The twin is in
 * brokerd/processors/pulling/laid_out.py; the requests are in asked.c.
 *
 * What one reader asks for again and again is kept by the caller: then only an offset and an opaque are new, and what he sees of the
 * queue is the same for many requests.
 *
 * An answer is made in two steps. The first chooses its messages and writes its head, which takes the loop a microsecond; the second
 * copies the records and checks them where they were copied to, and may be another thread's (carrier.c). Until then the file has to
 * stay mapped, and as long as it is; or where it is read from its descriptor (log_files.c), that has to stay open.
 *
 * Bounds: units are read between the begin and the end that the caller names. Head and records of an answer are added up in 64 bits
 * and compared with the room before anything is written.
 */
#include "pulls.h"
#include "text.h"
#include "record.h"

#define BLANK_SIZE 0x7FFFFFFF /* of a unit without a message */

enum { FOUND = 0, RETRY_IMMEDIATELY = 20 }; /* codes of answers */

/* Whether a code is among the tags, which are in order. */
static int is_tag(const int64_t *tags, int64_t count, int64_t code) {
    if (count == 1) return *tags == code;
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (tags[middle] < code) low = middle + 1;
        else high = middle;
    }
    return low < count && tags[low] == code;
}

/* Choose which of the units go into the answer, up to the first whose record is in a later file than another one's that goes there: 0
 * when there is none at the offset, the first is in a later file, or one of them can be no record's. */
static int choose(struct wanted *wanted, struct answer *answer) {
    int64_t count = 0, looked_at = 0, total = 0, offset = wanted->queue_offset;
    if (offset < wanted->units_begin || offset > wanted->units_end) return 0;
    int64_t most = wanted->units_end - offset, file_end = wanted->file.begin + wanted->file.length;
    int is_whole = most >= wanted->most_units; /* whatever is behind what is known */
    if (is_whole) most = wanted->most_units;
    for (const uint8_t *unit = wanted->units + UNIT_BYTES * (offset - wanted->units_begin); looked_at < most; unit += UNIT_BYTES) {
        int64_t size = (int32_t)get32(unit + 8);
        int is_wanted = wanted->tag_count < 0 || is_tag(wanted->tags, wanted->tag_count, (int64_t)get64(unit + 12));
        if (is_wanted && size != BLANK_SIZE) {
            if (size < RECORD_LEAST_BYTES) return 0;
            int is_later = (int64_t)get64(unit) >= file_end;
            if (is_later) wanted->later = (int64_t)get64(unit);
            if (is_later && count == 0) return 0;
            if (is_later || (count > 0 && total + size > wanted->max_bytes)) {
                is_whole = 1;
                break;
            }
            total += size;
            memcpy(answer->units + UNIT_BYTES * count++, unit, UNIT_BYTES);
        }
        looked_at++;
        if (count == wanted->max_count) break;
    }
    wanted->is_short = !is_whole && count < wanted->max_count;
    answer->count = wanted->message_count = count;
    wanted->body_bytes = total;
    wanted->next_offset = offset + looked_at;
    return 1;
}

/* Write the frame's prefix and header, at most HEAD_ROOM bytes; where they end. */
static uint8_t *put_head(const struct wanted *wanted, int64_t code, int64_t next_broker, uint8_t *begin) {
    uint8_t *at = put_decimal(PUT(begin + 8, "{\"code\":"), code);
    at = put_decimal(PUT(at, ",\"extFields\":{\"suggestWhichBrokerId\":\""), next_broker);
    at = put_decimal(PUT(at, "\",\"nextBeginOffset\":\""), wanted->next_offset);
    at = put_decimal(PUT(at, "\",\"minOffset\":\""), wanted->min_offset);
    at = put_decimal(PUT(at, "\",\"maxOffset\":\""), wanted->max_offset);
    at = put_decimal(PUT(at, "\",\"topicSysFlag\":\"0\",\"groupSysFlag\":\""), wanted->group_sys_flag);
    at = put_decimal(PUT(at, "\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":"), wanted->opaque);
    at = PUT(put_decimal(PUT(at, ",\"version\":"), wanted->version), ",\"remark\":\"");
    at = code == FOUND ? PUT(at, "FOUND\"}") : PUT(at, "NO_MATCHED_MESSAGE\"}");
    put32(begin, (uint32_t)(at - begin - 4 + wanted->body_bytes));
    put32(begin + 4, (uint32_t)(at - begin - 8));
    return at;
}

int64_t prepare_pull(struct wanted *wanted, struct answer *answer) {
    wanted->is_short = 0, wanted->later = -1;
    if (wanted->max_count < 1 || wanted->max_count > MOST_MESSAGES || !choose(wanted, answer)) return -1;
    if (wanted->is_short && wanted->units_end < wanted->max_offset) return -1;
    if (answer->count == 0) return 0;
    if (wanted->body_bytes > wanted->room - HEAD_ROOM) return -1;
    const uint8_t *last = answer->units + UNIT_BYTES * (answer->count - 1);
    int64_t last_at = (int64_t)get64(last) - wanted->file.begin;
    if (last_at < 0 || last_at > wanted->file.length - (int32_t)get32(last + 8)) return -1; /* not in the file */
    int is_far = (int64_t)(get64(last) + get32(last + 8)) < wanted->far_below;
    answer->file = wanted->file;
    answer->head_length = put_head(wanted, FOUND, is_far ? wanted->next_broker_when_far : wanted->next_broker, answer->head) - answer->head;
    answer->length = answer->head_length + wanted->body_bytes; /* in the room: a head is no longer than HEAD_ROOM */
    return answer->length;
}

int64_t prepare_none(const struct wanted *wanted, struct answer *answer) {
    answer->count = 0;
    answer->head_length = put_head(wanted, RETRY_IMMEDIATELY, wanted->next_broker_when_none, answer->head) - answer->head;
    return answer->length = answer->head_length;
}

/* Likewise. */
EXPORT int64_t native_pull_none(const struct wanted *wanted, struct answer *answer) { return prepare_none(wanted, answer); }

/* The same, of what is seen. */
EXPORT int64_t native_pull_prepared_seen(struct wanted *wanted, struct answer *answer) { return prepare_pull(wanted, answer); }

/* The same of units that are there. */
EXPORT int64_t native_pull_prepared(struct wanted *wanted, const uint8_t *units, struct answer *answer) {
    wanted->units = units;
    return prepare_pull(wanted, answer);
}

int64_t native_pull_made(const struct answer *answer, uint8_t *out, int64_t room) {
    if (answer->length > room) return 0;
    uint8_t *at = put_text(out, answer->head, (size_t)answer->head_length);
    if (answer->count == 0) return answer->length;
    return copy_records(&answer->file, answer->units, answer->count, at, out + answer->length - at) ? answer->length : 0;
}
