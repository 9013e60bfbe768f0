"""What the report reads: which queues, and which offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.reports.reading import is_trimmed, ranges_of, window
from tasks.reports.throughput.summary import Coverage
from tasks.spark.cluster import Cluster
from tasks.spark.planning import QueueRange


def find(controllers: Sequence[str], parameters: Mapping[str, Any], as_of_ms: int) -> tuple[list[QueueRange], Coverage]:
    """The ranges of queue offsets that the parameters mean, and what they cover. Raises RequestError when a topic does not
    exist.
    """
    start_ms, end_ms = (max(0, each) for each in window(parameters, as_of_ms))
    with Cluster(controllers) as cluster:
        silent = cluster.wait_for_masters()
        topics = list(parameters.get("topics") or ()) or cluster.user_topics()
        if not topics:
            return [], Coverage(start_ms, end_ms, topics, 0, 0, silent)
        ranges = ranges_of(cluster, controllers, topics, start_ms, end_ms)
        queues = [
            (topic, broker_name, queue_id)
            for topic in topics
            for broker_name, count in cluster.queues(topic).items()
            for queue_id in range(count)
        ]
        trimmed = sum(is_trimmed(cluster, *each, start_ms) for each in queues)
    return ranges, Coverage(start_ms, end_ms, topics, len(queues), trimmed, silent)
