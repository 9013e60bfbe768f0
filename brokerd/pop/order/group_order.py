"""Which unfinished messages of a queue belong to which message group, so that a group waits for its own ones alone (pure).

A message group is known by a 64-bit hash of its name: two that collide share their order, and nothing else. 0 stands for none:
such a message has no order with any other. Of each group the ledger keeps the places of its unfinished messages, ascending by
offset, as numbers in an array. The first of them decides: while it is with a client, the others of its group wait.

Kept by `queue_ledger`; the hashes travel in the records of what is taken (`records`).
"""

from __future__ import annotations

import base64
import struct
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from remoting.message_groups import MAX_GROUP_BYTES, SHARDING_KEY

MAX_PASSED_OVER: Final = 4096  # messages of a queue; with so many the queue waits for the first of them

_KEY: Final = f"{SHARDING_KEY}\x01".encode()
_LATER_KEY: Final = b"\x02" + _KEY


def name_of_group(properties: bytes) -> bytes:
    """The message group that a record's properties name; empty for none."""
    if properties.startswith(_KEY):
        at = len(_KEY)
    else:
        found = properties.find(_LATER_KEY)
        if found < 0:
            return b""
        at = found + len(_LATER_KEY)
    end = properties.find(b"\x02", at)
    return properties[at : end if end >= 0 else len(properties)]


def hash_of_group(properties: bytes) -> int:
    """Of the message group that a record's properties name; 0 for none."""
    name = name_of_group(properties)
    if len(name) >= MAX_GROUP_BYTES:  # over remoting anything goes: such a name is not worth being remembered
        return _hash_of(name)
    return _known_hash(name) if name else 0


def _hash_of(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little") or 1


_known_hash = lru_cache(maxsize=65536)(_hash_of)


def encode_hashes(hashes: Iterable[int]) -> str:
    """As records and snapshots hold them: eight bytes each, the lowest first, in base64."""
    each = list(hashes)
    return base64.b64encode(struct.pack(f"<{len(each)}Q", *each)).decode()


def decode_hashes(text: str) -> Sequence[int]:
    encoded = base64.b64decode(text)
    return array("Q", struct.unpack(f"<{len(encoded) // 8}Q", encoded))


class GroupOrder:
    """Of one queue. A message is named by its offset and by the pop time of its batch."""

    __slots__ = ("_passed_over", "_places")

    def __init__(self) -> None:
        self._places: dict[int, array[int]] = {}  # by hash: offset, pop time, offset, pop time, ...
        self._passed_over: dict[int, int] = {}

    @property
    def groups(self) -> Collection[int]:
        """Those that have unfinished messages, by hash."""
        return self._places.keys()

    @property
    def passed_over(self) -> Mapping[int, int]:
        """How many messages of a group were passed over and not taken since, by hash; those without any are left out."""
        return self._passed_over

    def add(self, group: int, offset: int, pop_time_ms: int, *, is_passed_over: bool) -> None:
        places = self._places.get(group)
        if places is None:
            self._places[group] = array("q", (offset, pop_time_ms))
        else:
            at = 2 * self._find(places, offset)
            places[at:at] = array("q", (offset, pop_time_ms))
        if is_passed_over:
            self._passed_over[group] = self._passed_over.get(group, 0) + 1

    def remove(self, group: int, offset: int, *, is_passed_over: bool) -> tuple[int, int] | None:
        """Returns the message that is the group's first one now and was not before."""
        places = self._places[group]
        number = self._find(places, offset)
        del places[2 * number : 2 * number + 2]
        if is_passed_over:
            self._passed_over[group] -= 1
            if not self._passed_over[group]:
                del self._passed_over[group]
        if not places:
            del self._places[group]
            return None
        return None if number else (places[0], places[1])

    def count(self, group: int) -> int:
        """How many of its messages are unfinished."""
        return len(self._places.get(group, ())) // 2

    def at(self, group: int, number: int) -> tuple[int, int] | None:
        """The unfinished message of that number, from 0 on; None behind the last one."""
        places = self._places.get(group, ())
        return (places[2 * number], places[2 * number + 1]) if 2 * number < len(places) else None

    def is_first(self, group: int, offset: int) -> bool:
        """Whether nothing of the group is before the message; so it is without a group."""
        return not group or self._places[group][0] == offset

    def _find(self, places: array[int], offset: int) -> int:
        """The number of the first message that is not before the offset."""
        if offset > places[-2]:
            return len(places) // 2
        return bisect_left(range(len(places) // 2), offset, key=lambda number: places[2 * number])
