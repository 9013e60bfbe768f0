"""What one look at the cluster found, and what is remembered from the looks before (pure)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

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
    heard_ms: Mapping[str, int] = field(default_factory=dict)
    """Broker address -> when that answer came; absent means now."""
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


class Counted(NamedTuple):
    """Counters of one broker and when it told them; answers of one look are not of one moment."""

    at_ms: int
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of one look, for rates."""

    at_ms: int
    brokers: Mapping[BrokerKey, Counted]
    groups: Mapping[str, Counted]
    """Broker group -> topic -> sum of the max offsets of its queues there."""


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


def is_view(answer: Any) -> bool:
    """Whether an answer has the shape of a controller's view, as far as the rest of this package relies on it."""
    return _all(answer, "controllers", lambda each: isinstance(each.get("role"), str)) and _all(
        answer,
        "groups",
        lambda group: (
            "clusterName" in group
            and "brokerName" in group
            and _all(group, "replicas", lambda replica: isinstance(replica.get("brokerId"), int))
        ),
    )


def is_state(answer: Any) -> bool:
    """Whether an answer has the shape of a broker's state, as far as the rest of this package relies on it."""
    return _all(answer, "topics", lambda topic: _is_topic(topic, "name")) and _all(
        answer,
        "groups",
        lambda group: (
            isinstance(group.get("name"), str)
            and _all(group, "topics", lambda topic: _is_topic(topic, "topic"))
            and _all(group, "members", lambda member: isinstance(member.get("clientId"), str))
        ),
    )


def _is_topic(topic: Mapping[str, Any], name: str) -> bool:
    return isinstance(topic.get(name), str) and _all(
        topic, "queues", lambda queue: isinstance(queue.get("queueId"), int)
    )


def _all(holder: Any, name: str, holds: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Whether `holder[name]` is absent, or a list of objects each of which is as wanted."""
    if not isinstance(holder, dict):
        return False
    found = holder.get(name)
    return found is None or (isinstance(found, list) and all(isinstance(each, dict) and holds(each) for each in found))
