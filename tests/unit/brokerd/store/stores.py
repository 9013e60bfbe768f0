"""Small stores for tests: files of a few kilobytes, a clock that the test moves, drafts that need no thought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brokerd.native.library import Library
from brokerd.store.draft import Draft
from brokerd.store.log.derive import NO_RULES, CodeRules, Entry, RecordShape, derive
from brokerd.store.run import AppendResult
from brokerd.store.seams import StoreSeams
from brokerd.store.settings import StoreSettings
from brokerd.store.store import MessageStore
from remoting.disk import Disk
from remoting.record.codec import Record, decode_record
from remoting.record.properties import encode_properties

STORE_HOST = bytes.fromhex("0a00000200002a9f")
BORN_HOST = bytes.fromhex("0a00000100009c40")
SEGMENT_BYTES = 4096
SETTINGS = StoreSettings(
    segment_size_bytes=SEGMENT_BYTES,
    queue_file_units=16,
    open_queue_files=3,
    dispatch_chunk_bytes=4096,
    index_slots=16,
    index_items=24,
)
SHAPE = RecordShape(SEGMENT_BYTES, SETTINGS.largest_record_bytes)


class Clock:
    """`now_ms` of a store; moves only when told, in either direction."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def draft(body: bytes = b"hello", *, topic: str = "TopicA", queue_id: int = 0, tag: str = "", **fields: Any) -> Draft:
    properties = encode_properties({"TAGS": tag, "UNIQ_KEY": "U"})
    return Draft(
        **{
            "topic": topic,
            "queue_id": queue_id,
            "body": body,
            "properties": properties,
            "born_timestamp_ms": 1_700_000_000_000,
            "born_host": BORN_HOST,
            **fields,
        }
    )


def make_store(
    disk: Disk,
    clock: Clock | None = None,
    settings: StoreSettings = SETTINGS,
    rules: CodeRules = NO_RULES,
    library: Library | None = None,
) -> MessageStore:
    """A store that is not loaded yet."""
    return MessageStore(disk, settings, clock or Clock(), STORE_HOST, StoreSeams(rules, library))


def open_store(
    disk: Disk,
    clock: Clock | None = None,
    settings: StoreSettings = SETTINGS,
    rules: CodeRules = NO_RULES,
    library: Library | None = None,
) -> MessageStore:
    """A loaded store that takes messages."""
    store = make_store(disk, clock, settings, rules, library)
    store.load()
    store.set_appendable(True)
    return store


def put(store: MessageStore, *drafts: Draft, visible: bool = True) -> list[AppendResult]:
    """Append, and dispatch what was appended unless told otherwise."""
    results = store.append_messages(drafts)
    if visible:
        dispatch_all(store)
    return results


def dispatch_all(store: MessageStore) -> None:
    while store.dispatch_offset < store.commitlog.complete_offset:
        before = store.dispatch_offset
        store.dispatch(store.commitlog.complete_offset)
        assert store.dispatch_offset > before


def sync(store: MessageStore) -> int:
    """What the flusher does, in line."""
    mark = store.sync()
    store.note_flushed(mark)
    return store.mark_flushed(mark)


def log_bytes(store: MessageStore) -> bytes:
    """All bytes of the log."""
    pieces, offset = [], store.commitlog.min_offset
    while piece := store.commitlog.read(offset, 1 << 20):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


def log_entries(store: MessageStore) -> list[Entry]:
    """What the log says belongs into queues, straight from its bytes."""
    return derive(log_bytes(store), store.commitlog.min_offset, store.commitlog.shape.checked()).entries


def queue_contents(store: MessageStore) -> dict[tuple[str, int], tuple[int, list[tuple[int, int, int]]]]:
    """Of every queue that has readable messages: its first offset and its units."""
    contents = {}
    for (topic, queue_id), queue in store.queues.table.items():
        first = store.min_offset(topic, queue_id)
        if first < queue.max_offset:
            contents[(topic, queue_id)] = (first, list(queue.units(first, queue.max_offset - first)))
    return contents


def bodies(store: MessageStore, topic: str = "TopicA", queue_id: int = 0, start: int | None = None) -> list[bytes]:
    """The bodies of the messages of a queue that a consumer reading to the end sees."""
    offset = store.min_offset(topic, queue_id) if start is None else start
    found: list[Record] = []
    while (result := store.read_messages(topic, queue_id, offset, 7, 1 << 20)).records:
        found += map(decode_record, result.records)
        offset = result.next_offset
    assert [record.queue_offset for record in found] == list(range(found[0].queue_offset, offset)) if found else True
    return [record.body for record in found]


def payloads(count: int, size: int = 100, start: int = 0) -> Sequence[bytes]:
    return [f"{n:06d}".encode().ljust(size, b".") for n in range(start, start + count)]
