"""Areas for records: who has what was written to one has it for himself."""

from __future__ import annotations

import ctypes

from brokerd.sending.boundary import Source
from brokerd.sending.record_areas import LEAST_LENT, RecordAreas
from tests.support.native_library import native_library
from tests.unit.brokerd.sending.kernel_sends import SINGLE, json_send
from tests.unit.brokerd.sending.test_native_kernel import PEER, kernels, new_run

SIZE = 2 * LEAST_LENT


def write(areas: RecordAreas, letter: bytes, length: int = SIZE) -> bytes | memoryview:
    """As the library does, by the address."""
    ctypes.memmove(areas.address, letter * length, length)
    return areas.take(length)


def test_what_somebody_has_stays_as_it_is() -> None:
    areas = RecordAreas(SIZE, 4)
    letters = [bytes([letter]) for letter in b"abcdefgh"]
    had = [write(areas, letter) for letter in letters]
    assert [bytes(each) for each in had] == [letter * SIZE for letter in letters]
    assert [type(each) for each in had] == [memoryview] * 3 + [bytes] * 5, "the fourth is the one to write to"


def test_an_area_is_used_again_when_nobody_has_what_was_in_it() -> None:
    areas = RecordAreas(SIZE, 2)
    addresses = {areas.address}
    for _ in range(9):
        assert isinstance(write(areas, b"x"), memoryview)
        addresses.add(areas.address)
    assert len(addresses) == 2


def test_little_is_copied() -> None:
    areas = RecordAreas(SIZE, 2)
    address = areas.address
    assert write(areas, b"x", LEAST_LENT - 1) == b"x" * (LEAST_LENT - 1)
    assert areas.address == address
    assert areas.written[:2] == b"xx"


def test_runs_that_are_laid_out_in_turn_keep_their_records() -> None:
    """Also more of them than there are areas."""
    pair = kernels(native_library())
    data = json_send(SINGLE, body=b"b" * SIZE)
    runs = [[new_run() for _ in range(12)] for _ in pair]
    for kernel, its in zip(pair, runs, strict=True):
        for run in (*its, *its):
            kernel.take(run, [Source(data, 0, PEER, 9)])
    wanted, found = ([b"".join(run.records) for run in its] for its in runs)
    assert found == wanted
