"""How long sends stood still around a fault, and how long they may (pure).

The limits follow from the daemons' settings: a killed process closes its connections, so it is noticed at once; a frozen or
isolated one is noticed by its silence only. A master's silence ends at the controllers, a replica's at the master.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from brokerd.replication.settings import ReplicationSettings
from controllerd.settings import LivenessSettings
from tests.chaos.checks import GRPC_CLIENT, Recovery
from tests.chaos.history import FaultWindow, History, Outcome
from tests.chaos.plan import Faults, Roles

_REPLICATION: Final = ReplicationSettings()
_LIVENESS: Final = LivenessSettings()

KILL_LIMIT_S: Final = 3.0
MASTER_SILENT_LIMIT_S: Final = (_REPLICATION.controller_heartbeat_timeout_ms + _LIVENESS.scan_ms) / 1000 + 3
MASTER_STANDS_LIMIT_S: Final = (_REPLICATION.disk_stands_ms + _REPLICATION.controller_heartbeat_ms) / 1000 + 3
# The set is looked at far more often than four times a second; a quarter is what the rule allows.
REPLICA_SILENT_LIMIT_S: Final = _REPLICATION.not_caught_up_ms / 1000 + 0.25 + 1


def limit_of(faults: Faults, roles: Roles) -> tuple[float, str]:
    """The longest that sends may stand still when the service is promised to recover, and why."""
    if faults.silences(roles.master):
        return MASTER_SILENT_LIMIT_S, "the master is silent"
    if faults.stands(roles.master):
        return MASTER_STANDS_LIMIT_S, "the master's disk stands still"
    if any(faults.silences(name) for name in roles.replicas):
        return REPLICA_SILENT_LIMIT_S, "a replica is silent"
    return KILL_LIMIT_S, "a connection closes"


def longest_pause(history: History, start_s: float, end_s: float, *, grpc: bool = False) -> float | None:
    """The longest time without an acknowledged send of a remoting producer, within [start, end] or reaching into it.

    None when none succeeded in that time. `grpc`: of the gRPC client instead, which finds a new master by its library's rules.
    """
    done = sorted(
        each.end_s
        for each in history.sends()
        if each.outcome is Outcome.OK and (each.client == GRPC_CLIENT) == grpc and each.end_s <= end_s
    )
    before = [at for at in done if at < start_s][-1:]
    within = [at for at in done if at >= start_s]
    if not within:
        return None
    moments = [*(before or [start_s]), *within, end_s]
    return max(later - earlier for earlier, later in pairwise(moments))


def recovery_of(history: History, window: FaultWindow, limit_s: float | None, why: str) -> Recovery:
    """How a fault was survived."""
    return Recovery(window.name, longest_pause(history, window.start_s, window.end_s), limit_s, why)


def median(values: Sequence[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None
