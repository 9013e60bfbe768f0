"""Who may become master, and why not (pure)

Only a live member of the committed sync-state set may: it holds every acknowledged message. Among several, those whose disks
stand still come last, for they would acknowledge nothing; then the freshest wins, by (epoch, max offset) as a pair; then the
lower election priority; then the lower id, so that all nodes choose alike. A live master stays, unless another member was
designated or its process is not the one that was elected: a restarted broker gets a new epoch or gives way. Learners never lead,
nor does an id that two processes claim: nobody can know which of their logs is the one that was counted. Unclean election, off by
default, admits any live replica when no such member is there, and thereby loses what it lacks.

Who restarted without the end of its log, or cannot tell whether that was all, does not lead while another member may: but as the
set's last member, or as the freshest of a majority of the set of which nobody else is there (`freshest_of_the_suspect`). The last
member gives way to a replica outside of the set that has, provably, at least as much (`in_place_of_the_last`). Where another
process with its id had more, on a copy of the directory, nobody leads without that: it may come back. Nor does one lead on a
directory that has never seen the life which was the member (`lives`).

A new master's set is itself and the members that live. Each of them had every message that was acknowledged before, or it had
not been a member; and nothing is acknowledged after without it, until it leaves the set by the master's proposal. So whoever
stays may be elected next, whether or not it has heard of this election.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controllerd.replicas.lives import runs_elsewhere
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


def choose_master(
    group: Group, observed: Iterable[Observation], designated: int | None, unclean: bool, *, suspects: bool = True
) -> Choice:
    """Decide an election. `designated` is the only acceptable new master when given; `suspects`: who cannot tell what it lost
    may lead when nobody else can."""
    live = {each.broker_id: each for each in observed if each.broker_id in group.replicas}
    if is_incumbent(group, live) and designated in (None, group.master_broker_id):
        return Choice(keep_master=True)
    candidates = [
        each
        for each in live.values()
        if not each.is_learner and not each.is_contested and designated in (None, each.broker_id)
    ]
    clean = [each for each in candidates if is_clean(group, each)]
    if suspects and not clean and (suspect := freshest_of_the_suspect(group, live)) is not None:
        clean = [each for each in candidates if each.broker_id == suspect]
    if suspects and (better := in_place_of_the_last(group, live)) is not None:
        clean = [each for each in candidates if each.broker_id == better] or clean
    clean = [each for each in clean if not each.disk_stands] or clean
    best = max(clean or (candidates if unclean else ()), key=_freshness, default=None)
    return Choice(broker_id=None if best is None else best.broker_id)


def members_after(group: Group, elected: Observation, observed: Iterable[Observation]) -> tuple[int, ...]:
    """The set of a master that is elected now: who of the set lives, and has lost nothing, stays; but for those whose disks stand
    still, where that of the master does not: sends would wait for them in vain until they leave.

    Under a master of RocketMQ's, which names no replication address, nobody does: it leaves out who is not connected to it yet.
    """
    if not is_clean(group, elected) or not group.replicas[elected.broker_id].ha_address:
        return (elected.broker_id,)
    staying = {
        each.broker_id
        for each in observed
        if each.broker_id in group.sync_state_set
        and not each.is_learner
        and not each.is_contested
        and not each.lost_tail
        and not runs_elsewhere(group, each)
        and (elected.disk_stands or not each.disk_stands)
    }
    return tuple(sorted(staying | {elected.broker_id}))


def freshest_of_the_suspect(group: Group, live: Mapping[int, Observation]) -> int | None:
    """Who may lead when a majority of the set lives and every one of these cannot tell whether its log lost its end, as after a
    loss of all power; None when nobody may.

    Each of them had all that was acknowledged. As long as fewer than a majority of the copies are really damaged, at least one of
    these is not, and who is freshest has at least as much. What any of them still knows to be confirmed, it must have.
    """
    members = [
        live[each]
        for each in group.sync_state_set
        if each in live and not live[each].is_learner and not runs_elsewhere(group, live[each])
    ]
    if 2 * len(members) <= len(group.sync_state_set) or not all(each.lost_tail for each in members):
        return None
    best = max(members, key=_freshness)
    if best.position < max(each.held_elsewhere for each in members):
        return None
    return best.broker_id if best.max_offset >= max(each.lost_confirmed for each in members) else None


def in_place_of_the_last(group: Group, live: Mapping[int, Observation]) -> int | None:
    """Who leads instead of the set's last member, which lost the end of its log; None when nobody does.

    What is left of that log nobody else has to have. But who does, and all that it still knows to be confirmed, lacks nothing
    that its election would keep: logs of one epoch are the same bytes as far as both go, and a later one was written behind.
    """
    last = live.get(group.sync_state_set[0]) if len(group.sync_state_set) == 1 else None
    if last is None or not last.lost_tail or runs_elsewhere(group, last):
        return None
    enough = max((last.epoch, max(last.max_offset, last.lost_confirmed)), last.held_elsewhere)
    others = [
        each
        for each in live.values()
        if each.broker_id != last.broker_id
        and not each.is_learner
        and not each.is_contested
        and not each.lost_tail
        and each.position >= enough
    ]
    best = max(others, key=_freshness, default=None)
    return None if best is None else best.broker_id


def is_incumbent(group: Group, live: dict[int, Observation]) -> bool:
    """Whether the recorded master is alive and still the process that was elected."""
    master = live.get(group.master_broker_id) if group.master_broker_id is not None else None
    if master is None:
        return False
    return not master.incarnation or not group.master_incarnation or master.incarnation == group.master_incarnation


def is_clean(group: Group, observation: Observation) -> bool:
    """Whether a live replica holds every acknowledged message, as far as that can be known."""
    if not group.had_master:
        return observation.lost_confirmed <= observation.max_offset
    if observation.broker_id not in group.sync_state_set or runs_elsewhere(group, observation):
        return False
    if not observation.lost_tail:
        return True
    has_all = (
        observation.lost_confirmed <= observation.max_offset and observation.held_elsewhere <= observation.position
    )
    return len(group.sync_state_set) == 1 and has_all


def explain_eligibility(group: Group, observed: Iterable[Observation], unclean: bool = False) -> list[Eligibility]:
    """For each replica whether it could be designated as master now, and why."""
    live = {each.broker_id: each for each in observed}
    return [Eligibility(broker_id, *_explain(group, broker_id, live, unclean)) for broker_id in sorted(group.replicas)]


def _explain(group: Group, broker_id: int, live: dict[int, Observation], unclean: bool) -> tuple[bool, str]:
    if broker_id not in live:
        return False, "not alive: no heartbeat reaches this controller"
    if broker_id == group.master_broker_id and is_incumbent(group, live):
        return False, "is the master"
    if live[broker_id].is_contested:
        return False, "two processes claim its id: stop the one that runs on a copy of the data directory"
    if live[broker_id].is_learner:
        return False, "a learner: it copies, but never leads"
    if not group.had_master and is_clean(group, live[broker_id]):
        return True, "alive, and the group never had a master"
    lost_tail = live[broker_id].lost_tail
    if is_clean(group, live[broker_id]):
        if lost_tail:
            return True, "lost the end of its log, but is the last member of the sync-state set"
        if broker_id == group.master_broker_id:
            return True, "was the master before it restarted; it needs a new epoch"
        return True, "alive and in the sync-state set: it holds every acknowledged message"
    if freshest_of_the_suspect(group, live) == broker_id:
        return (
            True,
            "may have lost the end of its log, as every live member may, and has the most of a majority of the set",
        )
    if in_place_of_the_last(group, live) == broker_id:
        return True, "has at least as much as the set's last member, which lost the end of its log"
    why = _why_not_clean(group, live[broker_id])
    if unclean:
        return True, f"{why}: unclean election is on, and acknowledged messages that it lacks would be lost"
    return False, f"{why}: it may lack acknowledged messages"


def _why_not_clean(group: Group, observation: Observation) -> str:
    if group.had_master and observation.broker_id not in group.sync_state_set:
        return "lost the end of its log when it restarted" if observation.lost_tail else "not in the sync-state set"
    if runs_elsewhere(group, observation):
        return (
            "runs on another directory than it had as a member of the sync-state set, as after a copy: stop it and start it on "
            "that directory, if its disk is there"
        )
    if observation.held_elsewhere > observation.position:
        epoch, offset = observation.held_elsewhere
        return (
            f"another process had its id, and the log up to {offset} of epoch {epoch}, while this one's ends at "
            f"{observation.max_offset} of epoch {observation.epoch}: stop this one and start that one, if its disk is there"
        )
    ends = f"lost the end of its log when it restarted, which ends at {observation.max_offset} now"
    if observation.lost_confirmed > observation.max_offset:
        ends += f" and was confirmed up to {observation.lost_confirmed}"
    return ends


def _freshness(observation: Observation) -> tuple[int, int, int, int]:
    return observation.epoch, observation.max_offset, -observation.election_priority, -observation.broker_id
