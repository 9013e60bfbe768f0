"""Which broker group and which queue a message group belongs to, the same in every process (pure).

The broker group is found by weighted rendezvous hashing (the weight is its number of queues), the queue within it as a broker
without a placement chooses it (`remoting.message_groups`). So a new broker group takes from each other one only what it gets, a
changed number of queues moves as few message groups as can be, and the first placement of a topic that one broker group has moves
none.

Called for each send that has a message group, and by whoever compares two placements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from remoting.message_groups import queue_of_group

_MASK: Final = 0xFFFFFFFFFFFFFFFF


class Share(NamedTuple):
    """What a broker group has of a topic: its queues that are written, from 0 on."""

    broker_name: str
    queues: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Of one topic. Each broker group is there at most once, with one queue or more; versions only grow."""

    version: int
    shares: tuple[Share, ...]


def owner_of(placement: Placement, message_group: str) -> tuple[str, int]:
    """The broker group that takes the message group, and the queue there. Raises IndexError for a placement without shares."""
    shares = placement.shares
    share = shares[0]
    if len(shares) > 1:
        group = _hash(message_group)
        best = -1.0
        for each in shares:
            score = _score(group, each)
            if score > best or (score == best and each.broker_name < share.broker_name):
                best, share = score, each
    return share.broker_name, queue_of_group(message_group, share.queues)


def _score(group: int, share: Share) -> float:
    """The logarithm method: of weights w, a share is the highest with the chance w / sum of all w."""
    mixed = group ^ _hash(share.broker_name)
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & _MASK  # the finalizer of SplitMix64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _MASK
    mixed ^= mixed >> 31
    return share.queues / -math.log(
        ((mixed >> 12) + 0.5) / 4503599627370496.0
    )  # a number between 0 and 1, never one of them


@lru_cache(maxsize=65536)
def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
