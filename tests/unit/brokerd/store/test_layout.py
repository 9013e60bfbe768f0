from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.store.log.boundaries import BoundaryTracker
from brokerd.store.log.layout import (
    check_file_starts,
    file_name,
    file_start,
    must_roll,
    parse_file_name,
)
from brokerd.store.settings import StoreSettings
from remoting.errors import CorruptedFile, ProtocolError, SettingsError
from remoting.record.codec import encode_filler
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import SEGMENT_BYTES, SETTINGS, draft, log_bytes, open_store, put


def test_file_names_have_20_digits_and_parse_back() -> None:
    assert file_name(0) == "00000000000000000000"
    assert file_name(1 << 30) == "00000000001073741824"
    assert parse_file_name("00000000001073741824") == 1 << 30


@pytest.mark.parametrize("name", ["1073741824", "0000000000107374182x", "٠" * 20, "", "00000000001073741824.new"])
def test_other_names_are_no_log_files(name: str) -> None:
    assert parse_file_name(name) is None


@given(st.integers(0, 1 << 50), st.integers(1, 1 << 31))
def test_an_offset_lies_in_the_file_that_starts_before_it(offset: int, size: int) -> None:
    start = file_start(offset, size)
    assert start % size == 0
    assert start <= offset < start + size


def test_a_record_rolls_when_a_filler_would_no_longer_fit_behind_it() -> None:
    assert not must_roll(92, 100)
    assert must_roll(93, 100)


def test_a_filler_says_how_many_bytes_remain() -> None:
    assert encode_filler(4096).hex() == "00001000cbd43194"


def test_files_with_a_hole_or_of_another_size_are_refused() -> None:
    check_file_starts([8192, 12288], 4096, "commitlog")
    with pytest.raises(CorruptedFile, match="00000000000000004096 is missing"):
        check_file_starts([0, 8192], 4096, "commitlog")
    with pytest.raises(CorruptedFile, match="another size than 4096"):
        check_file_starts([1000], 4096, "commitlog")


def test_a_record_must_fit_into_a_file_with_its_filler() -> None:
    assert StoreSettings(segment_size_bytes=4096).largest_record_bytes == 4088
    with pytest.raises(SettingsError, match=r"store\.segment_size_bytes is 10; it must be at least 4096"):
        StoreSettings(segment_size_bytes=10)


def some_log() -> bytes:
    """Three files' worth of records of many sizes, with fillers."""
    store = open_store(MemoryDisk())
    n = 0
    while store.commitlog.end_offset < 2 * SEGMENT_BYTES + 1000:
        put(store, draft(bytes(1 + n * 37 % 900)))
        n += 1
    return log_bytes(store)


LOG = some_log()


def boundaries() -> list[int]:
    tracker = BoundaryTracker(0, SEGMENT_BYTES, SETTINGS.largest_record_bytes)
    found = [0]
    for position in range(len(LOG)):
        tracker.feed(position, LOG[position : position + 1])
        if tracker.complete_offset != found[-1]:
            found.append(tracker.complete_offset)
    return found


BOUNDARIES = boundaries()


def test_boundaries_fed_byte_by_byte_are_those_fed_at_once() -> None:
    tracker = BoundaryTracker(0, SEGMENT_BYTES, SETTINGS.largest_record_bytes)
    tracker.feed(0, LOG)
    assert tracker.complete_offset == len(LOG) == BOUNDARIES[-1]
    assert {SEGMENT_BYTES, 2 * SEGMENT_BYTES} < set(BOUNDARIES)


@given(st.lists(st.integers(0, len(LOG)), max_size=30))
def test_however_the_bytes_are_cut_the_last_boundary_is_found(cuts: list[int]) -> None:
    tracker = BoundaryTracker(0, SEGMENT_BYTES, SETTINGS.largest_record_bytes)
    edges = [0, *sorted(cuts)]
    for start, end in pairwise(edges):
        tracker.feed(start, LOG[start:end])
        assert tracker.complete_offset == max(boundary for boundary in BOUNDARIES if boundary <= end)


@given(st.integers(0, len(LOG) - 1), st.integers(0, len(BOUNDARIES) - 2), st.binary(min_size=36, max_size=60))
def test_bytes_that_are_no_record_are_refused_and_change_nothing(cut: int, index: int, garbage: bytes) -> None:
    boundary = BOUNDARIES[index]
    tracker = BoundaryTracker(0, SEGMENT_BYTES, SETTINGS.largest_record_bytes)
    tracker.feed(0, LOG[:boundary])
    before = tracker.complete_offset, tracker._head
    with pytest.raises(ProtocolError):
        tracker.feed(boundary, b"\0" + garbage)
    assert (tracker.complete_offset, tracker._head) == before


def test_a_log_of_other_file_sizes_is_refused() -> None:
    tracker = BoundaryTracker(0, 2 * SEGMENT_BYTES, SETTINGS.largest_record_bytes)
    with pytest.raises(ProtocolError, match="segment_size_bytes"):
        tracker.feed(0, LOG)
