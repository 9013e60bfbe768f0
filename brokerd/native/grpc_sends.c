/* SendMessage requests of gRPC, rewritten as the send frames that mean the same. The twin, which says what is right, is
 * brokerd/proxy/mapping.py; brokerd/proxy/native_sends.py calls this, and gives to the twin whatever this leaves.
 *
 *   native_grpc_sends    for each request: read its one message, check what a client may say, write the frame
 *
 * A frame's properties are those that the twin would store, in its order; what else there is to know of a message is in the frame's
 * header, as remoting clients write it in the compact encoding. The caller writes over the queue of a message of a group or with a
 * priority, a number of QUEUE_DIGITS, and over the secret of a half message.
 *
 * Bounds. Everything read of a request lies in it: a reader never reaches behind its end, and a text comes with its length. A frame
 * takes less than its request and MORE_BYTES: each property of the client's has more bytes in the request than between its
 * separators in the frame, and what else is written is counted in MORE_BYTES.
 */
#include "headers.h"

enum {
    MAX_BODY_BYTES = 4 * 1024 * 1024,
    MAX_KEYS = 128, /* what has more of them is the twin's */
    MAX_USER_PROPERTIES = 128,
    NAME_PLACES = 256, /* a power of two, with room for twice as many names as there may be */
    MAX_USER_PROPERTIES_BYTES = 16 * 1024,
    MAX_ID_BYTES = 255,
    MAX_GROUP_BYTES = 63,
    MAX_TOPIC_BYTES = 255, /* with its namespace; half messages name it twice */
    MAX_ATTEMPT = 0x7FFF,
    MAX_RECOVERY_S = 3600,
    MORE_BYTES = 1024,
    QUEUE_DIGITS = 10,
    SECRET_DIGITS = 32,
    PREFIX_BYTES = 8,
    FIXED_HEADER_BYTES = 21, /* code, language, version, opaque, flag, no remark, and the length of the fields */
    FLAG_ONEWAY = 2,
    MILLION = 1000000,
};
#define MAX_TIMESTAMP_S 253402300799 /* the end of year 9999, where protobuf's timestamps end */

enum kind { NORMAL, DELAY, GROUPED, PRIORITIZED, HALF }; /* of a message, as its properties say */
enum type { TYPE_TRANSACTION = 4, TYPE_LITE, TYPE_PRIORITY };

/* Shared with native_sends.py, whose ctypes and struct formats say the same. */

struct sends { /* what a call is about; forbidden: names of properties in order, each behind its length; where those with a first
                  byte begin, at their end for none */
    const uint8_t *const *requests;
    const int64_t *lengths;
    int64_t count;
    const uint8_t *forbidden;
    int64_t forbidden_length;
    const int64_t *forbidden_begins;
    uint8_t *out;
    int64_t room, now_ms;
    struct found *found; /* of each request */
};

struct found { /* end: of its frame in `out`, 0 for what is left; id and group are in the request, topic, queue and secret in `out` */
    int64_t end, kind, topic_at, topic_length, id_at, id_length, group_at, group_length, queue_at, priority, secret_at;
};

/* Private */

struct reader {
    const uint8_t *at, *end;
};

struct message {
    struct text space, topic, body, tag, id, group, trace, born_host, keys[MAX_KEYS];
    struct text names[MAX_USER_PROPERTIES], values[MAX_USER_PROPERTIES];
    uint8_t places[NAME_PLACES]; /* by their hash, the numbers of the names from 1 on; made when there is one */
    int64_t key_count, property_count, born_ms, deliver_ms, type, encoding, attempt, priority, recovery_s;
};

enum wire { VARINT, EIGHT_BYTES, LENGTH };

/* Take a number of at most 63 bits. */
static int take_varint(struct reader *r, int64_t *number) {
    uint64_t value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
        if (r->at == r->end) return 0;
        uint8_t byte = *r->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *number = (int64_t)value;
            return 1;
        }
    }
    return 0;
}

/* Take a field: a number, or a text. 0 for a field of another kind, and at a field that is not whole. */
static int take_field(struct reader *r, int64_t *field, int64_t *number, struct text *text) {
    int64_t tag, length;
    *number = -1;
    *text = (struct text){NULL, 0};
    if (!take_varint(r, &tag)) return 0;
    *field = tag >> 3;
    if ((tag & 7) == VARINT) return take_varint(r, number);
    if ((tag & 7) != LENGTH || !take_varint(r, &length) || length > r->end - r->at) return 0;
    *text = (struct text){r->at, (size_t)length};
    r->at += length;
    return 1;
}

static int is_number(struct text text) { return text.at == NULL; }

/* Note that a field was there; 0 when it was before: which one counts is the twin's business. */
static int is_first(uint32_t *seen, int64_t field) {
    if (field < 0 || field > 31 || *seen >> field & 1) return 0;
    *seen |= 1u << field;
    return 1;
}

/* Whether eight bytes are of ASCII without its control characters. What is taken away of one borrows of none where that is so. */
static int are_printable(uint64_t bytes) {
    uint64_t each = 0x0101010101010101u;
    return ((bytes | (bytes + each) | (bytes - each * 0x20)) & each * 0x80) == 0;
}

/* Whether a text can be stored: UTF-8 without control characters, and not empty. */
static int is_clean(struct text text) {
    if (text.length == 0) return 0;
    const uint8_t *at = text.at, *end = at + text.length;
    while (at < end) {
        if (end - at >= 8 && are_printable(get64_little(at))) {
            at += 8;
            continue;
        }
        if (*at < 0x20 || *at == 0x7F) return 0;
        size_t length = utf8_length(at, end);
        if (length == 0 || (length == 2 && at[0] == 0xC2 && at[1] < 0xA0)) return 0;
        at += length;
    }
    return 1;
}

/* The same of one that must not be blank: there is a character in it that is no white space, by the first of its bytes. */
static int is_visible(struct text text) {
    if (!is_clean(text)) return 0;
    for (size_t i = 0; i < text.length; i++) {
        uint8_t byte = text.at[i];
        if (byte >= 0xC0 ? byte != 0xC2 && (byte < 0xE1 || byte > 0xE3) : byte > ' ' && byte < 0x7F) return 1;
    }
    return 0;
}

/* Take a timestamp or a duration, of a second at least. */
static int take_time(struct text text, int64_t *seconds, int64_t *nanos) {
    struct reader r = {text.at, text.at + text.length};
    int64_t field, number;
    uint32_t seen = 0;
    *seconds = *nanos = 0;
    while (r.at < r.end) {
        if (!take_field(&r, &field, &number, &text) || !is_number(text) || !is_first(&seen, field)) return 0;
        if (field == 1) *seconds = number;
        else if (field == 2) *nanos = number;
        else return 0;
    }
    return *seconds >= 1 && *seconds <= MAX_TIMESTAMP_S && *nanos <= 999 * MILLION + 999999;
}

static int take_timestamp(struct text text, int64_t *time_ms) {
    int64_t seconds, nanos;
    if (!take_time(text, &seconds, &nanos)) return 0;
    *time_ms = seconds * 1000 + nanos / MILLION;
    return 1;
}

/* Whether a digest can be read; nobody compares it. */
static int is_digest(struct text text) {
    struct reader r = {text.at, text.at + text.length};
    int64_t field, number;
    uint32_t seen = 0;
    while (r.at < r.end) {
        if (!take_field(&r, &field, &number, &text) || !is_first(&seen, field)) return 0;
        if (field == 1 ? !is_number(text) || number > INT32_MAX : field != 2 || is_number(text) || !is_utf8(text)) return 0;
    }
    return 1;
}

/* A topic, with its namespace if it has one. */
static int take_topic(struct text text, struct message *message) {
    struct reader r = {text.at, text.at + text.length};
    int64_t field, number;
    uint32_t seen = 0;
    while (r.at < r.end) {
        if (!take_field(&r, &field, &number, &text) || is_number(text) || !is_first(&seen, field)) return 0;
        if (field == 2) message->topic = text;
        else if (field == 1) message->space = text;
        else return 0;
    }
    if (message->space.length > 0 && (!is_clean(message->space) || memchr(message->space.at, '%', message->space.length))) return 0;
    return is_clean(message->topic) && message->space.length + 1 + message->topic.length <= MAX_TOPIC_BYTES;
}

static int is_forbidden(const struct sends *sends, struct text name) {
    const uint8_t *at = sends->forbidden + sends->forbidden_begins[name.at[0]], *end = sends->forbidden + sends->forbidden_length;
    for (; at < end && at[1] == name.at[0]; at += 1 + *at)
        if (name.length == *at && memcmp(name.at, at + 1, name.length) == 0) return 1;
    return 0;
}

/* Whether no property before has the name of the next one, which has a place among them then. Names are chosen by clients: what they
 * have in common costs no more than as many comparisons as there are names. */
static int is_new_name(struct message *message, struct text name) {
    const uint64_t factor = 0x9E3779B97F4A7C15u;
    uint64_t hash = name.length, last = 0;
    size_t i = 0;
    if (message->property_count == 0) memset(message->places, 0, sizeof message->places);
    for (; name.length - i >= 8; i += 8) hash = (hash ^ get64_little(name.at + i)) * factor;
    for (; i < name.length; i++) last = last << 8 | name.at[i];
    hash = (hash ^ last) * factor;
    uint32_t place = (uint32_t)(hash >> 32) % NAME_PLACES;
    for (; message->places[place] != 0; place = (place + 1) % NAME_PLACES) {
        struct text other = message->names[message->places[place] - 1];
        if (name.length == other.length && memcmp(name.at, other.at, name.length) == 0) return 0;
    }
    message->places[place] = (uint8_t)(message->property_count + 1);
    return 1;
}

/* Take a name and a value as everybody writes them: in this order, each shorter than 128 bytes. */
static int take_pair(struct text text, struct text *name, struct text *value) {
    const uint8_t *at = text.at;
    size_t length = text.length, first, second;
    if (length < 4 || at[0] != (1 << 3 | LENGTH)) return 0;
    first = at[1];
    if (first >= 0x80 || first + 4 > length || at[first + 2] != (2 << 3 | LENGTH)) return 0;
    second = at[first + 3];
    if (second >= 0x80 || first + 4 + second != length) return 0;
    *name = (struct text){at + 2, first};
    *value = (struct text){at + first + 4, second};
    return 1;
}

static int take_user_property(const struct sends *sends, struct text text, struct message *message) {
    struct reader r = {text.at, text.at + text.length};
    struct text name = {NULL, 0}, value = {NULL, 0};
    int64_t field, number;
    uint32_t seen = 0;
    if (message->property_count == MAX_USER_PROPERTIES) return 0;
    if (take_pair(text, &name, &value)) r.at = r.end;
    while (r.at < r.end) {
        if (!take_field(&r, &field, &number, &text) || is_number(text) || !is_first(&seen, field)) return 0;
        if (field == 1) name = text;
        else if (field == 2) value = text;
        else return 0;
    }
    if (!is_clean(name) || !is_clean(value)) return 0;
    if (is_forbidden(sends, name) || !is_new_name(message, name)) return 0;
    message->names[message->property_count] = name;
    message->values[message->property_count++] = value;
    return 1;
}

static int take_system_properties(struct text text, struct message *message) {
    enum { TAG = 1, KEYS, ID, DIGEST, ENCODING, TYPE, BORN, BORN_HOST, STORED, STORE_HOST, DELIVER, HANDLE, QUEUE, OFFSET, HIDDEN,
           ATTEMPT, GROUP, TRACE, RECOVERY, PRIORITY = 22 };
    static const uint32_t numbers = 1u << ENCODING | 1u << TYPE | 1u << QUEUE | 1u << OFFSET | 1u << ATTEMPT | 1u << PRIORITY;
    struct reader r = {text.at, text.at + text.length};
    int64_t field, number, seconds, nanos;
    uint32_t seen = 0;
    while (r.at < r.end) {
        if (!take_field(&r, &field, &number, &text)) return 0;
        if (field > PRIORITY || (field != KEYS && !is_first(&seen, field))) return 0;
        if (is_number(text) != (int)(numbers >> field & 1)) return 0;
        switch (field) {
        case TAG:
            if (!is_visible(text) || memchr(text.at, '|', text.length) != NULL) return 0;
            message->tag = text;
            break;
        case KEYS:
            if (!is_visible(text) || message->key_count == MAX_KEYS) return 0;
            message->keys[message->key_count++] = text;
            break;
        case ID:
            if (!is_visible(text) || text.length > MAX_ID_BYTES) return 0;
            message->id = text;
            break;
        case DIGEST:
            if (!is_digest(text)) return 0;
            break;
        case ENCODING:
            message->encoding = number;
            break;
        case TYPE:
            message->type = number;
            break;
        case BORN:
            if (!take_timestamp(text, &message->born_ms)) return 0;
            break;
        case BORN_HOST:
            if (!is_clean(text)) return 0;
            message->born_host = text;
            break;
        case DELIVER:
            if (!take_timestamp(text, &message->deliver_ms)) return 0;
            break;
        case STORED:
        case HIDDEN:
            if (!take_time(text, &seconds, &nanos)) return 0;
            break; /* what was received says so, and nothing of it is kept */
        case STORE_HOST:
        case HANDLE:
            if (!is_utf8(text)) return 0;
            break;
        case QUEUE:
        case OFFSET:
            break; /* the broker chooses them */
        case ATTEMPT:
            if (number > MAX_ATTEMPT) return 0;
            message->attempt = number;
            break;
        case RECOVERY:
            if (!take_time(text, &seconds, &nanos) || seconds > MAX_RECOVERY_S) return 0;
            message->recovery_s = seconds + (nanos > 0);
            break;
        case PRIORITY:
            if (number > INT32_MAX) return 0;
            message->priority = number;
            break;
        case GROUP:
            if (!is_visible(text) || text.length > MAX_GROUP_BYTES) return 0;
            message->group = text;
            break;
        case TRACE:
            if (!is_clean(text)) return 0;
            message->trace = text;
            break;
        default:
            return 0;
        }
    }
    return 1;
}

static int take_message(const struct sends *sends, struct text text, struct message *message) {
    enum { TOPIC_FIELD = 1, USER_PROPERTY, SYSTEM_PROPERTIES, BODY };
    struct reader r = {text.at, text.at + text.length};
    int64_t field, number, size = 0;
    uint32_t seen = 0;
    while (r.at < r.end) {
        if (!take_field(&r, &field, &number, &text) || is_number(text)) return 0;
        if (field != USER_PROPERTY && !is_first(&seen, field)) return 0;
        if (field == TOPIC_FIELD ? !take_topic(text, message)
            : field == USER_PROPERTY ? !take_user_property(sends, text, message)
            : field == SYSTEM_PROPERTIES ? !take_system_properties(text, message) : field != BODY)
            return 0;
        if (field == BODY) message->body = text;
    }
    int kinds = (message->group.length > 0) + (message->deliver_ms > 0) + (message->priority >= 0) + (message->type == TYPE_TRANSACTION);
    for (int64_t n = 0; n < message->property_count; n++)
        size += (int64_t)(message->names[n].length + message->values[n].length);
    for (int64_t n = 0; n < message->key_count; n++) size += (int64_t)message->keys[n].length;
    size += (int64_t)message->tag.length;
    return message->topic.length > 0 && message->id.length > 0 && message->body.length > 0 &&
           message->body.length <= MAX_BODY_BYTES && size <= MAX_USER_PROPERTIES_BYTES && message->type <= TYPE_PRIORITY &&
           message->type != TYPE_LITE && message->encoding <= 2 && kinds <= 1;
}

/* The one message of a request; 0 for what is left. */
static int take_request(const struct sends *sends, struct text text, struct message *message) {
    struct reader r = {text.at, text.at + text.length};
    int64_t field, number;
    memset(message, 0, offsetof(struct message, keys));
    message->key_count = message->property_count = message->born_ms = message->deliver_ms = 0;
    message->type = message->encoding = message->attempt = message->recovery_s = 0;
    message->priority = -1;
    if (!take_field(&r, &field, &number, &text) || is_number(text) || field != 1 || r.at < r.end) return 0;
    return take_message(sends, text, message);
}

/* ---- Frames */

static uint8_t *put_property(uint8_t *at, const char *name, struct text value) {
    if (value.length == 0) return at;
    at = put_text(at, name, strlen(name));
    *at++ = 1;
    at = put_text(at, value.at, value.length);
    *at++ = 2;
    return at;
}

static uint8_t *put_number(uint8_t *at, const char *name, int64_t number) {
    uint8_t digits[20];
    return put_property(at, name, (struct text){digits, (size_t)(put_decimal(digits, number) - digits)});
}

static uint8_t *put_topic(uint8_t *at, const struct message *message) {
    if (message->space.length > 0) at = PUT(put_text(at, message->space.at, message->space.length), "%");
    return put_text(at, message->topic.at, message->topic.length);
}

static uint8_t *put_half(uint8_t *at, const struct message *message, uint8_t **secret) {
    at = PUT(put_topic(PUT(at, "TRAN_MSG\1true\2PGROUP\1"), message), "\2TRAN_SECRET\1");
    memset(*secret = at, '0', SECRET_DIGITS);
    at = PUT(at + SECRET_DIGITS, "\2");
    return message->recovery_s > 0 ? put_number(at, "CHECK_IMMUNITY_TIME_IN_SECONDS", message->recovery_s) : at;
}

static uint8_t *put_properties(uint8_t *at, const struct message *message, uint8_t **secret) {
    at = put_property(at, "UNIQ_KEY", message->id);
    for (int64_t n = 0; n < message->property_count; n++) {
        at = PUT(put_text(at, message->names[n].at, message->names[n].length), "\1");
        at = PUT(put_text(at, message->values[n].at, message->values[n].length), "\2");
    }
    at = put_property(at, "TAGS", message->tag);
    for (int64_t n = 0; n < message->key_count; n++) {
        at = n == 0 ? PUT(at, "KEYS\1") : PUT(at, " ");
        at = put_text(at, message->keys[n].at, message->keys[n].length);
    }
    if (message->key_count > 0) *at++ = 2;
    at = put_property(at, "__SHARDINGKEY", message->group);
    if (message->deliver_ms > 0) at = put_number(at, "TIMER_DELIVER_MS", message->deliver_ms);
    if (message->priority >= 0) at = put_number(at, "_SYS_MSG_PRIORITY_", message->priority);
    at = put_property(at, "TRACE_CONTEXT", message->trace);
    at = put_property(at, "__BORNHOST", message->born_host);
    if (message->born_ms > 0) at = put_number(at, "BORN_TIMESTAMP", message->born_ms);
    if (message->attempt > 0) at = put_number(at, "RECONSUME_TIME", message->attempt);
    return message->type == TYPE_TRANSACTION ? put_half(at, message, secret) : at;
}

static enum kind kind_of(const struct message *message) {
    if (message->type == TYPE_TRANSACTION) return HALF;
    if (message->deliver_ms > 0) return DELAY;
    return message->group.length > 0 ? GROUPED : message->priority >= 0 ? PRIORITIZED : NORMAL;
}

/* Begin a field of the header: its name, and room for the length of its value, which `end_field` writes. */
static uint8_t *begin_field(uint8_t *at, char name) {
    put16(at, 1);
    at[2] = (uint8_t)name;
    return at + 7;
}

static void end_field(uint8_t *begin, const uint8_t *end) { put32(begin - 4, (uint32_t)(end - begin)); }

/* Write the frame of a message; `found` gets where things are in it, as seen from `begin`. */
static uint8_t *put_frame(uint8_t *begin, const struct message *message, int64_t number, int64_t now_ms, struct found *found) {
    uint8_t *header = begin + PREFIX_BYTES, *fields = header + FIXED_HEADER_BYTES, *at = fields, *value, *secret = begin;
    enum kind kind = kind_of(message);
    put16(header, SEND_MESSAGE_V2);
    memset(header + 2, 0, FIXED_HEADER_BYTES - 2);
    put32(header + 5, (uint32_t)number);
    put32(header + 9, kind == DELAY ? 0 : FLAG_ONEWAY);
    value = begin_field(at, 'b');
    end_field(value, at = put_topic(value, message));
    found->topic_at = value - begin;
    found->topic_length = at - value;
    value = begin_field(at, 'e');
    found->queue_at = value - begin;
    end_field(value, at = kind == GROUPED || kind == PRIORITIZED ? put_text(value, "0000000000", QUEUE_DIGITS) : PUT(value, "-1"));
    value = begin_field(at, 'f');
    end_field(value, at = message->encoding == 2 ? PUT(value, "1") : PUT(value, "0"));
    value = begin_field(at, 'g');
    end_field(value, at = put_decimal(value, message->born_ms > 0 ? message->born_ms : now_ms));
    value = begin_field(at, 'h');
    end_field(value, at = PUT(value, "0"));
    value = begin_field(at, 'i');
    end_field(value, at = put_properties(value, message, &secret));
    found->secret_at = secret - begin;
    found->kind = kind;
    found->priority = message->priority;
    put32(fields - 4, (uint32_t)(at - fields));
    put32(begin + 4, 1u << 24 | (uint32_t)(at - header));
    at = put_text(at, message->body.at, message->body.length);
    put32(begin, (uint32_t)(at - begin - 4));
    return at;
}

EXPORT void native_grpc_sends(const struct sends *sends) {
    struct message message;
    uint8_t *at = sends->out, *end = at + sends->room;
    for (int64_t n = 0; n < sends->count; n++) {
        const uint8_t *request = sends->requests[n];
        struct found *found = &sends->found[n];
        int64_t begin = at - sends->out;
        found->end = 0;
        if (end - at < sends->lengths[n] + MORE_BYTES) continue;
        if (!take_request(sends, (struct text){request, (size_t)sends->lengths[n]}, &message)) continue;
        at = put_frame(at, &message, n, sends->now_ms, found);
        found->end = at - sends->out;
        found->topic_at += begin;
        found->queue_at += begin;
        found->secret_at += begin;
        found->id_at = message.id.at - request;
        found->id_length = (int64_t)message.id.length;
        found->group_at = message.group.length > 0 ? message.group.at - request : 0;
        found->group_length = (int64_t)message.group.length;
    }
}
