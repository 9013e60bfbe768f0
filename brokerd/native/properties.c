/* The properties of messages that are sent: whether they are stored as they came, what they ask for, and what they are when they are
 * written again. The twins are brokerd/sending/rules.py and stored_form.py.
 *
 * Bounds. A reader or a text never reaches behind the properties; what is written again is never longer than they are with a separator
 * behind them, and read_again tells how long it is.
 */
#include "properties.h"

struct reader {
    const uint8_t *at, *end;
};

/* Whether something in the properties is for the general path: `_SPECIAL` in brokerd/sending/rules.py, but for an empty value, which
 * is not read at all. */
static int has_special(struct text text) {
    static const char *const specials[] = {"POP_CK",     "TRAN_MSG", "DELAY",           "TIMER_",       "INNER_", "__CRC32#",
                                           "MSG_REGION", "TRACE_ON", "REPLY_TO_CLIENT", "WAIT\1false"};
    static const uint8_t begins[256] = {['P'] = 1, ['T'] = 1, ['D'] = 1, ['I'] = 1, ['_'] = 1, ['M'] = 1, ['R'] = 1, ['W'] = 1};
    const uint8_t *end = text.at + text.length;
    for (const uint8_t *at = text.at; at < end; at++) {
        if (!begins[*at]) continue;
        for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
            if (*at != (uint8_t)specials[i][0]) continue;
            size_t length = strlen(specials[i]);
            if ((size_t)(end - at) >= length && memcmp(at, specials[i], length) == 0) return 1;
        }
    }
    return 0;
}

int asks_for_time(struct text text) {
    const uint8_t *end = text.at + text.length;
    for (const uint8_t *at = text.at; at < end; at++) {
        if (end - at >= 5 && memcmp(at, "DELAY", 5) == 0) return 1;
        if (end - at >= 6 && memcmp(at, "TIMER_", 6) == 0) return 1;
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

/* Whether a text is the same in JSON. */
static int is_unescaped(struct text text) {
    for (size_t i = 0; i < text.length; i++)
        if (text.at[i] < ' ' || text.at[i] > '~' || text.at[i] == '"' || text.at[i] == '\\') return 0;
    return 1;
}

/* Where the next byte from 0 to 2 is, or the end. */
static const uint8_t *find_separator(const uint8_t *at, const uint8_t *end) {
    const uint64_t each = 0x0101010101010101u;
    while (end - at >= 8) {
        uint64_t bytes = get64_little(at), found = (bytes - each * 3) & ~bytes & each * 0x80;
        if (found != 0) return at + __builtin_ctzll(found) / 8; /* what is taken away borrows of bytes behind the first one alone */
        at += 8;
    }
    while (at < end && *at > 2) at++;
    return at;
}

/* Take a name and the separator behind it; neither it nor a value is empty, or has the bytes 0 to 2 in it. */
static int take_name(struct reader *r, struct text *name) {
    name->at = r->at;
    r->at = find_separator(r->at, r->end);
    if (r->at == r->end || *r->at != 1) return 0;
    name->length = (size_t)(r->at++ - name->at);
    return name->length > 0;
}

/* Take a value and the separator behind it, which the last may lack: then it is open. */
static int take_value(struct reader *r, struct text *value, int *is_open) {
    value->at = r->at;
    r->at = find_separator(r->at, r->end);
    value->length = (size_t)(r->at - value->at);
    *is_open = r->at == r->end;
    if (!*is_open && *r->at++ != 2) return 0;
    return value->length > 0;
}

/* Whether a property is one of those that most messages have, which have no meaning for the broker: `_COMMON` in rules.py. */
static int is_common(struct text name, struct text value) {
    return IS(name, "UNIQ_KEY") || IS(name, "TAGS") || IS(name, "KEYS") || (IS(name, "WAIT") && IS(value, "true"));
}

/* Whether what has this name is about something that the twin must look at, in properties that are not stored as they came. */
static int is_reserved(struct text name, struct text value) {
    static const char *const begins[] = {"POP_CK",   "TRAN",       "TIMER_",   "__CRC32#",        "__transactionId__",
                                         "MSG_REGION", "TRACE_ON", "CLUSTER", "REAL_", "WAIT"};
    if (memchr("PT_MCRW", name.at[0], 7) == NULL) return 0;
    if (is_common(name, value) || ask_of(name) < ASKS || IS(name, "TRAN_MSG") || IS(name, "TRAN_SECRET")) return 0;
    if (IS(name, "WAIT") && IS(value, "false")) return 0;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        size_t length = strlen(begins[i]);
        if (name.length >= length && memcmp(name.at, begins[i], length) == 0) return 1;
    }
    return 0;
}

/* Whether a property with this name says something to `look_at`. */
static int is_looked_at(struct text name) {
    return ask_of(name) < ASKS || IS(name, "UNIQ_KEY") || IS(name, "TAGS") || IS(name, "WAIT") || IS(name, "DELAY") ||
           IS(name, "TRAN_MSG") || IS(name, "PGROUP") || IS(name, "REPLY_TO_CLIENT");
}

int read_again(struct text properties, struct properties *read) {
    struct reader r = {properties.at, properties.at + properties.length};
    struct text name, value;
    int is_open;
    read->count = read->length = 0;
    if (!is_utf8(properties)) return 0;
    while (r.at < r.end) {
        size_t at = 0;
        if (!take_name(&r, &name) || !take_value(&r, &value, &is_open) || is_reserved(name, value)) return 0;
        while (at < read->count && !(read->names[at].length == name.length && memcmp(read->names[at].at, name.at, name.length) == 0)) at++;
        if (at == MAX_COMPLETED_PROPERTIES) return 0;
        if (at < read->count) {
            if (is_looked_at(name)) return 0;
            read->length -= read->values[at].length;
        } else {
            read->names[read->count++] = name;
            read->length += name.length + 2;
        }
        read->values[at] = value;
        read->length += value.length;
    }
    return 1;
}

uint8_t *put_again(const struct properties *read, uint8_t *at) {
    for (size_t i = 0; i < read->count; i++) {
        at = PUT(put_text(at, read->names[i].at, read->names[i].length), "\1");
        at = PUT(put_text(at, read->values[i].at, read->values[i].length), "\2");
    }
    return at;
}

int look_at(struct text properties, struct look *look) {
    static const uint8_t begins[256] = {['U'] = 1, ['T'] = 1, ['K'] = 1, ['W'] = 1, ['D'] = 1, ['P'] = 1, ['C'] = 1, ['R'] = 1};
    struct reader r = {properties.at, properties.at + properties.length};
    struct text name, value;
    int all_common = 1, is_usual = 0;
    memset(look, 0, sizeof *look);
    while (r.at < r.end) {
        if (!take_name(&r, &name) || !take_value(&r, &value, &look->is_open)) return 0;
        if (!begins[*name.at]) {
            all_common = 0; /* no name that is looked for begins so */
        } else if (IS(name, "UNIQ_KEY")) {
            is_usual = is_alphanumeric(value);
            if (look->key.length || (!is_usual && !is_unescaped(value))) return 0;
            look->key = value;
        } else if (IS(name, "TAGS")) {
            if (look->tag.length) return 0;
            look->tag = value;
        } else if (!is_common(name, value)) {
            enum ask ask = ask_of(name);
            all_common = 0;
            if (ask < ASKS) {
                look->asks[ask] = value;
                look->is_timed = 1;
            } else if (IS(name, "DELAY")) {
                if (!IS(value, "0")) look->level = value; /* which some clients write that want no delay */
            } else if (IS(name, "TRAN_MSG")) {
                look->transaction = value;
            } else if (IS(name, "PGROUP")) {
                look->group = value;
            } else if (IS(name, "CHECK_IMMUNITY_TIME_IN_SECONDS")) {
                look->immunity = value;
            } else if (IS(name, "REPLY_TO_CLIENT")) {
                look->is_request = 1;
            } else if (IS(name, "WAIT") && IS(value, "false")) {
                look->is_early = 1;
            }
        }
    }
    int is_other = look->is_timed || look->level.length || look->transaction.length || look->is_request || look->is_early;
    look->is_plain = is_usual && !look->is_open && !is_other && (all_common || !has_special(properties));
    struct properties read;
    if (!look->is_plain && !read_again(properties, &read)) return 0;
    look->length = look->is_plain ? properties.length : read.length;
    return java_hash(look->tag, &look->tags_code);
}
