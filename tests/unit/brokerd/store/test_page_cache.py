"""Whether a mapping's pages are in memory: a file that was never written has none."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from brokerd.native.memory import Pinned
from brokerd.store.log.page_cache import is_in_memory
from brokerd.store.unit import BLANK_SIZE
from remoting.disk import LocalDisk
from remoting.errors import StorageError
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import SETTINGS, draft, open_store, put

PAGE = mmap.PAGESIZE
SIZE: Final = 4 << 20


def test_what_was_written_is_and_a_hole_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w+b") as file:
        file.truncate(1024 * PAGE)
        file.seek(512 * PAGE)
        file.write(bytes([1]) * 2 * PAGE)
        file.flush()
        with mmap.mmap(file.fileno(), 0) as mapped, Pinned(mapped) as address:
            written = address + 512 * PAGE
            assert is_in_memory(written, 2 * PAGE)
            assert is_in_memory(written + PAGE - 1, 2), "the ends of two pages"
            assert not is_in_memory(address, 1)
            assert not is_in_memory(written, 300 * PAGE), "all of it has to be"


def test_what_is_not_mapped_is_an_error() -> None:
    with pytest.raises(OSError, match="memory"):
        is_in_memory(PAGE, 1)


class Named:
    """A queue whose one unit names this."""

    def __init__(self, *units: tuple[int, int, int]) -> None:
        self._units = units

    def units(self, _first: int, _count: int) -> Iterator[tuple[int, int, int]]:
        return iter(self._units)


@pytest.mark.parametrize(
    ("units", "is_there"),
    [
        ([(0, 100, 0)], True),
        ([(1 << 20, 100, 0)], False),  # nothing was written there, so no page is there
        ([(0, BLANK_SIZE, 0)], True),
        ([(0, -1, 0)], True),
        ([(SIZE - 1, 2, 0)], True),
        ([(1 << 40, 100, 0)], True),
        ([], True),
    ],
)
def test_what_names_no_part_of_a_file_is_left_to_who_reads_files(
    tmp_path: Path, units: list[tuple[int, int, int]], is_there: bool
) -> None:
    settings = replace(SETTINGS, segment_size_bytes=SIZE)
    store = open_store(LocalDisk(tmp_path), settings=settings)
    put(store, draft())
    queue: Any = Named(*units)
    assert store.is_in_memory(queue, 0) is is_there
    store.close()


def test_units_that_cannot_be_read_are_left_to_who_reads_files() -> None:
    class Unreadable:
        def units(self, _first: int, _count: int) -> Iterator[tuple[int, int, int]]:
            raise StorageError("a bad sector")

    queue: Any = Unreadable()
    assert open_store(MemoryDisk()).is_in_memory(queue, 0)
