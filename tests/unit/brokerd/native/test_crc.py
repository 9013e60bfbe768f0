"""The CRC-32 in C is that of `remoting.checksum`, with and without the processor's help."""

from __future__ import annotations

import ctypes
from random import Random

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
