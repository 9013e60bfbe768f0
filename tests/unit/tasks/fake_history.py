"""A twin of the history's database: rows in a dictionary, with the rules of the real one, and a lock that a test may hold."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from django.db import OperationalError

from remoting.facts.history import HistoryEntry


class MemoryHistory:
    """What is over is never changed any more. `problem`: why it refuses; `free`: cleared, whoever comes waits."""

    def __init__(self) -> None:
        self.rows: dict[str, HistoryEntry] = {}
        self.problem = ""
        self.free = threading.Event()
        self.free.set()

    def write(self, entries: Sequence[HistoryEntry]) -> None:
        self._enter()
        for each in entries:
            if each.key not in self.rows or self.rows[each.key].ended_ms is None:
                self.rows[each.key] = each

    def read_open(self) -> Sequence[HistoryEntry]:
        self._enter()
        return [each for each in self.rows.values() if each.ended_ms is None]

    def _enter(self) -> None:
        self.free.wait(60)
        if self.problem:
            raise OperationalError(self.problem)
