"""The layout of an object of timers, byte by byte, and what becomes of a damaged one."""

from __future__ import annotations

import pytest

from remoting.tier.names import parse_stowed_name, stowed_name
from remoting.tier.stowed import (
    HOUR_MS,
    MOST_TIMERS,
    StowedObject,
    Waiting,
    blocks_of,
    decode_entry,
    describe,
    encode_block,
    encode_entry,
    encode_head,
    in_blocks,
    timers_of,
)

FIRST_MS = 1_700_000_000_000


def made(timers: list[Waiting]) -> tuple[StowedObject, bytes]:
    blocks = [encode_block(part) for part in in_blocks(timers)]
    head = encode_head(blocks)
    return describe(head, 26, 7, 99), head + b"".join(each.content for each in blocks)


def read(entry: StowedObject, content: bytes) -> list[list[Waiting]]:
    blocks = blocks_of(entry, content[: entry.head_bytes])
    return [timers_of(entry, each, content[each.position : each.position + each.size]) for each in blocks]


def test_the_layout() -> None:
    entry, content = made([Waiting(FIRST_MS, b"abc"), Waiting(FIRST_MS + 1, b"")])
    assert (
        content
        == bytes.fromhex(
            "4c425454494d5201 00000002 00000001 2a414414"  # magic and version, timers, blocks, CRC-32 of the head and the table
            "0000018bcfe56800 00000002 0000001b 2cf76e20"  # when the first is due, timers, bytes, CRC-32
            "0000018bcfe56800 00000003 616263"
            "0000018bcfe56801 00000000"
        )
    )
    assert entry == StowedObject(26, 7, FIRST_MS // HOUR_MS, 2, 40, entry.head_crc, FIRST_MS, 99, 0)
    assert entry.name == f"timers/{FIRST_MS // HOUR_MS:010}-1a-7"
    assert parse_stowed_name(entry.name) == entry.key == (26, 7)
    assert parse_stowed_name(stowed_name(1, 2, 3) + "0/") is None
    assert decode_entry(encode_entry(entry)) == entry


def test_blocks_end_with_hours_that_are_worth_it_and_with_their_size() -> None:
    small = [Waiting(FIRST_MS + HOUR_MS * number, bytes(100)) for number in range(400)]
    assert [len(part) for part in in_blocks(small)] == [147, 147, 106]
    large = [Waiting(FIRST_MS, bytes(100_000)) for _ in range(5)] + [Waiting(FIRST_MS, bytes(4 << 20))]
    assert [len(part) for part in in_blocks(large)] == [2, 2, 1, 1]
    for timers in (small, large):
        entry, content = made(timers)
        assert [each for block in read(entry, content) for each in block] == timers


def test_what_is_damaged_is_no_object() -> None:
    timers = [Waiting(FIRST_MS + number * HOUR_MS, bytes(20_000)) for number in range(4)]
    entry, content = made(timers)
    for at in range(0, len(content), 997):
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(ValueError, match=entry.name):
            read(entry, damaged)
    with pytest.raises(ValueError, match="is not what was stored"):
        read(entry, content[: entry.head_bytes - 1])


@pytest.mark.parametrize(
    "wrong", [{"timers": 0}, {"timers": MOST_TIMERS + 1}, {"due_ms": -1}, {"returned": 3}, {"head_bytes": 1 << 30}]
)
def test_what_the_log_says_is_bounded(wrong: dict[str, int]) -> None:
    entry, _ = made([Waiting(FIRST_MS, b"abc"), Waiting(FIRST_MS + 1, b"")])
    with pytest.raises(ValueError, match=r"object of timers|numbers of an object"):
        decode_entry(list(entry._replace(**wrong)))
    for values in ("none", [1, 2], [*entry[:-1], True], [*entry[:-1], 1.0]):
        with pytest.raises(ValueError, match="object of timers"):
            decode_entry(values)
