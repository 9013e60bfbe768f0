"""What may be asked about replicas, together with what the leader observed when it took the request (pure)

The leader alone decides, from the request and the state: no clock, no liveness table, no chance. So its observations (who is
alive, with which epoch and offset) are part of the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

NOWHERE: Final = (-1, -1)
"""An (epoch, offset) of no log."""


class Trigger(StrEnum):
    """Who wants an election."""

    CONTROLLER = "controller"
    BROKER = "broker"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Observation:
    """One live replica as its last heartbeat described it.

    `lost_tail`: it restarted without everything that it had acknowledged, or cannot tell, and the sync-state set was not judged
    since. `lost_confirmed` is then how far its log was known to be confirmed (-1: not at all).
    `is_contested`: another process claims its id at the same time. `held_elsewhere`: the (epoch, offset) up to which another
    process with its id was known to have the log, while this one has less. `lives`: the incarnations that its directory
    has seen, this one among them, as far as they may be counted (None: it does not say, or not all controllers know of it).
    `disk_stands`: what it writes does not become durable.
    """

    broker_id: int
    epoch: int
    max_offset: int
    election_priority: int
    incarnation: int = 0
    is_learner: bool = False
    lost_tail: bool = False
    is_contested: bool = False
    lost_confirmed: int = -1
    held_elsewhere: tuple[int, int] = NOWHERE
    lives: tuple[int, ...] | None = None
    disk_stands: bool = False

    @property
    def position(self) -> tuple[int, int]:
        """Where its log ends: (epoch, offset)."""
        return self.epoch, self.max_offset


@dataclass(frozen=True, slots=True)
class ApplyBrokerId:
    """A broker claims the id that it was told is free; the check code makes a repetition harmless."""

    cluster_name: str
    broker_name: str
    broker_id: int
    register_check_code: str


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """A broker that has its id says where it is, and the highest master epoch that it remembers.

    `lost_tail`: it restarted without everything that it had acknowledged, or cannot tell; its log ends at `max_offset` now.
    `others_have_all`: another live member of the set has lost nothing, as far as is known; None: nobody looked. `observed` is the
    process that registers, if it says which lives its directory has seen.
    """

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    grpc_address: str
    known_epoch: int = 0
    lost_tail: bool = False
    max_offset: int = -1
    others_have_all: bool | None = None
    observed: tuple[Observation, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterSyncStateSet:
    """The master proposes a whole new set over the version that it knows. `observed` are the members that live; `counts_lives`:
    of each that joins, which life is the member has to be known (`lives`)."""

    broker_name: str
    master_broker_id: int
    master_epoch: int
    proposed: tuple[int, ...]
    sync_state_set_epoch: int
    not_alive: tuple[int, ...]
    observed: tuple[Observation, ...] = ()
    counts_lives: bool = False


@dataclass(frozen=True, slots=True)
class ElectMaster:
    """Find a master among the observed replicas.

    `seen_master_epoch` is the epoch that the controller looked at when it found the master dead: when the group moved on in the
    meantime, the finding is out of date. `broker_id` is wanted as master only when `designate` is set. `last_known` is what dead
    members of the sync-state set said last, and `at_ms` the wall clock; both serve only to say what an unclean election costs.
    `keeps_members`: who of the set lives stays in it, and a majority that cannot tell what it lost may lead. It is false in what
    was asked before there were those rules.
    """

    cluster_name: str
    broker_name: str
    trigger: Trigger
    observed: tuple[Observation, ...]
    broker_id: int | None = None
    designate: bool = False
    unclean: bool = False
    seen_master_epoch: int | None = None
    last_known: tuple[Observation, ...] = ()
    at_ms: int = 0
    keeps_members: bool = False


@dataclass(frozen=True, slots=True)
class CleanBroker:
    """An administrator forgets some replicas (None: all of them)."""

    cluster_name: str
    broker_name: str
    broker_ids: tuple[int, ...] | None
    clean_living: bool
    alive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CountLives:
    """Members of which no life is counted yet are these ones."""

    broker_name: str
    observed: tuple[Observation, ...]


Request = ApplyBrokerId | RegisterBroker | AlterSyncStateSet | ElectMaster | CleanBroker | CountLives
