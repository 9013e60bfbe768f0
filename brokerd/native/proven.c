/* Which signed sends carry the signature that their senders' keys give: HMAC-SHA1 in Base64 over covered values and body. The twin is
 * remoting/access/signature.py; brokerd/sending/native_signed.py calls this for what native_signed told of a buffer.
 *
 *   native_proves   whether this processor does it faster than the twin
 *   native_keyed    what depends on a key alone
 *   native_proven   how many sends, from the first on, are signed
 *
 * Each lane has a send in it, and takes the next one when that is done, so sends of any lengths keep all lanes busy. How long it
 * takes depends on lengths, and on nothing that is secret.
 *
 * Bounds. Input: the sends are as native_signed wrote them for the same buffer and texts, and there is a key for each sender that
 * they name. A block is read where it lies when all of it is in one piece, and is put together in its lane when not.
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
    int64_t position, last; /* of the next block, and of the last, in the message */
    int is_outer;
    uint8_t block[SHA1_BLOCK_BYTES];
};

/* Put what of the piece lies in the lane's block there; the piece begins at `begin` of the message. */
static void put_piece(struct lane *lane, struct piece piece, int64_t begin) {
    int64_t from = lane->position > begin ? lane->position : begin;
    int64_t to = lane->position + SHA1_BLOCK_BYTES < begin + piece.length ? lane->position + SHA1_BLOCK_BYTES : begin + piece.length;
    if (from < to) memcpy(lane->block + (from - lane->position), piece.at + (from - begin), (size_t)(to - from));
}

static const uint8_t *next_block(struct lane *lane) {
    int64_t at = lane->position, length = lane->covered.length + lane->body.length;
    if (lane->is_outer || lane->send < 0) return lane->block;
    if (at + SHA1_BLOCK_BYTES <= lane->covered.length) return lane->covered.at + at;
    if (at >= lane->covered.length && at + SHA1_BLOCK_BYTES <= length) return lane->body.at + (at - lane->covered.length);
    memset(lane->block, 0, sizeof lane->block);
    put_piece(lane, lane->covered, 0);
    put_piece(lane, lane->body, lane->covered.length);
    if (length >= at && length < at + SHA1_BLOCK_BYTES) lane->block[length - at] = 0x80;
    if (at == lane->last) put64(lane->block + SHA1_BLOCK_BYTES - 8, 8 * (uint64_t)(SHA1_BLOCK_BYTES + length));
    return lane->block;
}

static void set_words(struct sha1_lanes *lanes, int lane, const uint32_t *words) {
    for (int i = 0; i < SHA1_WORDS; i++) lanes->words[i][lane] = words[i];
}

/* The lane's digest becomes the message of the outer one. */
static void begin_outer(struct lane *lane, const struct sha1_lanes *lanes, int number) {
    memset(lane->block, 0, sizeof lane->block);
    for (int i = 0; i < SHA1_WORDS; i++) put32(lane->block + 4 * i, lanes->words[i][number]);
    lane->block[SHA1_BYTES] = 0x80;
    put64(lane->block + SHA1_BLOCK_BYTES - 8, OUTER_BITS);
    lane->is_outer = 1;
}

/* Whether the lane's digest in Base64 is the signature: all of it is compared. */
static int is_signature(const struct sha1_lanes *lanes, int lane, const uint8_t *signature) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t digest[SHA1_BYTES + 1] = {0}, difference = 0;
    for (int i = 0; i < SHA1_WORDS; i++) put32(digest + 4 * i, lanes->words[i][lane]);
    for (int i = 0; i < SIGNATURE_BYTES - 1; i++) {
        const uint8_t *three = digest + i / 4 * 3;
        uint32_t bits = (uint32_t)three[0] << 16 | (uint32_t)three[1] << 8 | three[2];
        difference |= signature[i] ^ (uint8_t)digits[bits >> (18 - 6 * (i % 4)) & 63];
    }
    return (difference | (signature[SIGNATURE_BYTES - 1] ^ '=')) == 0;
}

EXPORT int32_t native_proves(void) { return sha1_is_fast(); }

/* `blocks` are the first of both digests, one behind the other. */
EXPORT void native_keyed(const uint8_t *blocks, struct key *key) {
    static const uint32_t begin[SHA1_WORDS] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
    struct sha1_lanes lanes;
    const uint8_t *at[SHA1_LANES];
    for (int i = 0; i < SHA1_LANES; i++) {
        set_words(&lanes, i, begin);
        at[i] = blocks + i % 2 * SHA1_BLOCK_BYTES;
    }
    sha1_step(&lanes, at);
    for (int i = 0; i < SHA1_WORDS; i++) {
        key->inner[i] = lanes.words[i][0];
        key->outer[i] = lanes.words[i][1];
    }
}

EXPORT int64_t native_proven(const uint8_t *buffer, const uint8_t *texts, const struct signed_send *sends, int64_t count, const struct key *keys) {
    struct sha1_lanes states = {0};
    struct lane lanes[SHA1_LANES] = {0};
    const uint8_t *blocks[SHA1_LANES];
    int64_t begun = 0, ended = 0, proven = count;
    for (int i = 0; i < SHA1_LANES; i++) lanes[i].send = -1;
    while (ended < count) {
        for (int i = 0; i < SHA1_LANES; i++) {
            struct lane *lane = &lanes[i];
            if (lane->send < 0 && begun < count) {
                const struct signed_send *send = &sends[begun];
                lane->send = begun++;
                lane->covered = (struct piece){texts + send->covered_at, send->covered_end - send->covered_at};
                lane->body = (struct piece){buffer + send->body_at, send->end - send->body_at};
                lane->position = lane->is_outer = 0;
                lane->last = (lane->covered.length + lane->body.length + END_BYTES - 1) / SHA1_BLOCK_BYTES * SHA1_BLOCK_BYTES;
                set_words(&states, i, keys[send->sender].inner);
            }
            blocks[i] = next_block(lane);
        }
        sha1_step(&states, blocks);
        for (int i = 0; i < SHA1_LANES; i++) {
            struct lane *lane = &lanes[i];
            if (lane->send < 0) continue;
            const struct signed_send *send = &sends[lane->send];
            if (lane->is_outer) {
                if (!is_signature(&states, i, texts + send->signature_at) && lane->send < proven) proven = lane->send;
                lane->send = -1;
                ended++;
            } else if (lane->position == lane->last) {
                begin_outer(lane, &states, i);
                set_words(&states, i, keys[send->sender].outer);
            } else {
                lane->position += SHA1_BLOCK_BYTES;
            }
        }
    }
    return proven;
}
