"""Whether a controller that introduces itself is the one that the others know, told by its lives (pure)

A node draws a text at each start, its life, and keeps those of its former starts. Two processes with one directory have drawn
different ones, and a directory that is put back lacks those that were drawn after it was copied.

Who is at home at a node's address may be unknown for a while: a process takes connections there and is too busy, or frozen, to
answer. It may be the first one, so nobody else is admitted under its name before it spoke or went.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Standing(Enum):
    """What a node is found to be in the life in which it introduces itself."""

    ITSELF = "itself"
    COPIED = "copied"  # another process is at home at the node's address
    OLDER = "older"  # its directory is older than what it promised
    UNKNOWN = "unknown"  # who is at home at the node's address does not say who it is


def standing(lives: Sequence[str], known: str | None, at_home: str | None) -> Standing:
    """What a node is.

    `lives` are its own, the present one first; `known` is the one in which it was met last, None of a node that never was;
    `at_home` the one of the process that answers at its address, empty when nobody is there or it does not say, None when
    somebody may be there and has not answered.
    """
    if at_home is None:
        return Standing.UNKNOWN
    if at_home not in ("", lives[0]):
        return Standing.COPIED
    if known is not None and known not in lives:
        return Standing.OLDER
    return Standing.ITSELF
