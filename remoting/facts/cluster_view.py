"""What a controller reports about the cluster, on CLUSTER_VIEW (pure)

The leader's view is the one that is acted upon; of what others cannot know they say None. Offsets are of the log, in bytes.
Times that end in `_ms` are durations. Whatever has a default may be missing in what a controller of another version tells.

An answer names what it tells of (`TOLD_VIEW`, in its header). Who repeats that name in the next request (`KNOWN_VIEW`) is not
told again while who leads, lives, is in sync, and how far logs are, is the same (`SAME_VIEW` is there then). The rest, ages and
counts, is then as old as the answer that is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from remoting.facts.codec import CamelCase, key
from remoting.facts.loop import LoopState
from remoting.facts.placements import TopicPlacement
from remoting.facts.words import BrokerRole, Cause, ControllerRole, GroupKind

TOLD_VIEW: Final = "view"
KNOWN_VIEW: Final = "knownView"
SAME_VIEW: Final = "sameView"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerView:
    """A controller. `member`: voter, learner, leaving or unknown. `problem`: what is wrong with its disk; only itself tells."""

    id: str
    address: str
    member: str = "unknown"
    role: ControllerRole
    term: int | None = None
    leader: bool = False
    commit_index: int | None = None
    applied_index: int | None = None
    alive: bool | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A broker, by its heartbeats. `suspicion` is phi: 10^-phi is the chance that a living broker is so silent.

    `absence`: what speaks against one that is not alive; None of one that is. `claimed_by`: the address of another process that
    runs under the same identity and is refused.
    """

    broker_id: int
    address: str | None = None
    ha_address: str | None = None
    grpc_address: str | None = None
    alive: bool | None = None
    absence: Cause | None = None
    in_sync: bool | None = None
    role: BrokerRole = BrokerRole.UNREACHABLE
    epoch: int | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    last_heartbeat_ms: int | None = None
    silence_limit_ms: int | None = None
    longest_silence_ms: int | None = None
    suspicion: float | None = None
    eligible: bool = False
    eligibility_reason: str = ""
    claimed_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanElectionView:
    """A master that was elected from outside the sync-state set, and what was lost by it. `at_ms` since 1970."""

    master_epoch: int
    broker_id: int
    sync_state_set: tuple[int, ...] = ()
    lost_bytes: int | None = None
    sentence: str = ""
    at_ms: int = field(default=-1, metadata=key("at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionView:
    """A new master epoch: `broker_id` leads, or nobody; before it `previous_id` did. `at_ms` since 1970 is when it was decided.

    `unheard_ms`: how long nothing had been heard of the master before, or for how long there was none.
    """

    master_epoch: int
    broker_id: int | None = None
    previous_id: int | None = None
    cause: Cause = Cause.UNKNOWN
    at_ms: int = -1
    unheard_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A broker group. Of one with fixed roles only the name server knows.

    `elections` are the last that this controller decided, oldest first: who began to lead a moment ago knows none.
    """

    cluster_name: str
    broker_name: str
    kind: GroupKind = GroupKind.CONTROLLERS
    master_broker_id: int | None = None
    master_epoch: int | None = None
    sync_state_set: tuple[int, ...] = ()
    sync_state_set_epoch: int | None = None
    unclean_elections: tuple[UncleanElectionView, ...] = ()
    elections: tuple[ElectionView, ...] = ()
    replicas: tuple[ReplicaView, ...] = ()

    @property
    def master(self) -> ReplicaView | None:
        return next((each for each in self.replicas if each.broker_id == self.master_broker_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView(CamelCase):
    """Everything. `as_of_ms` since 1970; `cluster` tells groups of controllers apart, `access_version` counts changes of users.

    `unclean_election`: whether the settings allow one. `metrics` are running totals by name. `placements`: for who asks for them.
    """

    as_of_ms: int = field(default=-1, metadata=key("asOf"))
    leader_id: str | None = None
    cluster: str | None = None
    access_version: int | None = None
    controllers: tuple[ControllerView, ...] = ()
    groups: tuple[GroupView, ...] = ()
    unclean_election: bool = False
    metrics: Mapping[str, int] = field(default_factory=dict)
    loop: LoopState = field(default_factory=LoopState)
    placements: tuple[TopicPlacement, ...] = ()

    def controller(self, address: str) -> ControllerView | None:
        return next((each for each in self.controllers if each.address == address), None)
