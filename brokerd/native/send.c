/* Sends: frames as clients wrote them in; records, queue units and answers out. The twin is brokerd/sending/kernel.py, for batches
 * batch_kernel.py and stored_form.py; brokerd/sending/native_kernel.py calls this, and gives to the twin whatever this leaves.
 *
 *   native_send       of what each peer sent, for each frame: read its header, or take what native_signed read of it; find the queue,
 *                     look at the properties, write record, unit and answer
 *   native_take_numbers   what calls of that took for queues is what comes next in them
 *
 * Most messages are stored as they came. Others wait for a moment or at a delay level, or begin a transaction: these go to a topic of
 * the broker's, with properties that name their own. Whoever left out the last separator of the properties, or a message's name, gets
 * them.
 *
 * A frame is laid out whole or not at all: `results` has what counts, `now` what the present frame adds to it; when a frame is
 * left, what it has written is written over by the next. Nothing here says why one is left: the twin finds out by itself.
 *
 * Bounds. Input: everything read of a frame lies between its begin and its end, which lies within the buffer; a reader or a text
 * never reaches behind that. Output: each area comes with its room; what is to be written is measured first, and a frame that has
 * no room ends the call. Lengths that a peer sent are 32 bits and sums of them 64, so none overflows.
 */
#include "properties.h"
#include "send.h"

enum {
    PREFIX_BYTES = 8,
    MAX_BODY_BYTES = 4 * 1024 * 1024,
    MAX_PROPERTIES_BYTES = 32767,
    MAX_BATCH_COUNT = 32767,
    ITEM_HEAD_BYTES = 20,
    MOST_UNLIKE = 4, /* so many headers more that were not like the one before than were: no other is compared with it */
    ANSWER_BYTES = 400, /* more than an answer has beside its message ids and its key */
    ID_BYTES = 2 * HOST_V6_BYTES + 17, /* of a message in an answer: host and position in digits, and a comma */
    NAMED_BYTES = NAME_BYTES + 10, /* as a property */
    MAX_HALF_PROPERTIES_BYTES = MAX_PROPERTIES_BYTES - 256,
    FLAG_RESPONSE = 1,
    FLAG_ONEWAY = 2,
    SYS_COMPRESSED = 1,
    SYS_KNOWN = 0x701, /* compressed, and how */
    SYS_TRANSACTION = 0xC,
    MAX_IMMUNITY_DIGITS = 9,
    NO_IMMUNITY = -1,
};
#define STAMP "MSG_REGION\1DefaultRegion\2TRACE_ON\1true\2"
#define STAMP_BYTES (sizeof STAMP - 1)
#define NAME_PROPERTY "UNIQ_KEY\1"
#define TRANSACTION_ID "__transactionId__\1"
#define CLUSTER "CLUSTER\1"
#define UPPER_DIGITS "0123456789ABCDEF"

/* Private */

struct reader {
    const uint8_t *at, *end;
};

struct send {
    struct header header;
    struct text body;
    const struct target *target;
    int32_t target_index;
    int64_t queue_id, sys_flag, born_timestamp, flag, reconsume_times;
    int is_batch, is_turn; /* is_turn: the broker chooses the queue */
    uint32_t flags; /* of its records */
};

/* The queues that a frame may write to: its own, and one of each of the broker's topics */
enum where { OWN, TIMER, HALF, DELAYED, PLACES };

struct place { /* a queue, and the number of the next message in it */
    struct text topic;
    int32_t target, queue_id;
    int64_t slot, next, first; /* first: what comes next before the frame */
};

struct call {
    const struct areas *areas;
    const struct request *request;
    const struct source *source; /* the present one, */
    const struct reading *reading; /* and what was read of it, from where the call is on */
    int64_t readings_left;
    struct fields fields; /* of the header before */
    int unlike;           /* how many headers more were not like the one before than were, from none on */
    struct results *results;
    struct results now; /* with what the present frame has written */
    size_t head_bytes;  /* of a record, up to the body */
    int64_t half_bytes; /* of the records of halves */
};

static const struct text brokers_topics[PLACES] = {
    [TIMER] = {(const uint8_t *)"rmq_sys_wheel_timer", 19},
    [HALF] = {(const uint8_t *)"RMQ_SYS_TRANS_HALF_TOPIC", 24},
    [DELAYED] = {(const uint8_t *)"SCHEDULE_TOPIC_XXXX", 19},
};

/* ---- Frames */

/* The topic of that name, NULL when it takes no ordinary sends. */
static const struct target *find_target(const struct areas *areas, struct text name) {
    int64_t low = 0, high = areas->target_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const struct target *target = &areas->targets[middle];
        int order = name.length < target->name_length   ? -1
                    : name.length > target->name_length ? 1
                                                        : memcmp(name.at, target->name, name.length);
        if (order == 0) return target;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

/* Read the numbers of a send and find its topic; 0 for what is not ordinary. */
static int understand(const struct areas *areas, struct send *send) {
    const struct text *fields = send->header.fields;
    int64_t code = send->header.code;
    send->reconsume_times = 0;
    if (code != SEND_MESSAGE_V2 && code != SEND_BATCH_MESSAGE && code != SEND_MESSAGE) return 0;
    if (send->header.frame_flag & FLAG_RESPONSE) return 0;
    send->target = find_target(areas, fields[TOPIC]);
    if (send->target == NULL) return 0;
    send->target_index = (int32_t)(send->target - areas->targets);
    if (!integer_of(fields[QUEUE_ID], &send->queue_id) || !integer_of(fields[SYS_FLAG], &send->sys_flag) ||
        !integer_of(fields[BORN_TIMESTAMP], &send->born_timestamp) || !integer_of(fields[FLAG], &send->flag))
        return 0;
    if (fields[RECONSUME_TIMES].length > 0 && !integer_of(fields[RECONSUME_TIMES], &send->reconsume_times)) return 0;
    send->is_turn = send->queue_id < 0;
    if (send->is_turn) send->queue_id = (areas->turns[send->target_index].next + 1) % send->target->queues;
    return send->queue_id < send->target->queues && !(send->sys_flag & ~(int64_t)(SYS_KNOWN | SYS_TRANSACTION)) &&
           send->body.length > 0 && send->body.length <= MAX_BODY_BYTES && send->reconsume_times >= 0 &&
           send->reconsume_times < 0x8000 && send->flag >= INT32_MIN && send->flag <= INT32_MAX &&
           send->born_timestamp >= 0 && send->born_timestamp < (int64_t)1 << 62;
}

/* Read the frame at the position, or take what was read of it: its length with the prefix; 0 when it has not come whole, -1 when it is
 * left. */
static int64_t read_frame(struct call *call, const uint8_t *buffer, int64_t position, struct send *send) {
    const struct areas *areas = call->areas;
    struct frame frame;
    for (; call->readings_left > 0 && call->reading->at < position; call->reading++) call->readings_left--;
    if (call->readings_left > 0 && call->reading->at == position && call->reading->size <= areas->max_frame_bytes) {
        send->header = call->reading->header;
        send->body = call->reading->body;
        call->fields.part_count = 0;
        return understand(areas, send) ? call->reading->size : -1;
    }
    int64_t length = find_frame(buffer + position, call->source->length - position, areas->max_frame_bytes, &frame);
    uint8_t *scratch = areas->scratch;
    int is_noted = call->unlike < MOST_UNLIKE && position + length < call->source->length; /* what follows may be like it */
    if (length <= 0) return length;
    send->body = frame.body;
    if (!read_header(frame.header, frame.encoding, &scratch, scratch + areas->scratch_room, &send->header,
                     is_noted ? &call->fields : NULL))
        return -1;
    if (is_noted) call->unlike += !call->fields.is_alike ? 1 : call->unlike > 0 ? -1 : 0;
    return understand(areas, send) ? length : -1;
}

/* ---- Records and units */

struct message { /* of a send, or of a batch */
    struct text body, properties, key;
    int64_t flag, code;
    enum where where;
    int is_plain;          /* its properties are stored as they came */
    int is_named, is_request; /* what others are completed with: a name, the cluster */
    size_t own_length;        /* of what they are completed behind: with the last separator, each name once */
    int is_early;                      /* is not to be acknowledged before it is answered */
    struct wait wait;
    int64_t level;        /* of one that waits for it */
    int64_t immunity_ms;  /* of one that begins a transaction: how long its producer is left alone, or NO_IMMUNITY */
    size_t moment_length; /* of what is added to the properties of one that is not for its own topic */
    size_t length;        /* of the properties in the record */
    uint8_t moment[MOMENT_PROPERTIES_BYTES], name[NAME_BYTES];
};

/* Name a message whose client did not. */
static void name_message(const struct call *call, struct message *message) {
    uint8_t number[8], *at = put_text(message->name, call->areas->names_begin, NAME_BEGIN_BYTES);
    put64(number, (uint64_t)(call->request->next_name + call->now.names));
    put_hex(at, number, sizeof number, UPPER_DIGITS);
    message->key = (struct text){message->name, NAME_BYTES};
    message->is_named = 1;
}

/* The level that a message waits for; 0 when the twin must look at it. */
static int64_t level_of(const struct areas *areas, struct text text) {
    int64_t level;
    if (!integer_of(text, &level) || text.at[0] == '0' || level < 1 || level > areas->delay_count) return 0;
    return level;
}

/* How long the properties are before what is added for a wait or a transaction. */
static size_t completed_length(const struct call *call, const struct message *message) {
    size_t cluster = message->is_request ? sizeof CLUSTER + (size_t)call->areas->cluster_length : 0;
    return message->own_length + (message->is_named ? NAMED_BYTES : 0) + cluster + STAMP_BYTES;
}

/* How long a producer wants to be left alone that says so in at most MAX_IMMUNITY_DIGITS. */
static int64_t immunity_of(struct text text) {
    int64_t seconds;
    return integer_of(text, &seconds) && text.at[0] != '-' ? seconds * 1000 : NO_IMMUNITY;
}

/* Find out where a message goes that may not be for its own topic; what it waits with goes to its area, which has room for the
 * longest. */
static enum stop find_where(const struct call *call, const struct send *send, const struct look *look, struct message *message) {
    struct terms *terms = call->areas->terms;
    struct text topic = {send->target->name, send->target->name_length};
    uint8_t *at = message->moment;
    if (look->is_timed) {
        if (look->level.length || look->transaction.length || send->sys_flag & SYS_TRANSACTION) return STOP_LEFT;
        terms->are_needed = 1;
        if (terms->state != TERMS_KNOWN) return terms->state == TERMS_UNASKED ? STOP_TERMS : STOP_LEFT;
        enum asked asked = wait_for(terms, look->asks, &message->wait);
        if (asked != IS_AHEAD) return asked == HAS_COME ? STOP_END : STOP_LEFT;
        message->where = TIMER;
        message->code = code_of(&message->wait);
        at = put_moment(at, &message->wait, topic, send->queue_id);
    } else if (look->transaction.length || send->sys_flag & SYS_TRANSACTION) {
        if (look->level.length || !IS(look->transaction, "true") || !look->group.length) return STOP_LEFT;
        if (look->immunity.length > MAX_IMMUNITY_DIGITS) return STOP_LEFT;
        message->where = HALF;
        message->immunity_ms = immunity_of(look->immunity);
        at = put_decimal(PUT(put_text(PUT(at, "REAL_TOPIC\1"), topic.at, topic.length), "\2REAL_QID\1"), send->queue_id);
        at = PUT(at, "\2");
    } else {
        message->level = level_of(call->areas, look->level);
        if (!message->level) return STOP_LEFT;
        message->where = DELAYED;
        message->code = call->request->now_ms + call->areas->delays_ms[message->level - 1];
        at = put_decimal(PUT(put_text(PUT(at, "REAL_TOPIC\1"), topic.at, topic.length), "\2REAL_QID\1"), send->queue_id);
        at = PUT(at, "\2");
    }
    message->moment_length = (size_t)(at - message->moment);
    return STOP_END;
}

/* Find out where the message with those properties goes. */
static enum stop understand_properties(const struct call *call, const struct send *send, struct text properties,
                                       struct message *message) {
    struct look look;
    if (!look_at(properties, &look)) return STOP_LEFT;
    message->properties = properties;
    message->key = look.key;
    message->where = OWN;
    message->code = look.tags_code;
    message->is_plain = look.is_plain;
    message->own_length = look.length;
    message->is_named = 0;
    message->is_request = look.is_request && call->areas->cluster_length > 0;
    message->is_early = look.is_early;
    message->moment_length = 0;
    if (look.key.length == 0) name_message(call, message);
    if (!look.is_timed && !look.level.length && !look.transaction.length && !(send->sys_flag & SYS_TRANSACTION)) return STOP_END;
    struct properties read; /* of one whose send alone says that it begins a transaction */
    if (look.is_plain && (!read_again(properties, &read) || read.length != properties.length)) return STOP_LEFT;
    return find_where(call, send, &look, message);
}

static size_t properties_length(const struct call *call, const struct message *message) {
    size_t transaction = message->where == HALF ? sizeof TRANSACTION_ID + message->key.length : 0;
    return completed_length(call, message) + transaction + message->moment_length + (call->request->seals ? TAIL_BYTES : 0);
}

/* Write the properties up to the checksum, and behind the body their length and the topic before them. */
static uint8_t *put_behind_body(const struct call *call, const struct message *message, const struct place *place, uint8_t *at) {
    *at++ = (uint8_t)place->topic.length;
    at = put_text(at, place->topic.at, place->topic.length);
    put16(at, (uint16_t)message->length);
    at += 2;
    struct properties read;
    if (message->own_length < message->properties.length && read_again(message->properties, &read)) {
        at = put_again(&read, at);
    } else {
        if (message->properties.length > 0) at = put_text(at, message->properties.at, message->properties.length);
        if (message->own_length > message->properties.length) *at++ = 2; /* the last separator */
    }
    if (message->is_named) at = PUT(put_text(PUT(at, NAME_PROPERTY), message->name, NAME_BYTES), "\2");
    if (message->is_request) at = PUT(put_text(PUT(at, CLUSTER), call->areas->cluster, (size_t)call->areas->cluster_length), "\2");
    at = put_text(at, STAMP, STAMP_BYTES);
    if (message->where == HALF) at = PUT(put_text(PUT(at, TRANSACTION_ID), message->key.at, message->key.length), "\2");
    return put_text(at, message->moment, message->moment_length);
}

static uint8_t *put_host(uint8_t *at, const uint8_t *host, int64_t length) {
    memcpy(at, host, HOST_BYTES);
    if (length > HOST_BYTES) memcpy(at + HOST_BYTES, host + HOST_BYTES, HOST_V6_BYTES - HOST_BYTES);
    return at + length;
}

/* The flags of the records: those of their send that count, and what their hosts are. */
static uint32_t flags_of(const struct call *call, const struct send *send) {
    int64_t flags = send->sys_flag & ~(int64_t)SYS_TRANSACTION;
    if (send->is_batch) flags &= ~(int64_t)SYS_COMPRESSED;
    if (call->source->peer_length > HOST_BYTES) flags |= RECORD_BORN_HOST_V6;
    if (call->areas->store_host_length > HOST_BYTES) flags |= RECORD_STORE_HOST_V6;
    return (uint32_t)flags;
}

/* Write a record of that size to `at`, which has room for it.
 *
 * The body comes last and is read once for both checksums. What is around it adds up while the processor waits for its sum, after
 * which the checksum of the whole needs little more. */
static void put_record(const struct call *call, const struct send *send, const struct message *message, uint8_t *at,
                       size_t size, const struct place *place) {
    uint8_t *begin = at, *body = at + call->head_bytes, *behind = body + message->body.length;
    int seals = call->request->seals != 0;
    uint32_t checksum = 0;
    put32(at, (uint32_t)size);
    put32(at + 4, RECORD_MAGIC_V1);
    put32(at + RECORD_BODY_CRC_AT, 0);
    put32(at + 12, (uint32_t)place->queue_id);
    put32(at + 16, (uint32_t)message->flag);
    put64(at + 20, (uint64_t)place->next);
    put64(at + 28, (uint64_t)call->now.end_offset);
    put32(at + 36, send->flags);
    put64(at + 40, (uint64_t)send->born_timestamp);
    at = put_host(at + 48, call->source->peer, call->source->peer_length);
    put64(at, (uint64_t)call->request->now_ms);
    at = put_host(at + 8, call->areas->store_host, call->areas->store_host_length);
    put32(at, (uint32_t)send->reconsume_times);
    put64(at + 4, 0);
    put32(at + 12, (uint32_t)message->body.length);
    at = put_behind_body(call, message, place, behind);
    if (seals) {
        checksum = crc32_moved(crc32_of(0, begin, call->head_bytes), (size_t)(at - body));
        checksum ^= crc32_of(0, behind, (size_t)(at - behind));
    }
    memcpy(body, message->body.at, message->body.length);
    uint32_t sum = crc32_of(0, message->body.at, message->body.length);
    uint8_t *field = begin + RECORD_BODY_CRC_AT;
    put32(field, sum & CRC_MASK);
    if (seals) {
        checksum ^= crc32_moved(sum, (size_t)(at - behind)) ^ crc32_moved(get32_little(field), (size_t)(at - field));
        put_tail(at, checksum);
    }
}

/* Note a record that begins a transaction, which has this size; what stop there is when it may not. */
static enum stop open_half(struct call *call, const struct send *send, const struct message *message, const struct place *place,
                           size_t size) {
    const struct request *request = call->request;
    int64_t opens = (int64_t)(message->body.length + completed_length(call, message));
    if (request->half_count == HALVES_UNASKED) return STOP_TERMS;
    if (call->now.halves >= request->half_count || opens > request->half_bytes - call->half_bytes) return STOP_LEFT;
    if (call->now.halves == call->areas->halves_room) return STOP_ROOM;
    int64_t since_ms = send->born_timestamp < request->now_ms ? send->born_timestamp : request->now_ms;
    size_t behind_key = 1 + message->moment_length + (request->seals ? TAIL_BYTES : 0);
    int64_t key_at = call->now.records_size + (int64_t)(size - behind_key - message->key.length);
    call->areas->halves[call->now.halves++] = (struct half){
        place->next, call->now.end_offset, (int64_t)size, since_ms, key_at, (int64_t)message->key.length, message->immunity_ms};
    call->half_bytes += (int64_t)size;
    return STOP_END;
}

/* Count a record of the queue, in the frame's last unit if it continues that. 0 when there is no room. */
static int add_unit(struct call *call, const struct place *place, int64_t size, int64_t code) {
    struct unit *next = call->areas->units + call->now.units;
    if (call->now.units > call->results->units && next[-1].size == size && next[-1].code == code &&
        next[-1].slot == place->slot) {
        next[-1].count++; /* the record lies behind it in the log, and of its queue it is the next */
        return 1;
    }
    if (call->now.units == call->areas->units_room) return 0;
    *next = (struct unit){place->target, place->queue_id, place->slot, place->next, call->now.end_offset, size, code, 1};
    call->now.units++;
    return 1;
}

/* Count the units of the present frame for their topics. */
static void tally_units(struct call *call) {
    const struct areas *areas = call->areas;
    for (int64_t n = call->results->units; n < call->now.units; n++) {
        const struct unit *unit = &areas->units[n];
        struct tally *tally = &areas->tallies[unit->target];
        if (tally->number != call->request->number) {
            *tally = (struct tally){call->request->number, 0, 0};
            areas->tallied[call->now.tallied++] = unit->target;
        }
        tally->messages += unit->count;
        tally->bytes += unit->count * unit->size;
    }
}

/* Lay out one message behind the others of the frame, in its place among `places`. */
static enum stop add_message(struct call *call, const struct send *send, struct message *message, struct place *places) {
    struct place *place = &places[message->where];
    int has_leg = message->where == TIMER && message->wait.leg_ms >= 0;
    size_t properties = message->length = properties_length(call, message), tail = call->request->seals ? TAIL_BYTES : 0;
    size_t most = message->where == HALF ? MAX_HALF_PROPERTIES_BYTES
                  : message->is_plain    ? MAX_PROPERTIES_BYTES
                                         : MAX_PROPERTIES_BYTES - TAIL_BYTES;
    size_t size = call->head_bytes + message->body.length + 1 + place->topic.length + 2 + properties;
    if (properties > MAX_PROPERTIES_BYTES || properties - tail + (has_leg ? ROLL_ROOM_BYTES : 0) > most ||
        call->now.end_offset + (int64_t)size > call->request->limit)
        return STOP_LEFT;
    if (call->now.records_size + (int64_t)size > call->areas->records_room) return STOP_ROOM;
    if (message->where == TIMER) {
        if (call->now.moments == call->areas->moments_room) return STOP_ROOM;
        call->areas->moments[call->now.moments++] = (struct moment){message->wait.due_ms, message->code, call->results->frames};
    }
    if (message->where == HALF) {
        enum stop stop = open_half(call, send, message, place, size);
        if (stop != STOP_END) return stop;
    }
    put_record(call, send, message, call->areas->records + call->now.records_size, size, place);
    if (!add_unit(call, place, (int64_t)size, message->code)) return STOP_ROOM;
    place->next++;
    call->now.messages++;
    call->now.names += message->is_named;
    call->now.records_size += (int64_t)size;
    call->now.end_offset += (int64_t)size;
    return STOP_END;
}

/* ---- Answers: as kernel.py writes them */

static uint8_t *put_id(uint8_t *at, const struct areas *areas, int64_t position) {
    uint8_t place[8];
    put64(place, (uint64_t)position);
    at = put_hex(at, areas->store_host, (size_t)areas->store_host_length, UPPER_DIGITS);
    return put_hex(at, place, sizeof place, UPPER_DIGITS);
}

/* The ids of the records that the frame has written, the first of which is at that position of the log, with commas between. */
static uint8_t *put_ids(const struct call *call, uint8_t *at, int64_t position) {
    const uint8_t *records = call->areas->records;
    int64_t offset = call->results->records_size;
    for (; offset < call->now.records_size; position += get32(records + offset), offset += get32(records + offset)) {
        if (offset > call->results->records_size) *at++ = ',';
        at = put_id(at, call->areas, position);
    }
    return at;
}

/* Answer a send that wrote `count` records, the first of them with that number; `single` is its only message, if it has one. 0
 * when there is no room. */
static int add_answer(struct call *call, const struct send *send, int64_t count, const struct message *single,
                      int64_t queue_offset, int is_early) {
    int has_handle = single != NULL && single->where == TIMER && single->key.length <= MAX_NAMED_KEY_BYTES;
    int64_t needed = ANSWER_BYTES + count * ID_BYTES + (single != NULL ? (int64_t)single->key.length : 0);
    needed += has_handle ? HANDLE_BYTES : 0;
    if (send->header.frame_flag & FLAG_ONEWAY) return 1;
    if (call->now.answers_size + needed > call->areas->answers_room || call->now.opaques == call->areas->opaques_room)
        return 0;
    uint8_t *begin = call->areas->answers + call->now.answers_size, *at = begin + PREFIX_BYTES;
    at = PUT(at, "{\"code\": 0,\"extFields\":{\"msgId\":\"");
    at = put_ids(call, at, call->results->end_offset);
    at = put_decimal(PUT(at, "\",\"queueId\":\""), send->queue_id);
    at = put_decimal(PUT(at, "\",\"queueOffset\":\""), queue_offset);
    if (single != NULL) at = put_text(PUT(at, "\",\"transactionId\":\""), single->key.at, single->key.length);
    if (has_handle) {
        struct text topic = {send->target->name, send->target->name_length};
        at = PUT(at, "\",\"recallHandle\":\"");
        at = put_handle(at, call->areas->terms, topic, &single->wait, single->key, queue_offset);
    }
    at = PUT(at, "\",\"MSG_REGION\":\"DefaultRegion\",\"TRACE_ON\":\"true\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":");
    at = PUT(put_decimal(at, send->header.opaque), ",\"version\":479}");
    put32(begin, (uint32_t)(at - begin - 4));
    put32(begin + 4, (uint32_t)(at - begin - PREFIX_BYTES));
    call->now.answers_size += at - begin;
    if (is_early) call->areas->early[call->now.early++] = call->now.opaques;
    call->areas->opaques[call->now.opaques++] = send->header.opaque;
    return 1;
}

/* ---- Sends: each message to its place, which numbers it */

static int64_t row_of(const struct rows *rows, int64_t slot) {
    int64_t row = slot >= 0 && slot < rows->slots ? rows->of_slots[slot] : -1;
    return row < rows->count ? row : -1;
}

/* The offset of the queue's next message. */
static int64_t next_of(const struct call *call, int64_t slot) {
    const struct slot *found = &call->areas->slots[slot];
    if (found->touched >= call->request->since) return found->next;
    int64_t row = row_of(&call->request->rows, slot);
    return row >= 0 ? call->request->rows.numbers[row] : found->next;
}

/* The place of those that wait for a level. */
static void move_to_level(const struct call *call, struct place *place, int64_t level) {
    place->queue_id = (int32_t)(level - 1);
    place->slot += level - 1;
    place->next = place->first = next_of(call, place->slot);
}

static enum stop lay_out_single(struct call *call, const struct send *send, struct place *places) {
    struct message message;
    enum stop stop = understand_properties(call, send, send->header.fields[PROPERTIES], &message);
    if (stop != STOP_END) return stop;
    if (message.where == DELAYED) move_to_level(call, &places[DELAYED], message.level);
    if (call->request->is_lent && message.where != OWN) return STOP_LEFT;
    int64_t queue_offset = places[message.where].next;
    message.body = send->body;
    message.flag = send->flag;
    stop = add_message(call, send, &message, places);
    if (stop != STOP_END) return stop;
    return add_answer(call, send, 1, &message, queue_offset, message.is_early) ? STOP_END : STOP_ROOM;
}

/* Take the next message of a batch: total size, magic, CRC, flag, body's length, body, properties' length, properties. */
static int take_item(struct reader *r, struct message *message, struct text *encoded) {
    size_t left = (size_t)(r->end - r->at);
    if (left < ITEM_HEAD_BYTES + 2) return 0;
    int64_t size = (int32_t)get32(r->at), body = (int32_t)get32(r->at + 16);
    if (body <= 0 || size > (int64_t)left || ITEM_HEAD_BYTES + body + 2 > size) return 0;
    const uint8_t *behind = r->at + ITEM_HEAD_BYTES + body;
    int64_t properties = (int16_t)get16(behind);
    if (properties < 0 || ITEM_HEAD_BYTES + body + 2 + properties != size) return 0;
    message->flag = (int32_t)get32(r->at + 12);
    message->body = (struct text){r->at + ITEM_HEAD_BYTES, (size_t)body};
    *encoded = (struct text){behind + 2, (size_t)properties};
    r->at += size;
    return 1;
}

static enum stop lay_out_batch(struct call *call, const struct send *send, struct place *places) {
    struct reader r = {send->body.at, send->body.at + send->body.length};
    struct message message;
    struct text properties;
    int64_t count = 0, queue_offset = 0;
    int all_early = 1;
    if (asks_for_time(send->header.fields[PROPERTIES])) return STOP_LEFT; /* a batch waits for nothing as a whole */
    for (; r.at < r.end; count++) {
        if (count == MAX_BATCH_COUNT || !take_item(&r, &message, &properties)) return STOP_LEFT;
        enum stop stop = understand_properties(call, send, properties, &message);
        if (stop == STOP_END && (message.where == HALF || message.where == DELAYED)) stop = STOP_LEFT; /* for no batch */
        if (stop == STOP_END && call->request->is_lent && message.where != OWN) stop = STOP_LEFT;
        if (stop != STOP_END) return stop;
        all_early &= message.is_early;
        if (count == 0) queue_offset = places[message.where].next;
        stop = add_message(call, send, &message, places);
        if (stop != STOP_END) return stop;
    }
    return add_answer(call, send, count, NULL, queue_offset, all_early) ? STOP_END : STOP_ROOM;
}

/* A slot has another value from now on; what the call found there is noted, once: whether it is the first time. */
static int move(const struct call *call, struct slot *slot, struct touched touched, struct touched *into, int64_t *count) {
    int is_first = slot->touched != call->request->number;
    if (is_first) {
        into[(*count)++] = touched;
        slot->touched = call->request->number;
    }
    slot->next = touched.next;
    return is_first;
}

/* Number the send's messages and lay them out. What it takes of its slots counts at the end alone. */
static enum stop lay_out(struct call *call, struct send *send) {
    const struct areas *areas = call->areas;
    struct slot *slots = areas->slots;
    int64_t own = (int64_t)send->target->first_slot + send->queue_id;
    if (call->request->is_lent && (send->is_turn || row_of(&call->request->rows, own) < 0)) return STOP_LEFT;
    struct text topic = {send->target->name, send->target->name_length};
    int64_t next = next_of(call, own);
    struct place places[PLACES] = {[OWN] = {topic, send->target_index, (int32_t)send->queue_id, own, next, next}};
    for (int i = TIMER; i < PLACES; i++) {
        int64_t slot = areas->timer_slot + i - TIMER;
        next = next_of(call, slot);
        places[i] = (struct place){brokers_topics[i], (int32_t)(areas->target_count + i - TIMER), 0, slot, next, next};
    }
    if (call->now.touched + PLACES > areas->touched_room || call->now.turned == areas->turned_room ||
        call->now.tallied + PLACES > areas->tallied_room)
        return STOP_ROOM;
    send->is_batch = IS(send->header.fields[IS_BATCH], "true");
    send->flags = flags_of(call, send);
    enum stop stop = send->is_batch ? lay_out_batch(call, send, places) : lay_out_single(call, send, places);
    if (stop != STOP_END) return stop;
    for (int i = 0; i < PLACES; i++) {
        struct touched touched = {places[i].slot, places[i].first, places[i].next};
        if (touched.next == touched.first) continue;
        if (move(call, &slots[touched.slot], touched, areas->touched, &call->now.touched))
            call->now.unmet += row_of(&call->request->rows, touched.slot) < 0;
    }
    if (send->is_turn) {
        struct slot *turn = &areas->turns[send->target_index];
        move(call, turn, (struct touched){send->target_index, turn->next, send->queue_id}, areas->turned, &call->now.turned);
    }
    return STOP_END;
}

/* Lay out sends of the present source until no more are to be taken, or a frame is not laid out. */
static enum stop take_source(struct call *call, const uint8_t *buffer, struct progress *progress) {
    const struct source *source = call->source;
    const struct areas *areas = call->areas;
    struct results *results = call->results;
    struct send send;
    enum stop stop = STOP_END;
    *progress = (struct progress){.position = source->position};
    call->reading = source->readings;
    call->readings_left = source->reading_count;
    call->fields.part_count = 0;
    call->unlike = 0;
    call->head_bytes = (size_t)(RECORD_HEAD_BYTES + source->peer_length + areas->store_host_length - 2 * HOST_BYTES);
    while (progress->frames < source->most && results->frames < call->request->most) {
        int64_t size = read_frame(call, buffer, progress->position, &send);
        if (size <= 0) {
            stop = size == 0 ? STOP_END : STOP_LEFT;
            break;
        }
        call->now = *results;
        stop = lay_out(call, &send);
        if (stop != STOP_END) break;
        tally_units(call);
        call->now.frames++;
        *results = call->now;
        progress->position += size;
        progress->frames++;
    }
    progress->answers_end = results->answers_size;
    progress->opaques_end = results->opaques;
    return stop;
}

/* Lay out what peers sent, one behind the other, each from its position on; at most so many frames of each, and of all. Of sources
 * behind the one where it stopped nothing is said. */
static void lay_out_sources(const struct areas *areas) {
    const struct request *request = areas->request;
    struct results *results = areas->results;
    struct call call;
    call.areas = areas;
    call.request = request;
    call.results = results;
    call.half_bytes = 0;
    enum stop stop = STOP_END;
    while (results->sources < request->count) {
        call.source = &areas->sources[results->sources];
        stop = take_source(&call, areas->buffers[results->sources], &areas->progress[results->sources]);
        if (stop != STOP_END || results->frames == request->most) break;
        results->sources++;
    }
    results->stop = stop;
}

void note_taken(const struct areas *areas) {
    for (int64_t n = 0; n < areas->results->touched; n++) areas->touched[n].next = areas->slots[areas->touched[n].slot].next;
}

/* Numbers are those of the rows, and what calls of this run took behind them. Where one is a guess, or somebody else has taken some for
 * this run, the caller compares what was `touched` with what he knows of the queues: where that differs, he sets the slots' next
 * offsets and calls again, as if this call had not been. */
EXPORT void native_send(const struct areas *areas) {
    struct results *results = areas->results;
    *results = (struct results){.end_offset = areas->request->end_offset};
    lay_out_sources(areas);
    note_taken(areas);
    if (results->stop == STOP_ROOM && results->frames == 0) results->stop = STOP_LEFT; /* no call has more room */
}

void send_more(const struct areas *areas) {
    struct results *results = areas->results;
    results->sources = results->frames = results->records_size = results->answers_size = results->opaques = results->early = 0;
    lay_out_sources(areas);
}

/* What calls took is in the log: what comes next in the queues is what comes behind it. Those whose row is not known are passed over. */
EXPORT void native_take_numbers(const struct rows *rows, const struct touched *touched, int64_t count) {
    for (int64_t n = 0; n < count; n++) {
        int64_t row = row_of(rows, touched[n].slot);
        if (row >= 0) rows->numbers[row] = touched[n].next;
    }
}
