"""Which part of a queue's range is read from the tier, and how: exported files where there are any, else segments.

One process reads for many tasks: what the tier has is remembered by broker group, and asked for again when it is not enough.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from remoting.tier.contents import Queue
from remoting.tier.object_stores import StorePlace
from remoting.tier.segments import QueueSegments, Segment
from tasks.tier.exports import ExportFile, by_queue, directory_of, disjoint
from tasks.tier.manifest import Manifest
from tasks.tier.messages import portions, runs
from tasks.tier.objects import Objects

log = logging.getLogger(__name__)

_NEW_FOR_S: Final = 60.0


class Piece(NamedTuple):
    """Messages `[start, end)`, and who has them: a file, a segment, or, when both are None, the brokers."""

    start: int
    end: int
    file: ExportFile | None = None
    segment: Segment | None = None


class GroupTier:
    """The tier of one broker group. Every method raises TierError."""

    def __init__(self, objects: Objects, now_s: Callable[[], float] = time.monotonic) -> None:
        self.objects = objects
        self._now_s = now_s
        self._manifest = Manifest(objects)
        self._read_at_s = float("-inf")
        self._files: dict[str, dict[Queue, list[ExportFile]]] = {}

    def pieces(self, queue: Queue, start: int, end: int, before_ms: int) -> list[Piece]:
        """The range in pieces, in order and whole. What was stored at `before_ms` or later is left to the brokers."""
        if self._now_s() - self._read_at_s > _NEW_FOR_S:
            self.refresh()
        segments = self._manifest.contents.queues.get(queue)
        if segments is None:
            return [Piece(start, end)]
        return list(_filled(start, end, self._cold_pieces(queue, segments, start, end, before_ms)))

    def refresh(self) -> bool:
        """Look at what the tier has now; whether it changed."""
        changed = self._manifest.refresh()
        self._read_at_s = self._now_s()
        self._files.clear()
        return changed

    def portions(self, queue: Queue, piece: Piece) -> Iterator[bytes]:
        """The records of a piece of a segment."""
        assert piece.segment is not None, "the piece is one of a segment"
        return portions(self.objects, queue, piece.segment, piece.start, piece.end)

    def _cold_pieces(
        self, queue: Queue, segments: QueueSegments, start: int, end: int, before_ms: int
    ) -> Iterator[Piece]:
        files = [each for each in self._files_of(queue) if each.end > start and each.first < end]
        for run in runs(segments, start, end):
            old = [each for each in run.segments if each.last_ms < before_ms]
            if not old:
                continue
            position, run_end = run.first, min(run.end, old[-1].end)
            # one that reaches beyond what the tier has may be of a log that was cut, or of messages that expired
            for file in disjoint(each for each in files if segments.first <= each.first and each.end <= segments.end):
                if file.end <= position or file.first >= run_end:
                    continue
                first, last = max(file.first, position), min(file.end, run_end)
                yield from _of_segments(old, position, first)
                yield Piece(first, last, file=file)
                position = last
            yield from _of_segments(old, position, run_end)

    def _files_of(self, queue: Queue) -> list[ExportFile]:
        known = self._files.get(queue.topic)
        if known is None:
            names = [each.name for each in self.objects.list(directory_of(queue.topic))]
            known = self._files[queue.topic] = by_queue(names)
        return known.get(queue, [])


def _of_segments(segments: list[Segment], start: int, end: int) -> Iterator[Piece]:
    for each in segments:
        first, last = max(start, each.first), min(end, each.end)
        if first < last:
            yield Piece(first, last, segment=each)


def _filled(start: int, end: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        if start < piece.start:
            yield Piece(start, piece.start)
        yield piece
        start = piece.end
    if start < end:
        yield Piece(start, end)


_known: dict[tuple[StorePlace, str, str], GroupTier] = {}


def group_tier(place: StorePlace, cluster: str, broker_name: str) -> GroupTier:
    """That of a broker group, of which this process may know something. Raises SettingsError."""
    key = (place, cluster, broker_name)
    if key not in _known:
        _known[key] = GroupTier(Objects.open(place, cluster, broker_name))
    return _known[key]
