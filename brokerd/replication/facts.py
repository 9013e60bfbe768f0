"""What this process knows of its broker's replication, for metrics and for the broker's state (pure).

Times are durations: the broker's monotonic clock means nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from brokerd.replication.required_set.quorum import ALL, kind_of, weaknesses
from brokerd.replication.roles.effects import Role
from brokerd.replication.roles.followership import Following
from brokerd.replication.roles.mastership import Leading
from brokerd.replication.roles.role_machine import ReplicaCore
from brokerd.replication.settings import ReplicationSettings
from remoting.facts.broker_state import EpochState, FollowingState, PeerState, QuorumState
from remoting.facts.loop import LoopState


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFacts:
    """A connected replica. `gap_bytes`: what it has not acked of the log, None before its first ack."""

    state: PeerState
    gap_bytes: int | None
    silent_ms: int
    silence_limit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFacts:
    """A copy that is missing, why, and for how long. `stalls`: sends wait for it."""

    broker_id: int
    reason: str
    stalls: bool
    for_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingFacts:
    """Of a master. Who is missing for its `quorum` stands in `missing`."""

    required_set: Sequence[int]
    replicas: Sequence[PeerFacts]
    quorum: QuorumState
    missing: Sequence[MissingFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingFacts:
    """Of a replica. `stuck`: why only a person can help; texts are empty when all is well."""

    state: FollowingState
    stuck: str
    last_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """The role, the log, and whoever is followed or follows. `failure`: why the broker serves no more, empty while it does.

    `waiting_sends` groups of messages wait to be acknowledged, the first of them for `waited_ms`; `unacknowledged` counts those
    that were answered with something else than success, by that. `controllers` are those that it is connected to.
    """

    role: Role
    broker_id: int | None
    master_id: int | None
    master_epoch: int
    highest_epoch: int
    confirm_offset: int
    acknowledged_offset: int
    sync_state_set: Sequence[int]
    epochs: Sequence[EpochState]
    failure: str
    learner: bool
    weaknesses: Sequence[str]
    loop: LoopState
    leading: LeadingFacts | None
    following: FollowingFacts | None
    waiting_sends: int = 0
    waited_ms: int = 0
    unacknowledged: Mapping[str, int] = field(default_factory=dict)
    refused_peers: Mapping[str, int] = field(default_factory=dict)
    acts_as_master: bool = False
    controllers: Sequence[str] = ()
    controllers_error: str = ""


def core_facts(core: ReplicaCore, settings: ReplicationSettings, now_ms: int) -> ReplicaFacts:
    """What the core knows; the rest is its shells'."""
    view, leading = core.view, core.leading
    members = leading.sync.local if leading is not None else view.members if view is not None else ()
    return ReplicaFacts(
        role=core.role,
        broker_id=core.broker_id,
        master_id=view.master_id if view is not None else None,
        master_epoch=core.master_epoch,
        highest_epoch=core.highest_epoch,
        confirm_offset=core.confirm_offset,
        acknowledged_offset=core.acknowledged_offset,
        sync_state_set=sorted(members),
        epochs=[EpochState(epoch=entry.epoch, start_offset=entry.start_offset) for entry in core.epochs.entries],
        failure=core.failure,
        learner=settings.learner,
        weaknesses=weaknesses(settings),
        loop=core.awake.state(),
        leading=_leading_facts(leading, settings, core.log.end_offset, now_ms) if leading is not None else None,
        following=_following_facts(core.following) if core.following is not None else None,
    )


def _leading_facts(leading: Leading, settings: ReplicationSettings, end_offset: int, now_ms: int) -> LeadingFacts:
    return LeadingFacts(
        required_set=sorted(leading.sync.required),
        replicas=[
            PeerFacts(
                state=PeerState(
                    broker_id=peer.broker_id,
                    address=peer.address,
                    layout=peer.layout.value,
                    stage=peer.stage.value,
                    learner=peer.learner,
                    in_sync=peer.broker_id in leading.sync.local,
                ),
                gap_bytes=end_offset - peer.ack_offset if peer.ack_offset >= 0 else None,
                silent_ms=peer.silence.silent_ms(now_ms),
                silence_limit_ms=settings.plain_silence_limit_ms if peer.layout.is_plain else peer.silence.limit_ms,
            )
            for peer in leading.peers
        ],
        quorum=_quorum(leading, settings),
        missing=[
            MissingFacts(
                broker_id=each.broker_id,
                reason=each.reason,
                stalls=each.stalls,
                for_ms=max(0, now_ms - each.since_ms),
            )
            for each in leading.missing.all
        ],
    )


def _quorum(leading: Leading, settings: ReplicationSettings) -> QuorumState:
    """How many copies an acknowledgement means, and how many it should mean."""
    copies, wanted = leading.copies
    return QuorumState(
        kind=kind_of(settings).value,
        all=leading.quorum.needed == ALL,
        copies=copies,
        wanted_copies=wanted,
        min_copies=settings.min_in_sync_replicas,
        refused=leading.quorum.refused,
        downgraded=copies < wanted,
        learners=tuple(sorted(leading.learners)),
    )


def _following_facts(following: Following) -> FollowingFacts:
    return FollowingFacts(
        state=FollowingState(
            master_id=following.master_id,
            address=following.address,
            layout=following.layout.value,
            stage=following.stage.value,
            cuts=following.cuts,
            copies=following.copies,
        ),
        stuck=following.stuck,
        last_error=following.last_error,
    )
