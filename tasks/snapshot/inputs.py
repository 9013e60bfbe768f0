"""What one look at the cluster found, and what is remembered from the looks before (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

VERSION: Final = 1

BrokerKey = tuple[str, str, int]  # cluster, broker name, broker id


@dataclass(frozen=True, slots=True)
class Look:
    """Everything that was asked in one round; what did not answer is absent or None."""

    now_ms: int
    controllers: Sequence[str]
    """The configured addresses, in order."""
    views: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Controller address -> its answer to CLUSTER_VIEW."""
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Broker address -> its answer to BROKER_STATE."""
    supervisor: Mapping[str, Any] | None = None
    spark: Mapping[str, Any] | None = None

    @property
    def view(self) -> Mapping[str, Any] | None:
        """The leader's view; without a leader the view of the controller that applied most."""
        best: Mapping[str, Any] | None = None
        best_rank = (-1, -1)
        for address, view in self.views.items():
            own = own_entry(view, address)
            rank = (1 if own and own.get("leader") else 0, int((own or {}).get("appliedIndex") or 0))
            if rank > best_rank:
                best, best_rank = view, rank
        return best


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of one look, for rates."""

    at_ms: int
    brokers: Mapping[BrokerKey, Mapping[str, int]]
    topics: Mapping[str, int]
    """Topic -> sum of its queues' max offsets."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the next build needs of this one."""

    snapshot: Mapping[str, Any] | None = None
    samples: tuple[Sample, ...] = ()
    topic_names: frozenset[str] | None = None
    """Topics at the last look at which every group's master answered; None before the first."""


def own_entry(view: Mapping[str, Any], address: str) -> Mapping[str, Any] | None:
    """What a controller says about itself."""
    for each in view.get("controllers") or ():
        if each.get("address") == address:
            found: Mapping[str, Any] = each
            return found
    return None


def whole(value: Any) -> int | None:
    """An offset, epoch or count; None when it is unknown (absent, or negative as the wire has it)."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
