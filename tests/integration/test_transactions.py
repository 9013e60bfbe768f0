"""Transactions through a kill of the master, with real processes: each ends one way, and who went silent is asked by the next."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import RequestError
from tests.support.cluster import Cluster, eventually
from tests.support.transaction_client import COMMIT, PATIENCE_S, ROLLBACK, Producer, read_bodies

pytestmark = pytest.mark.slow

TOPIC = "Orders"


def open_transactions(address: str) -> int:
    with SocketConnection(address, timeout_ms=5000) as connection:
        count: int = orjson.loads(connection.call(codes.BROKER_STATE).body)["transactions"]["open"]
    return count


def test_transactions_through_a_kill_of_the_master(tmp_path: Path) -> None:
    settings = ("transactions.timeout_ms=0", "transactions.check_interval_ms=500")
    with Cluster(tmp_path, controllers=1, broker_settings=settings) as cluster:
        cluster.start()
        before = cluster.master()
        with SocketConnection(cluster.broker_addresses[before], timeout_ms=5000) as connection:
            fields = {"topic": TOPIC, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            connection.call(
                codes.UPDATE_AND_CREATE_TOPIC, {**fields, "topicFilterType": "SINGLE_TAG", "defaultTopic": ""}
            )
        asyncio.run(_through_a_kill(cluster, before))


def test_what_was_given_up_is_ended_by_hand(tmp_path: Path) -> None:
    settings = ("transactions.timeout_ms=0", "transactions.check_interval_ms=100", "transactions.check_max=1")
    with Cluster(tmp_path, controllers=1, replicas=1, broker_settings=settings) as cluster:
        cluster.start()
        admin = cluster.admin
        eventually("the topic", lambda: admin.create_topic(TOPIC, queues=1)[0].outcome == "CONFIRMED")
        for body in (b"wanted", b"unwanted"):
            sent = admin.send(TOPIC, body, transaction=True)
        eventually("both are given up", lambda: len(admin.given_up("broker-a").items) == 2)
        newer, older = admin.given_up("broker-a").items
        assert (newer.key, newer.topic, newer.checks) == (sent["transactionId"], TOPIC, 1)
        admin.end_given_up("broker-a", older.offset, "commit", "ann")
        admin.end_given_up("broker-a", older.offset, "commit", "bob")
        admin.end_given_up("broker-a", newer.offset, "rollback", "ann")
        with pytest.raises(RequestError, match="ann decided rollback"):
            admin.end_given_up("broker-a", newer.offset, "commit", "bob")
        with pytest.raises(RequestError, match="decision must be commit or rollback"):
            admin.end_given_up("broker-a", newer.offset, "resumed", "bob")
        eventually("it is delivered", lambda: read_bodies(cluster.broker_addresses[0], TOPIC) == ["wanted"])
        [page] = [admin.given_up("broker-a", before=newer.offset)]
        assert [(each.decision, each.decided_by) for each in page.items] == [("commit", "ann")]


async def _through_a_kill(cluster: Cluster, before: int) -> None:
    producer = Producer(TOPIC)
    address = cluster.broker_addresses[before]
    await producer.start(address)
    sent = {body: await producer.begin(body) for body in ("committed", "rolled back", "taken back later", "orphan")}
    assert (await producer.end(sent["committed"], COMMIT)).code == codes.SUCCESS
    assert (await producer.end(sent["rolled back"], ROLLBACK)).code == codes.SUCCESS
    assert (await producer.end(sent["committed"], COMMIT)).code == codes.SUCCESS, "asked again, it is told the same"
    assert (await producer.end(sent["committed"], ROLLBACK)).code == codes.SYSTEM_ERROR
    await asyncio.wait_for(producer.asked.get(), PATIENCE_S)  # and says nothing
    assert open_transactions(address) == 2
    cluster.brokers[before].kill()
    producer.close()

    eventually("another master", lambda: cluster.master() != before)
    address = cluster.broker_addresses[cluster.master()]
    successor = Producer(TOPIC)
    await successor.start(address)
    assert open_transactions(address) == 2
    repeated = await successor.end(sent["committed"], ROLLBACK)
    assert repeated.code == codes.SYSTEM_ERROR
    decisions = {"taken back later": ROLLBACK, "orphan": COMMIT}
    decided: set[str] = set()
    while decided != set(decisions):
        await successor.answer(decisions, decided)
    assert open_transactions(address) == 0
    cluster.brokers[before].start()
    await asyncio.to_thread(cluster.wait_in_sync, len(cluster.brokers))
    assert read_bodies(address, TOPIC) == ["committed", "orphan"]
    successor.close()
