"""What is done to an object of a tier's index has to be noticed by who looks for each key."""

from __future__ import annotations

import pytest

from remoting.tier.index import ITEM, IndexObject, describe, encode_index, mixed, postings_of
from tests.tier.harm import harmed

KEYS = 1000


def an_object() -> tuple[bytes, IndexObject]:
    items = sorted((mixed(number), number) for number in range(KEYS))
    content = encode_index(b"".join(ITEM.pack(hashed, 0, number, number) for hashed, number in items), KEYS)
    return content, describe(content, 1, 1)


def test_other_bytes_are_damage() -> None:
    content, entry = an_object()
    with pytest.raises(ValueError, match="is damaged"):
        postings_of(entry, mixed(1), harmed(content, entry, "bytes")[slice_of(entry)])


def test_other_items_have_right_checksums_and_one_names_another_message() -> None:
    content, entry = an_object()
    part = harmed(content, entry, "items")[slice_of(entry)]
    found = {number: postings_of(entry, mixed(number), part)[0].queue_offset for number in range(KEYS)}
    ((number, named),) = ((number, named) for number, named in found.items() if named != number)
    assert named == number ^ 1


def slice_of(entry: IndexObject) -> slice:
    """A question reads all of it, as its items are all far from their places."""
    position, length = entry.range_of(mixed(1))
    return slice(position, position + length)
