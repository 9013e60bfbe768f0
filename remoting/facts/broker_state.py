"""What a broker reports about itself, on BROKER_STATE (pure)

Offsets are of the log, in bytes, or of a queue, in messages; -1 is an offset or time that the broker does not know itself. Times
that end in `_ms` and say when are milliseconds since 1970, those that say how long are durations. Totals are since the broker
started. Whatever has a default may be missing in what a broker of another version tells.

An answer names the topics that it tells of (`TOLD_TOPICS`, in its header). Who repeats that name in the next request
(`KNOWN_TOPICS`) is not told of them again while they and their queues are the same (`SAME_TOPICS` is there then).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from remoting.facts.codec import CamelCase, key
from remoting.facts.loop import LoopState
from remoting.facts.tier_state import TieredQueueState, TierState
from remoting.facts.timers import AsideTimer, TopicTimers
from remoting.facts.words import BrokerRole, GroupStart

TOLD_TOPICS: Final = "topics"
KNOWN_TOPICS: Final = "knownTopics"
SAME_TOPICS: Final = "sameTopics"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochState:
    """A master epoch and the physical offset at which its records begin."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Traffic: what producers stored here and what was given out; None = not told."""

    in_messages: int | None = None
    in_bytes: int | None = None
    out_messages: int | None = None
    out_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """A queue's extent. `last_store_ms`: when its newest message was stored.

    `begins_recently`: it is there from its first message on, and that one is recent, so that a new group gets all of it; None =
    not told. `tier`: what of it is where, None without a tier, or when all of it is in the broker's files.
    """

    queue_id: int
    min_offset: int = -1
    max_offset: int = -1
    last_store_ms: int = -1
    begins_recently: bool | None = None
    tier: TieredQueueState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic. Its messages stay in the broker's files for `local_reserved_hours` at least, None = as long as the broker says.
    `tiered`: its messages are uploaded to the tier, None without one; they stay there for `tier_reserved_hours`,
    None = as long as the broker says. `tier_archived`: what is merged there is compressed, None = as the broker says.
    `tier_exported`: workers write what is there as Parquet, too."""

    name: str
    type: str = "NORMAL"
    perm: int = -1
    read_queues: int = 0
    write_queues: int = 0
    system: bool = False
    local_reserved_hours: int | None = None
    tiered: bool | None = None
    tier_reserved_hours: int | None = None
    tier_archived: bool | None = None
    tier_exported: bool = False
    queues: tuple[QueueState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessageGroup:
    """A message group that waits until then, unless a client finishes the message that is before the `waiting` others."""

    message_group: str
    until_ms: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedQueueState:
    """How far a consumer group is; None = it has no offset. `in_flight` messages are popped and not acked; `coming_back` of them
    are with nobody any more, and wait to be popped again.

    `pending_reset`: where the group goes on as soon as a consumer asks, while it was not told yet. `held_since_ms`: when the
    oldest of what clients have was taken. `blocked_until_ms`: an ordered queue gives nothing until then, unless a client finishes
    what it has of it. `waiting_groups`: the message groups that wait, as many as may be told.
    """

    queue_id: int
    consumer_offset: int | None = None
    in_flight: int = -1
    coming_back: int | None = None
    pending_reset: int | None = None
    held_since_ms: int | None = None
    blocked_until_ms: int | None = None
    waiting_groups: tuple[WaitingMessageGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateState:
    """New messages that an ordered group does not get since then: a change of the topic's placement, to this version, brought
    them here, and the group has not finished what came before in the broker groups `sources`. `silent` of them do not answer.
    `queue_ids` are the queues here that have such messages."""

    version: int
    since_ms: int
    sources: tuple[str, ...]
    silent: tuple[str, ...] = ()
    queue_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedTopicState:
    topic: str
    gate: GateState | None = None
    queues: tuple[ConsumedQueueState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """A topic that the connected consumers of a group share among themselves, and where they let it start."""

    topic: str
    start: GroupStart = GroupStart.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """A connected consumer, as it described itself."""

    client_id: str
    address: str | None = None
    language: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A consumer group. `forbidden` are topics that it may not read; `order_scope` says what an ordered one keeps the order of,
    QUEUE or MESSAGE_GROUP; `invisible_*` bound for how long its messages are hidden, None = it says nothing."""

    name: str
    fifo: bool = False
    order_scope: str | None = None
    invisible_min_ms: int | None = None
    invisible_max_ms: int | None = None
    invisible_default_ms: int | None = None
    retry_max_times: int = -1
    system: bool = False
    topics: tuple[ConsumedTopicState, ...] = ()
    forbidden: tuple[str, ...] = ()
    members: tuple[MemberState, ...] = ()
    subscriptions: tuple[SubscriptionState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """`oldest_*` are of the transaction that is open longest; 0, and no `since`, when none is."""

    open: int
    open_bytes: int = 0
    oldest_since_ms: int | None = None
    oldest_age_ms: int = 0
    oldest_checks: int = 0
    max_checks: int = -1
    max_open: int = -1
    begun: int = 0
    checks: int = 0
    committed: int = 0
    given_up: int = field(default=0, metadata=key("given_up"))
    refused_ends: int = field(default=0, metadata=key("refused_ends"))
    rolled_back: int = field(default=0, metadata=key("rolled_back"))
    unasked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelState:
    """A delay level. `late_ms`: how late its last message was delivered, -1 when none was since the start."""

    level: int
    delay_ms: int = -1
    waiting: int = 0
    late_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """Delayed messages, and those that come back.

    The last delivery of whichever level was `last_late_ms` late, `last_ago_ms` ago; -1 before the first. `overdue_ms`: for how
    long a message that still waits could have been delivered.
    """

    levels: tuple[LevelState, ...]
    last_late_ms: int = -1
    last_ago_ms: int = -1
    overdue_ms: int = 0
    delivered: int = 0
    failures: int = 0
    lost: int = 0
    returned: int = 0
    dead_lettered: int = field(default=0, metadata=key("dead_lettered"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerState:
    """Timers. `rolled` were appended again on their way, `moved` of them before their time, since their files were to go. The
    last delivery was `last_late_ms` late, -1 before the first. `overdue_ms`: for how long one that still waits could have been
    delivered; `near` are in memory, `aside` cannot be read or stored now. Both are 0 where nothing is delivered.
    The machine's clock is `doubted_ms` ahead of the time that timers are kept by; `fences`: so often it went back behind what was
    delivered, and did not get there again. `left`: parts of what is late that newer ones overtook, and that wait beside these.

    `in_tier` of those that wait are in `tier_objects` of the tier, where `stowed` went and `returned` came from; `tier_failures`
    attempts failed, the last one by `tier_trouble`, "" when all is well.

    `topics` says how many wait for which topic; of the queue's newest entries, `uncounted` are not in it yet. `late_counts` of
    those that were delivered were not later than an upper bound, but later than the one before; the last: later than all.
    `set_aside` are the first of those.
    """

    waiting: int = 0
    near: int = 0
    aside: int = 0
    overdue_ms: int = 0
    last_late_ms: int = -1
    delivered: int = 0
    rolled: int = 0
    moved: int = 0
    recalled: int = 0
    failures: int = 0
    lost: int = 0
    doubted_ms: int = 0
    fences: int = 0
    left: int = 0
    uncounted: int = 0
    in_tier: int = 0
    tier_objects: int = 0
    stowed: int = 0
    returned: int = 0
    tier_failures: int = 0
    tier_trouble: str = ""
    topics: tuple[TopicTimers, ...] = ()
    late_bounds_ms: tuple[int, ...] = ()
    late_counts: tuple[int, ...] = ()
    set_aside: tuple[AsideTimer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingState:
    """A copy that a group is without. `stalls`: sends wait for it. `since_ms` is to the second."""

    broker_id: int
    reason: str
    stalls: bool = False
    since_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """What an acknowledgement of this master means now.

    `kind` says who decides the roles. `all`: the whole required set must have a message. `copies` are what it has now,
    `wanted_copies` what it should have; with fewer than `min_copies` messages are refused.
    """

    kind: str
    all: bool = True
    copies: int = -1
    wanted_copies: int = -1
    min_copies: int = -1
    refused: bool = False
    downgraded: bool = False
    missing: tuple[MissingState, ...] = ()
    learners: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerState:
    """A replica that copies this master's log: which layout of frames it speaks, and how far the handshake is.

    `gap_bytes`: what it had not acknowledged of the log at the moment of this answer; None before its first acknowledgement.
    """

    broker_id: int
    address: str = ""
    layout: str = ""
    stage: str = ""
    learner: bool = False
    in_sync: bool = False
    gap_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingState:
    """The master whose log this broker copies; how often it cut a diverged tail, and copied the whole log anew."""

    master_id: int
    address: str = ""
    layout: str = ""
    stage: str = ""
    cuts: int = 0
    copies: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelState:
    """Who replicates with this broker, and how many connections of which peer were refused."""

    replicas: tuple[PeerState, ...] = ()
    following: FollowingState | None = None
    refused_peers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageState:
    """A part of the log that is not what was stored, and that no other replica could give yet; `reason` says why."""

    start_offset: int
    end_offset: int
    since_ms: int = -1
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubState:
    """What looking for damage found. The present round, or the last one when it has ended, looked at the log up to
    `checked_offset` of `limit_offset`; it began and ended at `round_*_ms`. What was read, found and repaired is counted since the
    start: ranges of the log, units of consume queues, and how often the index was made again."""

    checked_offset: int = -1
    limit_offset: int = -1
    round_began_ms: int = -1
    round_ended_ms: int = -1
    rounds: int = 0
    read_bytes: int = 0
    found: int = 0
    repaired: int = 0
    units_repaired: int = 0
    index_repaired: int = 0
    last_damage: str | None = None
    last_damage_ms: int = -1
    unrepaired: tuple[DamageState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionState:
    """For how long files of the log stay: all for `reserved_ms`. `kept_files`, `kept_bytes` of them, are older, and stay because
    topics want messages in them, the oldest because of `kept_topic`. `overruled_files` went since the start although topics
    wanted messages in them, as the disk was full: the last one at `overruled_ms`, which `overruled_topic` wanted."""

    reserved_ms: int
    kept_files: int = 0
    kept_bytes: int = 0
    kept_topic: str = ""
    overruled_files: int = 0
    overruled_topic: str = ""
    overruled_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimesState:
    """What clients that reported to this broker measured in the last five to ten minutes.

    `metric`: send, delivery, await or process as clients export it, or span_send, span_receive, span_process of their traces.
    `counts` of values that are not above an upper bound in milliseconds, but above the one before; the last: above all of them.
    """

    metric: str
    topic: str
    group: str = ""
    language: str = ""
    status: str = ""
    bounds_ms: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState(CamelCase):
    """Everything. A master alone tells of a `quorum`; `weaknesses` say, as sentences, what its settings give up of the promise.

    `index_lag_bytes` of the log are not in the index of keys yet. `kernel`: loops over messages run `native`, compiled on
    that machine, or in `python`. `last_error` is what is wrong now, not what was; so are `controllers_error`, between this broker
    and its controllers, and `stale_view`, with what they tell.
    """

    cluster_name: str
    broker_name: str
    broker_id: int
    role: BrokerRole
    master_epoch: int = -1
    sync_state_set: tuple[int, ...] = ()
    min_offset: int = -1
    end_offset: int = -1
    flushed_offset: int = -1
    confirm_offset: int = -1
    dispatched_offset: int = -1
    epochs: tuple[EpochState, ...] = ()
    counters: Totals = field(default_factory=Totals)
    topics: tuple[TopicState, ...] = ()
    groups: tuple[GroupState, ...] = ()
    transactions: TransactionState | None = None
    schedule: ScheduleState | None = None
    timers: TimerState | None = None
    tier: TierState | None = None
    index_lag_bytes: int = -1
    kernel: str | None = None
    scrub: ScrubState | None = None
    retention: RetentionState | None = None
    connections: int = 0
    last_error: str | None = None
    controllers_error: str | None = None
    stale_view: str | None = None
    learner: bool | None = None
    quorum: QuorumState | None = None
    weaknesses: tuple[str, ...] = ()
    channel: ChannelState = field(default_factory=ChannelState)
    loop: LoopState = field(default_factory=LoopState)
    client_times: tuple[ClientTimesState, ...] = ()
