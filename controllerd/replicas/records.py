"""Facts: what a decision changes; `decide.py` makes them, `apply.py` puts them into the state, `FORMATS` into the log (pure)"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from controllerd.records.subject import Format, plain
from controllerd.replicas.state import Replica, UncleanElection

LIVES_LEVEL: Final = 4  # controllers of a lower feature level know nothing of lives


@dataclass(frozen=True, slots=True)
class ReplicaAdded:
    """A broker id was given out."""

    cluster_name: str
    broker_name: str
    replica: Replica


@dataclass(frozen=True, slots=True)
class ReplicaMoved:
    """A replica has other addresses; its id, membership and epochs stay."""

    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    grpc_address: str


@dataclass(frozen=True, slots=True)
class EpochFloorRaised:
    """A broker remembers a master epoch that these controllers do not know: later ones start above it."""

    broker_name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SyncStateSetChanged:
    """The set is now this one; its epoch grows by one."""

    broker_name: str
    sync_state_set: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MasterElected:
    """A master, under an epoch that no other master of the group ever had; the set is the master alone.

    Whoever else stays in the set is named by the `SyncStateSetChanged` behind it, in the same entry."""

    broker_name: str
    broker_id: int
    master_epoch: int
    incarnation: int
    unclean: UncleanElection | None = None


@dataclass(frozen=True, slots=True)
class MasterLost:
    """Nobody leads under this epoch; the set stays, so that one of its members can be elected later."""

    broker_name: str
    master_epoch: int


@dataclass(frozen=True, slots=True)
class LivesCounted:
    """These members are these lives (incarnations) of their brokers from now on: (broker id, life), by id."""

    broker_name: str
    lives: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ReplicasRemoved:
    """These ids are forgotten and never given out again."""

    broker_name: str
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupRemoved:
    """The group is forgotten, except for its floors."""

    broker_name: str


Record = (
    ReplicaAdded
    | ReplicaMoved
    | EpochFloorRaised
    | SyncStateSetChanged
    | MasterElected
    | MasterLost
    | LivesCounted
    | ReplicasRemoved
    | GroupRemoved
)

FORMATS: Final[tuple[Format[Any], ...]] = (
    plain("replica_added", ReplicaAdded),
    plain("replica_moved", ReplicaMoved),
    plain("epoch_floor_raised", EpochFloorRaised),
    plain("sync_state_set_changed", SyncStateSetChanged),
    plain("master_elected", MasterElected),
    plain("master_lost", MasterLost),
    replace(plain("lives_counted", LivesCounted), level=LIVES_LEVEL),
    plain("replicas_removed", ReplicasRemoved),
    plain("group_removed", GroupRemoved),
)
