"""The placements that changed behind a revision, found without a look at the others (pure)

Soft: made again from the state when a snapshot replaced that.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import Final

from controllerd.placements.state import PlacementsState
from remoting.facts.placements import PlacementNews, TopicPlacement

_SPARE: Final = 64

_revision = itemgetter(0)


class Changes:
    """Follows a state, which every call is given as it is then."""

    __slots__ = ("_order", "_revision")

    def __init__(self) -> None:
        self._order: list[tuple[int, str]] = []  # revisions and topics, also those that changed again since
        self._revision = 0

    def changed(self, topic: str, state: PlacementsState) -> None:
        """A record about the topic gave this state."""
        if state.revision != self._revision + 1 or len(self._order) > 2 * len(state.topics) + _SPARE:
            self._begin(state)
            return
        self._revision = state.revision
        if topic in state.topics:
            self._order.append((state.revision, topic))

    def behind(self, state: PlacementsState, revision: int, most: int) -> tuple[TopicPlacement, ...]:
        """The topics that changed behind a revision, the one whose change is longest ago first."""
        if state.revision != self._revision:
            self._begin(state)
        found: list[TopicPlacement] = []
        for index in range(bisect_right(self._order, revision, key=_revision), len(self._order)):
            changed_at, topic = self._order[index]
            present = state.topics.get(topic)
            if present is not None and present.revision == changed_at:
                found.append(present)
                if len(found) == most:
                    break
        return tuple(found)

    def _begin(self, state: PlacementsState) -> None:
        self._order = sorted((each.revision, topic) for topic, each in state.topics.items())
        self._revision = state.revision


def news_of(
    state: PlacementsState, changes: Changes, revision: int, complete: int, most: int, *, is_placing: bool
) -> PlacementNews:
    """For somebody who knows the topics that changed up to `revision`, and knew of all that were forgotten at `complete`."""
    if revision > state.revision:  # of other controllers
        revision = complete = 0
    topics = changes.behind(state, revision, most)
    if len(topics) == most and topics[-1].revision < state.revision:
        return PlacementNews(topics[-1].revision, state.last_version, topics, is_placing=is_placing, more=True)
    names = tuple(state.topics) if complete < state.forgotten else None
    return PlacementNews(state.revision, state.last_version, topics, is_placing=is_placing, names=names)
