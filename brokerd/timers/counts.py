"""How many timers wait for which topic, by the minute in which they are due (pure).

What is due within a window is counted by its minute, in rows of 64 minutes, 4 bytes a minute. What is appended again on its way
is counted by its day, and by its minute once it was appended for the last time: so a count never has to be taken apart.
A minute belongs to slots as the original has them: what is due in (M, M + 60 s] is of the minute M.
"""

from __future__ import annotations

from array import array
from typing import Final

from brokerd.timers.codes import slot_of
from remoting.facts.timers import HORIZON_MINUTES, MINUTE_MS, TopicTimers, column_of

MAX_TOPICS: Final = 500  # those of further ones are counted together
OTHERS: Final = ""

_ROW: Final = 64
_DAY_MINUTES: Final = 1440
_ENDS: Final = (*HORIZON_MINUTES, 1 << 62)
_EMPTY_ROW: Final = array("I", bytes(4 * _ROW))


def minute_of(due_ms: int) -> int:
    """The minute (since 1970) of what is due then."""
    return slot_of(due_ms) // MINUTE_MS


class _Topic:
    __slots__ = ("days", "rows", "shown", "sums", "total")

    def __init__(self) -> None:
        self.rows: dict[int, array[int]] = {}
        self.sums: dict[int, int] = {}
        self.days: dict[int, int] = {}
        self.total = 0
        self.shown: TopicTimers | None = None

    def add(self, minute: int, count: int) -> None:
        row, inside = divmod(minute, _ROW)
        if row not in self.rows:
            self.rows[row], self.sums[row] = _EMPTY_ROW[:], 0
        self.rows[row][inside] += count
        self.sums[row] += count
        self.total += count
        self.shown = None

    def take(self, minute: int, count: int) -> int:
        """Take up to that many from a minute; how many were there."""
        row, inside = divmod(minute, _ROW)
        counts = self.rows.get(row)
        taken = min(count, counts[inside]) if counts is not None else 0
        if counts is not None and taken:
            counts[inside] -= taken
            self.sums[row] -= taken
            self.total -= taken
            self.shown = None
            if not self.sums[row]:
                del self.rows[row], self.sums[row]
        return taken

    def change_day(self, day: int, by: int) -> bool:
        count = self.days.get(day, 0) + by
        if count < 0:
            return False
        self.days[day] = count
        if not count:
            del self.days[day]
        self.total += by
        self.shown = None
        return True

    def forget_before(self, minute: int) -> None:
        first, inside = divmod(minute, _ROW)
        for row in [row for row in self.rows if row < first]:
            self.total -= self.sums.pop(row)
            del self.rows[row]
            self.shown = None
        if first in self.rows:
            for at in range(inside):
                self.take(first * _ROW + at, self.rows[first][at] if first in self.rows else 0)
        for day in [day for day in self.days if day < minute // _DAY_MINUTES]:
            self.change_day(day, -self.days[day])

    def show(self, name: str, now: int) -> TopicTimers:
        if self.shown is None or self.shown.since_ms != now * MINUTE_MS:
            ahead, overdue = [0] * (len(HORIZON_MINUTES) + 1), 0
            for row, counts in self.rows.items():
                first = row * _ROW - now
                if first >= 0 and column_of(first) == column_of(first + _ROW - 1):
                    ahead[column_of(first)] += self.sums[row]
                    continue
                at, end = first, first + _ROW
                while at < end:
                    column = column_of(at) if at >= 0 else -1
                    stop = min(end, _ENDS[column] if column >= 0 else 0)
                    count = sum(counts[at - first : stop - first])
                    if column >= 0:
                        ahead[column] += count
                    else:
                        overdue += count
                    at = stop
            for day, count in self.days.items():
                ahead[column_of(max(0, day * _DAY_MINUTES - now))] += count
            self.shown = TopicTimers(
                topic=name, waiting=self.total, overdue=overdue, since_ms=now * MINUTE_MS, ahead=tuple(ahead)
            )
        return self.shown


class WaitingCounts:
    """Of one broker group."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._forgotten = 0

    @property
    def waiting(self) -> int:
        """All of them."""
        return sum(each.total for each in self._topics.values())

    def clear(self) -> None:
        self._topics.clear()
        self._forgotten = 0

    def add(self, topic: str, due_ms: int, *, is_on_the_way: bool, count: int = 1) -> None:
        """A timer waits, or so many of one minute; one that `is_on_the_way` is appended again before it is due."""
        if (minute := minute_of(due_ms)) < self._forgotten:
            return
        of_topic = self._of(topic)
        if is_on_the_way:
            of_topic.change_day(minute // _DAY_MINUTES, count)
        else:
            of_topic.add(minute, count)

    def add_to_day(self, topic: str, day: int, count: int) -> None:
        """Timers wait that are due on that day (since 1970)."""
        if day >= self._forgotten // _DAY_MINUTES:
            self._of(topic).change_day(day, count)

    def arrive(self, topic: str, due_ms: int) -> None:
        """A timer that was on the way is appended again, and is counted as that next."""
        if (of_topic := self._topics.get(topic, self._topics.get(OTHERS))) is not None:
            of_topic.change_day(minute_of(due_ms) // _DAY_MINUTES, -1)
            self._drop_empty(topic)

    def remove(self, topic: str, due_ms: int, count: int = 1) -> None:
        """That many do not wait any more."""
        minute = minute_of(due_ms)
        of_topic = self._topics.get(topic, self._topics.get(OTHERS))
        if of_topic is None or minute < self._forgotten:
            return
        for _ in range(count - of_topic.take(minute, count)):
            if not of_topic.change_day(minute // _DAY_MINUTES, -1):
                break
        self._drop_empty(topic)

    def forget_before(self, due_ms: int) -> None:
        """Nothing waits any more that is due in an earlier minute than this is."""
        minute = minute_of(due_ms)
        if minute <= self._forgotten:
            return
        self._forgotten = minute
        for name, of_topic in list(self._topics.items()):
            of_topic.forget_before(minute)
            self._drop_empty(name)

    def of_topic(self, topic: str) -> int:
        """How many wait for a topic."""
        found = self._topics.get(topic)
        return found.total if found is not None else 0

    def topics(self) -> list[str]:
        """The topics for which some wait."""
        return list(self._topics)

    def show(self, topic: str, now_ms: int) -> TopicTimers:
        """The timers for one of these, at that time."""
        return self._topics[topic].show(topic, minute_of(now_ms))

    def _of(self, topic: str) -> _Topic:
        of_topic = self._topics.get(topic)
        if of_topic is None:
            name = topic if len(self._topics) < MAX_TOPICS else OTHERS
            of_topic = self._topics.setdefault(name, _Topic())
        return of_topic

    def _drop_empty(self, topic: str) -> None:
        if topic in self._topics and not self._topics[topic].total:
            del self._topics[topic]
