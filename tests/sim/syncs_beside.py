"""Syncs as the thread in C makes them (`brokerd/native/syncs.c`), a step of the world each, for the daemon's own `SyncsInC`; and
the flusher's thread around them.

What is durable is what the simulated disk synced; the loop hears later, and so does who appends beside it. Between two steps the
thread is taken to wait in C, where it leaves when somebody wants the files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from brokerd.native.syncs import Ending
from brokerd.store.log.commitlog import SyncMark
from brokerd.store.log.syncs_in_c import SyncsInC
from remoting.errors import StorageError

if TYPE_CHECKING:
    from tests.sim.lent_groups import LendingBroker
    from tests.support.disks import MemorySegment

EVENT: Final = 1000  # the descriptor that the loop reads
_AGAIN_MS: Final = 0.2  # most that the thread takes until it is back, who left


class SyncSteps:
    """`syncs_in_c.Syncs`. `file_of` finds what a descriptor is of; `wake` has somebody serve."""

    at = 1  # which is there

    def __init__(
        self, file_of: Callable[[int], MemorySegment], tell_loop: Callable[[], None], wake: Callable[[], None]
    ) -> None:
        self._file_of, self._tell_loop, self._wake = file_of, tell_loop, wake
        self.event = EVENT
        self.done = self.answered = 0
        self.is_serving = False
        self.beside_listener: Callable[[], None] = lambda: None  # of who appends beside the loop
        self.durations_ns: Sequence[int] = ()
        self._number = self._end = self._complete = self._lane_end = self._done_complete = 0
        self._begin = -1
        self._is_leaving = False

    # ---- the loop

    def want(self, number: int, end: int, complete: int) -> None:
        self._number, self._end, self._complete = number, end, complete
        self._wake()

    def set_back(self, end: int) -> None:
        self._end = self._complete = end
        self._lane_end = min(self._lane_end, end)
        self.done = min(self.done, end)

    def hear(self) -> int:
        return self.done

    def serves(self, begin: int) -> bool:
        return self.is_serving and not self._is_leaving and self._begin == begin

    def close(self) -> None:
        """Nothing is held."""

    # ---- who appends beside it

    def want_beside(self, end: int) -> None:
        """Have all before it synced, which are whole records."""
        self._lane_end = end
        self._wake()

    # ---- any thread

    def leave(self) -> None:
        self._is_leaving = True
        self._wake()

    # ---- the thread that serves

    @property
    def durable(self) -> tuple[int, int]:
        return self.done, self._done_complete

    @property
    def is_wanted(self) -> bool:
        """Whether there is something to do."""
        return self._number != self.answered or self._lane_end > self.done

    def stay(self) -> None:
        self._is_leaving = False

    def serve(self, answered: int, descriptor: int, begin: int, limit: int) -> Ending:
        """One sync, if any is wanted. Raises OSError."""
        self.answered, self.durations_ns = answered, ()
        self._begin = begin
        if not self.is_wanted:
            return Ending.LEFT
        number, complete, end = self._number, self._complete, self._end
        if self._lane_end > end:
            complete = end = self._lane_end
        if end > limit:
            return Ending.PAST_FILE
        is_asked = number != answered
        if end > self.done:
            self._sync(descriptor)
            self.done = end
            self.durations_ns = (1,)
        self.answered, self._done_complete = number, complete
        self.beside_listener()
        if is_asked:
            self._tell_loop()
        return Ending.TO_NOTE

    def _sync(self, descriptor: int) -> None:
        try:
            self._file_of(descriptor).sync()
        except StorageError as error:
            raise OSError(errno.EIO, os.strerror(errno.EIO)) from error


class FlusherSteps:
    """What the flusher's thread does with them: `Flusher._serve`, a step of the broker at a time."""

    def __init__(self, broker: LendingBroker) -> None:
        self._broker = broker
        self._requests = self._answered = 0
        self._is_at_work = self.is_due = False
        self._is_asleep = False  # in Python, where only the loop wakes it
        self.steps = SyncSteps(broker.file_of, partial(broker.loop.readable, EVENT), self._wake)
        self.syncs = SyncsInC(broker.core.store.commitlog, self.steps)
        self.syncs.start(broker.loop, broker.heard_of_syncs)

    def request(self) -> None:
        """On the loop: have all that the log holds durable soon."""
        self._requests += 1
        self._is_asleep = False
        self.syncs.want(self._requests)

    def _wake(self) -> None:
        """Somebody wants something of the thread."""
        if not (self._is_at_work or self._is_asleep):
            self._is_at_work = True
            broker = self._broker
            self.is_due = self.steps.is_wanted or self._requests != self._answered
            delay_ms = broker.rng.uniform(*broker.sync_ms) if self.is_due else broker.rng.uniform(0, _AGAIN_MS)
            broker.after(delay_ms, broker.guarded(self.sync))

    def sync(self) -> None:
        """In the thread."""
        broker = self._broker
        if not self._is_at_work or broker.disk.waits(lambda: broker.after(0, broker.guarded(self.sync))):
            return  # it was done in the middle of a write
        self._is_at_work = self.is_due = False
        store = broker.core.store
        mark: SyncMark | None = None
        try:
            served = self.syncs.serve(self._answered)
            self.steps.is_serving = served is not None
            if served is not None:
                self._answered, mark = served.answered, served.mark
            elif self._requests != self._answered:
                self._answered = self._requests
                mark = store.sync()
                broker.loop.call_soon(broker.synced_in_python, mark)
            else:
                self._is_asleep = True
        except StorageError as error:
            self.steps.is_serving = False
            broker.fail_soon(error)
            return
        if mark is not None:
            self._is_at_work = True  # until word is left of it
            broker.after(broker.rng.uniform(0, 0.3), broker.guarded(partial(self._leave_word, mark)))
        else:
            self._go_on()

    def _leave_word(self, mark: SyncMark) -> None:
        try:
            self._broker.core.store.note_flushed(mark)
        except StorageError as error:
            if not error.is_out_of_space:
                self._broker.fail_soon(error)
                return
        try:
            self._broker.core.store.prepare_next_segment()
        except StorageError as error:
            self._broker.world.note(f"{self._broker.name} has no room for its next file: {error}")
        self._is_at_work = False
        self._go_on()

    def _go_on(self) -> None:
        """Whether more was wanted meanwhile."""
        if self.steps.is_wanted or self._requests != self._answered:
            self._wake()
