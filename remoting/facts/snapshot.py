"""The snapshot of the cluster: what the collector made of all reports, and what pages, REST and websockets show (pure)

It stands here and not in the console, because the collector must not load the console to write it, nor the console the collector
to read it. What is not known is None, never 0. Offsets are of the log, in bytes, or of a queue, in messages; times that end in
`_ms` are milliseconds, since 1970 when they say when. Times as text are RFC 3339, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from remoting.facts.broker_state import EpochState, GateState, MemberState, RetentionState, WaitingMessageGroup
from remoting.facts.history import HistoryEntry
from remoting.facts.placements import TopicPlacement
from remoting.facts.tier_state import TieredQueueState, TierState
from remoting.facts.timers import AsideTimer, TopicTimers
from remoting.facts.words import BrokerRole, Cause, ControllerRole, GroupKind, Health, Severity, TopicKind
from remoting.names import is_dead_letter_topic, is_retry_topic

VERSION: Final = 1
KEY: Final = "logboom:snapshot"  # in Redis
GROUP: Final = "snapshot"  # of channels; it hears {"type": "snapshot.changed", "seq": n}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why all is not well. `link` leads to the part of a page that shows it."""

    code: str
    severity: Severity
    text: str
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """What is over, but not long ago, as a sentence; `at` is when it began. `link` leads to the page that tells more."""

    at: str
    text: str
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The worst reasons come first, and of what is over the newest."""

    status: Health
    reasons: tuple[Reason, ...] = ()
    recent: tuple[Recent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """`member`: voter, learner, leaving or unknown."""

    id: str
    address: str
    member: str = "unknown"
    role: ControllerRole
    term: int | None = None
    commit_index: int | None = None
    applied_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedPart:
    """A part of a replica's log that is not what was stored, and that no other replica could give yet."""

    start_offset: int
    end_offset: int
    since_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrub:
    """What a replica knows of damage to its files. `percent` of the present round over all data is done; counts are since the
    replica started."""

    percent: int | None = None
    round_began_ms: int | None = None
    round_ended_ms: int | None = None
    found: int = 0
    repaired: int = 0
    units_repaired: int = 0
    index_repaired: int = 0
    last_damage: str | None = None
    last_damage_ms: int | None = None
    unrepaired: tuple[DamagedPart, ...] = ()

    @property
    def has_found(self) -> bool:
        """Whether there was any damage."""
        return self.found + self.units_repaired + self.index_repaired > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A broker of a group. `last_heartbeat_ms`: how long ago that was.

    `gap_bytes`: what it had not acknowledged of its master's log when the master answered, by the master's own count; None when
    that does not answer, or the replica is not connected to it.

    `process` and `pid` are None for a broker that the appliance's supervisor does not run; `pid` also while it is down.
    `absence`: what speaks against one that is not alive. `controllers_error` and `stale_view` as of a broker's state; they stand
    since `cut_off_since_ms`. `claimed_by`: the address of a process that runs under the same identity and is refused. `scrub` and
    `retention` are None when it does not answer, or does not tell.
    """

    id: int
    process: str | None = None
    pid: int | None = None
    address: str | None = None
    grpc_address: str | None = None
    ha_address: str | None = None
    alive: bool | None = None
    absence: Cause | None = None
    role: BrokerRole
    in_sync: bool = False
    learner: bool | None = None
    epoch: int | None = None
    max_offset: int | None = None
    flushed_offset: int | None = None
    confirm_offset: int | None = None
    gap_bytes: int | None = None
    eligible: bool = False
    eligibility_reason: str = ""
    last_heartbeat_ms: int | None = None
    epochs: tuple[EpochState, ...] = ()
    controllers_error: str | None = None
    stale_view: str | None = None
    cut_off_since_ms: int | None = None
    claimed_by: str | None = None
    scrub: Scrub | None = None
    retention: RetentionState | None = None

    @property
    def label(self) -> str:
        """What sentences call it: its number, and the process that a person would start again."""
        return replica_label(self.id, self.process)


def replica_label(broker_id: int, process: str | None) -> str:
    """What sentences call a replica: "replica 2 (broker-a-1)"; without the name when the appliance does not run it."""
    return f"replica {broker_id}" if process is None else f"replica {broker_id} ({process})"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingCopy:
    """A copy that a group is without. `stalls`: sends wait for it. `process` as of its replica."""

    broker_id: int
    process: str | None = None
    reason: str
    stalls: bool = False
    since_ms: int | None = None

    @property
    def label(self) -> str:
        return replica_label(self.broker_id, self.process)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """What an acknowledgement means now, by the master's own word."""

    kind: str
    copies: int | None = None
    wanted_copies: int | None = None
    min_copies: int | None = None
    refused: bool = False
    downgraded: bool = False
    missing: tuple[MissingCopy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """`overdue`: a check has looked at the oldest, and it is open all the same. Totals are since the master started."""

    open: int
    open_bytes: int | None = None
    max_open: int | None = None
    oldest_since_ms: int | None = None
    oldest_age_ms: int | None = None
    oldest_checks: int | None = None
    max_checks: int | None = None
    overdue: bool = False
    committed: int | None = None
    rolled_back: int | None = None
    given_up: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayLevel:
    level: int | None = None
    delay_ms: int | None = None
    waiting: int | None = None
    late_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """`late`: the last delivery was, not long ago, or something that is due still waits."""

    waiting: int
    last_late_ms: int | None = None
    last_ago_ms: int | None = None
    overdue_ms: int | None = None
    late: bool = False
    delivered: int | None = None
    failures: int | None = None
    lost: int | None = None
    returned: int | None = None
    dead_lettered: int | None = None
    levels: tuple[DelayLevel, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Messages that wait for a moment of their own. `waiting` counts delete markers, too; `topics` does not, and not the newest
    `uncounted` entries. `late`: one that is due still waits. The rest is as in the broker's state."""

    waiting: int
    near: int | None = None
    aside: int | None = None
    overdue_ms: int | None = None
    last_late_ms: int | None = None
    late: bool = False
    delivered: int | None = None
    rolled: int | None = None
    recalled: int | None = None
    failures: int | None = None
    lost: int | None = None
    left: int | None = None
    uncounted: int | None = None
    in_tier: int | None = None
    tier_trouble: str = ""
    topics: tuple[TopicTimers, ...] = ()
    late_bounds_ms: tuple[int, ...] = ()
    late_counts: tuple[int, ...] = ()
    set_aside: tuple[AsideTimer, ...] = ()

    @property
    def counted(self) -> int:
        """Those in `topics`."""
        return sum(each.waiting for each in self.topics)

    @property
    def overdue(self) -> int:
        """Those that could have been delivered for a minute or longer."""
        return sum(each.overdue for each in self.topics)

    def of_topic(self, name: str) -> TopicTimers | None:
        return next((each for each in self.topics if each.topic == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyIndex:
    """The index of keys. `behind`: it lacks more than a burst leaves."""

    lag_bytes: int
    behind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A broker group. `quorum`, `transactions`, `delays`, `timers`, `index`, `tier` are the master's, None when it does not
    answer; `tier` also when it has none."""

    cluster: str
    name: str
    kind: GroupKind = GroupKind.CONTROLLERS
    master_id: int | None = None
    master_epoch: int | None = None
    sync_state_set: tuple[int, ...] = ()
    sync_state_set_epoch: int | None = None
    quorum: Quorum | None = None
    weaknesses: tuple[str, ...] = ()
    transactions: Transactions | None = None
    delays: Delays | None = None
    timers: Timers | None = None
    index: KeyIndex | None = None
    tier: TierState | None = None
    replicas: tuple[Replica, ...] = ()

    def replica(self, broker_id: int | None) -> Replica | None:
        return next((each for each in self.replicas if each.id == broker_id), None)

    @property
    def serving(self) -> Replica | None:
        """The replica that takes messages, as far as anybody knows."""
        found = self.replica(self.master_id)
        return found if found is not None and found.role is BrokerRole.MASTER else None

    def label(self, broker_id: int) -> str:
        """What sentences call its replica of this number, also one that is not there any more."""
        found = self.replica(broker_id)
        return replica_label(broker_id, found.process if found is not None else None)

    @property
    def scrubbed(self) -> tuple[Replica, ...]:
        """The replicas that tell of damage to their data, be it that there is none."""
        return tuple(each for each in self.replicas if each.scrub is not None)

    @property
    def keeping(self) -> tuple[Replica, ...]:
        """The replicas with files that stay because of topics, or that went although topics wanted them."""
        told = ((each, each.retention) for each in self.replicas)
        return tuple(each for each, state in told if state is not None and (state.kept_files or state.overruled_files))

    @property
    def leaderless(self) -> bool:
        return self.master_id is None

    @property
    def in_sync_count(self) -> int:
        return len(self.sync_state_set)

    @property
    def replica_count(self) -> int:
        """Replicas that may count for an acknowledgement."""
        return sum(not each.learner for each in self.replicas)

    @property
    def shrunken(self) -> bool:
        return self.in_sync_count < self.replica_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Over all brokers. `history` has (when in ms, messages in, messages out) for each second of the last two minutes."""

    in_messages_per_s: float | None = None
    out_messages_per_s: float | None = None
    in_bytes_per_s: float | None = None
    out_bytes_per_s: float | None = None
    history: tuple[tuple[int, float | None, float | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A topic's queue in a broker group. `last_store_ms`: when its newest message was stored. `tier`: what of it is where, None
    when all of it is in the brokers' files."""

    group: str
    queue_id: int
    min_offset: int | None = None
    max_offset: int | None = None
    last_store_ms: int | None = None
    tier: TieredQueueState | None = None

    @property
    def count(self) -> int | None:
        """Its messages."""
        if self.min_offset is None or self.max_offset is None:
            return None
        return max(0, self.max_offset - self.min_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic. Its messages stay in the brokers' files for `local_reserved_hours` at least, None = as long as the brokers say.
    `tiered`: its messages are uploaded to the tier of a broker group, None where none has one; `tier_reserved_hours`:
    for how long they stay there, None = as long as the brokers say. `tier_archived`: what is merged there is compressed, None =
    as the brokers say. `tier_exported`: workers write what is there as Parquet, too."""

    name: str
    type: str = "NORMAL"
    perm: int | None = None
    system: bool = False
    queues: tuple[Queue, ...] = ()
    message_count: int | None = None
    in_per_s: float | None = None
    placement: TopicPlacement | None = None
    local_reserved_hours: int | None = None
    tiered: bool | None = None
    tier_reserved_hours: int | None = None
    tier_archived: bool | None = None
    tier_exported: bool = False

    @property
    def tier_bytes(self) -> int:
        """What of it is in tiers."""
        return sum(queue.tier.bytes for queue in self.queues if queue.tier is not None)

    @property
    def missing_messages(self) -> int:
        """How many went before they were uploaded, and are nowhere."""
        return sum(queue.tier.missing for queue in self.queues if queue.tier is not None)

    @property
    def queue_count(self) -> int:
        return len(self.queues)

    @property
    def kind(self) -> TopicKind:
        if self.system:
            return TopicKind.SYSTEM
        if is_retry_topic(self.name):
            return TopicKind.RETRY
        return TopicKind.DEAD_LETTER if is_dead_letter_topic(self.name) else TopicKind.ORDINARY


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedQueue:
    """How far a consumer group is in a queue. `pending_reset`: where it goes on, while no consumer was told yet.

    `start_offset`: where it will begin, while it has no offset. `lag` counts from the one or the other. `held_since_ms`: when the
    oldest of what is in flight was taken. `blocked_until_ms`: an ordered queue gives nothing until then, unless a client finishes
    what it has of it. `waiting_groups`: the message groups that wait, as many as were told. `cold`: how many messages of the lag
    come from the tier, None when that is not known.
    """

    group: str
    queue_id: int
    consumer_offset: int | None = None
    start_offset: int | None = None
    max_offset: int | None = None
    lag: int | None = None
    in_flight: int | None = None
    coming_back: int | None = None
    pending_reset: int | None = None
    held_since_ms: int | None = None
    blocked_until_ms: int | None = None
    waiting_groups: tuple[WaitingMessageGroup, ...] = ()
    cold: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedTopicGate:
    """What a broker group holds back from an ordered group."""

    group: str
    gate: GateState


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedTopic:
    """`lag_at_least`: a part of the lag is not known, or a replica that is not the master told it."""

    topic: str
    lag: int | None = None
    lag_at_least: bool = False
    in_flight: int | None = None
    queues: tuple[ConsumedQueue, ...] = ()
    gates: tuple[ConsumedTopicGate, ...] = ()

    @property
    def waits_to_be_told(self) -> bool:
        """A reset of a queue waits for a consumer."""
        return any(queue.pending_reset is not None for queue in self.queues)

    @property
    def cold(self) -> int:
        """How many messages of the lag come from the tier, as far as that is known."""
        return sum(queue.cold or 0 for queue in self.queues)

    @property
    def held_since_ms(self) -> int | None:
        """When the oldest message in flight was taken; None without any."""
        return min((queue.held_since_ms for queue in self.queues if queue.held_since_ms is not None), default=None)

    @property
    def blocked_queues(self) -> int:
        """How many ordered queues hold messages back at the moment: a client has messages of them, or the group has not finished
        elsewhere what came before."""
        gated = {(each.group, queue_id) for each in self.gates for queue_id in each.gate.queue_ids}
        return sum(each.blocked_until_ms is not None or (each.group, each.queue_id) in gated for each in self.queues)

    @property
    def waiting_groups(self) -> tuple[WaitingMessageGroup, ...]:
        """The message groups that wait, the longest first."""
        found = (each for queue in self.queues for each in queue.waiting_groups)
        return tuple(sorted(found, key=lambda each: (-each.until_ms, each.message_group)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """`forbidden` are topics that it may not read. `lag_at_least` as of its topics. `order_scope` and `invisible_*` as
    `GroupState` says."""

    name: str
    fifo: bool = False
    order_scope: str | None = None
    invisible_min_ms: int | None = None
    invisible_max_ms: int | None = None
    invisible_default_ms: int | None = None
    retry_max_times: int | None = None
    topics: tuple[ConsumedTopic, ...] = ()
    forbidden: tuple[str, ...] = ()
    members: tuple[MemberState, ...] = ()
    lag: int | None = None
    lag_at_least: bool = False
    in_flight: int | None = None

    @property
    def coming_back(self) -> int:
        """How many popped messages wait to be popped again."""
        return sum(queue.coming_back or 0 for topic in self.topics for queue in topic.queues)

    @property
    def bounds_invisible_time(self) -> bool:
        """Whether it says anything about for how long messages are hidden."""
        return bool(self.invisible_min_ms or self.invisible_max_ms or self.invisible_default_ms)

    @property
    def topic_count(self) -> int:
        return len(self.topics)

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def held_since_ms(self) -> int | None:
        """When the oldest message in flight was taken; None without any."""
        return min((topic.held_since_ms for topic in self.topics if topic.held_since_ms is not None), default=None)

    @property
    def blocked_queues(self) -> int:
        """How many ordered queues hold messages back at the moment, as `ConsumedTopic` says."""
        return sum(topic.blocked_queues for topic in self.topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimes:
    """What clients measured in the last minutes, on whichever broker they report to; `metric` as `ClientTimesState` says.

    Half of the `count` values took no longer than `half_ms`, all but one in a hundred no longer than `most_ms`. None = longer
    than what clients tell apart, which is up to `limit_ms`.
    """

    metric: str
    topic: str
    group: str = ""
    language: str = ""
    status: str = ""
    count: int
    half_ms: float | None = None
    most_ms: float | None = None
    limit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened, as a sentence. `kind`: election, sync_set, process or topic."""

    at: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LastExit:
    """How a process ended last."""

    code: int | None = None
    text: str = ""
    at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of the appliance, as its supervisor publishes it. `group` of a broker, `why` it does not run."""

    name: str
    state: str
    group: str | None = None
    why: str | None = None
    pid: int | None = None
    restarts: int | None = None
    since: str | None = None
    kind: str | None = None
    address: str | None = None
    last_exit: LastExit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """The part of the supervisor's published state that the snapshot shows. `state`: starting, running, stopping or stopped."""

    pid: int
    state: str = "running"
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    state: str = "unknown"
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkProcess:
    """The part of the Spark process's published state that the snapshot shows."""

    pid: int
    state: str = "unknown"
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """Everything. `seq` counts up, over restarts of the collector too. `history` has the newest entries only, newest first."""

    version: int
    seq: int
    as_of: str
    verdict: Verdict = field(default_factory=lambda: Verdict(status=Health.DEGRADED))
    controllers: tuple[Controller, ...] = ()
    groups: tuple[Group, ...] = ()
    rates: Rates = field(default_factory=Rates)
    topics: tuple[Topic, ...] = ()
    consumer_groups: tuple[ConsumerGroup, ...] = ()
    client_times: tuple[ClientTimes, ...] = ()
    timeline: tuple[Event, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    processes: tuple[Process, ...] = ()
    spark: Spark = field(default_factory=Spark)
