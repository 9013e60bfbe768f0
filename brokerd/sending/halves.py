"""Half messages that the kernels lay out: what room there is for more, and who hears of them when they are appended (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from brokerd.store.run import Run
from brokerd.transactions.decide import HalfRoom
from brokerd.transactions.records import Half


class OpenTransactions(Protocol):
    """What the kernels need of transactions."""

    def room(self) -> HalfRoom:
        """For transactions that begin now."""

    def begun(self, halves: Sequence[Half], end_offset: int) -> None:
        """These half messages are in the log, the last of which ends there."""


class LaidOutHalves:
    """The half messages of the present run, which count before they are appended. A run that is dropped leaves nothing."""

    def __init__(self, transactions: OpenTransactions) -> None:
        self._transactions = transactions
        self._run: Run | None = None
        self._count = self._size_bytes = 0

    def room(self, run: Run) -> HalfRoom:
        """What there is for more in the run."""
        room = self._transactions.room()
        if self._run is not run:
            return room
        count, size_bytes = room
        return HalfRoom(count - self._count, size_bytes - self._size_bytes)

    def add(self, run: Run, halves: Sequence[Half]) -> None:
        """These are in the run now, and nothing lies behind the last of them."""
        if self._run is not run:
            self._run = run
            self._count = self._size_bytes = 0
        self._count += len(halves)
        self._size_bytes += sum(half.size for half in halves)
        last = halves[-1]
        run.appended.append(partial(self._transactions.begun, halves, last.physical_offset + last.size))
