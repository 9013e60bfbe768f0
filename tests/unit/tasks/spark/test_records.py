from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import lz4.frame
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from brokerd.timers.codes import due_by, number_of
from remoting.errors import ProtocolError
from remoting.record.checksum import reserve
from remoting.record.codec import Record, decode_records, encode_record
from remoting.record.hosts import offset_message_id, pack_host
from remoting.record.walk import records_in
from tasks.spark import records
from tasks.spark.records import MAX_UNPACKED_BYTES, unpacked
from tests.unit.tasks.patience import patient

ALL = tuple(records.COLUMN_TYPES)
GOLDEN = bytes.fromhex(
    "00000087daa320a73610a6860000000300000007000000000000002a0000000000001000000000000000018bcfe568000a00000100009c400000018b"
    "cfe5687b0a00000200002a9f0000000000000000000000000000000568656c6c6f06546f706963410021554e49515f4b455901553102544147530174"
    "616741024b455953016b31206b3202"
)

# Names that are looked for and others like them; and some that begin, end and are long alike, as those of one sender do
NAMES = [
    *("KEYS", "TAGS", "UNIQ_KEY", "XKEYS", "KEYS2", "UNIQ_KEY2", "__CRC32#", "__CRC32", "x" * 90),
    *("trace.header.a.values", "trace.header.b.values", "trace.header.a.value"),
    *("TIMER_DUE_MS", "TIMER_OUT_MS", "TIMER_PLACE", "TIMER_ROLL_TIMES", "TIMER_ROLL_TIMEZ", "TIMER_DEL_UNIQKEY"),
    *("TIMER_DXL_UNIQKEY", "REAL_TOPIC"),
]
NUMBERS = ["0", "7", "0012", "9" * 9, "9" * 10, "9" * 16, "9" * 17, "-1", "1.5", "12\n", "١", ""]
texts = st.text(st.characters(min_codepoint=3, max_codepoint=0x2FFF), max_size=8)
property_bytes = st.one_of(
    st.lists(
        st.tuples(st.one_of(st.sampled_from(NAMES), texts), st.one_of(texts, st.sampled_from(NUMBERS))), max_size=5
    ).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()),
    st.lists(
        st.sampled_from(
            [b"KEYS", b"TAGS", b"UNIQ_KEY", b"\x01", b"\x02", b"a", "k\u00fc \u98a8".encode(), b"\xff", b"\xe2\x82"]
        ),
        max_size=12,
    ).map(b"".join),
)
property_bytes |= property_bytes.map(lambda encoded: encoded.removesuffix(b"\x02"))
property_bytes = property_bytes | property_bytes.map(reserve)  # of records that end with a checksum
bodies = st.one_of(
    st.tuples(st.binary(max_size=40), st.sampled_from([0, 0, 1, 0x101, 0x201, 0x301, 0x401])),
    st.binary(max_size=40).map(lambda body: (zlib.compress(body), 1)),
    st.binary(max_size=40).map(lambda body: (lz4.frame.compress(body), 0x101)),
)


@st.composite
def encoded_records(draw: st.DrawFn) -> bytes:
    host = draw(st.sampled_from(["10.0.0.1", "fe80::1"]))
    store_host = draw(st.sampled_from(["10.0.0.2", "fe80::2"]))
    topics = [b"orders", b"t" * 90, b"t" * 127, b"t" * 128, b"%RETRY%" + b"g" * 240]
    topic = draw(st.one_of(st.sampled_from(topics), texts.map(str.encode)))
    body, sys_flag = draw(bodies)
    return encode_record(
        topic=topic,
        queue_id=draw(st.integers(0, 2**31 - 1)),
        queue_offset=draw(st.integers(0, 2**62)),
        physical_offset=draw(st.integers(0, 2**62)),
        body=body,
        sys_flag=sys_flag,
        properties=draw(property_bytes),
        born_timestamp_ms=draw(st.integers(0, 4_000_000_000_000)),
        born_host=pack_host(host, 4000),
        store_timestamp_ms=draw(st.integers(0, 4_000_000_000_000)),
        store_host=pack_host(store_host, 10911),
        reconsume_times=draw(st.integers(0, 2**31 - 1)),
    )


def slow(record: Record) -> dict[str, Any]:
    """What the columns mean, one record at a time."""
    properties = record.property_map()
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    rolled = properties.get("TIMER_ROLL_TIMES", "")
    return {
        "topic": record.topic,
        "broker_name": "broker-a",
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "born_ts": epoch + timedelta(milliseconds=record.born_timestamp_ms),
        "store_ts": epoch + timedelta(milliseconds=record.store_timestamp_ms),
        "reconsume_times": record.reconsume_times,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "msg_id": properties.get("UNIQ_KEY") or offset_message_id(record.store_host, record.physical_offset),
        "body_size": len(record.body),
        "properties": properties,
        "body": unpacked(record.body, record.sys_flag),
        "timer_place": number_of(properties, "TIMER_PLACE"),
        "timer_due_ms": due_by(properties),
        "timer_slot_ms": number_of(properties, "TIMER_OUT_MS"),
        "timer_rolled": int(rolled) if re.fullmatch("[0-9]{1,9}", rolled) else None,
        "timer_topic": properties.get("REAL_TOPIC"),
        "timer_recalls": properties.get("TIMER_DEL_UNIQKEY"),
    }


def fast(buffer: bytes, columns: tuple[str, ...] = ALL) -> list[dict[str, Any]]:
    batch = records.decode(buffer, records.scan(buffer), "broker-a", columns)
    batch.validate(full=True)
    return as_rows(batch)


def as_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row in rows:
        if "properties" in row:
            assert len(dict(row["properties"])) == len(row["properties"]), "a name occurs twice"
            row["properties"] = dict(row["properties"])
    return rows


@patient
@given(st.lists(encoded_records(), min_size=1, max_size=6))
def test_decodes_like_the_shared_decoder(encoded: list[bytes]) -> None:
    buffer = b"".join(encoded)
    assert fast(buffer) == [slow(record) for record in decode_records(buffer)]


@patient
@given(
    st.lists(encoded_records(), min_size=2, max_size=6), st.integers(0, 5), st.sets(st.sampled_from(ALL), min_size=1)
)
def test_part_of_a_buffer_that_lies_anywhere_is_decoded_like_a_copy(
    encoded: list[bytes], skipped: int, chosen: set[str]
) -> None:
    columns = tuple(sorted(chosen))
    received = bytearray(b"header" + b"".join(encoded))
    buffer = memoryview(received)[6:]
    starts = records.scan(buffer)[skipped % len(encoded) :]
    batch = records.decode(buffer, starts, "broker-a", columns)
    del buffer
    received[:] = bytes(len(received))  # a batch is its own, whatever becomes of what was received
    batch.validate(full=True)
    rows = [{name: slow(record)[name] for name in columns} for record in decode_records(b"".join(encoded))]
    assert as_rows(batch) == rows[skipped % len(encoded) :]


@patient
@given(st.lists(encoded_records(), min_size=1, max_size=3), st.sets(st.sampled_from(ALL), min_size=1))
def test_a_projection_has_only_the_columns_asked_for(encoded: list[bytes], chosen: set[str]) -> None:
    columns = tuple(sorted(chosen))
    buffer = b"".join(encoded)
    rows = fast(buffer, columns)
    assert [list(row) for row in rows] == [list(columns)] * len(encoded)
    assert rows == [{name: slow(record)[name] for name in columns} for record in decode_records(buffer)]


@patient
@given(st.lists(encoded_records(), min_size=1, max_size=3), st.data())
def test_damage_is_refused_or_decoded_never_anything_else(encoded: list[bytes], data: st.DataObject) -> None:
    buffer = bytearray(b"".join(encoded))
    for _ in range(data.draw(st.integers(1, 4))):
        buffer[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(buffer[: data.draw(st.integers(0, len(buffer)))])
    assert found_or_refused(records.scan, damaged) == found_or_refused(records_in, damaged)
    try:
        batch = records.decode(damaged, records.scan(damaged), "broker-a", ALL)
    except ProtocolError:
        return
    batch.validate(full=True)


def found_or_refused(find: Callable[[bytes], Iterable[int]], buffer: bytes) -> list[int] | str:
    try:
        return list(find(buffer))
    except ProtocolError as error:
        return str(error)


def test_the_golden_record() -> None:
    (row,) = fast(GOLDEN)
    assert row["topic"] == "TopicA"
    assert (row["queue_id"], row["queue_offset"], row["body"]) == (3, 42, b"hello")
    assert (row["tags"], row["keys"], row["msg_id"]) == ("tagA", "k1 k2", "U1")
    assert row["store_ts"] == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)


def test_a_message_without_a_unique_id_has_the_servers() -> None:
    anonymous = encode_record(
        topic=b"t",
        queue_id=0,
        queue_offset=0,
        physical_offset=4096,
        body=b"",
        properties=b"",
        born_timestamp_ms=0,
        born_host=pack_host("10.0.0.1", 1),
        store_timestamp_ms=0,
        store_host=pack_host("10.0.0.2", 10911),
    )
    assert [row["msg_id"] for row in fast(anonymous + GOLDEN)] == ["0A00000200002A9F0000000000001000", "U1"]


def test_nothing_decodes_to_nothing_of_the_right_types() -> None:
    starts = records.scan(b"")
    batch = records.decode(b"", starts, "broker-a", ALL)
    assert batch.num_rows == 0
    assert batch.schema == records.schema(ALL)
    assert len(records.queue_offsets(b"", starts)) == 0


@pytest.mark.parametrize(
    "tail", [b"\0" * 10, b"\0\0\0\0" + GOLDEN[4:], GOLDEN[:-1], struct.pack(">i", 90) + GOLDEN[4:]]
)
def test_a_bad_end_is_refused(tail: bytes) -> None:
    with pytest.raises(ProtocolError):
        records.scan(GOLDEN + tail)


@pytest.mark.parametrize("at", [84, 84 + 4 + 5, 84 + 4 + 5 + 7])
def test_inner_lengths_that_do_not_add_up_are_refused(at: int) -> None:
    for value in (0x7F, 0xFF):
        damaged = GOLDEN[:at] + bytes([value]) + GOLDEN[at + 1 :]
        with pytest.raises(ProtocolError, match="do not add up"):
            fast(damaged)


@pytest.mark.parametrize(
    ("kind", "compressed"),
    [
        (0x000, zlib.compress(b"x" * 1000)),
        (0x300, zlib.compress(b"x" * 1000)),
        (0x100, lz4.frame.compress(b"x" * 1000)),
        (0x200, zstandard.ZstdCompressor().compress(b"x" * 1000)),
    ],
)
def test_compressed_bodies_are_unpacked_but_counted_as_stored(kind: int, compressed: bytes) -> None:
    common = {"topic": b"t", "queue_id": 0, "queue_offset": 0, "physical_offset": 0, "properties": b""}
    hosts = {"born_host": pack_host("10.0.0.1", 1), "store_host": pack_host("10.0.0.2", 1)}
    times = {"born_timestamp_ms": 0, "store_timestamp_ms": 0}
    good = encode_record(**common, **hosts, **times, body=compressed, sys_flag=1 | kind)  # type: ignore[arg-type]
    bad = encode_record(**common, **hosts, **times, body=b"not compressed", sys_flag=1 | kind)  # type: ignore[arg-type]
    rows = fast(good + bad + GOLDEN, ("body", "body_size"))
    assert [row["body"] for row in rows] == [b"x" * 1000, None, b"hello"]
    assert rows[0]["body_size"] == len(compressed)


def test_a_body_that_unpacks_to_too_much_is_unknown() -> None:
    assert unpacked(zlib.compress(b"\0" * (MAX_UNPACKED_BYTES + 1)), 1) is None
    assert unpacked(b"anything", 0x401) is None


def test_a_damaged_record_in_the_middle_is_refused_with_its_place() -> None:
    size = len(GOLDEN)
    buffer = bytearray(GOLDEN * 100)
    buffer[50 * size + 84 + 3] ^= 1  # the length of its body
    with pytest.raises(ProtocolError, match=f"the parts of the record at byte {50 * size} do not add up to its size"):
        fast(bytes(buffer), ("queue_id",))
    buffer[50 * size + 3] ^= 1  # its own size
    with pytest.raises(ProtocolError, match=f"no record starts at offset {51 * size - 1}"):
        fast(bytes(buffer), ("queue_id",))
