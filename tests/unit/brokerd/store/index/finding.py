"""Asking an index in tests."""

from __future__ import annotations

from brokerd.store.index.search import Question, Search
from brokerd.store.store import MessageStore
from remoting.record.codec import decode_record


def catch_up(store: MessageStore) -> None:
    """Bring the index to the dispatch offset, which a log of which all files expired may begin at: then nothing is taken."""
    assert store.index is not None
    while store.index.offset < store.dispatch_offset:
        assert store.index.take(store.dispatch_offset, 4096) > 0 or store.index.offset == store.dispatch_offset


def find(
    store: MessageStore, topic: str, key: str, begin_ms: int = 0, end_ms: int = 1 << 62, most: int = 64
) -> list[int]:
    """The physical offsets of what a query finds, oldest first."""
    assert store.index is not None
    search = Search(store.index, store.read_physical, Question(topic, key, most, begin_ms, end_ms))
    while not search.step(7):
        pass
    return [decode_record(record).physical_offset for record in search.records()]
