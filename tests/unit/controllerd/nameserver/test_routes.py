"""The name server beside the controllers: fencing by their decisions, pauses of the process, bodies of the original."""

from __future__ import annotations

import orjson
import pytest

from controllerd.nameserver.registration import decode_registration
from controllerd.nameserver.routes import DataVersion, QueueData, Registration, RouteTable
from remoting.errors import RequestError

HEADER = {"clusterName": "c", "brokerName": "broker-a", "brokerAddr": "h:1", "haServerAddr": "h:2", "brokerId": "0"}


def register(table: RouteTable, broker_id: int, address: str, epoch: int = 1, timeout_ms: int = 10_000) -> None:
    registration = Registration(
        "c",
        "broker-a",
        broker_id,
        address,
        timeout_ms=timeout_ms,
        data_version=DataVersion(1, epoch, 1),
        topics={"T": QueueData(8, 8, 6)},
    )
    table.register(registration, address, 0)


def test_a_former_master_leaves_the_routes_when_the_controllers_decide() -> None:
    table = RouteTable()
    register(table, 0, "a:1")
    register(table, 2, "b:1")
    table.fence("broker-a", "b:1")
    assert table.members("broker-a") == {2: "b:1"}
    assert table.route("T") is not None, "consumers may read on from the replica"
    register(table, 0, "b:1", epoch=2)
    table.fence("broker-a", "b:1")
    assert table.members("broker-a") == {0: "b:1"}
    table.fence("broker-a", None)
    assert table.members("broker-a") == {}
    table.fence("nobody", None)


def test_a_restarted_name_server_refuses_a_stale_master_by_what_the_controllers_committed() -> None:
    table = RouteTable(lambda name: 7)
    with pytest.raises(RequestError, match="epoch 7 is known"):
        register(table, 0, "a:1", epoch=6)
    register(table, 0, "b:1", epoch=7)
    for _ in range(2):
        with pytest.raises(RequestError, match="alive"):
            register(table, 0, "a:1", epoch=7)
        register(table, 0, "b:1", epoch=7)
    assert table.members("broker-a") == {0: "b:1"}


def test_a_pause_of_the_name_server_is_not_the_brokers_silence() -> None:
    table = RouteTable()
    register(table, 0, "a:1")
    assert table.expire(1_000) == []
    assert table.expire(60_000) == []
    for now_ms in range(61_000, 69_001, 1_000):
        assert table.expire(now_ms) == []
    assert [gone.address for gone in table.expire(70_000)] == ["a:1"]


def test_bodies_with_bare_integer_keys_are_read() -> None:
    body = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1},"topicConfigTable":'
        b'{"T":{"perm":6,"readQueueNums":1,"writeQueueNums":2,"attributes":{"k":"a,5:{1:\\"2:"}}},'
        b'"topicQueueMappingInfoMap":{"T":{"bname":"b","currIdMap":{0:0, 1:7}}}}}'
    )
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(body)
    assert decode_registration(HEADER, body).topics == {"T": QueueData(1, 2, 6)}
