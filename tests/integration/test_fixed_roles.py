"""A group with fixed roles as real processes: the master dies and its replica serves reads in its place until it is back."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from remoting import codes, properties_text
from remoting.client.blocking import AdminClient
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError, RequestError
from remoting.message import decode_records
from tests.support.cluster import Process, eventually, free_ports, make_secret

pytestmark = pytest.mark.slow

TOPIC = "Orders"
PULL = {
    "consumerGroup": "TOOLS_CONSUMER",
    "topic": TOPIC,
    "queueId": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
    "expressionType": "TAG",
}


class FixedGroup:
    """One name server, a master and a replica."""

    def __init__(self, root: Path) -> None:
        name_server, *ports = free_ports(7)
        self.name_server = f"127.0.0.1:{name_server}"
        self.listen = [f"127.0.0.1:{port}" for port in ports[:2]]
        secret = str(make_secret(root))
        roles = ("roles=fixed", "total_replicas=2", "acting_master=true", "min_in_sync_replicas=1")
        self.processes = [
            Process(
                "name server",
                [
                    *(
                        "-m",
                        "controllerd",
                        "--id",
                        "n0",
                        "--peers",
                        f"n0={self.name_server}",
                        "--data",
                        str(root / "n0"),
                    ),
                    *("--set", "nameserver.acting_master=true", "--set", "nameserver.notify_min_broker_id=true"),
                ],
                root / "n0.log",
            )
        ]
        for broker_id in range(2):
            own = (f"broker_id={broker_id}", *((f"fixed_master={self.listen[0]}",) if broker_id else ()))
            arguments = ["-m", "brokerd", "--listen", self.listen[broker_id], "--controllers", self.name_server]
            arguments += ["--ha-listen", f"127.0.0.1:{ports[2 + broker_id]}", "--replication-secret", secret]
            arguments += ["--grpc-listen", f"127.0.0.1:{ports[4 + broker_id]}", "--data", str(root / f"b{broker_id}")]
            for assignment in (*roles, *own):
                arguments += ["--set", f"replication.{assignment}"]
            self.processes.append(Process(f"b{broker_id}", arguments, root / f"b{broker_id}.log"))
        self.admin = AdminClient([self.name_server], timeout_ms=2000)

    @property
    def master(self) -> Process:
        return self.processes[1]

    def state(self, broker_id: int) -> dict[str, Any]:
        return self.admin.broker_state(self.listen[broker_id])

    def in_sync(self) -> bool:
        return self.state(0)["syncStateSet"] == [0, 1]

    def route(self) -> tuple[dict[str, str], int]:
        """Addresses by id, and the permission, as clients see them."""
        with SocketConnection(self.name_server, timeout_ms=2000) as connection:
            route = orjson.loads(connection.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}).body)
        return route["brokerDatas"][0]["brokerAddrs"], route["queueDatas"][0]["perm"]

    def call(self, broker_id: int, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Any:
        with SocketConnection(self.listen[broker_id], timeout_ms=2000) as connection:
            return connection.call(code, ext or {}, body)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[FixedGroup]:
    group = FixedGroup(tmp_path)
    try:
        for process in group.processes:
            process.start()
        eventually("both brokers in the set", group.in_sync)
        eventually("the topic", lambda: group.admin.create_topic(TOPIC, queues=1)[0].outcome == "CONFIRMED")
        eventually("the topic's route", lambda: group.route()[1] == 6)
        yield group
    finally:
        for process in group.processes:
            process.close()


def test_reads_go_on_at_the_replica_and_writes_when_the_master_is_back(group: FixedGroup) -> None:
    for number in range(20):
        group.admin.send(TOPIC, b"message %d" % number, group="broker-a")
    offset = {"consumerGroup": "TOOLS_CONSUMER", "topic": TOPIC, "queueId": "0"}
    group.call(0, codes.UPDATE_CONSUMER_OFFSET, {**offset, "commitOffset": "7"})
    eventually("the replica has all", lambda: group.state(1)["confirmOffset"] == group.state(0)["endOffset"])
    with pytest.raises(RequestError, match="slave_read"):
        group.call(1, codes.PULL_MESSAGE, {**PULL, "queueOffset": "0"})

    group.master.kill()
    _, perm = eventually(
        "a route with the replica in the master's place",
        lambda: found if (found := group.route())[0].get("0") == group.listen[1] else None,
    )
    assert perm & 2 == 0, "nobody can write there"
    answer = group.call(1, codes.PULL_MESSAGE, {**PULL, "queueOffset": "0"})
    assert [record.body for record in decode_records(answer.body)] == [b"message %d" % number for number in range(20)]
    assert group.call(1, codes.QUERY_CONSUMER_OFFSET, offset).ext["offset"] == "7"
    assert group.call(1, codes.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}).ext["offset"] == "20"
    queue = {"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}
    wanted = orjson.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [queue]})
    assert orjson.loads(group.call(1, codes.LOCK_BATCH_MQ, body=wanted).body)["lockOKMQSet"] == [queue]
    with pytest.raises(RequestError, match="not the master"):
        group.call(1, codes.UPDATE_CONSUMER_OFFSET, {**offset, "commitOffset": "9"})

    group.master.start()
    eventually("both brokers in the set again", group.in_sync)
    assert group.state(0)["masterEpoch"] == 2
    eventually("the master's route", lambda: group.route() == ({"0": group.listen[0], "1": group.listen[1]}, 6))
    eventually("a send", lambda: int(group.admin.send(TOPIC, b"later", group="broker-a")["queueOffset"]) == 20)
    assert group.call(0, codes.QUERY_CONSUMER_OFFSET, offset).ext["offset"] == "7"


def test_metrics_and_settings_of_a_running_broker(group: FixedGroup) -> None:
    port = int(group.listen[0].rpartition(":")[2])
    metrics_port = port + 10_000 if port + 10_000 <= 65_535 else port - 10_000

    def scrape() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    assert 'logboom_replication_copies{cluster="DefaultCluster",broker="broker-a",broker_id="0"} 2' in scrape()
    shown = properties_text.decode(group.call(0, codes.GET_BROKER_CONFIG).body)
    assert (shown["minInSyncReplicas"], shown["totalReplicas"]) == ("1", "2")
    group.call(0, codes.UPDATE_BROKER_CONFIG, body=b"minInSyncReplicas=2")
    group.processes[2].kill()
    eventually("the refusal", lambda: group.state(0)["quorum"]["refused"])
    with pytest.raises(LogboomError, match="in-sync replicas not enough"):
        group.admin.send(TOPIC, b"refused", group="broker-a")
    assert [each["brokerId"] for each in group.state(0)["quorum"]["missing"]] == [1]
    text = scrape()
    assert 'reason="too_few_replicas"} 1' in text
    assert (
        'logboom_replication_missing_seconds{cluster="DefaultCluster",broker="broker-a",broker_id="0",member="1"'
        in text
    )
    group.processes[2].start()
    eventually("a send", lambda: bool(group.admin.send(TOPIC, b"taken", group="broker-a")))
    group.master.terminate()
    group.master.start()
    shown = eventually(
        "the settings again", lambda: properties_text.decode(group.call(0, codes.GET_BROKER_CONFIG).body)
    )
    assert shown["minInSyncReplicas"] == "1", "the command line wins at a start"
