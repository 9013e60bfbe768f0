"""The history's way to the database: beside the snapshots, never before one.

The collector hands over the entries of each snapshot; those that are new or changed wait here until a thread has written them. A
database that is locked, full or away delays nothing else: what is to be written is kept, tried again, and the snapshot's verdict
says so. Before the first write it is asked what was not over when the collector ended, so that this is continued.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from django.db import Error as DatabaseError

from remoting.facts.history import HistoryEntry
from tasks.snapshot.inputs import Kept

log = logging.getLogger(__name__)

RETRY_S: Final = 5.0
MOST_WAITING: Final = 10_000


class Store(Protocol):
    """Where entries are kept. Both methods block, and raise django.db.Error or OSError when they cannot."""

    def write(self, entries: Sequence[HistoryEntry]) -> None: ...

    def read_open(self) -> Sequence[HistoryEntry]: ...


class Journal:
    """What is to be written, and how the writing goes. Used on the event loop; only the store runs in a thread.

    Nothing is written of a snapshot that was built without what the database has as not over: it would be doubled.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._problem = ""
        self._found: tuple[HistoryEntry, ...] = ()
        self._was_read = False
        self._was_taken = False
        self._written: dict[str, HistoryEntry] = {}
        self._waiting: dict[str, HistoryEntry] = {}
        self._something = asyncio.Event()

    def take(self) -> Kept:
        """The present problem, and once what the database had as not over; who takes that has to go on with it."""
        kept, self._found = Kept(self._problem, self._found), ()
        self._was_taken = self._was_read
        return kept

    def note(self, history: Iterable[HistoryEntry]) -> None:
        """Have written what of these is not, in its present form."""
        if not self._was_taken:
            return
        present = {each.key: each for each in history}
        self._written = {key: each for key, each in self._written.items() if key in present or key in self._waiting}
        for key, each in present.items():
            if self._written.get(key) != each and (key in self._waiting or len(self._waiting) < MOST_WAITING):
                self._waiting[key] = each
                self._something.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._step()
            except (DatabaseError, OSError) as error:
                if not self._problem:
                    log.warning("the history cannot be written: %s", error)
                self._problem = f"{error}" or type(error).__name__
                await asyncio.sleep(RETRY_S)

    async def _step(self) -> None:
        """Read once what was not over, then write whenever there is something."""
        if not self._was_read:
            self._found = tuple(await asyncio.to_thread(self._store.read_open))
            self._was_read, self._problem = True, ""
        while not self._waiting:
            self._something.clear()
            await self._something.wait()
        batch = dict(self._waiting)
        await asyncio.to_thread(self._store.write, list(batch.values()))
        self._problem = ""
        for key, each in batch.items():
            self._written[key] = each
            if self._waiting.get(key) == each:
                del self._waiting[key]
