"""BROKER_STATE: everything about this broker that the console shows, as one document; see `remoting.facts.broker_state`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from brokerd.members.consumer_groups import BROADCASTING
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.metadata.consumer_rules import POP
from brokerd.pop.order.gate import GateWait
from brokerd.processors.offsets.consumption import Consumption
from brokerd.replication.facts import LeadingFacts, ReplicaFacts
from brokerd.store.log.commitlog import CommitLog
from remoting.facts.broker_state import (
    BrokerState,
    ChannelState,
    ClientTimesState,
    ConsumedQueueState,
    ConsumedTopicState,
    GateState,
    GroupState,
    MemberState,
    MissingState,
    QueueState,
    QuorumState,
    ScheduleState,
    ScrubState,
    SubscriptionState,
    TimerState,
    TopicState,
    Totals,
    TransactionState,
    WaitingMessageGroup,
)
from remoting.facts.codec import encode
from remoting.frame import Command
from remoting.group_settings import settings_of
from remoting.transport.connection import RemotingConnection

_MAX_WAITING_GROUPS: Final = 20  # told of each queue


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
    gate_waits: Callable[[str], Iterable[GateWait]] = lambda group: ()  # of an ordered group, as `Gate` says


@dataclass(frozen=True, slots=True)
class StateProcessor:
    """The handler. `log` knows where the local log begins and ends; `wall_ms` is the time of day."""

    cluster: str
    consumption: Consumption
    replica: Callable[[], ReplicaFacts]
    log: CommitLog
    figures: StateFigures
    wall_ms: Callable[[], int]

    def handle(self, connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, body=encode(self.state()))

    def state(self) -> BrokerState:
        replica, figures, metadata = self.replica(), self.figures, self.consumption.metadata
        consumed, forbidden = self.consumption.progress.consumed(), metadata.forbidden()
        leading, following = replica.leading, replica.following
        return BrokerState(
            cluster_name=self.cluster,
            broker_name=self.consumption.broker_name,
            broker_id=replica.broker_id or 0,
            role=replica.role.value,
            master_epoch=replica.master_epoch,
            sync_state_set=tuple(replica.sync_state_set),
            min_offset=self.log.min_offset,
            end_offset=self.log.end_offset,
            flushed_offset=self.log.flushed_offset,
            confirm_offset=replica.confirm_offset,
            dispatched_offset=figures.dispatched_offset(),
            epochs=tuple(replica.epochs),
            counters=figures.totals(),
            topics=tuple(self._topic(config) for _, config in sorted(metadata.topics().items())),
            groups=tuple(
                self._group(config, consumed.get(name, ()), forbidden.get(name, ()))
                for name, config in sorted(metadata.groups().items())
            ),
            transactions=figures.transactions(),
            schedule=figures.schedule(),
            timers=figures.timers(),
            index_lag_bytes=figures.index_lag_bytes(),
            kernel=figures.kernel,
            scrub=figures.scrub(),
            connections=figures.connections(),
            # what is wrong now; what was wrong once and healed is history, in the log
            last_error=replica.failure
            or figures.suspicion()
            or (following and (following.stuck or following.last_error))
            or figures.retention_doubt()
            or None,
            controllers_error=replica.controllers_error or None,
            stale_view=replica.stale_view or None,
            learner=replica.learner,
            quorum=_dated(leading, self.wall_ms()) if leading is not None else None,
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

    def _topic(self, config: TopicConfig) -> TopicState:
        return TopicState(
            name=config.name,
            type=config.message_type,
            perm=config.perm,
            read_queues=config.read_queue_nums,
            write_queues=config.write_queue_nums,
            system=self.consumption.metadata.names.is_system_topic(config.name),
            queues=tuple(self._queue(config.name, queue_id) for queue_id in range(config.read_queue_nums)),
        )

    def _queue(self, topic: str, queue_id: int) -> QueueState:
        high = self.consumption.ranges.max_offset(topic, queue_id)
        return QueueState(
            queue_id=queue_id,
            min_offset=self.consumption.ranges.min_offset(topic, queue_id),
            max_offset=high,
            last_store_ms=self.consumption.ranges.store_timestamp(topic, queue_id, high - 1) if high else -1,
            begins_recently=high == 0 or self.figures.begins_recently(topic, queue_id),
        )

    def _group(
        self, config: GroupConfig, consumed: Collection[tuple[str, int]], forbidden: Sequence[str]
    ) -> GroupState:
        name, progress, now_ms = config.name, self.consumption.progress, self.wall_ms()
        topics: dict[str, list[ConsumedQueueState]] = {}
        for topic, queue_id in sorted(consumed):
            queue = ConsumedQueueState(
                queue_id=queue_id,
                consumer_offset=progress.consumer_offset(name, topic, queue_id),
                in_flight=progress.in_flight(name, topic, queue_id),
                coming_back=progress.coming_back(name, topic, queue_id) or None,
                pending_reset=self.consumption.metadata.pending_reset(name, topic, queue_id),
                held_since_ms=progress.held_since_ms(name, topic, queue_id),
                blocked_until_ms=progress.blocked_until_ms(name, topic, queue_id, now_ms),
                waiting_groups=tuple(
                    WaitingMessageGroup(
                        message_group=self.figures.message_group(topic, queue_id, offset),
                        until_ms=until_ms,
                        waiting=waiting,
                    )
                    for offset, until_ms, waiting in islice(
                        progress.waiting_groups(name, topic, queue_id, now_ms), _MAX_WAITING_GROUPS
                    )
                ),
            )
            topics.setdefault(topic, []).append(queue)
        gates = {
            each.topic: GateState(
                version=each.version,
                since_ms=each.since_ms,
                sources=each.sources,
                silent=each.silent,
                queue_ids=each.queue_ids,
            )
            for each in self.figures.gate_waits(name)
        }
        for topic in gates:
            topics.setdefault(topic, [])
        members = self.consumption.clients.members(name)
        return GroupState(
            name=name,
            fifo=config.fifo,
            retry_max_times=config.retry_max_times,
            **settings_of(config.attributes),
            system=self.consumption.metadata.names.is_system_group(name),
            topics=tuple(
                ConsumedTopicState(topic=topic, gate=gates.get(topic), queues=tuple(queues))
                for topic, queues in topics.items()
            ),
            forbidden=tuple(forbidden),
            members=tuple(
                MemberState(
                    client_id=each.client_id, address=each.address, language=each.language, version=each.version
                )
                for each in members
            ),
            subscriptions=self._subscriptions(name),
        )

    def _subscriptions(self, group: str) -> tuple[SubscriptionState, ...]:
        """What those who are connected read together; where everybody gets everything, each keeps its offsets for itself."""
        present = self.consumption.clients.consumer_group(group)
        if present is None or present.message_model == BROADCASTING:
            return ()
        topics = sorted({topic for each in present.members.values() for topic in each.info.subscriptions})
        modes = {topic: self.consumption.metadata.request_mode(group, topic) for topic in topics}
        return tuple(
            SubscriptionState(topic=topic, start=present.start_in(topic, pops=mode is not None and mode.mode == POP))
            for topic, mode in modes.items()
        )


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
