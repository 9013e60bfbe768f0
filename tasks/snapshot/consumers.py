"""Consumer groups: how far each is in its queues, what holds it up, and who is connected (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from remoting.facts.broker_state import ConsumedQueueState, GroupState, MemberState
from remoting.facts.snapshot import ConsumedQueue, ConsumedTopic, ConsumerGroup, Member
from tasks.snapshot.inputs import Look, known, shown
from tasks.snapshot.traffic import Speakers

_FIRST_RELEASE, _LAST_RELEASE = 212, 611
"""Clients number their version: two for each release from 4.0.0 to 5.9.9, of which the first is its snapshot."""


def consumer_groups(look: Look, speaking: Speakers) -> list[ConsumerGroup]:
    """Every consumer group with its lag per topic and queue, and the consumers connected to any broker."""
    told: dict[str, list[tuple[str, GroupState]]] = {}
    for broker_group, state in speaking.states.items():
        for each in state.groups:
            # the protocol's own are left out while nobody uses them
            if not each.system or each.topics or each.members:
                told.setdefault(each.name, []).append((broker_group, each))
    extents, members = _extents(speaking), _members(look)
    return [_group(told[name], members[name], extents) for name in sorted(told)]


Extents = Mapping[
    tuple[str, str, int], tuple[int | None, int | None]
]  # (topic, broker group, queue) -> (min, max offset)


def _extents(speaking: Speakers) -> Extents:
    return {
        (topic.name, group, queue.queue_id): (known(queue.min_offset), known(queue.max_offset))
        for group, state in speaking.states.items()
        for topic in state.topics
        for queue in topic.queues
    }


def _group(
    told: Sequence[tuple[str, GroupState]], members: Mapping[str, MemberState], extents: Extents
) -> ConsumerGroup:
    """One consumer group by the words of all broker groups; of its configuration the first one's."""
    queues: dict[str, list[ConsumedQueue]] = {}
    for broker_group, state in told:
        for topic in state.topics:
            queues.setdefault(topic.topic, []).extend(
                _consumed(broker_group, queue, extents.get((topic.topic, broker_group, queue.queue_id)))
                for queue in topic.queues
            )
    topics = tuple(_topic(name, queues[name]) for name in sorted(queues))
    first = told[0][1]
    return ConsumerGroup(
        name=first.name,
        fifo=first.fifo,
        retry_max_times=known(first.retry_max_times),
        topics=topics,
        forbidden=tuple(sorted({topic for _, state in told for topic in state.forbidden})),
        members=tuple(shown(Member, each, version=version_text(each.version)) for _, each in sorted(members.items())),
        lag=_sum(topic.lag for topic in topics),
        in_flight=_sum(topic.in_flight for topic in topics),
    )


def _topic(name: str, queues: Sequence[ConsumedQueue]) -> ConsumedTopic:
    return ConsumedTopic(
        topic=name,
        lag=_sum(queue.lag for queue in queues),
        in_flight=_sum(queue.in_flight for queue in queues),
        queues=tuple(sorted(queues, key=lambda queue: (queue.group, queue.queue_id))),
    )


def _consumed(
    broker_group: str, queue: ConsumedQueueState, extent: tuple[int | None, int | None] | None
) -> ConsumedQueue:
    low, high = extent or (None, None)
    consumer_offset = known(queue.consumer_offset)
    lag: int | None = None
    if high is not None and consumer_offset is not None:
        lag = max(0, high - max(consumer_offset, low or 0))
    elif high is not None and low == high:
        lag = 0  # nothing committed, but nothing to consume either
    return ConsumedQueue(
        group=broker_group,
        queue_id=queue.queue_id,
        consumer_offset=consumer_offset,
        max_offset=high,
        lag=lag,
        in_flight=known(queue.in_flight),
        pending_reset=known(queue.pending_reset),
    )


def _members(look: Look) -> Mapping[str, Mapping[str, MemberState]]:
    """Consumer group -> client id -> the consumer, over all brokers."""
    found: dict[str, dict[str, MemberState]] = {}
    for state in look.states.values():
        for group in state.groups:
            found.setdefault(group.name, {}).update((each.client_id, each) for each in group.members)
    return found


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


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
