"""The original's layouts: told apart by their first bytes, whole before they are read, refused where they do not fit."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.wire import rocketmq_layouts
from brokerd.replication.wire.accepted_end import AcceptedEnd
from brokerd.replication.wire.dialled_end import UNLIMITED, DialledEnd
from brokerd.replication.wire.frames import Ack, Handshake, Layout, Piece, Reply, TransferHeader
from brokerd.replication.wire.proof import NotProven
from remoting.errors import ProtocolError
from tests.unit.brokerd.replication.group import credentials

REPLY = Reply(5000, 7, (EpochEntry(3, 0), EpochEntry(7, 4000)))
CURRENT = bytes.fromhex("00000001 0000 0000 0000000000000002")
ADDRESS = b"10.0.0.7:10911"
SEED = bytes.fromhex("00000001 0001 0000") + len(ADDRESS).to_bytes(4, "big") + ADDRESS
SEED_PADDED = SEED + bytes(50 - len(ADDRESS))
GUEST = Handshake(-1, True, True, Layout.SEED, acks_flushed=False, address=ADDRESS.decode())
CLASSIC_GUEST = Handshake(-1, learner=True, layout=Layout.CLASSIC, acks_flushed=False)


def master(*, classic: bool = False) -> AcceptedEnd:
    return AcceptedEnd(credentials(), allows_rocketmq=True, allows_classic=classic)


def fed(end: AcceptedEnd, data: bytes, size: int) -> list[object]:
    frames: list[object] = []
    for start in range(0, len(data), size):
        frames += end.receive(data[start : start + size])
    return frames


def without_superseded(frames: list[object]) -> list[object]:
    """Acks of one read are given as the last; those of several reads are not."""
    kept: list[object] = []
    for frame in frames:
        if isinstance(frame, Ack) and kept and isinstance(kept[-1], Ack) and kept[-1].offset <= frame.offset:
            kept.pop()
        kept.append(frame)
    return kept


# The master's end


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11, 12, 13, 16, 17, 200])
@pytest.mark.parametrize(
    ("opening", "layout", "handshake"),
    [
        (CURRENT, Layout.CURRENT, Handshake(2, layout=Layout.CURRENT, acks_flushed=False)),
        (SEED, Layout.SEED, GUEST),
        (SEED_PADDED, Layout.SEED, GUEST),
    ],
)
def test_the_layout_is_told_by_the_first_bytes(opening: bytes, layout: Layout, handshake: Handshake, size: int) -> None:
    end = master(classic=True)
    acks = rocketmq_layouts.encode_ack(100) + rocketmq_layouts.encode_ack(200)
    assert without_superseded(fed(end, opening + acks, size)) == [handshake, Ack(200)]
    assert end.layout is layout
    assert not end.output


@pytest.mark.parametrize("padding", [0, 1, 2, 3, 4, 49])
@pytest.mark.parametrize("size", [1, 3, 200])
def test_a_seed_address_of_any_length_is_padded_or_not(padding: int, size: int) -> None:
    address = b"h" * (50 - padding - 2) + b":1" if padding < 48 else b"h"
    if padding == 49:
        address = b"h:1"
    head = bytes.fromhex("00000001 0000 0000") + len(address).to_bytes(4, "big") + address
    for tail in (b"", bytes(50 - len(address))):
        frames = fed(
            master(), head + tail + rocketmq_layouts.encode_ack(9) + head + rocketmq_layouts.encode_ack(10), size
        )
        assert [type(frame) for frame in without_superseded(frames)] == [Handshake, Ack, Handshake, Ack]


def test_a_handshake_is_not_read_before_it_is_whole() -> None:
    end = master()
    assert end.receive(CURRENT[:12]) == []
    assert end.receive(CURRENT[12:15]) == []
    assert end.receive(CURRENT[15:]) == [Handshake(2, layout=Layout.CURRENT, acks_flushed=False)]


def test_a_slave_repeats_its_handshake_while_it_waits() -> None:
    assert len(master().receive(CURRENT + CURRENT)) == 2


@pytest.mark.parametrize("offset", [0, 8, 2**31, 2**32 + 2, 2**32 + 5, 7 * 2**32, 2**62])
@pytest.mark.parametrize("size", [1, 3, 8, 16, 200])
def test_a_classic_slave_begins_with_its_offset(offset: int, size: int) -> None:
    end = master(classic=True)
    frames = fed(end, struct.pack(">qq", offset, offset + 9), size)
    assert without_superseded(frames) == [CLASSIC_GUEST, Ack(offset + 9)]


@pytest.mark.parametrize("low", [0, 1, 0x10000, 0x10001])
def test_a_classic_offset_that_looks_like_a_handshake_is_told_by_its_repetition(low: int) -> None:
    end = master(classic=True)
    offset = 2**32 + low
    assert end.receive(struct.pack(">q", offset)) == []
    assert end.receive(struct.pack(">q", offset)) == [CLASSIC_GUEST, Ack(offset)]


@pytest.mark.parametrize("state", [0, 2, 3, 4, 5, -1, 1 << 30])
def test_unknown_states_are_refused(state: int) -> None:
    raw = state.to_bytes(4, "big", signed=True) + bytes(60)
    with pytest.raises(ProtocolError):
        master().receive(raw)
    opened = master()
    opened.receive(CURRENT)
    if state != 2:
        with pytest.raises(ProtocolError):
            opened.receive(raw)


@pytest.mark.parametrize("length", [-1, 51, 2**31 - 1])
def test_a_seed_address_is_bounded(length: int) -> None:
    with pytest.raises(ProtocolError):
        master().receive(bytes.fromhex("00000001 0000 0000") + length.to_bytes(4, "big", signed=True) + bytes(60))


def test_a_seed_address_must_be_one_and_its_padding_zeros() -> None:
    with pytest.raises(ProtocolError):
        master().receive(bytes.fromhex("00000001 0000 0000 00000004") + b"\0\0\0\0" + bytes(20))
    end = master()
    end.receive(SEED)
    with pytest.raises(ProtocolError, match="not padded with zeros"):
        end.receive(bytes(10) + b"x" + bytes(25))


@pytest.mark.parametrize("first", [CURRENT, SEED, bytes(8), b"\1", b"GET / HTTP/1.1\r\n"])
def test_who_is_not_listed_must_prove_himself(first: bytes) -> None:
    with pytest.raises(NotProven, match=r"replication\.plain_peers"):
        AcceptedEnd(credentials()).receive(first)


def test_the_master_answers_in_the_same_layout() -> None:
    end = master()
    end.receive(CURRENT)
    assert end.encode_reply(REPLY) == rocketmq_layouts.encode_reply(REPLY)
    header = TransferHeader(1, 2, 3, 4)
    assert end.encode_transfer_header(header, 5) == rocketmq_layouts.encode_transfer_header(header, 5)
    classic = master(classic=True)
    classic.receive(bytes(8))
    assert classic.encode_transfer_header(header, 5) == rocketmq_layouts.encode_classic_transfer_header(header, 5)


# The replica's end


def replica(layout: Layout = Layout.CURRENT) -> DialledEnd:
    return DialledEnd(credentials(secret=None), Handshake(2, layout=layout, highest_epoch=7))


def test_a_plain_replica_needs_no_secret_and_says_the_documented_bytes() -> None:
    end = replica()
    assert end.output == [rocketmq_layouts.encode_handshake(Handshake(2))]
    assert end.is_open
    assert end.encode_ack(7) == rocketmq_layouts.encode_ack(7)
    classic = replica(Layout.CLASSIC)
    assert classic.output == []
    assert classic.encode_ack(7) == rocketmq_layouts.encode_classic_ack(7)


def test_a_transfer_header_is_not_read_before_it_is_whole() -> None:
    end = replica()
    end.receive(rocketmq_layouts.encode_reply(REPLY))
    data = rocketmq_layouts.encode_transfer_header(TransferHeader(4010, 7, 4000, 9), 3) + b"abc"
    for position in range(36):
        assert end.receive(data[position : position + 1]) == []
    (piece,) = end.receive(data[36:])
    assert isinstance(piece, Piece)
    assert (piece.header, bytes(piece.body)) == (TransferHeader(4010, 7, 4000, 9), b"abc")


@given(
    st.lists(st.binary(max_size=40), max_size=8),
    st.lists(st.integers(1, 50), min_size=1, max_size=40),
    st.sampled_from([Layout.CURRENT, Layout.CLASSIC]),
)
def test_any_split_gives_the_same_bytes_at_the_same_offsets(
    bodies: list[bytes], cuts: list[int], layout: Layout
) -> None:
    stream, log = (rocketmq_layouts.encode_reply(REPLY) if layout is Layout.CURRENT else b""), b""
    for body in bodies:
        header = TransferHeader(4100 + len(log), 7, 4000, 9)
        encode = (
            rocketmq_layouts.encode_transfer_header
            if layout is Layout.CURRENT
            else rocketmq_layouts.encode_classic_transfer_header
        )
        stream += encode(header, len(body)) + body
        log += body
    end = replica(layout)
    replies, beats, received = 0, 0, bytearray()
    position = turn = 0
    while position < len(stream):
        chunk = stream[position : position + cuts[turn % len(cuts)]]
        position += len(chunk)
        turn += 1
        for event in end.receive(chunk):
            if isinstance(event, Reply):
                replies += 1
            elif event.body:
                assert event.header.offset == 4100 + len(received)
                received += event.body
            else:
                beats += 1
    assert (replies, beats) == (layout is Layout.CURRENT, sum(not body for body in bodies))
    assert bytes(received) == log


def test_the_last_bytes_of_an_epoch_are_not_taken_for_the_next_ones() -> None:
    """The original's master moves its cursor before it writes the header of the batch that ends an epoch."""
    end = replica()
    end.receive(rocketmq_layouts.encode_reply(REPLY))
    mislabelled = TransferHeader(3990, 7, 4000, 0)
    (piece,) = end.receive(rocketmq_layouts.encode_transfer_header(mislabelled, 10) + b"x" * 10)
    assert isinstance(piece, Piece)
    assert piece.header == TransferHeader(3990, 3, 0, 0)


def test_a_batch_over_the_border_of_epochs_is_taken_apart() -> None:
    end = replica()
    end.receive(rocketmq_layouts.encode_reply(REPLY))
    pieces = end.receive(
        rocketmq_layouts.encode_transfer_header(TransferHeader(3990, 3, 0, 0), 30) + b"a" * 10 + b"b" * 20
    )
    assert [(piece.header.epoch, piece.header.offset, bytes(piece.body)) for piece in pieces] == [
        (3, 3990, b"a" * 10),
        (7, 4000, b"b" * 20),
    ]


def test_an_epoch_that_began_after_the_greeting_ends_the_connection() -> None:
    end = replica()
    end.receive(rocketmq_layouts.encode_reply(REPLY))
    with pytest.raises(ProtocolError, match="did not have when it greeted"):
        end.receive(rocketmq_layouts.encode_transfer_header(TransferHeader(5000, 8, 5000, 0), 3) + b"abc")


def test_bytes_before_the_first_epoch_end_the_connection() -> None:
    end = replica()
    end.receive(rocketmq_layouts.encode_reply(Reply(5000, 7, (EpochEntry(7, 4000),))))
    with pytest.raises(ProtocolError, match="before the master's first epoch"):
        end.receive(rocketmq_layouts.encode_transfer_header(TransferHeader(3000, 7, 4000, 0), 3) + b"abc")


def test_a_classic_master_confirms_nothing_and_has_no_epochs() -> None:
    (piece,) = replica(Layout.CLASSIC).receive(struct.pack(">qi", 77, 2) + b"ab")
    assert isinstance(piece, Piece)
    assert piece.header == TransferHeader(77, 0, -1, UNLIMITED)


@pytest.mark.parametrize("size", [-1, rocketmq_layouts.MAX_BODY_BYTES + 1])
@pytest.mark.parametrize("layout", [Layout.CURRENT, Layout.CLASSIC])
def test_bodies_are_bounded(size: int, layout: Layout) -> None:
    header = TransferHeader(0, 1, 0, 0)
    encode = (
        rocketmq_layouts.encode_transfer_header
        if layout is Layout.CURRENT
        else rocketmq_layouts.encode_classic_transfer_header
    )
    with pytest.raises(ProtocolError):
        replica(layout).receive(encode(header, size))


@pytest.mark.parametrize("size", [-1, 7, 12 * 10_001, 2**31 - 1])
def test_reply_bodies_are_bounded_before_they_are_awaited(size: int) -> None:
    data = bytearray(rocketmq_layouts.encode_reply(REPLY))
    data[4:8] = size.to_bytes(4, "big", signed=True)
    with pytest.raises(ProtocolError):
        replica().receive(data)


@pytest.mark.parametrize("state", [0, 3, 4, -1, 1 << 30])
def test_a_master_in_an_unknown_state_is_left(state: int) -> None:
    with pytest.raises(ProtocolError):
        replica().receive(state.to_bytes(4, "big", signed=True) + bytes(60))
