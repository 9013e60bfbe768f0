"""What this controller counted since it started. Plain integers; whoever does a thing adds one."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """One per process; shown in the cluster view."""

    requests: int = 0
    requests_refused: int = 0
    heartbeats: int = 0
    proposals: int = 0
    masters_elected: int = 0
    masters_lost: int = 0
    elections_decided: int = 0
    last_election_us: int = 0  # from the look that found it due to the decision
    longest_election_us: int = 0
    sync_state_sets_changed: int = 0
    notifications: int = 0
    pushes_replaced: int = 0
    raft_messages_sent: int = 0
    raft_messages_received: int = 0
    leader_changes: int = 0
    pauses: int = 0

    def as_json(self) -> dict[str, int]:
        """All counters by name."""
        return asdict(self)
