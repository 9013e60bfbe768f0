"""When one who delivers what waited runs next, and how much of what he appended may wait to be acknowledged.

Each turn of the loop delivers one batch at most, and the next follows in another turn, so that who sends meanwhile has his share.
Batches do not wait for one another to be acknowledged, as long as not too much of them waits. Where nobody acknowledges, or the
log refuses, there is a pause.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from brokerd.journal.record_log import RecordLog
from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.store.put_status import PutStatus


class InFlight(NamedTuple):
    """How much may wait to be acknowledged."""

    messages: int
    size_bytes: int


class Pace:
    """From `begin` to `end`: calls `run` when the time has come, and when something was acknowledged `arm`, which says when that
    is."""

    def __init__(
        self,
        scheduler: Scheduler,
        record_log: RecordLog,
        run: Callable[[], None],
        arm: Callable[[], None],
        limit: InFlight,
        retry_ms: int,
    ) -> None:
        self.is_running = False
        self._scheduler = scheduler
        self._log = record_log
        self._run = run
        self._arm = arm
        self._limit = limit
        self._retry_ms = retry_ms
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self._life = 0
        self._messages = self._bytes = 0  # that wait
        self._pause_until_ms = 0

    def begin(self) -> None:
        self._life += 1
        self.is_running = True
        self._messages = self._bytes = self._pause_until_ms = 0

    def end(self) -> None:
        self._life += 1
        self.is_running = False
        self.run_at(None)

    @property
    def now_ms(self) -> int:
        """By the loop's clock, like all times here."""
        return int(self._scheduler.time() * 1000)

    @property
    def may_append(self) -> bool:
        """Whether there is neither a pause nor too much that waits."""
        return not self.is_full and self.now_ms >= self._pause_until_ms

    @property
    def is_full(self) -> bool:
        """Whether too much waits to be acknowledged."""
        return self._messages >= self._limit.messages or self._bytes >= self._limit.size_bytes

    def pause(self) -> None:
        """It is tried again later."""
        self._pause_until_ms = self.now_ms + self._retry_ms

    def run_soon(self) -> None:
        """Run in a turn of its own, also when there is a pause."""
        self._scheduler.call_soon(self._fire, self._life)

    def run_at(self, at_ms: int | None) -> None:
        """Run then, but not during a pause; in the next turn when that is over. None: not until something else is said."""
        if at_ms is not None:
            at_ms = max(at_ms, self._pause_until_ms)
        if self._timer is not None:
            if at_ms == self._timer_at_ms:
                return
            self._timer.cancel()
            self._timer = None
        if at_ms is not None:
            self._timer_at_ms = at_ms
            wait_s = max(0.0, (at_ms + 1) / 1000 - self._scheduler.time())  # the reading is rounded down
            self._timer = self._scheduler.call_later(wait_s, self._fire, self._life)

    def appended(self, end_offset: int, messages: int, size_bytes: int) -> None:
        """So much was appended, and waits to be acknowledged."""
        self._messages += messages
        self._bytes += size_bytes
        self._log.when_acknowledged(end_offset, partial(self._acknowledged, self._life, messages, size_bytes))

    # ---- inside

    def _fire(self, life: int) -> None:
        if life == self._life:
            self.run_at(None)
            self._run()

    def _acknowledged(self, life: int, messages: int, size_bytes: int, status: PutStatus) -> None:
        if life != self._life:
            return
        self._messages -= messages
        self._bytes -= size_bytes
        if status is not PutStatus.PUT_OK:  # too few replicas answer: more would not reach them either
            self.pause()
        self._arm()
