"""Settings told again, to clients that do not listen when they are told first.

Node.js ("HTTP") announces itself when it knows its first topic's route, asks for the routes of its other topics one after the
other, and only then begins to wait for settings: those that came meanwhile it has forgotten, and asks again after five minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from brokerd.loop.scheduler import Scheduler
from brokerd.proxy.calls import Call

DEAF_AT_FIRST: Final = frozenset({"HTTP"})
AFTER_S: Final = (0.5, 2.0, 8.0, 20.0)  # since the time before
_MAX_BYTES: Final = 256 * 1024
MAX_KEPT_BYTES: Final = 16 << 20  # of all that is to be told again


class TellingAgain:
    """Of one broker. Beyond the bytes that it keeps it tells nobody again: who misses settings asks for them in the end."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._kept_bytes = 0

    def tell(self, call: Call, answer: bytes) -> None:
        """Repeat the answer on the call's stream, as long as it is open and read."""
        if len(answer) <= min(_MAX_BYTES, MAX_KEPT_BYTES - self._kept_bytes):
            self._kept_bytes += len(answer)
            self._wait(call, answer, iter(AFTER_S))

    def _wait(self, call: Call, answer: bytes, times: Iterator[float]) -> None:
        """One timer at a time."""
        after_s = next(times, None)
        if after_s is None:
            self._kept_bytes -= len(answer)
        else:
            self._scheduler.call_later(after_s, self._tell, call, answer, times)

    def _tell(self, call: Call, answer: bytes, times: Iterator[float]) -> None:
        if not call.live:
            self._kept_bytes -= len(answer)
            return
        if not call.is_slow:
            call.send([answer])
        self._wait(call, answer, times)
