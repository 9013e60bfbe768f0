"""The layout of an object of the index, byte by byte, and what becomes of a damaged one."""

from __future__ import annotations

import pytest

from brokerd.tiers.index.keys import PlainKeys
from remoting.tier.contents import TierContents, indexed, unindexed
from remoting.tier.index import (
    ALL_TOPICS,
    HEAD_BYTES,
    ITEM,
    MOST_ITEMS,
    PARTS,
    Posting,
    decode_entry,
    decode_index,
    describe,
    encode_entry,
    encode_index,
    mixed,
    part_of,
    postings_of,
    topics_of,
    topics_with,
)

POSTINGS = [Posting(7, 1, 100, 5_000), Posting(9, 2, 7, 6_000), Posting(7, 1, 101, 7_500)]
GOLDEN = (
    "4c4254494e445801"  # magic, version
    "00000003 00000002"  # items, spread
    "0000000000001388 0000000000001d4c"  # first and last store time
    "%08x 00000000"  # of the head
    "00000007 00000001 0000000000000064 0000000000001388"
    "00000007 00000001 0000000000000065 0000000000001d4c"
    "00000009 00000002 0000000000000007 0000000000001770"
    "%08x"  # of the block
)


def _object_of(postings: list[Posting]) -> bytes:
    return encode_index(*PlainKeys().sorted(b"".join(ITEM.pack(*each) for each in postings)))


def _many(count: int, step: int) -> list[Posting]:
    return [Posting(mixed(each * step), each % 3, each, 1000 + each) for each in range(count)]


def test_the_bytes_are_these() -> None:
    assert _object_of(POSTINGS) == bytes.fromhex(GOLDEN.replace(" ", "") % (0xC876464D, 0xDCE41583))


@pytest.mark.parametrize("postings", [_many(5000, 31), [each._replace(hash=each.hash % 9) for each in _many(300, 7)]])
def test_a_hash_is_found_in_one_range(postings: list[Posting]) -> None:
    content = _object_of(postings)
    entry = describe(content, 3, 9)
    assert (entry.begin_ms, entry.items, entry.size) == (1000, len(postings), len(content))
    for hashed in {*range(20), 0xFFFFFFFF, *(each.hash for each in postings[::7])}:
        position, length = entry.range_of(hashed)
        wanted = sorted((each for each in postings if each.hash == hashed), key=lambda each: -each.timestamp_ms)
        assert postings_of(entry, hashed, content[position : position + length]) == wanted
    assert decode_index(content, entry) == b"".join(
        ITEM.pack(*each) for each in sorted(postings, key=lambda each: each.hash)
    )


def test_a_range_is_short() -> None:
    """Where keys are many and differ, a query reads little of an object."""
    entry = describe(_object_of(_many(20_000, 1)), 1, 1)
    assert max(entry.range_of(each << 21)[1] for each in range(2048)) * 20 < entry.size


@pytest.mark.parametrize("place", [3, 9, 40, 50, 64, 100, HEAD_BYTES + 3 * ITEM.size])
def test_what_is_damaged_says_so(place: int) -> None:
    content = _object_of(POSTINGS)
    entry = describe(content, 1, 1)
    damaged = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    with pytest.raises(ValueError, match="not what was stored"):
        decode_index(damaged, entry)
    if place >= HEAD_BYTES:
        position, length = entry.range_of(7)
        with pytest.raises(ValueError, match="damaged"):
            postings_of(entry, 7, damaged[position : position + length])
    with pytest.raises(ValueError, match="shorter"):
        postings_of(entry, 7, content[HEAD_BYTES:-1])


def test_the_contents_of_a_tier_name_the_objects() -> None:
    one, other = (describe(_object_of(POSTINGS), 4, number) for number in (1, 2))
    contents = TierContents()
    for change in (indexed(one), indexed(other), unindexed([one])):
        contents.apply(change)
    assert list(contents.index.values()) == [other]
    assert list(contents.rows()) == [indexed(other)]
    assert contents.copy().index == contents.index
    assert decode_entry(encode_entry(one)) == one


def test_an_object_says_of_which_topics_it_may_know_and_an_earlier_version_said_nothing() -> None:
    some = topics_of(["a", "b"])
    one = describe(_object_of(POSTINGS), 1, 1, 7_200_000, some)
    assert [one.may_have(each) for each in ("a", "b", "c")] == [True, True, False]
    assert sorted(one.parts) == sorted({part_of("a"), part_of("b")})
    assert topics_with(some, topics_of(["c"])) == topics_of(["a", "b", "c"])
    assert decode_entry(encode_entry(one)) == one
    earlier = decode_entry(encode_entry(one)[:8])
    assert earlier == one._replace(reserved_ms=0, topics=ALL_TOPICS)
    assert earlier.may_have("c")
    assert len(earlier.parts) == PARTS


RIGHT = encode_entry(describe(_object_of(POSTINGS), 1, 1))


@pytest.mark.parametrize(
    "values",
    [
        [],
        RIGHT[:-1],
        [*RIGHT[:2], 0, *RIGHT[3:]],
        [*RIGHT[:-1], -8],
        [*RIGHT[:-1], 1 << 60],
        [RIGHT[1] + 1, *RIGHT[1:]],
        [*RIGHT[:4], RIGHT[4] + 1, *RIGHT[5:]],
        [*RIGHT[:2], MOST_ITEMS + 1, *RIGHT[3:]],
        "x",
    ],
)
def test_what_is_no_entry_is_refused(values: object) -> None:
    assert encode_entry(decode_entry(RIGHT)) == RIGHT
    with pytest.raises(ValueError, match="index"):
        decode_entry(values)
