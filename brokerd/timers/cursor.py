"""How far timers are delivered, as the group's log says (pure).

Records of the topic `rmq_sys_logboom_timers`, each a JSON object with `v`, the version of its layout; a key is [due, offset], and
offsets are those of the timer topic's queue:

    begin     {v, to: key, taken, offsets: [the first, differences, ...], names: [[name, slot], ...], aside: [offset, ...],
              back: [offset, ...]}
              The records that follow in the log, one for each of the `offsets` and in their order, deliver these timers. All
              others with keys up to `to` were delivered before, taken back, or are set `aside`, since they cannot be read or
              stored now; those that come `back` are set aside no longer. `taken` entries were behind the cursor before. `names`
              are taken back from now on, by clients' markers
    moved     the same with `before: offset`. The records that follow are these timers once more, at the log's end, since their
              files are to go; all entries below that offset are done with then. The cursor stays where it is
    ahead     the same with `after: key`. Of the others, it is about those with keys behind that and up to `to` alone: the cursor
              is late, and stays where it is
    recalled  {v, place, due, topic}: the timer whose first record is at that offset is taken back; it would be due then, in
              that topic
    key       {v, key}: what makes handles of recall, in hexadecimal digits
    fence     {v, to: key, before: offset}
              The cursor goes back to `to`, since it is that early by the clocks. The timers up to where it was, and what was
              delivered ahead of it, are done with, all the same, if their offsets are below `before`: those are what the log
              has in front of this record
    snapshot rows: ["c", due, offset, taken], ["b", begin's body, where its record ends], ["r", place, due, topic], ["n",
                   name, slot], ["a", offset, due] with the cursor's due time when it was set aside, ["k", key], ["f", before,
                   due, offset] for each fence, the oldest first, and ["s", before, due, offset, due, offset] for those that
                   do not begin with the first timer: where it ends, and where it begins; ["m", offset] when entries below it
                   moved; ["o", object] for each object of the tier that has timers, and ["d", topic, [[day, count], ...]] for
                   what is in them; ["l", due, until] while some wait that were due from that time on, and were appended when
                   that had passed

What is taken back is remembered until it would have been due, and while something is set aside, or in the tier, that may have
been due since.

A begin stands in front of what it announces. One who has a log that was cut between them finds that fewer records than announced
follow the last begin, and knows from that alone which timers are still to be delivered.

A version that knows no fences, nothing ahead of the cursor, no moves, or no objects of the tier does not start with a log that
has one, and says so: it would take timers for delivered that wait, or the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from brokerd.timers.codes import START, Key
from brokerd.timers.done import Done, Fence
from brokerd.timers.taken_back import TakenBack
from remoting.errors import CorruptedFile
from remoting.tier.stowed import StowedObject, decode_entry, encode_entry

VERSION: Final = 1
TIMERS_TOPIC: Final = "rmq_sys_logboom_timers"

BEGIN: Final = "begin"
AHEAD: Final = "ahead"
MOVED: Final = "moved"
STOWED: Final = "stowed"
RETURNED: Final = "returned"
RECALLED: Final = "recalled"
KEY: Final = "key"
FENCE: Final = "fence"

_FORGET_EVERY_MS: Final = 60_000

Days = Mapping[str, Mapping[int, int]]  # by topic, and by the day since 1970 on which they are due: how many timers
_NO_DAYS: Final[Days] = {}


class Begin(NamedTuple):
    """What a batch delivers; see the module."""

    to: Key
    taken: int
    offsets: Sequence[int]
    names: Sequence[tuple[str, int]] = ()
    aside: Sequence[int] = ()
    back: Sequence[int] = ()
    after: Key | None = None
    before: int = 0  # of a move; 0 = it is none
    stowed: StowedObject | None = None  # as it is then
    days: Days = _NO_DAYS
    due_ms: int = 0  # of the first that returns

    @property
    def is_return(self) -> bool:
        """Whether `offsets` are no queue offsets, but numbers of an object of the tier."""
        return self.stowed is not None and not self.before

    @property
    def kind(self) -> str:
        """Of its record."""
        if self.stowed is not None:
            return RETURNED if self.is_return else STOWED
        if self.before:
            return MOVED
        return BEGIN if self.after is None else AHEAD

    def body(self) -> Any:
        """As it is recorded."""
        more: dict[str, Any] = {} if self.after is None else {"after": list(self.after)}
        if self.before:
            more["before"] = self.before
        if self.stowed is not None:
            more["object"] = encode_entry(self.stowed)
            more["days"] = _encode_days(self.days)
            more["due"] = self.due_ms
        return {
            "v": VERSION,
            "to": list(self.to),
            "taken": self.taken,
            "offsets": [*self.offsets[:1], *(after - before for before, after in pairwise(self.offsets))],
            "names": [list(each) for each in self.names],
            "aside": list(self.aside),
            "back": list(self.back),
            **more,
        }


def begin_of(body: Any) -> Begin:
    """The batch of a record's body."""
    return Begin(
        Key(*body["to"]),
        body["taken"],
        tuple(accumulate(body["offsets"])),
        tuple((name, slot_ms) for name, slot_ms in body["names"]),
        tuple(body["aside"]),
        tuple(body["back"]),
        Key(*body["after"]) if "after" in body else None,
        body.get("before", 0),
        decode_entry(body["object"]) if "object" in body else None,
        _decode_days(body["days"]) if "days" in body else _NO_DAYS,
        body.get("due", 0),
    )


def _encode_days(days: Days) -> list[Any]:
    return [[topic, [list(each) for each in counts.items()]] for topic, counts in days.items()]


def _decode_days(rows: Any) -> Days:
    return {topic: {day: count for day, count in counts} for topic, counts in rows}


def recalled(place: int, due_ms: int, topic: str = "") -> tuple[str, Any]:
    """A record; without a topic it is of those that nobody knows."""
    return RECALLED, {"v": VERSION, "place": place, "due": due_ms, "topic": topic}


def drawn(key: bytes) -> tuple[str, Any]:
    """A record."""
    return KEY, {"v": VERSION, "key": key.hex()}


def set_back(to: Key, before: int) -> tuple[str, Any]:
    """A record."""
    return FENCE, {"v": VERSION, "to": list(to), "before": before}


class FrozenTimers:
    """A `journal.slices.FrozenTable`."""

    def __init__(self, table: TimerTable) -> None:
        self._table = table

    def rows(self) -> Iterator[Any]:
        return self._table.snapshot_rows()

    def close(self) -> None:
        """Nothing: the table is a copy."""


class TimerTable:
    """A `journal.replay.Table`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.done = Done()
        self.taken = 0  # entries up to the cursor, of all there ever were
        self.last: Begin | None = None
        self.last_end = 0  # where its record ends in the log
        self.taken_back = TakenBack()
        self.aside: dict[int, int] = {}  # by queue offset: when what the cursor was at then was due
        self.key: bytes | None = None
        self.objects: dict[tuple[int, int], StowedObject] = {}  # of the tier, that have timers which are nowhere else
        self.days: dict[str, dict[int, int]] = {}  # of these timers
        # Timers that were due from that time on were appended when it had passed; when the cursor is behind the second time, they
        # are done.
        self.late: tuple[int, int] | None = None

    @property
    def stowed(self) -> int:
        """How many timers are in the tier, and nowhere else."""
        return sum(each.left for each in self.objects.values())

    @property
    def named_objects(self) -> frozenset[tuple[int, int]]:
        """The objects that are of use, by their keys: also one whose last timers are announced, and may not have followed."""
        announced = self.last.stowed if self.last is not None else None
        return frozenset(self.objects).union(() if announced is None else (announced.key,))

    @property
    def places(self) -> Mapping[int, int]:
        """Of timers that are taken back: when they would be due."""
        return self.taken_back.places

    @property
    def names(self) -> Mapping[str, tuple[int, ...]]:
        """Likewise by clients' markers: in which slots."""
        return self.taken_back.names

    @property
    def cursor(self) -> Key:
        """Up to there all timers are done with."""
        return self.done.cursor

    def freeze(self) -> FrozenTimers:
        """The same rows for who reads them in many turns: as of now, whatever changes."""
        twin = TimerTable()
        vars(twin).update(vars(self), taken_back=self.taken_back.copy(), aside=dict(self.aside))
        vars(twin).update(objects=dict(self.objects), days={topic: dict(days) for topic, days in self.days.items()})
        return FrozenTimers(twin)

    def begin_again(self) -> tuple[TimerTable, Callable[[], None]]:
        """An empty table, and what puts its state in the place of this one's."""
        twin = TimerTable()
        return twin, lambda: vars(self).update(vars(twin))

    def apply(self, kind: str, body: Any, end_offset: int) -> None:
        if kind in (BEGIN, AHEAD, MOVED, STOWED, RETURNED):
            try:
                begin = begin_of(body)
            except ValueError as error:
                raise CorruptedFile(
                    f"the record of timers that ends at {end_offset} of the commitlog: {error}"
                ) from error
            self._begin(begin, end_offset)
        elif kind == RECALLED:
            self.taken_back.add_place(body["place"], body["due"], body.get("topic", ""))
        elif kind == KEY:
            self.key = bytes.fromhex(body["key"])
        elif kind == FENCE:
            self.done = self.done.set_back(Key(*body["to"]), body["before"])
        else:
            raise CorruptedFile(
                f"the record of timers that ends at {end_offset} of the commitlog is of kind {kind[:40]!r}, which this version "
                "does not know: start the version that wrote it"
            )

    def snapshot_rows(self) -> Iterator[Any]:
        yield ["c", *self.cursor, self.taken]
        if self.last is not None:
            yield ["b", self.last.body(), self.last_end]
        yield from self.taken_back.rows()
        for offset in sorted(self.aside):
            yield ["a", offset, self.aside[offset]]
        if self.key is not None:
            yield ["k", self.key.hex()]
        for fence in self.done.fences:
            yield (
                ["f", fence.before, *fence.key]
                if fence.after == START
                else ["s", fence.before, *fence.key, *fence.after]
            )
        if self.done.moved:
            yield ["m", self.done.moved]
        for entry in self.objects.values():
            yield ["o", encode_entry(entry)]
        for topic, days in self.days.items():
            yield ["d", topic, [list(each) for each in days.items()]]
        if self.late is not None:
            yield ["l", *self.late]

    def load_row(self, row: Any) -> None:
        kind, *values = row
        if kind == "c":
            due_ms, offset, self.taken = values
            self.done = Done(Key(due_ms, offset))
        elif kind == "b":
            self.last, self.last_end = begin_of(values[0]), values[1]
        elif kind == "r":
            self.taken_back.add_place(values[0], values[1], values[2] if len(values) > 2 else "")
        elif kind == "n":
            self.taken_back.add_name(values[0], values[1])
        elif kind == "a":
            self.aside[values[0]] = values[1] if len(values) > 1 else 0  # an earlier version did not say
        elif kind == "k":
            self.key = bytes.fromhex(values[0])
        elif kind in ("f", "s"):
            before, due_ms, offset, *after = values
            fence = Fence(before, Key(due_ms, offset), Key(*after) if after else START)
            self.done = self.done._replace(fences=(*self.done.fences, fence))
        elif kind == "m":
            self.done = self.done._replace(moved=values[0])
        elif kind == "o":
            try:
                entry = decode_entry(values[0])
            except ValueError as error:
                raise CorruptedFile(f"a snapshot of timers: {error}") from error
            self.objects[entry.key] = entry
        elif kind == "d":
            self.days[values[0]] = dict(values[1])
        elif kind == "l":
            self.late = values[0], values[1]
        else:
            raise CorruptedFile(f"a snapshot of timers has a row of kind {kind!r}: start the version that wrote it")

    def _begin(self, begin: Begin, end_offset: int) -> None:
        before_ms = self.cursor.due_ms
        self.last, self.last_end = begin, end_offset
        if begin.before or begin.is_return:
            self._note_late(begin.due_ms if begin.is_return else before_ms + 1)
        if begin.before:
            self.done = self.done._replace(moved=max(self.done.moved, begin.before))
        else:
            self.done = self.done.passed(begin.to, begin.after)
        if begin.stowed is not None:
            self._note(begin.stowed, begin.days, -1 if begin.is_return else 1)
        self.taken += begin.taken
        for name, slot_ms in begin.names:
            self.taken_back.add_name(name, slot_ms)
        for offset in begin.aside:
            self.aside.setdefault(offset, before_ms)
        for offset in begin.back:
            self.aside.pop(offset, None)
        if self.late is not None and self.cursor.due_ms > self.late[1]:
            self.late = None
        if self.cursor.due_ms // _FORGET_EVERY_MS > before_ms // _FORGET_EVERY_MS:
            late_ms = [entry.due_ms for entry in self.objects.values()] + ([] if self.late is None else [self.late[0]])
            self.taken_back.forget_before(min((self.cursor.due_ms, *self.aside.values(), *late_ms)))

    def _note_late(self, from_ms: int) -> None:
        """What is appended now was due from that time on, or will be."""
        until_ms = self.done.front.due_ms + 1
        if from_ms < until_ms:
            self.late = (from_ms, until_ms) if self.late is None else (min(from_ms, self.late[0]), until_ms)

    def _note(self, entry: StowedObject, days: Days, sign: int) -> None:
        if entry.left:
            self.objects[entry.key] = entry
        else:
            self.objects.pop(entry.key, None)
        for topic, counts in days.items():
            of_topic = self.days.setdefault(topic, {})
            for day, count in counts.items():
                of_topic[day] = of_topic.get(day, 0) + sign * count
                if not of_topic[day]:
                    del of_topic[day]
            if not of_topic:
                del self.days[topic]
