"""When those who wait for messages are served: round by round, and between two rounds a rest as long as the last one took.

What a round costs hardly depends on how many messages each of those who wait gets, but on how many of them it answers. Where
messages come densely, each that is served with the next turn of the loop gets one or two, asks again, and waits again. So the
next round begins when the loop had as much time for other things as the last round took of it; meanwhile more arrives. Where they
come so far apart that a round takes less time than passes between them, nobody waits for a round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerd.loop.cold_line import Clocks, Shortly
from brokerd.loop.scheduler import Scheduler

MOST_S: Final = 0.001  # a rest; what was held up by the machine is no reason to rest for long
_NO_REST_S: Final = 0.00002  # setting a timer takes as long


class Rounds:
    """The rounds of one table of waiting requests. `clocks` say how long a round took; `shortly` makes a call in parts of a
    millisecond."""

    def __init__(self, scheduler: Scheduler, clocks: Clocks, shortly: Shortly) -> None:
        self._call_soon = scheduler.call_soon
        self._clock_s, self._used_s = clocks
        self._shortly = shortly
        self._rests_until_s = 0.0
        self._took_s = 0.0

    def begin(self, serve: Callable[[], None]) -> None:
        """Have a round begin, in the next turn of the loop or when the rest is over. Once for each round."""
        self._took_s = 0.0
        rest_s = self._rests_until_s - self._clock_s()
        if rest_s < _NO_REST_S:
            self.go_on(serve)
        else:
            self._shortly(rest_s, lambda: self._run(serve))

    def go_on(self, serve: Callable[[], None]) -> None:
        """Have the next part of a round done, in the next turn."""
        self._call_soon(self._run, serve)

    def _run(self, serve: Callable[[], None]) -> None:
        began_s = self._used_s()
        try:
            serve()
        finally:
            self._took_s += self._used_s() - began_s
            self._rests_until_s = self._clock_s() + min(self._took_s, MOST_S)
