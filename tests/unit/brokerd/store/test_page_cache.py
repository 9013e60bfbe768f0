"""Whether a mapping's pages are in memory: a file that was never written has none."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from brokerd.native.memory import Pinned
from brokerd.store.log.page_cache import is_in_memory

PAGE = mmap.PAGESIZE


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
