"""Raft values as bytes: whole, cut and damaged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllerd.raft.codec import decode_message, encode_message
from controllerd.raft.messages import Entry, EntryKind, Message, MessageKind, Snapshot
from remoting.errors import ProtocolError

_NAME = st.text(max_size=20)
_NUMBER = st.integers(0, 2**63)
_KINDS = st.sampled_from([kind for kind in MessageKind if kind is not MessageKind.SNAPSHOT])


@st.composite
def _messages(draw: st.DrawFn) -> Message:
    index, log_term = draw(st.integers(0, 2**32)), draw(st.integers(0, 9))
    terms = sorted(draw(st.lists(st.integers(log_term, 20), max_size=5)))
    entries = tuple(
        Entry(index + place, term, draw(st.binary(max_size=30)), draw(st.sampled_from(EntryKind)))
        for place, term in enumerate(terms, 1)
    )
    return Message(
        draw(_KINDS),
        draw(_NAME),
        draw(_NAME),
        draw(st.integers(20, 2**40)),
        index,
        log_term,
        draw(_NUMBER),
        draw(st.booleans()),
        draw(_NUMBER),
        draw(_NUMBER),
        entries,
    )


SNAPSHOT = Message(MessageKind.SNAPSHOT, "n1", "n2", 7, snapshot=Snapshot(5, 6, ("n1", "n2", "n3"), b'{"the":"state"}'))


@given(_messages())
def test_round_trip(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


def test_round_trip_of_a_snapshot() -> None:
    assert decode_message(encode_message(SNAPSHOT)) == SNAPSHOT


@given(_messages(), st.data())
def test_cut_or_extended_messages_are_refused(message: Message, data: st.DataObject) -> None:
    content = encode_message(message)
    with pytest.raises(ProtocolError):
        decode_message(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ProtocolError):
        decode_message(content + b"\0")


@given(st.one_of(_messages(), st.just(SNAPSHOT)), st.data())
def test_damage_is_refused_or_harmless(message: Message, data: st.DataObject) -> None:
    content = bytearray(encode_message(message))
    for _ in range(3):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_message(bytes(content))
    except ProtocolError:
        return
    for place, entry in enumerate(decoded.entries, 1):
        assert entry.index == decoded.index + place


@given(st.binary(max_size=200))
def test_noise_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_message(content)


def test_huge_counts_are_refused_before_anything_is_allocated() -> None:
    content = bytearray(encode_message(Message(MessageKind.APPEND, "a", "b", 1)))
    content[-5:-1] = b"\xff\xff\xff\xff"
    with pytest.raises(ProtocolError, match="4294967295 raft entries"):
        decode_message(bytes(content))
