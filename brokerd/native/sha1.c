/* SHA-1 of several messages side by side. Its rounds wait for one another, so a single message leaves most of a processor idle. Where
 * there are instructions for the rounds, two side by side take the time of one; sixteen in vectors take a third less each, when there
 * are enough of them to fill these. Where vectors have fewer numbers the compiler makes each of several.
 *
 * Bounds: the caller has `count` blocks in each lane.
 */
#include "sha1.h"

enum { FEW = 8, FEW_WITHOUT_ROUNDS = 2 }; /* so many take less without vectors, where there are rounds and where not */

#define ROTATED(x, bits) ((x) << (bits) | (x) >> (32 - (bits)))
#define WORD(t) words[(t) & 15]
#define EXTEND(t) (WORD(t) = ROTATED(WORD((t) + 13) ^ WORD((t) + 8) ^ WORD((t) + 2) ^ WORD(t), 1))
#define ROUND(mixed, constant, t)                                                 \
    do {                                                                          \
        if ((t) >= 16) EXTEND(t);                                                 \
        next = ROTATED(a, 5) + (mixed) + e + (constant) + WORD(t);                \
        e = d, d = c, c = ROTATED(b, 30), b = a, a = next;                        \
    } while (0)
#define TWENTY(mixed, constant, first) \
    _Pragma("GCC unroll 20") for (int t = first; t < first + 20; t++) ROUND(mixed, constant, t)

/* Take the block that `words` are to `state`; both are arrays of `numbers`. */
#define TAKE_BLOCK(numbers)                                                                         \
    do {                                                                                            \
        numbers next, a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];         \
        TWENTY((b & c) | (~b & d), 0x5A827999u, 0);                                                 \
        TWENTY(b ^ c ^ d, 0x6ED9EBA1u, 20);                                                         \
        TWENTY((b & c) | ((b | c) & d), 0x8F1BBCDCu, 40);                                           \
        TWENTY(b ^ c ^ d, 0xCA62C1D6u, 60);                                                         \
        state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;                  \
    } while (0)

/* One lane, on any processor. */
static void step_plainly(struct sha1_lanes *of, const uint8_t *block, int64_t count) {
    uint32_t words[16], state[SHA1_WORDS];
    for (int i = 0; i < SHA1_WORDS; i++) state[i] = of->words[i][0];
    for (; count > 0; count--, block += SHA1_BLOCK_BYTES) {
        for (int t = 0; t < 16; t++) words[t] = get32(block + 4 * t);
        TAKE_BLOCK(uint32_t);
    }
    for (int i = 0; i < SHA1_WORDS; i++) of->words[i][0] = state[i];
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>

typedef uint32_t lanes16 __attribute__((vector_size(4 * SHA1_LANES)));

static int has_rounds, has_512_bits, has_256_bits;

static inline __m128i load(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)(const void *)at); }

static inline void store(uint32_t *at, __m128i low, __m128i high, int is_high) {
    _mm_storeu_si128((__m128i *)(void *)at, is_high ? _mm_unpackhi_epi64(low, high) : _mm_unpacklo_epi64(low, high));
}

/* Put four words of four lanes where each of the words has its lanes side by side. */
static inline void turn(uint32_t (*words)[SHA1_LANES], const uint8_t *const *blocks, int64_t at) {
    __m128i a = load(blocks[0] + at), b = load(blocks[1] + at), c = load(blocks[2] + at), d = load(blocks[3] + at);
    __m128i low = _mm_unpacklo_epi32(a, b), high = _mm_unpackhi_epi32(a, b);
    __m128i low_behind = _mm_unpacklo_epi32(c, d), high_behind = _mm_unpackhi_epi32(c, d);
    store(words[0], low, low_behind, 0);
    store(words[1], low, low_behind, 1);
    store(words[2], high, high_behind, 0);
    store(words[3], high, high_behind, 1);
}

/* All lanes, for whatever processor the caller is compiled for, which is one where `load_words` may be called. */
#define STEP(load_words)                                                                                  \
    do {                                                                                                  \
        lanes16 words[16], state[SHA1_WORDS];                                                             \
        memcpy(state, of->words, sizeof state);                                                           \
        for (int64_t at = 0; at < count * SHA1_BLOCK_BYTES; at += SHA1_BLOCK_BYTES) {                     \
            load_words(words, blocks, at);                                                                \
            TAKE_BLOCK(lanes16);                                                                          \
        }                                                                                                 \
        memcpy(of->words, state, sizeof state);                                                           \
    } while (0)

/* Load a block of each lane, each word from the most significant byte on. */
static inline __attribute__((always_inline)) void load_by_four(lanes16 words[16], const uint8_t *const *blocks, int64_t at) {
    for (int lane = 0; lane < SHA1_LANES; lane += 4)
        for (int t = 0; t < 16; t += 4)
            turn((uint32_t(*)[SHA1_LANES])((uint32_t *)(void *)&words[t] + lane), blocks + lane, at + 4 * t);
    for (int t = 0; t < 16; t++) words[t] = (ROTATED(words[t], 8) & 0x00FF00FFu) | (ROTATED(words[t], 24) & 0xFF00FF00u);
}

#define FOR_512_BITS __attribute__((target("avx512f,avx512bw,avx512vl")))

/* The same. A vector has a lane's block, then of four lanes each fourth word, then a word of each lane. */
FOR_512_BITS static inline void load_at_once(lanes16 words[16], const uint8_t *const *blocks, int64_t at) {
    const __m512i swapped = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
    __m512i four[4][4]; /* lanes, by which of their fourth words these are */
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) {
        __m512i of[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            of[i] = _mm512_shuffle_epi8(_mm512_loadu_si512((const void *)(blocks[4 * n + i] + at)), swapped);
        __m512i low = _mm512_unpacklo_epi32(of[0], of[1]), high = _mm512_unpackhi_epi32(of[0], of[1]);
        __m512i low_behind = _mm512_unpacklo_epi32(of[2], of[3]), high_behind = _mm512_unpackhi_epi32(of[2], of[3]);
        four[n][0] = _mm512_unpacklo_epi64(low, low_behind);
        four[n][1] = _mm512_unpackhi_epi64(low, low_behind);
        four[n][2] = _mm512_unpacklo_epi64(high, high_behind);
        four[n][3] = _mm512_unpackhi_epi64(high, high_behind);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i even = _mm512_shuffle_i32x4(four[0][i], four[1][i], 0x88), odd = _mm512_shuffle_i32x4(four[0][i], four[1][i], 0xdd);
        __m512i even_behind = _mm512_shuffle_i32x4(four[2][i], four[3][i], 0x88);
        __m512i odd_behind = _mm512_shuffle_i32x4(four[2][i], four[3][i], 0xdd);
        words[i] = (lanes16)_mm512_shuffle_i32x4(even, even_behind, 0x88);
        words[4 + i] = (lanes16)_mm512_shuffle_i32x4(odd, odd_behind, 0x88);
        words[8 + i] = (lanes16)_mm512_shuffle_i32x4(even, even_behind, 0xdd);
        words[12 + i] = (lanes16)_mm512_shuffle_i32x4(odd, odd_behind, 0xdd);
    }
}

FOR_512_BITS static void step_of_512_bits(struct sha1_lanes *of, const uint8_t *const *blocks, int64_t count) { STEP(load_at_once); }

__attribute__((target("avx2"))) static void step_of_256_bits(struct sha1_lanes *of, const uint8_t *const *blocks, int64_t count) {
    STEP(load_by_four);
}

#define PAIR _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)

/* Two lanes, by instructions of four rounds. */
__attribute__((target("sha,sse4.1"))) static void step_by_rounds(struct sha1_lanes *of, const uint8_t *const *blocks, int64_t count) {
    const __m128i swapped = _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f);
    __m128i abcd[2], e[2], words[2][4];
    PAIR {
        abcd[i] = _mm_set_epi32((int)of->words[0][i], (int)of->words[1][i], (int)of->words[2][i], (int)of->words[3][i]);
        e[i] = _mm_set_epi32((int)of->words[4][i], 0, 0, 0);
    }
    for (int64_t at = 0; at < count * SHA1_BLOCK_BYTES; at += SHA1_BLOCK_BYTES) {
        __m128i first[2] = {abcd[0], abcd[1]}, first_e[2] = {e[0], e[1]}, before[2];
        PAIR for (int t = 0; t < 4; t++) words[i][t] = _mm_shuffle_epi8(load(blocks[i] + at + 16 * t), swapped);
#pragma GCC unroll 20
        for (int t = 0; t < 20; t++) {
            PAIR {
                if (t >= 4) {
                    __m128i mixed = _mm_xor_si128(_mm_sha1msg1_epu32(words[i][t & 3], words[i][(t + 1) & 3]), words[i][(t + 2) & 3]);
                    words[i][t & 3] = _mm_sha1msg2_epu32(mixed, words[i][(t + 3) & 3]);
                }
                e[i] = t == 0 ? _mm_add_epi32(e[i], words[i][0]) : _mm_sha1nexte_epu32(before[i], words[i][t & 3]);
                before[i] = abcd[i];
                abcd[i] = t < 5    ? _mm_sha1rnds4_epu32(abcd[i], e[i], 0)
                          : t < 10 ? _mm_sha1rnds4_epu32(abcd[i], e[i], 1)
                          : t < 15 ? _mm_sha1rnds4_epu32(abcd[i], e[i], 2)
                                   : _mm_sha1rnds4_epu32(abcd[i], e[i], 3);
            }
        }
        PAIR {
            e[i] = _mm_sha1nexte_epu32(before[i], first_e[i]);
            abcd[i] = _mm_add_epi32(abcd[i], first[i]);
        }
    }
    PAIR {
        uint32_t state[4];
        _mm_storeu_si128((__m128i *)(void *)state, abcd[i]);
        for (int word = 0; word < 4; word++) of->words[word][i] = state[3 - word];
        of->words[4][i] = (uint32_t)_mm_extract_epi32(e[i], 3);
    }
}

void look_for_sha1(void) {
    unsigned a, b, c, d;
    has_512_bits = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    has_256_bits = __builtin_cpu_supports("avx2");
    has_rounds = __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
}

int sha1_lanes_for(int64_t messages) {
    if (messages > (has_rounds ? FEW : FEW_WITHOUT_ROUNDS) && (has_512_bits || has_256_bits)) return SHA1_LANES;
    return messages > 0 && has_rounds ? 2 : 1;
}

void sha1_step(struct sha1_lanes *of, const uint8_t *const *blocks, int64_t count, int lanes) {
    if (lanes == 1) step_plainly(of, blocks[0], count);
    else if (lanes == 2) step_by_rounds(of, blocks, count);
    else if (has_512_bits) step_of_512_bits(of, blocks, count);
    else step_of_256_bits(of, blocks, count);
}

#else

void look_for_sha1(void) {}

int sha1_lanes_for(int64_t messages) {
    (void)messages;
    return 1;
}

void sha1_step(struct sha1_lanes *of, const uint8_t *const *blocks, int64_t count, int lanes) {
    (void)lanes;
    step_plainly(of, blocks[0], count);
}

#endif
