"""The layout of an object of the index, byte by byte, and what becomes of a damaged one."""

from __future__ import annotations

import pytest

from remoting.tier.contents import TierContents, indexed, unindexed
from remoting.tier.index import (
    SLOT_BYTES,
    Posting,
    chain_of,
    decode_entry,
    decode_index,
    describe,
    encode_entry,
    encode_index,
    items_of,
)

POSTINGS = [Posting(7, 1, 100, 5_000), Posting(9, 2, 7, 6_000), Posting(7, 1, 101, 7_500)]
GOLDEN = (
    "4c4254494e445801"  # magic, version
    "%08x"  # of what follows in the head
    "00000001 00000003 00000000"  # slots, items
    "0000000000001388 0000000000001d4c"  # first and last store time
    "00000034 0000004c %08x"  # the slot
    "00000007 00000001 0000000000000065 0000000000001d4c"
    "00000009 00000002 0000000000000007 0000000000001770"
    "00000007 00000001 0000000000000064 0000000000001388"
    "%08x"  # of the chain
)


def test_the_bytes_are_these() -> None:
    golden = bytes.fromhex(GOLDEN.replace(" ", "") % (0xCFF79C1F, 0x501ED592, 0x27B1DEA4))
    assert encode_index(POSTINGS) == golden


def test_a_hash_is_found_with_two_short_reads() -> None:
    postings = [Posting(each * 7919 % 1000, each % 3, each, 1000 + each) for each in range(500)]
    content = encode_index(postings)
    entry = describe(content, 3, 9)
    assert (entry.begin_ms, entry.end_ms, entry.items, entry.size) == (1000, 1499, 500, len(content))
    for hashed in range(1000):
        _, at = entry.slot_of(hashed)
        position, length = chain_of(entry, hashed, content[at : at + SLOT_BYTES])
        found = list(items_of(entry, content[position : position + length])) if length else []
        wanted = sorted((each for each in postings if each.hash == hashed), key=lambda each: -each.timestamp_ms)
        assert [each for each in found if each.hash == hashed] == wanted
    assert sorted(decode_index(content, entry)) == sorted(postings)


@pytest.mark.parametrize("place", [3, 9, 40, 50, 60, 124])
def test_what_is_damaged_says_so(place: int) -> None:
    content = encode_index(POSTINGS)
    entry = describe(content, 1, 1)
    damaged = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    with pytest.raises(ValueError, match="not what was stored"):
        decode_index(damaged, entry)
    if place >= 40:
        with pytest.raises(ValueError, match="damaged"):  # noqa: PT012
            _, at = entry.slot_of(7)
            position, length = chain_of(entry, 7, damaged[at : at + SLOT_BYTES])
            list(items_of(entry, damaged[position : position + length]))


def test_the_contents_of_a_tier_name_the_objects() -> None:
    one, other = (describe(encode_index(POSTINGS), 4, number) for number in (1, 2))
    contents = TierContents()
    for change in (indexed(one), indexed(other), unindexed([one])):
        contents.apply(change)
    assert list(contents.index.values()) == [other]
    assert list(contents.rows()) == [indexed(other)]
    assert contents.copy().index == contents.index
    assert decode_entry(encode_entry(one)) == one


@pytest.mark.parametrize(
    "values", [[], [1] * 7, [1, 2, 3, 0, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, -8], [9, 2, 3, 4, 5, 6, 7, 8], "x"]
)
def test_what_is_no_entry_is_refused(values: object) -> None:
    with pytest.raises(ValueError, match="index"):
        decode_entry(values)
