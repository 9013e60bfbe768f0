"""Blocks: what was written is read, from anywhere; damage is told; the layout stays what it is."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from remoting.record.codec import encode_record
from remoting.record.properties import encode_properties
from remoting.tier.blocks import BLOCK_BYTES, BlockIndex, BlockWriter, index_bytes
from tests.support.json_bodies import json_bodies

GOLDEN = bytes.fromhex("28b52ffd2405290000616161616168414513")


def packed(content: bytes, step: int = 100_000) -> bytes:
    writer = BlockWriter()
    parts = [block for at in range(0, len(content), step) for block in writer.add(content[at : at + step])]
    return b"".join(parts) + writer.finish()


def index_of(stored: bytes, length: int) -> BlockIndex:
    return BlockIndex(stored[-index_bytes(length) :], length, len(stored))


def read(stored: bytes, index: BlockIndex, start: int, length: int) -> bytes:
    blocks = index.blocks_of(start, length)
    at, size = index.place_of(blocks)
    content = stored[at : at + size]
    whole = b"".join(index.unpacked(content, blocks, number) for number in blocks)
    skipped = start - blocks.start * BLOCK_BYTES
    return whole[skipped : skipped + length]


def like_json(count: int) -> bytes:
    return b"".join(json_bodies(count))


def messages(count: int) -> bytes:
    """Of such bodies, as brokers store them: each with a unique key, its places and its checksums."""
    rng, place, stored = random.Random(3), 1 << 34, []
    for number, body in enumerate(json_bodies(count)):
        unique = f"01{rng.getrandbits(48):012X}05{number:016X}"
        record = encode_record(
            topic=b"Orders",
            queue_id=3,
            queue_offset=10_000_000 + number,
            physical_offset=place,
            body=body,
            properties=encode_properties({"UNIQ_KEY": unique, "TAGS": "order", "CLUSTER": "DefaultCluster"}),
            born_timestamp_ms=1_700_000_000_000 + number * 5 + rng.randrange(5),
            born_host=bytes.fromhex("0a0000010000") + rng.randbytes(2),
            store_timestamp_ms=1_700_000_000_001 + number * 5 + rng.randrange(5),
            store_host=bytes.fromhex("0a00000200002a9f"),
        )
        stored.append(record)
        place += 7 * len(record)  # others are between them
    return b"".join(stored)


@pytest.mark.parametrize("length", [1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 77])
def test_any_range_is_read_as_it_was_written(length: int) -> None:
    rng = random.Random(length)
    content = rng.randbytes(length // 2) + b"x" * (length - length // 2)
    stored = packed(content)
    index = index_of(stored, length)
    for _ in range(50):
        start = rng.randrange(length)
        size = rng.randint(1, min(length - start, rng.choice([1, 100, length])))
        assert read(stored, index, start, size) == content[start : start + size]


@pytest.mark.parametrize("made", [like_json, messages])
def test_what_is_like_json_takes_a_third_at_most(made: Callable[[int], bytes]) -> None:
    content = made(8000)
    stored = packed(content)
    assert len(content) > 2_000_000
    assert len(stored) * 3 <= len(content)


def test_damage_anywhere_is_told() -> None:
    content = like_json(3)
    stored = packed(content)
    for at in range(len(stored)):
        broken = bytearray(stored)
        broken[at] ^= 1
        with pytest.raises(ValueError, match="block"):
            read(bytes(broken), index_of(bytes(broken), len(content)), 0, len(content))
    for wrong_length in (len(content) - 1, len(content) + BLOCK_BYTES):
        with pytest.raises(ValueError, match="block"):
            index_of(stored, wrong_length)
    newer = stored.replace(b"LBBLKS\x00\x01", b"LBBLKS\x00\x02")
    with pytest.raises(ValueError, match="newer version"):
        index_of(newer, len(content))


def test_the_layout_is_what_it_was() -> None:
    index = bytes.fromhex("000000124c42424c4b530001f7097f68000000000000000500040000")
    stored = GOLDEN + index
    assert packed(b"aaaaa").hex() == stored.hex()
    assert read(stored, index_of(stored, 5), 1, 3) == b"aaa"
