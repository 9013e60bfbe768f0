from __future__ import annotations

from random import Random

import pytest

from brokerd.store.start.checkpoint_page import PATH, SIZE_BYTES, Checkpoint, Positions, decode_page, encode_page
from tests.support.disks import FaultyDisk, MemoryDisk

POSITIONS = Positions(
    physic_timestamp_ms=1_700_000_000_123,
    logics_timestamp_ms=1_700_000_000_122,
    index_timestamp_ms=3,
    master_flushed_offset=4,
    confirm_offset=5000,
    flushed_offset=6000,
    queues_offset=4000,
    recheck_offset=1000,
)


def test_the_first_five_fields_are_where_the_original_keeps_them() -> None:
    page = encode_page(POSITIONS)
    fields = [int.from_bytes(page[n : n + 8], "big") for n in range(0, 40, 8)]
    assert fields == [1_700_000_000_123, 1_700_000_000_122, 3, 4, 5000]


def test_a_page_comes_back() -> None:
    assert decode_page(encode_page(POSITIONS).ljust(SIZE_BYTES, b"\0")) == POSITIONS


@pytest.mark.parametrize("page", [b"", bytes(SIZE_BYTES), encode_page(POSITIONS)[:40]])
def test_a_page_without_our_part_is_unknown(page: bytes) -> None:
    assert decode_page(page) is None


def test_a_page_that_another_program_went_on_with_is_unknown() -> None:
    page = bytearray(encode_page(POSITIONS))
    page[7] += 1
    assert decode_page(bytes(page)) is None


def test_negative_positions_are_unknown() -> None:
    assert decode_page(encode_page(Positions(flushed_offset=-1))) is None


def test_a_new_checkpoint_knows_nothing_until_one_is_durable() -> None:
    disk = MemoryDisk()
    checkpoint = Checkpoint(disk)
    assert not checkpoint.known
    checkpoint.positions = POSITIONS
    checkpoint.write(durable=True)
    checkpoint.close()
    again = Checkpoint(disk)
    assert again.known
    assert again.positions == POSITIONS
    assert len(disk.read_bytes(PATH) or b"") == SIZE_BYTES


def test_after_a_power_loss_the_page_is_one_of_those_written() -> None:
    seen = set()
    for seed in range(60):
        disk = FaultyDisk(Random(seed))
        checkpoint = Checkpoint(disk)
        for flushed in (100, 200, 300):
            checkpoint.positions = Positions(flushed_offset=flushed)
            checkpoint.write(durable=flushed == 100)
        disk.crash()
        page = Checkpoint(disk)
        assert page.known
        seen.add(page.positions.flushed_offset)
    assert seen == {100, 200, 300}
