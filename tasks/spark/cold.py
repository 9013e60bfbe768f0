"""Ranges of queue offsets, of which the older part is read from the tier: the same rows, and no broker is asked for them.

What the tier does not have, or does not give, the brokers do: they are asked from the offset on that comes next, so nothing is
read twice and nothing left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from remoting.tier.contents import Queue
from remoting.tier.object_stores import StorePlace
from tasks.spark import records
from tasks.spark.meter import ReadFrom
from tasks.spark.planning import QueueRange
from tasks.tier import parquet
from tasks.tier.objects import TierError
from tasks.tier.reads import GroupTier, Piece, group_tier

log = logging.getLogger(__name__)


class Sized(NamedTuple):
    """Rows, of how many bytes they were read, and who gave them."""

    batch: pa.RecordBatch
    size_bytes: int
    read_from: ReadFrom


Decode = Callable[[QueueRange, bytes], pa.RecordBatch]


class ColdRanges:
    """Reads of one task. `cluster_of` says in which cluster the broker group of a topic is."""

    def __init__(
        self,
        place: StorePlace,
        cluster_of: Callable[[str, str], str],
        after_ms: int,
        now_ms: Callable[[], float] = lambda: time.time() * 1000,
        open_group: Callable[[StorePlace, str, str], GroupTier] = group_tier,
    ) -> None:
        self._place = place
        self._cluster_of = cluster_of
        self._before_ms = int(now_ms()) - after_ms
        self._open_group = open_group

    def read(
        self,
        wanted: QueueRange,
        columns: Sequence[str],
        decode: Decode,
        of_brokers: Callable[[QueueRange], Iterator[Sized]],
    ) -> Iterator[Sized]:
        """The whole range, in offset order. Raises SettingsError when the store cannot be opened, and what `of_brokers` does."""
        tier = self._open_group(self._place, self._cluster_of(wanted.topic, wanted.broker_name), wanted.broker_name)
        position = wanted.start
        pieces = self._pieces(tier, wanted, position)
        while pieces:
            piece = pieces.pop(0)
            if piece.file is None and piece.segment is None:
                yield from of_brokers(wanted._replace(start=piece.start, end=piece.end))
                position = piece.end
                continue
            try:
                for each in _of_tier(tier, wanted, piece, columns, decode):
                    yield each
                    position += each.batch.num_rows
                if position != piece.end:
                    raise TierError(f"{position - piece.start} of its messages {piece.start} to {piece.end} are there")
            except TierError as error:
                pieces = self._pieces_again(tier, wanted, position, error)

    def _pieces(self, tier: GroupTier, wanted: QueueRange, start: int) -> list[Piece]:
        try:
            return tier.pieces(Queue(wanted.topic, wanted.queue_id), start, wanted.end, self._before_ms)
        except TierError as error:
            log.warning("%s is read from brokers: %s", wanted, error)
            return [Piece(start, wanted.end)]

    def _pieces_again(self, tier: GroupTier, wanted: QueueRange, start: int, error: TierError) -> list[Piece]:
        """What was read was merged or expired meanwhile, or the store fails; then the brokers know better."""
        log.warning("%s cannot be read from the tier at %d: %s", wanted, start, error)
        try:
            if tier.refresh():
                return self._pieces(tier, wanted, start)
        except TierError as again:
            log.warning("the tier is not read again: %s", again)
        return [Piece(start, wanted.end)]


def _of_tier(
    tier: GroupTier, wanted: QueueRange, piece: Piece, columns: Sequence[str], decode: Decode
) -> Iterator[Sized]:
    if piece.file is not None:
        for batch, size in parquet.rows(tier.objects, piece.file.name, piece.start, piece.end, records.schema(columns)):
            yield Sized(batch, size, ReadFrom.FILES)
        return
    inside = wanted._replace(start=piece.start, end=piece.end)
    for body in tier.portions(Queue(wanted.topic, wanted.queue_id), piece):
        yield Sized(decode(inside, body), len(body), ReadFrom.SEGMENTS)
