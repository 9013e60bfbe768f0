"""Facts about placements, and how each changes the state (pure)

`apply` runs on every controller, whatever its version, so it decides nothing: what a record of a version does never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from controllerd.placements.state import PlacementsState
from controllerd.records.subject import Format
from remoting.facts.codec import read
from remoting.facts.placements import PlacementFact, ShareFact, TopicPlacement

LEVEL: Final = 2  # controllers of a lower feature level know nothing of placements


@dataclass(frozen=True, slots=True)
class PlacementProposed:
    """There is a proposal; nobody has prepared for it yet."""

    topic: str
    version: int
    shares: tuple[ShareFact, ...]
    voters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupPrepared:
    """One more of its voters has prepared."""

    topic: str
    broker_name: str


@dataclass(frozen=True, slots=True)
class PlacementActivated:
    """The proposal is in force."""

    topic: str


@dataclass(frozen=True, slots=True)
class PlacementAborted:
    """The proposal comes to nothing; what was in force stays."""

    topic: str


@dataclass(frozen=True, slots=True)
class PlacementDropped:
    """The topic has neither any more."""

    topic: str


Record = PlacementProposed | GroupPrepared | PlacementActivated | PlacementAborted | PlacementDropped


def apply(state: PlacementsState, record: Record) -> PlacementsState:
    revision = state.revision + 1
    before = state.topics.get(record.topic, TopicPlacement(record.topic, 0))
    version = state.last_version
    if isinstance(record, PlacementProposed):
        version = record.version
        proposed = PlacementFact(record.version, record.shares)
        after = replace(before, proposed=proposed, voters=record.voters, prepared=())
    elif isinstance(record, GroupPrepared):
        after = replace(before, prepared=(*before.prepared, record.broker_name))
    elif isinstance(record, PlacementActivated):
        after = TopicPlacement(record.topic, 0, active=before.proposed)
    elif isinstance(record, PlacementAborted):
        after = TopicPlacement(record.topic, 0, active=before.active)
    else:
        after = TopicPlacement(record.topic, 0)
    topics = dict(state.topics)
    if after.active is None and after.proposed is None:
        topics.pop(record.topic, None)
        return PlacementsState(topics, revision, version, revision)
    topics[record.topic] = replace(after, revision=revision)
    return PlacementsState(topics, revision, version, state.forgotten)


def _format(kind: str, record: type[Any]) -> Format[Any]:
    return Format(kind, record, _itself, partial(read, record, exactly=True), level=LEVEL)


def _itself(record: Record) -> Record:
    return record


FORMATS: Final[tuple[Format[Any], ...]] = (
    _format("placement_proposed", PlacementProposed),
    _format("group_prepared", GroupPrepared),
    _format("placement_activated", PlacementActivated),
    _format("placement_aborted", PlacementAborted),
    _format("placement_dropped", PlacementDropped),
)
