"""Group commit: one thread that syncs the log, over and over, for everything appended until each sync began.

`request()` asks for everything appended so far; it costs an addition while a sync runs and a queue put when the thread sleeps.
So nothing waits for more than two syncs: the one under way when it comes, and the next, which begins at once and covers it.
After a sync the loop gets one callback, however many requests it answered. A failed sync is reported
once and ends the thread: what is durable is unknown from then on (the kernel may have dropped the pages).

Where the native library is, the thread spends most of its time in C (`syncs_in_c`), so that it does not need the interpreter
when the loop does: at the end of a sync.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Final, Protocol

from brokerd.store.log.commitlog import SyncMark
from brokerd.store.log.syncs_in_c import SyncsInC
from remoting.errors import StorageError
from remoting.exposition import Histogram

log = logging.getLogger(__name__)

# Upper bounds of how long a sync takes: a memory disk to a disk in trouble
SECONDS: Final = (0.0001, 0.0003, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0)

_NOT_NOTED: Final = "no room to note how far the log is durable"
_NOT_PREPARED: Final = "cannot create the next commitlog file ahead of need"


class Syncable(Protocol):
    """What the flusher needs of the store."""

    def sync(self) -> SyncMark: ...

    def note_flushed(self, mark: SyncMark) -> None: ...

    def mark_flushed(self, mark: SyncMark) -> object: ...

    def prepare_next_segment(self) -> None: ...

    def fail(self, error: StorageError) -> None: ...


class Flusher:
    """Started and stopped by its owner on the loop, on which `listeners` are called after every sync."""

    def __init__(self, store: Syncable, *, pause_ms: int = 0, in_c: SyncsInC | None = None) -> None:
        """`pause_ms` between two syncs is for a broker whose answers do not wait for them: fewer, larger syncs. `in_c` is of the
        store's log, for one whose answers do."""
        self._in_c = in_c
        self._pause_s = pause_ms / 1000
        self._ending = threading.Event()
        self._store = store
        self._requests = 0
        self._asleep = False
        self._stopping = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self._unable: set[str] = set()  # the thread's: what it said that it cannot do, and could not since
        self.durations = Histogram(SECONDS)
        self.listeners: list[Callable[[], None]] = []

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        if self._in_c is not None:
            self._in_c.start(self._loop, self._tell)
        self._thread.start()

    def request(self) -> None:
        """Have everything that the log holds now made durable soon; called on the loop, once per group of appends."""
        self._requests += 1
        if self._in_c is not None:
            self._in_c.want(self._requests)
        if self._asleep:
            self._asleep = False
            self._wake.put(None)

    async def stop(self) -> None:
        """Finish what was requested and end the thread."""
        assert self._stopped is not None, "stop follows start"
        self._stopping = True
        self._ending.set()
        self._wake.put(None)
        if self._in_c is not None:
            self._in_c.end()
        await self._stopped
        self._thread.join()  # that was its last word
        if self._in_c is not None:
            self._in_c.close()
            self._in_c = None

    # -- the thread --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._loop is not None
        try:
            self._serve()
        except StorageError as error:
            self._loop.call_soon_threadsafe(self._store.fail, error)
        except Exception as error:  # the outermost edge: the daemon must learn that nobody syncs
            log.exception("the flusher broke")
            self._loop.call_soon_threadsafe(self._store.fail, StorageError(f"the flusher broke: {error}"))
        self._loop.call_soon_threadsafe(self._ended)

    def _serve(self) -> None:
        answered = 0
        while True:
            if (by_c := self._sync_in_c(answered)) is not None:
                answered = by_c
                continue
            requests = self._requests
            if requests != answered:
                self._sync()
                answered = requests
                if self._pause_s:
                    self._ending.wait(self._pause_s)
            elif self._stopping:
                return
            else:
                self._asleep = True
                # A request between the comparison and this line did not see us asleep: look again before waiting.
                if self._requests != answered or self._stopping:
                    self._asleep = False
                else:
                    self._wake.get()

    def _sync(self) -> None:
        assert self._loop is not None
        begin_ns = perf_counter_ns()
        mark = self._store.sync()
        self.durations.observe((perf_counter_ns() - begin_ns) / 1e9)
        self._loop.call_soon_threadsafe(self._synced, mark)
        # Nobody waits for the rest.
        self._note(mark)
        self._prepare()

    def _sync_in_c(self, answered: int) -> int | None:
        """The number of the last request that was answered there; None when it is to be done here."""
        served = self._in_c.serve(answered) if self._in_c is not None else None
        if served is None:
            return None
        for duration_ns in served.durations_ns:
            self.durations.observe(duration_ns / 1e9)
        if served.mark is not None:
            self._note(served.mark)
            self._prepare()
        return served.answered

    def _note(self, mark: SyncMark) -> None:
        """Where nothing is overwritten in place even the checkpoint's page needs room; a start then checks more of the log."""
        try:
            self._store.note_flushed(mark)
        except StorageError as error:
            if not error.is_out_of_space:
                raise
            self._say_once(_NOT_NOTED, error)
        else:
            self._unable.discard(_NOT_NOTED)

    def _prepare(self) -> None:
        try:
            self._store.prepare_next_segment()
        except StorageError as error:
            self._say_once(_NOT_PREPARED, error)
        else:
            self._unable.discard(_NOT_PREPARED)

    def _say_once(self, what: str, error: StorageError) -> None:
        """Until it can be done: it is tried behind each sync."""
        if what not in self._unable:
            self._unable.add(what)
            log.warning("%s: %s", what, error)

    # -- on the loop -------------------------------------------------------------------------------------------------------

    def _synced(self, mark: SyncMark) -> None:
        self._store.mark_flushed(mark)
        self._tell()

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()

    def _ended(self) -> None:
        assert self._stopped is not None
        if not self._stopped.done():
            self._stopped.set_result(None)
