"""What the report reads: the messages of topics that were stored in the time range, and all that the timer topic keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remoting import codes
from remoting.errors import RequestError
from remoting.facts.broker_state import BrokerState
from remoting.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, TIMER_TOPIC
from tasks.reports.reading import is_trimmed, ranges_of, window
from tasks.reports.timers.summary import Coverage
from tasks.spark.cluster import Cluster
from tasks.spark.planning import QueueRange


@dataclass(frozen=True, slots=True)
class Found:
    """Where to read, what that covers, and what each broker group's master says of itself."""

    messages: Sequence[QueueRange]
    timers: Sequence[QueueRange]
    coverage: Coverage
    states: Mapping[str, BrokerState]


def find(controllers: Sequence[str], parameters: Mapping[str, Any], as_of_ms: int) -> Found:
    """What the parameters mean now. Raises RequestError when a topic does not exist."""
    start_ms, end_ms = (max(0, each) for each in window(parameters, as_of_ms))
    with Cluster(controllers) as cluster:
        silent = cluster.wait_for_masters()
        states = dict(cluster.states())
        chosen = list(parameters.get("topics") or ())
        # copies of messages keep their properties, and are no deliveries of timers
        topics = [each for each in chosen or cluster.user_topics() if not is_copies(each)]
        messages = ranges_of(cluster, controllers, topics, start_ms, end_ms) if topics else []
        timers = _timers(cluster, controllers, end_ms) if topics else []
        queues = [
            (topic, broker_name, queue_id)
            for topic in topics
            for broker_name, count in cluster.queues(topic).items()
            for queue_id in range(count)
        ]
        trimmed = [each for each in queues if is_trimmed(cluster, *each, start_ms)]
        coverage = Coverage(
            start_ms=start_ms,
            end_ms=end_ms,
            topics=topics,
            queues=len(queues),
            trimmed_queues=len(trimmed),
            whole_from_ms=_whole_from(cluster, trimmed, states, start_ms, end_ms),
            silent_groups=silent,
            known_topics=frozenset(each.name for state in states.values() for each in state.topics),
        )
    return Found(messages, timers, coverage, states)


def is_copies(topic: str) -> bool:
    """Whether a topic has messages of others once more: those that come again to a group, or were given to it too often."""
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def _timers(cluster: Cluster, controllers: Sequence[str], end_ms: int) -> list[QueueRange]:
    try:
        return ranges_of(cluster, controllers, [TIMER_TOPIC], 0, end_ms)
    except RequestError as error:
        if error.code != codes.TOPIC_NOT_EXIST:
            raise
        return []  # brokers of a version without timers


def _whole_from(
    cluster: Cluster,
    trimmed: Sequence[tuple[str, str, int]],
    states: Mapping[str, BrokerState],
    start_ms: int,
    end_ms: int,
) -> dict[str, int]:
    """From when on all messages of a broker group are there. Retention removes files of its log, so what was stored after the
    oldest message of any queue is there in all of them."""
    oldest_ms: dict[str, int] = {}
    for topic, broker_name, queue_id in trimmed:
        stored_ms = _oldest_ms(cluster, topic, broker_name, queue_id)
        oldest_ms[broker_name] = min(oldest_ms.get(broker_name, end_ms), end_ms if stored_ms < 0 else stored_ms)
    return {name: max(start_ms, oldest_ms.get(name, start_ms)) for name in states}


def _oldest_ms(cluster: Cluster, topic: str, broker_name: str, queue_id: int) -> int:
    """When the queue's oldest message was stored; -1 without one."""
    where = {"topic": topic, "queueId": str(queue_id)}
    return cluster.ask_master(
        topic,
        broker_name,
        lambda master: int(master.call(codes.GET_EARLIEST_MSG_STORETIME, where).ext["timestamp"]),
    )
