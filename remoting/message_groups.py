"""Which queue a message group belongs to: every sender that chooses must choose alike, or the group's order is lost (pure)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from remoting.java_hash import java_hash

SHARDING_KEY: Final = "__SHARDINGKEY"  # the property that names a message's group
MAX_GROUP_BYTES: Final = 64  # a group's name is shorter than this


@lru_cache(maxsize=65536)
def queue_of_group(group: str, queues: int) -> int:
    """The queue of a message group: the same in every process, and a new queue moves only the groups that it gets."""
    return consistent_hash(java_hash(group), queues)


def consistent_hash(key: int, buckets: int) -> int:
    """Guava's consistent hash of a 64-bit key: jumps ahead with its linear congruential generator."""
    state = key & 0xFFFFFFFFFFFFFFFF
    candidate = 0
    while True:
        state = (2862933555777941757 * state + 1) & 0xFFFFFFFFFFFFFFFF
        chance = ((state >> 33) + 1) / 2147483648.0
        following = int((candidate + 1) / chance)
        if following >= buckets:
            return candidate
        candidate = following
