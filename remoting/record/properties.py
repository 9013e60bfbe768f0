"""The properties of a message as one string, and the code of its tag (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from remoting.disk import Bytes
from remoting.java_hash import java_hash
from remoting.record import checksum

NAME_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
# What people and gRPC clients may give a message of their own; the record's layout has room for more
MAX_USER_PROPERTIES: Final = 128
MAX_USER_PROPERTIES_BYTES: Final = 16 * 1024
_SHORT_TAG_BYTES: Final = 64  # hashes of longer ones are not remembered


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The property string: name 0x01 value 0x02, repeated. Empty values are left out, since readers drop them."""
    entries = [
        f"{name}{NAME_SEPARATOR}{value}{PROPERTY_SEPARATOR}" for name, value in properties.items() if name and value
    ]
    return "".join(entries).encode()


def decode_properties(encoded: Bytes) -> dict[str, str]:
    """The mapping of a property string; entries without a name or a value are dropped, the last of a name wins.

    A record's checksum, which stands among them, is no property of its message.
    """
    properties = {}
    for entry in str(encoded, "utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, _, value = entry.partition(NAME_SEPARATOR)
        if name and value:
            properties[name] = value
    properties.pop(checksum.NAME, None)
    return properties


def tags_code(properties: bytes) -> int:
    """The consume-queue tags code of a property string: the hash of its TAGS, 0 without."""
    start = properties.rfind(b"\x02TAGS\x01") + 1  # the last of a name wins
    if not start and not properties.startswith(b"TAGS\x01"):
        return 0
    tag, _, _ = properties[start + 5 :].partition(b"\x02")
    return _hash_of_tag(tag) if len(tag) <= _SHORT_TAG_BYTES else java_hash(str(tag, "utf-8", "replace"))


@lru_cache(maxsize=4096)
def _hash_of_tag(tag: bytes) -> int:
    return java_hash(str(tag, "utf-8", "replace")) if tag else 0
