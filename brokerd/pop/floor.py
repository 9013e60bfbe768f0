"""The lowest unfinished offsets of one queue (pure).

A heap with an entry for each batch that is not in a row, and for each block of rows, by its lowest unfinished offset. An entry
may lag behind, as what it names may have been finished since; it is put right when it surfaces.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from brokerd.pop.batch import NEVER_MS, Batch, LooseBatch
from brokerd.pop.batches import Batches
from brokerd.pop.blocks import Block

_SLACK: Final = 64

Holder = Block | LooseBatch


class Floor:
    """Over the batches of the queue."""

    __slots__ = ("_batches", "_heap", "_numbers")

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._heap: list[tuple[int, int, Holder]] = []
        self._numbers = count()

    def add(self, holder: Holder, offset: int) -> None:
        """An unfinished offset is there that was not there before."""
        if isinstance(holder, Block):
            if offset >= holder.lowest:
                return
            holder.lowest = offset
        if len(self._heap) > 2 * (len(self._batches.loose) + len(self._batches.blocks)) + _SLACK:
            self._heap[:] = [entry for entry in self._heap if _lowest(entry[2]) is not None]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (offset, next(self._numbers), holder))

    def lowest(self) -> int | None:
        """The lowest unfinished offset; None when nothing is unfinished."""
        heap = self._heap
        while heap:
            offset, number, holder = heap[0]
            actual = self._actual(offset, holder)
            if actual == offset:
                return offset
            if actual is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (actual, number, holder))
        return None

    def unfinished(self, most: int, wanted: Callable[[Batch], bool]) -> list[tuple[Batch, int]]:
        """The lowest unfinished offsets, as (batch, place), up to the first one of a batch that is not wanted.

        Costs what it gives, whatever else is in flight.
        """
        heap = self._heap
        walked: dict[Holder, None] = {}
        heads: list[
            tuple[int, int, int, Batch, Iterator[Batch]]
        ] = []  # (offset, number, place, batch, those behind it)
        found: list[tuple[Batch, int]] = []
        while len(found) < most:
            while heap and (not heads or heap[0][0] <= heads[0][0]):
                offset, _, holder = heapq.heappop(heap)
                if self._actual(offset, holder) is not None and holder not in walked:
                    walked[holder] = None
                    self._enter(heads, self._open(holder))
            if not heads or not wanted(heads[0][3]):
                break
            _, _, place, batch, behind = heapq.heappop(heads)
            found.append((batch, place))
            self._enter(heads, behind)
            above = batch.remaining >> place + 1
            if above:
                place += (above & -above).bit_length()
                heapq.heappush(heads, (batch.offset_at(place), next(self._numbers), place, batch, iter(())))
        for holder in walked:
            if isinstance(holder, Block):
                holder.lowest = NEVER_MS
            lowest = _lowest(holder)
            if lowest is not None:
                self.add(holder, lowest)
        return found

    # ---- inside

    def _actual(self, offset: int, holder: Holder) -> int | None:
        """The lowest unfinished offset of what has an entry by this one; None when the entry is outdated."""
        if isinstance(holder, Block):
            if holder.lowest != offset:
                return None
            lowest = holder.lowest_unfinished()
            holder.lowest = NEVER_MS if lowest is None else lowest
            return lowest
        return _lowest(holder)

    def _open(self, holder: Holder) -> Iterator[Batch]:
        """The open batches, by their lowest unfinished offsets."""
        if isinstance(holder, Block):
            return (self._batches[holder.times[number]] for number in holder.open_rows())
        return iter((holder,))

    def _enter(self, heads: list[tuple[int, int, int, Batch, Iterator[Batch]]], batches: Iterator[Batch]) -> None:
        batch = next(batches, None)
        if batch is not None:
            place = (batch.remaining & -batch.remaining).bit_length() - 1
            heapq.heappush(heads, (batch.offset_at(place), next(self._numbers), place, batch, batches))


def _lowest(holder: Holder) -> int | None:
    if isinstance(holder, Block):
        return holder.lowest_unfinished()
    return holder.first_remaining() if holder.remaining else None
