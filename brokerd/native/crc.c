/* CRC-32 with zlib's polynomial: what remoting/checksum.py computes, for the other files of this directory.
 *
 * Where the processor multiplies without carries (PCLMULQDQ), 64 bytes are folded at a time, as in "Fast CRC Computation for
 * Generic Polynomials Using PCLMULQDQ Instruction" (Gopal and others, 2009), whose names the constants have. Elsewhere, and for
 * short input and rests, eight bytes are looked up at once in eight tables.
 *
 * Bounds: `data` holds `length` bytes; each loop takes a piece only while that many are left.
 */
#include "native.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define POLYNOMIAL 0xEDB88320u
#define FOLDED 64 /* bytes that one step of folding takes; less is not worth it */

static uint32_t tables[8][256]; /* tables[n][b]: the CRC of byte b with n zero bytes behind it */
static int has_clmul;

static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = crc;
    }
    for (int n = 1; n < 8; n++)
        for (int byte = 0; byte < 256; byte++)
            tables[n][byte] = tables[n - 1][byte] >> 8 ^ tables[0][tables[n - 1][byte] & 0xFF];
}

static uint32_t little32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Continue an inverted CRC by tables. */
static uint32_t by_tables(uint32_t crc, const uint8_t *data, size_t length) {
    for (; length >= 8; data += 8, length -= 8) {
        uint32_t low = crc ^ little32(data), high = little32(data + 4);
        crc = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^ tables[4][low >> 24] ^
              tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF] ^ tables[1][high >> 16 & 0xFF] ^ tables[0][high >> 24];
    }
    for (; length > 0; data++, length--) crc = crc >> 8 ^ tables[0][(crc ^ *data) & 0xFF];
    return crc;
}

#if defined(__x86_64__)

#define CLMUL __attribute__((target("pclmul,sse4.1")))

/* x folded forward by the distance that the pair of constants k stands for, onto the bytes `next`. */
CLMUL static inline __m128i folded(__m128i x, __m128i k, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

CLMUL static inline __m128i load(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)(const void *)at); }

/* Reduce 128 folded bits to the 32 of the CRC (Barrett). */
CLMUL static uint32_t reduced(__m128i x) {
    const __m128i k3k4 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0), k5 = _mm_set_epi64x(0, 0x163cd6124);
    const __m128i polynomial = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i low32 = _mm_setr_epi32(~0, 0, ~0, 0);
    x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, k3k4, 0x10));
    x = _mm_xor_si128(_mm_srli_si128(x, 4), _mm_clmulepi64_si128(_mm_and_si128(x, low32), k5, 0x00));
    __m128i quotient = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(x, low32), polynomial, 0x10), low32);
    x = _mm_xor_si128(x, _mm_clmulepi64_si128(quotient, polynomial, 0x00));
    return (uint32_t)_mm_extract_epi32(x, 1);
}

/* Continue an inverted CRC by multiplication: `length` is at least FOLDED and divisible by 16. */
CLMUL static uint32_t by_clmul(uint32_t crc, const uint8_t *data, size_t length) {
    const __m128i k1k2 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), k3k4 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i a = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)crc));
    __m128i b = load(data + 16), c = load(data + 32), d = load(data + 48);
    for (data += FOLDED, length -= FOLDED; length >= FOLDED; data += FOLDED, length -= FOLDED) {
        a = folded(a, k1k2, load(data));
        b = folded(b, k1k2, load(data + 16));
        c = folded(c, k1k2, load(data + 32));
        d = folded(d, k1k2, load(data + 48));
    }
    a = folded(folded(folded(a, k3k4, b), k3k4, c), k3k4, d);
    for (; length >= 16; data += 16, length -= 16) a = folded(a, k3k4, load(data));
    return reduced(a);
}

#endif

uint32_t crc32_of(uint32_t before, const uint8_t *data, size_t length) {
    uint32_t crc = ~before;
#if defined(__x86_64__)
    if (has_clmul && length >= FOLDED) {
        size_t most = length & ~(size_t)15;
        crc = by_clmul(crc, data, most);
        data += most;
        length -= most;
    }
#endif
    return ~by_tables(crc, data, length);
}

/* Fill the tables, look what the processor can do; returns the version of these calls. Not while another call runs. */
EXPORT int32_t native_begin(void) {
    make_tables();
#if defined(__x86_64__)
    __builtin_cpu_init();
    has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
    return NATIVE_ABI;
}

/* For the check at load, and tests: the CRC, by tables alone when `plainly` is set. */
EXPORT uint32_t native_crc32(uint32_t before, const uint8_t *data, size_t length, int32_t plainly) {
    return plainly ? ~by_tables(~before, data, length) : crc32_of(before, data, length);
}
