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

/* The last frame whose header was read in full; others are mostly like it. */
struct model {
    uint8_t covered[MAX_FIELDS]; /* of its fields: those that are signed, in the order of their names */
    size_t covered_count, user, signature;
    int64_t sender, covered_at, covered_end; /* what was written of it */
    size_t places[MAX_FIELDS], lengths[MAX_FIELDS]; /* of the fields' values, in what is covered */
};

/* What the sends of one call are written to. */
struct told {
    uint8_t *texts, *at;
    const uint8_t *end;
    struct signed_send *sends;
    struct sender *senders;
    int64_t count, sender_count;
    struct model model;
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
static int understand_names(const struct fields *fields, struct model *model) {
    uint8_t order[MAX_FIELDS];
    size_t place = 0;
    model->covered_count = 0;
    model->user = model->signature = MAX_FIELDS;
    if (!sort(fields, order)) return 0;
    for (size_t i = 0; i < fields->count; i++) {
        size_t field = order[i];
        struct text name = fields->names[field];
        if (IS(name, "_UNIQUE_KEY_QUERY")) return 0; /* whether it counts the twin knows */
        if (IS(name, "AccessKey")) model->user = field;
        model->places[field] = place;
        model->lengths[field] = fields->values[field].length;
        if (IS(name, "Signature")) {
            model->signature = field;
        } else {
            model->covered[model->covered_count++] = (uint8_t)field;
            place += fields->values[field].length;
        }
    }
    return model->user < MAX_FIELDS && model->signature < MAX_FIELDS;
}

/* Whether there is room for so many bytes, the body's among them. */
static inline int has_room(const struct told *told, size_t bytes) {
    return bytes + SIGNATURE_BYTES + SHA1_BLOCK_BYTES <= (size_t)(told->end - told->at);
}

/* What is next of the texts is the send's signature, and behind it so many bytes of covered values. */
static void note_places(struct told *told, size_t covered, struct text body) {
    struct signed_send *send = &told->sends[told->count];
    size_t drawn = (size_t)drawn_bytes((int64_t)covered, (int64_t)body.length);
    send->signature_at = told->at - told->texts;
    send->covered_at = send->signature_at + SIGNATURE_BYTES;
    send->covered_end = send->covered_at + (int64_t)covered;
    told->at = put_text(told->at + SIGNATURE_BYTES + covered, body.at, drawn);
}

/* Write out the signature and covered values of a frame that has what the model has, but for values as long as the model's. 0, and
 * nothing is written that counts, for another one. */
static int put_alike(const struct fields *fields, struct text body, struct told *told) {
    const struct model *model = &told->model;
    struct text signature = fields->values[model->signature];
    size_t covered = (size_t)(model->covered_end - model->covered_at);
    if (signature.length != SIGNATURE_BYTES || !has_room(told, covered)) return 0;
    uint8_t *at = told->at + SIGNATURE_BYTES;
    memcpy(at, told->texts + model->covered_at, covered);
    for (uint64_t changed = fields->changed; changed != 0; changed &= changed - 1) {
        const struct part *part = &fields->parts[__builtin_ctzll(changed)];
        size_t field = part->field;
        if (field == MAX_FIELDS || field == model->signature) continue;
        struct text value = fields->values[field];
        if (field == model->user || part->named == TOPIC || value.length != model->lengths[field]) return 0;
        put_short(at + model->places[field], value.at, value.length);
    }
    put_text(told->at, signature.at, SIGNATURE_BYTES);
    told->sends[told->count].sender = model->sender;
    note_places(told, covered, body);
    return 1;
}

/* Write out a frame's sender, signature and covered values; 0 for what is left or has no room. */
static int put_signed(const struct header *header, const struct fields *fields, struct text body, struct told *told) {
    struct signed_send *send = &told->sends[told->count];
    struct model *model = &told->model;
    size_t covered = 0;
    if (fields->is_alike && put_alike(fields, body, told)) return 1;
    if (header->code != SEND_MESSAGE_V2 && header->code != SEND_BATCH_MESSAGE && header->code != SEND_MESSAGE) return 0;
    if (!fields->is_alike && (fields->is_cut || !understand_names(fields, model))) return 0;
    for (size_t i = 0; i < model->covered_count; i++) covered += fields->values[model->covered[i]].length;
    struct text user = fields->values[model->user], signature = fields->values[model->signature], topic = header->fields[TOPIC];
    if (user.length == 0 || user.length > MAX_USER_BYTES || signature.length != SIGNATURE_BYTES || topic.length == 0 ||
        topic.length > MAX_TOPIC_BYTES ||
        !has_room(told, covered + SENDER_HEAD_BYTES + user.length + topic.length))
        return 0;
    put16(told->at, (uint16_t)header->code);
    told->at[2] = (uint8_t)user.length;
    put_short(put_short(told->at + SENDER_HEAD_BYTES, user.at, user.length), topic.at, topic.length);
    send->sender = sender_at(told, (int64_t)(SENDER_HEAD_BYTES + user.length + topic.length));
    uint8_t *at = put_text(told->at, signature.at, SIGNATURE_BYTES);
    for (size_t i = 0; i < model->covered_count; i++) {
        struct text value = fields->values[model->covered[i]];
        at = put_short(at, value.at, value.length);
    }
    note_places(told, covered, body);
    if (fields->is_alike) return 1;
    model->sender = send->sender;
    model->covered_at = send->covered_at;
    model->covered_end = send->covered_end;
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
        if (!put_signed(&header, &fields, frame.body, &told)) break;
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
