"""Settings told again, to clients that do not listen when they are told first.

Node.js ("HTTP") announces itself when it knows its first topic's route, asks for the routes of its other topics one after the
other, and only then begins to wait for settings: those that came meanwhile it has forgotten, and asks again after five minutes.
"""

from __future__ import annotations

from typing import Final

from brokerd.loop.scheduler import Scheduler
from brokerd.proxy.calls import Call

DEAF_AT_FIRST: Final = frozenset({"HTTP"})
AFTER_S: Final = (0.5, 2.0, 8.0, 20.0)  # since the time before
_MAX_BYTES: Final = 256 * 1024


def tell_again(scheduler: Scheduler, call: Call, answer: bytes) -> None:
    """Repeat the answer on the call's stream, as long as it is open."""
    if len(answer) <= _MAX_BYTES:
        _Again(scheduler, call, answer)


class _Again:
    """One timer at a time."""

    def __init__(self, scheduler: Scheduler, call: Call, answer: bytes) -> None:
        self._scheduler = scheduler
        self._call = call
        self._answer = answer
        self._times = iter(AFTER_S)
        self._wait()

    def _wait(self) -> None:
        after_s = next(self._times, None)
        if after_s is not None:
            self._scheduler.call_later(after_s, self._tell)

    def _tell(self) -> None:
        if self._call.live:
            self._call.send([self._answer])
            self._wait()
