/* What the files of the native boundary share. brokerd/native/library.py loads them as one library.
 *
 * They are plain C11 without the interpreter: buffers come in with their lengths, results go into buffers that the caller made,
 * nothing is allocated, no file or socket is touched, and nothing is kept between calls but constant tables, which native_begin
 * fills before anything else is called. So a call may run without the interpreter's lock. Some do otherwise: carrier.c is a
 * thread that writes to sockets, and reads from some (stays.c), also what it appends to a file (lane.c); syncs.c is one that syncs a
 * file; log_files.c reads from files, and the subject of queue_files.c is files.
 *
 * Each subject is in a file of its own beside its Python twin, which says what is right. Where input is not what the C knows, it
 * says so and changes nothing: the twin then does it.
 *
 * The rule for bounds: a pointer travels with the end of what it may touch, or the function's comment names the length that its
 * caller has checked. Lengths that a peer sent are compared with what is there before anything is added to a pointer.
 */
#ifndef LOGBOOM_NATIVE_H
#define LOGBOOM_NATIVE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NATIVE_ABI 33 /* brokerd/native/library.py has the same number: raised when a call or a struct changes */

#define EXPORT __attribute__((visibility("default")))

enum { UNIT_BYTES = 20 }; /* of a consume queue: physical offset, size, and a code */

/* The CRC-32 of zlib, continued from that of what came before; 0 begins. (crc.c) */
uint32_t crc32_of(uint32_t before, const uint8_t *data, size_t length);

/* What a CRC-32 adds, by XOR, to that of `length` bytes behind, less than 16 MiB. So the CRC of two pieces is the first one's, moved
 * by the second one's length, XOR the second one's. And when four bytes become others than zeros, the CRC changes by XOR with the
 * little-endian number that they are, moved by the length from where they begin to the end. (crc.c) */
uint32_t crc32_moved(uint32_t crc, size_t length);

/* What hpack.c looks up; native_begin has it made. (hpack.c) */
void make_hpack_tables(void);

/* Look what of SHA-1 the processor can do; native_begin has it done. (sha1.c) */
void look_for_sha1(void);

/* Numbers as the protocol and the log write them: big-endian, at any address. The caller has checked that they are there. */

static inline uint16_t get16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }

static inline uint32_t get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | (uint32_t)at[3];
}

static inline uint64_t get64(const uint8_t *at) { return (uint64_t)get32(at) << 32 | get32(at + 4); }

static inline uint32_t get32_little(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t get64_little(const uint8_t *at) { return (uint64_t)get32_little(at + 4) << 32 | get32_little(at); }

static inline void put16(uint8_t *at, uint16_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline void put32(uint8_t *at, uint32_t value) {
    put16(at, (uint16_t)(value >> 16));
    put16(at + 2, (uint16_t)value);
}

static inline void put64(uint8_t *at, uint64_t value) {
    put32(at, (uint32_t)(value >> 32));
    put32(at + 4, (uint32_t)value);
}

static inline void put32_little(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> 8 * i);
}

#endif
