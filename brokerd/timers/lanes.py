"""What is due soon, in parts: the newest, and what was left behind since there was too much of it.

Mostly there is one part, in due order. When its first ones are late it is split: those that are due now go on behind the split,
and what is in front of it is left behind, to be delivered in due order beside them. So at most `MAX_LEFT` parts are left behind,
of which the first is worked on, and the last part of all is the newest one. The parts are what `Done` says: a lane for each gap,
and one behind the front.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from brokerd.timers.codes import START, Key
from brokerd.timers.done import Done
from brokerd.timers.far import Far
from brokerd.timers.horizon import Horizon

MAX_LEFT: Final = 8


class Lanes:
    """For a master, from `begin` on; in memory are `near_ms` ahead, and at most `near_max` entries of the newest part, as many of
    the one that is worked on, and together as many of what else is left behind."""

    def __init__(self, far: Far, near_ms: int, near_max: int) -> None:
        self._far = far
        self._near_ms = near_ms
        self._near_max = near_max
        self._is_newest_next = False
        self.begin(Done(START))

    def begin(self, done: Done) -> None:
        """Nothing is known yet of what is not done with."""
        parts = (*done.gaps, (done.front, None))
        self._all = [Horizon(self._far, self._near_ms, self._near_max) for _ in parts]
        for horizon, (after, end) in zip(self._all, parts, strict=True):
            horizon.begin(after, end)
        self._asking = self.newest

    @property
    def newest(self) -> Horizon:
        """Of what is due behind all that was left behind."""
        return self._all[-1]

    @property
    def left(self) -> int:
        """How many parts are left behind."""
        return len(self._all) - 1

    @property
    def count(self) -> int:
        """Entries in memory."""
        return sum(each.count for each in self._all)

    @property
    def oldest_due_ms(self) -> int | None:
        """When the first of all is due."""
        return next((each.first_due_ms for each in self._all if each.first_due_ms is not None), None)

    @property
    def first_due_ms(self) -> int | None:
        """When there is something to be done in a part that is worked on."""
        return min((each.first_due_ms for each in self._worked_on() if each.first_due_ms is not None), default=None)

    def in_turn(self) -> Sequence[Horizon]:
        """The parts that are worked on; first the one that has the next batch."""
        return self._worked_on() if self._is_newest_next else self._worked_on()[::-1]

    def had(self, lane: Horizon) -> None:
        """It had its batch: the next one is the other's."""
        self._is_newest_next = self.left > 0 and lane is not self.newest

    def leave(self, end: Key) -> None:
        """What is due in the newest part up to there is left behind."""
        part = self.newest.split(end)
        part.keep(self._near_max - sum(each.count for each in self._all[:-1]))
        self._all.insert(self.left, part)
        self._asking = self.newest

    def close(self) -> None:
        """The first part that was left behind is done with."""
        self._asking = self.newest
        del self._all[0]

    def arrived(self, end: int, codes: Sequence[int], done: Done) -> None:
        """Entries were dispatched, the last at queue offset `end - 1`."""
        for each in self._all:
            each.arrived(end, codes, done)

    def wants_at_ms(self) -> int | None:
        """When more is to be loaded; None when there is no room now."""
        wants_ms = (each.wants_at_ms() for each in self._worked_on())
        return min((each for each in wants_ms if each is not None), default=None)

    def load(self, now_ms: int, done: Done) -> bool:
        """Load a portion of what is due within the time ahead; whether there is more, for further turns."""
        for each in self._to_load():
            if each.load(now_ms, done):
                self._asking = each
                return True
        return False

    # ---- inside

    def _worked_on(self) -> list[Horizon]:
        """The newest part, and the first that was left behind."""
        return [self.newest, self._all[0]] if self.left else [self.newest]

    def _to_load(self) -> Iterator[Horizon]:
        """First whoever asked last: far timers answer one question at a time."""
        yield self._asking
        yield from (each for each in self._worked_on() if each is not self._asking)
