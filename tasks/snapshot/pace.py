"""How often to look at the cluster: every second while something moves there, now and then while nothing does (pure)

Brokers' logs are in the controllers' views, which are asked for several times a second: a message that is stored, a change of a
topic and a consumer that goes on are all records of a log, so the next second's look is due as soon as one comes. What changes
without a record (clients that come, files that are full) is seen by the next look, which is never far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from remoting.facts.broker_state import BrokerState
from remoting.facts.cluster_view import ClusterView
from remoting.facts.words import Health
from tasks.snapshot.inputs import Memory

LIVELY_EVERY_S: Final = 1.0
QUIET_EVERY_S: Final = 4.0
LIVELY_FOR_S: Final = 10.0  # rates have come down to nothing by then


class Pace:
    """`moved` when something did; `every_s` says how far apart looks are now."""

    def __init__(self) -> None:
        self._lively_until_s = float("-inf")

    def moved(self, now_s: float) -> None:
        """Something moved just now."""
        self._lively_until_s = now_s + LIVELY_FOR_S

    def is_lively(self, now_s: float) -> bool:
        """Whether something moved lately."""
        return now_s < self._lively_until_s

    def every_s(self, now_s: float) -> float:
        """Seconds between two looks."""
        return LIVELY_EVERY_S if self.is_lively(now_s) else QUIET_EVERY_S


def log_ends(views: Mapping[str, ClusterView]) -> object:
    """How far the brokers' logs are: when that differs between two moments, something was written."""
    return {
        address: [(each.max_offset, each.confirm_offset) for group in view.groups for each in group.replicas]
        for address, view in views.items()
    }


def moves(memory: Memory, before: Memory, states: Mapping[str, BrokerState], told: Mapping[str, BrokerState]) -> bool:
    """Whether two looks found different things, or something that a person waits for the end of."""
    if memory.suspected or memory.snapshot is None or memory.snapshot.verdict.status is not Health.HEALTHY:
        return True
    if before.snapshot is None or memory.snapshot.processes != before.snapshot.processes:
        return True
    return {address: _moving(each) for address, each in states.items()} != {
        address: _moving(each) for address, each in told.items()
    }


def _moving(state: BrokerState) -> object:
    """What of a broker changes only when somebody does something; not how long ago that was."""
    return (
        state.role,
        state.end_offset,
        state.confirm_offset,
        state.counters,
        state.connections,
        state.topics,
        state.groups,
        state.last_error,
        state.controllers_error,
        state.client_times,
    )
