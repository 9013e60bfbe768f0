"""Raft values as bytes: whole, cut and damaged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllerd.raft.codec import decode_configuration, decode_message, encode_configuration, encode_message
from controllerd.raft.messages import Entry, EntryKind, Message, MessageKind, Snapshot
from controllerd.raft.quorum import Configuration
from remoting.errors import ProtocolError

_NAME = st.text(max_size=20)
_NUMBER = st.integers(0, 2**63)
_KINDS = st.sampled_from([kind for kind in MessageKind if kind is not MessageKind.SNAPSHOT])


MEMBERS = Configuration(("n1", "n2", "n3"), learners=("n4",), addresses=(("n4", "127.0.0.1:9876"),))


@st.composite
def _configurations(draw: st.DrawFn) -> Configuration:
    """Any membership that can be: everybody has one place, and the joint one has its own rules."""
    names = draw(st.lists(_NAME, min_size=1, max_size=9, unique=True))
    places = {name: draw(st.sampled_from(["voter", "learner", "retired", "leaving", "next", "both"])) for name in names}
    places[names[0]] = "voter"

    def at(*wanted: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, place in places.items() if place in wanted))

    outgoing = at("leaving", "next", "both")
    members = sorted(set(names) - set(at("retired")))
    return Configuration(
        at("voter", "both"),
        outgoing,
        at("learner"),
        at("next"),
        bool(outgoing) and draw(st.booleans()),
        tuple((name, draw(_NAME)) for name in members if draw(st.booleans())),
        at("retired"),
        draw(_NAME),
    )


def _data(draw: st.DrawFn, kind: EntryKind) -> bytes:
    return (
        encode_configuration(draw(_configurations())) if kind is EntryKind.MEMBERSHIP else draw(st.binary(max_size=30))
    )


@st.composite
def _messages(draw: st.DrawFn) -> Message:
    index, log_term = draw(st.integers(0, 2**32)), draw(st.integers(0, 9))
    terms = sorted(draw(st.lists(st.integers(log_term, 20), max_size=5)))
    entries = tuple(
        Entry(index + place, term, _data(draw, kind), kind)
        for place, term in enumerate(terms, 1)
        for kind in [draw(st.sampled_from(EntryKind))]
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
        forced=draw(st.booleans()),
    )


SNAPSHOT = Message(MessageKind.SNAPSHOT, "n1", "n2", 7, snapshot=Snapshot(5, 6, MEMBERS, b'{"the":"state"}'))


@given(_messages())
def test_round_trip(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@given(_configurations())
def test_round_trip_of_a_membership(configuration: Configuration) -> None:
    assert decode_configuration(encode_configuration(configuration)) == configuration


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x02" + bytes(13), "unknown flags 2"),
        (b"\x01" + bytes(13), "no change to end"),
        (b"\0\0" + b"\0\x02\x01b\x01a" + bytes(10), "sorted and unique"),
        (b"\0\0" + b"\xff\xff" + bytes(12), "announces 65535 names"),
        (b"\0\0" + b"\0\x01\x01a" + bytes(2) + b"\0\x01\x01a" + bytes(6), "a learner has a vote"),
    ],
)
def test_an_impossible_membership_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        decode_configuration(content)
    entry = Entry(1, 1, content, EntryKind.MEMBERSHIP)
    with pytest.raises(ProtocolError, match=sentence):
        decode_message(encode_message(Message(MessageKind.APPEND, "a", "b", 1, entries=(entry,))))


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
