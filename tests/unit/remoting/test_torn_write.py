"""Torn or rotten: what is missing by whole sectors is torn, what is there and wrong is rotten."""

from __future__ import annotations

import pytest

from remoting.torn_write import LEAST_BYTES, SECTOR_BYTES, has_unwritten_sector, is_torn, shares

RECORD = bytes(range(1, 256)) * 8


def test_shares_end_where_sectors_do() -> None:
    assert [len(share) for share in shares(bytes(1300), 500)] == [12, 512, 512, 264]
    assert [len(share) for share in shares(bytes(512), 1024)] == [512]
    assert [len(share) for share in shares(bytes(3), 511)] == [1, 2]
    assert list(shares(b"", 77)) == []


def test_a_file_that_ends_inside_the_record_was_torn() -> None:
    for found in range(len(RECORD)):
        assert is_torn(RECORD[:found], 3000, len(RECORD))
    assert not is_torn(RECORD, 3000, len(RECORD))


@pytest.mark.parametrize("position", [0, 1, 300, 448, 512, 5000])
def test_a_sector_that_was_never_written_was_torn(position: int) -> None:
    start = 0
    for share in list(shares(RECORD, position)):
        end = start + len(share)
        torn = RECORD[:start] + bytes(len(share)) + RECORD[end:]
        assert is_torn(torn, position, len(RECORD)) == (len(share) >= LEAST_BYTES)
        assert is_torn(torn, position, len(RECORD), least_bytes=1)
        start = end


def test_zeros_that_fill_no_share_are_rot() -> None:
    damaged = RECORD[:10] + bytes(SECTOR_BYTES - 2) + RECORD[10 + SECTOR_BYTES - 2 :]
    assert not is_torn(damaged, 0, len(RECORD))
    assert not has_unwritten_sector(damaged, 0)


def test_a_flipped_bit_is_rot() -> None:
    for byte in range(len(RECORD)):
        damaged = bytearray(RECORD)
        damaged[byte] ^= 1 << (byte % 8)
        assert not is_torn(bytes(damaged), 100, len(RECORD))
