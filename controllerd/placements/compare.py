"""What the leader has to ask for, as the masters have their topics now (pure)

A broker group that registers a topic with message groups gets its share; one whose live master is without it, or does not let
it be written, loses it, but for the last one. A group
that is down keeps its share: its message groups wait for it, as anything else would break their order. So a change is proposed
only while the masters of all that it concerns are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from controllerd.placements.requests import Drop, Propose
from remoting.facts.placements import ShareFact, TopicPlacement


@dataclass(frozen=True, slots=True)
class Told:
    """`groups`: topics with their queues, 0 where they are not written, by broker group, of groups whose live master told and
    that know placements. `members`: all groups that the controllers know. `are_all_there`: every member that is alive has told,
    so a topic that has no placement can get its first one."""

    groups: Mapping[str, Mapping[str, int]]
    members: Set[str]
    are_all_there: bool


def difference(topic: str, present: TopicPlacement | None, told: Told) -> Propose | Drop | None:
    """The request for a topic whose placement should be another one and has no proposal yet; None when it is as it should be."""
    if present is not None and present.proposed is not None:
        return None
    active = present.active if present is not None else None
    before = {share.broker_name: share.queues for share in active.shares} if active is not None else {}
    after: dict[str, int] = {}
    for name in sorted({*before, *told.groups}):
        if name not in told.members:
            continue
        queues = told.groups[name].get(topic, 0) if name in told.groups else before[name]
        if queues:
            after[name] = queues
    if not after:
        # where it is only not written now, what moved still has to be waited for
        is_gone = all(topic not in topics for topics in told.groups.values())
        return Drop(topic) if present is not None and is_gone else None
    voters = {*before, *after} & told.members
    if after == before or not voters <= told.groups.keys() or (active is None and not told.are_all_there):
        return None
    shares = tuple(ShareFact(name, queues) for name, queues in after.items())
    return Propose(topic, active.version if active is not None else 0, shares, tuple(sorted(voters)))
