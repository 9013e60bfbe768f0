"""What a controller knows of the brokers, in one hand: what was decided about their groups, and who of them lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.state import Group, ReplicasState


@dataclass(frozen=True, slots=True)
class BrokerGroups:
    """`decided` gives what the controllers agreed on. `now_ms` is monotonic, as the table needs it; `wall_ms` is for people."""

    decided: Callable[[], ReplicasState]
    table: HeartbeatTable
    now_ms: Callable[[], int]
    wall_ms: Callable[[], int]

    def get(self, broker_name: str) -> Group | None:
        return self.decided().groups.get(broker_name)

    def is_alive(self, group: Group, broker_id: int) -> bool:
        return self.table.is_alive(group, broker_id, self.now_ms())

    def is_learner(self, group: Group, broker_id: int) -> bool:
        beat = self.table.get(group, broker_id)
        return beat is not None and beat.is_learner
