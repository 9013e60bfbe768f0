"""Records, properties, batches and ids, against vectors computed from the protocol's own definitions."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.errors import ProtocolError
from remoting.java_hash import java_hash
from remoting.record.batch import decode_batch_body
from remoting.record.codec import body_is_intact, decode_record, decode_records, encode_record
from remoting.record.hosts import decode_offset_message_id, offset_message_id, pack_host, unpack_host
from remoting.record.layout import SYS_STORE_HOST_V6, record_size
from remoting.record.properties import decode_properties, encode_properties, tags_code
from tests.support.client_bytes import encode_batch_body

GOLDEN_RECORD = bytes.fromhex(
    "00000087daa320a73610a6860000000300000007000000000000002a0000000000001000000000000000018bcfe568000a00000100009c40"
    "0000018bcfe5687b0a00000200002a9f0000000000000000000000000000000568656c6c6f06546f706963410021554e49515f4b45590155"
    "3102544147530174616741024b455953016b31206b3202"
)
GOLDEN_PROPERTIES = b"UNIQ_KEY\x01U1\x02TAGS\x01tagA\x02KEYS\x01k1 k2\x02"

names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)
hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))


def golden() -> bytes:
    return encode_record(
        topic=b"TopicA",
        queue_id=3,
        queue_offset=42,
        physical_offset=4096,
        body=b"hello",
        properties=GOLDEN_PROPERTIES,
        born_timestamp_ms=1700000000000,
        born_host=pack_host("10.0.0.1", 40000),
        store_timestamp_ms=1700000000123,
        store_host=pack_host("10.0.0.2", 10911),
        flag=7,
    )


def test_the_golden_record_is_written_byte_for_byte() -> None:
    assert golden() == GOLDEN_RECORD


def test_the_golden_record_is_read() -> None:
    record = decode_record(GOLDEN_RECORD)
    assert (record.topic, record.queue_id, record.queue_offset, record.physical_offset) == ("TopicA", 3, 42, 4096)
    assert unpack_host(record.born_host) == ("10.0.0.1", 40000)
    assert record.property_map() == {"UNIQ_KEY": "U1", "TAGS": "tagA", "KEYS": "k1 k2"}
    assert body_is_intact(record)
    assert offset_message_id(record.store_host, record.physical_offset) == "0A00000200002A9F0000000000001000"
    assert decode_offset_message_id("0A00000200002A9F0000000000001000") == ("10.0.0.2", 10911, 4096)


def test_hashes_are_java_s() -> None:
    assert java_hash("TopicA#k1") == -1903240649
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("") == 0
    assert java_hash("\U0001f600") == 1772899  # a surrogate pair: two UTF-16 units
    assert tags_code(GOLDEN_PROPERTIES) == 3552231
    assert tags_code(b"TAGS\x01a\x02TAGS\x01tagA\x02") == 3552231
    assert tags_code(b"XTAGS\x01tagA\x02") == 0


@given(
    topic=names.filter(lambda name: len(name.encode()) <= 255),
    body=st.binary(max_size=300),
    properties=st.dictionaries(names, names, max_size=4),
    born_host=hosts,
    store_host=hosts,
    numbers=st.tuples(*[st.integers(0, 2**31 - 1)] * 3, *[st.integers(0, 2**62)] * 5),
)
def test_a_record_survives_the_round_trip(
    topic: str, body: bytes, properties: dict[str, str], born_host: bytes, store_host: bytes, numbers: tuple[int, ...]
) -> None:
    queue_id, flag, reconsume_times, queue_offset, physical_offset, born, store, prepared = numbers
    encoded_properties = encode_properties(properties)
    encoded = encode_record(
        topic=topic.encode(),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        body=body,
        properties=encoded_properties,
        born_timestamp_ms=born,
        born_host=born_host,
        store_timestamp_ms=store,
        store_host=store_host,
        flag=flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
    )
    assert len(encoded) == record_size(
        len(topic.encode()), len(body), len(encoded_properties), len(born_host), len(store_host)
    )
    [record] = decode_records(encoded)
    assert (record.topic, record.body, record.property_map()) == (topic, body, properties)
    assert (record.born_host, record.store_host) == (born_host, store_host)
    assert (record.queue_id, record.flag, record.reconsume_times) == (queue_id, flag, reconsume_times)
    assert (record.queue_offset, record.physical_offset) == (queue_offset, physical_offset)
    assert (record.born_timestamp_ms, record.store_timestamp_ms) == (born, store)
    assert record.prepared_transaction_offset == prepared
    assert record.encode() == encoded


def test_a_record_with_other_parts_is_encoded_with_what_follows_from_them() -> None:
    record = decode_record(golden())
    changed = decode_record(record._replace(topic="T" * 130, body=b"longer", store_host=bytes(20)).encode())
    assert (changed.topic, changed.body, changed.store_host) == ("T" * 130, b"longer", bytes(20))
    assert (changed.size, changed.sys_flag) == (record.size + 124 + 1 + 1 + 12, SYS_STORE_HOST_V6)
    assert body_is_intact(changed)
    assert changed._replace(topic="TopicA", body=b"hello", store_host=record.store_host).encode() == golden()


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_protocol_error(data: bytes) -> None:
    for decode in (decode_record, decode_batch_body):
        with contextlib.suppress(ProtocolError):
            decode(data)


@given(st.integers(0, len(GOLDEN_RECORD) - 1), st.integers(0, 255))
def test_a_damaged_record_raises_nothing_but_a_protocol_error(position: int, value: int) -> None:
    damaged = bytearray(GOLDEN_RECORD)
    damaged[position] = value
    with contextlib.suppress(ProtocolError):
        list(decode_records(bytes(damaged)))


@given(st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=50), st.binary(max_size=50)), max_size=8))
def test_a_batch_body_survives_the_round_trip(items: list[tuple[int, bytes, bytes]]) -> None:
    decoded = decode_batch_body(encode_batch_body(items))
    assert [(item.flag, bytes(item.body), item.properties) for item in decoded] == items


def test_a_batch_is_bounded() -> None:
    body = encode_batch_body([(0, b"x", b"")] * 5)
    with pytest.raises(ProtocolError, match="more than 4"):
        decode_batch_body(body, max_count=4)


def test_properties_tolerate_what_clients_send() -> None:
    assert decode_properties(b"A\x011\x02B\x012") == {"A": "1", "B": "2"}
    assert decode_properties(b"A\x01\x02\x01x\x02A\x012\x02A\x013\x02") == {"A": "3"}
    assert encode_properties({"A": "1", "B": ""}) == b"A\x011\x02"


def test_an_ipv4_address_in_ipv6_form_is_unmapped() -> None:
    assert pack_host("::ffff:10.0.0.1", 5) == pack_host("10.0.0.1", 5)
    assert unpack_host(pack_host("fe80::1", 5)) == ("fe80::1", 5)


@pytest.mark.parametrize("text", ["", "zz", "00" * 15, "00" * 17])
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        decode_offset_message_id(text)


def test_an_oversized_record_is_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        encode_record(
            topic=b"T",
            queue_id=0,
            queue_offset=0,
            physical_offset=0,
            body=b"",
            properties=b"x" * 32768,
            born_timestamp_ms=0,
            born_host=b"\0" * 8,
            store_timestamp_ms=0,
            store_host=b"\0" * 8,
        )
