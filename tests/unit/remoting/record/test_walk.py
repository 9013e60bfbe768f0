"""What is encoded is found again by the walk, by each accessor and by the codec, whatever kind of record it is; damage by none of
them as anything else than damage."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.errors import ProtocolError
from remoting.record import fields
from remoting.record.checksum import is_intact, reserve, seal
from remoting.record.codec import decode_record, decode_records, encode_filler, encode_record
from remoting.record.fields import measure
from remoting.record.layout import (
    FILLER_BYTES,
    HEAD_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_OVERHEAD_BYTES,
    SYS_V6_HOSTS,
)
from remoting.record.properties import encode_properties
from remoting.record.walk import START_BYTES, Stop, describe_damage, find_marks, look, records_in, walk

V4, V6 = bytes.fromhex("0a00000100009c40"), bytes(15) + b"\1\0\0\x2a\x9f"
FILE_BYTES = 1 << 16
MOST_BYTES = FILE_BYTES - FILLER_BYTES
TOPICS = ("T", "Thema-ü", "t" * 127, "%RETRY%" + "g" * 200)
PROPERTIES = (b"", encode_properties({"TAGS": "a", "KEYS": "k l"}), b"P\1" + b"v" * 5000 + b"\2")
KINDS = list(product((V4, V6), (V4, V6), TOPICS, PROPERTIES, (b"", b"hello"), (False, True)))

kinds = st.sampled_from(KINDS)
Kind = tuple[bytes, bytes, str, bytes, bytes, bool]


def encode(kind: Kind, offset: int, number: int = 0) -> bytes:
    born_host, store_host, topic, properties, body, has_checksum = kind
    record = encode_record(
        topic=topic.encode(),
        queue_id=3,
        queue_offset=number,
        physical_offset=offset,
        body=body,
        properties=reserve(properties) if has_checksum else properties,
        born_timestamp_ms=1_700_000_000_000,
        born_host=born_host,
        store_timestamp_ms=1_700_000_000_123 + number,
        store_host=store_host,
        flag=7,
        reconsume_times=5,
        prepared_transaction_offset=11,
    )
    return seal(record) if has_checksum else record


def log_of(chosen: list[Kind]) -> tuple[bytes, list[int]]:
    """Files of these records, and where each starts."""
    log, starts = bytearray(), []
    for number, kind in enumerate(chosen):
        remaining = FILE_BYTES - len(log) % FILE_BYTES
        if len(encode(kind, 0)) + FILLER_BYTES > remaining:
            log += encode_filler(remaining).ljust(remaining, b"\0")
        starts.append(len(log))
        log += encode(kind, len(log), number)
    return bytes(log), starts


@pytest.mark.parametrize("kind", KINDS)
def test_accessors_agree_with_the_codec(kind: Kind) -> None:
    encoded = encode(kind, 4096, 42)
    record = decode_record(encoded)
    born_host, store_host, topic, properties, body, _ = kind
    assert (record.born_host, record.store_host, record.topic, record.body) == (born_host, store_host, topic, body)
    assert record.properties.startswith(properties)
    assert (record.queue_id, record.flag, record.prepared_transaction_offset) == (3, 7, 11)
    assert fields.offsets_of(encoded) == (record.queue_offset, record.physical_offset, record.reconsume_times)
    assert (fields.queue_offset_of(encoded), fields.physical_offset_of(encoded)) == (42, 4096)
    assert fields.store_timestamp_of(encoded) == record.store_timestamp_ms
    assert fields.store_timestamp_of(encoded[: fields.STORE_TIMESTAMP_END]) == record.store_timestamp_ms
    assert fields.topic_of(encoded) == record.topic
    assert fields.properties_of(encoded) == record.properties
    assert record.size == len(encoded)
    assert is_intact(encoded)


@given(st.lists(kinds, max_size=40), st.integers(0, 1 << 40))
def test_a_walk_finds_every_record_of_a_log(chosen: list[Kind], files_before: int) -> None:
    log, starts = log_of(chosen)
    assert walk(log, 0, 0, FILE_BYTES, MOST_BYTES) == (starts, len(log), Stop.END, 0)
    for number, start in enumerate(starts):
        assert walk(log, start, start, FILE_BYTES, MOST_BYTES).records == starts[number:]
    elsewhere = walk(log, 0, FILE_BYTES * files_before, FILE_BYTES, MOST_BYTES)
    assert (elsewhere.stop is Stop.DAMAGED) == bool(starts and files_before)
    moved = walk(log, 0, FILE_BYTES * files_before, FILE_BYTES, MOST_BYTES, in_place=False)
    assert moved == (starts, len(log), Stop.END, 0)


@given(st.lists(kinds, min_size=1, max_size=8), st.data())
def test_a_walk_of_a_part_ends_before_the_record_that_was_cut(chosen: list[Kind], data: st.DataObject) -> None:
    log, starts = log_of(chosen)
    cut = data.draw(st.integers(0, len(log)))
    found = walk(log[:cut], 0, 0, FILE_BYTES, MOST_BYTES)
    ends = [0, *(start + decode_record(log, start).size for start in starts)]
    assert found.records == [start for start, end in zip(starts, ends[1:], strict=True) if end <= cut]
    assert found.stop is (Stop.END if found.end == cut else Stop.PARTIAL)
    if cut - found.end >= FILLER_BYTES:
        whole = walk(log[: found.end + found.needs], 0, 0, FILE_BYTES, MOST_BYTES)
        assert (whole.end, whole.stop) == (found.end + found.needs, Stop.END)
    else:
        assert found.needs == 0


@given(st.lists(kinds, max_size=20))
def test_an_answer_is_records_back_to_back(chosen: list[Kind]) -> None:
    encoded = [encode(kind, 7919 * number, number) for number, kind in enumerate(chosen)]
    answer = b"".join(encoded)
    starts = records_in(answer)
    assert [decode_record(answer, start) for start in starts] == list(decode_records(answer))
    assert len(starts) == len(encoded)
    if answer:
        with pytest.raises(ProtocolError, match="bytes are left"):
            records_in(answer[:-1])
        with pytest.raises(ProtocolError, match="no record starts"):
            records_in(answer + bytes(FILLER_BYTES))


@given(st.lists(kinds, min_size=1, max_size=6))
def test_marks_are_found_wherever_a_record_starts(chosen: list[Kind]) -> None:
    log, starts = log_of(chosen)
    assert set(starts) <= set(find_marks(log))


def declared(read: Callable[[bytes], Any], data: bytes) -> None:
    """No bytes make it raise anything but what it says."""
    with contextlib.suppress(ProtocolError):
        read(data)


@given(kinds, st.data())
def test_damaged_bytes_give_what_is_declared(kind: Kind, data: st.DataObject) -> None:
    damaged = bytearray(encode(kind, 0))
    for _ in range(data.draw(st.integers(1, 3))):
        # The head and the lengths behind the body matter more than what lies between
        place = data.draw(st.integers(0, min(len(damaged), 140) - 1) | st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    content = bytes(damaged[: data.draw(st.integers(RECORD_OVERHEAD_BYTES, len(damaged)))])
    found = walk(content, 0, 0, FILE_BYTES, MOST_BYTES)
    assert 0 <= found.end <= len(content)
    assert found.records in ([], [0])
    assert (found.needs > 0) == (found.stop is Stop.PARTIAL and len(content) - found.end >= FILLER_BYTES)
    declared(decode_record, content)
    declared(lambda each: list(decode_records(each)), content)
    declared(records_in, content)
    declared(fields.topic_of, content)
    declared(fields.properties_of, content)


@given(st.binary(max_size=300), st.integers(0, 40), st.integers(0, 2 * FILE_BYTES))
def test_no_bytes_make_a_walk_raise(data: bytes, position: int, offset: int) -> None:
    position = min(position, len(data))
    stop, size, _ = look(data, position, offset, FILE_BYTES, MOST_BYTES)
    found = walk(data, position, offset, FILE_BYTES, MOST_BYTES)
    assert position <= found.end <= len(data)
    if stop is not None:
        assert found == ([], position, stop, size)
    if stop is Stop.DAMAGED:
        assert f"offset {offset}" in describe_damage(data, position, offset, FILE_BYTES)


@given(
    st.binary(min_size=RECORD_OVERHEAD_BYTES, max_size=160),
    st.integers(-200, 200),
    st.sampled_from([MAGIC_V1, MAGIC_V2]),
    st.sampled_from([0, SYS_V6_HOSTS]),
)
def test_no_parts_are_found_beyond_the_end(data: bytes, body_length: int, magic: int, hosts: int) -> None:
    places = measure(data, 0, len(data), magic, hosts, body_length)
    if places is not None:
        body_at, body_end, topic_at, topic_end = places
        assert HEAD_BYTES <= body_at <= body_end < topic_at <= topic_end < len(data)


def test_the_start_of_a_record_tells_that_it_is_one() -> None:
    record = encode(KINDS[0], 4096)
    for length in range(FILLER_BYTES, START_BYTES):
        assert look(record[:length], 0, 8192, FILE_BYTES, MOST_BYTES) == (Stop.PARTIAL, len(record), True)
    assert look(record[:START_BYTES], 0, 8192, FILE_BYTES, MOST_BYTES)[0] is Stop.DAMAGED
    assert look(record[:START_BYTES], 0, 4096, FILE_BYTES, MOST_BYTES) == (Stop.PARTIAL, len(record), True)
