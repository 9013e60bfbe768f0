"""Transactions of the original's clients of version 5, given a replica as their access point: ended by themselves, by the answer
to a check, and through the loss of the master. And what tools ask of consumers, which goes the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.record.codec import decode_records
from remoting.record.hosts import offset_message_id
from tests.interop import programs
from tests.interop.apache import Apache, Unavailable
from tests.interop.mqadmin import Tool
from tests.interop.programs import Outcome, Program
from tests.support.certificates import of_the_appliance
from tests.support.cluster import Cluster, eventually
from tests.support.transaction_client import read_bodies

CHECKS = ("ended", "checked", "survived", "unseen")
VISIBLE = ["late-commit", "lost-commit", "orphan-commit", "orphan-unknown", "own-commit"]

Make = Callable[[Apache, Path], Program]
CLIENTS: dict[str, Make] = {
    "java": lambda apache, directory: programs.java_grpc(apache, directory, "Transactions"),
    "go": lambda _, directory: programs.go_grpc(directory),
    "node": lambda _, directory: programs.node_grpc("transactions"),
}


class Asked(NamedTuple):
    """What a tool was told about a push consumer: how one message was consumed, and what mqadmin printed about it."""

    consumed: Mapping[str, Any]
    group: str
    client: str


class Lived(NamedTuple):
    """What a program found out, all that its topic holds in the end, and what was asked of its consumer."""

    outcome: Outcome
    stored: list[str]
    asked: Asked | None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("transactions")
    tls, _ = of_the_appliance(root / "appliance")
    checks = ("transactions.timeout_ms=0", "transactions.check_interval_ms=1000", "transactions.check_max=1000")
    with Cluster(root / "cluster", broker_settings=(*tls, *checks), controller_settings=tls) as running:
        running.start()
        yield running


@pytest.fixture(scope="module", params=CLIENTS)
def lived(
    apache: Apache, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Lived:
    name = request.param
    directory = tmp_path_factory.mktemp(name)
    try:
        program = CLIENTS[name](apache, directory)
    except Unavailable as reason:
        pytest.skip(str(reason))
    topic = f"{name}-transactions"
    cluster.admin.create_topic(topic, queues=1, message_type="TRANSACTION")
    eventually("the topic's route", lambda: cluster.admin.queue_offsets(topic))
    master = cluster.master()
    given = cluster.grpc_addresses[(master + 1) % len(cluster.brokers)]
    with program.start([given, topic, topic, "transactions"], directory) as running:
        try:
            running.wait_for("the transactions that outlive the master", r"begun (\d+)", 1)
            asked = _ask_the_consumer(cluster, apache, directory, topic) if name == "java" else None
            cluster.brokers[master].kill()
            eventually("another master", lambda: cluster.master() != master)
            if (
                name == "node"
            ):  # it knows one address of the queue that it began on, and ends a transaction there or not at all
                cluster.brokers[master].start()
            running.tell("go on")
            outcome = running.outcome()
            stored = read_bodies(cluster.broker_addresses[cluster.master()], topic)
        finally:
            cluster.make_whole()
    return Lived(outcome, stored, asked)


@pytest.mark.parametrize("check", CHECKS)
def test_transactions(lived: Lived, check: str) -> None:
    lived.outcome.expect(check)


def test_each_is_stored_once(lived: Lived) -> None:
    assert sorted(lived.stored) == VISIBLE


def test_a_tool_sees_what_a_consumer_at_a_replica_does(lived: Lived) -> None:
    """Asked of the master, before it was killed. Of these clients only Java's does what it is asked for."""
    if lived.asked is not None:
        assert lived.asked.consumed["consumeResult"] == "CR_SUCCESS"
        assert "Same subscription in the same group of consumer" in lived.asked.group
        assert "#Consumer jstack#" in lived.asked.client
        assert "java.lang.Thread" in lived.asked.client


def _ask_the_consumer(cluster: Cluster, apache: Apache, directory: Path, topic: str) -> Asked:
    pull = {
        **{"consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"},
        **{"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"},
    }
    with SocketConnection(cluster.broker_addresses[cluster.master()], timeout_ms=20_000) as connection:
        members = orjson.loads(connection.call(codes.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": topic}).body)
        [client] = {each["clientId"] for each in members["connectionSet"]}
        [record] = decode_records(connection.call(codes.PULL_MESSAGE, pull).body)
        message_id = offset_message_id(record.store_host, record.physical_offset)
        ext = {"consumerGroup": topic, "clientId": client, "msgId": message_id, "topic": topic}
        consumed = orjson.loads(connection.call(codes.CONSUME_MESSAGE_DIRECTLY, ext).body)
    with (
        apache.session(directory / "apache") as session,
        Tool.start(session, ";".join(cluster.controller_addresses)) as tool,
    ):
        # the topic by which the tool finds the group's brokers comes with the consumer's first heartbeat
        eventually("the group's route", lambda: f"%RETRY%{topic}" in tool("topicList"))
        return Asked(
            consumed,
            tool("consumerStatus", "-g", topic),
            tool("consumerStatus", "-g", topic, "-i", client, "-s"),
        )
