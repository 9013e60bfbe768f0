/* SHA-1 of sixteen messages at once. Its rounds wait for one another, so a single message leaves most of a processor idle, even with
 * the instructions that some have for it; sixteen side by side in vectors take a third of that each. Where the vectors have fewer
 * numbers the compiler makes each of several.
 */
#include "sha1.h"

#if defined(__x86_64__) && defined(__GNUC__)

typedef uint32_t lanes __attribute__((vector_size(4 * SHA1_LANES), aligned(4)));

#define ROTATED(x, bits) ((x) << (bits) | (x) >> (32 - (bits)))
#define WORD(t) words[(t) & 15]
#define EXTEND(t) (WORD(t) = ROTATED(WORD((t) + 13) ^ WORD((t) + 8) ^ WORD((t) + 2) ^ WORD(t), 1))
#define ROUND(mixed, constant, t)                                    \
    do {                                                             \
        lanes next = ROTATED(a, 5) + (mixed) + e + (constant) + WORD(t); \
        e = d, d = c, c = ROTATED(b, 30), b = a, a = next;           \
    } while (0)

/* One step, for whatever processor the caller is compiled for. */
static inline __attribute__((always_inline)) void step(struct sha1_lanes *of, const uint8_t *const *blocks) {
    lanes words[16];
    uint32_t numbers[16][SHA1_LANES];
    for (int lane = 0; lane < SHA1_LANES; lane++)
        for (int t = 0; t < 16; t++) numbers[t][lane] = get32(blocks[lane] + 4 * t);
    memcpy(words, numbers, sizeof words);
    lanes state[SHA1_WORDS];
    memcpy(state, of->words, sizeof state);
    lanes a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
#pragma GCC unroll 16
    for (int t = 0; t < 16; t++) ROUND((b & c) | (~b & d), 0x5A827999u, t);
#pragma GCC unroll 4
    for (int t = 16; t < 20; t++) {
        EXTEND(t);
        ROUND((b & c) | (~b & d), 0x5A827999u, t);
    }
#pragma GCC unroll 20
    for (int t = 20; t < 40; t++) {
        EXTEND(t);
        ROUND(b ^ c ^ d, 0x6ED9EBA1u, t);
    }
#pragma GCC unroll 20
    for (int t = 40; t < 60; t++) {
        EXTEND(t);
        ROUND((b & c) | ((b | c) & d), 0x8F1BBCDCu, t);
    }
#pragma GCC unroll 20
    for (int t = 60; t < 80; t++) {
        EXTEND(t);
        ROUND(b ^ c ^ d, 0xCA62C1D6u, t);
    }
    lanes after[SHA1_WORDS] = {state[0] + a, state[1] + b, state[2] + c, state[3] + d, state[4] + e};
    memcpy(of->words, after, sizeof after);
}

__attribute__((target("avx512f,avx512bw,avx512vl"))) static void step_of_512_bits(struct sha1_lanes *of, const uint8_t *const *blocks) {
    step(of, blocks);
}

__attribute__((target("avx2"))) static void step_of_256_bits(struct sha1_lanes *of, const uint8_t *const *blocks) { step(of, blocks); }

static int has_512_bits(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

int sha1_is_fast(void) { return has_512_bits() || __builtin_cpu_supports("avx2"); }

void sha1_step(struct sha1_lanes *of, const uint8_t *const blocks[SHA1_LANES]) {
    if (has_512_bits()) step_of_512_bits(of, blocks);
    else step_of_256_bits(of, blocks);
}

#else

int sha1_is_fast(void) { return 0; }

void sha1_step(struct sha1_lanes *of, const uint8_t *const blocks[SHA1_LANES]) { (void)of, (void)blocks; }

#endif
