"""What is taken back and was not due yet: timers by their places, and those that clients' delete markers name (pure).

Of either kind there are `MAX_RECALLED` at most. A topic may have as many as that leaves for all others: so whoever recalls what
he may, for weeks ahead, keeps nobody from recalling what was sent to another topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from sys import intern
from typing import Any, Final

from brokerd.timers.codes import SLOT_MS

MAX_RECALLED: Final = 200_000


@dataclass(slots=True)
class TakenBack:
    """`places`: when these would be due; `names`: in which slots; `named`: how many of these there are."""

    places: dict[int, int] = field(default_factory=dict)
    names: dict[str, tuple[int, ...]] = field(default_factory=dict)
    named: int = 0
    _topics: dict[int, str] = field(default_factory=dict)  # by place; "" where a version before did not say
    _places_of: Counter[str] = field(default_factory=Counter)
    _names_of: Counter[str] = field(default_factory=Counter)

    def add_place(self, place: int, due_ms: int, topic: str) -> None:
        """A timer that was sent to that topic."""
        if place not in self.places:
            self._topics[place] = intern(topic)
            self._places_of[topic] += 1
        self.places[place] = due_ms

    def add_name(self, name: str, slot_ms: int) -> None:
        """What a marker says."""
        if not self.is_named(name, slot_ms):
            self.names[name] = (*self.names.get(name, ()), slot_ms)
            self.named += 1
            self._names_of[_topic_of(name)] += 1

    def is_named(self, name: str, slot_ms: int) -> bool:
        """Whether a marker takes back what has that name and is in that slot."""
        return slot_ms in self.names.get(name, ())

    def room_for_places(self, topic: str) -> int:
        """How many more of a topic there may be, if no other has any."""
        return (MAX_RECALLED - len(self.places) - self._places_of[topic] + 1) // 2

    def room_for_names(self, topic: str) -> int:
        """The same of what markers name."""
        return (MAX_RECALLED - self.named - self._names_of[topic] + 1) // 2

    def forget_before(self, now_ms: int) -> None:
        """What was due by then was delivered or passed over."""
        self.places = {place: due_ms for place, due_ms in self.places.items() if due_ms >= now_ms}
        self._topics = {place: topic for place, topic in self._topics.items() if place in self.places}
        ahead = {name: tuple(each for each in of if each + SLOT_MS >= now_ms) for name, of in self.names.items()}
        self.names = {name: slots_ms for name, slots_ms in ahead.items() if slots_ms}
        self._count()

    def copy(self) -> TakenBack:
        """As it is now."""
        twin = TakenBack(dict(self.places), dict(self.names), 0, dict(self._topics))
        twin._count()
        return twin

    def rows(self) -> Iterator[Any]:
        """Of a snapshot."""
        for place, due_ms in self.places.items():
            yield ["r", place, due_ms, self._topics[place]]
        for name, slots_ms in self.names.items():
            yield from (["n", name, slot_ms] for slot_ms in slots_ms)

    def _count(self) -> None:
        self.named = sum(map(len, self.names.values()))
        self._places_of = Counter(self._topics.values())
        self._names_of = Counter()
        for name, slots_ms in self.names.items():
            self._names_of[_topic_of(name)] += len(slots_ms)


def _topic_of(name: str) -> str:
    return name.partition("+")[0]
