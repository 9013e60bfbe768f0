"""The controller's metrics as families: the original's names and labels first, then our own under `logboom_controller_`.

Read at each scrape from the counters and from the state as it is then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from controllerd.metrics import Counters, Operations
from controllerd.raft.driver import RaftDriver
from controllerd.raft.messages import Role
from controllerd.replicas.broker_groups import BrokerGroups
from controllerd.replicas.state import Group
from controllerd.settings import ControllerSettings
from remoting.exposition import Family, render
from remoting.guarding.guard import Guard, access_families

_ROLES: Final = {Role.PRE_CANDIDATE: 1, Role.CANDIDATE: 1, Role.FOLLOWER: 2, Role.LEADER: 3}
_LEADER: Final = _ROLES[Role.LEADER]
_OWN_GAUGES: Final = ("last_election_us", "longest_election_us")


class Exposition:
    """Renders one controller's metrics."""

    def __init__(
        self,
        settings: ControllerSettings,
        driver: RaftDriver,
        groups: BrokerGroups,
        counters: Counters,
        access: Guard | None = None,
        unfinished: Callable[[], list[Family]] = list,
    ) -> None:
        self._common = {"address": settings.address, "group": settings.raft.group, "peer_id": settings.node_id}
        self._driver = driver
        self._groups = groups
        self._counters = counters
        self._access = access
        self._unfinished = unfinished

    def render(self) -> bytes:
        """The text of a scrape."""
        counters = self._counters
        families = [
            Family("role", "gauge", "0 unknown, 1 candidate, 2 follower, 3 leader").add(self._role()),
            Family("dledger_disk_usage", "gauge", "bytes of the consensus log on disk").add(self._driver.log_bytes),
            self._active_brokers(),
            *_operations(counters.request_types, "request", "request_type", "request_handle_status", "requests"),
            *_operations(
                counters.log_operations,
                "dledger_op",
                "dledger_operation",
                "dLedger_operation_status",
                "appends to the consensus log",
            ),
            self._elections(),
            *self._group_families(),
            *self._silences(),
            *self._own(),
            *access_families(self._access),
            *self._unfinished(),
        ]
        return render(families, self._common)

    def _role(self) -> int:
        role = _ROLES.get(self._driver.node.core.role, 0)
        return 0 if role == _LEADER and not self._driver.is_serving else role

    def _active_brokers(self) -> Family:
        family = Family("active_broker_num", "gauge", "live replicas of each broker set")
        now_ms = self._groups.now_ms()
        for group in self._groups.decided().groups.values():
            alive = sum(self._groups.table.is_alive(group, broker_id, now_ms) for broker_id in group.replicas)
            family.add(alive, **_labels(group))
        return family

    def _elections(self) -> Family:
        family = Family("election_total", "counter", "elections of broker masters by outcome")
        for (cluster, broker_set, result), count in self._counters.elections.items():
            family.add(count, cluster=cluster, broker_set=broker_set, election_result=result)
        return family

    def _group_families(self) -> list[Family]:
        epoch = Family("logboom_controller_master_epoch", "gauge", "master epoch of each broker set")
        members = Family(
            "logboom_controller_sync_state_set_size", "gauge", "replicas that hold every acknowledged message"
        )
        masterless = Family("logboom_controller_without_master", "gauge", "1 for broker sets that have no master")
        for group in self._groups.decided().groups.values():
            epoch.add(group.master_epoch, **_labels(group))
            members.add(len(group.sync_state_set), **_labels(group))
            masterless.add(int(group.master_broker_id is None), **_labels(group))
        return [epoch, members, masterless]

    def _silences(self) -> list[Family]:
        """How near each broker is to being taken for dead, and whether this process itself was there to listen."""
        silent = Family("logboom_controller_broker_silent_seconds", "gauge", "since when a broker was not heard")
        limit = Family(
            "logboom_controller_broker_silence_limit_seconds", "gauge", "how long it may be silent, as learned from it"
        )
        suspicion = Family(
            "logboom_controller_broker_suspicion",
            "gauge",
            "phi: 10^-phi is the chance that a living broker is so silent",
        )
        now_ms = self._groups.now_ms()
        for group in self._groups.decided().groups.values():
            for broker_id in group.replicas:
                silence = self._groups.table.silence(group, broker_id)
                if silence is not None:
                    labels = _labels(group) | {"broker_id": str(broker_id)}
                    silent.add(silence.silent_ms(now_ms) / 1000, **labels)
                    limit.add(silence.limit_ms / 1000, **labels)
                    suspicion.add(round(silence.suspicion(now_ms), 2), **labels)
        delay = Family("logboom_controller_event_loop_worst_delay_seconds", "gauge", "of the last one to two minutes")
        return [silent, limit, suspicion, delay.add(self._groups.table.awake.worst_delay_ms / 1000)]

    def _own(self) -> list[Family]:
        core, families = self._driver.node.core, []
        for name, value in self._counters.as_json().items():
            text = name.replace("_", " ")
            if name in _OWN_GAUGES:
                families.append(Family(f"logboom_controller_{name}", "gauge", text).add(value))
            else:
                families.append(Family(f"logboom_controller_{name}_total", "counter", text).add(value))
        families.append(Family("logboom_controller_term", "gauge", "consensus term").add(core.term))
        families.append(Family("logboom_controller_commit_index", "gauge", "committed entries").add(core.log.committed))
        families.append(Family("logboom_controller_applied_index", "gauge", "applied entries").add(core.log.applied))
        return families


def _labels(group: Group) -> dict[str, str]:
    return {"cluster": group.cluster_name, "broker_set": group.broker_name}


def _operations(operations: Operations, name: str, kind: str, status: str, what: str) -> list[Family]:
    total = Family(f"{name}_total", "counter", f"{what} by outcome")
    latency = Family(f"{name}_latency", "histogram", f"{what}: microseconds until the answer")
    for (each, ended), count in operations.totals.items():
        total.add(count, **{kind: each, status: ended})
    for each, histogram in operations.latency.items():
        latency.add(histogram, **{kind: each})
    return [total, latency]
