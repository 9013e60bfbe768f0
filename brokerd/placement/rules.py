"""What a master makes of what the controllers agreed on, and what it does with a message group meanwhile (pure).

A master takes a message group only while it owns it by the placement in force and by the one that it has prepared for. So no two
masters own one at a time: a proposal comes into force after all masters of both placements have prepared, and whoever has
prepared gives up what moves before anybody else takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from brokerd.placement import table
from brokerd.placement.placement import Placement, Share, owner_of
from brokerd.placement.table import Offsets, Record, TopicState
from remoting.facts.placements import PlacementFact, TopicPlacement


class Waiting(Enum):
    """Nobody may take the message group now, and somebody will in a moment."""

    MOVES = "a change of its placement is under way"
    UNKNOWN = "its placement is not known yet"
    BEHIND = "earlier messages of it are not stored yet"


Owner = tuple[str, int]  # broker name and queue
_UNCHANGED: Final = TopicState()


def owner_now(state: TopicState, message_group: str) -> Owner | Waiting | None:
    """Who takes the message group; None while the topic has no placement, and none is prepared."""
    active, proposed = state.active, state.proposed
    if proposed is None:
        return owner_of(active, message_group) if active is not None else None
    if active is None:
        # Without a placement each broker group took what came; one alone has put it where its first placement does
        return owner_of(proposed, message_group) if len(proposed.shares) == 1 else Waiting.MOVES
    owner = owner_of(active, message_group)
    return owner if owner == owner_of(proposed, message_group) else Waiting.MOVES


def news_of(
    fact: TopicPlacement, last_version: int, state: TopicState | None, own: str, ends: Offsets
) -> Iterator[Record]:
    """The records that bring this group's journal to what the controllers agreed on about a topic. `ends` is where its queues
    end in the log now, and `own` the group's name; `last_version` the highest that was proposed when the fact was told."""
    known = state or _UNCHANGED
    active, proposed = placement_of(fact.active), placement_of(fact.proposed)
    ours = known.proposed
    if ours is not None and (proposed is None or proposed.version != ours.version):
        if active is not None and _was_activated(active, known, own):
            yield table.activated(fact.topic, ours, known.ends, ends, _sources(known.active, ours))
            known = TopicState(ours)
        elif last_version >= ours.version:
            yield table.aborted(fact.topic, ours.version)
            known = TopicState(known.active)
    if known.proposed is not None:
        return
    if active is not None and own in names_of(active) and _is_news(active, known):
        # what was prepared was lost with a part of the log, so all that is here may be of message groups that moved
        yield table.activated(fact.topic, active, ends, ends, names_of(active))
        known = TopicState(active)
    if proposed is not None and own in fact.voters and _is_news(proposed, known):
        yield table.prepared(fact.topic, active or known.active, proposed, ends)


def _is_news(placement: Placement, known: TopicState) -> bool:
    return known.active is None or known.active.version < placement.version


def _was_activated(active: Placement, known: TopicState, own: str) -> bool:
    """Whether what is prepared came into force, when `active` is. A later one has made do without this group's word, so this
    group is not in the one before: then it has left, or what it prepared to join was aborted."""
    assert known.proposed is not None
    if active.version == known.proposed.version:
        return True
    was_in = known.active is not None and own in names_of(known.active)
    return active.version > known.proposed.version and was_in


def _sources(before: Placement | None, after: Placement) -> tuple[str, ...]:
    """Whose queues may hold earlier messages of what moved; none when nothing moved."""
    if before is None:
        return names_of(after) if len(after.shares) > 1 else ()
    return names_of(before) if before.shares != after.shares else ()


def names_of(placement: Placement) -> tuple[str, ...]:
    return tuple(share.broker_name for share in placement.shares)


def placement_of(fact: PlacementFact | None) -> Placement | None:
    if fact is None:
        return None
    return Placement(fact.version, tuple(Share(share.broker_name, share.queues) for share in fact.shares))
