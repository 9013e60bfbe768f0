"""The last elections that this controller decided, and why: soft state for people, beside the log (pure)

Who led before takes its knowledge along; the collector has asked for it by then. `HeartbeatTable` says what speaks against a
master, and that is asked before the decision, since afterwards the group has another one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.lives import runs_elsewhere
from controllerd.replicas.requests import ElectMaster, RegisterBroker, Request, Trigger
from controllerd.replicas.standing_disks import disk_stands
from controllerd.replicas.state import Group
from remoting.facts.cluster_view import ElectionView
from remoting.facts.words import Cause

_KEPT: Final = 8


@dataclass(frozen=True, slots=True)
class Grounds:
    """A group before a decision: its master and epoch, what speaks against that master, and for how long it was not heard."""

    master_id: int | None
    master_epoch: int
    cause: Cause
    unheard_ms: int


class RecentElections:
    """By broker group."""

    def __init__(self) -> None:
        self._by_group: dict[str, deque[ElectionView]] = {}

    def of(self, broker_name: str) -> tuple[ElectionView, ...]:
        """Oldest first."""
        return tuple(self._by_group.get(broker_name, ()))

    def decided(self, grounds: Grounds, group: Group, at_ms: int) -> None:
        """What became of a group by a decision; `at_ms` is the wall clock. Nothing, if its master epoch is none that is new."""
        elections = self._by_group.setdefault(group.broker_name, deque(maxlen=_KEPT))
        if group.master_epoch <= max(grounds.master_epoch, elections[-1].master_epoch if elections else 0):
            return
        unheard_ms = grounds.unheard_ms
        lost = elections[-1] if elections and elections[-1].master_epoch == grounds.master_epoch else None
        if grounds.master_id is None and lost is not None:
            unheard_ms = max(0, at_ms - lost.at_ms) + lost.unheard_ms
        elections.append(
            ElectionView(
                master_epoch=group.master_epoch,
                broker_id=group.master_broker_id,
                previous_id=grounds.master_id,
                cause=grounds.cause,
                at_ms=at_ms,
                unheard_ms=unheard_ms,
            )
        )

    def keep_only(self, broker_names: set[str]) -> None:
        """Forget groups that are not there any more."""
        for name in self._by_group.keys() - broker_names:
            del self._by_group[name]


def grounds_of(group: Group, table: HeartbeatTable, request: Request, now_ms: int) -> Grounds | None:
    """What there is to say before a request is decided; None of one that leaves the master alone."""
    master_id = group.master_broker_id
    if isinstance(request, RegisterBroker):
        elsewhere = any(runs_elsewhere(group, each) for each in request.observed)
        if not (request.lost_tail or elsewhere) or request.broker_id != master_id:
            return None
    elif not isinstance(request, ElectMaster):
        return None
    cause, unheard_ms = _cause(group, table, request, now_ms), 0
    if cause in (Cause.SILENT, Cause.CLOSED) and master_id is not None:
        unheard_ms = table.unheard_ms(group, master_id, now_ms)
    return Grounds(master_id, group.master_epoch, cause, unheard_ms)


def _cause(group: Group, table: HeartbeatTable, request: ElectMaster | RegisterBroker, now_ms: int) -> Cause:
    if isinstance(request, RegisterBroker):
        return Cause.LOST_TAIL
    if request.trigger is Trigger.ADMIN:
        return Cause.ASKED
    if request.trigger is Trigger.CONTROLLER and request.designate:
        return Cause.DISK_STANDS if disk_stands(group, table, group.master_broker_id) else Cause.NO_ROOM
    if not group.had_master:
        return Cause.FIRST_MASTER
    if group.master_broker_id is None:
        return Cause.CANDIDATE_CAME
    return table.absence(group, group.master_broker_id, now_ms) or Cause.RESTARTED
