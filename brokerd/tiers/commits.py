"""What was uploaded, and what else changed, goes to the manifest and then to the log, all that waits as one (shell).

A write to the manifest that fails is repeated until it is there: nothing else may be written in its place. What the log has
acknowledged is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from brokerd.journal.journal import Journal
from brokerd.journal.record_log import RecordLog
from brokerd.store.put_status import PutStatus
from brokerd.tiers.index.writing import IndexWriter
from brokerd.tiers.manifests import Fenced, ManifestWriter
from brokerd.tiers.objects.interface import ObjectStoreError
from brokerd.tiers.table import TierTable, changed
from brokerd.tiers.upload.uploader import Loop
from remoting.errors import LogboomError, NotMaster
from remoting.tier.contents import Change, indexed, unindexed
from remoting.tier.index import Posting

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_LATE: Final = frozenset(
    {PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH}
)

Committed = Callable[[], None]
Epochs = Callable[[], Sequence[tuple[int, int]]]


class Told(NamedTuple):
    """Who hears of trouble with the object store (None: it is over), of being fenced, and of the names of objects that nobody
    needs any more."""

    troubled: Callable[[ObjectStoreError | None], None]
    fenced: Callable[[str], None]
    retired: Callable[[Sequence[str]], None]


class Commits:
    """One life of it, with a writer of the master's epoch. `committed` of a change is called when the log has acknowledged it."""

    def __init__(
        self,
        log: tuple[RecordLog, Journal, TierTable],
        writer: ManifestWriter,
        index: IndexWriter,
        epochs: Epochs,
        loop: Loop,
        told: Told,
    ) -> None:
        self._record_log, self._journal, self._table = log
        self._writer = writer
        self._epochs = epochs
        self._loop = loop
        self._troubled, self._fenced, self._retired = told
        self._index = index
        self._waiting: list[tuple[Change, Committed, Sequence[Posting]]] = []
        self._writing = False
        self._stopped = False

    def open(self, rows: Sequence[Change], changes: Sequence[Change], opened: Committed) -> None:
        """Begin with a checkpoint of these rows, which is what the table's contents are with those changes."""
        self._writing = True
        self._loop.spawn(self._open(rows, changes, opened), "write the first checkpoint of an epoch to the tier")

    def add(self, change: Change, committed: Committed, postings: Sequence[Posting] = ()) -> None:
        """Commit the change, behind all that were added before; with it the index says how its messages are found."""
        self._waiting.append((change, committed, postings))
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting and not self._writing and not self._stopped:
            self._writing = True
            self._loop.spawn(self._run(), "commit to the tier")

    def stop(self) -> None:
        """Begin nothing more, and tell nobody what becomes of what was begun."""
        self._stopped = True
        self._waiting.clear()

    async def _open(self, rows: Sequence[Change], changes: Sequence[Change], opened: Committed) -> None:
        try:
            if await self.write(rows, is_checkpoint=True):
                end_offset = await self._record(changes)
                if end_offset is not None:
                    self._wait(end_offset, [opened])
        finally:
            self._writing = False
        self._go_on()

    async def _run(self) -> None:
        try:
            while self._waiting and not self._stopped:
                await self._commit()
        finally:
            self._writing = False

    async def _commit(self) -> None:
        part, self._waiting = self._waiting, []
        changes, old = await self._indexed([posting for _, _, postings in part for posting in postings])
        changes += [change for change, _, _ in part]
        if self._stopped or not await self.write(changes, is_checkpoint=False):
            return
        end_offset = await self._record(changes)
        if end_offset is None:
            return
        self._wait(end_offset, [*(committed for _, committed, _ in part), partial(self._retired, old)])
        if self._writer.wants_checkpoint and await self.write(list(self._table.contents.rows()), is_checkpoint=True):
            await self._remove_old()

    async def _indexed(self, postings: Sequence[Posting]) -> tuple[list[Change], list[str]]:
        """Have them in objects of the index: what says so, and names of objects that nobody needs then. Nothing, maybe, when this
        life ended."""
        pause_s = _FIRST_PAUSE_S
        while postings and not self._stopped:
            try:
                new, old = await self._index.put_with(postings, self._table.contents.index.values())
            except ObjectStoreError as error:
                self._troubled(error)
                await self._loop.pause(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            else:
                changes = [indexed(entry) for entry in new] + ([unindexed(old)] if old else [])
                return changes, [entry.name for entry in old]
        return [], []

    async def write(self, changes: Sequence[Change], *, is_checkpoint: bool) -> bool:
        """Have it in the manifest; False when this life ended meanwhile."""
        self._writer.begin(changes, self._epochs(), is_checkpoint=is_checkpoint)
        pause_s = _FIRST_PAUSE_S
        while not self._stopped:
            try:
                await self._writer.finish()
            except Fenced as error:
                self._fenced(str(error))
                return False
            except ObjectStoreError as error:
                self._troubled(error)
                await self._loop.pause(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            else:
                return not self._stopped
        return False

    async def _remove_old(self) -> None:
        try:
            await self._writer.remove_old()
        except ObjectStoreError as error:
            self._troubled(error)  # with the next checkpoint

    async def _record(self, changes: Sequence[Change]) -> int | None:
        """Have in the log what the manifest says now, and where that ends. A full disk is waited for; None: this life ended."""
        while not self._stopped:
            try:
                return self._journal.append(*changed(self._writer.position, changes))
            except NotMaster:
                return None
            except LogboomError as error:
                self._troubled(ObjectStoreError(f"this broker's log does not take what was uploaded: {error}"))
                await self._loop.pause(_FIRST_PAUSE_S)
        return None

    def _wait(self, end_offset: int, committed: Sequence[Committed]) -> None:
        self._record_log.when_acknowledged(end_offset, partial(self._acknowledged, end_offset, committed))

    def _acknowledged(self, end_offset: int, committed: Sequence[Committed], status: PutStatus) -> None:
        if self._stopped:
            return
        if status == PutStatus.PUT_OK:
            for done in committed:
                done()
        elif status in _LATE:
            self._loop.scheduler.call_later(_FIRST_PAUSE_S, self._wait, end_offset, committed)
