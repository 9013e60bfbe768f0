"""The hashes of keys, one by one or of many that look alike together (pure).

Keys of one producer mostly differ in a few places only: what they share is hashed once.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from remoting.java_hash import java_hash_bits

_MOST_TOPICS: Final = 64
_MOST_HEADS: Final = 256  # of a topic: keys of one producer and millisecond share one
_MOST_TAILS: Final = 8192
_TAIL: Final = 3  # digits of the counter at the end of a unique key
_TAIL_FACTOR: Final = pow(31, _TAIL, 1 << 32)
_LEAST_SPLIT: Final = 24  # shorter keys are hashed whole: they are people's, and share no beginnings
_LANE_BYTES: Final = 8  # of each key's sum while many are hashed: no sum of the longest keys' products overflows it
MOST_ALIKE_BYTES: Final = 255  # the longest keys that are hashed together

Hashed = Callable[[bytes], int]


def key_hash(topic: str, key: str) -> int:
    """The hash under which a message of the topic is found by the key."""
    return absolute_hash(java_hash_bits(f"{topic}#{key}".encode("utf-8", "surrogatepass")))


def absolute_hash(bits: int) -> int:
    """The absolute value of a 32-bit integer, and 0 for the one that has none."""
    if bits <= 0x7FFFFFFF:
        return bits
    return 0x100000000 - bits & 0x7FFFFFFF


class KeyHasher:
    """Hashes keys; remembers the hashes of beginnings and ends that many keys share."""

    def __init__(self) -> None:
        self._topics: dict[bytes, Hashed] = {}

    def of_topic(self, topic: bytes) -> Hashed:
        """The hash of a key of this topic."""
        hashed = self._topics.get(topic)
        if hashed is None:
            if len(self._topics) >= _MOST_TOPICS:
                self._topics.clear()
            hashed = self._topics[topic] = _hasher(topic + b"#")
        return hashed


def _hasher(prefix: bytes) -> Hashed:
    heads: dict[bytes, int] = {}
    tails: dict[bytes, int] = {}

    def hashed(key: bytes) -> int:
        if len(key) < _LEAST_SPLIT:
            return absolute_hash(java_hash_bits(prefix + key))
        try:
            bits = heads[key[:-_TAIL]] + tails[key[-_TAIL:]] & 0xFFFFFFFF
        except KeyError:
            head, tail = key[:-_TAIL], key[-_TAIL:]
            if not tail.isascii():
                return absolute_hash(java_hash_bits(prefix + key))
            if len(heads) >= _MOST_HEADS:
                heads.clear()
            if len(tails) >= _MOST_TAILS:
                tails.clear()
            heads[head] = java_hash_bits(prefix + head) * _TAIL_FACTOR
            tails[tail] = java_hash_bits(tail)
            bits = heads[head] + tails[tail] & 0xFFFFFFFF
        return bits if bits <= 0x7FFFFFFF else 0x100000000 - bits & 0x7FFFFFFF

    return hashed


def hash_alike(prefix: bytes, keys: bytes, length: int) -> list[int]:
    """The hashes of ASCII keys that begin with `prefix`, which holds the topic, and go on with what lies in `keys` one behind
    the other: `length` bytes each, at most `MOST_ALIKE_BYTES`.

    A hash is a polynomial in the key's bytes, so the hashes are a sum over the places in a key. A place that is the same in all
    keys is added once; for another one, a single multiplication of a long integer serves all keys, each in a lane of its own.
    """
    count = len(keys) // length
    *powers, of_prefix = _powers(length)
    same = java_hash_bits(prefix) * of_prefix
    total = 0
    for place, power in enumerate(powers):
        column = keys[place::length]
        if column.count(column[0]) == count:
            same += column[0] * power
        else:
            lanes = bytearray(count * _LANE_BYTES)
            lanes[::_LANE_BYTES] = column
            total += int.from_bytes(lanes, "little") * power
    total += (same & 0xFFFFFFFF) * _ones(count)
    numbers = array("i", total.to_bytes(count * _LANE_BYTES, "little"))
    if sys.byteorder == "big":
        numbers.byteswap()
    hashes = list(map(abs, numbers[::2]))
    if 1 << 31 in hashes:
        hashes = [each & 0x7FFFFFFF for each in hashes]
    return hashes


@lru_cache(maxsize=MOST_ALIKE_BYTES)
def _powers(length: int) -> tuple[int, ...]:
    """What each place of a key of that length counts, and what the bytes before it count."""
    return (*(pow(31, length - 1 - place, 1 << 32) for place in range(length)), pow(31, length, 1 << 32))


@lru_cache(maxsize=256)
def _ones(count: int) -> int:
    """A one in each lane."""
    return int.from_bytes((1).to_bytes(_LANE_BYTES, "little") * count, "little")
