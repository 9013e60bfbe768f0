#include "moments.h"

enum { SLOT_MS = 1000, KIND_BITS = 2, MAX_TEXT_BYTES = 768, MAX_TOPIC_BYTES = 127 };
static const int64_t MAX_DUE_MS = (int64_t)1 << 52;

enum ask ask_of(struct text name) {
    return IS(name, "TIMER_DELAY_SEC")    ? DELAY_SEC
           : IS(name, "TIMER_DELAY_MS")   ? DELAY_MS
           : IS(name, "TIMER_DELIVER_MS") ? DELIVER_MS
                                          : ASKS;
}

/* `rolling.leg_before`; -1 for none. */
static int64_t leg_before(const struct terms *terms, int64_t due_ms) {
    int64_t now_ms = terms->now_ms > terms->least_due_ms ? terms->now_ms : terms->least_due_ms;
    int64_t ahead_ms = due_ms - now_ms, window_ms = terms->window_ms;
    if (ahead_ms <= window_ms) return -1;
    return now_ms + (ahead_ms - window_ms < window_ms / 2 ? ahead_ms / 2 : window_ms);
}

enum asked wait_for(const struct terms *terms, const struct text *asks, struct wait *wait) {
    int64_t number, due_ms;
    enum ask ask = DELAY_SEC;
    while (ask < ASKS && asks[ask].length == 0) ask++;
    if (ask == ASKS || !integer_of(asks[ask], &number)) return ASKED_ODDLY;
    if (number < 0) return HAS_COME;
    if (number > (ask == DELAY_SEC ? MAX_DUE_MS / 1000 : MAX_DUE_MS)) return ASKED_ODDLY;
    due_ms = ask == DELIVER_MS ? number : terms->now_ms + (ask == DELAY_SEC ? number * 1000 : number);
    if (due_ms <= terms->now_ms) return HAS_COME;
    if (due_ms - terms->now_ms > terms->max_ahead_ms) return ASKED_ODDLY;
    if (due_ms < terms->least_due_ms) due_ms = terms->least_due_ms;
    if (due_ms > MAX_DUE_MS) due_ms = MAX_DUE_MS;
    *wait = (struct wait){due_ms, leg_before(terms, due_ms)};
    return IS_AHEAD;
}

int64_t code_of(const struct wait *wait) { return (wait->leg_ms < 0 ? wait->due_ms : wait->leg_ms) << KIND_BITS; }

uint8_t *put_moment(uint8_t *at, const struct wait *wait, struct text topic, int64_t queue_id) {
    int64_t before_ms = wait->due_ms - 1;
    at = put_text(PUT(at, "REAL_TOPIC\1"), topic.at, topic.length);
    at = put_decimal(PUT(at, "\2REAL_QID\1"), queue_id);
    at = put_decimal(PUT(at, "\2TIMER_OUT_MS\1"), before_ms - before_ms % SLOT_MS);
    at = put_decimal(PUT(at, "\2TIMER_DUE_MS\1"), wait->due_ms);
    if (wait->leg_ms >= 0) at = put_decimal(PUT(at, "\2TIMER_LEG_MS\1"), wait->leg_ms);
    return PUT(at, "\2");
}

/* base64url with padding */
static uint8_t *put_base64(uint8_t *at, const uint8_t *bytes, size_t length) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (; length >= 3; bytes += 3, length -= 3) {
        uint32_t three = (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 8 | bytes[2];
        for (int shift = 18; shift >= 0; shift -= 6) *at++ = (uint8_t)digits[three >> shift & 63];
    }
    if (length > 0) {
        uint32_t rest = (uint32_t)bytes[0] << 16 | (length == 2 ? (uint32_t)bytes[1] << 8 : 0);
        *at++ = (uint8_t)digits[rest >> 18];
        *at++ = (uint8_t)digits[rest >> 12 & 63];
        *at++ = length == 2 ? (uint8_t)digits[rest >> 6 & 63] : '=';
        *at++ = '=';
    }
    return at;
}

/* The text has at most 3 + 127 + 255 + 19 + 255 + 19 + 32 bytes and 6 spaces. */
uint8_t *put_handle(uint8_t *at, struct terms *terms, struct text topic, const struct wait *wait, struct text key,
                    int64_t place) {
    uint8_t text[MAX_TEXT_BYTES], tag[TAG_BYTES], *end;
    if (key.length > MAX_NAMED_KEY_BYTES || topic.length > MAX_TOPIC_BYTES) return at;
    end = put_text(PUT(text, "v1 "), topic.at, topic.length);
    end = put_text(PUT(end, " "), terms->broker_name, (size_t)terms->broker_name_length);
    end = put_decimal(PUT(end, " "), wait->due_ms);
    end = put_text(PUT(end, " "), key.at, key.length);
    end = put_decimal(PUT(end, " "), place);
    if (!terms->is_keyed) begin_tags(terms->keyed, terms->key);
    terms->is_keyed = 1;
    tag_of(tag, terms->keyed, text, (size_t)(end - text));
    end = put_hex(PUT(end, " "), tag, TAG_BYTES, "0123456789abcdef");
    return put_base64(at, text, (size_t)(end - text));
}
