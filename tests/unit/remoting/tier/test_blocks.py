"""Blocks: what was written is read, from anywhere; damage is told; the layout stays what it is."""

from __future__ import annotations

import random

import orjson
import pytest

from remoting.tier.blocks import BLOCK_BYTES, BlockIndex, BlockWriter, index_bytes

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
    """What programs send: the same fields, other values; identifiers and amounts are as random as they are."""
    rng = random.Random(7)
    words = [rng.randbytes(rng.randint(2, 6)).hex() for _ in range(2000)]
    return b"".join(
        orjson.dumps(
            {
                "orderId": rng.getrandbits(64),
                "createdAt": 1_700_000_000_000 + number * 37 + rng.randrange(30),
                "customer": {
                    "id": rng.randrange(10**7),
                    "name": " ".join(rng.choices(words, k=2)),
                    "tier": rng.choice("ABC"),
                },
                "items": [
                    {"sku": rng.choice(words), "quantity": rng.randint(1, 9), "priceCents": rng.randint(100, 99_999)}
                    for _ in range(rng.randint(1, 5))
                ],
                "shippingAddress": {"street": rng.choice(words), "city": rng.choice(words[:300]), "country": "DE"},
                "status": rng.choice(["CREATED", "PAID", "SHIPPED"]),
            }
        )
        for number in range(count)
    )


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


def test_what_is_like_json_takes_a_third_at_most() -> None:
    content = like_json(8000)
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
