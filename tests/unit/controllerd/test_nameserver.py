"""Routes: who may register, who is forgotten when, and that no body of a registration can hurt."""

from __future__ import annotations

import contextlib
import struct
import zlib
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllerd.nameserver import registration as codec
from controllerd.nameserver.kv_config import KvConfig
from controllerd.nameserver.routes import DataVersion, QueueData, Registration, RouteTable
from remoting.disk import LocalDisk
from remoting.errors import InvalidParameter, LogboomError, ProtocolError, RequestError

EIGHT = QueueData(8, 8, 6)


def broker(broker_id: int = 0, address: str = "h:1", epoch: int = 1, **more: object) -> Registration:
    fields: dict[str, object] = {"topics": {"T": EIGHT}, "data_version": DataVersion(1, epoch, 1)}
    return Registration("c", "broker-a", broker_id, address, **{**fields, **more})  # type: ignore[arg-type]


def test_a_route_names_every_live_replica_and_the_masters_topics() -> None:
    table = RouteTable()
    table.register(broker(0, "h:1", grpc_address="h:8081"), "x", 0)
    assert table.register(broker(2, "h:2", topics={"Other": EIGHT}), "y", 0).address == "h:1"  # type: ignore[union-attr]
    route = table.route("T")
    assert route is not None
    [data] = route["brokerDatas"]
    assert data["brokerAddrs"] == {"0": "h:1", "2": "h:2"}
    assert data["grpcAddrs"] == {"0": "h:8081"}
    assert route["queueDatas"][0]["readQueueNums"] == 8
    assert table.route("Other") is None, "only the master says which topics there are"
    assert table.topics() == ["T"]
    assert table.topics("c") == ["T"]
    assert table.topics("elsewhere") == []


def test_a_stale_master_cannot_take_its_place_back() -> None:
    committed = {"broker-a": 0}
    table = RouteTable(lambda name: committed[name])
    table.register(broker(0, "old:1", epoch=3), "x", 0)
    table.register(broker(0, "new:1", epoch=4), "y", 0)
    for epoch in (3, 4):
        with pytest.raises(RequestError, match="epoch"):
            table.register(broker(0, "old:1", epoch=epoch), "x", 0)
    table.unregister("broker-a", 0, "new:1")
    with pytest.raises(RequestError, match="epoch 4 is known"):
        table.register(broker(0, "old:1", epoch=3), "x", 0)
    committed["broker-a"] = 6
    with pytest.raises(RequestError, match="epoch 6 is known"):
        table.register(broker(0, "new:1", epoch=5), "y", 0)


def test_a_master_that_became_a_replica_keeps_one_record() -> None:
    table = RouteTable()
    table.register(broker(0, "a:1", epoch=1), "x", 0)
    table.register(broker(0, "b:1", epoch=2), "y", 0)
    table.register(broker(1, "a:1", epoch=2), "x", 0)
    assert table.members("broker-a") == {0: "b:1", 1: "a:1"}
    table.register(broker(0, "a:1", epoch=3), "x", 0)
    assert table.members("broker-a") == {0: "a:1"}


def test_a_closed_connection_forgets_at_once_and_silence_after_its_time() -> None:
    table = RouteTable()
    table.register(broker(0, "a:1", timeout_ms=2000), "x", 0)
    table.register(broker(1, "b:1", timeout_ms=2000), "y", 1000)
    table.heard_from("broker-a", "a:1", 1500)
    assert table.expire(3200) == [broker(1, "b:1", timeout_ms=2000, topics={})]
    assert [gone.address for gone in table.connection_closed("x")] == ["a:1"]
    assert table.route("T") is None
    assert table.topics() == []


def test_a_complete_registration_removes_what_it_does_not_name() -> None:
    table = RouteTable()
    table.register(broker(topics={"T": EIGHT, "U": EIGHT}), "x", 0)
    table.register(broker(topics={"V": EIGHT}), "x", 0)
    assert table.topics() == ["T", "U", "V"]
    table.register(broker(topics={"V": EIGHT}, is_complete=True), "x", 0)
    assert table.topics() == ["V"]


def test_write_permission_is_taken_and_given() -> None:
    table = RouteTable()
    table.register(broker(), "x", 0)
    assert table.set_write_permission("broker-a", writable=False) == 1
    assert table.route("T")["queueDatas"][0]["perm"] == 4  # type: ignore[index]
    assert table.set_write_permission("broker-a", writable=True) == 1
    assert table.set_write_permission("nobody", writable=True) == 0


HEADER = {"clusterName": "c", "brokerName": "broker-a", "brokerAddr": "h:1", "haServerAddr": "h:2", "brokerId": "0"}


def compressed(topics: list[str], count: int | None = None) -> bytes:
    def part(text: str) -> bytes:
        return struct.pack(">i", len(text)) + text.encode()

    lines = b"".join(map(part, topics))
    version = part('{"counter":4,"stateVersion":3,"timestamp":2}')
    return zlib.compress(version + struct.pack(">i", len(topics) if count is None else count) + lines + part("[]"))


def test_both_forms_of_a_body_are_read() -> None:
    document = {
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": 4, "stateVersion": 3, "timestamp": 2},
            "topicConfigTable": {
                "T": {"readQueueNums": 4, "writeQueueNums": 2, "perm": 6, "attributes": {"message.type": "FIFO"}}
            },
        },
        "filterServerList": [],
    }
    expected = {"T": QueueData(4, 2, 6, 0, "FIFO")}
    body = orjson.dumps(document)
    plain = codec.decode_registration({**HEADER, "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF)}, body)
    packed = codec.decode_registration(
        {**HEADER, "compressed": "true"}, compressed(['T 4 2 6 SINGLE_TAG {"message.type":"FIFO"}'])
    )
    for registration in (plain, packed):
        assert registration.topics == expected
        assert registration.data_version == DataVersion(4, 3, 2)


@pytest.mark.parametrize(
    ("ext", "body", "reason"),
    [
        ({"brokerId": "x"}, b"", "garbles a field"),
        ({"brokerId": "-1"}, b"", "brokerId must be 0 or more"),
        ({"bodyCrc32": "7"}, b"{}", "checksum"),
        ({}, b"[]", "JSON object"),
        ({}, b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{}}}}', "topic 'T' lacks"),
        ({"compressed": "true"}, b"junk", "does not inflate"),
        ({"compressed": "true"}, compressed(["T 4"]), "undecodable topic"),
        ({"compressed": "true"}, compressed([], count=2**30), "1073741824 topics"),
    ],
)
def test_a_bad_registration_is_refused_with_the_reason(ext: dict[str, str], body: bytes, reason: str) -> None:
    with pytest.raises((InvalidParameter, ProtocolError), match=reason):
        codec.decode_registration({**HEADER, **ext}, body)


def test_an_inflating_body_is_bounded() -> None:
    with pytest.raises(ProtocolError, match="inflates to more than"):
        codec.decode_registration({**HEADER, "compressed": "true"}, zlib.compress(bytes(codec.MAX_INFLATED_BYTES + 1)))


@given(st.binary(max_size=200), st.booleans())
def test_no_body_raises_anything_but_our_errors(body: bytes, packed: bool) -> None:
    with contextlib.suppress(LogboomError):
        codec.decode_registration(
            {**HEADER, "compressed": str(packed).lower()}, zlib.compress(body) if packed else body
        )


def test_kv_configuration_survives_a_restart(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path / "d")
    kv = KvConfig(disk)
    kv.put("ns", "k", "v")
    assert KvConfig(disk).get("ns", "k") == "v"
    kv.delete("ns", "k")
    with pytest.raises(RequestError, match="no value"):
        KvConfig(disk).get("ns", "k")
    with pytest.raises(RequestError, match="no namespace"):
        kv.table("other")
    with pytest.raises(RequestError, match="must not be empty"):
        kv.put("", "k", "v")
    disk.close()
