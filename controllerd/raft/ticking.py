"""When a node is told of its ticks: some of them together while they bring nothing, and those that have passed before each
message and request (pure)

Times are of the shell's monotonic clock, in seconds. A late look counts the ticks up to when it was planned: time that the
process slept through must not depose anybody.
"""

from __future__ import annotations

from typing import Final

from controllerd.raft.core import RaftCore
from controllerd.raft.messages import Role
from remoting.transport.beats import last_beat_s, next_beat_s

_SAME_S: Final = 1e-5
_EARLY: Final = 0.1  # of a tick: clocks are told in whole milliseconds


class Ticking:
    """Of one node. `at_s` is when its shell looks at the clock next."""

    def __init__(self, core: RaftCore, tick_ms: int, now_s: float) -> None:
        self._core = core
        self._tick_ms = tick_ms
        self._ticked_s = now_s  # up to when time has passed for the node
        self.at_s = now_s

    def passed(self, now_s: float) -> int:
        """How many ticks have passed since the last call, of those that were planned."""
        tick_s, count = self._tick_ms / 1000, 0
        until_s = min(now_s, self.at_s) + _EARLY * tick_s
        while self._ticked_s + tick_s <= until_s:
            self._ticked_s += tick_s
            count += 1
        return count

    def plan(self, now_s: float) -> float:
        """The node was told of all that passed until now: when to look next."""
        if now_s - self.at_s > self._tick_ms / 1000:
            self._core.was_late()
        self._ticked_s = next_beat_s(now_s, self._tick_ms) - self._tick_ms / 1000
        return self._plan(now_s)

    def plan_anew(self, now_s: float) -> float | None:
        """Something happened: when to look next, if that is another moment now."""
        if now_s >= self.at_s:
            return None  # it is due
        planned_s = self.at_s
        return at_s if abs((at_s := self._plan(now_s)) - planned_s) > _SAME_S else None

    def _plan(self, now_s: float) -> float:
        together, role = self._core.calm_ticks, self._core.role
        if together > 1 and role is not Role.LEADER:  # it has time until it would miss its leader
            self.at_s = last_beat_s(self._ticked_s, together * self._tick_ms)
        else:  # a leader speaks with the last of them, as regularly as it says
            self.at_s = next_beat_s(now_s, together * self._tick_ms)
        return self.at_s
