"""What stands in a tier and is not what a broker puts there: names like others, numbers that nothing has, cut objects."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from remoting.tier.blocks import BlockIndex, BlockWriter, index_bytes
from remoting.tier.contents import COMMITTED, CUT, DROPPED, EXPIRED, GROWN, MERGED, Queue, TierContents, committed
from remoting.tier.index import ITEM, decode_index, describe, encode_index, postings_of
from remoting.tier.leases import Lease, LeaseState, decode_lease, encode_lease
from remoting.tier.manifest import ManifestPart, Position, decode_part, encode_part
from remoting.tier.names import (
    lease_name,
    lease_token,
    manifest_name,
    parse_manifest_name,
    parse_state_name,
    state_name,
)
from remoting.tier.segments import Segment, encode_segment
from remoting.tier.states import decode_state, encode_state

GOOD = Segment(5, 9, 500, 400, 400, 1, 2, 1000, 3, 7, 8, 9)
HUGE = (1 << 63) - 1
# Digits for Python, which `int` does not read, and others that it reads as if they were ours
STRANGE_DIGITS = ("²" * 20, "٣" * 20)


@pytest.mark.parametrize("digits", STRANGE_DIGITS)
def test_names_with_digits_of_other_scripts_are_none(digits: str) -> None:
    assert lease_token(f"lease/{digits}") is None
    assert parse_manifest_name(f"manifest/{digits}-{digits}") is None
    assert parse_state_name(f"state/{digits}-{digits}") is None


def test_names_are_read_as_they_are_written_and_others_are_none() -> None:
    assert lease_token(lease_name(17)) == 17
    assert parse_manifest_name(manifest_name(3, 10**19)) == (3, 10**19)
    assert parse_state_name(state_name(3, 4)) == (3, 4)
    for name in ("7-1", f"{'1' * 21}-{'1' * 20}", f"{manifest_name(1, 2)[9:]}.tmp", "", "-", "x"):
        assert parse_manifest_name(f"manifest/{name}") is None
        assert parse_state_name(f"state/{name}") is None


@pytest.mark.parametrize("field", Segment._fields)
@pytest.mark.parametrize("number", [HUGE, -1, 1.5, True, None, "7", [], 1 << 80])
def test_a_segment_with_numbers_that_nothing_has_is_none(field: str, number: Any) -> None:
    contents = TierContents()
    values = [number if name == field else value for name, value in GOOD._asdict().items()]
    with pytest.raises(ValueError, match=r"a segment|Form"):
        contents.apply([COMMITTED, "Orders", 0, values])
    assert not contents.queues


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../../etc", "a\0b", "t" * 300])
@pytest.mark.parametrize("kind", [COMMITTED, MERGED, GROWN, EXPIRED, CUT])
def test_a_topic_that_is_no_directory_is_none(kind: str, topic: str) -> None:
    contents = TierContents()
    with pytest.raises(ValueError, match="is no topic"):
        contents.apply([kind, topic, 0, 5 if kind in (EXPIRED, CUT) else encode_segment(GOOD)])
    assert not contents.queues


@pytest.mark.parametrize("queue_id", [-1, True, 1 << 31, HUGE])
def test_a_queue_id_that_no_queue_has_is_none(queue_id: int) -> None:
    for last in (encode_segment(GOOD), 5):
        with pytest.raises(ValueError, match="is no queue"):
            TierContents().apply([COMMITTED if isinstance(last, list) else EXPIRED, "Orders", queue_id, last])


@pytest.mark.parametrize("offset", [-1, True, HUGE])
@pytest.mark.parametrize("kind", [EXPIRED, CUT])
def test_an_offset_that_no_queue_has_is_none(kind: str, offset: int) -> None:
    with pytest.raises(ValueError, match="no queue has that offset"):
        TierContents().apply([kind, "Orders", 0, offset])


def test_what_is_no_change_is_none_whatever_it_is() -> None:
    rng = random.Random(1)
    pieces: list[Any] = [COMMITTED, MERGED, EXPIRED, DROPPED, "Orders", "", 0, -1, 1.5, None, True, [], {}, [1] * 13]
    contents = TierContents()
    contents.apply(committed(Queue("Orders", 0), GOOD))
    before = list(contents.rows())
    for _ in range(3000):
        change = rng.choices(pieces, k=rng.randrange(6))
        if change[:1] == [DROPPED] or (change[:1] == [EXPIRED] and change[3:] == [0]):
            continue
        try:
            contents.apply(change)
        except ValueError:
            assert list(contents.rows()) == before


def _packed() -> tuple[bytes, int]:
    writer, messages = BlockWriter(), random.Random(2).randbytes(600_000)
    return b"".join([*writer.add(messages), writer.finish()]), len(messages)


def _decoders() -> dict[str, tuple[bytes, Callable[[bytes], Any]]]:
    part = ManifestPart(Position(3, 4), True, [(1, 0)], [committed(Queue("t" * 127, 0), GOOD)])
    lease = Lease(3, "h", "n", "somebody", 5, LeaseState.HELD)
    items = b"".join(ITEM.pack(number << 24, 0, number, 1000 + number) for number in range(150))
    index = encode_index(items, 3)
    entry = describe(index, 1, 2)
    position, length = entry.range_of(70 << 24)
    packed, size = _packed()
    end = packed[-index_bytes(size) :]
    return {
        "manifest": (encode_part(part), lambda content: decode_part(content, "m")),
        "piece": (encode_part(part._replace(is_last=False)), lambda content: decode_part(content, "m")),
        "state": (encode_state([["topic", {"name": "t" * 127}]]), lambda content: decode_state(content, "s")),
        "lease": (encode_lease(lease), lambda content: decode_lease(content, 3, "l")),
        "index": (index, lambda content: decode_index(content, entry)),
        "range": (index[position : position + length], lambda content: postings_of(entry, 70 << 24, content)),
        "blocks": (end, lambda content: BlockIndex(content, size, len(packed))),
    }


def decoded(decode: Callable[[bytes], Any], content: bytes) -> Any:
    """None where it is told that it is not what was stored."""
    try:
        return decode(content)
    except ValueError:
        return None


@pytest.mark.parametrize("kind", _decoders())
def test_an_object_that_is_cut_at_any_length_is_told_of(kind: str) -> None:
    whole, decode = _decoders()[kind]
    decode(whole)
    for length in range(len(whole)):
        assert decoded(decode, whole[:length]) is None


@pytest.mark.parametrize("kind", _decoders())
def test_an_object_with_any_byte_changed_is_told_of(kind: str) -> None:
    whole, decode = _decoders()[kind]
    for at in range(len(whole)):
        found = decoded(decode, whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :])
        assert found is None or kind == "lease" or found == decode(whole), "only a lease has no checksum"
