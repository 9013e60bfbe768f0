"""What a consumer group has still to receive of a queue: the one rule of console, REST and metrics (pure)

A group that has an offset in a queue goes on there. One that has none starts where its consumers let it, and its lag counts from
there. What nobody can know now is None, and a sum that lacks such a part is a least value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from remoting.facts.broker_state import BrokerState, QueueState, SubscriptionState
from remoting.facts.words import GroupStart
from remoting.names import group_of_retry_topic


class Extent(NamedTuple):
    """What of a queue is there; None = not known. `begins_recently`: from its first message on, and that one is recent. What is
    before `local_low` is in the tier; None = nothing is."""

    low: int | None = None
    high: int | None = None
    begins_recently: bool | None = None
    local_low: int | None = None


class Lag(NamedTuple):
    """A sum over queues. `at_least`: a part of it is not known."""

    messages: int | None
    at_least: bool


class TopicLag(NamedTuple):
    """What a group has still to receive of a topic's queues on one broker."""

    group: str
    topic: str
    lag: Lag


def extent_of(queue: QueueState) -> Extent:
    local_low = queue.tier.local_min_offset if queue.tier is not None else None
    return Extent(_known(queue.min_offset), _known(queue.max_offset), queue.begins_recently, local_low)


def start_offset(start: GroupStart, extent: Extent) -> int | None:
    """Where a group without an offset begins to receive a queue; None when that is not known."""
    low, high = extent.low, extent.high
    if low is None or high is None:
        return None
    if low == high or start is GroupStart.FIRST or extent.begins_recently:
        return low  # whoever asks for the end gets a young queue from its first message all the same
    if extent.begins_recently is None or start is GroupStart.UNKNOWN:
        return None
    return high if start is GroupStart.END else max(low, high - 1)


def queue_lag(consumer_offset: int | None, start: GroupStart, extent: Extent) -> int | None:
    """The messages that the group has still to receive; `consumer_offset` None = it has none and will begin at its start."""
    begin = consumer_offset if consumer_offset is not None else start_offset(start, extent)
    if begin is None or extent.high is None:
        return None
    return max(0, extent.high - max(begin, extent.low or 0))


def cold_part(consumer_offset: int | None, start: GroupStart, extent: Extent) -> int | None:
    """How many messages of that lag come from the tier; None = not known. Some of them may be missing there."""
    if extent.local_low is None:
        return 0
    cold = extent._replace(high=min(extent.local_low, extent.high)) if extent.high is not None else extent
    begin = consumer_offset if consumer_offset is not None else start_offset(start, extent)
    return queue_lag(begin, start, cold) if begin is not None else None


def total(lags: Iterable[int | None]) -> Lag:
    """The sum of what is known; None when nothing is."""
    counted = list(lags)
    known = [each for each in counted if each is not None]
    return Lag(sum(known) if known else None, len(known) < len(counted))


def start_in(group: str, topic: str, starts: Iterable[GroupStart]) -> GroupStart:
    """Where a group starts in a topic by the words of all brokers; its returned messages it gets from the first one."""
    if group_of_retry_topic(topic) == group:
        return GroupStart.FIRST
    told = set(starts)
    return told.pop() if len(told) == 1 else GroupStart.UNKNOWN


def starts_of(subscriptions: Iterable[SubscriptionState]) -> dict[str, list[GroupStart]]:
    """Topic -> what was told of it."""
    found: dict[str, list[GroupStart]] = {}
    for each in subscriptions:
        found.setdefault(each.topic, []).append(each.start)
    return found


def topic_lags(state: BrokerState) -> Iterator[TopicLag]:
    """Every group's lag in the topics that it subscribes to or has an offset in, by the word of one broker alone."""
    extents = {each.name: {queue.queue_id: extent_of(queue) for queue in each.queues} for each in state.topics}
    returns: dict[str | None, list[str]] = {}
    for name in extents:
        returns.setdefault(group_of_retry_topic(name), []).append(name)
    for group in state.groups:
        starts = starts_of(group.subscriptions)
        offsets = {
            each.topic: {queue.queue_id: _known(queue.consumer_offset) for queue in each.queues}
            for each in group.topics
        }
        for topic in sorted({*starts, *offsets, *returns.get(group.name, ())}.intersection(extents)):
            start, reached = start_in(group.name, topic, starts.get(topic, ())), offsets.get(topic, {})
            lags = (queue_lag(reached.get(each), start, extent) for each, extent in extents[topic].items())
            yield TopicLag(group.name, topic, total(lags))


def _known(value: int | None) -> int | None:
    return value if value is not None and value >= 0 else None
