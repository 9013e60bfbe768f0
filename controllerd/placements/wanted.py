"""What the leader wants to ask for: `differences`, kept while placements and what masters tell change (pure)

Only topics of which something changed are compared, so many of them at once as the caller likes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from controllerd.placements.compare import Told, difference
from controllerd.placements.requests import Drop, Propose
from controllerd.placements.state import PlacementsState

NOTHING_TOLD = Told({}, set(), are_all_there=False)


class Wanted:
    """`requests`: by topic, and since when each is wanted, in milliseconds of the caller's clock."""

    def __init__(self) -> None:
        self.requests: dict[str, tuple[Propose | Drop, int]] = {}
        self.told = NOTHING_TOLD
        self._due: dict[str, None] = {}  # topics that may differ from what was found last, in the order of becoming so

    @property
    def is_due(self) -> bool:
        """Whether there are topics to compare."""
        return bool(self._due)

    def changed(self, topic: str) -> None:
        """Its placement is another one."""
        self._due[topic] = None

    def replaced(self, state: PlacementsState) -> None:
        """Any placement may be another one."""
        self._due |= dict.fromkeys(sorted({*state.topics, *self.requests, *_topics(self.told.groups)}))

    def tell(self, told: Told, state: PlacementsState) -> None:
        """This is what masters tell now."""
        before, self.told = self.told, told
        same_groups = before.groups.keys() == told.groups.keys() and before.members == told.members
        if not same_groups or before.are_all_there != told.are_all_there:
            self.replaced(state)
        for name in before.groups.keys() | told.groups.keys():
            were, are = before.groups.get(name, {}), told.groups.get(name, {})
            if were is not are:
                self._due |= dict.fromkeys(sorted({topic for topic, _ in were.items() ^ are.items()}))

    def settled(self, now_ms: int, settle_ms: int) -> Iterator[Propose | Drop]:
        """What has been wanted for so long, and is still: nothing of it changed since it was found."""
        for topic, (request, since_ms) in self.requests.items():
            if now_ms - since_ms >= settle_ms and topic not in self._due:
                yield request

    def compare(self, state: PlacementsState, now_ms: int, most: int) -> None:
        """Look at so many of the topics that are due."""
        for topic in list(islice(self._due, most)):
            del self._due[topic]
            request = difference(topic, state.topics.get(topic), self.told)
            before = self.requests.get(topic)
            if request is None:
                self.requests.pop(topic, None)
            elif before is None or before[0] != request:
                self.requests[topic] = request, now_ms


def _topics(groups: Mapping[str, Mapping[str, int]]) -> set[str]:
    return {topic for topics in groups.values() for topic in topics}
