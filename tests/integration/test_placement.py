"""Message groups over two broker groups with the official Python client: one owner at a time, whatever changes meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from pathlib import Path

import pytest

from remoting.message_groups import SHARDING_KEY
from remoting.record.properties import decode_properties
from tests.support.cluster import Cluster, eventually

pytestmark = pytest.mark.slow

PRODUCER = """
producer = Producer(configuration, ("Orders",))
producer.startup()
stopped = []
threading.Thread(target=lambda: stopped.append(hear()), daemon=True).start()
numbers, failed = [0] * 120, 0

def send_all(own):
    global failed
    while not stopped:
        for group in own:
            try:
                producer.send(message(b"%d" % numbers[group], topic="Orders", message_group=f"customer {group}"))
                numbers[group] += 1
            except Exception:
                failed += 1  # sent again: stored or not, it comes before the next one
            if stopped:
                return

threads = [threading.Thread(target=send_all, args=(range(part, 120, 4),)) for part in range(4)]
for thread in threads:
    thread.start()
say(started=True)
for thread in threads:
    thread.join()
say(numbers=numbers, failed=failed)
producer.shutdown()
"""


def wait_for_placement(cluster: Cluster, *shares: tuple[str, int]) -> int:
    """Until this is in force; its version."""

    def found() -> int | None:
        present = cluster.admin.topic_placement("Orders")
        if present is None or present.active is None or present.proposed is not None:
            return None
        if [(each.broker_name, each.queues) for each in present.active.shares] != list(shares):
            return None
        return present.active.version

    return eventually(f"the placement {shares}", found, 40)


def stored(cluster: Cluster) -> dict[str, dict[tuple[str, int], list[int]]]:
    """By message group and queue, the numbers in the order of the queue."""
    found: dict[str, dict[tuple[str, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for queue in cluster.admin.queue_offsets("Orders"):
        offset = queue.min_offset
        while offset < queue.max_offset:
            page = cluster.admin.pull("Orders", queue.group, queue.queue_id, offset)
            for record in page.records:
                group = decode_properties(record.properties)[SHARDING_KEY]
                found[group][queue.group, queue.queue_id].append(int(record.body))
            offset = page.next_offset
    return found


def check(queues: dict[tuple[str, int], list[int]], count: int) -> int:
    """Nothing lost, and each queue had its turn: whatever was stored later is nowhere before. How many queues there were."""
    spans = sorted((min(numbers), max(numbers), numbers) for numbers in queues.values())
    for _, _, numbers in spans:
        assert numbers == sorted(numbers), f"out of order in one queue: {numbers}"
    for (_, last, _), (first, _, _) in itertools.pairwise(spans):
        assert last <= first, f"two owners at one time: {queues}"
    assert {number for _, _, numbers in spans for number in numbers} >= set(range(count))
    return len(spans)


async def test_one_owner_at_a_time_while_queues_and_groups_change_and_a_master_dies(tmp_path: Path, programs) -> None:
    names = ("broker-a", "broker-b")
    with Cluster(tmp_path / "cluster", controllers=1, replicas=2, groups=names) as cluster:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(cluster.admin.create_topic, "Orders", 4, "FIFO", 6, "broker-a")
        await asyncio.to_thread(wait_for_placement, cluster, ("broker-a", 4))
        program = await programs(PRODUCER, [cluster.grpc_addresses[0], cluster.grpc_addresses[2]])
        await program.said()
        await asyncio.sleep(1)
        await asyncio.to_thread(cluster.admin.create_topic, "Orders", 8, "FIFO", 6, "broker-a")
        await asyncio.to_thread(wait_for_placement, cluster, ("broker-a", 8))
        await asyncio.sleep(1)
        await asyncio.to_thread(cluster.admin.create_topic, "Orders", 8, "FIFO", 6, "broker-b")
        version = await asyncio.to_thread(wait_for_placement, cluster, ("broker-a", 8), ("broker-b", 8))
        await asyncio.sleep(2)
        master = await asyncio.to_thread(cluster.master, "broker-b")
        cluster.brokers[master].kill()
        await asyncio.to_thread(eventually, "another master", lambda: cluster.admin.masters().get("broker-b"))
        await asyncio.sleep(4)
        program.tell("stop")
        told = await program.said()
        assert cluster.admin.topic_placement("Orders").active.version == version, "who is down keeps its message groups"
        found = await asyncio.to_thread(stored, cluster)
        turns = [check(found[f"customer {group}"], count) for group, count in enumerate(told["numbers"])]
        assert max(turns) > 1
        at_b = [group for group, queues in found.items() if any(name == "broker-b" for name, _ in queues)]
        assert 20 < len(at_b) < 100, "about a half"
        await program.finished()
