"""What was uploaded, and what else changed, goes to the manifest and then to the log, all that waits as one (shell).

A write to the manifest that fails is repeated until it is there: nothing else may be written in its place. What the log has
acknowledged is committed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from brokerd.journal.journal import Journal
from brokerd.journal.record_log import RecordLog
from brokerd.store.put_status import PutStatus
from brokerd.tiers.index.writing import IndexWriter
from brokerd.tiers.manifests import Fenced, ManifestWriter
from brokerd.tiers.objects.interface import ObjectStoreError
from brokerd.tiers.table import MOST_CHANGES, TierTable, records_of
from brokerd.tiers.upload.uploader import Loop
from remoting.errors import CorruptedFile, LogboomError, NotMaster
from remoting.tier.contents import COMMITTED, GROWN, MERGED, Change, Queue, TierContents, indexed, unindexed
from remoting.tier.index import IndexObject
from remoting.tier.manifest import PIECE_ROWS, in_pieces
from remoting.tier.segments import decode_segment

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_LATE: Final = frozenset(
    {PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH}
)

log = logging.getLogger(__name__)

T = TypeVar("T")

Committed = Callable[[], None]
Epochs = Callable[[], Sequence[tuple[int, int]]]


class Waiting(NamedTuple):
    """A change, whom to tell that it is committed or that it was left out, and by what its messages are found."""

    change: Change
    committed: Committed
    left_out: Committed
    items: bytes


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
        self._waiting: list[Waiting] = []
        self._on_their_way: set[tuple[Queue, int, int] | None] = set()
        self._index_changing: set[tuple[int, int]] = set()
        self._writing = self._removing = False
        self._stopped = False

    def open(self, contents: TierContents, changes: Sequence[Change], opened: Committed) -> None:
        """Begin with a checkpoint of these contents, which are what the table's are with those changes."""
        self._writing = True
        self._loop.spawn(self._open(contents, changes, opened), "write the first checkpoint of an epoch to the tier")

    def add(
        self, change: Change, committed: Committed, items: bytes = b"", *, left_out: Committed | None = None
    ) -> None:
        """Commit the change, behind all that were added before; with it the index says how its messages are found. `left_out` is
        called, half a minute later, when the change does not fit what is there; without it `committed` is."""
        self._waiting.append(Waiting(change, committed, committed if left_out is None else left_out, items))
        name = _name_in(change)
        if name is not None:
            self._on_their_way.add(name)
        self._go_on()

    def is_on_its_way(self, queue: Queue, epoch: int, number: int) -> bool:
        """Whether a segment of that name is to be in the contents, or to be longer there, and is not yet."""
        return (queue, epoch, number) in self._on_their_way

    def is_index_on_its_way(self, epoch: int, number: int) -> bool:
        """Whether an object of the index of that name comes into the contents, or leaves them, and nobody acknowledged it yet."""
        return (epoch, number) in self._index_changing

    @property
    def is_any_waiting(self) -> bool:
        """Whether something was added that is not committed yet: it may be of messages that no segment tells of."""
        return bool(self._waiting) or self._writing

    def is_any_on_its_way(self, topic: str) -> bool:
        """The same of any segment of the topic."""
        return any(name is not None and name[0].topic == topic for name in self._on_their_way)

    def _go_on(self) -> None:
        if self._waiting and not self._writing and not self._stopped:
            self._writing = True
            self._loop.spawn(self._run(), "commit to the tier")

    def stop(self) -> None:
        """Begin nothing more, and tell nobody what becomes of what was begun."""
        self._stopped = True
        self._waiting.clear()

    async def _open(self, contents: TierContents, changes: Sequence[Change], opened: Committed) -> None:
        try:
            if await self._write_checkpoint(contents):
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
        part, self._waiting = self._waiting[:MOST_CHANGES], self._waiting[MOST_CHANGES:]
        part = self._fitting(part)
        if not part:
            return
        changes, new, old = await self._indexed([(each.change[1], each.items) for each in part if each.items])
        changes += [each.change for each in part]
        if self._stopped or not await self.write(changes):
            return
        end_offset = await self._record(changes)
        if end_offset is None:
            return
        for change in changes:
            self._on_their_way.discard(_name_in(change))
        self._wait(end_offset, [*(each.committed for each in part), partial(self._index_changed, new, old)])
        is_written = self._writer.wants_checkpoint and await self._write_checkpoint(self._table.contents.copy())
        if is_written and not self._removing:
            self._removing = True
            self._loop.spawn(self._remove_old(), "remove what is before a checkpoint of the tier")

    def _fitting(self, part: Sequence[Waiting]) -> list[Waiting]:
        """Those that fit what is there: one that does not, in the manifest or in the log, would be in the way of whoever reads
        them, for ever. Its queue is looked at again, and its objects are swept."""
        found, contents = [], self._table.contents.copy()
        for each in part:
            try:
                contents.apply(each.change)
            except ValueError as error:
                log.error("a change of the tier is left out: %s", error)
                self._on_their_way.discard(_name_in(each.change))
                self._loop.scheduler.call_later(_LONGEST_PAUSE_S, self._tell_unless_stopped, each.left_out)
            else:
                found.append(each)
        return found

    def _tell_unless_stopped(self, left_out: Committed) -> None:
        if not self._stopped:
            left_out()

    async def _indexed(
        self, items: Sequence[tuple[str, bytes]]
    ) -> tuple[list[Change], list[IndexObject], list[IndexObject]]:
        """Have them in objects of the index: what says so, these, and those that nobody needs then. Nothing, maybe, when this
        life ended."""
        if not items:
            return [], [], []
        put = await self._until_done(lambda: self._index.put_with(items, self._table.contents.index.values()))
        if not put:
            return [], [], []
        ((new, old),) = put
        self._index_changing.update(entry.key for entry in [*new, *old])
        return [indexed(entry) for entry in new] + ([unindexed(old)] if old else []), [*new], [*old]

    def _index_changed(self, new: Sequence[IndexObject], old: Sequence[IndexObject]) -> None:
        self._index_changing.difference_update(entry.key for entry in [*new, *old])
        self._retired([entry.name for entry in old])

    async def write(self, changes: Sequence[Change]) -> bool:
        """Have them in the manifest; False when this life ended meanwhile."""
        self._writer.begin(changes, self._epochs())
        return await self._finish()

    async def _write_checkpoint(self, contents: TierContents) -> bool:
        """The same of all contents, which nobody changes; a piece of them in a turn of the loop."""
        for piece, (rows, is_last) in enumerate(in_pieces(contents.rows(), PIECE_ROWS)):
            self._writer.begin_piece(rows, self._epochs(), piece, is_last=is_last)
            if not await self._finish():
                return False
            await self._loop.pause(0)
        return not self._stopped

    async def _finish(self) -> bool:
        """Have in the manifest what was begun; False when this life ended meanwhile."""
        try:
            is_there = len(await self._until_done(self._writer.finish)) > 0
        except Fenced as error:
            self._fenced(str(error))
            return False
        return is_there and not self._stopped

    async def _until_done(self, attempt: Callable[[], Awaitable[T]]) -> list[T]:
        """What the object store does, tried until it does it, with pauses that grow: the result, or nothing when this life ended
        before. Raises Fenced."""
        pause_s = _FIRST_PAUSE_S
        while not self._stopped:
            try:
                result = await attempt()
            except Fenced:
                raise
            except ObjectStoreError as error:
                self._troubled(error)
                await self._loop.pause(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            else:
                self._end_trouble(pause_s > _FIRST_PAUSE_S)
                return [result]
        return []

    def _end_trouble(self, was_in_trouble: bool) -> None:
        """It was done at last: nobody else may ever say so."""
        if was_in_trouble and not self._stopped:
            self._troubled(None)

    async def _remove_old(self) -> None:
        """Beside all else, until it is done."""
        await self._until_done(self._writer.remove_old)
        self._removing = False

    async def _record(self, changes: Sequence[Change]) -> int | None:
        """Have in the log what the manifest says now, a record in each turn of the loop, and where that ends.

        A full disk is waited for; None: this life ended.
        """
        waiting = deque(records_of(changes, self._table.position, self._writer.position))
        has_failed = False
        while not self._stopped:
            try:
                end_offset = self._journal.append_all([waiting[0]])
            except (NotMaster, CorruptedFile):  # the latter: it is in the log, and contradicts it
                self.stop()  # what follows would be committed behind something that is not in the table
                return None
            except LogboomError as error:
                has_failed = True
                self._troubled(ObjectStoreError(f"this broker's log does not take what was uploaded: {error}"))
                await self._loop.pause(_FIRST_PAUSE_S)
                continue
            waiting.popleft()
            if not waiting:
                self._end_trouble(has_failed)
                return end_offset
            await self._loop.pause(0)
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


def _name_in(change: Change) -> tuple[Queue, int, int] | None:
    """What names the segment that the change adds, or makes longer; None when it does neither."""
    if change[0] not in (COMMITTED, GROWN, MERGED):
        return None
    segment = decode_segment(change[3])
    return Queue(change[1], change[2]), segment.epoch, segment.number
