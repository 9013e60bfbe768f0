"""BROKER_STATE: everything about this broker that the console shows, as one document; see `remoting.facts.broker_state`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, Final

from brokerd.loop.in_turns import run_in_turns
from brokerd.pop.order.gate import GateWait
from brokerd.processors.administration.group_states import GroupStates
from brokerd.processors.administration.topic_states import TieredQueue, TopicStates
from brokerd.processors.offsets.consumption import Consumption
from brokerd.replication.facts import LeadingFacts, ReplicaFacts
from brokerd.store.log.commitlog import CommitLog
from remoting.errors import LogboomError
from remoting.facts.broker_state import (
    KNOWN_TOPICS,
    SAME_TOPICS,
    TOLD_TOPICS,
    BrokerState,
    ChannelState,
    ClientTimesState,
    GroupState,
    MissingState,
    QuorumState,
    RetentionState,
    ScheduleState,
    ScrubState,
    TimerState,
    TopicState,
    Totals,
    TransactionState,
)
from remoting.facts.codec import encode_around, encode_item
from remoting.facts.tier_state import TierState
from remoting.facts.timers import TopicTimers
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

QUEUES_AT_ONCE: Final = 500  # in one turn of the loop: some milliseconds
_COUNTED_TIMERS: Final = 5  # what it takes to look at the timers of a topic, in queues
_CHEAP: Final = 4  # a queue is looked at in the time in which so many are encoded, or found


@dataclass(frozen=True, slots=True)
class StateFigures:
    """What others count, asked anew for every answer. `totals` are running ones; `connections` = open remoting connections."""

    dispatched_offset: Callable[[], int]
    totals: Callable[[], Totals]
    connections: Callable[[], int]
    transactions: Callable[[], TransactionState]
    schedule: Callable[[], ScheduleState]  # delayed messages and those that come back
    index_lag_bytes: Callable[[], int]  # what of the log is not in the index of keys yet
    begins_recently: Callable[[str, int], bool]  # of a queue, as `StartOffsets` says
    retention_doubt: Callable[[], str]  # why files stay that would go by this machine's clock; "" = none does
    scrub: Callable[[], ScrubState]  # what of this broker's files is damaged
    suspicion: Callable[[], str] = str  # what a start found of the log's end that no crash explains; "" = nothing
    kernel: str | None = None  # where loops over messages run
    client_times: Callable[[], tuple[ClientTimesState, ...]] = tuple  # what clients measured lately
    message_group: Callable[[str, int, int], str] = lambda topic, queue_id, offset: ""  # of the message at that place
    timers: Callable[[], TimerState] = TimerState
    timers_doubt: Callable[[], str] = str  # why they do not go by this machine's clock; "" = they do
    timer_topics: Callable[[], Iterable[TopicTimers]] = tuple  # how many wait, looked at in steps
    tier: Callable[[], TierState | None] = lambda: None
    retention: Callable[[], RetentionState | None] = lambda: None
    tiered_queue: TieredQueue | None = None  # what of a queue is where, with a tier
    gate_waits: Callable[[str], Iterable[GateWait]] = lambda group: ()  # of an ordered group, as `Gate` says


@dataclass(frozen=True, slots=True)
class StateParts:
    """What the document is made of. `log` knows where the local log begins and ends; `wall_ms` is the time of day."""

    cluster: str
    consumption: Consumption
    replica: Callable[[], ReplicaFacts]
    log: CommitLog
    figures: StateFigures
    wall_ms: Callable[[], int]


class StateWalk:
    """One look at all topics and groups in steps, in each of which the rest is as it is then.

    Groups are looked at before topics, so that nobody is seen behind the end of a queue.
    """

    def __init__(self, parts: StateParts, topic_states: TopicStates, group_states: GroupStates) -> None:
        self.topics: list[TopicState] = []
        self.groups: list[GroupState] = []
        self.timer_topics: list[TopicTimers] = []
        self._parts = parts
        self._topic_states = topic_states
        self._group_states = group_states

    def steps(self) -> Iterator[int]:
        """How many queues each step was about."""
        metadata, progress = self._parts.consumption.metadata, self._parts.consumption.progress
        consumed, forbidden = progress.consumed(), metadata.forbidden()
        yield sum(map(len, consumed.values())) // _CHEAP
        for name, group in sorted(metadata.groups().items()):
            self.groups.append(
                (yield from self._group_states.of(group, consumed.get(name, ()), forbidden.get(name, ())))
            )
        yield from self._topics()
        for each in self._parts.figures.timer_topics():
            self.timer_topics.append(each)
            yield _COUNTED_TIMERS

    def _topics(self) -> Iterator[int]:
        parts, epoch = self._parts, self._parts.replica().master_epoch
        # whatever a topic or a queue becomes is a record of the log, or a removal from its other end
        moment = (epoch, parts.log.min_offset, parts.log.end_offset, parts.figures.dispatched_offset())
        if (unchanged := self._topic_states.unchanged(moment)) is not None:
            self.topics.extend(unchanged)
            return
        topics = parts.consumption.metadata.topics()
        for _, topic in sorted(topics.items()):
            self.topics.append(self._topic_states.of(topic, epoch))
            yield 1 + topic.read_queue_nums
        self._topic_states.forget_all_but(topics)
        self._topic_states.remember(self.topics, moment)

    def state(self) -> BrokerState:
        """With what the steps found."""
        parts = self._parts
        replica, figures = parts.replica(), parts.figures
        leading, following = replica.leading, replica.following
        return BrokerState(
            cluster_name=parts.cluster,
            broker_name=parts.consumption.broker_name,
            broker_id=replica.broker_id or 0,
            role=replica.role.value,
            master_epoch=replica.master_epoch,
            sync_state_set=tuple(replica.sync_state_set),
            min_offset=parts.log.min_offset,
            end_offset=parts.log.end_offset,
            flushed_offset=parts.log.flushed_offset,
            confirm_offset=replica.confirm_offset,
            dispatched_offset=figures.dispatched_offset(),
            epochs=tuple(replica.epochs),
            counters=figures.totals(),
            topics=tuple(self.topics),
            groups=tuple(self.groups),
            transactions=figures.transactions(),
            schedule=figures.schedule(),
            timers=replace(figures.timers(), topics=tuple(self.timer_topics)),
            tier=figures.tier(),
            index_lag_bytes=figures.index_lag_bytes(),
            kernel=figures.kernel,
            scrub=figures.scrub(),
            retention=figures.retention(),
            connections=figures.connections(),
            # what is wrong now; what was wrong once and healed is history, in the log
            last_error=replica.failure
            or replica.disk_trouble
            or figures.suspicion()
            or (following and (following.stuck or following.last_error))
            or figures.retention_doubt()
            or figures.timers_doubt()
            or None,
            controllers_error=replica.controllers_error or None,
            stale_view=replica.stale_view or None,
            learner=replica.learner,
            quorum=_dated(leading, parts.wall_ms()) if leading is not None else None,
            weaknesses=tuple(replica.weaknesses),
            # of the connections between brokers how far each replica is, and what does not change from one look to the next
            channel=ChannelState(
                replicas=tuple(each.state for each in leading.replicas) if leading is not None else (),
                following=following.state if following is not None else None,
                refused_peers=replica.refused_peers,
            ),
            loop=replica.loop,
            client_times=figures.client_times(),
        )


class StateProcessor:
    """The handler. Who asks while an answer is made gets the next one, together with all others who do."""

    def __init__(self, parts: StateParts, call_soon: Callable[..., Any]) -> None:
        figures = parts.figures
        self._parts = parts
        self._call_soon = call_soon
        self._topic_states = TopicStates(parts.consumption, figures.begins_recently, figures.tiered_queue)
        self._group_states = GroupStates(parts.consumption, figures.message_group, figures.gate_waits, parts.wall_ms)
        self._waiting: list[tuple[RemotingConnection, Command]] = []
        self._is_answering = False
        self._life = token_hex(8)
        self._told_topics: list[TopicState] = []
        self._changes = 0

    def handle(self, connection: RemotingConnection, request: Command) -> None:
        self._waiting.append((connection, request))
        if not self._is_answering:
            self._answer()

    def walk(self) -> StateWalk:
        return StateWalk(self._parts, self._topic_states, self._group_states)

    # ---- inside

    def _answer(self) -> None:
        self._is_answering = True
        asking, self._waiting = self._waiting, []
        run_in_turns(self._steps(asking), QUEUES_AT_ONCE, self._call_soon)

    def _steps(self, asking: Sequence[tuple[RemotingConnection, Command]]) -> Iterator[int]:
        try:
            walk = self.walk()
            yield from walk.steps()
            version = self._version_of(walk.topics)
            whole = any(request.ext.get(KNOWN_TOPICS) != version for _, request in asking)
            topics = (yield from self._topics(walk)) if whole else []
            groups = yield from _groups(walk)
            state = replace(walk.state(), topics=(), groups=())
            rest = encode_around(state, {"topics": [], "groups": groups})
            document = encode_around(state, {"topics": topics, "groups": groups}) if whole else rest
            for connection, request in asking:
                if request.ext.get(KNOWN_TOPICS) == version:
                    connection.respond(request, ext={TOLD_TOPICS: version, SAME_TOPICS: "true"}, body=rest)
                else:
                    connection.respond(request, ext={TOLD_TOPICS: version}, body=document)
        except LogboomError as error:  # in a later turn nobody else would tell them
            for connection, request in asking:
                connection.respond_error(request, error)
        finally:
            self._is_answering = False
            if self._waiting:
                self._call_soon(self._answer)

    def _version_of(self, topics: list[TopicState]) -> str:
        """A name for just these topics, as they are; another process has others."""
        if topics != self._told_topics:
            self._told_topics = topics
            self._changes += 1
        return f"{self._life}.{self._changes}"

    def _topics(self, walk: StateWalk) -> Generator[int, None, list[bytes]]:
        topics: list[bytes] = []
        for topic in walk.topics:
            topics.append(self._topic_states.encoded(topic))
            yield 1 + len(topic.queues) // _CHEAP
        return topics


def _groups(walk: StateWalk) -> Generator[int, None, list[bytes]]:
    groups: list[bytes] = []
    for group in walk.groups:
        consumed: list[bytes] = []
        for each in group.topics:
            consumed.append(encode_item(each))
            yield 1 + len(each.queues) // _CHEAP
        groups.append(encode_around(replace(group, topics=()), {"topics": consumed}))
        yield 1 + len(group.members)
    return groups


def _dated(leading: LeadingFacts, now_ms: int) -> QuorumState:
    """The quorum with wall times, to the second: two looks at one event shall tell the same."""
    return replace(
        leading.quorum,
        missing=tuple(
            MissingState(
                broker_id=each.broker_id,
                reason=each.reason,
                stalls=each.stalls,
                since_ms=(now_ms - each.for_ms + 500) // 1000 * 1000,
            )
            for each in leading.missing
        ),
    )
