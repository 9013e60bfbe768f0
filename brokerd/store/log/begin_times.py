"""When the files of the log begin: the store times of their first records, read once and remembered.

Retention goes by them, so one is believed only of a record that is intact: a flipped bit would make files old in a moment. What
cannot be read or is damaged is asked for again, as it may be repaired. The loop's thread calls everything.
"""

from __future__ import annotations

from collections.abc import Iterable

from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.retention import FileAge
from remoting.errors import StorageError
from remoting.record.fields import store_timestamp_of


class BeginTimes:
    """Of one log."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._known: dict[int, int] = {}
        self._generation = log.generation

    def of(self, starts: Iterable[int]) -> list[int]:
        """Of the files that start there, of others nothing is remembered; -1 where no intact record starts, or none is read."""
        if self._generation != self._log.generation:
            self._generation = self._log.generation
            self._known.clear()
        times = {start: self._known.get(start, -1) for start in starts}
        for start, known in times.items():
            if known < 0:
                times[start] = self.at(start)
        self._known = {start: time_ms for start, time_ms in times.items() if time_ms >= 0}
        return list(times.values())

    def ages(self) -> list[FileAge]:
        """The log's files, oldest first. The first message of the next file bounds the age of a file's last one; where that is
        damaged, or the disk does not read it, that of a later file does."""
        starts, size = self._log.segment_starts()[::-1], self._log.segment_size_bytes
        ages: list[FileAge] = []
        bound_ms = -1
        for start, next_ms in zip(starts, self.of(start + size for start in starts), strict=True):
            bound_ms = next_ms if next_ms >= 0 else bound_ms
            ages.append(FileAge(start, start + size, bound_ms))
        return ages[::-1]

    def at(self, offset: int) -> int:
        """Of the record that starts at the offset; it is read."""
        try:
            record = self._log.record_at(offset)
        except StorageError:
            return -1  # whoever needs the record says so; the scrubber looks for what cannot be read
        return store_timestamp_of(record) if record is not None else -1
