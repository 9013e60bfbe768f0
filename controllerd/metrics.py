"""What this controller counted since it started. Plain numbers; whoever does a thing adds one. `exposition.py` shows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Final

from remoting import codes
from remoting.errors import RequestTimeout
from remoting.exposition import Histogram

SUCCESS: Final = "success"
FAILED: Final = "failed"
TIMEOUT: Final = "timeout"


class Operations:
    """How often each kind of operation ended how, and how long it took."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, str], int] = {}  # (kind, how it ended) -> count
        self.latency: dict[str, Histogram] = {}

    @contextmanager
    def measured(self, kind: str) -> Iterator[None]:
        """Count what happens inside as one operation; errors pass through."""
        start_ns = perf_counter_ns()
        status = FAILED
        try:
            yield
            status = SUCCESS
        except RequestTimeout:
            status = TIMEOUT
            raise
        finally:
            self._add(kind, status, (perf_counter_ns() - start_ns) // 1000)

    def _add(self, kind: str, status: str, took_us: int) -> None:
        self.totals[kind, status] = self.totals.get((kind, status), 0) + 1
        if kind not in self.latency:
            self.latency[kind] = Histogram()
        self.latency[kind].observe(took_us)


def election_result(code: int) -> str:
    """How an election with this answer is counted."""
    if code == codes.SUCCESS:
        return "new_master_elected"
    return "keep_current_master" if code == codes.CONTROLLER_MASTER_STILL_EXIST else "no_master_elected"


@dataclass(slots=True)
class Counters:
    """One per process; shown in the cluster view."""

    requests: int = 0
    requests_refused: int = 0
    heartbeats: int = 0
    proposals: int = 0
    masters_elected: int = 0
    masters_lost: int = 0
    unclean_elections: int = 0
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
    request_types: Operations = field(default_factory=Operations)
    log_operations: Operations = field(default_factory=Operations)
    elections: dict[tuple[str, str, str], int] = field(default_factory=dict)  # (cluster, broker name, result) -> count

    def elected(self, cluster: str, broker_name: str, result: str) -> None:
        key = cluster, broker_name, result
        self.elections[key] = self.elections.get(key, 0) + 1

    def as_json(self) -> dict[str, int]:
        """All plain counters by name."""
        return {name: value for name in self.__dataclass_fields__ if isinstance(value := getattr(self, name), int)}
