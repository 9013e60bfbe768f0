/* CRC-32 with zlib's polynomial: what remoting/checksum.py computes, for the other files of this directory.
 *
 * Where the processor multiplies without carries (PCLMULQDQ), 64 or 16 bytes are folded at a time, as in "Fast CRC Computation
 * for Generic Polynomials Using PCLMULQDQ Instruction" (Gopal and others, 2009), whose names the constants have. Elsewhere, and for
 * less than 16 bytes, eight bytes are looked up at once in eight tables.
 *
 * A CRC is the rest of a division of polynomials, whose coefficients stand in it from the highest bit down, as in the bytes from
 * the lowest bit up. So n bytes behind others multiply the CRC of these by x^(8n), and the CRC of both is known without reading
 * them again (zlib's crc32_combine does the same).
 *
 * Bounds: `data` holds `length` bytes; each loop takes a piece only while that many are left.
 */
#include "native.h"

#if defined(__x86_64__) && !defined(WITHOUT_CLMUL) /* as tests want it */
#define CLMUL __attribute__((target("pclmul,sse4.1")))
#include <immintrin.h>
#endif

#define POLYNOMIAL 0xEDB88320u
#define LANE 16 /* bytes that one multiplication folds */
#define FOLDED (4 * LANE)
#define POWER_BYTES 3 /* of a length */

static uint32_t tables[8][256]; /* tables[n][b]: the CRC of byte b with n zero bytes behind it */
static uint32_t powers[POWER_BYTES][256]; /* powers[n][b]: x^(8 * b * 256^n) */
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

/* Continue an inverted CRC by tables. */
static uint32_t by_tables(uint32_t crc, const uint8_t *data, size_t length) {
    for (; length >= 8; data += 8, length -= 8) {
        uint32_t low = crc ^ get32_little(data), high = get32_little(data + 4);
        crc = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^ tables[4][low >> 24] ^
              tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF] ^ tables[1][high >> 16 & 0xFF] ^ tables[0][high >> 24];
    }
    for (; length > 0; data++, length--) crc = crc >> 8 ^ tables[0][(crc ^ *data) & 0xFF];
    return crc;
}

#ifdef CLMUL

/* x folded forward by the distance that the pair of constants k stands for, onto the bytes `next`. */
CLMUL static inline __m128i folded(__m128i x, __m128i k, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

CLMUL static inline __m128i load(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)(const void *)at); }

/* The 64 low bits modulo the polynomial (Barrett). */
CLMUL static inline uint32_t modulo(__m128i x) {
    const __m128i polynomial = _mm_set_epi64x(0x1f7011641, 0x1db710641), low32 = _mm_setr_epi32(~0, 0, ~0, 0);
    __m128i quotient = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(x, low32), polynomial, 0x10), low32);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x, _mm_clmulepi64_si128(quotient, polynomial, 0x00)), 1);
}

/* Reduce 128 folded bits to the 32 of the CRC. */
CLMUL static inline uint32_t reduced(__m128i x) {
    const __m128i k3k4 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0), k5 = _mm_set_epi64x(0, 0x163cd6124);
    const __m128i low32 = _mm_setr_epi32(~0, 0, ~0, 0);
    x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, k3k4, 0x10));
    x = _mm_xor_si128(_mm_srli_si128(x, 4), _mm_clmulepi64_si128(_mm_and_si128(x, low32), k5, 0x00));
    return modulo(x);
}

/* Which byte goes to which place, and Z for none: all stay where they are, by what stands from the middle on; n places before that
 * they move up by n, behind it down. */
#define Z 0x80
static const uint8_t moves[3 * LANE] = {Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z,  Z,  Z,  Z,  Z,  Z,  0, 1, 2, 3, 4, 5, 6, 7,
                                        8, 9, 10, 11, 12, 13, 14, 15, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z, Z};

/* x with the `length` bytes folded into it, less than LANE, of which as many as miss precede them in memory. */
CLMUL static inline __m128i with_rest(__m128i x, __m128i k3k4, const uint8_t *data, size_t length) {
    __m128i down = load(moves + LANE + length);
    __m128i next = _mm_blendv_epi8(_mm_shuffle_epi8(x, down), load(data + length - LANE), down); /* by the high bit, Z */
    return folded(_mm_shuffle_epi8(x, load(moves + length)), k3k4, next);
}

/* Continue an inverted CRC by multiplication: `length` is at least LANE. */
CLMUL static uint32_t by_clmul(uint32_t crc, const uint8_t *data, size_t length) {
    const __m128i k1k2 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), k3k4 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i a = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)crc));
    if (length >= FOLDED) {
        __m128i b = load(data + LANE), c = load(data + 2 * LANE), d = load(data + 3 * LANE);
        for (data += FOLDED, length -= FOLDED; length >= FOLDED; data += FOLDED, length -= FOLDED) {
            a = folded(a, k1k2, load(data));
            b = folded(b, k1k2, load(data + LANE));
            c = folded(c, k1k2, load(data + 2 * LANE));
            d = folded(d, k1k2, load(data + 3 * LANE));
        }
        a = folded(folded(folded(a, k3k4, b), k3k4, c), k3k4, d);
    } else {
        data += LANE;
        length -= LANE;
    }
    for (; length >= LANE; data += LANE, length -= LANE) a = folded(a, k3k4, load(data));
    return reduced(length > 0 ? with_rest(a, k3k4, data, length) : a);
}

CLMUL static inline uint32_t times_by_clmul(uint32_t a, uint32_t b) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0x00);
    return modulo(_mm_slli_epi64(product, 1)); /* of 63 coefficients, whose first one then is the highest bit */
}

CLMUL static uint32_t moved_by_clmul(uint32_t crc, size_t length) {
    uint32_t power = powers[0][length & 0xFF];
    for (int n = 1; length >>= 8; n++) power = times_by_clmul(power, powers[n][length & 0xFF]);
    return times_by_clmul(crc, power);
}

#endif

/* The product of two polynomials modulo that of the CRC. */
static uint32_t times_plainly(uint32_t a, uint32_t b) {
    uint64_t product = 0;
    for (int bit = 0; bit < 32; bit++) product ^= b >> bit & 1 ? (uint64_t)a << bit : 0;
    uint32_t low = (uint32_t)(product <<= 1); /* which is to be multiplied by x^32, as by four zero bytes */
    return (uint32_t)(product >> 32) ^ tables[3][low & 0xFF] ^ tables[2][low >> 8 & 0xFF] ^ tables[1][low >> 16 & 0xFF] ^
           tables[0][low >> 24];
}

static uint32_t moved_plainly(uint32_t crc, size_t length) {
    uint32_t power = powers[0][length & 0xFF];
    for (int n = 1; length >>= 8; n++) power = times_plainly(power, powers[n][length & 0xFF]);
    return times_plainly(crc, power);
}

static void make_powers(void) {
    uint32_t base = 0x00800000u; /* x^8 */
    for (int n = 0; n < POWER_BYTES; n++) {
        powers[n][0] = 0x80000000u; /* 1 */
        for (int byte = 1; byte < 256; byte++) powers[n][byte] = times_plainly(powers[n][byte - 1], base);
        base = times_plainly(powers[n][255], base);
    }
}

uint32_t crc32_moved(uint32_t crc, size_t length) {
#ifdef CLMUL
    if (has_clmul) return moved_by_clmul(crc, length);
#endif
    return moved_plainly(crc, length);
}

uint32_t crc32_of(uint32_t before, const uint8_t *data, size_t length) {
#ifdef CLMUL
    if (has_clmul && length >= LANE) return ~by_clmul(~before, data, length);
#endif
    return ~by_tables(~before, data, length);
}

/* Fill the tables, look what the processor can do; returns the version of these calls. Not while another call runs. */
EXPORT int32_t native_begin(void) {
    make_tables();
    make_powers();
    make_hpack_tables();
    look_for_sha1();
#ifdef CLMUL
    __builtin_cpu_init();
    has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
    return NATIVE_ABI;
}

/* For the check at load, and tests: the CRC, by tables alone when `plainly` is set. */
EXPORT uint32_t native_crc32(uint32_t before, const uint8_t *data, size_t length, int32_t plainly) {
    return plainly ? ~by_tables(~before, data, length) : crc32_of(before, data, length);
}

/* Likewise for the CRC of two pieces, of which the second has that length. */
EXPORT uint32_t native_crc32_joined(uint32_t before, uint32_t behind, size_t length, int32_t plainly) {
    return (plainly ? moved_plainly(before, length) : crc32_moved(before, length)) ^ behind;
}
