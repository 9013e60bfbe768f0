"""Who may become master, and why not (pure)

Only a live member of the committed sync-state set may: it holds every acknowledged message. Among several the freshest wins, by
(epoch, max offset) as a pair; then the lower election priority; then the lower id, so that all nodes choose alike. A live master
stays, unless another member was designated or its process is not the one that was elected: a restarted broker gets a new epoch
or gives way. Learners never lead, nor does an id that two processes claim: nobody can know which of their logs is the one that
was counted; who restarted without the end of its log leads only as the set's last member. Unclean election,
off by default, admits any live replica when no such member is there, and thereby loses what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controllerd.replicas.requests import Observation
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
    candidates = [
        each
        for each in live.values()
        if not each.is_learner and not each.is_contested and designated in (None, each.broker_id)
    ]
    clean = [each for each in candidates if is_clean(group, each)]
    best = max(clean or (candidates if unclean else ()), key=_freshness, default=None)
    return Choice(broker_id=None if best is None else best.broker_id)


def is_incumbent(group: Group, live: dict[int, Observation]) -> bool:
    """Whether the recorded master is alive and still the process that was elected."""
    master = live.get(group.master_broker_id) if group.master_broker_id is not None else None
    if master is None:
        return False
    return not master.incarnation or not group.master_incarnation or master.incarnation == group.master_incarnation


def is_clean(group: Group, observation: Observation) -> bool:
    """Whether a live replica holds every acknowledged message, as far as that can be known."""
    if not group.had_master:
        return True
    if observation.broker_id not in group.sync_state_set:
        return False
    return not observation.lost_tail or len(group.sync_state_set) == 1


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
    if live[broker_id].is_contested:
        return False, "two processes claim its id: stop the one that runs on a copy of the data directory"
    if live[broker_id].is_learner:
        return False, "a learner: it copies, but never leads"
    if not group.had_master:
        return True, "alive, and the group never had a master"
    lost_tail = live[broker_id].lost_tail
    if is_clean(group, live[broker_id]):
        if lost_tail:
            return True, "lost the end of its log, but is the last member of the sync-state set"
        return True, "alive and in the sync-state set: it holds every acknowledged message"
    why = "lost the end of its log when it restarted" if lost_tail else "not in the sync-state set"
    if unclean:
        return True, f"{why}: unclean election is on, and acknowledged messages that it lacks would be lost"
    return False, f"{why}: it may lack acknowledged messages"


def _freshness(observation: Observation) -> tuple[int, int, int, int]:
    return observation.epoch, observation.max_offset, -observation.election_priority, -observation.broker_id
