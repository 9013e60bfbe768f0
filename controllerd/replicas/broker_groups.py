"""What a controller knows of the brokers, in one hand: what was decided about their groups, and who of them lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.recent_elections import Grounds, RecentElections, grounds_of
from controllerd.replicas.requests import Request
from controllerd.replicas.state import Group, ReplicasState


@dataclass(frozen=True, slots=True)
class BrokerGroups:
    """`decided` gives what the controllers agreed on. `now_ms` is monotonic, as the table needs it; `wall_ms` is for people."""

    decided: Callable[[], ReplicasState]
    table: HeartbeatTable
    now_ms: Callable[[], int]
    wall_ms: Callable[[], int]
    recent: RecentElections = field(default_factory=RecentElections)

    def get(self, broker_name: str) -> Group | None:
        return self.decided().groups.get(broker_name)

    def is_alive(self, group: Group, broker_id: int) -> bool:
        return self.table.is_alive(group, broker_id, self.now_ms())

    def grounds(self, broker_name: str, request: Request) -> Grounds | None:
        """What speaks against the group's master now; to be asked before the request is decided."""
        group = self.get(broker_name)
        return grounds_of(group, self.table, request, self.now_ms()) if group is not None else None

    def note_decision(self, grounds: Grounds | None, group: Group | None) -> None:
        """Keep for people what the decision made of the group's master; `group` is as it was right after it."""
        if grounds is not None and group is not None:
            self.recent.decided(grounds, group, self.wall_ms())
        self.recent.keep_only(set(self.decided().groups))

    def is_learner(self, group: Group, broker_id: int) -> bool:
        beat = self.table.get(group, broker_id)
        return beat is not None and beat.is_learner
