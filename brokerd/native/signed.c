/* Signed sends: who sent each, to which topic, and what its signature covers. The twins are remoting/frame.py and
 * remoting/access/signature.py; brokerd/sending/native_signed.py calls this, which knows who may do what and computes signatures.
 *
 *   native_signed  for each frame: read its header, put its fields in the order of their names, and write out what is asked for
 *
 * Bounds. Input: a header lies within its frame, and that within the buffer (find_frame). Output: what is to be written is measured
 * first, and a frame for whose texts there is no room ends the call.
 */
#include "headers.h"

enum {
    MAX_USER_BYTES = 64,
    MAX_TOPIC_BYTES = 127,
    SIGNATURE_BYTES = 28, /* 20 bytes in Base64 */
    SENDER_HEAD_BYTES = 3, /* the request's code, and the length of the user's name */
};

/* Shared with native_signed.py: places in the buffer, then in the texts, each of which goes as far as the next begins. */
struct signed_send {
    int64_t body_at, end;
    int64_t sender_at, signature_at, covered_at, covered_end;
};

static int order_of(struct text a, struct text b) {
    int order = memcmp(a.at, b.at, a.length < b.length ? a.length : b.length);
    return order != 0 ? order : (a.length > b.length) - (a.length < b.length);
}

/* Put the fields in the order of their names; 0 when two have one name, of which the twin knows which counts. */
static int sort(struct fields *fields) {
    for (size_t i = 1; i < fields->count; i++) {
        struct text name = fields->names[i], value = fields->values[i];
        size_t at = i;
        int order = 1;
        while (at > 0 && (order = order_of(name, fields->names[at - 1])) < 0) {
            fields->names[at] = fields->names[at - 1];
            fields->values[at] = fields->values[at - 1];
            at--;
        }
        if (at > 0 && order == 0) return 0;
        fields->names[at] = name;
        fields->values[at] = value;
    }
    return 1;
}

/* Write out a frame's sender, signature and covered values behind `at`; the end of them, NULL for what is left or has no room. */
static uint8_t *put_signed(const struct header *header, struct fields *fields, struct signed_send *send, uint8_t *texts, uint8_t *at,
                           const uint8_t *end) {
    struct text user = {0}, signature = {0}, topic = header->fields[TOPIC];
    size_t covered = 0;
    if (header->code != SEND_MESSAGE_V2 && header->code != SEND_BATCH_MESSAGE && header->code != SEND_MESSAGE) return NULL;
    if (!sort(fields)) return NULL;
    for (size_t i = 0; i < fields->count; i++) {
        if (IS(fields->names[i], "_UNIQUE_KEY_QUERY")) return NULL; /* whether it counts the twin knows */
        if (IS(fields->names[i], "AccessKey")) user = fields->values[i];
        if (IS(fields->names[i], "Signature")) signature = fields->values[i];
        else covered += fields->values[i].length;
    }
    if (user.length == 0 || user.length > MAX_USER_BYTES || signature.length != SIGNATURE_BYTES || topic.length == 0 ||
        topic.length > MAX_TOPIC_BYTES || covered + SENDER_HEAD_BYTES + user.length + topic.length + SIGNATURE_BYTES > (size_t)(end - at))
        return NULL;
    send->sender_at = at - texts;
    put16(at, (uint16_t)header->code);
    at[2] = (uint8_t)user.length;
    at = put_text(put_text(at + SENDER_HEAD_BYTES, user.at, user.length), topic.at, topic.length);
    send->signature_at = at - texts;
    at = put_text(at, signature.at, signature.length);
    send->covered_at = at - texts;
    for (size_t i = 0; i < fields->count; i++)
        if (fields->values[i].length > 0 && !IS(fields->names[i], "Signature")) at = put_text(at, fields->values[i].at, fields->values[i].length);
    send->covered_end = at - texts;
    return at;
}

/* Take at most `most` sends from the beginning of the buffer; how many there were room for, and were like most. Each of the scratch
 * and the texts has `room`. */
EXPORT int64_t native_signed(const uint8_t *buffer, int64_t length, int64_t most, int64_t max_frame_bytes, uint8_t *scratch, uint8_t *texts,
                             int64_t room, struct signed_send *sends) {
    struct header header;
    struct fields fields;
    struct frame frame;
    uint8_t *at = texts;
    int64_t position = 0, count = 0;
    while (count < most && find_frame(buffer + position, length - position, max_frame_bytes, &frame) > 0) {
        struct signed_send *send = &sends[count];
        if (!read_header(frame.header, frame.encoding, scratch, room, &header, &fields)) break;
        at = put_signed(&header, &fields, send, texts, at, texts + room);
        if (at == NULL) break;
        send->body_at = frame.body.at - buffer;
        send->end = position = send->body_at + (int64_t)frame.body.length;
        count++;
    }
    return count;
}
