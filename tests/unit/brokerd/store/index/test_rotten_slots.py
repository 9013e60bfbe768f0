"""A slot of the index that rots on the disk names an item that no file has: nobody who looks for a key meets that."""

from __future__ import annotations

from random import Random

import pytest

from brokerd.store.index import key_index
from brokerd.store.index.hashing import key_hash
from brokerd.store.index.key_index import KeyIndex
from brokerd.store.index.layout import HEADER, SLOT_BYTES
from tests.support.disks import FaultyDisk
from tests.unit.brokerd.store.index.finding import catch_up, find
from tests.unit.brokerd.store.index.test_cut_under_write import put_keys
from tests.unit.brokerd.store.stores import SETTINGS, draft, open_store, put


@pytest.fixture(autouse=True)
def _every_checkpoint_writes_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_PATIENCE", 1)


@pytest.mark.parametrize("bit", [0, 8, 30, 31])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_key_of_a_rotten_slot_is_found_or_not_but_nothing_else_comes_of_it(
    bit: int, *, is_clean: bool, goes_on: bool
) -> None:
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    places = put_keys(store, 0, 5)
    store.checkpoint()
    if is_clean:
        store.close()
    else:
        put(store, draft())  # what a crash leaves to be looked at
        disk.kill()
    (name,) = disk.names("index")
    slot = key_hash("TopicA", "key3") % SETTINGS.index_slots
    disk.flip_bit(f"index/{name}", HEADER.size + slot * SLOT_BYTES + 3 - bit // 8, bit % 8)  # it is big-endian
    again = open_store(disk)
    catch_up(again)
    assert isinstance(again.index, KeyIndex)
    if goes_on:  # the slots come to memory
        places += put_keys(again, 5, 9)
    for number, place in enumerate(places):
        assert find(again, "TopicA", f"key{number}") in ([place], [])
    again.close()
