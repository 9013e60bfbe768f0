"""A query of a key reads one range of each object that may know it, and of the others nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from brokerd.store.index.hashing import key_hash
from brokerd.store.index.search import Question
from brokerd.tiers.index.keys import PlainKeys
from brokerd.tiers.index.searching import ColdIndex
from remoting.record.codec import encode_record
from remoting.tier.contents import Queue, TierContents, indexed
from remoting.tier.index import ITEM, describe, encode_index, mixed

HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"


class Store:
    """Objects, and what was asked of them."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: list[tuple[str, int]] = []

    async def get(self, name: str, start: int, length: int) -> bytes:
        self.asked.append((name, length))
        return self.objects[name][start : start + length]


class Messages:
    """Message n of queue 0 has the key kn, and was stored at n ms."""

    async def fetched_record(self, queue: Queue, queue_offset: int) -> bytes | None:
        numbers = {"queue_id": 0, "queue_offset": queue_offset, "physical_offset": 0, "born_timestamp_ms": 0}
        key = f"KEYS\x01k{queue_offset}\x02".encode()
        hosts: dict[str, Any] = {"born_host": HOST, "store_host": HOST}
        return encode_record(topic=b"T", body=b"", properties=key, store_timestamp_ms=queue_offset, **numbers, **hosts)


def _find(index: ColdIndex, spawned: list[Coroutine[Any, Any, None]], question: Question) -> list[bytes]:
    answers: list[Any] = []
    index.find(question, (), lambda *answer: answers.append(answer))
    asyncio.run(spawned.pop())
    ((records, is_complete),) = answers
    assert is_complete
    return list(records)


def test_one_request_for_each_object() -> None:
    store, contents, spawned = Store(), TierContents(), []
    for number in range(3):
        offsets = range(number * 20_000, (number + 1) * 20_000)
        items = b"".join(ITEM.pack(mixed(key_hash("T", f"k{each}")), 0, each, each) for each in offsets)
        content = encode_index(*PlainKeys().sorted(items))
        entry = describe(content, 1, number)
        store.objects[entry.name] = content
        contents.apply(indexed(entry))
    loop: Any = SimpleNamespace(
        spawn=lambda coroutine, what: spawned.append(coroutine), scheduler=SimpleNamespace(time=lambda: 0.0)
    )
    objects: Any = store
    messages: Any = Messages()
    index = ColdIndex(objects, lambda: contents, messages, loop)
    assert len(_find(index, spawned, Question("T", "k25000", 64, 0, 1 << 60))) == 1
    assert len({name for name, _ in store.asked}) == len(store.asked) == 3
    assert sum(length for _, length in store.asked) * 10 < sum(map(len, store.objects.values()))
    store.asked.clear()
    assert len(_find(index, spawned, Question("T", "k25000", 64, 21_000, 39_000))) == 1
    assert len(store.asked) == 1
    assert _find(index, spawned, Question("T", "k25000", 64, 0, 10)) == []
