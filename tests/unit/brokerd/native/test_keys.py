"""The keys of records are in C what they are in Python, whatever the records are like; nothing beside is looked at."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from brokerd.native.library import Library
from brokerd.tiers.index.keys import NativeKeys, PlainKeys, keys_agree
from remoting.record.codec import encode_record
from remoting.tier.index import ITEM
from tests.support.native_library import native_library

PIECES = (
    *("UNIQ_KEY\x01", "KEYS\x01", "KEYSX\x01", "\x02", "\x02", " ", "  ", "a", "key1", "0A0B0C0D", "xUNIQ_KEY\x01"),
    *("ü", "\U0001f600", "KEYS\x01a b c\x02", "UNIQ_KEY\x01AC11000215D0\x02", "TAGS\x01x\x02"),
)
V4, V6 = b"\x7f\0\0\x01\0\0\x2a\x9f", b"\0" * 15 + b"\x01\0\0\x2a\x9f"


def record_of(topic: bytes, properties: str, born_host: bytes = V4, store_host: bytes = V4) -> bytes:
    hosts: dict[str, Any] = {"born_host": born_host, "store_host": store_host}
    numbers = {
        "queue_id": 3,
        "queue_offset": 7,
        "physical_offset": 9,
        "born_timestamp_ms": 1,
        "store_timestamp_ms": 1 << 41,
    }
    return encode_record(topic=topic, body=b"KEYS\x01no\x02", properties=properties.encode(), **hosts, **numbers)


@pytest.fixture(scope="module")
def library() -> Library:
    return native_library()


def test_they_agree(library: Library) -> None:
    assert keys_agree(library)


@pytest.mark.parametrize("topic", [b"Orders", "Größe".encode()])
def test_items_of_any_records_agree(library: Library, topic: bytes) -> None:
    rng = Random(7)
    native, plain = NativeKeys(library), PlainKeys()
    found = 0
    for _ in range(200):
        texts = ["".join(rng.choices(PIECES, k=rng.randrange(30))) for _ in range(rng.randrange(1, 9))]
        records = b"".join(record_of(topic, text, rng.choice([V4, V6]), rng.choice([V4, V6])) for text in texts)
        items = native.items_of(topic, 3, 1 << 40, records)
        assert items == plain.items_of(topic, 3, 1 << 40, records)
        found += len(items) // ITEM.size
    assert found > 1000


def test_many_keys_of_one_message_agree(library: Library) -> None:
    """More than there is room for at once."""
    records = b"".join(record_of(b"T", "KEYS\x01" + " ".join("k" * 1000)) for _ in range(3))
    items = NativeKeys(library).items_of(b"T", 0, 0, records)
    assert items == PlainKeys().items_of(b"T", 0, 0, records)
    assert len(items) == 3000 * ITEM.size


def test_any_items_are_sorted_alike(library: Library) -> None:
    rng = Random(3)
    for count in (1, 2, 255, 256, 257, 3000):
        for largest in (3, 1 << 12, 0x7FFFFFFF):
            items = b"".join(ITEM.pack(rng.randint(0, largest), 1, number, number) for number in range(count))
            assert NativeKeys(library).sorted(items) == PlainKeys().sorted(items)
