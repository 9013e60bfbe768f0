"""Registrations from their bytes: both forms, the original's JSON, and that no body of a registration can hurt."""

from __future__ import annotations

import contextlib
import struct
import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllerd.nameserver import registration as codec
from controllerd.nameserver.records import DataVersion, QueueData
from remoting.errors import InvalidParameter, LogboomError, ProtocolError

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


def test_bodies_with_bare_integer_keys_are_read() -> None:
    body = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1},"topicConfigTable":'
        b'{"T":{"perm":6,"readQueueNums":1,"writeQueueNums":2,"attributes":{"k":"a,5:{1:\\"2:"}}},'
        b'"topicQueueMappingInfoMap":{"T":{"bname":"b","currIdMap":{0:0, 1:7}}}}}'
    )
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(body)
    assert codec.decode_registration(HEADER, body).topics == {"T": QueueData(1, 2, 6)}


@pytest.mark.parametrize(
    ("ext", "expected"), [({}, None), ({"enableActingMaster": "false"}, False), ({"enableActingMaster": "true"}, True)]
)
def test_what_a_broker_says_of_acting_masters_and_zones(ext: dict[str, str], expected: bool | None) -> None:
    found = codec.decode_registration({**HEADER, **ext, "__ZONE_NAME": "east"}, b"")
    assert found.acting_master is expected
    assert found.zone == "east"


def test_names_and_addresses_are_bounded() -> None:
    for field in ("clusterName", "brokerName", "brokerAddr", "haServerAddr", "__ZONE_NAME"):
        with pytest.raises(InvalidParameter, match="at most 512"):
            codec.decode_registration({**HEADER, field: "x" * 513}, b"")


def test_a_route_document_names_queues() -> None:
    body = b'{"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"writeQueueNums":2,"topicSysFlag":1}]}'
    assert codec.decode_topic_queues(body) == {"broker-a": QueueData(4, 2, 6, 1)}
    assert codec.decode_topic_queues(b"{}") == {}
    for bad in (
        b'{"queueDatas":7}',
        b'{"queueDatas":[{}]}',
        b'{"queueDatas":[7]}',
        b'{"queueDatas":[{"brokerName":"b"}]}',
    ):
        with pytest.raises(InvalidParameter):
            codec.decode_topic_queues(bad)
