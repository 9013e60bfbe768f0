"""Message groups over two broker groups with the official Python client: one owner at a time, whatever changes meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, eventually
from tests.support.placed_messages import check_turns, stored, wait_for_placement

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
                body = b"customer %d/%d" % (group, numbers[group])
                producer.send(message(body, topic="Orders", message_group=f"customer {group}"))
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


async def test_one_owner_at_a_time_while_queues_and_groups_change_and_a_master_dies(tmp_path: Path, programs) -> None:
    names = ("broker-a", "broker-b")
    with Cluster(tmp_path / "cluster", controllers=1, replicas=2, groups=names) as cluster:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(cluster.admin.create_topic, "Orders", 4, "FIFO", 6, "broker-a")
        await asyncio.to_thread(wait_for_placement, cluster, "Orders", ("broker-a", 4))
        program = await programs(PRODUCER, [cluster.grpc_addresses[0], cluster.grpc_addresses[2]])
        await program.said()
        await asyncio.sleep(1)
        await asyncio.to_thread(cluster.admin.create_topic, "Orders", 8, "FIFO", 6, "broker-a")
        await asyncio.to_thread(wait_for_placement, cluster, "Orders", ("broker-a", 8))
        await asyncio.sleep(1)
        await asyncio.to_thread(cluster.admin.create_topic, "Orders", 8, "FIFO", 6, "broker-b")
        version = await asyncio.to_thread(wait_for_placement, cluster, "Orders", ("broker-a", 8), ("broker-b", 8))
        await asyncio.sleep(2)
        master = await asyncio.to_thread(cluster.master, "broker-b")
        cluster.brokers[master].kill()
        await asyncio.to_thread(eventually, "another master", lambda: cluster.admin.masters().get("broker-b"))
        await asyncio.sleep(4)
        program.tell("stop")
        told = await program.said()
        assert cluster.admin.topic_placement("Orders").active.version == version, "who is down keeps its message groups"
        found = await asyncio.to_thread(stored, cluster, "Orders")
        turns = [check_turns(found[f"customer {group}"], count) for group, count in enumerate(told["numbers"])]
        assert max(turns) > 1
        at_b = [group for group, queues in found.items() if any(name == "broker-b" for name, _ in queues)]
        assert 20 < len(at_b) < 100, "about a half"
        await program.finished()
