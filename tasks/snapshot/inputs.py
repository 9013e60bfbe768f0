"""What one look at the cluster found, and what is remembered from the looks before (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar, cast

from remoting.facts.broker_state import BrokerState
from remoting.facts.cluster_view import ClusterView, ElectionView
from remoting.facts.history import HistoryEntry
from remoting.facts.snapshot import ClusterSnapshot, Group, Process, SparkProcess, Supervisor, Topic

BrokerKey = tuple[str, str, int]  # cluster, broker name, broker id


@dataclass(frozen=True, slots=True)
class Kept:
    """What the database of the history says: why it cannot be written, empty when it can, and what it has that was not over."""

    problem: str = ""
    open: tuple[HistoryEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """Everything that was asked in one round; what did not answer is absent or None."""

    now_ms: int
    controllers: Sequence[str]
    """The configured addresses, in order."""
    views: Mapping[str, ClusterView] = field(default_factory=dict)
    """Controller address -> its answer to CLUSTER_VIEW."""
    states: Mapping[str, BrokerState] = field(default_factory=dict)
    """Broker address -> its answer to BROKER_STATE."""
    heard_ms: Mapping[str, int] = field(default_factory=dict)
    """Broker address -> when that answer came; absent means now."""
    supervisor: Supervisor | None = None
    spark: SparkProcess | None = None
    kept: Kept = Kept()

    @property
    def view(self) -> ClusterView | None:
        """The leader's view; without a leader the view of the controller that applied most."""
        best: ClusterView | None = None
        best_rank = (-1, -1)
        for address, view in self.views.items():
            own = view.controller(address)
            rank = (int(own.leader), own.applied_index or 0) if own is not None else (0, 0)
            if rank > best_rank:
                best, best_rank = view, rank
        return best

    def process_at(self, address: str | None) -> Process | None:
        """The process of the appliance that listens there, if it has one: of two with that address the one that runs."""
        processes = self.supervisor.processes if self.supervisor is not None else ()
        there = [each for each in processes if address is not None and each.address == address]
        return max(there, key=lambda each: each.pid is not None, default=None)


def told_elections(look: Look, group: Group) -> Sequence[ElectionView]:
    """What the controllers' leader knows of a group's last elections, oldest first."""
    view = look.view
    for each in view.groups if view is not None else ():
        if (each.cluster_name, each.broker_name) == (group.cluster, group.name):
            return each.elections
    return ()


class Leader(NamedTuple):
    """Of the controllers, in a term."""

    id: str
    term: int


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

    snapshot: ClusterSnapshot | None = None
    samples: tuple[Sample, ...] = ()
    topic_names: frozenset[str] | None = None
    """Topics at the last look at which every group's master answered; None before the first."""
    suspected: Mapping[str, int] = field(default_factory=dict)
    """What may be a fault, and since when it was seen: it is one when it lasts (`tasks.snapshot.faults`)."""
    leader: Leader | None = None
    """The controllers' leader that was seen last."""
    made_topics: tuple[object, Sequence[Topic]] | None = None
    """What the topics were made of, and they."""


Shown = TypeVar("Shown")


def shown(kind: type[Shown], told: object, **otherwise: Any) -> Shown:
    """A fact of the snapshot by what a controller or broker told: what has the same name in both is the same, as far as it is
    known; the rest is given.
    """
    names = [each.name for each in fields(cast(Any, kind)) if each.name not in otherwise]
    values = {name: getattr(told, name) for name in names}
    return kind(**{name: known(each) if type(each) is int else each for name, each in values.items()}, **otherwise)


def known(value: int | None) -> int | None:
    """An offset, epoch or count; None when it is unknown (negative, as the wire has it)."""
    return value if value is not None and value >= 0 else None
