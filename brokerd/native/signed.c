/* Signed sends: who sent each, to which topic, and what its signature covers. The twins are remoting/frame.py and
 * remoting/access/signature.py; brokerd/sending/native_signed.py calls this. proven.c checks the signatures.
 *
 *   native_signed  for each frame: read its header, put its fields in the order of their names, and write out what is asked for
 *
 * What was read stays, so that send.c need not read it again. It does so until there is no room for another call; then all of it is
 * gone, which the caller sees by `times_begun`.
 *
 * Bounds. Input: a header lies within its frame, and that within the buffer (find_frame). Output: what is to be written is measured
 * first, and a frame for whose texts there is no room ends the call.
 */
#include "headers.h"
#include "signed.h"

enum {
    LOOKED_AT = 16, /* senders before, among which one is looked for: connections have one, or a few in turn */
    MAX_USER_BYTES = 64,
    MAX_TOPIC_BYTES = 127,
    SENDER_HEAD_BYTES = 3, /* the request's code, and the length of the user's name */
};

/* What the sends of one call are written to. */
struct told {
    uint8_t *texts, *at;
    const uint8_t *end;
    struct signed_send *sends;
    struct sender *senders;
    int64_t count, sender_count;
    uint8_t covered[MAX_FIELDS]; /* of the last frame's fields: those that are signed, in the order of their names */
    size_t covered_count, user, signature;
};

static int order_of(struct text a, struct text b) {
    int order = memcmp(a.at, b.at, a.length < b.length ? a.length : b.length);
    return order != 0 ? order : (a.length > b.length) - (a.length < b.length);
}

/* The first bytes of a name, as a number that has their order. */
static uint64_t beginning_of(struct text name) {
    uint64_t number = 0;
    if (name.length >= 8) return get64(name.at);
    for (size_t i = 0; i < name.length; i++) number |= (uint64_t)name.at[i] << (56 - 8 * i);
    return number;
}

/* Put the fields in the order of their names; 0 when two have one name, of which the twin knows which counts. */
static int sort(const struct fields *fields, uint8_t order[MAX_FIELDS]) {
    uint64_t beginnings[MAX_FIELDS];
    for (size_t i = 0; i < fields->count; i++) {
        uint64_t beginning = beginning_of(fields->names[i]);
        size_t at = i;
        for (; at > 0 && beginning <= beginnings[at - 1]; at--) {
            if (beginning == beginnings[at - 1]) {
                int which = order_of(fields->names[i], fields->names[order[at - 1]]);
                if (which == 0) return 0;
                if (which > 0) break;
            }
            beginnings[at] = beginnings[at - 1];
            order[at] = order[at - 1];
        }
        beginnings[at] = beginning;
        order[at] = (uint8_t)i;
    }
    return 1;
}

/* Which sender it is whose text was just written at `at`, of so many bytes; the text stays if he is a new one. */
static int64_t sender_at(struct told *told, int64_t length) {
    int64_t at = told->at - told->texts, newest = told->sender_count - 1;
    for (int64_t i = newest; i >= 0 && i > newest - LOOKED_AT; i--) {
        const struct sender *sender = &told->senders[i];
        if (sender->end - sender->at == length && memcmp(told->texts + sender->at, told->at, (size_t)length) == 0) return i;
    }
    told->senders[told->sender_count] = (struct sender){at, at + length, told->count};
    told->at += length;
    return told->sender_count++;
}

/* Find out what is signed of fields with these names, by whom, and where the signature is; 0 for what is left. */
static int understand_names(const struct fields *fields, struct told *told) {
    uint8_t order[MAX_FIELDS];
    told->covered_count = 0;
    told->user = told->signature = MAX_FIELDS;
    if (!sort(fields, order)) return 0;
    for (size_t i = 0; i < fields->count; i++) {
        struct text name = fields->names[order[i]];
        if (IS(name, "_UNIQUE_KEY_QUERY")) return 0; /* whether it counts the twin knows */
        if (IS(name, "AccessKey")) told->user = order[i];
        if (IS(name, "Signature")) told->signature = order[i];
        else told->covered[told->covered_count++] = order[i];
    }
    return told->user < MAX_FIELDS && told->signature < MAX_FIELDS;
}

/* As put_text, and faster for what most values are. */
static inline uint8_t *put_value(uint8_t *at, struct text value) {
    const uint8_t *from = value.at;
    size_t length = value.length;
    if (length > 16) return put_text(at, from, length);
    if (length >= 8) {
        memcpy(at, from, 8);
        memcpy(at + length - 8, from + length - 8, 8);
    } else if (length >= 4) {
        memcpy(at, from, 4);
        memcpy(at + length - 4, from + length - 4, 4);
    } else {
        for (size_t i = 0; i < length; i++) at[i] = from[i];
    }
    return at + length;
}

/* Write out a frame's sender, signature and covered values; 0 for what is left or has no room. */
static int put_signed(const struct header *header, const struct fields *fields, struct told *told) {
    struct signed_send *send = &told->sends[told->count];
    size_t covered = 0;
    if (header->code != SEND_MESSAGE_V2 && header->code != SEND_BATCH_MESSAGE && header->code != SEND_MESSAGE) return 0;
    if (!fields->is_alike && (fields->is_cut || !understand_names(fields, told))) return 0;
    for (size_t i = 0; i < told->covered_count; i++) covered += fields->values[told->covered[i]].length;
    struct text user = fields->values[told->user], signature = fields->values[told->signature], topic = header->fields[TOPIC];
    if (user.length == 0 || user.length > MAX_USER_BYTES || signature.length != SIGNATURE_BYTES || topic.length == 0 ||
        topic.length > MAX_TOPIC_BYTES ||
        covered + SENDER_HEAD_BYTES + user.length + topic.length + SIGNATURE_BYTES > (size_t)(told->end - told->at))
        return 0;
    put16(told->at, (uint16_t)header->code);
    told->at[2] = (uint8_t)user.length;
    put_value(put_value(told->at + SENDER_HEAD_BYTES, user), topic);
    send->sender = sender_at(told, (int64_t)(SENDER_HEAD_BYTES + user.length + topic.length));
    send->signature_at = told->at - told->texts;
    told->at = put_text(told->at, signature.at, SIGNATURE_BYTES);
    send->covered_at = told->at - told->texts;
    for (size_t i = 0; i < told->covered_count; i++) told->at = put_value(told->at, fields->values[told->covered[i]]);
    send->covered_end = told->at - told->texts;
    return 1;
}

/* See that there is room for what is read of `most` frames: half of the scratch, and as many readings. */
static void make_room(struct signed_areas *areas, int64_t most) {
    if (areas->reading_count + most <= areas->readings_room && areas->scratch_used <= areas->scratch_room / 2) return;
    areas->reading_count = areas->scratch_used = 0;
    areas->times_begun++;
}

/* Take at most `most` sends from the beginning of the buffer; how many there were room for, and were like most. There is room for `most`
 * sends, senders and readings. */
EXPORT int64_t native_signed(struct signed_areas *areas, const uint8_t *buffer, int64_t length, int64_t most) {
    struct header header;
    struct fields fields;
    struct frame frame;
    struct told told = {.texts = areas->texts, .at = areas->texts, .end = areas->texts + areas->texts_room};
    int64_t position = 0, length_of;
    make_room(areas, most);
    struct reading *readings = areas->readings + areas->reading_count;
    uint8_t *scratch = areas->scratch + areas->scratch_used, *scratch_end = areas->scratch + areas->scratch_room;
    told.sends = areas->sends;
    told.senders = areas->senders;
    fields.part_count = 0;
    while (told.count < most &&
           (length_of = find_frame(buffer + position, length - position, areas->max_frame_bytes, &frame)) > 0) {
        struct signed_send *send = &told.sends[told.count];
        if (!read_header(frame.header, frame.encoding, &scratch, scratch_end, &header, &fields)) break;
        if (!put_signed(&header, &fields, &told)) break;
        readings[told.count++] = (struct reading){position, length_of, header, frame.body};
        position += length_of;
        send->body_at = frame.body.at - buffer;
        send->end = position;
    }
    areas->sender_count = told.sender_count;
    areas->reading_count += told.count;
    areas->scratch_used = scratch - areas->scratch;
    return told.count;
}
