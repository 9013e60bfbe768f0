"""Dividing what was taken for several pops among them, in their order (pure).

Pops of one turn of the loop that ask for the same are served by one look at the queues. Each has its share as a batch of its own:
messages that follow one another in their queue, and as many of them as it asked for, as far as there are some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.pop.batch import Older
from brokerd.pop.plan import Found, Taking
from brokerd.pop.records import taken_batch


@dataclass(slots=True)
class Share:
    """What one pop gets, the batches of its record, and what else it lets go of."""

    found: list[Found] = field(default_factory=list)
    batches: list[list[Any]] = field(default_factory=list)
    dropped: list[tuple[str, Older]] = field(default_factory=list)

    def released(self) -> Iterator[tuple[str, Sequence[Older]]]:
        """All places of older batches that its record lets go of, by stored topic."""
        for topic, place in self.dropped:
            yield topic, (place,)
        for found in self.found:
            yield found.topic, found.again


def shares_of(taking: Taking, counts: Sequence[int]) -> list[Share]:
    """One share for each of the first pops that get anything; `counts` are what they asked for, at least so many in all as were
    taken. The first one has the queues that only move on, too, and what is let go of, also when there are no messages."""
    if len(counts) == 1:
        return [Share(taking.found, taking.batches, taking.dropped)]
    moves = [batch for batch in taking.batches if not batch[4]]
    ends = {(batch[0], batch[1]): batch[2] for batch in taking.batches if batch[4]}
    shares = [Share(batches=moves, dropped=taking.dropped)]
    room = counts[0]
    for found in taking.found:
        start = 0
        while start < len(found.offsets):
            if not room:
                room = counts[len(shares)]
                shares.append(Share())
            piece = _piece(found, start, min(start + room, len(found.offsets)))
            start += len(piece.offsets)
            room -= len(piece.offsets)
            is_last = start == len(found.offsets)
            next_offset = ends[found.topic, found.queue_id] if is_last else piece.offsets[-1] + 1
            share = shares[-1]
            share.found.append(piece)
            share.batches.append(taken_batch(found.topic, found.queue_id, next_offset, piece.offsets, piece.counts))
    return shares


def _piece(found: Found, start: int, end: int) -> Found:
    counts = found.counts[start:end] if found.counts is not None else None
    return found._replace(
        offsets=found.offsets[start:end], records=found.records[start:end], counts=counts, again=found.again[start:end]
    )
