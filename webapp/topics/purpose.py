"""What a topic is for, as sentences for people: what its type means, and what the cluster's own topics hold (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from remoting.facts.snapshot import Topic
from remoting.facts.words import TopicKind
from remoting.names import (
    group_of_dead_letter_topic,
    group_of_retry_topic,
    is_dead_letter_topic,
    is_retry_topic,
    origin_of_retry_topic,
)

DELAYED = "SCHEDULE_TOPIC_XXXX"
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"

_OF_TYPE = {
    "FIFO": "Ordered: messages of one message group go to one queue, and consumers get them one after the other.",
    "DELAY": "Delayed: a message names when it is to be delivered, and waits outside this topic until then.",
    "TRANSACTION": "Transactional: a message waits outside this topic until its producer commits it.",
}
_OF_SYSTEM = {
    DELAYED: "Delayed messages wait here, a queue for each delay level, and are delivered to their own topic when they "
    "are due. Messages that consumers gave back wait here, too. A message that was delivered stays until its file goes.",
    HALF: "Transactional messages wait here until their producer commits them or rolls them back. Those that are decided "
    "stay until their file goes.",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": "The decisions of transactions: each record names messages of "
    f"{HALF} that were committed, rolled back or given up.",
    GIVEN_UP: "Transactional messages that were given up, because their producer did not decide after all checks. "
    "Nobody consumes them: look at each, and commit it or roll it back by hand. That is a message here as well.",
    "TBW102": "The model of topics that are made by sending to them: they get its permissions and at most its queues.",
    "RMQ_SYS_TRACE_TOPIC": "Traces that clients send about their own messages, when they are told to.",
    "rmq_sys_logboom_metadata": "The journal of topics, groups, offsets and settings. The brokers' tables are made from it.",
    "rmq_sys_logboom_pop": "The journal of messages that were popped and acknowledged. What is in flight is made from it.",
    "rmq_sys_logboom_tiers": "The journal of what is in the tier: every replica knows from it which messages are where.",
    "rmq_sys_logboom_watermark": "How far the log was acknowledged, about once a second while messages come. A start that finds "
    "the log damaged reads it.",
}


def purpose(topic: Topic) -> str | None:
    """The sentences about a topic of the snapshot; None for an ordinary one."""
    name = topic.name
    if is_retry_topic(name):
        origin = origin_of_retry_topic(name)
        what = f"Messages of {origin}" if origin else "Messages"
        group = group_of_retry_topic(name)
        return f"{what} that the consumer group {group} gave back or did not acknowledge in time; it gets them again."
    if is_dead_letter_topic(name):
        group = group_of_dead_letter_topic(name)
        return (
            f"Messages that the consumer group {group} did not handle in all its attempts. They stay here until "
            "somebody looks at them, or until their file goes."
        )
    return _OF_SYSTEM.get(name) or _OF_TYPE.get(topic.type)


class OfKind(Protocol):
    """A topic, or the row of a list that shows one."""

    @property
    def kind(self) -> TopicKind: ...


Row = TypeVar("Row", bound=OfKind)


def in_order(topics: Iterable[Row]) -> list[Row]:
    """People's own topics first, then what came with consumer groups, then the system's; those of a kind stay as they are."""
    order = list(TopicKind)
    return sorted(topics, key=lambda topic: order.index(topic.kind))
