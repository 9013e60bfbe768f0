"""A request about placements against the state: the records that change it; read-only (pure)

What holds: a topic has at most one proposal; a proposal comes into force when all of its voters have prepared for it, in the
entry that says so of the last one, and never after it was aborted; a version is proposed once.
"""

from __future__ import annotations

from typing import TypeAlias

from controllerd.placements.records import (
    GroupPrepared,
    PlacementAborted,
    PlacementActivated,
    PlacementDropped,
    PlacementProposed,
    Record,
)
from controllerd.placements.requests import Abort, Drop, Prepare, Propose, Request
from controllerd.placements.state import PlacementsState
from controllerd.records.decision import Decision, answered
from remoting.facts.placements import TopicPlacement

Decided: TypeAlias = Decision[Record]


def decide(state: PlacementsState, request: Request) -> Decided:
    present = state.topics.get(request.topic)
    if isinstance(request, Propose):
        return _propose(state, present, request)
    if isinstance(request, Drop):
        return answered("it has no placement") if present is None else Decision((PlacementDropped(request.topic),))
    if present is None or present.proposed is None or present.proposed.version != request.version:
        return answered(f"version {request.version} of {request.topic} is not proposed any more")
    if isinstance(request, Abort):
        return Decision((PlacementAborted(request.topic),))
    return _prepare(present, request)


def _propose(state: PlacementsState, present: TopicPlacement | None, request: Propose) -> Decided:
    active = present.active if present is not None else None
    if present is not None and present.proposed is not None:
        return answered(f"version {present.proposed.version} is proposed already")
    if (active.version if active is not None else 0) != request.basis:
        return answered("another version is in force by now")
    if not request.shares or not request.voters or (active is not None and active.shares == request.shares):
        return answered("there is nothing to change")
    version = state.last_version + 1
    return Decision((PlacementProposed(request.topic, version, request.shares, request.voters),))


def _prepare(present: TopicPlacement, request: Prepare) -> Decided:
    if request.broker_name not in present.waits_for:
        return answered(f"{request.broker_name} is not waited for")
    prepared = GroupPrepared(request.topic, request.broker_name)
    if present.waits_for == (request.broker_name,):
        return Decision((prepared, PlacementActivated(request.topic)))
    return Decision((prepared,))
