"""The checksum over whole records: what brokers of the original wrote is verified, and ours are as theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.store.derived.derive import RecordShape, derive
from brokerd.store.settings import StoreSettings
from remoting.errors import CorruptedFile, RequestError
from remoting.record.checksum import is_intact, reserve, seal
from remoting.record.codec import decode_record, encode_record
from remoting.record.layout import MAX_PROPERTIES_BYTES
from remoting.record.walk import Stop
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import BORN_HOST, SETTINGS, STORE_HOST, draft, log_bytes, open_store, put

GOLDEN = Path(__file__).parents[3] / "golden" / "rocketmq-5.3.3" / "index-crc" / "commitlog"
SHAPE = RecordShape(1 << 20, 1 << 19, check_content=True)
CHECKED = StoreSettings(
    segment_size_bytes=SETTINGS.segment_size_bytes,
    queue_file_units=16,
    record_checksums=True,
    index_slots=16,
    index_items=24,
)


def record(body: bytes, properties: bytes) -> bytes:
    return encode_record(
        topic=b"TopicA", queue_id=3, queue_offset=42, physical_offset=0, body=body, properties=properties,
        born_timestamp_ms=1_700_000_000_000, born_host=BORN_HOST, store_timestamp_ms=1_700_000_000_123, store_host=STORE_HOST,
    )  # fmt: skip


def records_of_the_original() -> list[bytes]:
    data, found, position = GOLDEN.read_bytes(), [], 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        found.append(data[position : position + size])
        position += size
    return found


def test_the_originals_records_are_as_we_would_seal_them() -> None:
    originals = records_of_the_original()
    assert len(originals) == 24
    for original in originals:
        assert original[-20:-11] == b"__CRC32#\x01"
        assert is_intact(original)
        assert seal(original) == original


def test_every_flipped_bit_of_the_originals_records_is_noticed() -> None:
    original = records_of_the_original()[0]
    assert derive(original, 0, SHAPE).stop is Stop.END
    for position in range(len(original)):
        damaged = bytearray(original)
        damaged[position] ^= 4
        derived = derive(damaged, 0, SHAPE)
        if position in range(len(original) - 20, len(original) - 11):
            continue  # then it looks like a record without one, or its properties end differently
        assert (derived.stop, derived.end_offset) != (Stop.END, len(original)), position


def test_properties_without_an_end_get_one() -> None:
    assert reserve(b"a\x01b") == b"a\x01b\x02" + reserve(b"")
    assert reserve(b"a\x01b\x02") == b"a\x01b\x02" + reserve(b"")
    assert len(reserve(b"")) == 20


@given(st.binary(min_size=1, max_size=50), st.sampled_from([b"", b"a\x01b", b"TAGS\x01x\x02"]), st.data())
def test_sealed_records_are_intact_until_a_bit_changes(body: bytes, properties: bytes, data: st.DataObject) -> None:
    sealed = seal(record(body, reserve(properties)))
    assert is_intact(sealed)
    assert decode_record(sealed).body == body
    damaged = bytearray(sealed)
    damaged[data.draw(st.integers(0, len(sealed) - 21))] ^= 1 << data.draw(st.integers(0, 7))
    assert not is_intact(damaged)


def test_a_golden_checksum() -> None:
    properties = b"UNIQ_KEY\x01U1\x02TAGS\x01tagA\x02KEYS\x01k1 k2\x02"
    sealed = seal(
        encode_record(
            topic=b"TopicA", queue_id=3, queue_offset=42, physical_offset=4096, body=b"hello", properties=reserve(properties),
            born_timestamp_ms=1_700_000_000_000, born_host=BORN_HOST, store_timestamp_ms=1_700_000_000_123,
            store_host=STORE_HOST, flag=7,
        )
    )  # fmt: skip
    assert len(sealed) == 155
    assert sealed.endswith(b"__CRC32#\x015205287520\x02")


def test_a_store_seals_what_it_appends_and_finds_damage_at_its_start() -> None:
    disk = MemoryDisk()
    store = open_store(disk, settings=CHECKED)
    results = put(store, draft(b"a"), draft(b"b", properties=b"k\x01v"), draft(b"c"))
    for result in results:
        sealed = store.read_physical(result.physical_offset)
        assert sealed is not None
        assert len(sealed) == result.size
        assert seal(sealed) == sealed
    store.close()
    again = open_store(disk, settings=CHECKED)
    assert len(log_bytes(again)) == results[-1].end_offset
    again.close()
    segment = disk.open("commitlog/" + "0" * 20)
    segment.write(results[1].physical_offset + 16, (b"\0\0\0\x09",))  # the flag, which nothing else covers
    segment.close()
    with pytest.raises(CorruptedFile, match="damaged"):
        open_store(disk, settings=CHECKED)


def test_messages_keep_together_with_their_checksums() -> None:
    store = open_store(MemoryDisk(), settings=CHECKED)
    store.append_messages([draft(b"x" * 3000)])
    results = store.append_messages([draft(b"y" * 400)] * 2, together=True)
    assert results[0].end_offset == results[1].physical_offset


def test_the_limit_of_properties_counts_the_checksum() -> None:
    settings = StoreSettings(segment_size_bytes=1 << 20, record_checksums=True, index_enabled=False)
    store = open_store(MemoryDisk(), settings=settings)
    fitting = b"k\x01" + b"v" * (MAX_PROPERTIES_BYTES - 23) + b"\x02"
    store.append_messages([draft(b"a", properties=fitting)])
    with pytest.raises(RequestError, match="properties"):
        store.append_messages([draft(b"a", properties=b"v" + fitting)])
