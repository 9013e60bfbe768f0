"""The log is cut while a checkpoint has taken the state of the index but has not written it."""

from __future__ import annotations

from random import Random

import pytest

from brokerd.store.index import key_index
from brokerd.store.store import MessageStore
from remoting.record.properties import encode_properties
from tests.support.disks import FaultyDisk
from tests.unit.brokerd.store.index.finding import catch_up, find
from tests.unit.brokerd.store.stores import SETTINGS, draft, open_store, put, sync

_FULL = SETTINGS.index_items - 1  # item 0 does not exist


@pytest.fixture(autouse=True)
def _every_checkpoint_writes_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_PATIENCE", 1)


def put_keys(store: MessageStore, first: int, end: int) -> list[int]:
    """A message for each number with a key of that name; where they are."""
    drafts = [draft(properties=encode_properties({"KEYS": f"key{number}"})) for number in range(first, end)]
    places = [place.physical_offset for place in put(store, *drafts)]
    catch_up(store)
    return places


def check(store: MessageStore, places: list[int]) -> None:
    assert [find(store, "TopicA", f"key{number}") for number in range(len(places))] == [[place] for place in places]


@pytest.mark.parametrize("kept", [_FULL, _FULL - 1])
@pytest.mark.parametrize("was_run", [False, True])
def test_keys_before_the_cut_are_found(kept: int, was_run: bool) -> None:
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    places = put_keys(store, 0, 5)
    store.checkpoint()  # the file is on disk
    places += put_keys(store, 5, _FULL + 3)  # it is full, and another one begun
    sync(store)
    checkpoint = store.begin_checkpoint()
    if was_run:
        checkpoint.run()
    store.truncate(places[kept])
    if not was_run:
        checkpoint.run()
    store.finish_checkpoint(checkpoint)
    del places[kept:]
    check(store, places)
    places += put_keys(store, kept, _FULL + 9)
    check(store, places)
    store.checkpoint()
    check(store, places)
    disk.kill()
    again = open_store(disk)
    catch_up(again)
    check(again, places)
    again.close()
