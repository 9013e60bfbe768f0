"""The handle by which a message that waits for its time is recalled (pure).

To clients it looks as the original's: base64url with padding of `v1 topic brokerName time uniqueKey`, words with one space
between them. They read the broker's name in it, to know whom to ask; what follows the fifth word they pass over. Here follow the
message's place (the queue offset at which it first came into the timer topic) and a tag: a keyed BLAKE2s digest of all that
stands before it, with a key that only the broker group knows. So nobody makes a handle or changes one, and to know the key of a
message is not enough to recall it. There is one way to write a handle.
"""

from __future__ import annotations

import base64
import binascii
import re
from functools import lru_cache
from hashlib import blake2s
from hmac import compare_digest
from typing import Final, NamedTuple

KEY_BYTES: Final = 32
MAX_UNIQUE_KEY_BYTES: Final = 255  # a message with a longer key gets no handle
MAX_HANDLE_LENGTH: Final = 1024

_TAG_BYTES: Final = 16
_NUMBER: Final = "(0|[1-9][0-9]{0,18})"
_TEXT: Final = re.compile(rf"v1 ([^ ]+) ([^ ]+) {_NUMBER} (.+) {_NUMBER} ([0-9a-f]{{32}})", re.ASCII | re.DOTALL)
_READABLE: Final = re.compile(r"v1 ([^ ]+) ([^ ]+) ([0-9]+) (.+)", re.DOTALL)


class Recallable(NamedTuple):
    """A message that waits, as its handle names it. `due_ms` is when its sender wants it delivered (wall time)."""

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str
    place: int


def has_handle(unique_key: str) -> bool:
    """Whether a message of this key can be named by a handle, which is bounded."""
    return 0 < len(unique_key.encode()) <= MAX_UNIQUE_KEY_BYTES


def encode_handle(message: Recallable, key: bytes) -> str:
    """The handle; `key` is the broker group's (`KEY_BYTES`)."""
    text = " ".join(("v1", *map(str, message))).encode()
    return base64.urlsafe_b64encode(text + b" " + _tag(text, key)).decode()


def decode_handle(handle: str, key: bytes) -> Recallable | None:
    """What a handle names that was made with this key; None for any other text."""
    text = _decode(handle)
    if text is None:
        return None
    told, _, tag = text.rpartition(b" ")
    if not compare_digest(tag, _tag(told, key)):
        return None
    try:
        found = _TEXT.fullmatch(text.decode())
    except UnicodeDecodeError:
        return None
    if found is None:
        return None
    topic, broker_name, due_ms, unique_key, place, _ = found.groups()
    return Recallable(topic, broker_name, int(due_ms), unique_key, int(place))


def broker_of_handle(handle: str) -> str | None:
    """The broker group that a handle names, whoever made it: where to ask. None for what looks like no handle."""
    text = _decode(handle)
    found = _READABLE.fullmatch(text.decode("utf-8", "replace")) if text is not None else None
    return found[2] if found is not None else None


def _decode(handle: str) -> bytes | None:
    if not handle.isascii() or len(handle) > MAX_HANDLE_LENGTH:
        return None
    try:
        text = base64.b64decode(handle, b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    # the last character before the padding has bits that mean nothing: they are zero
    return text if base64.urlsafe_b64encode(text).decode() == handle else None


def _tag(text: bytes, key: bytes) -> bytes:
    digest = _keyed(key).copy()
    digest.update(text)
    return digest.hexdigest().encode()


@lru_cache(maxsize=4)
def _keyed(key: bytes) -> blake2s:
    """What every tag of a broker group begins with: half of the work."""
    return blake2s(digest_size=_TAG_BYTES, key=key)
