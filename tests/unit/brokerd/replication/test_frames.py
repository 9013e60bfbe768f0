"""The bytes of the replication connection, whole, split anywhere, and hostile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.replication.epochs import EpochEntry
from brokerd.replication.frames import (
    MAX_BODY_BYTES,
    Ack,
    Handshake,
    MasterDecoder,
    Piece,
    ReplicaDecoder,
    Reply,
    TransferHeader,
    encode_ack,
    encode_handshake,
    encode_reply,
    encode_transfer_header,
)
from remoting.errors import ProtocolError

REPLY = Reply(5000, 7, (EpochEntry(3, 0), EpochEntry(7, 4000)))


def test_the_handshake_is_the_documented_sixteen_bytes() -> None:
    assert encode_handshake(Handshake(2)) == bytes.fromhex("00000001 0000 0000 0000000000000002")
    assert encode_handshake(Handshake(2, True, True)) == bytes.fromhex("00000001 0001 0001 0000000000000002")


def test_the_other_layouts() -> None:
    assert encode_ack(0x1122) == bytes.fromhex("00000002 0000000000001122")
    assert encode_reply(Reply(16, 1, (EpochEntry(1, 2),))) == bytes.fromhex(
        "00000001 0000000c 0000000000000010 00000001 00000001 0000000000000002"
    )
    header = TransferHeader(1, 2, 3, 4)
    assert encode_transfer_header(header, 5) == bytes.fromhex(
        "00000002 00000005 0000000000000001 00000002 0000000000000003 0000000000000004"
    )


def test_a_split_handshake_is_not_read_before_it_is_whole() -> None:
    decoder = MasterDecoder()
    data = encode_handshake(Handshake(0x0102030405060708))
    assert decoder.feed(data[:12]) == []
    assert decoder.feed(data[12:15]) == []
    assert decoder.feed(data[15:]) == [Handshake(0x0102030405060708)]


def test_runs_of_acks_are_given_as_the_last_unless_they_fall() -> None:
    data = encode_handshake(Handshake(2)) + b"".join(map(encode_ack, (5, 6, 9, 8, 10)))
    assert MasterDecoder().feed(data) == [Handshake(2), Ack(9), Ack(10)]


@pytest.mark.parametrize("state", [0, 3, 4, -1, 1 << 30])
def test_unknown_states_are_refused(state: int) -> None:
    data = state.to_bytes(4, "big", signed=True) + bytes(60)
    with pytest.raises(ProtocolError):
        MasterDecoder().feed(data)
    with pytest.raises(ProtocolError):
        ReplicaDecoder().feed(data)


def test_a_transfer_header_is_not_read_before_it_is_whole() -> None:
    decoder = ReplicaDecoder()
    data = encode_transfer_header(TransferHeader(10, 7, 4, 9), 3) + b"abc"
    for position in range(35):
        assert decoder.feed(data[position : position + 1]) == []
    assert decoder.feed(data[35:36]) == []
    pieces = decoder.feed(data[36:])
    assert [(piece.header.offset, bytes(piece.body)) for piece in pieces] == [(10, b"abc")]


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_any_split_gives_the_same_bytes_at_the_same_offsets(bodies: list[bytes], cuts: list[int]) -> None:
    stream, log = encode_reply(REPLY), b""
    for body in bodies:
        stream += encode_transfer_header(TransferHeader(100 + len(log), 7, 4, 9), len(body)) + body
        log += body
    decoder = ReplicaDecoder()
    replies, beats, received = 0, 0, bytearray()
    position = turn = 0
    while position < len(stream):
        chunk = stream[position : position + cuts[turn % len(cuts)]]
        position += len(chunk)
        turn += 1
        for event in decoder.feed(chunk):
            if isinstance(event, Reply):
                assert event == REPLY
                replies += 1
            elif event.body:
                assert event.header == (100 + len(received), 7, 4, 9)
                received += event.body
            else:
                beats += 1
    assert (replies, beats, bytes(received)) == (1, sum(not body for body in bodies), log)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(-1, 7, REPLY.entries),
        Reply(5000, 6, REPLY.entries),
        Reply(3000, 7, REPLY.entries),
        Reply(5000, 7, (EpochEntry(7, 10), EpochEntry(7, 20))),
        Reply(5000, 3, (EpochEntry(7, 10), EpochEntry(3, 20))),
        Reply(5000, 0, ()),
    ],
)
def test_contradicting_replies_are_refused(reply: Reply) -> None:
    with pytest.raises(ProtocolError):
        ReplicaDecoder().feed(encode_reply(reply))


@pytest.mark.parametrize("size", [-1, 7, 12 * 10_001, 2**31 - 1])
def test_reply_bodies_are_bounded_before_they_are_awaited(size: int) -> None:
    data = bytearray(encode_reply(REPLY))
    data[4:8] = size.to_bytes(4, "big", signed=True)
    with pytest.raises(ProtocolError):
        ReplicaDecoder().feed(data)


@pytest.mark.parametrize("size", [-1, MAX_BODY_BYTES + 1])
def test_transfer_bodies_are_bounded(size: int) -> None:
    with pytest.raises(ProtocolError):
        ReplicaDecoder().feed(encode_transfer_header(TransferHeader(0, 1, 0, 0), size))


def test_a_long_epoch_list_is_sent_as_its_newest_thousand() -> None:
    entries = tuple(EpochEntry(epoch, epoch) for epoch in range(1, 2001))
    (reply,) = ReplicaDecoder().feed(encode_reply(Reply(9999, 2000, entries)))
    assert isinstance(reply, Reply)
    assert reply.entries == entries[-1000:]


@given(st.binary(max_size=200))
def test_decoders_raise_nothing_but_protocol_errors(data: bytes) -> None:
    for decoder in (MasterDecoder(), ReplicaDecoder()):
        try:
            events = decoder.feed(data)
        except ProtocolError:
            continue
        assert all(isinstance(event, Handshake | Ack | Reply | Piece) for event in events)
