"""Broken rules about disks that stand still: nothing is lost by them, but sends stand as long, or the lead goes round."""

from __future__ import annotations

from typing import Any, Final

from brokerd.replication.roles import disk_watch
from brokerd.replication.roles.effects import RoleView
from brokerd.replication.roles.role_machine import RoleMachine
from controllerd.replicas import standing_disks, triggers
from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.state import Group
from remoting.facts.words import DiskPace
from tests.sim import test_standing_disks
from tests.sim.mutants import Mutant


def _nobody(*_: Any) -> None:
    return None


def _does_not_stand(group: Group, table: HeartbeatTable, broker_id: int, now_ms: int) -> bool:
    beat = table.get(group, broker_id)
    return beat is not None and beat.disk is not DiskPace.STANDS


def _observe_at_once(self: RoleMachine, view: RoleView, now_ms: int) -> None:
    self.view = view
    self._switch(self._event_of(view), now_ms)


MUTANTS: Final = (
    Mutant(
        "nobody minds a disk that stands",
        "standing disks",
        "The controllers leave the lead to a master whose disk stands still.",
        ((triggers, "successor_with_working_disk", _nobody),),
        test_standing_disks.another_leads,
        within=1,
    ),
    Mutant(
        "waits for its disk to step down",
        "standing disks",
        "A master whose disk stands still notes the new epoch on it before it does anything else.",
        ((RoleMachine, "_observe_later", _observe_at_once),),
        test_standing_disks.another_leads,
        within=1,
    ),
    Mutant(
        "slow disks take over",
        "standing disks",
        "Whoever's disk does not stand at the moment takes the lead over.",
        ((standing_disks, "_works_now", _does_not_stand), (disk_watch, "SLOW_MS", 1)),
        test_standing_disks.slow_together,
        within=3,
    ),
)
