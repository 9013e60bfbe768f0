"""What a broker group took over from others when a topic's placement changed, and where its queues were then (pure).

Filled from the placements' journal; read by whoever gives messages to ordered consumers. One object for both: what it says is
always what the journal says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Handover:
    """One activation, as one broker group sees it.

    In its own queues, messages from `starts[queue]` on may be later ones of message groups whose earlier ones lie before `ends`
    in some queue of some source (it may be a source itself). Both hold this group's own queue offsets; one that is a source only
    has no `starts`, one that is new no `ends`. `sources` are the broker groups of the placement before, in no order.
    """

    topic: str
    version: int
    ends: Mapping[int, int]
    starts: Mapping[int, int]
    sources: tuple[str, ...]


class Handovers:
    """Of one broker group, by topic, the oldest version first."""

    __slots__ = ("_by_topic",)

    def __init__(self) -> None:
        self._by_topic: dict[str, tuple[Handover, ...]] = {}

    def of(self, topic: str) -> Sequence[Handover]:
        return self._by_topic.get(topic, ())

    def add(self, handover: Handover) -> None:
        """In the place of the one of the same version, if there is one."""
        others = (each for each in self.of(handover.topic) if each.version != handover.version)
        self._by_topic[handover.topic] = tuple(sorted((*others, handover), key=lambda each: each.version))

    def prune(self, topic: str, version: int) -> None:
        """Forget that one; nothing happens when it is not there."""
        left = tuple(each for each in self.of(topic) if each.version != version)
        if left:
            self._by_topic[topic] = left
        else:
            self._by_topic.pop(topic, None)

    def copy(self) -> dict[str, tuple[Handover, ...]]:
        """All of them by topic, as they are now."""
        return dict(self._by_topic)

    def become(self, other: Handovers) -> None:
        """Be what another one is, which nobody uses any more."""
        self._by_topic = other._by_topic

    def drop(self, topic: str) -> None:
        """The topic is gone."""
        self._by_topic.pop(topic, None)
