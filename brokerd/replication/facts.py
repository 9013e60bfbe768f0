"""What this process knows of its broker's replication, for metrics and for the broker's state (pure).

Times are durations: the broker's monotonic clock means nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from brokerd.replication.required_set.quorum import ALL, kind_of, weaknesses
from brokerd.replication.required_set.replica_progress import MissingCopy
from brokerd.replication.roles.driver import ReplicationDriver
from brokerd.replication.roles.effects import Role
from brokerd.replication.roles.followership import Followership
from brokerd.replication.roles.mastership import Mastership
from brokerd.replication.settings import ReplicationSettings
from remoting.facts.broker_state import EpochState, FollowingState, PeerState, QuorumState
from remoting.facts.loop import LoopState

_STANDS: Final = "its disk stands still: what is written to the log does not become durable, and is not acknowledged"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFacts:
    """A connected replica."""

    state: PeerState
    silent_ms: int
    silence_limit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingFacts:
    """Of a master. Who is missing for its `quorum` stands in `missing`."""

    required_set: Sequence[int]
    replicas: Sequence[PeerFacts]
    quorum: QuorumState
    missing: Sequence[MissingCopy]


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
    that were answered with something else than success, by that. Nothing of the log has become durable for `disk_standing_ms`,
    though something waits for it; `disk_trouble` is a sentence about that, where it is too long.
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
    controllers_error: str = ""
    stale_view: str = ""
    disk_standing_ms: int = 0
    disk_trouble: str = ""


def driver_facts(driver: ReplicationDriver, now_ms: int) -> ReplicaFacts:
    """All of it but what the links to controllers know."""
    machine, acks = driver.machine, driver.acks
    view, mastership, followership, settings = machine.view, machine.mastership, machine.followership, machine.settings
    count, waited_ms = driver.waiting_elsewhere()
    members = mastership.sync.local if mastership is not None else view.members if view is not None else ()
    return ReplicaFacts(
        role=machine.role,
        broker_id=machine.broker_id,
        master_id=view.master_id if view is not None else None,
        master_epoch=machine.master_epoch,
        highest_epoch=machine.highest_epoch,
        confirm_offset=machine.confirm_offset,
        acknowledged_offset=machine.acknowledged_offset,
        sync_state_set=sorted(members),
        epochs=[EpochState(epoch=entry.epoch, start_offset=entry.start_offset) for entry in machine.epochs.entries],
        failure=machine.failure,
        learner=settings.learner,
        weaknesses=weaknesses(settings),
        loop=machine.awake.state(),
        leading=_leading_facts(mastership, settings, machine.log.end_offset, now_ms)
        if mastership is not None
        else None,
        following=_following_facts(followership) if followership is not None else None,
        waiting_sends=len(acks) + count,
        waited_ms=max(waited_ms, now_ms - (acks.waiting_since_ms or now_ms)),
        unacknowledged={status.name: count for status, count in acks.ended.items()},
        refused_peers=dict(driver.channels.refused),
        stale_view=machine.stale_view,
        disk_standing_ms=machine.disk.standing_ms,
        disk_trouble=_STANDS if machine.disk.stands else "",
    )


def _leading_facts(mastership: Mastership, settings: ReplicationSettings, end_offset: int, now_ms: int) -> LeadingFacts:
    return LeadingFacts(
        required_set=sorted(mastership.sync.required),
        replicas=[
            PeerFacts(
                state=PeerState(
                    broker_id=follower.broker_id,
                    address=follower.address,
                    layout=follower.layout.value,
                    stage=follower.stage.value,
                    learner=follower.learner,
                    in_sync=follower.broker_id in mastership.sync.local,
                    gap_bytes=end_offset - follower.ack_offset if follower.ack_offset >= 0 else None,
                ),
                silent_ms=follower.silence.silent_ms(now_ms),
                silence_limit_ms=settings.plain_silence_limit_ms
                if follower.layout.is_rocketmq
                else follower.silence.limit_ms,
            )
            for follower in mastership.followers
        ],
        quorum=_quorum(mastership, settings),
        missing=mastership.missing(now_ms),
    )


def _quorum(mastership: Mastership, settings: ReplicationSettings) -> QuorumState:
    """How many copies an acknowledgement means, and how many it should mean."""
    copies, wanted = mastership.copies
    return QuorumState(
        kind=kind_of(settings).value,
        all=mastership.quorum.needed == ALL,
        copies=copies,
        wanted_copies=wanted,
        min_copies=settings.min_in_sync_replicas,
        refused=mastership.quorum.refused,
        downgraded=copies < wanted,
        learners=tuple(sorted(mastership.learners)),
    )


def _following_facts(followership: Followership) -> FollowingFacts:
    return FollowingFacts(
        state=FollowingState(
            master_id=followership.master_id,
            address=followership.address,
            layout=followership.layout.value,
            stage=followership.stage.value,
            cuts=followership.cuts,
            copies=followership.copies,
        ),
        stuck=followership.stuck,
        last_error=followership.last_error,
    )
