"""The checksum over whole records: what brokers of the original wrote is verified, and ours are as theirs."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.store.draft import Draft
from brokerd.store.log.derive import RecordShape, derive
from brokerd.store.settings import StoreSettings
from remoting.errors import CorruptedFile
from remoting.record.checksum import TAIL_BYTES, first_damaged, is_intact, reserve, seal, without
from remoting.record.codec import decode_record, encode_record
from remoting.record.layout import MAX_PROPERTIES_BYTES
from remoting.record.walk import Stop
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import (
    BORN_HOST,
    SETTINGS,
    STORE_HOST,
    bodies,
    dispatch_all,
    draft,
    log_bytes,
    log_entries,
    open_store,
    put,
    sync,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "rocketmq-5.3.3" / "index-crc" / "commitlog"
SHAPE = RecordShape(1 << 20, 1 << 19, check_content=True)
CHECKED = StoreSettings(
    segment_size_bytes=SETTINGS.segment_size_bytes,
    queue_file_units=16,
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
    for position, bit in product(range(len(original)), range(8)):
        damaged = bytearray(original)
        damaged[position] ^= 1 << bit
        derived = derive(damaged, 0, SHAPE)
        assert (derived.stop, derived.end_offset) != (Stop.END, len(original)), (position, bit)
        assert not is_intact(damaged), (position, bit)


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
    damaged[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not is_intact(damaged)


@given(st.integers(0, 9), st.integers(0, 7), st.integers(0, 60), st.integers(0, 7))
def test_a_record_whose_checksum_lost_its_name_is_not_taken_for_one_without(
    at: int, bit: int, other: int, b: int
) -> None:
    """Two bits change: one makes the checksum look like another property, which leaves the other one to nobody."""
    sealed = bytearray(seal(record(b"body", reserve(b"TAGS\x01x\x02"))))
    sealed[len(sealed) - TAIL_BYTES + at] ^= 1 << bit
    sealed[other] ^= 1 << b
    assert not is_intact(sealed)


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


@pytest.mark.parametrize("room", [0, 1, 19, 20, 21])
def test_properties_without_room_for_a_checksum_are_stored_without(room: int) -> None:
    settings = StoreSettings(segment_size_bytes=1 << 20, index_enabled=False)
    store = open_store(MemoryDisk(), settings=settings)
    properties = b"k\x01" + b"v" * (MAX_PROPERTIES_BYTES - 3 - room) + b"\x02"
    stored = store.commitlog.record_at(put(store, draft(b"a", properties=properties))[0].physical_offset)
    assert stored is not None
    assert decode_record(stored).properties == (properties if room < 20 else properties + stored[-TAIL_BYTES:])
    assert without(decode_record(stored).properties) == properties


def test_a_checksum_makes_no_message_too_large() -> None:
    store = open_store(MemoryDisk(), settings=CHECKED)
    least = put(store, draft(b""))[0].size
    for room in (0, 1, 19, 20, 21):
        size = CHECKED.largest_record_bytes - room
        result = put(store, draft(bytes(size - least + TAIL_BYTES)))[0]
        assert result.size == (size if room < TAIL_BYTES else size + TAIL_BYTES)
    together = [draft(bytes(CHECKED.segment_size_bytes // 2 - least + 10))] * 2
    results = store.append_messages(together, together=True)
    assert results[0].end_offset == results[1].physical_offset


@pytest.mark.parametrize("seals", [False, True])
def test_a_message_that_is_stored_again_does_not_bring_the_checksum_of_its_old_record(seals: bool) -> None:
    store = open_store(MemoryDisk(), settings=CHECKED)
    first = store.commitlog.record_at(put(store, draft(b"a"))[0].physical_offset)
    assert first is not None
    store.adds_checksums = seals
    again = store.commitlog.record_at(put(store, Draft.again(decode_record(first)))[0].physical_offset)
    assert again is not None
    assert again.count(b"__CRC32#") == seals
    assert without(decode_record(again).properties) == without(decode_record(first).properties) == draft().properties


def test_a_checksum_is_no_property_of_its_message() -> None:
    sealed = seal(record(b"body", reserve(b"TAGS\x01a\x02")))
    assert decode_record(sealed).property_map() == {"TAGS": "a"}
    assert decode_record(sealed).encode() == sealed, "but it is among those that are stored"


@given(st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([0, 1, 2])), min_size=1, max_size=8), st.data())
def test_the_first_damaged_of_many_records_is_found(parts: list[tuple[bytes, int]], data: st.DataObject) -> None:
    """Records with and without a checksum among one another."""
    records = []
    for body, kind in parts:
        properties = b"TAGS\x01a\x02"
        records.append(record(body, properties) if kind == 0 else seal(record(body, reserve(properties))))
    joined = bytearray(b"".join(records))
    ends = list(accumulate(map(len, records)))
    begins = [0, *ends[:-1]]
    assert first_damaged(joined, begins, ends) is None
    which = data.draw(st.integers(0, len(parts) - 1))
    if parts[which][1]:
        joined[data.draw(st.integers(begins[which], ends[which] - 1))] ^= 1 << data.draw(st.integers(0, 7))
        assert first_damaged(joined, begins, ends) == begins[which]


@pytest.mark.parametrize("seals", [False, True])
def test_a_log_of_a_version_without_checksums_goes_on_with_them_and_back(seals: bool) -> None:
    """An upgrade changes nothing of what is there, and neither does a way back: each reads what the other wrote."""
    disk, without_any = MemoryDisk(), replace(CHECKED, record_checksums=False)
    written = []
    for life in range(4):
        store = open_store(disk, settings=CHECKED if life % 2 == seals else without_any)
        dispatch_all(store)
        assert bodies(store) == written, "what was there is read"
        for number in range(10):
            written.append(b"%d of life %d" % (number, life))
            put(store, draft(written[-1]))
        sync(store)
        assert bodies(store) == written
        records = [store.commitlog.record_at(offset) for _, _, _, offset, *_ in log_entries(store)]
        assert {record is not None and b"__CRC32#" in record for record in records[-10:]} == {life % 2 == seals}
        if life < 2:
            store.close()
        else:
            store.abandon()  # a start that has to look at the log
