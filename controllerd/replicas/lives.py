"""Which process of a broker is counted as the member that it is, so that a process on another directory is found out (pure)

A broker's data directory remembers which lives ran on it. What a member of the sync-state set acknowledged, the life that is
counted here did, or an earlier one on the same directory. The next life on that directory takes its place when it registers. One
on a copy that has never seen the counted life may lack what that one acknowledged: it leads nobody before it has left the set and
come back. This is agreed on like the set itself, so it outlives every start of the controllers.

A copy that was made while the counted life ran has seen it: of that one only offsets tell (`heartbeat`). Brokers that do not say
which lives their directory has seen are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controllerd.replicas.apply import apply
from controllerd.replicas.records import LivesCounted, Record
from controllerd.replicas.requests import Observation
from controllerd.replicas.state import Group, ReplicasState


def runs_elsewhere(group: Group, seen: Observation) -> bool:
    """Whether this process runs on a directory that has never seen the life which is counted as the member."""
    counted = group.lives.get(seen.broker_id)
    return counted is not None and seen.lives is not None and counted not in seen.lives


def lives_to_count(
    state: ReplicasState, broker_name: str, decided: Sequence[Record], observed: Iterable[Observation]
) -> tuple[Record, ...]:
    """What belongs behind what was decided: which lives the members are from then on; nothing when they are that already."""
    saying = [each for each in observed if each.lives is not None and each.incarnation and not each.is_contested]
    if not saying:
        return ()
    for record in decided:
        state = apply(state, record)
    group = state.groups.get(broker_name)
    if group is None:
        return ()
    found = tuple(sorted((each.broker_id, each.incarnation) for each in saying if _is_to_be_counted(group, each)))
    return (LivesCounted(broker_name, found),) if found else ()


def _is_to_be_counted(group: Group, seen: Observation) -> bool:
    is_member = seen.broker_id in group.sync_state_set
    return is_member and group.lives.get(seen.broker_id) != seen.incarnation and not runs_elsewhere(group, seen)
