"""Who may become master, and why not (pure)

Only a live member of the committed sync-state set may: it holds every acknowledged message. Among several the freshest wins, by
(epoch, max offset) as a pair; then the lower election priority; then the lower id, so that all nodes choose alike. A live master
stays, unless another member was designated or its process is not the one that was elected: a restarted broker gets a new epoch
or gives way. Learners never lead. Unclean election, off by default, also admits live replicas outside the set and thereby loses
what they lack.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controllerd.replicas.commands import Observation
from controllerd.replicas.state import Group


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome: keep the present master, elect `broker_id`, or neither because nobody is eligible."""

    keep_master: bool = False
    broker_id: int | None = None


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Whether a replica could be made master now, with the reason for a person."""

    broker_id: int
    eligible: bool
    reason: str


def choose_master(group: Group, observed: Iterable[Observation], designated: int | None, unclean: bool) -> Choice:
    """Decide an election. `designated` is the only acceptable new master when given."""
    live = {each.broker_id: each for each in observed if each.broker_id in group.replicas}
    if is_incumbent(group, live) and designated in (None, group.master_broker_id):
        return Choice(keep_master=True)
    candidates = [each for each in live.values() if may_lead(group, each.broker_id, unclean) and not each.is_learner]
    if designated is not None:
        candidates = [each for each in candidates if each.broker_id == designated]
    members = [each for each in candidates if each.broker_id in group.sync_state_set]
    best = max(members or candidates, key=_freshness, default=None)
    return Choice(broker_id=None if best is None else best.broker_id)


def is_incumbent(group: Group, live: dict[int, Observation]) -> bool:
    """Whether the recorded master is alive and still the process that was elected."""
    master = live.get(group.master_broker_id) if group.master_broker_id is not None else None
    if master is None:
        return False
    return not master.incarnation or not group.master_incarnation or master.incarnation == group.master_incarnation


def may_lead(group: Group, broker_id: int, unclean: bool) -> bool:
    """Whether the membership rule admits a registered replica, whatever its liveness."""
    return broker_id in group.sync_state_set or not group.had_master or unclean


def explain_eligibility(group: Group, observed: Iterable[Observation], unclean: bool = False) -> list[Eligibility]:
    """For each replica whether it could be designated as master now, and why."""
    live = {each.broker_id: each for each in observed}
    return [Eligibility(broker_id, *_explain(group, broker_id, live, unclean)) for broker_id in sorted(group.replicas)]


def _explain(group: Group, broker_id: int, live: dict[int, Observation], unclean: bool) -> tuple[bool, str]:
    if broker_id not in live:
        return False, "not alive: no heartbeat reaches this controller"
    if broker_id == group.master_broker_id:
        if is_incumbent(group, live):
            return False, "is the master"
        return True, "was the master before it restarted; it needs a new epoch"
    if live[broker_id].is_learner:
        return False, "a learner: it copies, but never leads"
    if broker_id in group.sync_state_set:
        return True, "alive and in the sync-state set: it holds every acknowledged message"
    if not group.had_master:
        return True, "alive, and the group never had a master"
    if unclean:
        return (
            True,
            "outside the sync-state set: unclean election is on, and acknowledged messages that it lacks would be lost",
        )
    return False, "not in the sync-state set: it may lack acknowledged messages"


def _freshness(observation: Observation) -> tuple[int, int, int, int]:
    return observation.epoch, observation.max_offset, -observation.election_priority, -observation.broker_id
