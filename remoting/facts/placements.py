"""Placements as controllers and brokers tell each other of them, and as the console shows them (pure)

A placement says which broker groups have a topic whose messages are ordered, and with how many queues; from it follows which of
them takes a message group (`brokerd/placement/placement.py`). Versions grow over all topics, so none is ever used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MESSAGE_TYPES = frozenset({"FIFO", "MIXED"})  # of the topics that have message groups


@dataclass(frozen=True, slots=True)
class ShareFact:
    """What one broker group has of a topic: its queues that are written."""

    broker_name: str
    queues: int


@dataclass(frozen=True, slots=True)
class PlacementFact:
    """One version; shares by broker name, each with one queue or more."""

    version: int
    shares: tuple[ShareFact, ...]


@dataclass(frozen=True, slots=True)
class TopicPlacement:
    """Of one topic: what is in force, and what is proposed; `revision` is that of its last change.

    All of `voters` have to prepare for the proposal before it comes into force; `prepared` have. Both are empty without one.
    """

    topic: str
    revision: int
    active: PlacementFact | None = None
    proposed: PlacementFact | None = None
    voters: tuple[str, ...] = ()
    prepared: tuple[str, ...] = ()

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Who has not prepared yet."""
        return tuple(name for name in self.voters if name not in self.prepared)


@dataclass(frozen=True, slots=True)
class PlacementReport:
    """What a master tells the controllers. `topics`: queues by topic, of those that have message groups, 0 where it is not
    written; None = as it said last. `prepared`: by topic, the versions that it has prepared for, which is in its log for good."""

    topics: Mapping[str, int] | None = None
    prepared: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacementNews:
    """What changed behind a revision; `whole`: this is all there is, and topics that are not named have no placement.

    `last_version` is the highest that was ever proposed. `is_placing`: topics without a placement get one in a moment.
    `wants_topics`: the next report has to name them. Who asks for so many at most hears of topics in the order of their last
    changes: with `more`, these are all up to `revision`, and some are behind it. The last of such news has, if a topic was
    forgotten since the asker knew all, the `names` of all that have a placement; they are never `whole`.
    """

    revision: int
    last_version: int
    topics: tuple[TopicPlacement, ...] = ()
    whole: bool = False
    is_placing: bool = False
    wants_topics: bool = False
    more: bool = False
    names: tuple[str, ...] | None = None
