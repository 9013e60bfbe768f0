"""The examples in docs/ON_DISK.md are the bytes that the code reads and writes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from brokerd.store.log.derive import RecordShape, derive
from brokerd.store.queues import queue_ends, unit_checks
from brokerd.store.queues.queue_ends import QueueEnd, QueueEnds
from brokerd.store.start.checkpoint_page import Positions, decode_page, encode_page
from brokerd.store.unit import BLANK_UNIT, UNIT
from remoting.java_hash import java_hash
from remoting.record.checksum import is_intact, reserve, seal
from remoting.record.codec import body_is_intact, decode_record, encode_filler, encode_record
from remoting.record.hosts import offset_message_id
from remoting.record.walk import Stop

DOCUMENT = Path(__file__).parents[4] / "docs" / "ON_DISK.md"
_BLOCK = re.compile(r"^```text ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@cache
def examples() -> dict[str, bytes]:
    """The bytes of each marked block; each line is position, hexadecimal bytes, words."""
    found = {}
    for name, block in _BLOCK.findall(DOCUMENT.read_text()):
        content = b""
        for line in block.splitlines():
            position, digits, *_ = line.split()
            assert int(position) == len(content), f"{name}: {line!r} is at {len(content)}"
            content += bytes.fromhex(digits)
        found[name] = content
    return found


def test_every_layout_has_its_example() -> None:
    layouts = {
        "record at 4096",
        "sealed record at 4096",
        "filler",
        "unit",
        "blank unit",
        "checkpoint",
        "raft log",
        "raft snapshot",
        "queue ends",
        "unit checks",
    }
    assert set(examples()) == layouts


def test_the_queue_ends() -> None:
    ends = (QueueEnd("TopicA", 3, 0, 43, 4096),)
    assert queue_ends.decode(examples()["queue ends"]) == QueueEnds(4231, 16, ends)
    assert queue_ends.encode(4231, 16, ends) == examples()["queue ends"]


def test_the_unit_checks() -> None:
    checks = unit_checks.extended(unit_checks.NOT_KNOWN, 0, examples()["unit"])
    assert unit_checks.encode(checks) == examples()["unit checks"]
    assert not list(unit_checks.failing(unit_checks.decode(examples()["unit checks"]), examples()["unit"]))


def test_the_record() -> None:
    data = examples()["record at 4096"]
    record = decode_record(data)
    assert (record.size, len(data), record.body_crc) == (135, 135, 907060870)
    assert body_is_intact(record)
    assert record.property_map() == {"UNIQ_KEY": "U1", "TAGS": "tagA", "KEYS": "k1 k2"}
    assert offset_message_id(record.store_host, record.physical_offset) == "0A00000200002A9F0000000000001000"
    assert data == encode_record(
        topic=b"TopicA",
        queue_id=3,
        queue_offset=42,
        physical_offset=4096,
        body=b"hello",
        properties=record.properties,
        born_timestamp_ms=1_700_000_000_000,
        born_host=bytes.fromhex("0a00000100009c40"),
        store_timestamp_ms=1_700_000_000_123,
        store_host=bytes.fromhex("0a00000200002a9f"),
        flag=7,
    )


def test_the_record_with_its_checksum() -> None:
    plain, sealed = decode_record(examples()["record at 4096"]), examples()["sealed record at 4096"]
    assert sealed == seal(plain._replace(properties=reserve(plain.properties)).encode())
    assert is_intact(sealed)
    assert decode_record(sealed).property_map() == plain.property_map()


def test_the_unit_is_that_of_the_record() -> None:
    derived = derive(examples()["record at 4096"], 4096, RecordShape(1 << 30, 1 << 22, check_content=True))
    assert derived.stop is Stop.END
    ((_, _, _, physical_offset, size, code, _, _),) = derived.entries
    assert code == java_hash("tagA")
    assert examples()["unit"] == UNIT.pack(physical_offset, size, code)


def test_the_blank_unit() -> None:
    assert examples()["blank unit"] == BLANK_UNIT


def test_the_filler() -> None:
    assert examples()["filler"] == encode_filler(96)


def test_the_checkpoint() -> None:
    expected = Positions(
        physic_timestamp_ms=1_700_000_000_123,
        logics_timestamp_ms=1_700_000_000_123,
        confirm_offset=4231,
        flushed_offset=4231,
        queues_offset=4096,
    )
    assert decode_page(examples()["checkpoint"]) == expected
    assert examples()["checkpoint"] == encode_page(expected)


@pytest.mark.parametrize(
    "path",
    ["commitlog", "consumequeue", "checkpoint", "abort", "epochFileCheckpoint", "masterEpochSeen", "brokerIdentity"],
)
def test_every_file_is_listed(path: str) -> None:
    assert f"`{path}" in DOCUMENT.read_text()
