"""A table that is read from the log again in many turns of the loop, while the one before is still seen.

The log may get more records meanwhile; it must not be cut, and keep what lies at `held_unit` and behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from brokerd.journal.record_log import RecordLog
from brokerd.journal.replay import Position, Table, find_snapshot, follow, read_record
from brokerd.store.unit import Unit

_ROWS: Final = 250
_UNITS: Final = 16
_ROW_BYTES: Final = 150  # about what a row or an entry takes up in the log
_ENOUGH: Final = 500  # rows or entries, for one turn of the loop


class Reread:
    """Fills the empty `table`; `done` puts it in its place."""

    def __init__(self, log: RecordLog, topic: str, table: Table, done: Callable[[], None]) -> None:
        self._log = log
        self._topic = topic
        self._table = table
        self._done = done
        self._steps = self._read()
        self.position = Position(0, 0)
        self.held_unit = 0

    def step(self) -> bool:
        """Read some more; whether that was all, and the table is in its place. Raises CorruptedFile."""
        work = 0
        for size in self._steps:
            work += size
            if work >= _ENOUGH:
                return False
        self._done()
        return True

    # ---- inside

    def _read(self) -> Iterator[int]:
        """How many rows or entries each step was about."""
        low, high = self._log.queue_range(self._topic, 0)
        found = find_snapshot(self._log, self._topic, low, high)
        self.held_unit = low if found is None else found.first
        if found is None and low > 0:
            return
        self.position = Position(low, 0)
        if found is not None:
            for part in found.parts:
                yield from self._load(part)
            self.position = found.position
        while (high := self._log.queue_range(self._topic, 0)[1]) > self.position.next_unit:
            start = self.position.next_unit
            end = min(high, start + _UNITS)
            units = self._log.read_units(self._topic, 0, start, end - start)
            self.position = follow(self._log, self._topic, self._table, self.position, end)
            yield sum(1 + size // _ROW_BYTES for _, size, _ in units)

    def _load(self, part: Unit) -> Iterator[int]:
        body = read_record(self._log, part).body
        rows = body["rows"]
        for start in range(0, len(rows), _ROWS):
            for row in rows[start : start + _ROWS]:
                self._table.load_row(row)
            yield min(_ROWS, len(rows) - start)
        for row in body.get("more", ()):
            self._table.load_row(row)
            yield sum(len(each) for each in row if isinstance(each, list))  # what it says is of so many
