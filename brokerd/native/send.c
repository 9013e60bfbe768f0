/* Sends: frames as clients wrote them in; records, queue units and answers out. The twin is brokerd/sending/kernel.py, for batches
 * batch_kernel.py; brokerd/sending/native_kernel.py calls this, and gives to the twin whatever this leaves.
 *
 *   native_send    for each frame: read its header, find the queue, look at the properties, write record, unit and answer
 *
 * A frame is laid out whole or not at all: `results` has what counts, `now` what the present frame adds to it; when a frame is
 * left, what it has written is written over by the next. Nothing here says why one is left: the twin finds out by itself.
 *
 * Bounds. Input: everything read of a frame lies between its begin and its end, which lies within the buffer; a reader or a text
 * never reaches behind that. Output: each area comes with its room; what is to be written is measured first, and a frame that has
 * no room ends the call. Lengths that a peer sent are 32 bits and sums of them 64, so none overflows.
 */
#include "moments.h"
#include "record.h"

enum {
    PREFIX_BYTES = 8,
    MAX_HEADER_BYTES = 512 * 1024,
    MAX_BODY_BYTES = 4 * 1024 * 1024,
    MAX_PROPERTIES_BYTES = 32767,
    MAX_TOPIC_BYTES = 127,
    MAX_BATCH_COUNT = 32767,
    ITEM_HEAD_BYTES = 20,
    HOST_BYTES = 8,
    ANSWER_BYTES = 400, /* more than an answer has beside its message ids and its key */
    ID_BYTES = 33,      /* of a message in an answer: 32 digits and a comma */
    MAX_TIMED_PROPERTIES = 32, /* of one message */
    SEND_MESSAGE_V2 = 310,
    SEND_BATCH_MESSAGE = 320,
    FLAG_RESPONSE = 1,
    FLAG_ONEWAY = 2,
    SYS_COMPRESSED = 1,
    SYS_KNOWN = 0x701, /* compressed, and how */
};
#define STAMP "MSG_REGION\1DefaultRegion\2TRACE_ON\1true\2"
#define STAMP_BYTES (sizeof STAMP - 1)

/* Shared with native_kernel.py, whose ctypes and struct formats say the same. */

struct target { /* a topic that takes ordinary sends; an array of them is sorted by length, then bytes of the name */
    uint8_t name[MAX_TOPIC_BYTES];
    uint8_t name_length;
    int32_t queues;
    int32_t first_slot; /* of its queue 0 */
};

struct slot { /* a queue */
    int64_t next;   /* the offset of its next message: a guess, until the caller has compared it */
    uint64_t touched; /* the number of the last call that used it */
};

struct touched {
    int64_t slot;
    int64_t first; /* what the call took for the slot's next offset */
};

struct unit { /* messages of one frame, size and code, one behind the other in log and queue */
    int32_t target, queue_id; /* the target behind the last one: the topic in which messages wait */
    int64_t queue_offset, position, size, code, count;
};

struct moment { /* when a message waits, in the order of their queue; the caller may count them */
    int64_t due_ms, code;
    int64_t frame; /* how many frames the call took before its own */
};

enum stop { STOP_END, STOP_LEFT, STOP_ROOM, STOP_TERMS };

struct areas { /* what stays the same from call to call; rooms in elements */
    const struct target *targets;
    int64_t target_count;
    struct slot *slots;
    int64_t timer_slot; /* of the queue in which messages wait for a moment */
    struct terms *terms;
    uint8_t *records, *answers, *scratch;
    struct unit *units;
    int64_t *opaques;
    struct touched *touched;
    struct moment *moments;
    int64_t records_room, answers_room, scratch_room, units_room, opaques_room, touched_room, moments_room;
    int64_t max_frame_bytes;
    uint8_t store_host[HOST_BYTES];
};

struct request { /* what a call is about */
    int64_t length, position, most; /* of the buffer; where to begin; frames */
    uint64_t number;                /* another one for each call */
    int64_t end_offset, limit, now_ms, seals;
    uint8_t peer[HOST_BYTES];
};

struct results { /* also how far a call has come */
    int64_t position, end_offset, frames, stop;
    int64_t records_size, answers_size, units, messages, opaques, touched, moments;
};

/* Private */

struct reader { /* `scratch` is where strings with escapes go */
    const uint8_t *at, *end;
    uint8_t *scratch, *scratch_end;
};

enum field { TOPIC, QUEUE_ID, SYS_FLAG, BORN_TIMESTAMP, FLAG, PROPERTIES, RECONSUME_TIMES, IS_BATCH, FIELDS };

struct send {
    int64_t code, opaque, frame_flag;
    struct text fields[FIELDS]; /* no bytes: not there */
    struct text body;
    const struct target *target;
    int32_t target_index;
    int64_t queue_id, sys_flag, born_timestamp, flag, reconsume_times;
};

struct look { /* what properties tell */
    struct text key;
    int32_t tags_code;
    struct text asks[ASKS]; /* for a moment; no bytes: not there */
    int is_timed;
};

/* The queues that a frame may write to */
enum where { OWN, TIMER, PLACES };

struct place { /* a queue, and the number of the next message in it */
    struct text topic;
    int32_t target, queue_id;
    int64_t slot, next;
};

struct call {
    const struct areas *areas;
    const struct request *request;
    struct results *results;
    struct results now; /* with what the present frame has written */
};

/* ---- JSON headers: a subset of what the twin's parser takes, with the same outcome. Each function is 0 for what it leaves. */

/* The next byte that is no white space, without taking it; -1 at the end. */
static int peek(struct reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t')) r->at++;
    return r->at < r->end ? *r->at : -1;
}

static int take(struct reader *r, int wanted) {
    if (peek(r) != wanted) return 0;
    r->at++;
    return 1;
}

/* The first byte from `at` on that is not plain in a string: a quote, a backslash, a control, or not ASCII; or the end. */
static const uint8_t *plain_end(const uint8_t *at, const uint8_t *end) {
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    for (; end - at >= 8; at += 8) {
        uint64_t x, quote, escape;
        memcpy(&x, at, 8);
        quote = x ^ ones * '"';
        escape = x ^ ones * '\\';
        if ((x | (x - ones * 0x20) | (quote - ones) | (escape - ones)) & highs) break; /* one of them may be there */
    }
    while (at < end && *at >= 0x20 && *at < 0x80 && *at != '"' && *at != '\\') at++;
    return at;
}

static int hex_digit(uint8_t digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Take what is behind a backslash, to the scratch, which has room for three bytes. */
static int take_escape(struct reader *r) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (r->at == r->end) return 0;
    const char *found = memchr(names, *r->at, sizeof names - 1);
    if (found != NULL) {
        *r->scratch++ = (uint8_t)values[found - names];
        r->at++;
        return 1;
    }
    if (*r->at != 'u' || r->end - r->at < 5) return 0;
    uint32_t point = 0;
    for (int i = 1; i <= 4; i++) {
        int digit = hex_digit(r->at[i]);
        if (digit < 0) return 0;
        point = point << 4 | (uint32_t)digit;
    }
    r->at += 5;
    if (point >= 0xD800 && point < 0xE000) return 0;
    if (point >= 0x800) {
        *r->scratch++ = (uint8_t)(0xE0 | point >> 12);
        *r->scratch++ = (uint8_t)(0x80 | (point >> 6 & 0x3F));
        *r->scratch++ = (uint8_t)(0x80 | (point & 0x3F));
    } else if (point >= 0x80) {
        *r->scratch++ = (uint8_t)(0xC0 | point >> 6);
        *r->scratch++ = (uint8_t)(0x80 | (point & 0x3F));
    } else {
        *r->scratch++ = (uint8_t)point;
    }
    return 1;
}

/* Take a string. Its text is where it stands, or in the scratch when it has escapes. */
static int take_string(struct reader *r, struct text *text) {
    if (!take(r, '"')) return 0;
    const uint8_t *pending = r->at; /* what is not in the scratch yet */
    uint8_t *begin = NULL;
    text->at = r->at;
    for (;;) {
        r->at = plain_end(r->at, r->end);
        if (r->at == r->end || *r->at < 0x20) return 0;
        if (*r->at >= 0x80) {
            size_t length = utf8_length(r->at, r->end);
            if (length == 0) return 0;
            r->at += length;
            continue;
        }
        size_t length = (size_t)(r->at - pending);
        if (*r->at == '"' && begin == NULL) {
            text->length = length;
            r->at++;
            return 1;
        }
        if ((size_t)(r->scratch_end - r->scratch) < length + 3) return 0;
        if (begin == NULL) begin = r->scratch;
        memcpy(r->scratch, pending, length);
        r->scratch += length;
        if (*r->at++ == '"') break;
        if (!take_escape(r)) return 0;
        pending = r->at;
    }
    text->at = begin;
    text->length = (size_t)(r->scratch - begin);
    return 1;
}

/* Take an integer as JSON writes it. */
static int take_int(struct reader *r, int64_t *number) {
    peek(r);
    const uint8_t *begin = r->at;
    if (r->at < r->end && *r->at == '-') r->at++;
    const uint8_t *digits = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
    if (r->at > digits && *digits == '0' && r->at - begin > 1) return 0; /* 07 is none; -0 is no integer to all */
    return integer_of((struct text){begin, (size_t)(r->at - begin)}, number) && r->at < r->end &&
           *r->at != '.' && *r->at != 'e' && *r->at != 'E';
}

/* Take a value that nobody asks for. */
static int take_any(struct reader *r) {
    struct text text;
    int64_t number;
    int first = peek(r);
    if (first == '"') return take_string(r, &text);
    if (first == '-' || (first >= '0' && first <= '9')) return take_int(r, &number);
    const char *word = first == 'n' ? "null" : first == 't' ? "true" : first == 'f' ? "false" : NULL;
    if (word == NULL || (size_t)(r->end - r->at) < strlen(word) || memcmp(r->at, word, strlen(word)) != 0) return 0;
    r->at += strlen(word);
    return 1;
}

static void set_field(struct send *send, struct text name, struct text value) {
    static const char names[FIELDS] = {'b', 'e', 'f', 'g', 'h', 'i', 'j', 'm'};
    if (name.length != 1) return;
    const char *found = memchr(names, name.at[0], FIELDS);
    if (found != NULL) send->fields[found - names] = value;
}

/* Take extFields: an object of strings, not empty. */
static int take_fields(struct reader *r, struct send *send) {
    if (!take(r, '{')) return 0;
    do {
        struct text name, value;
        if (!take_string(r, &name) || !take(r, ':') || !take_string(r, &value)) return 0;
        set_field(send, name, value);
    } while (take(r, ','));
    return take(r, '}');
}

static int take_json(struct reader *r, struct send *send) {
    enum { CODE = 1, OPAQUE = 2, HAS_FLAG = 4, EXT = 8 };
    int seen = 0;
    if (!take(r, '{')) return 0;
    do {
        struct text name;
        int which, done;
        if (!take_string(r, &name) || !take(r, ':')) return 0;
        which = IS(name, "code") ? CODE : IS(name, "opaque") ? OPAQUE : IS(name, "flag") ? HAS_FLAG : 0;
        if (IS(name, "extFields")) which = EXT;
        if (seen & which) return 0; /* which one counts is the twin's business */
        seen |= which;
        done = which == CODE       ? take_int(r, &send->code)
               : which == OPAQUE   ? take_int(r, &send->opaque)
               : which == HAS_FLAG ? take_int(r, &send->frame_flag)
               : which == EXT      ? take_fields(r, send)
                                   : take_any(r);
        if (!done) return 0;
    } while (take(r, ','));
    return take(r, '}') && peek(r) < 0 && seen == (CODE | OPAQUE | HAS_FLAG | EXT);
}

/* ---- Compact headers */

/* Take a text that its length, of `width` bytes, precedes. */
static int take_counted(struct reader *r, size_t width, struct text *text) {
    if ((size_t)(r->end - r->at) < width) return 0;
    uint32_t length = width == 2 ? get16(r->at) : get32(r->at);
    r->at += width;
    if (length > (uint32_t)INT32_MAX || (width == 2 && length > INT16_MAX) || length > (size_t)(r->end - r->at)) return 0;
    *text = (struct text){r->at, length};
    r->at += length;
    return is_utf8(*text);
}

static int take_compact(struct reader *r, struct send *send) {
    struct text remark, name, value;
    if (r->end - r->at < 17) return 0;
    send->code = (int16_t)get16(r->at); /* language and version follow */
    send->opaque = (int32_t)get32(r->at + 5);
    send->frame_flag = (int32_t)get32(r->at + 9);
    r->at += 13;
    if (!take_counted(r, 4, &remark) || r->end - r->at < 4) return 0;
    uint32_t length = get32(r->at);
    r->at += 4;
    if (length > (size_t)(r->end - r->at)) return 0;
    r->end = r->at + length;
    while (r->at < r->end) {
        if (!take_counted(r, 2, &name) || !take_counted(r, 4, &value)) return 0;
        if (value.length > 0) set_field(send, name, value);
    }
    return 1;
}

/* ---- Properties */

static const uint8_t timer_topic[] = "rmq_sys_wheel_timer";

/* Whether something in the properties is for the general path: `_SPECIAL` in brokerd/sending/rules.py. */
static int has_special(struct text text) {
    static const char *const specials[] = {"POP_CK",     "TRAN_MSG", "DELAY",           "TIMER_",       "INNER_", "__CRC32#",
                                           "MSG_REGION", "TRACE_ON", "REPLY_TO_CLIENT", "WAIT\1false", "\1\2"};
    static const char firsts[] = "PTDI_MRW\1";
    const uint8_t *end = text.at + text.length;
    for (const uint8_t *at = text.at; at < end; at++) {
        if (memchr(firsts, *at, sizeof firsts - 1) == NULL) continue;
        for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
            size_t length = strlen(specials[i]);
            if ((size_t)(end - at) >= length && memcmp(at, specials[i], length) == 0) return 1;
        }
    }
    return 0;
}

static int is_alphanumeric(struct text text) {
    for (size_t i = 0; i < text.length; i++) {
        uint8_t letter = text.at[i] | 0x20;
        if ((letter < 'a' || letter > 'z') && (text.at[i] < '0' || text.at[i] > '9')) return 0;
    }
    return text.length > 0;
}

/* Take the text before the separator, which is not among the bytes 0 to 2 in it, and the separator. */
static int take_until(struct reader *r, uint8_t separator, struct text *text) {
    text->at = r->at;
    while (r->at < r->end && *r->at > 2) r->at++;
    if (r->at == r->end || *r->at != separator) return 0;
    text->length = (size_t)(r->at++ - text->at);
    return text->length > 0;
}

/* Whether a property is one of those that most messages have, which have no meaning for the broker: `_COMMON` in rules.py. */
static int is_common(struct text name, struct text value) {
    return IS(name, "UNIQ_KEY") || IS(name, "TAGS") || IS(name, "KEYS") || (IS(name, "WAIT") && IS(value, "true"));
}

/* Whether the properties of a message that asks for a moment may be stored as they came, but for that: all names differ, and
 * nothing else is for the general path. `properties` are tidy: texts of names and values with their separators. */
static int may_wait(struct text properties) {
    struct text names[MAX_TIMED_PROPERTIES], value;
    struct reader r = {properties.at, properties.at + properties.length, NULL, NULL};
    size_t count = 0;
    if (!is_utf8(properties)) return 0;
    for (; r.at < r.end; count++) {
        const uint8_t *begin = r.at;
        if (count == MAX_TIMED_PROPERTIES || !take_until(&r, 1, &names[count]) || !take_until(&r, 2, &value)) return 0;
        struct text name = names[count];
        if (!is_common(name, value) && ask_of(name) == ASKS) {
            if (has_special((struct text){begin, (size_t)(r.at - begin)})) return 0;
            if (IS(name, "REAL_TOPIC") || IS(name, "REAL_QID")) return 0;
        }
        for (size_t i = 0; i < count; i++)
            if (names[i].length == name.length && memcmp(names[i].at, name.at, name.length) == 0) return 0;
    }
    return 1;
}

/* Whether the properties may be stored as they came, and what they tell; a part of what `pattern_of` in rules.py and
 * `waiting_draft` in timed.py take. */
static int look_at(struct text properties, struct look *look) {
    if (properties.length == 0) return 0;
    struct reader r = {properties.at, properties.at + properties.length, NULL, NULL};
    struct text name, value, tag = {properties.at, 0};
    int all_common = 1;
    memset(look, 0, sizeof *look);
    while (r.at < r.end) {
        if (!take_until(&r, 1, &name) || !take_until(&r, 2, &value)) return 0;
        if (IS(name, "UNIQ_KEY")) {
            if (look->key.length || !is_alphanumeric(value)) return 0;
            look->key = value;
        } else if (IS(name, "TAGS")) {
            if (tag.length) return 0;
            tag = value;
        } else if (!is_common(name, value)) {
            enum ask ask = ask_of(name);
            all_common = 0;
            if (ask < ASKS) {
                look->asks[ask] = value;
                look->is_timed = 1;
            }
        }
    }
    if (look->key.length == 0) return 0;
    if (look->is_timed) return may_wait(properties);
    return (all_common || !has_special(properties)) && java_hash(tag, &look->tags_code);
}

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
    const struct text *fields = send->fields;
    send->reconsume_times = 0;
    if ((send->code != SEND_MESSAGE_V2 && send->code != SEND_BATCH_MESSAGE) || send->frame_flag & FLAG_RESPONSE) return 0;
    send->target = find_target(areas, fields[TOPIC]);
    if (send->target == NULL) return 0;
    send->target_index = (int32_t)(send->target - areas->targets);
    if (!integer_of(fields[QUEUE_ID], &send->queue_id) || !integer_of(fields[SYS_FLAG], &send->sys_flag) ||
        !integer_of(fields[BORN_TIMESTAMP], &send->born_timestamp) || !integer_of(fields[FLAG], &send->flag))
        return 0;
    if (fields[RECONSUME_TIMES].length > 0 && !integer_of(fields[RECONSUME_TIMES], &send->reconsume_times)) return 0;
    return send->queue_id >= 0 && send->queue_id < send->target->queues && !(send->sys_flag & ~(int64_t)SYS_KNOWN) &&
           send->body.length > 0 && send->body.length <= MAX_BODY_BYTES && send->reconsume_times >= 0 &&
           send->reconsume_times < 0x8000 && send->flag >= INT32_MIN && send->flag <= INT32_MAX &&
           send->born_timestamp >= 0 && send->born_timestamp < (int64_t)1 << 62;
}

/* Read the frame at the position: its length with the prefix; 0 when it has not come whole, -1 when it is left. */
static int64_t read_frame(const struct areas *areas, const uint8_t *at, int64_t left, struct send *send) {
    if (left < PREFIX_BYTES) return 0;
    int64_t length = (int64_t)(int32_t)get32(at) + 4;
    uint32_t encoding = at[4], header_length = get32(at + 4) & 0xFFFFFF;
    if (length > left) return 0;
    int64_t body_at = PREFIX_BYTES + (int64_t)header_length;
    if (body_at > length || length > areas->max_frame_bytes || header_length > MAX_HEADER_BYTES) return -1;
    struct reader r = {at + PREFIX_BYTES, at + body_at, areas->scratch, areas->scratch + areas->scratch_room};
    memset(send, 0, sizeof *send);
    send->body = (struct text){at + body_at, (size_t)(length - body_at)};
    if (!(encoding == 0 ? take_json(&r, send) : encoding == 1 && take_compact(&r, send))) return -1;
    return understand(areas, send) ? length : -1;
}

/* ---- Records and units */

struct message { /* of a send, or of a batch */
    struct text body, properties, key;
    int64_t flag, code;
    enum where where;
    struct wait wait;
    size_t moment_length; /* of what is added to the properties of one that waits */
    uint8_t moment[MOMENT_PROPERTIES_BYTES];
};

/* Find out where the message with those properties goes. */
static enum stop understand_properties(const struct call *call, const struct send *send, struct text properties,
                                       struct message *message) {
    const struct terms *terms = call->areas->terms;
    struct look look;
    if (!look_at(properties, &look)) return STOP_LEFT;
    message->properties = properties;
    message->key = look.key;
    message->where = look.is_timed ? TIMER : OWN;
    message->code = look.tags_code;
    message->moment_length = 0;
    if (!look.is_timed) return STOP_END;
    if (terms->state == TERMS_UNASKED) return STOP_TERMS;
    if (terms->state != TERMS_KNOWN || !wait_for(terms, look.asks, &message->wait)) return STOP_LEFT;
    struct text topic = {send->target->name, send->target->name_length};
    message->code = code_of(&message->wait);
    message->moment_length =
        (size_t)(put_moment(message->moment, &message->wait, topic, send->queue_id) - message->moment);
    return STOP_END;
}

/* Write a record of that size to `at`, which has room for it.
 *
 * The body comes last and is read once for both checksums. What is around it adds up while the processor waits for its sum, after
 * which the checksum of the whole needs little more. */
static void put_record(const struct call *call, const struct send *send, const struct message *message, uint8_t *at,
                       size_t size, const struct place *place) {
    uint8_t *begin = at, *body = at + RECORD_HEAD_BYTES, *behind = body + message->body.length;
    int is_batch = IS(send->fields[IS_BATCH], "true"), seals = call->request->seals != 0;
    uint32_t checksum = 0;
    put32(at, (uint32_t)size);
    put32(at + 4, RECORD_MAGIC_V1);
    put32(at + RECORD_BODY_CRC_AT, 0);
    put32(at + 12, (uint32_t)place->queue_id);
    put32(at + 16, (uint32_t)message->flag);
    put64(at + 20, (uint64_t)place->next);
    put64(at + 28, (uint64_t)call->now.end_offset);
    put32(at + 36, (uint32_t)(is_batch ? send->sys_flag & ~SYS_COMPRESSED : send->sys_flag));
    put64(at + 40, (uint64_t)send->born_timestamp);
    memcpy(at + 48, call->request->peer, HOST_BYTES);
    put64(at + 56, (uint64_t)call->request->now_ms);
    memcpy(at + 64, call->areas->store_host, HOST_BYTES);
    put32(at + 72, (uint32_t)send->reconsume_times);
    put64(at + 76, 0);
    put32(at + 84, (uint32_t)message->body.length);
    at = behind;
    *at++ = (uint8_t)place->topic.length;
    at = put_text(at, place->topic.at, place->topic.length);
    put16(at, (uint16_t)(message->properties.length + STAMP_BYTES + message->moment_length + (seals ? TAIL_BYTES : 0)));
    at = put_text(at + 2, message->properties.at, message->properties.length);
    at = put_text(at, STAMP, STAMP_BYTES);
    at = put_text(at, message->moment, message->moment_length);
    if (seals) {
        checksum = crc32_moved(crc32_of(0, begin, RECORD_HEAD_BYTES), (size_t)(at - body));
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

/* Count a record of the queue, in the frame's last unit if it continues that. 0 when there is no room. */
static int add_unit(struct call *call, const struct place *place, int64_t size, int64_t code) {
    struct unit *next = call->areas->units + call->now.units;
    if (call->now.units > call->results->units && next[-1].size == size && next[-1].code == code &&
        next[-1].target == place->target) {
        next[-1].count++; /* the record lies behind it in the log, and of its queue it is the next */
        return 1;
    }
    if (call->now.units == call->areas->units_room) return 0;
    *next = (struct unit){place->target, place->queue_id, place->next, call->now.end_offset, size, code, 1};
    call->now.units++;
    return 1;
}

/* Lay out one message behind the others of the frame, in its place among `places`. */
static enum stop add_message(struct call *call, const struct send *send, const struct message *message,
                             struct place *places) {
    struct place *place = &places[message->where];
    int has_leg = message->where == TIMER && message->wait.leg_ms >= 0;
    size_t encoded = message->properties.length + STAMP_BYTES + message->moment_length;
    size_t properties = encoded + (call->request->seals ? TAIL_BYTES : 0);
    size_t size = RECORD_HEAD_BYTES + message->body.length + 1 + place->topic.length + 2 + properties;
    if (properties > MAX_PROPERTIES_BYTES || encoded + (has_leg ? ROLL_ROOM_BYTES : 0) > MAX_PROPERTIES_BYTES ||
        call->now.end_offset + (int64_t)size > call->request->limit)
        return STOP_LEFT;
    if (call->now.records_size + (int64_t)size > call->areas->records_room) return STOP_ROOM;
    if (message->where == TIMER) {
        if (call->now.moments == call->areas->moments_room) return STOP_ROOM;
        call->areas->moments[call->now.moments++] = (struct moment){message->wait.due_ms, message->code, call->results->frames};
    }
    put_record(call, send, message, call->areas->records + call->now.records_size, size, place);
    if (!add_unit(call, place, (int64_t)size, message->code)) return STOP_ROOM;
    place->next++;
    call->now.messages++;
    call->now.records_size += (int64_t)size;
    call->now.end_offset += (int64_t)size;
    return STOP_END;
}

/* ---- Answers: as kernel.py writes them */

static uint8_t *put_hex(uint8_t *at, const uint8_t *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        *at++ = (uint8_t) "0123456789ABCDEF"[bytes[i] >> 4];
        *at++ = (uint8_t) "0123456789ABCDEF"[bytes[i] & 15];
    }
    return at;
}

static uint8_t *put_id(uint8_t *at, const uint8_t *store_host, int64_t position) {
    uint8_t place[8];
    put64(place, (uint64_t)position);
    return put_hex(put_hex(at, store_host, HOST_BYTES), place, sizeof place);
}

/* The ids of the records that the frame has written, the first of which is at that position of the log, with commas between. */
static uint8_t *put_ids(const struct call *call, uint8_t *at, int64_t position) {
    const uint8_t *records = call->areas->records;
    int64_t offset = call->results->records_size;
    for (; offset < call->now.records_size; position += get32(records + offset), offset += get32(records + offset)) {
        if (offset > call->results->records_size) *at++ = ',';
        at = put_id(at, call->areas->store_host, position);
    }
    return at;
}

/* Answer a send that wrote `count` records, the first of them with that number; `single` is its only message, if it has one. 0
 * when there is no room. */
static int add_answer(struct call *call, const struct send *send, int64_t count, const struct message *single,
                      int64_t queue_offset) {
    int has_handle = single != NULL && single->where == TIMER && single->key.length <= MAX_NAMED_KEY_BYTES;
    int64_t needed = ANSWER_BYTES + count * ID_BYTES + (single != NULL ? (int64_t)single->key.length : 0);
    needed += has_handle ? HANDLE_BYTES : 0;
    if (send->frame_flag & FLAG_ONEWAY) return 1;
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
    at = PUT(put_decimal(at, send->opaque), ",\"version\":479}");
    put32(begin, (uint32_t)(at - begin - 4));
    put32(begin + 4, (uint32_t)(at - begin - PREFIX_BYTES));
    call->now.answers_size += at - begin;
    call->areas->opaques[call->now.opaques++] = send->opaque;
    return 1;
}

/* ---- Sends: each message to its place, which numbers it */

static enum stop lay_out_single(struct call *call, const struct send *send, struct place *places) {
    struct message message;
    enum stop stop = understand_properties(call, send, send->fields[PROPERTIES], &message);
    if (stop != STOP_END) return stop;
    int64_t queue_offset = places[message.where].next;
    message.body = send->body;
    message.flag = send->flag;
    stop = add_message(call, send, &message, places);
    if (stop != STOP_END) return stop;
    return add_answer(call, send, 1, &message, queue_offset) ? STOP_END : STOP_ROOM;
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
    struct reader r = {send->body.at, send->body.at + send->body.length, NULL, NULL};
    struct message message;
    struct text properties;
    int64_t count = 0, queue_offset = 0;
    if (has_special(send->fields[PROPERTIES])) return STOP_LEFT; /* a batch asks for nothing as a whole */
    for (; r.at < r.end; count++) {
        if (count == MAX_BATCH_COUNT || !take_item(&r, &message, &properties)) return STOP_LEFT;
        enum stop stop = understand_properties(call, send, properties, &message);
        if (stop != STOP_END) return stop;
        if (count == 0) queue_offset = places[message.where].next;
        stop = add_message(call, send, &message, places);
        if (stop != STOP_END) return stop;
    }
    return add_answer(call, send, count, NULL, queue_offset) ? STOP_END : STOP_ROOM;
}

/* Number the send's messages and lay them out. What it takes of its slots counts at the end alone. */
static enum stop lay_out(struct call *call, const struct send *send) {
    const struct areas *areas = call->areas;
    struct slot *slots = areas->slots;
    int64_t own = (int64_t)send->target->first_slot + send->queue_id, timer = areas->timer_slot;
    struct place places[PLACES] = {
        [OWN] = {{send->target->name, send->target->name_length}, send->target_index, (int32_t)send->queue_id, own, slots[own].next},
        [TIMER] = {{timer_topic, sizeof timer_topic - 1}, (int32_t)areas->target_count, 0, timer, slots[timer].next},
    };
    if (call->now.touched + PLACES > areas->touched_room) return STOP_ROOM;
    enum stop stop = IS(send->fields[IS_BATCH], "true") ? lay_out_batch(call, send, places) : lay_out_single(call, send, places);
    if (stop != STOP_END) return stop;
    for (int i = 0; i < PLACES; i++) {
        struct slot *slot = &slots[places[i].slot];
        if (places[i].next == slot->next) continue;
        if (slot->touched != call->request->number) {
            areas->touched[call->now.touched++] = (struct touched){places[i].slot, slot->next};
            slot->touched = call->request->number;
        }
        slot->next = places[i].next;
    }
    return STOP_END;
}

/* Lay out sends from the position of the buffer on, at most so many frames.
 *
 * The caller compares what was `touched` with what he knows of the queues: where that differs, he sets the slots' next offsets
 * and calls again, as if this call had not been. */
EXPORT void native_send(const struct areas *areas, const struct request *request, struct results *results,
                        const uint8_t *buffer) {
    struct call call = {areas, request, results, {0}};
    struct send send;
    enum stop stop = STOP_END;
    *results = (struct results){.position = request->position, .end_offset = request->end_offset};
    while (results->frames < request->most) {
        int64_t size = read_frame(areas, buffer + results->position, request->length - results->position, &send);
        if (size <= 0) {
            stop = size == 0 ? STOP_END : STOP_LEFT;
            break;
        }
        call.now = *results;
        stop = lay_out(&call, &send);
        if (stop != STOP_END) break;
        call.now.position += size;
        call.now.frames++;
        *results = call.now;
    }
    results->stop = stop == STOP_ROOM && results->frames == 0 ? STOP_LEFT : stop; /* no call has more room */
}
