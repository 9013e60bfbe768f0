"""Looks for timers in the tier, for people: object by object, a bounded part of them for each question.

What the object store does not give is skipped and told: how many timers it may be, and why. It is not asked again for that
question, and nobody waits longer for it than some seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from brokerd.loop.in_turns import run_in_turns
from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.store.index.postings import has_key
from brokerd.timers.cursor import TimerTable
from brokerd.timers.described import describe
from brokerd.timers.tier import Looked, TimerTier, Unseen, Wanted
from remoting.errors import ProtocolError
from remoting.facts.timers import TimerItem
from remoting.record.codec import decode_record
from remoting.tier.stowed import StowedObject, Waiting
from remoting.tier.stowed_summary import key_hash

MOST_ASKED: Final = 16  # times, for one question
MOST_LOOKED: Final = 2000  # timers
PATIENCE_S: Final = 2.5  # with the object store; clients wait twice that

_A_TURN: Final = 64  # timers
_SLOW: Final = "the object store does not answer in time"


class StowedPlace(NamedTuple):
    """Where a search goes on: at the timer `first` of the object with that key, or with the next one behind it."""

    epoch: int = 0
    number: int = 0
    first: int = 0


class Sought(NamedTuple):
    """Up to `most` timers that are due in `[from_ms, to_ms)`, have the key, if there is one, and are `wanted`."""

    from_ms: int
    to_ms: int
    key: str
    wanted: Callable[[TimerItem], bool]
    most: int


@dataclass(slots=True)
class StowedPage:
    """What was found; `place` is where to go on, None: that was all. `unread` timers may be there that could not be looked at."""

    items: list[TimerItem] = field(default_factory=list)
    place: StowedPlace | None = None
    looked: int = 0
    unread: int = 0
    problem: str = ""


Done = Callable[[StowedPage], None]


class StowedSearch:
    """One search at a time, by a master: its table is up to date."""

    def __init__(self, table: TimerTable, tier: TimerTier, scheduler: Scheduler) -> None:
        self._table = table
        self._tier = tier
        self._scheduler = scheduler
        self._is_asking = False

    @property
    def is_of_use(self) -> bool:
        """Whether there is anything."""
        return bool(self._table.objects)

    def search(self, sought: Sought, place: StowedPlace, done: Done) -> None:
        """`done` is called once, in a later turn."""
        self._scheduler.call_soon(_Running(self, sought, place, done).go_on)

    # ---- for the one that runs

    def objects_from(self, place: StowedPlace, to_ms: int) -> list[StowedObject]:
        """Those that may have some that are due before, the first ones first: in the order in which they were made."""
        objects = self._table.objects
        return [objects[key] for key in sorted(objects) if key >= place[:2] and objects[key].due_ms < to_ms]

    def describe(self, waiting: Waiting, key: str) -> TimerItem | None:
        """None of what is no record, or has another key."""
        try:
            record = decode_record(waiting.record)
            return (
                describe(record, self._table, is_in_tier=True) if not key or has_key(record.properties, key) else None
            )
        except ProtocolError:
            return None

    def is_there(self, entry: StowedObject) -> bool:
        return entry.key in self._table.objects

    def ask(self, entry: StowedObject, wanted: Wanted, done: Callable[[Looked | Unseen], None]) -> None:
        """What comes too late is dropped; until then nothing else is asked."""
        if self._is_asking:
            done(Unseen(_SLOW, of_store=True))
            return
        self._is_asking = True
        answering: list[Callable[[Looked | Unseen], None]] = [done]

        def seen(answer: Looked | Unseen) -> None:
            self._is_asking = False
            patience.cancel()
            if answering:
                answering.pop()(answer)

        def given_up() -> None:
            answering.pop()(Unseen(_SLOW, of_store=True))

        patience: Timer = self._scheduler.call_later(PATIENCE_S, given_up)
        self._tier.look(entry, wanted, seen)

    def begin(self, steps: Iterator[int]) -> None:
        """In turns of the loop."""
        self._scheduler.call_soon(run_in_turns, steps, _A_TURN, self._scheduler.call_soon)

    def time(self) -> float:
        return self._scheduler.time()


class _Running:
    def __init__(self, search: StowedSearch, sought: Sought, place: StowedPlace, done: Done) -> None:
        self._search = search
        self._sought = sought
        self._place = place
        self._done = done
        self._page = StowedPage()
        self._hashed = key_hash(sought.key.encode("utf-8", "surrogatepass")) if sought.key else None
        self._asked = 0
        self._until_s = search.time() + PATIENCE_S

    def go_on(self) -> None:
        """Ask for the next ones."""
        left = self._search.objects_from(self._place, self._sought.to_ms)
        if not left:
            self._end(None)
        elif self._asked == MOST_ASKED or self._search.time() >= self._until_s or self._is_full:
            self._end(self._place)
        else:
            self._asked += 1
            entry = left[0]
            first = self._place.first if entry.key == self._place[:2] else 0
            wanted = Wanted(max(first, entry.returned), self._sought.from_ms, self._sought.to_ms, self._hashed)
            self._search.ask(entry, wanted, partial(self._seen, entry, wanted.first))

    @property
    def _is_full(self) -> bool:
        return len(self._page.items) >= self._sought.most or self._page.looked >= MOST_LOOKED

    def _seen(self, entry: StowedObject, first: int, seen: Looked | Unseen) -> None:
        behind = StowedPlace(entry.epoch, entry.number + 1)
        if isinstance(seen, Looked):
            self._search.begin(self._look(entry, seen))
        elif seen.of_store:
            left = self._search.objects_from(self._place, self._sought.to_ms)
            self._miss(seen.reason, sum(each.left for each in left))
            self._end(None)
        else:
            if self._search.is_there(entry):  # else it came back meanwhile
                self._miss(seen.reason, entry.timers - first)
            self._place = behind
            self.go_on()

    def _look(self, entry: StowedObject, seen: Looked) -> Iterator[int]:
        for number, waiting in seen.timers:
            self._place = StowedPlace(entry.epoch, entry.number, number)
            if self._is_full:
                self._end(self._place)
                return
            self._page.looked += 1
            item = self._search.describe(waiting, self._sought.key)
            if item is not None and self._sought.wanted(item):
                self._page.items.append(item)
            yield 1
        following = (entry.number + 1, 0) if seen.next is None else (entry.number, seen.next)
        self._place = StowedPlace(entry.epoch, *following)
        self.go_on()

    def _miss(self, reason: str, timers: int) -> None:
        self._page.unread += timers
        self._page.problem = self._page.problem or reason

    def _end(self, place: StowedPlace | None) -> None:
        self._page.place = place
        self._done(self._page)
