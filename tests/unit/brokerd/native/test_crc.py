"""The CRC-32 in C is that of `remoting.checksum`, with and without the processor's help."""

from __future__ import annotations

import ctypes
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.checksum import crc32
from tests.support.native_library import native_library


def test_lengths_and_places_of_all_kinds() -> None:
    native = native_library().function(
        "native_crc32", ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32
    )
    rng = Random(7)
    data = rng.randbytes(70_000)
    place = ctypes.create_string_buffer(data, len(data))
    begin = ctypes.addressof(place)
    lengths = [*range(300), *(rng.randrange(70_000 - 64) for _ in range(200))]
    for length in lengths:
        at, before = rng.randrange(64), rng.choice((0, 1, 0xFFFFFFFF, rng.getrandbits(32)))
        wanted = crc32(data[at : at + length], before)
        assert [native(before, begin + at, length, plainly) for plainly in (0, 1)] == [wanted] * 2, (at, length)


@pytest.mark.parametrize("plainly", [0, 1])
@given(data=st.data())
def test_the_sum_of_two_pieces_follows_from_theirs(data: st.DataObject, plainly: int) -> None:
    joined = native_library().function(
        "native_crc32_joined", ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_int32
    )
    before, behind = data.draw(st.binary(max_size=100)), data.draw(sized(st.integers(0, 5000)))
    assert joined(crc32(before), crc32(behind), len(behind), plainly) == crc32(before + behind)


def sized(lengths: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    return st.builds(lambda length, seed: Random(seed).randbytes(length), lengths, st.integers(0, 99))


def test_long_pieces_are_joined_up_to_16_mib() -> None:
    joined = native_library().function(
        "native_crc32_joined", ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_int32
    )
    before, behind = b"before", Random(7).randbytes((1 << 24) - 1)
    for length in (0, 1, 255, 256, 257, 65_535, 65_536, 65_537, 1 << 22, (1 << 22) + 1, (1 << 24) - 1):
        wanted = crc32(before + behind[:length])
        for plainly in (0, 1):
            assert joined(crc32(before), crc32(behind[:length]), length, plainly) == wanted, (length, plainly)
