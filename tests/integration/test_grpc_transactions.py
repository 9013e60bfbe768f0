"""Transactions of the official Python client on real brokers: ended by itself, by the answer to a check, and through the loss of
the master, by a producer that is connected to a replica only."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.test_transactions import open_transactions
from tests.support.cluster import Cluster, eventually

pytestmark = pytest.mark.slow

TOPIC = "Orders"

PROGRAM = """
from rocketmq import TransactionChecker, TransactionResolution

UNKNOWN = TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
asked = []

class Checker(TransactionChecker):
    def check(self, one):
        body = one.body.decode()
        assert not one.corrupted and one.tag == "t" and one.topic == "Orders", body
        asked.append(body)
        decision = body.split("-")[1]
        if decision == "unknown" and asked.count(body) == 1:
            return UNKNOWN
        return TransactionResolution.ROLLBACK if decision == "rollback" else TransactionResolution.COMMIT

producer = Producer(configuration, ("Orders",), Checker())
producer.startup()
pending = {}

def begin(body):
    transaction = producer.begin_transaction()
    pending[body] = transaction
    return producer.send(message(body.encode(), tag="t"), transaction)

def patiently(action, *arguments):
    deadline = time.monotonic() + 60
    while True:
        try:
            return action(*arguments)
        except Exception as error:
            assert time.monotonic() < deadline, error
            time.sleep(0.05)

def receive(count):
    got = {}
    deadline = time.monotonic() + 60
    while len(got) < count and time.monotonic() < deadline:
        try:
            found = consumer.receive(32, 15)
        except Exception as error:
            time.sleep(0.05)
            continue
        for one in found:
            assert one.properties["__transactionId__"] == one.message_id, one.properties
            assert set(one.properties) == {"__transactionId__"}, one.properties
            got.setdefault(one.body.decode(), []).append(one.message_type)
            patiently(consumer.ack, one)
    return got

consumer = SimpleConsumer(configuration, "Readers", {"Orders": FilterExpression()}, await_duration=2)
consumer.startup()
receipts = [begin(body) for body in ("a-commit", "b-rollback", "orphan-commit", "orphan-rollback", "orphan-unknown")]
assert len({receipt.transaction_id for receipt in receipts}) == 5
pending["a-commit"].commit()
pending["b-rollback"].rollback()
pending["a-commit"].commit()
asked_until_then = list(asked)
def refused(action):
    try:
        action()
        return ""
    except Exception as error:
        return str(error)
other_way = refused(pending["a-commit"].rollback)
made_up = refused(lambda: producer.end_transaction(
    receipts[0].message_queue.endpoints, pending["orphan-commit"]._Transaction__message,
    receipts[0].transaction_id, TransactionResolution.COMMIT, 1))
got = receive(3)
asked_of_ended = [asked.count(body) - asked_until_then.count(body) for body in ("a-commit", "b-rollback")]
say(got=got, asked=sorted(set(asked)), asked_of_ended=asked_of_ended, other_way=other_way, made_up=made_up)
for body in ("late-commit", "late-rollback", "lost-commit"):
    begin(body)
say(begun=True)
hear()
patiently(pending["late-commit"].commit)
patiently(pending["late-rollback"].rollback)
say(got=receive(2), asked=sorted(set(asked)))
producer.shutdown()
consumer.shutdown()
"""


async def test_transactions_of_a_client_on_a_replica_through_the_loss_of_the_master(tmp_path: Path, programs) -> None:
    settings = ("transactions.timeout_ms=0", "transactions.check_interval_ms=1000")
    with Cluster(tmp_path / "cluster", controllers=1, broker_settings=settings) as cluster:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(eventually, "the topic", lambda: _make_topic(cluster))
        replica, master = await asyncio.to_thread(_make_the_first_address_a_replica, cluster)
        address = cluster.broker_addresses[master]
        program = await programs(PROGRAM, [cluster.grpc_addresses[replica]])
        told = await program.said()
        assert {body: len(types) for body, types in told["got"].items()} == {
            "a-commit": 1,
            "orphan-commit": 1,
            "orphan-unknown": 1,
        }
        assert {"orphan-commit", "orphan-unknown"} <= set(told["asked"])
        assert max(told["asked_of_ended"]) <= 1, "what is ended is not asked about, but for a check that was on its way"
        assert "40008" in told["other_way"] or "not open" in told["other_way"]
        assert told["made_up"] == "", "the client hands the status to its caller"
        await asyncio.to_thread(eventually, "the last orphan's end", lambda: open_transactions(address) == 0)
        assert await program.said() == {"begun": True}
        cluster.brokers[master].kill()
        program.tell("go on")
        told = await program.said()
        assert Counter({body: len(types) for body, types in told["got"].items()}) == {
            "late-commit": 1,
            "lost-commit": 1,
        }
        await program.finished()
        after = cluster.broker_addresses[await asyncio.to_thread(cluster.master)]
        assert after != address
        assert await asyncio.to_thread(open_transactions, after) == 0


CROSSING = """
import random
from rocketmq import TransactionChecker, TransactionResolution

class Checker(TransactionChecker):
    checks = 0

    def check(self, one):
        Checker.checks += 1
        return TransactionResolution.COMMIT

producer = Producer(configuration, ("Orders",), Checker())
producer.startup()
rng = random.Random(1)
begun = []
for number in range(200):
    transaction = producer.begin_transaction()
    producer.send(message(b"%d" % number, tag="t"), transaction)
    begun.append(transaction)
    if rng.random() < 0.5:
        transaction = begun.pop(rng.randrange(len(begun)))
        transaction.commit()
for transaction in begun:
    transaction.commit()
say(checks=Checker.checks)
producer.shutdown()
"""


async def test_commits_that_cross_checks_are_visible_once(tmp_path: Path, programs) -> None:
    settings = ("transactions.timeout_ms=0", "transactions.check_interval_ms=10", "transactions.check_max=1000")
    with Cluster(tmp_path / "cluster", controllers=1, replicas=1, broker_settings=settings) as cluster:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(eventually, "the topic", lambda: _make_topic(cluster))
        program = await programs(CROSSING, cluster.grpc_addresses)
        told = await program.said()
        assert told["checks"] >= 50
        await program.finished()
        stored = sum(each.max_offset for each in await asyncio.to_thread(cluster.admin.queue_offsets, TOPIC))
        assert stored == 200
        assert await asyncio.to_thread(open_transactions, cluster.broker_addresses[0]) == 0


def _make_topic(cluster: Cluster) -> bool:
    return cluster.admin.create_topic(TOPIC, queues=4, message_type="TRANSACTION")[0].outcome == "CONFIRMED"


def _make_the_first_address_a_replica(cluster: Cluster) -> tuple[int, int]:
    """The client tries the addresses of a route in their order: the first one's broker, and another one as the master."""
    group = cluster.wait_in_sync(3)
    first = cluster.grpc_addresses.index(min(cluster.grpc_addresses))
    master = cluster.master()
    if master == first:
        other = cluster.broker_addresses[(first + 1) % 3]
        [number] = [each["brokerId"] for each in group["replicas"] if each["address"] == other]
        cluster.admin.elect_master("DefaultCluster", "broker-a", number)
        eventually("another master", lambda: cluster.master() != first)
        cluster.wait_in_sync(3)
    return first, cluster.master()
