"""Consumer groups: how far each is in its queues, what holds it up, and who is connected (pure)"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from remoting.facts.broker_state import ConsumedQueueState, GroupState, MemberState, SubscriptionState
from remoting.facts.lag import Extent, cold_part, extent_of, queue_lag, start_in, start_offset, starts_of, total
from remoting.facts.snapshot import (
    ClusterSnapshot,
    ConsumedQueue,
    ConsumedTopic,
    ConsumedTopicGate,
    ConsumerGroup,
    Topic,
)
from remoting.facts.words import GroupStart
from remoting.names import group_of_retry_topic
from tasks.snapshot.inputs import Look, known
from tasks.snapshot.traffic import Speakers

_FIRST_RELEASE, _LAST_RELEASE = 212, 611
"""Clients number their version: two for each release from 4.0.0 to 5.9.9, of which the first is its snapshot."""


def consumer_groups(
    look: Look, speaking: Speakers, topics: Sequence[Topic], previous: ClusterSnapshot | None
) -> list[ConsumerGroup]:
    """Every consumer group with its lag per topic and queue, and the consumers connected to any broker.

    Of a topic that a group subscribes to, or has an offset in on any broker, all queues count, on all brokers. What only brokers
    knew of which none answers is there as before, with unknown lag.
    """
    told: dict[str, list[tuple[str, GroupState]]] = {}
    for broker_group, state in speaking.states.items():
        for each in state.groups:
            # the protocol's own are left out while nobody uses them
            if not each.system or each.topics or each.members:
                told.setdefault(each.name, []).append((broker_group, each))
    queues, clients, unheard = _Queues(speaking, topics), _clients(look), _unheard(speaking, previous)
    return [
        _group(told.get(name, ()), unheard.get(name), clients.get(name, _NOBODY), queues)
        for name in sorted(told.keys() | unheard.keys())
    ]


# ---- what there is to consume


Place = tuple[str, int]  # broker group, queue


class _Queues:
    """The queues of all topics, looked at when a group needs them: most topics are consumed by few groups, or none.

    `returns`: consumer group -> its retry topics. `by_master`: broker groups whose master speaks.
    """

    def __init__(self, speaking: Speakers, topics: Sequence[Topic]) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._told = {group: {topic.name: topic for topic in state.topics} for group, state in speaking.states.items()}
        self._extents: dict[str, Mapping[Place, Extent]] = {}
        self.returns: dict[str | None, list[str]] = {}
        for name in self._topics:
            self.returns.setdefault(group_of_retry_topic(name), []).append(name)
        self.by_master: Collection[str] = speaking.states.keys() - speaking.without_master
        self.some_silent = bool(speaking.silent)

    @property
    def names(self) -> Set[str]:
        """Of all topics."""
        return self._topics.keys()

    def extents(self, name: str) -> Mapping[Place, Extent]:
        """What is in the queues of a topic; nothing of one that is not there."""
        topic = self._topics.get(name)
        if topic is None:
            return {}
        if name not in self._extents:
            told = {
                (group, queue.queue_id): extent_of(queue)
                for group, states in self._told.items()
                if name in states
                for queue in states[name].queues
            }
            places = ((queue.group, queue.queue_id) for queue in topic.queues)
            self._extents[name] = {place: told.get(place, Extent()) for place in places}
        return self._extents[name]


# ---- groups


def _group(
    told: Sequence[tuple[str, GroupState]], unheard: ConsumerGroup | None, clients: _Clients, queues: _Queues
) -> ConsumerGroup:
    """One consumer group by the words of all broker groups; of its configuration the first one's."""
    consumed: dict[str, dict[Place, ConsumedQueueState]] = {}
    gates: dict[str, list[ConsumedTopicGate]] = {}
    for broker_group, state in told:
        for topic in state.topics:
            consumed.setdefault(topic.topic, {}).update(
                ((broker_group, queue.queue_id), queue) for queue in topic.queues
            )
            if topic.gate is not None:
                gates.setdefault(topic.topic, []).append(ConsumedTopicGate(group=broker_group, gate=topic.gate))
    group = unheard if not told else _configured(told[0][1])
    assert group is not None
    starts = starts_of(clients.subscriptions)
    before = {each.topic for each in unheard.topics} if unheard is not None else ()
    present = {*starts, *before, *queues.returns.get(group.name, ())} & queues.names
    topics = tuple(
        replace(
            _topic(name, consumed.get(name, {}), start_in(group.name, name, starts.get(name, ())), queues),
            gates=tuple(gates.get(name, ())),
        )
        for name in sorted(present | consumed.keys())
    )
    return replace(
        group,
        topics=topics,
        forbidden=tuple(sorted({topic for _, state in told for topic in state.forbidden})),
        members=tuple(replace(each, version=version_text(each.version)) for _, each in sorted(clients.members.items())),
        lag=total(topic.lag for topic in topics if topic.queues).messages,
        lag_at_least=queues.some_silent or any(topic.lag_at_least for topic in topics),
        in_flight=total(topic.in_flight for topic in topics).messages,
    )


def _configured(told: GroupState) -> ConsumerGroup:
    return ConsumerGroup(
        name=told.name,
        fifo=told.fifo,
        order_scope=told.order_scope,
        invisible_min_ms=told.invisible_min_ms,
        invisible_max_ms=told.invisible_max_ms,
        invisible_default_ms=told.invisible_default_ms,
        retry_max_times=known(told.retry_max_times),
    )


def _topic(
    name: str, consumed: Mapping[Place, ConsumedQueueState], start: GroupStart, queues: _Queues
) -> ConsumedTopic:
    extents = queues.extents(name)
    found = tuple(
        _queue(place, consumed.get(place), extents.get(place), start)
        for place in sorted(extents.keys() | consumed.keys())
    )
    lag = total(queue.lag for queue in found)
    return ConsumedTopic(
        topic=name,
        lag=lag.messages,
        lag_at_least=lag.at_least
        or queues.some_silent
        or any(broker_group not in queues.by_master for broker_group, _ in extents),
        in_flight=total(queue.in_flight for queue in found).messages,
        queues=found,
    )


def _queue(place: Place, told: ConsumedQueueState | None, extent: Extent | None, start: GroupStart) -> ConsumedQueue:
    """Of a queue that is not read any more, which has no `extent`, there is nothing to receive."""
    broker_group, queue_id = place
    consumer_offset = known(told.consumer_offset) if told is not None else None
    return ConsumedQueue(
        group=broker_group,
        queue_id=queue_id,
        consumer_offset=consumer_offset,
        start_offset=start_offset(start, extent) if consumer_offset is None and extent is not None else None,
        max_offset=extent.high if extent is not None else None,
        lag=queue_lag(consumer_offset, start, extent) if extent is not None else 0,
        in_flight=known(told.in_flight) if told is not None else None,
        coming_back=told.coming_back if told is not None else None,
        pending_reset=known(told.pending_reset) if told is not None else None,
        held_since_ms=told.held_since_ms if told is not None else None,
        blocked_until_ms=told.blocked_until_ms if told is not None else None,
        waiting_groups=told.waiting_groups if told is not None else (),
        cold=cold_part(consumer_offset, start, extent) if extent is not None else 0,
    )


def _unheard(speaking: Speakers, previous: ClusterSnapshot | None) -> Mapping[str, ConsumerGroup]:
    """Groups that were in queues of which nobody speaks now, as they were there."""
    found = {}
    for group in previous.consumer_groups if previous is not None and speaking.silent else ():
        topics = tuple(topic for topic in group.topics if any(queue.group in speaking.silent for queue in topic.queues))
        if topics:
            found[group.name] = replace(group, topics=topics)
    return found


# ---- clients


class _Clients(NamedTuple):
    """Who is connected to any broker: the consumers by client id, and what they subscribe to by each broker's word."""

    members: Mapping[str, MemberState]
    subscriptions: Sequence[SubscriptionState]


_NOBODY = _Clients({}, ())


def _clients(look: Look) -> Mapping[str, _Clients]:
    """The clients of each consumer group."""
    members: dict[str, dict[str, MemberState]] = {}
    subscriptions: dict[str, list[SubscriptionState]] = {}
    for state in look.states.values():
        for group in state.groups:
            members.setdefault(group.name, {}).update((each.client_id, each) for each in group.members)
            subscriptions.setdefault(group.name, []).extend(group.subscriptions)
    return {name: _Clients(found, subscriptions[name]) for name, found in members.items()}


def version_text(told: str | None) -> str | None:
    """A client's version as people write it: its protocol numbers the releases, or has the text already."""
    if not told:
        return None
    number = int(told) if told.isdecimal() and len(told) < 10 else 0
    if not _FIRST_RELEASE <= number <= _LAST_RELEASE:
        return told
    release, is_final = divmod(number - _FIRST_RELEASE, 2)
    major, rest = divmod(release, 100)
    return f"{4 + major}.{rest // 10}.{rest % 10}{'' if is_final else '-SNAPSHOT'}"
