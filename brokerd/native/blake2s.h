/* Tags that only who knows a key can make. (blake2s.c) */
#ifndef LOGBOOM_BLAKE2S_H
#define LOGBOOM_BLAKE2S_H

#include "native.h"

enum { TAG_KEY_BYTES = 32, TAG_BYTES = 16, TAG_STATE = 8 };

/* What all tags of a key of TAG_KEY_BYTES begin with: TAG_STATE numbers. */
void begin_tags(uint32_t *keyed, const uint8_t *key);

/* Write the TAG_BYTES for the data, at least one byte, with the key that was begun with. */
void tag_of(uint8_t *tag, const uint32_t *keyed, const uint8_t *data, size_t length);

#endif
