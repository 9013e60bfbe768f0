"""What the controllers' leader has to ask for, found by a look at all topics: the definition that `Wanted` is held against."""

from __future__ import annotations

from collections.abc import Iterator

from controllerd.placements.compare import Told, difference
from controllerd.placements.requests import Drop, Propose
from controllerd.placements.state import PlacementsState


def differences(state: PlacementsState, told: Told) -> Iterator[Propose | Drop]:
    """A request for each topic whose placement should be another one and has no proposal yet."""
    for topic in sorted({*state.topics, *(topic for topics in told.groups.values() for topic in topics)}):
        request = difference(topic, state.topics.get(topic), told)
        if request is not None:
            yield request
