"""Whether the log's disk works, told by how the log becomes durable (pure)

A disk that stands still takes writes, and the sync behind them does not end: then nothing more becomes durable, though something
waits for it. What counts is the time since it last did, so the length of the sync that is under way, and not how much waits: a
disk whose syncs are long and end stands no longer than the longest of them.

One that needed half the limit is slow, and is so for `SLOW_MS` behind that. The controllers give the lead only to who works, so
neither disks that are slow together nor one that stands now and then pass it to and fro.
"""

from __future__ import annotations

from typing import Final

from brokerd.replication.log import LogPosition
from remoting.facts.words import DiskPace

SLOW_MS: Final = 10_000


class DiskWatch:
    """Of one log. To be told of every flush, and time and again in between; the clock is monotonic."""

    def __init__(self) -> None:
        self.pace = DiskPace.WORKS
        self.standing_ms = 0  # for how long nothing has become durable that waits for it
        self._since_ms: int | None = None
        self._flushed_offset = 0
        self._slow_until_ms: int | None = None

    def look(self, log: LogPosition, now_ms: int, limit_ms: int, pause_ms: int = 0) -> None:
        """A sync that is under way for `limit_ms` makes a disk stand; 0: none does. This process itself stood still for
        `pause_ms` of the time since the last look."""
        is_new = self._since_ms is None or log.flushed_offset != self._flushed_offset
        self._flushed_offset = log.flushed_offset
        if log.flushed_offset == log.end_offset:
            self._since_ms = None
        elif is_new or self._since_ms is None:
            self._since_ms = now_ms
        else:
            self._since_ms = min(now_ms, self._since_ms + pause_ms)
        self.standing_ms = 0 if self._since_ms is None else now_ms - self._since_ms
        if limit_ms and 2 * self.standing_ms >= limit_ms:
            self._slow_until_ms = now_ms + SLOW_MS
        if self._slow_until_ms is None or now_ms >= self._slow_until_ms:
            self.pace = DiskPace.WORKS
        else:
            self.pace = DiskPace.STANDS if self.standing_ms >= limit_ms > 0 else DiskPace.SLOW

    @property
    def stands(self) -> bool:
        return self.pace is DiskPace.STANDS
