"""What the original wrote is decoded, and encoded again to the same bytes: tests/golden/README.md says how it was made."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.replication.epochs.epoch_list import EpochEntry, decode_epochs, encode_epochs
from brokerd.store.log.derive import RecordShape, derive
from brokerd.store.settings import StoreSettings
from brokerd.store.start.checkpoint_page import Positions, decode_page, encode_page
from brokerd.store.store import MessageStore
from brokerd.store.unit import UNIT
from remoting.record.batch import decode_batch_body
from remoting.record.codec import Record, body_is_intact, decode_record, encode_filler
from remoting.record.layout import (
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
)
from remoting.record.walk import Stop
from tests.support.client_bytes import encode_batch_body
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import STORE_HOST, Clock

GOLDEN = Path(__file__).parents[3] / "golden" / "rocketmq-5.3.3"
SEGMENT_BYTES = 1 << 16
SHAPE = RecordShape(SEGMENT_BYTES, SEGMENT_BYTES, check_content=True)
FILES = (0, SEGMENT_BYTES)
LOGS = pytest.mark.parametrize("log", ["log", "log-ipv6"])
QUEUES = {"TopicA": "TopicA", "retry": "%RETRY%GID_" + "long" * 30, "half": "RMQ_SYS_TRANS_HALF_TOPIC"}


def part(log: str, name: str) -> bytes:
    return (GOLDEN / log / name).read_bytes()


def file_of(log: str, start: int) -> bytes:
    """A file of the log, with the zeros behind its end that the golden one lacks."""
    return part(log, f"commitlog-{start:020d}").ljust(SEGMENT_BYTES, b"\0")


def records(log: str) -> Iterator[tuple[bytes, Record]]:
    """Every record's bytes, and what they say."""
    for start in FILES:
        content = file_of(log, start)
        position = 0
        while int.from_bytes(content[position + 4 : position + 8], "big") in (MAGIC_V1, MAGIC_V2):
            record = decode_record(content, position)
            yield content[position : position + record.size], record
            position += record.size


@LOGS
def test_every_record_is_encoded_to_its_bytes(log: str) -> None:
    for content, record in records(log):
        assert body_is_intact(record)
        assert content == record.encode(), record


@LOGS
def test_every_kind_is_among_them(log: str) -> None:
    found = list(records(log))
    magics = {int.from_bytes(content[4:8], "big"): record.topic for content, record in found}
    assert magics[MAGIC_V2] == QUEUES["retry"]
    flags = [record.sys_flag for _, record in found]
    assert any(flag & SYS_COMPRESSED for flag in flags)
    transactions = {flag & SYS_TRANSACTION_MASK for flag in flags}
    assert SYS_TRANSACTION_COMMIT in transactions
    v6 = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6 if log == "log-ipv6" else 0
    assert {flag & (SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6) for flag in flags} == {v6}
    half = [record for _, record in found if record.topic == QUEUES["half"]]
    assert [record.body for record in half] == [b"in a transaction"]
    assert half[0].sys_flag & SYS_TRANSACTION_MASK != SYS_TRANSACTION_PREPARED, "until it is committed it says nothing"
    batch = decode_batch_body((GOLDEN / "batch").read_bytes())
    assert {bytes(item.body) for item in batch} <= {record.body for _, record in found}


@LOGS
def test_the_filler_ends_the_file(log: str) -> None:
    content = file_of(log, 0)
    derived = derive(content, 0, SHAPE)
    assert (derived.stop, derived.end_offset) == (Stop.END, SEGMENT_BYTES)
    end = max(
        record.physical_offset + record.size for _, record in records(log) if record.physical_offset < SEGMENT_BYTES
    )
    assert content[end : end + 8] == encode_filler(SEGMENT_BYTES - end)


@LOGS
@pytest.mark.parametrize("queue", QUEUES)
def test_the_log_gives_the_units_of_its_queues(log: str, queue: str) -> None:
    entries = [entry for start in FILES for entry in derive(file_of(log, start), start, SHAPE).entries]
    own = [entry for entry in entries if entry[:2] == (QUEUES[queue], 0)]
    assert [entry[2] for entry in own] == list(range(len(own)))
    units = b"".join(UNIT.pack(*entry[3:6]) for entry in own)
    assert units == part(log, f"consumequeue-{queue}")
    assert len(own) > 0


@LOGS
def test_the_checkpoint_is_read_as_far_as_it_is_the_originals(log: str) -> None:
    page = part(log, "checkpoint")
    assert len(page) == 4096
    assert decode_page(page) is None, "it does not prove what ours does"
    numbers = struct.unpack_from(">5q", page)
    assert numbers[0] in {record.store_timestamp_ms for _, record in records(log)}
    assert encode_page(Positions(*numbers))[:40] == page[:40]


@LOGS
def test_the_epochs(log: str) -> None:
    content = part(log, "epochFileCheckpoint")
    entries = decode_epochs(content, "epochFileCheckpoint")
    assert entries == [EpochEntry(1, 0)]
    assert encode_epochs(entries) == content


def test_the_body_of_a_batch() -> None:
    content = (GOLDEN / "batch").read_bytes()
    items = decode_batch_body(content)
    assert [(item.flag, bytes(item.body)) for item in items] == [(7, b"hello"), (0, b""), (-1, "h\u00e9".encode())]
    assert b"KEYS\x01k1 k2\x02" in items[0].properties
    assert encode_batch_body([(item.flag, bytes(item.body), item.properties) for item in items]) == content


@LOGS
def test_the_directory_opens(log: str) -> None:
    disk = MemoryDisk()
    for start in FILES:
        disk.replace_bytes(f"commitlog/{start:020d}", file_of(log, start))
    disk.replace_bytes("checkpoint", part(log, "checkpoint"))
    store = MessageStore(disk, StoreSettings(segment_size_bytes=SEGMENT_BYTES), Clock(), STORE_HOST)
    store.load()
    store.dispatch(store.commitlog.complete_offset)
    expected = [record for _, record in records(log)]
    assert store.commitlog.end_offset == expected[-1].physical_offset + expected[-1].size
    for queue, topic in QUEUES.items():
        result = store.read_messages(topic, 0, 0, 100, 1 << 20)
        own = [record for record in expected if record.topic == topic and record.queue_id == 0]
        assert [decode_record(each) for each in result.records] == own, queue
    store.close()
