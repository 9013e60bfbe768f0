/* Texts: pieces of bytes with their lengths, what they say, and decimal numbers. */
#ifndef LOGBOOM_TEXT_H
#define LOGBOOM_TEXT_H

#include "native.h"

struct text {
    const uint8_t *at;
    size_t length;
};

static inline int equals(struct text text, const char *other, size_t length) {
    return text.length == length && memcmp(text.at, other, length) == 0;
}
#define IS(text, literal) equals(text, literal, sizeof literal - 1)

/* The length of the UTF-8 sequence at `at`, 0 when it is none. */
static inline size_t utf8_length(const uint8_t *at, const uint8_t *end) {
    uint8_t first = *at;
    if (first < 0x80) return 1;
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || (size_t)(end - at) < length) return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xC0) != 0x80) return 0;
    if ((first == 0xE0 && at[1] < 0xA0) || (first == 0xED && at[1] > 0x9F)) return 0; /* too long; surrogates */
    if ((first == 0xF0 && at[1] < 0x90) || (first == 0xF4 && at[1] > 0x8F)) return 0; /* too long; too large */
    return length;
}

static inline int is_utf8(struct text text) {
    const uint8_t *at = text.at, *end = at + text.length;
    while (at < end) {
        if (end - at >= 8 && (get64_little(at) & 0x8080808080808080u) == 0) {
            at += 8;
            continue;
        }
        size_t length = utf8_length(at, end);
        if (length == 0) return 0;
        at += length;
    }
    return 1;
}

/* Java's String.hashCode of UTF-8, over UTF-16 units; 0 when it is no UTF-8. */
static inline int java_hash(struct text text, int32_t *hash) {
    const uint8_t *at = text.at, *end = at + text.length;
    uint32_t value = 0;
    while (at < end) {
        size_t length = utf8_length(at, end);
        if (length == 0) return 0;
        uint32_t point = length == 1 ? *at : *at & (0x7Fu >> length);
        for (size_t i = 1; i < length; i++) point = point << 6 | (at[i] & 0x3F);
        if (point >= 0x10000) {
            value = value * 31 + (0xD800 + ((point - 0x10000) >> 10));
            point = 0xDC00 + ((point - 0x10000) & 0x3FF);
        }
        value = value * 31 + point;
        at += length;
    }
    *hash = (int32_t)value;
    return 1;
}

/* The number of a decimal text of at most 18 digits; 0 when it is none. */
static inline int integer_of(struct text text, int64_t *number) {
    size_t at = text.length > 0 && text.at[0] == '-', digits = text.length - at;
    int64_t value = 0;
    if (digits == 0 || digits > 18) return 0;
    for (size_t i = at; i < text.length; i++) {
        if (text.at[i] < '0' || text.at[i] > '9') return 0;
        value = value * 10 + (text.at[i] - '0');
    }
    *number = at ? -value : value;
    return 1;
}

/* The number of a text of digits alone, at most so many of them, no more than 18; 0 when it is none. */
static inline int natural_of(struct text text, size_t most, int64_t *number) {
    return text.length <= most && text.length > 0 && text.at[0] != '-' && integer_of(text, number);
}

static inline uint8_t *put_text(uint8_t *at, const void *text, size_t length) {
    memcpy(at, text, length);
    return at + length;
}

/* As put_text, and faster for what most texts are. */
static inline uint8_t *put_short(uint8_t *at, const uint8_t *from, size_t length) {
    if (length > 32) return put_text(at, from, length);
    if (length >= 16) {
        memcpy(at, from, 16);
        memcpy(at + length - 16, from + length - 16, 16);
    } else if (length >= 8) {
        memcpy(at, from, 8);
        memcpy(at + length - 8, from + length - 8, 8);
    } else if (length >= 4) {
        memcpy(at, from, 4);
        memcpy(at + length - 4, from + length - 4, 4);
    } else {
        for (size_t i = 0; i < length; i++) at[i] = from[i];
    }
    return at + length;
}

#define PUT(at, literal) put_text(at, literal, sizeof literal - 1)

/* Each byte as two of the digits, "0123456789abcdef" or such. */
static inline uint8_t *put_hex(uint8_t *at, const uint8_t *bytes, size_t length, const char *digits) {
    for (size_t i = 0; i < length; i++) {
        *at++ = (uint8_t)digits[bytes[i] >> 4];
        *at++ = (uint8_t)digits[bytes[i] & 15];
    }
    return at;
}

/* At most 20 bytes. */
static inline uint8_t *put_decimal(uint8_t *at, int64_t number) {
    uint8_t digits[20];
    int count = 0;
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    if (number < 0) *at++ = '-';
    do digits[count++] = (uint8_t)('0' + left % 10);
    while ((left /= 10) > 0);
    while (count > 0) *at++ = digits[--count];
    return at;
}

#endif
