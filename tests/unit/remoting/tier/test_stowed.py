"""The layout of an object of timers, byte by byte, and what becomes of a damaged one."""

from __future__ import annotations

import pytest

from remoting.tier.names import parse_stowed_name, stowed_name
from remoting.tier.stowed import (
    HOUR_MS,
    MOST_TIMERS,
    Block,
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
from remoting.tier.stowed_summary import MOST_KEYS, Summary, encode_summary, second_of, summary_of

FIRST_MS = 1_700_000_000_000


def made(timers: list[Waiting]) -> tuple[StowedObject, bytes]:
    blocks = [*(encode_block(part) for part in in_blocks(timers)), encode_summary(timers)]
    head = encode_head(blocks)
    return describe(head, 26, 7, 99), head + b"".join(each.content for each in blocks)


def read(entry: StowedObject, content: bytes) -> list[list[Waiting]]:
    blocks, summary = blocks_of(entry, content[: entry.head_bytes])
    assert summary is not None
    summarized(entry, content, summary)
    return [timers_of(entry, each, content[each.position : each.position + each.size]) for each in blocks]


def summarized(entry: StowedObject, content: bytes, summary: Block) -> Summary:
    return summary_of(entry, summary, content[summary.position : summary.position + summary.size])


def test_the_layout() -> None:
    entry, content = made([Waiting(FIRST_MS, b"abc", (7, 5)), Waiting(FIRST_MS + 1, b"", (5,))])
    assert (
        content
        == bytes.fromhex(
            "4c425454494d5201 00000002 00000002 7a07af65"  # magic and version, timers, blocks, CRC-32 of the head and the table
            "0000018bcfe56800 00000002 0000001b 2cf76e20"  # when the first is due, timers, bytes, CRC-32
            "0000000000000000 00000000 00000032 c1d20358"  # the summary
            "0000018bcfe56800 00000003 616263"
            "0000018bcfe56801 00000000"
            "00000002 00000003"  # seconds, keys
            "000000006553f0ff 000000006553f100 00000001 00000001"  # which seconds, how many in each
            "00000005 00000005 00000007 0000 0001 0000"  # hashes, and whose they are
        )
    )
    assert entry == StowedObject(26, 7, FIRST_MS // HOUR_MS, 2, 60, entry.head_crc, FIRST_MS, 99, 0)
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


def test_the_summary_says_how_many_are_due_in_a_second_and_whose_a_key_is() -> None:
    due_ms = [FIRST_MS, FIRST_MS + 1, FIRST_MS + 1000, FIRST_MS + 1001, FIRST_MS + 90_000]
    hashes: list[tuple[int, ...]] = [(9,), (8, 9), (9, 9), (), tuple(range(100, 100 + MOST_KEYS + 1))]
    entry, content = made([Waiting(each, b"", keys) for each, keys in zip(due_ms, hashes, strict=True)])
    _, block = blocks_of(entry, content[: entry.head_bytes])
    assert block is not None
    summary = summarized(entry, content, block)
    second = second_of(FIRST_MS)
    assert second == FIRST_MS // 1000 - 1, "what is due when a second ends is of it"
    assert summary.behind(0) == [(second, 1), (second + 1, 2), (second + 2, 1), (second + 90, 1)]
    assert summary.behind(2) == [(second + 1, 1), (second + 2, 1), (second + 90, 1)]
    assert summary.behind(5) == []
    assert summary.with_key(9) == [0, 1, 2]
    assert (summary.with_key(8), summary.with_key(7), summary.with_key(1 << 31)) == ([1], [], [])
    assert (summary.with_key(100), summary.with_key(100 + MOST_KEYS)) == ([4], [])


def test_an_object_of_an_earlier_version_has_no_summary() -> None:
    blocks = [encode_block([Waiting(FIRST_MS, b"abc")])]
    head = encode_head(blocks)
    found, summary = blocks_of(describe(head, 26, 7, 99), head)
    assert ([each.timers for each in found], summary) == ([1], None)


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
