"""What the store asserts of its positions: each of these is a mistake of ours, and ends the process where it is made."""

from __future__ import annotations

import pytest

from brokerd.store.log.commitlog import SyncMark
from brokerd.store.start.checkpoint_page import Positions
from brokerd.store.store import MessageStore
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import dispatch_all, draft, open_store, payloads, put, sync


@pytest.fixture
def store() -> MessageStore:
    """Messages that are durable and dispatched, in queues that no checkpoint wrote."""
    store = open_store(MemoryDisk())
    put(store, *(draft(body) for body in payloads(20)))
    sync(store)
    dispatch_all(store)
    return store


def test_dispatch_goes_no_further_than_what_is_confirmed_and_that_than_the_log(store: MessageStore) -> None:
    store.dispatcher.confirm_offset = store.commitlog.end_offset + 1
    with pytest.raises(AssertionError, match="not confirmed"):
        store.dispatch(store.commitlog.end_offset)


def test_dispatch_never_goes_back(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append_messages([draft(b"next")])
    offer = store.dispatcher._offers.pop()
    store.dispatcher._offers.append(offer._replace(end=0))
    monkeypatch.setattr(store.dispatcher, "_read_back", lambda *_: 0)
    with pytest.raises(AssertionError, match="dispatch offset fell"):
        store.dispatch(store.commitlog.end_offset)


def test_no_more_is_durable_than_the_log_has(store: MessageStore) -> None:
    beyond = store.commitlog.end_offset + 1
    mark = SyncMark(beyond, beyond, store.commitlog.generation)
    with pytest.raises(AssertionError, match="more than the log has"):
        store.mark_flushed(mark)


def test_what_queues_durably_have_only_grows_and_is_durable_in_the_log(store: MessageStore) -> None:
    store.checkpoint()
    end, generation = store.commitlog.end_offset, store.commitlog.generation
    for positions, rule in (
        (Positions(confirm_offset=end, queues_offset=end - 1), "queues durably have fell"),
        (Positions(confirm_offset=end - 1, queues_offset=end), "confirm offset of the checkpoint fell"),
        (Positions(confirm_offset=end, queues_offset=end + 1), "not durable"),
    ):
        with pytest.raises(AssertionError, match=rule):
            store.durable.note_checkpoint(positions, generation)


def test_what_is_in_a_queues_files_only_grows_and_is_in_the_queue(store: MessageStore) -> None:
    store.checkpoint()
    (queue,) = store.queues.table.values()
    with pytest.raises(AssertionError, match="files fell"):
        queue.written(queue.max_offset - 1, 0)
    with pytest.raises(AssertionError, match="than the queue has"):
        queue.written(queue.max_offset + 1, 0)


def test_a_queue_ends_where_its_units_do(store: MessageStore) -> None:
    with pytest.raises(AssertionError, match="not written"):
        store.queues.ends(0)
    (queue,) = store.queues.table.values()
    queue.max_offset += 1
    with pytest.raises(AssertionError, match="not that of its units"):
        store.begin_checkpoint()
