/* Tags of recall handles: keyed BLAKE2s (RFC 7693) of 16 bytes. The twin is hashlib's, as brokerd/timers/handles.py uses it. */
#include "blake2s.h"

enum { BLOCK_BYTES = 64 };

static const uint32_t initial[8] = {
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
};

static inline uint32_t turned(uint32_t value, int bits) { return value >> bits | value << (32 - bits); }

static inline void mix(uint32_t *v, int a, int b, int c, int d, uint32_t x, uint32_t y) {
    v[a] += v[b] + x;
    v[d] = turned(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = turned(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = turned(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = turned(v[b] ^ v[c], 7);
}

/* A round, which takes the words of the block in that order: written out, since the compiler then knows where each is. */
#define ROUND(a, b, c, d, e, f, g, h, i, j, k, l, n, o, p, q) \
    mix(v, 0, 4, 8, 12, m[a], m[b]);                          \
    mix(v, 1, 5, 9, 13, m[c], m[d]);                          \
    mix(v, 2, 6, 10, 14, m[e], m[f]);                         \
    mix(v, 3, 7, 11, 15, m[g], m[h]);                         \
    mix(v, 0, 5, 10, 15, m[i], m[j]);                         \
    mix(v, 1, 6, 11, 12, m[k], m[l]);                         \
    mix(v, 2, 7, 8, 13, m[n], m[o]);                          \
    mix(v, 3, 4, 9, 14, m[p], m[q])

/* Take in a block of BLOCK_BYTES, up to whose end `count` bytes came in all. */
static void take_block(uint32_t *state, const uint8_t *block, uint64_t count, int is_last) {
    uint32_t v[16], m[16];
    for (int i = 0; i < 16; i++) m[i] = get32_little(block + 4 * i);
    memcpy(v, state, 32);
    memcpy(v + 8, initial, 32);
    v[12] ^= (uint32_t)count;
    v[13] ^= (uint32_t)(count >> 32);
    if (is_last) v[14] = ~v[14];
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3);
    ROUND(11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4);
    ROUND(7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8);
    ROUND(9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13);
    ROUND(2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9);
    ROUND(12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11);
    ROUND(13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10);
    ROUND(6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5);
    ROUND(10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0);
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
}

void begin_tags(uint32_t *keyed, const uint8_t *key) {
    uint8_t block[BLOCK_BYTES] = {0};
    memcpy(keyed, initial, sizeof initial);
    keyed[0] ^= 0x01010000 ^ TAG_KEY_BYTES << 8 ^ TAG_BYTES;
    memcpy(block, key, TAG_KEY_BYTES);
    take_block(keyed, block, BLOCK_BYTES, 0);
}

void tag_of(uint8_t *tag, const uint32_t *keyed, const uint8_t *data, size_t length) {
    uint32_t state[TAG_STATE];
    uint8_t block[BLOCK_BYTES];
    uint64_t count = BLOCK_BYTES;
    memcpy(state, keyed, sizeof state);
    for (; length > BLOCK_BYTES; data += BLOCK_BYTES, length -= BLOCK_BYTES)
        take_block(state, data, count += BLOCK_BYTES, 0);
    memset(block, 0, sizeof block);
    memcpy(block, data, length);
    take_block(state, block, count + length, 1);
    for (int i = 0; i < TAG_BYTES / 4; i++) put32_little(tag + 4 * i, state[i]);
}

/* For whoever holds them against the twin's. `data` has `length` bytes, at least one. */
EXPORT void native_tag(uint8_t *tag, const uint8_t *key, const uint8_t *data, size_t length) {
    uint32_t keyed[TAG_STATE];
    begin_tags(keyed, key);
    tag_of(tag, keyed, data, length);
}
