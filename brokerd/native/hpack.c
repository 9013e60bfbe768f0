/* Header blocks (HPACK, RFC 7541), decoded. The twin, which says what is right, is brokerd/proxy/http2/hpack.py; its caller is
 * brokerd/proxy/http2/native_hpack.py.
 *
 * A connection's dynamic table is a `table` in the caller's memory; of all zeros, it is that of a new connection. A block that is
 * refused leaves it as it is then: the connection is over.
 *
 * Besides the fields, each decoded block gives its key: the same bytes for all blocks that differ only in the values of those
 * fields that are each call's or each client's own. So what such a block means need be found out once.
 *
 * Bounds: a block comes with its end, which each read is compared with; a table's entries take TABLE_BYTES at most with OVERHEAD for
 * each, so they are MAX_ENTRIES at most and their text fits; what is written goes through `room`, which knows its end.
 */
#include "native.h"

#define TABLE_BYTES 4096
#define OVERHEAD 32
#define MAX_ENTRIES (TABLE_BYTES / OVERHEAD)
#define STATIC_ENTRIES 61
#define MAX_INTEGER_BYTES 5
#define SYMBOLS 257
#define END_OF_STRING 256
#define LONGEST_CODE 30
#define SHORTEST_CODE 5
#define FIELD_HEAD 4     /* lengths of name and value, of a field as it is given back */
#define IS_OWN 0x8000u   /* in a key: of this field's value, nothing follows */
#define MAX_LENGTH 0x7FFF /* of a name or value that can be given back */

/* brokerd/proxy/http2/native_hpack.py has the same numbers. */
enum { DONE, CUT_OFF, NO_ENTRY, LATE_SIZE, LARGE_TABLE, LONG_INTEGER, CUT_STRING, BAD_SYMBOL, BAD_PADDING, LARGE_LIST };
/* What is said of a block: how long its fields and its key are, whether its own fields are odd, and where their values are. */
enum { FIELDS_LENGTH, KEY_LENGTH, IS_ODD, OWN_PLACES };

typedef struct {
    uint32_t changes;  /* by blocks, so far */
    uint32_t held_back; /* how much less than TABLE_BYTES the peer lets its table take */
    uint32_t count, bytes; /* of the entries; bytes with OVERHEAD */
    uint16_t name_length[MAX_ENTRIES], value_length[MAX_ENTRIES]; /* oldest first, as their texts */
    uint8_t text[TABLE_BYTES];
} table;

typedef struct {
    const uint8_t *at;
    uint32_t length;
} string;

typedef struct {
    const uint8_t *at, *end;
} reader;

typedef struct {
    uint8_t *at, *end;
} room;

static const struct {
    const char *name, *value;
} static_entries[STATIC_ENTRIES] = {
    {":authority", ""}, {":method", "GET"}, {":method", "POST"}, {":path", "/"}, {":path", "/index.html"},
    {":scheme", "http"}, {":scheme", "https"}, {":status", "200"}, {":status", "204"}, {":status", "206"},
    {":status", "304"}, {":status", "400"}, {":status", "404"}, {":status", "500"}, {"accept-charset", ""},
    {"accept-encoding", "gzip, deflate"}, {"accept-language", ""}, {"accept-ranges", ""}, {"accept", ""},
    {"access-control-allow-origin", ""}, {"age", ""}, {"allow", ""}, {"authorization", ""}, {"cache-control", ""},
    {"content-disposition", ""}, {"content-encoding", ""}, {"content-language", ""}, {"content-length", ""},
    {"content-location", ""}, {"content-range", ""}, {"content-type", ""}, {"cookie", ""}, {"date", ""}, {"etag", ""},
    {"expect", ""}, {"expires", ""}, {"from", ""}, {"host", ""}, {"if-match", ""}, {"if-modified-since", ""},
    {"if-none-match", ""}, {"if-range", ""}, {"if-unmodified-since", ""}, {"last-modified", ""}, {"link", ""},
    {"location", ""}, {"max-forwards", ""}, {"proxy-authenticate", ""}, {"proxy-authorization", ""}, {"range", ""},
    {"referer", ""}, {"refresh", ""}, {"retry-after", ""}, {"server", ""}, {"set-cookie", ""},
    {"strict-transport-security", ""}, {"transfer-encoding", ""}, {"user-agent", ""}, {"vary", ""}, {"via", ""},
    {"www-authenticate", ""},
};

/* How many bits the code of each symbol has. Codes are canonical: of one length they are consecutive, in the order of symbols, and
 * a longer one begins behind all shorter ones. */
static const uint8_t code_lengths[SYMBOLS] = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28,
    28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6,
    12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15,
    5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20,
    22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22,
    23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26,
    27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
};

static string static_names[STATIC_ENTRIES], static_values[STATIC_ENTRIES];
static uint16_t symbols[SYMBOLS];              /* in the order of their codes */
static uint32_t first_code[LONGEST_CODE + 2]; /* of each length */
static uint16_t first_symbol[LONGEST_CODE + 2]; /* its place in `symbols` */

void make_hpack_tables(void) {
    uint32_t code = 0;
    uint16_t place = 0;
    for (int length = 1; length <= LONGEST_CODE; length++) {
        first_code[length] = code;
        first_symbol[length] = place;
        for (uint16_t symbol = 0; symbol < SYMBOLS; symbol++)
            if (code_lengths[symbol] == length) symbols[place++] = symbol;
        code = (code + (uint32_t)(place - first_symbol[length])) << 1;
    }
    first_symbol[LONGEST_CODE + 1] = place;
    for (int n = 0; n < STATIC_ENTRIES; n++) {
        const char *name = static_entries[n].name, *value = static_entries[n].value;
        static_names[n] = (string){(const uint8_t *)name, (uint32_t)strlen(name)};
        static_values[n] = (string){(const uint8_t *)value, (uint32_t)strlen(value)};
    }
}

/* ---- what a block is made of */

static int read_integer(reader *from, uint8_t mask, uint64_t *value) {
    if (from->at == from->end) return CUT_OFF;
    *value = *from->at++ & mask;
    if (*value < mask) return DONE;
    for (int n = 0; n < MAX_INTEGER_BYTES; n++) {
        if (from->at == from->end) return CUT_OFF;
        uint8_t byte = *from->at++;
        *value += (uint64_t)(byte & 0x7F) << (7 * n);
        if (byte < 0x80) return DONE;
    }
    return LONG_INTEGER;
}

/* The decoded string, written to `to`. A symbol's code is looked for by its length, from the shortest on. */
static int decode_huffman(string coded, room *to) {
    uint64_t bits = 0; /* the lowest `count` of them wait */
    int count = 0;
    const uint8_t *at = coded.at, *end = coded.at + coded.length;
    for (;;) {
        for (; count <= 32 && at < end; count += 8) bits = bits << 8 | *at++;
        int length = SHORTEST_CODE;
        for (; length <= LONGEST_CODE && length <= count; length++) {
            uint32_t code = (uint32_t)(bits >> (count - length)) & ((1u << length) - 1);
            uint32_t number = code - first_code[length];
            if (code >= first_code[length] && number < (uint32_t)(first_symbol[length + 1] - first_symbol[length])) {
                uint16_t symbol = symbols[first_symbol[length] + number];
                if (symbol == END_OF_STRING) return BAD_SYMBOL;
                if (to->at == to->end) return LARGE_LIST;
                *to->at++ = (uint8_t)symbol;
                break;
            }
        }
        if (length <= LONGEST_CODE && length <= count) {
            count -= length;
            continue;
        }
        /* what is left is no whole code: fewer than eight ones */
        return count < 8 && (bits & ((1u << count) - 1)) == (1u << count) - 1 ? DONE : BAD_PADDING;
    }
}

/* A string literal, written to `to`. */
static int read_string(reader *from, room *to, string *found) {
    if (from->at == from->end) return CUT_OFF;
    int is_coded = *from->at & 0x80;
    uint64_t length;
    int fault = read_integer(from, 0x7F, &length);
    if (fault != DONE) return fault;
    if (length > (uint64_t)(from->end - from->at)) return CUT_STRING;
    string plain = {from->at, (uint32_t)length};
    from->at += length;
    uint8_t *begin = to->at;
    if (is_coded) {
        fault = decode_huffman(plain, to);
        if (fault != DONE) return fault;
    } else {
        if (length > (uint64_t)(to->end - to->at)) return LARGE_LIST;
        memcpy(to->at, plain.at, plain.length);
        to->at += plain.length;
    }
    *found = (string){begin, (uint32_t)(to->at - begin)};
    return DONE;
}

/* ---- the dynamic table */

static void evict(table *entries, uint32_t limit) {
    uint32_t gone = 0, text = 0, all = 0;
    while (gone < entries->count && entries->bytes > limit) {
        uint32_t length = (uint32_t)entries->name_length[gone] + entries->value_length[gone];
        entries->bytes -= length + OVERHEAD;
        text += length;
        gone++;
    }
    if (!gone) return;
    entries->count -= gone;
    all = entries->bytes - entries->count * OVERHEAD;
    memmove(entries->name_length, entries->name_length + gone, entries->count * sizeof(uint16_t));
    memmove(entries->value_length, entries->value_length + gone, entries->count * sizeof(uint16_t));
    memmove(entries->text, entries->text + text, all);
}

/* Name and value are not in the table's own memory. */
static void add(table *entries, string name, string value) {
    uint32_t most = TABLE_BYTES - entries->held_back;
    uint64_t size = (uint64_t)name.length + value.length + OVERHEAD;
    entries->changes++;
    if (size > most) {
        evict(entries, 0);
        return;
    }
    evict(entries, most - (uint32_t)size);
    uint8_t *text = entries->text + (entries->bytes - entries->count * OVERHEAD);
    memcpy(text, name.at, name.length);
    memcpy(text + name.length, value.at, value.length);
    entries->name_length[entries->count] = (uint16_t)name.length;
    entries->value_length[entries->count] = (uint16_t)value.length;
    entries->count++;
    entries->bytes += (uint32_t)size;
}

static int find_entry(const table *entries, uint64_t index, string *name, string *value) {
    if (index == 0 || index > STATIC_ENTRIES + (uint64_t)entries->count) return NO_ENTRY;
    if (index <= STATIC_ENTRIES) {
        *name = static_names[index - 1];
        *value = static_values[index - 1];
        return DONE;
    }
    uint32_t place = entries->count - (uint32_t)(index - STATIC_ENTRIES); /* the newest has the lowest index */
    const uint8_t *end = entries->text + (entries->bytes - entries->count * OVERHEAD);
    for (uint32_t n = entries->count; n-- > place;) end -= (uint32_t)entries->name_length[n] + entries->value_length[n];
    *name = (string){end, entries->name_length[place]};
    *value = (string){end + name->length, entries->value_length[place]};
    return DONE;
}

/* ---- a block */

static int copy(room *to, string *text) {
    if (text->length > (uint64_t)(to->end - to->at)) return LARGE_LIST;
    memcpy(to->at, text->at, text->length);
    text->at = to->at;
    to->at += text->length;
    return DONE;
}

/* One field, written to `to`; what it adds to the table is added. */
static int read_field(table *entries, reader *from, room *to, string *name, string *value) {
    uint8_t first = *from->at;
    uint64_t index;
    int fault;
    if (to->end - to->at < FIELD_HEAD) return LARGE_LIST;
    to->at += FIELD_HEAD;
    if (first & 0x80) {
        if ((fault = read_integer(from, 0x7F, &index)) != DONE) return fault;
        if ((fault = find_entry(entries, index, name, value)) != DONE) return fault;
        if ((fault = copy(to, name)) != DONE) return fault;
        return copy(to, value);
    }
    uint8_t mask = first & 0x40 ? 0x3F : 0x0F;
    if (first & mask) {
        if ((fault = read_integer(from, mask, &index)) != DONE) return fault;
        if ((fault = find_entry(entries, index, name, value)) != DONE) return fault;
        if ((fault = copy(to, name)) != DONE) return fault;
    } else {
        from->at++;
        if ((fault = read_string(from, to, name)) != DONE) return fault;
    }
    if ((fault = read_string(from, to, value)) != DONE) return fault;
    if (first & 0x40) add(entries, *name, *value);
    return DONE;
}

static int read_size(table *entries, reader *from, int is_late) {
    uint64_t size;
    if (is_late) return LATE_SIZE;
    int fault = read_integer(from, 0x1F, &size);
    if (fault != DONE) return fault;
    if (size > TABLE_BYTES) return LARGE_TABLE;
    entries->changes++;
    entries->held_back = TABLE_BYTES - (uint32_t)size;
    evict(entries, (uint32_t)size);
    return DONE;
}

/* ---- a block's key */

static int is_plain(string value) {
    if (value.length && (value.at[0] <= ' ' || value.at[value.length - 1] <= ' ')) return 0;
    for (uint32_t n = 0; n < value.length; n++)
        if (value.at[n] < ' ') return 0;
    return 1;
}

static int own_number(string name, const uint8_t *own, int32_t count) {
    for (int32_t n = 0; n < count; own += 1 + *own, n++)
        if (*own == name.length && !memcmp(own + 1, name.at, name.length)) return n;
    return -1;
}

/* The key, behind the fields; and where the values of own fields are, -1 for none. */
static void write_key(const uint8_t *fields, const uint8_t *end, const uint8_t *own, int32_t count, uint8_t *to, int32_t *said) {
    uint8_t *begin = to;
    for (int32_t n = 0; n < count; n++) said[OWN_PLACES + 2 * n] = said[OWN_PLACES + 2 * n + 1] = -1;
    for (const uint8_t *at = fields; at < end;) {
        string name = {at + FIELD_HEAD, get16(at)}, value = {at + FIELD_HEAD + get16(at), get16(at + 2)};
        uint32_t length = FIELD_HEAD + name.length + value.length;
        int number = own_number(name, own, count);
        if (number < 0) {
            memcpy(to, at, length);
            to += length;
        } else {
            int32_t *place = said + OWN_PLACES + 2 * number;
            said[IS_ODD] |= *place >= 0 || !is_plain(value);
            place[0] = (int32_t)(value.at - fields);
            place[1] = place[0] + (int32_t)value.length;
            put16(to, (uint16_t)(name.length | IS_OWN));
            put16(to + 2, 0);
            memcpy(to + FIELD_HEAD, name.at, name.length);
            to += FIELD_HEAD + name.length;
        }
        at += length;
    }
    said[KEY_LENGTH] = (int32_t)(to - begin);
}

/* How blocks are to be decoded, and where to. `own`: the names of `count` fields, each behind its length, no name
 * twice. `out` has `capacity` bytes: the fields go into its first half, the key behind them. `said` has OWN_PLACES + 2 * count
 * numbers. brokerd/proxy/http2/native_hpack.py has the same struct. */
typedef struct {
    const uint8_t *own;
    uint8_t *out;
    int32_t *said;
    int64_t capacity, max_list_bytes;
    int32_t count;
} orders;

/* Decode a block: which fault it has, or DONE. */
EXPORT int32_t native_decode_headers(void *state, const uint8_t *block, int64_t length, const orders *given) {
    table *entries = state;
    uint8_t *out = given->out;
    int32_t *said = given->said;
    reader from = {block, block + length};
    room to = {out, out + given->capacity / 2};
    int64_t list_bytes = 0;
    while (from.at < from.end) {
        int fault;
        if ((*from.at & 0xE0) == 0x20) {
            if ((fault = read_size(entries, &from, to.at != out)) != DONE) return fault;
            continue;
        }
        uint8_t *begin = to.at;
        string name, value;
        if ((fault = read_field(entries, &from, &to, &name, &value)) != DONE) return fault;
        list_bytes += (int64_t)name.length + value.length + OVERHEAD;
        if (list_bytes > given->max_list_bytes || name.length > MAX_LENGTH || value.length > MAX_LENGTH) return LARGE_LIST;
        put16(begin, (uint16_t)name.length);
        put16(begin + 2, (uint16_t)value.length);
    }
    said[FIELDS_LENGTH] = (int32_t)(to.at - out);
    said[IS_ODD] = 0;
    write_key(out, to.at, given->own, given->count, to.at, said);
    return DONE;
}

EXPORT int64_t native_header_table_bytes(void) { return sizeof(table); }
