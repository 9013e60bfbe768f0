/* Which signed sends carry the signature that their senders' keys give: HMAC-SHA1 in Base64 over covered values and body. The twin is
 * remoting/access/signature.py; brokerd/sending/native_signed.py calls this for what native_signed told of a buffer.
 *
 *   native_keyed    what depends on a key alone
 *   native_proven   how many sends, from the first on, are signed
 *
 * Each lane has a send in it, and takes the next one when that is done, so sends of any lengths keep all lanes busy. How long it
 * takes depends on lengths, on which send is the first that is not signed, and on nothing that is secret.
 *
 * Bounds. Input: the sends are as native_signed wrote them for the same buffer and texts, and there is a key for each sender that
 * they name. Blocks are read where they lie when they are in one piece, and one that is not is put together in its lane; lanes
 * without a send read what another one reads.
 */
#include "sha1.h"
#include "signed.h"

enum {
    END_BYTES = 9, /* a message ends with a byte and its length in bits */
    OUTER_BITS = 8 * (SHA1_BLOCK_BYTES + SHA1_BYTES),
};

struct key { /* where the digests begin: inside, behind the first block of each */
    uint32_t inner[SHA1_WORDS], outer[SHA1_WORDS];
};

struct piece {
    const uint8_t *at;
    int64_t length;
};

struct lane {
    int64_t send; /* < 0: none */
    struct piece first, rest; /* the texts, with the body's first bytes behind them; the body's others */
    int64_t position, end; /* of the next block in the message, and of all its blocks */
    const uint8_t *at;     /* blocks to take, one behind the other, */
    int64_t left;          /* and how many */
    int is_outer;
    uint8_t block[SHA1_BLOCK_BYTES];
};

struct proving {
    const struct signed_areas *areas;
    const uint8_t *buffer;
    const struct key *keys;
    int64_t begun, proven; /* sends that were begun; that are signed, as far as is known */
    struct sha1_lanes states;
    struct lane lanes[SHA1_LANES];
};

static void set_words(struct sha1_lanes *lanes, int lane, const uint32_t *words) {
    for (int i = 0; i < SHA1_WORDS; i++) lanes->words[i][lane] = words[i];
}

static void put_digest(uint8_t *at, const struct sha1_lanes *lanes, int lane) {
    for (int i = 0; i < SHA1_WORDS; i++) put32(at + 4 * i, lanes->words[i][lane]);
}

/* Six bytes in Base64: eight digits. They are reckoned, as where a secret is looked up in a table can be seen. */
static inline uint64_t digits_of(uint64_t bytes) {
    const uint64_t ones = 0x0101010101010101u;
    bytes = (bytes & 0xFFFFFF000000u) << 8 | (bytes & 0xFFFFFFu);
    bytes = (bytes & 0x00FFF00000FFF000u) << 4 | (bytes & 0x00000FFF00000FFFu);
    bytes = (bytes & 0x0FC00FC00FC00FC0u) << 2 | (bytes & 0x003F003F003F003Fu); /* six bits each */
#define ABOVE(value) ((bytes + ones * (127 - (value))) >> 7 & ones)
    return bytes + ones * 'A' + ABOVE(25) * ('a' - 'Z' - 1) - ABOVE(51) * ('z' + 1 - '0') - ABOVE(61) * ('9' + 1 - '+') +
           ABOVE(62) * ('/' - '+' - 1);
#undef ABOVE
}

/* Whether the lane's digest in Base64 is the signature: all of it is compared. */
static int is_signature(const struct sha1_lanes *lanes, int lane, const uint8_t *signature) {
    uint64_t words[SHA1_WORDS], difference = 0;
    for (int i = 0; i < SHA1_WORDS; i++) words[i] = lanes->words[i][lane];
    difference |= digits_of(words[0] << 16 | words[1] >> 16) ^ get64(signature);
    difference |= digits_of((words[1] & 0xFFFF) << 32 | words[2]) ^ get64(signature + 8);
    difference |= digits_of(words[3] << 16 | words[4] >> 16) ^ get64(signature + 16);
    difference |= ((digits_of((words[4] & 0xFFFF) << 32) >> 32 & 0xFFFFFF00u) | '=') ^ get32(signature + 24);
    return difference == 0;
}

static void begin_send(struct proving *all, int number) {
    struct lane *lane = &all->lanes[number];
    const struct signed_send *send = &all->areas->sends[all->begun];
    lane->send = all->begun++;
    int64_t covered = send->covered_end - send->covered_at, body = send->end - send->body_at, drawn = drawn_bytes(covered, body);
    lane->first = (struct piece){all->areas->texts + send->covered_at, covered + drawn};
    lane->rest = (struct piece){all->buffer + send->body_at + drawn, body - drawn};
    lane->position = lane->is_outer = 0;
    lane->end = (lane->first.length + lane->rest.length + END_BYTES + SHA1_BLOCK_BYTES - 1) / SHA1_BLOCK_BYTES * SHA1_BLOCK_BYTES;
    set_words(&all->states, number, all->keys[send->sender].inner);
}

/* The lane's digest becomes the message of the outer one. */
static void begin_outer(struct proving *all, int number) {
    struct lane *lane = &all->lanes[number];
    memset(lane->block, 0, sizeof lane->block);
    put_digest(lane->block, &all->states, number);
    lane->block[SHA1_BYTES] = 0x80;
    put64(lane->block + SHA1_BLOCK_BYTES - 8, OUTER_BITS);
    lane->at = lane->block;
    lane->left = lane->is_outer = 1;
    set_words(&all->states, number, all->keys[all->areas->sends[lane->send].sender].outer);
}

/* Put what of the piece lies in the lane's block there; the piece begins at `begin` of the message. */
static void put_piece(struct lane *lane, struct piece piece, int64_t begin) {
    int64_t from = lane->position > begin ? lane->position : begin;
    int64_t to = lane->position + SHA1_BLOCK_BYTES < begin + piece.length ? lane->position + SHA1_BLOCK_BYTES : begin + piece.length;
    if (from < to) memcpy(lane->block + (from - lane->position), piece.at + (from - begin), (size_t)(to - from));
}

/* Find as many of the message's next blocks as are in one piece, or put one together. */
static void find_blocks(struct lane *lane) {
    int64_t at = lane->position, first = lane->first.length, length = first + lane->rest.length;
    if (at + SHA1_BLOCK_BYTES <= first) {
        lane->at = lane->first.at + at;
        lane->left = (first - at) / SHA1_BLOCK_BYTES;
    } else if (at >= first && at + SHA1_BLOCK_BYTES <= length) {
        lane->at = lane->rest.at + (at - first);
        lane->left = (length - at) / SHA1_BLOCK_BYTES;
    } else {
        memset(lane->block, 0, sizeof lane->block);
        put_piece(lane, lane->first, 0);
        put_piece(lane, lane->rest, first);
        if (length >= at && length < at + SHA1_BLOCK_BYTES) lane->block[length - at] = 0x80;
        lane->at = lane->block;
        lane->left = 1;
        if (at + SHA1_BLOCK_BYTES == lane->end)
            put64(lane->block + SHA1_BLOCK_BYTES - 8, 8 * (uint64_t)(SHA1_BLOCK_BYTES + length));
    }
    lane->position += lane->left * SHA1_BLOCK_BYTES;
}

/* The lane has no blocks left: go on in its send, or with the next one if there is one. */
static void go_on(struct proving *all, int number) {
    struct lane *lane = &all->lanes[number];
    if (lane->send >= 0 && lane->is_outer) {
        const uint8_t *signature = all->areas->texts + all->areas->sends[lane->send].signature_at;
        if (!is_signature(&all->states, number, signature) && lane->send < all->proven) all->proven = lane->send;
        lane->send = -1;
    }
    if (lane->send < 0 && all->begun < all->proven) begin_send(all, number);
    if (lane->send < 0) return;
    if (lane->position < lane->end) find_blocks(lane);
    else begin_outer(all, number);
}

/* `blocks` are the first of both digests, one behind the other. */
EXPORT void native_keyed(const uint8_t *blocks, struct key *key) {
    static const uint32_t begin[SHA1_WORDS] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
    for (int which = 0; which < 2; which++, blocks += SHA1_BLOCK_BYTES) {
        struct sha1_lanes lanes;
        set_words(&lanes, 0, begin);
        sha1_step(&lanes, &blocks, 1, 1);
        for (int i = 0; i < SHA1_WORDS; i++) (which ? key->outer : key->inner)[i] = lanes.words[i][0];
    }
}

/* Of `count` sends. They are checked in the way that is best for so many as `as_of`, which is as many but for tests. */
EXPORT int64_t native_proven(const struct signed_areas *areas, const uint8_t *buffer, int64_t count, const struct key *keys, int64_t as_of) {
    struct proving all;
    int lanes = sha1_lanes_for(as_of);
    all.buffer = buffer;
    all.areas = areas;
    all.keys = keys;
    all.begun = 0;
    all.proven = count;
    for (int i = 0; i < lanes; i++) {
        all.lanes[i].send = -1;
        all.lanes[i].left = 0;
    }
    for (;;) {
        const uint8_t *blocks[SHA1_LANES], *shared = NULL;
        int64_t steps = 0; /* that all lanes have in them */
        for (int i = 0; i < lanes; i++) {
            struct lane *lane = &all.lanes[i];
            if (lane->left == 0) go_on(&all, i);
            if (lane->left == 0) continue;
            if (steps == 0 || lane->left < steps) steps = lane->left;
            shared = lane->at;
        }
        if (steps == 0) return all.proven;
        for (int i = 0; i < lanes; i++) {
            struct lane *lane = &all.lanes[i];
            blocks[i] = lane->left > 0 ? lane->at : shared;
            if (lane->left == 0) continue;
            lane->at += steps * SHA1_BLOCK_BYTES;
            lane->left -= steps;
        }
        sha1_step(&all.states, blocks, steps, lanes);
    }
}
