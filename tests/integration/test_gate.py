"""Order over two broker groups as a consumer sees it, with the official Python client: what moved waits for what came before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.placed_messages import wait_for_placement

pytestmark = pytest.mark.slow

PRODUCER = """
producer = Producer(configuration, ("Orders",))
producer.startup()
numbers = [0] * 30
while True:
    rounds = int(hear() or 0)
    if not rounds:
        break
    for _ in range(rounds):
        for group in range(30):
            for _ in range(20):
                try:
                    producer.send(message(b"%d" % numbers[group], topic="Orders", message_group=f"customer {group}"))
                    break
                except Exception:
                    pass  # stored or not, it is sent again before the next one
            numbers[group] += 1
    say(numbers=numbers)
producer.shutdown()
"""

CONSUMER = """
lock, finished, early, stopped, progress = threading.Lock(), {}, [], [], [0]

def consume(number):
    consumer = SimpleConsumer(configuration, "billing", {"Orders": FilterExpression()}, await_duration=1)
    consumer.startup()
    while not stopped:
        try:
            received = consumer.receive(16, 20) or ()
        except Exception:
            continue  # a broker is away
        with lock:
            together = {}
            for one in received:
                n, done = int(one.body), finished.setdefault(one.message_group, set())
                before = set(range(n)) - done - together.setdefault(one.message_group, set())
                if before:
                    early.append((one.message_group, n, sorted(before)))
                together[one.message_group].add(n)
        for one in received:
            time.sleep(0.002)
            with lock:  # from now on the next one may come
                finished[one.message_group].add(int(one.body))
                progress[0] = time.monotonic()
            for _ in range(20):
                try:
                    consumer.ack(one)
                    break
                except Exception:
                    time.sleep(0.1)
    consumer.shutdown()

threads = [threading.Thread(target=consume, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
while line := hear():
    # how long it takes is the machine's business; what a client got and did not ack comes again after 20 s
    wanted, progress[0] = json.loads(line), time.monotonic()
    while time.monotonic() < progress[0] + 50 and any(
        finished.get(f"customer {group}") != set(range(count)) for group, count in enumerate(wanted)
    ):
        time.sleep(0.05)
    with lock:
        say(early=early, counts=[len(finished.get(f"customer {group}", ())) for group in range(len(wanted))])
stopped.append(True)
"""


async def test_a_consumer_gets_each_message_group_in_order_while_its_place_changes(tmp_path: Path, programs) -> None:
    with Cluster(tmp_path / "cluster", controllers=1, replicas=1, groups=("broker-a", "broker-b")) as cluster:
        await asyncio.to_thread(cluster.start)
        admin = cluster.admin
        await asyncio.to_thread(admin.create_topic, "Orders", 2, "FIFO", 6, "broker-a")
        await asyncio.to_thread(admin.create_group, "billing", fifo=True)
        await asyncio.to_thread(wait_for_placement, cluster, "Orders", ("broker-a", 2))
        producer = await programs(PRODUCER, cluster.grpc_addresses)
        producer.tell("5")
        await producer.said()
        await asyncio.to_thread(admin.create_topic, "Orders", 4, "FIFO", 6, "broker-a")
        await asyncio.to_thread(wait_for_placement, cluster, "Orders", ("broker-a", 4))
        producer.tell("3")
        await producer.said()
        await asyncio.to_thread(admin.create_topic, "Orders", 4, "FIFO", 6, "broker-b")
        await asyncio.to_thread(wait_for_placement, cluster, "Orders", ("broker-a", 4), ("broker-b", 4))
        producer.tell("5")
        numbers = (await producer.said())["numbers"]
        consumer = await programs(CONSUMER, cluster.grpc_addresses)
        consumer.tell(str(numbers))
        told = await consumer.said(300)
        assert told["early"] == []
        assert told["counts"] == numbers
        # and while both are at work
        producer.tell("8")
        await asyncio.to_thread(admin.create_topic, "Orders", 8, "FIFO", 6, "broker-b")
        await asyncio.to_thread(wait_for_placement, cluster, "Orders", ("broker-a", 4), ("broker-b", 8))
        numbers = (await producer.said())["numbers"]
        consumer.tell(str(numbers))
        told = await consumer.said(300)
        assert told["early"] == []
        assert told["counts"] == numbers
        for program in (producer, consumer):
            program.tell("")
            await program.finished()
