"""What a store leaves behind that is closed: what is derived from the log goes to its end, if that is near."""

from __future__ import annotations

import pytest

from brokerd.store.derived.followers import MOST_AT_CLOSE_BYTES
from remoting.errors import CorruptedFile
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import draft, open_store, put


class FarBehind:
    """A follower that has much to read; it `fails` instead."""

    def __init__(self, *, fails: bool) -> None:
        self.read_bytes = 0
        self.fails = fails

    def take(self, limit_offset: int, most_bytes: int) -> int:
        if self.fails:
            raise CorruptedFile("the log is not what was appended")
        self.read_bytes += most_bytes
        return most_bytes

    def begin_write(self, *, closing: bool) -> None:
        assert closing

    def close(self) -> None: ...


def test_a_store_that_ends_brings_what_is_derived_up_to_date() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    assert store.index is not None
    put(store, draft(), draft())
    assert store.index.offset == 0
    store.close()
    again = open_store(disk)
    assert again.index is not None
    assert again.index.offset == again.dispatch_offset > 0


@pytest.mark.parametrize("fails", [False, True])
def test_who_is_far_behind_or_cannot_read_does_not_keep_it_from_ending(fails: bool) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    follower = FarBehind(fails=fails)
    store.followers.append(follower)  # type: ignore[arg-type]
    put(store, draft())
    store.close()
    assert follower.read_bytes == (0 if fails else MOST_AT_CLOSE_BYTES)
    assert open_store(disk).ended_cleanly
