"""What BROKER_STATE tells of consumer groups: how far they are, who waits for whom, and who is connected."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import Final

from brokerd.members.consumer_groups import BROADCASTING
from brokerd.metadata.configs import GroupConfig
from brokerd.metadata.consumer_rules import POP
from brokerd.pop.order.gate import GateWait
from brokerd.processors.offsets.consumption import Consumption
from remoting.facts.broker_state import (
    ConsumedQueueState,
    ConsumedTopicState,
    GateState,
    GroupState,
    MemberState,
    SubscriptionState,
    WaitingMessageGroup,
)
from remoting.group_settings import settings_of

_MAX_WAITING_GROUPS: Final = 20  # told of each queue


@dataclass(frozen=True, slots=True)
class GroupStates:
    """`message_group(topic, queue, offset)` is that of the message at that place, `gate_waits` are an ordered group's."""

    consumption: Consumption
    message_group: Callable[[str, int, int], str]
    gate_waits: Callable[[str], Iterable[GateWait]]
    wall_ms: Callable[[], int]

    def of(
        self, config: GroupConfig, consumed: Collection[tuple[str, int]], forbidden: Sequence[str]
    ) -> Generator[int, None, GroupState]:
        """The group as it is now, in steps of so many queues each."""
        name = config.name
        topics: dict[str, tuple[ConsumedQueueState, ...]] = {}
        for topic, queues in groupby(sorted(consumed), itemgetter(0)):
            topics[topic] = tuple(self._queue(name, topic, queue_id) for _, queue_id in queues)
            yield 1 + len(topics[topic])
        gates = {
            each.topic: GateState(
                version=each.version,
                since_ms=each.since_ms,
                sources=each.sources,
                silent=each.silent,
                queue_ids=each.queue_ids,
            )
            for each in self.gate_waits(name)
        }
        for topic in gates:
            topics.setdefault(topic, ())
        members = self.consumption.clients.members(name)
        yield 1 + len(members)
        return GroupState(
            name=name,
            fifo=config.fifo,
            retry_max_times=config.retry_max_times,
            **settings_of(config.attributes),
            system=self.consumption.metadata.names.is_system_group(name),
            topics=tuple(
                ConsumedTopicState(topic=topic, gate=gates.get(topic), queues=queues)
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

    def _queue(self, group: str, topic: str, queue_id: int) -> ConsumedQueueState:
        progress, now_ms = self.consumption.progress, self.wall_ms()
        consumer_offset = progress.consumer_offset(group, topic, queue_id)
        pending_reset = self.consumption.metadata.pending_reset(group, topic, queue_id)
        if not progress.is_popped(group, topic, queue_id):
            return ConsumedQueueState(
                queue_id=queue_id, consumer_offset=consumer_offset, in_flight=0, pending_reset=pending_reset
            )
        waiting = progress.waiting_groups(group, topic, queue_id, now_ms)
        return ConsumedQueueState(
            queue_id=queue_id,
            consumer_offset=consumer_offset,
            in_flight=progress.in_flight(group, topic, queue_id),
            coming_back=progress.coming_back(group, topic, queue_id) or None,
            pending_reset=pending_reset,
            held_since_ms=progress.held_since_ms(group, topic, queue_id),
            blocked_until_ms=progress.blocked_until_ms(group, topic, queue_id, now_ms),
            waiting_groups=tuple(
                WaitingMessageGroup(
                    message_group=self.message_group(topic, queue_id, offset), until_ms=until_ms, waiting=count
                )
                for offset, until_ms, count in islice(waiting, _MAX_WAITING_GROUPS)
            ),
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
