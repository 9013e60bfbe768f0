#include "headers.h"

enum { PREFIX_BYTES = 8, MAX_HEADER_BYTES = 512 * 1024, MAX_LEVELS = 8 };

struct reader { /* `scratch` is where strings with escapes go, `fields` where all fields go, if they are wanted */
    const uint8_t *at, *end;
    uint8_t *scratch, *scratch_end;
    struct fields *fields;
    int is_unlike; /* no other is to be compared with it */
};

int64_t find_frame(const uint8_t *at, int64_t left, int64_t max_frame_bytes, struct frame *frame) {
    if (left < PREFIX_BYTES) return 0;
    int64_t length = (int64_t)(int32_t)get32(at) + 4, header = get32(at + 4) & 0xFFFFFF;
    if (length > left) return 0;
    if (PREFIX_BYTES + header > length || length > max_frame_bytes || header > MAX_HEADER_BYTES) return -1;
    frame->encoding = at[4];
    frame->header = (struct text){at + PREFIX_BYTES, (size_t)header};
    frame->body = (struct text){at + PREFIX_BYTES + header, (size_t)(length - PREFIX_BYTES - header)};
    return length;
}

/* ---- JSON headers: a subset of what the twin's parser takes, with the same outcome. Each function is 0 for what it leaves. */

/* The next byte that is no white space, without taking it; -1 at the end. */
static inline int peek(struct reader *r) {
    if (r->at < r->end && *r->at > ' ') return *r->at; /* as most write it */
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t')) r->at++;
    return r->at < r->end ? *r->at : -1;
}

static inline int take(struct reader *r, int wanted) {
    if (peek(r) != wanted) return 0;
    r->at++;
    return 1;
}

/* The first byte from `at` on that is not plain in a string: a quote, a backslash, a control, or not ASCII; or the end. Of eight
 * bytes each that is not plain has its highest bit in `marked`. Others behind the first may have it too. */
static inline const uint8_t *plain_end(const uint8_t *at, const uint8_t *end) {
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    for (; end - at >= 8; at += 8) {
        uint64_t x = get64_little(at), quote = x ^ ones * '"', escape = x ^ ones * '\\';
        uint64_t marked = (x | (x - ones * 0x20) | (quote - ones) | (escape - ones)) & highs;
        if (marked != 0) return at + __builtin_ctzll(marked) / 8;
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
    if (*r->at != 'u') {
        const char *found = memchr(names, *r->at, sizeof names - 1);
        if (found == NULL) return 0;
        *r->scratch++ = (uint8_t)values[found - names];
        r->at++;
        return 1;
    }
    if (r->end - r->at < 5) return 0;
    if (memcmp(r->at, "u000", 4) == 0 && r->at[4] > '0' && r->at[4] <= '9') { /* most are separators of properties */
        *r->scratch++ = (uint8_t)(r->at[4] - '0');
        r->at += 5;
        return 1;
    }
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

/* Take the rest of a string behind its quote. Its text is where it stands, or in the scratch when it has escapes. */
static int take_rest(struct reader *r, struct text *text) {
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
        r->scratch = put_short(r->scratch, pending, length);
        if (*r->at++ == '"') break;
        if (!take_escape(r)) return 0;
        pending = r->at;
    }
    text->at = begin;
    text->length = (size_t)(r->scratch - begin);
    return 1;
}

/* Take a string behind its quote. */
static inline int take_inside(struct reader *r, struct text *text) {
    const uint8_t *end = plain_end(r->at, r->end);
    if (end == r->end || *end != '"') return take_rest(r, text);
    *text = (struct text){r->at, (size_t)(end - r->at)};
    r->at = end + 1;
    return 1;
}

static inline int take_string(struct reader *r, struct text *text) { return take(r, '"') && take_inside(r, text); }

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

/* Which field of a send has the name, and of which kind that is; FIELDS: none. */
static inline int field_of(struct text name, int *named) {
    static const uint8_t short_names['z' + 1] = {['b'] = TOPIC + 1, ['e'] = QUEUE_ID + 1,   ['f'] = SYS_FLAG + 1,
                                                 ['g'] = BORN_TIMESTAMP + 1, ['h'] = FLAG + 1, ['i'] = PROPERTIES + 1,
                                                 ['j'] = RECONSUME_TIMES + 1, ['m'] = IS_BATCH + 1};
#define NAMED(literal) {literal, sizeof literal - 1}
    static const struct { const char *at; size_t length; } long_names[FIELDS] = {
        NAMED("topic"), NAMED("queueId"),    NAMED("sysFlag"),        NAMED("bornTimestamp"),
        NAMED("flag"),  NAMED("properties"), NAMED("reconsumeTimes"), NAMED("batch")};
#undef NAMED
    *named = name.length == 1 ? SHORT : LONG;
    if (name.length == 1) return name.at[0] > 'z' || short_names[name.at[0]] == 0 ? FIELDS : short_names[name.at[0]] - 1;
    for (int i = 0; i < FIELDS; i++)
        if (equals(name, long_names[i].at, long_names[i].length)) return i;
    return FIELDS;
}

/* Keep a field: which one of a send it is, FIELDS for none of them. */
static inline int set_field(struct reader *r, struct header *header, struct text name, struct text value) {
    int named, which = field_of(name, &named);
    if (r->fields != NULL && r->fields->count == MAX_FIELDS) {
        r->is_unlike = r->fields->is_cut = 1;
    } else if (r->fields != NULL) {
        r->fields->names[r->fields->count] = name;
        r->fields->values[r->fields->count++] = value;
    }
    if (which < FIELDS) {
        if (header->fields[which].at != NULL) r->is_unlike = 1;
        header->fields[which] = value;
        header->named |= named;
    }
    return which;
}

/* Take the value of a field as the text that it stands for: a string's, the digits of an integer, a word; none of null. */
static int take_value(struct reader *r, struct text *value) {
    int first = peek(r);
    if (first == '"') return take_string(r, value);
    value->at = r->at;
    if (!take_any(r)) return 0;
    value->length = first == 'n' ? 0 : (size_t)(r->at - value->at);
    return 1;
}

/* What lies from `begin` to `end` is a part. */
static void note_part(struct fields *fields, const uint8_t *begin, const uint8_t *end, size_t field, int named, int is_read) {
    const uint8_t *model = fields->model.at;
    fields->parts[fields->part_count++] = (struct part){(size_t)(begin - model), (size_t)(end - model), field, named, is_read};
}

/* Take extFields: an object, not empty. */
static int take_fields(struct reader *r, struct header *header) {
    if (!take(r, '{')) return 0;
    do {
        struct text name, value;
        const uint8_t *scratch = r->scratch;
        if (!take_string(r, &name) || !take(r, ':')) return 0;
        if (r->scratch != scratch) r->is_unlike = 1; /* the name is where the next header's texts go */
        scratch = r->scratch;
        int is_text = peek(r) == '"';
        const uint8_t *begin = r->at + 1;
        if (!take_value(r, &value)) return 0;
        int which = set_field(r, header, name, value);
        if (r->fields != NULL && is_text && !r->fields->is_cut)
            note_part(r->fields, begin, r->at - 1, r->fields->count - 1, which, r->scratch != scratch);
    } while (take(r, ','));
    return take(r, '}');
}

/* How many bytes are the same from both on. */
static inline size_t same_bytes(const uint8_t *a, const uint8_t *a_end, const uint8_t *b, const uint8_t *b_end) {
    size_t most = (size_t)(a_end - a < b_end - b ? a_end - a : b_end - b), same = 0;
    for (; same + 8 <= most; same += 8) {
        uint64_t difference = get64_little(a + same) ^ get64_little(b + same);
        if (difference != 0) return same + (size_t)__builtin_ctzll(difference) / 8;
    }
    while (same < most && a[same] == b[same]) same++;
    return same;
}

static inline void set_part(struct fields *fields, struct header *header, const struct part *part, struct text value) {
    fields->values[part->field] = value;
    if (part->named < FIELDS) header->fields[part->named] = value;
}

/* Take a header that is like the model but for its parts. What is the same up to the byte behind a part was read of the model. */
static int take_alike(struct reader *r, struct header *header) {
    struct fields *fields = r->fields;
    const uint8_t *model = fields->model.at, *model_end = model + fields->model.length;
    uint64_t changed = 0;
    size_t n = 0, at = 0; /* the next part; how far the model is passed */
    for (;;) {
        size_t same_up_to = at + same_bytes(r->at, r->end, model + at, model_end);
        while (n < fields->part_count && fields->parts[n].end < same_up_to && !fields->parts[n].is_read) n++;
        if (n == fields->part_count) {
            r->at += same_up_to - at;
            if (r->at != r->end || same_up_to != fields->model.length) return 0;
            break;
        }
        const struct part *part = &fields->parts[n];
        struct text value;
        if (same_up_to < part->begin) return 0;
        r->at += part->begin - at;
        changed |= (uint64_t)1 << n++;
        if (part->field == MAX_FIELDS) {
            if (!take_int(r, &header->opaque)) return 0;
            at = part->end;
        } else {
            if (!take_inside(r, &value)) return 0;
            set_part(fields, header, part, value);
            at = part->end + 1;
        }
    }
    for (uint64_t again = fields->changed & ~changed; again != 0; again &= again - 1) { /* what is as in the model once more */
        const struct part *part = &fields->parts[__builtin_ctzll(again)];
        set_part(fields, header, part, (struct text){model + part->begin, part->end - part->begin});
    }
    fields->changed = changed;
    return 1;
}

/* Take a number without an exponent. */
static int take_number(struct reader *r) {
    const uint8_t *begin = r->at += *r->at == '-', *point;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
    if (r->at == begin || r->at - begin > 18 || (*begin == '0' && r->at - begin > 1)) return 0;
    if (r->at < r->end && *r->at == '.') {
        point = r->at++;
        while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
        if (r->at - point < 2 || r->at - point > 18) return 0;
    }
    return r->at < r->end && *r->at != '.' && *r->at != 'e' && *r->at != 'E';
}

/* Take what nobody asks for beside the fields, with what is in it down to so many levels. */
static int take_unknown(struct reader *r, int levels) {
    struct text name;
    int first = peek(r), last = first == '{' ? '}' : ']';
    if (first == '-' || (first >= '0' && first <= '9')) return take_number(r);
    if (first != '{' && first != '[') return take_any(r);
    if (levels == 0) return 0;
    r->at++;
    if (take(r, last)) return 1;
    do {
        if (first == '{' && (!take_string(r, &name) || !take(r, ':'))) return 0;
        if (!take_unknown(r, levels - 1)) return 0;
    } while (take(r, ','));
    return take(r, last);
}

static int take_json(struct reader *r, struct header *header) {
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
        peek(r);
        const uint8_t *begin = r->at;
        done = which == CODE       ? take_int(r, &header->code)
               : which == OPAQUE   ? take_int(r, &header->opaque)
               : which == HAS_FLAG ? take_int(r, &header->frame_flag)
               : which == EXT      ? take_fields(r, header)
                                   : take_unknown(r, MAX_LEVELS);
        if (!done) return 0;
        if (r->fields != NULL && which == OPAQUE) note_part(r->fields, begin, r->at, MAX_FIELDS, FIELDS, 1);
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

static int take_compact(struct reader *r, struct header *header) {
    struct text remark, name, value;
    if (r->end - r->at < 17) return 0;
    header->code = (int16_t)get16(r->at); /* language and version follow */
    header->opaque = (int32_t)get32(r->at + 5);
    header->frame_flag = (int32_t)get32(r->at + 9);
    r->at += 13;
    if (!take_counted(r, 4, &remark) || r->end - r->at < 4) return 0;
    uint32_t length = get32(r->at);
    r->at += 4;
    if (length > (size_t)(r->end - r->at)) return 0;
    r->end = r->at + length;
    while (r->at < r->end) {
        if (!take_counted(r, 2, &name) || !take_counted(r, 4, &value)) return 0;
        if (name.length > 0 && value.length > 0) set_field(r, header, name, value);
    }
    r->is_unlike = 1;
    return 1;
}

/* What is read from now on is read in full. */
static void begin_fields(struct fields *fields, struct text model) {
    fields->count = fields->part_count = 0;
    fields->is_cut = 0;
    fields->model = model;
    fields->changed = 0;
}

int read_fields(struct text text, uint32_t encoding, uint8_t *scratch, int64_t scratch_room, struct header *header,
                struct fields *fields) {
    struct reader r = {text.at, text.at + text.length, scratch, scratch + scratch_room, fields, 0};
    begin_fields(fields, text);
    memset(header, 0, sizeof *header);
    int is_read = encoding == 0 ? take_json(&r, header) : encoding == 1 && take_compact(&r, header);
    return is_read && !fields->is_cut;
}

int read_header(struct text text, uint32_t encoding, uint8_t **scratch, uint8_t *scratch_end, struct header *header,
                struct fields *fields) {
    const struct reader begin = {text.at, text.at + text.length, *scratch, scratch_end, fields, 0};
    struct reader r = begin;
    if (fields != NULL) {
        fields->is_alike = encoding == 0 && fields->part_count > 0 && take_alike(&r, header);
        if (fields->is_alike) {
            *scratch = r.scratch;
            return 1;
        }
        begin_fields(fields, text);
        r = begin;
    }
    memset(header, 0, sizeof *header);
    int is_read = encoding == 0 ? take_json(&r, header) : encoding == 1 && take_compact(&r, header);
    is_read = is_read && header->named == (header->code == SEND_MESSAGE ? LONG : SHORT); /* which count is the twin's business */
    if (fields != NULL && (r.is_unlike || !is_read)) fields->part_count = 0;
    *scratch = r.scratch;
    return is_read;
}
