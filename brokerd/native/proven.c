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
    struct piece covered, body;
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

/* Whether the lane's digest in Base64 is the signature: all of it is compared. */
static int is_signature(const struct sha1_lanes *lanes, int lane, const uint8_t *signature) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t digest[SHA1_BYTES + 1] = {0}, difference = 0;
    put_digest(digest, lanes, lane);
    for (int i = 0; i < SIGNATURE_BYTES - 1; i++) {
        const uint8_t *three = digest + i / 4 * 3;
        uint32_t bits = (uint32_t)three[0] << 16 | (uint32_t)three[1] << 8 | three[2];
        difference |= signature[i] ^ (uint8_t)digits[bits >> (18 - 6 * (i % 4)) & 63];
    }
    return (difference | (signature[SIGNATURE_BYTES - 1] ^ '=')) == 0;
}

static void begin_send(struct proving *all, int number) {
    struct lane *lane = &all->lanes[number];
    const struct signed_send *send = &all->areas->sends[all->begun];
    lane->send = all->begun++;
    lane->covered = (struct piece){all->areas->texts + send->covered_at, send->covered_end - send->covered_at};
    lane->body = (struct piece){all->buffer + send->body_at, send->end - send->body_at};
    lane->position = lane->is_outer = 0;
    lane->end = (lane->covered.length + lane->body.length + END_BYTES + SHA1_BLOCK_BYTES - 1) / SHA1_BLOCK_BYTES * SHA1_BLOCK_BYTES;
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
    int64_t at = lane->position, covered = lane->covered.length, length = covered + lane->body.length;
    if (at + SHA1_BLOCK_BYTES <= covered) {
        lane->at = lane->covered.at + at;
        lane->left = (covered - at) / SHA1_BLOCK_BYTES;
    } else if (at >= covered && at + SHA1_BLOCK_BYTES <= length) {
        lane->at = lane->body.at + (at - covered);
        lane->left = (length - at) / SHA1_BLOCK_BYTES;
    } else {
        memset(lane->block, 0, sizeof lane->block);
        put_piece(lane, lane->covered, 0);
        put_piece(lane, lane->body, covered);
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
