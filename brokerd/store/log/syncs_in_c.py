"""The flusher's syncs without the interpreter: of the log's last file, while nothing else is to be done and nobody else needs the
files (`file_turns`).

Between a sync that ends and those who wait for it stands the loop alone, which an event wakes; the flusher's thread, which would
have the interpreter at that moment, is in C. It comes back to leave word of syncs, for a new file, and for whoever wants a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from brokerd.native.syncs import Ending
from brokerd.store.log.commitlog import CommitLog, SyncMark


class Served(NamedTuple):
    """What syncs did: all up to the request with that number is durable, as `mark` says, which is None when there were none."""

    answered: int
    mark: SyncMark | None
    durations_ns: Sequence[int]


class Syncs(Protocol):
    """What loop and thread share: `NativeSyncs`, which says what each of this means."""

    @property
    def at(self) -> int: ...

    @property
    def event(self) -> int: ...

    @property
    def done(self) -> int: ...

    @property
    def answered(self) -> int: ...

    @property
    def durable(self) -> tuple[int, int]: ...

    @property
    def durations_ns(self) -> Sequence[int]: ...

    def want(self, number: int, end: int, complete: int) -> None: ...

    def set_back(self, end: int) -> None: ...

    def hear(self) -> int: ...

    def serves(self, begin: int) -> bool: ...

    def leave(self) -> None: ...

    def stay(self) -> None: ...

    def serve(self, answered: int, descriptor: int, begin: int, limit: int) -> Ending: ...

    def close(self) -> None: ...


class SyncsInC:
    """Of one log. The loop wants and hears, the flusher's thread serves."""

    def __init__(self, commitlog: CommitLog, syncs: Syncs) -> None:
        self._commitlog = commitlog
        self._syncs = syncs
        self._is_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heard: Callable[[], None]  # since it started
        commitlog.turns.contents.when_wanted = self._syncs.leave
        commitlog.set_back = self._syncs.set_back

    # -- on the loop

    def start(self, loop: asyncio.AbstractEventLoop, heard: Callable[[], None]) -> None:
        """`heard` is called whenever more is durable."""
        self._loop, self._heard = loop, heard
        loop.add_reader(self._syncs.event, self._hear)

    def want(self, number: int) -> None:
        """Have all that the log holds synced; `number` is that of the request."""
        self._syncs.want(number, self._commitlog.end_offset, self._commitlog.complete_offset)

    @property
    def at(self) -> int:
        """Where it is in memory, for who wants syncs beside the loop."""
        return self._syncs.at

    def serves(self, file_begin: int) -> bool:
        """Whether the thread syncs the file that begins there: what is wanted beside the loop is synced then."""
        return self._syncs.serves(file_begin)

    def catch_up(self) -> None:
        """Take note of what is durable by now."""
        if self._syncs.done > self._commitlog.flushed_offset:
            self._tell(self._syncs.done)

    def end(self) -> None:
        """Have the thread come back, and not serve again."""
        self._is_over = True
        self._syncs.leave()

    def close(self) -> None:
        """The thread is gone. What it did last is told."""
        assert self._loop is not None, "close follows start"
        self._loop.remove_reader(self._syncs.event)
        if self._syncs.durable[0] > self._commitlog.flushed_offset:
            self._tell(self._syncs.durable[0])
        self._commitlog.turns.contents.when_wanted = self._commitlog.set_back = None
        self._syncs.close()

    def _hear(self) -> None:
        self._tell(self._syncs.hear())

    def _tell(self, durable: int) -> None:
        """More may be durable than the loop knows to be in the log."""
        self._commitlog.note_synced(min(durable, self._commitlog.end_offset))
        self._heard()

    # -- the flusher's thread

    def serve(self, answered: int) -> Served | None:
        """Sync what is wanted behind the request with that number, until there is something else to do: once, if it is wanted,
        also where others wait for their turn, who may go on coming. None when that cannot be done here. Raises StorageError,
        which is final, as `CommitLog.sync` does."""
        commitlog, syncs = self._commitlog, self._syncs
        contents = commitlog.turns.contents
        with contents.while_nobody_wants():
            segment = commitlog.file_to_sync
            if segment is None or self._is_over:
                return None
            syncs.stay()
            if contents.is_wanted or self._is_over:  # it may have been said before that
                syncs.leave()
            try:
                ending = syncs.serve(answered, segment.file.descriptor, segment.start, segment.end)
            except OSError as error:
                raise commitlog.sync_failed(segment, error) from None  # it has the system's word
            return self._served(ending)

    def _served(self, ending: Ending) -> Served | None:
        durations_ns = self._syncs.durations_ns
        if not durations_ns:
            return None if ending is Ending.PAST_FILE else Served(self._syncs.answered, None, durations_ns)
        mark = SyncMark(*self._syncs.durable, self._commitlog.generation)
        self._commitlog.synced(mark)
        return Served(self._syncs.answered, mark, durations_ns)
