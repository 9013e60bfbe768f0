"""Where a topic's message groups are placed, and what lies there when they moved."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tests.support.cluster import Cluster, eventually

Stored = Mapping[
    str, Mapping[tuple[str, int], Sequence[int]]
]  # by key and queue, the numbers in the order of the queue


def wait_for_placement(cluster: Cluster, topic: str, *shares: tuple[str, int]) -> int:
    """Until this is in force; its version."""

    def found() -> int | None:
        present = cluster.admin.topic_placement(topic)
        if present is None or present.active is None or present.proposed is not None:
            return None
        if [(each.broker_name, each.queues) for each in present.active.shares] != list(shares):
            return None
        return present.active.version

    return eventually(f"the placement {shares}", found, 40)


def stored(cluster: Cluster, topic: str) -> Stored:
    """Everything in the topic, whose bodies are KEY/NUMBER."""
    found: dict[str, dict[tuple[str, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for queue in cluster.admin.queue_offsets(topic):
        offset = queue.min_offset
        while offset < queue.max_offset:
            page = cluster.admin.pull(topic, queue.group, queue.queue_id, offset)
            for record in page.records:
                key, _, number = record.body.decode().rpartition("/")
                found[key][queue.group, queue.queue_id].append(int(number))
            offset = page.next_offset
    return found


def check_turns(queues: Mapping[tuple[str, int], Sequence[int]], count: int) -> int:
    """Nothing lost, and each queue had its turn: whatever was stored later is nowhere before. How many queues there were."""
    spans = sorted((min(numbers), max(numbers), numbers) for numbers in queues.values())
    for _, _, numbers in spans:
        assert numbers == sorted(numbers), f"out of order in one queue: {numbers}"
    for (_, last, _), (first, _, _) in itertools.pairwise(spans):
        assert last <= first, f"two owners at one time: {queues}"
    assert {number for _, _, numbers in spans for number in numbers} >= set(range(count))
    return len(spans)
