"""Our own brokers to one another: proof first, then frames with the master epoch; anything else ends the connection."""

from __future__ import annotations

import pytest

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.wire import own_layout
from brokerd.replication.wire.accepted_end import AcceptedEnd
from brokerd.replication.wire.dialled_end import DialledEnd
from brokerd.replication.wire.frames import (
    Ack,
    Handshake,
    NewerEpoch,
    Piece,
    Released,
    Reply,
    TransferHeader,
    TwinConnected,
)
from brokerd.replication.wire.proof import Credentials, NotProven, prove_master, prove_replica
from remoting.errors import ProtocolError
from tests.unit.brokerd.replication.group import credentials
from tests.unit.brokerd.replication.wire.ends import Pair

HELLO = Handshake(2, highest_epoch=7, takes_notes=True)
REPLY = Reply(5000, 7, (EpochEntry(3, 0), EpochEntry(7, 4000)), 0, incarnation=1)


def greeted(piece_bytes: int = 1 << 30) -> Pair:
    """A pair whose replica knows the master's epochs."""
    pair = Pair(HELLO, piece_bytes=piece_bytes)
    pair.exchange()
    pair.to_replica(pair.master.encode_reply(REPLY))
    return pair


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 31, 1 << 20])
def test_a_conversation_is_the_same_however_it_is_cut(piece_bytes: int) -> None:
    pair = greeted(piece_bytes)
    assert pair.replica.is_open
    assert pair.at_master == [HELLO._replace(incarnation=9)]
    assert pair.at_replica == [REPLY]
    pair.to_master(pair.replica.encode_ack(100) + pair.replica.encode_ack(200))
    assert pair.at_master[-1] == Ack(200)
    body = bytes(range(256)) * 4
    pair.at_replica.clear()
    pair.to_replica(pair.master.encode_transfer_header(TransferHeader(200, 3, 0, 100), len(body)) + body)
    pair.to_replica(pair.master.encode_transfer_header(TransferHeader(1224, 7, 4000, 150), 0))
    pieces = [frame for frame in pair.at_replica if isinstance(frame, Piece)]
    assert b"".join(bytes(piece.body) for piece in pieces) == body
    offset = 200
    for piece in pieces:
        assert piece.header.offset == offset
        offset += len(piece.body)
    assert pieces[-1] == Piece(TransferHeader(1224, 7, 4000, 150), b"")


def test_what_a_handshake_tells_arrives() -> None:
    told = Handshake(2**40, True, True, highest_epoch=2**31 - 1, acks_flushed=False, starts_anew=True)
    told = told._replace(takes_notes=True)
    pair = Pair(told)
    pair.exchange()
    assert pair.at_master == [told._replace(incarnation=9)]


def test_ten_thousand_epochs_are_greeted_with() -> None:
    pair = Pair(Handshake(2, highest_epoch=9_999))
    pair.exchange()
    entries = tuple(EpochEntry(epoch, 10 * epoch) for epoch in range(10_000))
    pair.to_replica(pair.master.encode_reply(Reply(200_000, 9_999, entries, 50)))
    assert pair.at_replica == [Reply(200_000, 9_999, entries, 50, 1)]


def test_notes_arrive_and_a_replica_of_before_gets_none() -> None:
    pair = greeted()
    pair.at_replica.clear()
    for state in (own_layout.RELEASED, own_layout.TWIN):
        pair.to_replica(pair.master.encode_note(state, 7))
    assert pair.at_replica == [Released(), TwinConnected()]
    with pytest.raises(ProtocolError, match="master of epoch 8"):
        pair.to_replica(pair.master.encode_note(own_layout.RELEASED, 8))
    pair = Pair(HELLO)
    pair.exchange()
    pair.master._takes_notes = False
    assert pair.master.encode_note(own_layout.RELEASED, 7) == b""
    pair.to_replica(pair.master.encode_reply(REPLY))
    assert pair.at_replica == [REPLY._replace(incarnation=0)]


# The proof


def test_another_secret_proves_nothing() -> None:
    master = AcceptedEnd(credentials())
    replica = DialledEnd(credentials(secret=b"of another cluster"), HELLO)
    master.receive(replica.output[0])
    replica.output.clear()
    replica.receive(master.output[0])
    master.output.clear()
    with pytest.raises(NotProven, match="does not know this cluster's secret"):
        master.receive(replica.output[0])
    assert not master.output


def test_a_master_that_cannot_prove_itself_is_left() -> None:
    replica = DialledEnd(credentials(), HELLO)
    replica.receive(own_layout.CHALLENGE_MAGIC + bytes(32))
    with pytest.raises(NotProven, match="the master does not know"):
        replica.receive(own_layout.WELCOME_MAGIC + bytes(32))
    assert not replica.is_open


def test_a_proof_sent_back_is_no_welcome() -> None:
    replica = DialledEnd(credentials(), HELLO)
    replica.output.clear()
    replica.receive(own_layout.CHALLENGE_MAGIC + bytes(32))
    proof = replica.output[0]
    with pytest.raises(NotProven):
        replica.receive(own_layout.WELCOME_MAGIC + proof[4:])


def test_a_recorded_proof_does_not_answer_a_new_challenge() -> None:
    replica = DialledEnd(credentials(), HELLO)
    hello = replica.output.pop()
    first = AcceptedEnd(Credentials(b"known to this group only", b"c#b", 1, lambda: b"1" * 32))
    first.receive(hello)
    replica.receive(first.output[0])
    proof = replica.output.pop()
    assert first.receive(proof)
    second = AcceptedEnd(Credentials(b"known to this group only", b"c#b", 1, lambda: b"2" * 32))
    second.receive(hello)
    with pytest.raises(NotProven):
        second.receive(proof)


def test_a_hello_changed_on_the_way_is_not_proven() -> None:
    replica = DialledEnd(credentials(), HELLO)
    master = AcceptedEnd(credentials())
    hello = bytearray(replica.output.pop())
    hello[15] ^= 1  # another broker id
    master.receive(hello)
    replica.receive(master.output.pop())
    with pytest.raises(NotProven):
        master.receive(replica.output.pop())


def test_the_two_proofs_of_one_conversation_differ() -> None:
    proof = prove_replica(b"k", b"hello", b"challenge")
    assert proof != prove_master(b"k", b"hello", b"challenge", proof)
    assert len({proof, prove_replica(b"K", b"hello", b"challenge"), prove_replica(b"k", b"hellO", b"challenge")}) == 3


def test_without_a_secret_nobody_is_answered_and_nobody_dialled() -> None:
    with pytest.raises(NotProven, match="--cluster-secret"):
        DialledEnd(credentials(secret=None), HELLO)
    master = AcceptedEnd(credentials(secret=None))
    with pytest.raises(NotProven, match="--cluster-secret"):
        master.receive(DialledEnd(credentials(), HELLO).output[0])
    assert not master.output


def test_the_secret_is_not_shown() -> None:
    assert "known" not in repr(credentials())


def test_another_group_is_refused_by_name() -> None:
    other = Credentials(b"known to this group only", b"c#other", 1, lambda: b"n" * 32)
    with pytest.raises(NotProven, match="another group"):
        AcceptedEnd(credentials()).receive(DialledEnd(other, HELLO).output[0])


def test_another_version_is_refused_by_name() -> None:
    hello = bytearray(DialledEnd(credentials(), HELLO).output[0])
    hello[5] = 2
    with pytest.raises(ProtocolError, match="version 2"):
        AcceptedEnd(credentials()).receive(hello)


def test_a_group_name_is_bounded_before_it_is_awaited() -> None:
    hello = bytearray(DialledEnd(credentials(), HELLO).output[0])
    hello[own_layout.HELLO.size - 2 : own_layout.HELLO.size] = b"\xff\xff"
    with pytest.raises(ProtocolError, match="65535 bytes"):
        AcceptedEnd(credentials()).receive(hello[: own_layout.HELLO.size])


@pytest.mark.parametrize("cut", range(1, 32))
def test_nothing_is_answered_before_a_hello_is_whole(cut: int) -> None:
    master = AcceptedEnd(credentials())
    hello = DialledEnd(credentials(), HELLO).output[0]
    assert master.receive(hello[:-cut]) == []
    assert not master.output
    master.receive(hello[-cut:])
    assert len(master.output) == 1


# Everything in its place


def test_an_ack_cannot_be_sent_along_with_the_hello_or_the_proof() -> None:
    ack = own_layout.encode_ack(7, 5000)
    with pytest.raises(ProtocolError, match="before it was challenged"):
        AcceptedEnd(credentials()).receive(DialledEnd(credentials(), HELLO).output[0] + ack)
    pair = Pair(HELLO)
    pair.master.receive(pair.replica.output.pop())
    pair.replica.receive(pair.master.output.pop())
    with pytest.raises(ProtocolError, match="before the master's epochs"):
        pair.master.receive(pair.replica.output.pop() + ack)


def test_an_ack_of_an_older_epoch_ends_the_connection() -> None:
    with pytest.raises(ProtocolError, match="master epoch 6"):
        greeted().master.receive(own_layout.encode_ack(6, 100))


def test_an_ack_of_a_newer_epoch_tells_of_it() -> None:
    assert greeted().master.receive(own_layout.encode_ack(8, 100)) == [NewerEpoch(8)]


@pytest.mark.parametrize("state", [0, 1, 3, 4, 5, -1, 1 << 30])
def test_unknown_states_end_the_connection(state: int) -> None:
    raw = state.to_bytes(4, "big", signed=True) + bytes(60)
    with pytest.raises(ProtocolError):
        greeted().master.receive(raw)
    if state != 1:
        with pytest.raises(ProtocolError):
            greeted().replica.receive(raw)


@pytest.mark.parametrize("master_epoch", [6, 8])
def test_bytes_of_another_master_epoch_are_refused(master_epoch: int) -> None:
    raw = own_layout.encode_transfer_header(TransferHeader(0, 3, 0, 0), 10, master_epoch)
    with pytest.raises(ProtocolError, match=f"master epoch {master_epoch}"):
        greeted().replica.receive(raw)


@pytest.mark.parametrize("size", [-1, (64 << 20) + 1])
def test_bodies_are_bounded_before_they_are_awaited(size: int) -> None:
    with pytest.raises(ProtocolError, match="the limit is"):
        greeted().replica.receive(own_layout.encode_transfer_header(TransferHeader(0, 3, 0, 0), size, 7))


@pytest.mark.parametrize(
    "reply",
    [
        Reply(-1, 7, REPLY.entries, 0),
        Reply(5000, 6, REPLY.entries, 0),
        Reply(3000, 7, REPLY.entries, 0),
        Reply(5000, 7, REPLY.entries, 5001),
        Reply(5000, 7, REPLY.entries, -2),
        Reply(5000, 7, (EpochEntry(7, 10), EpochEntry(7, 20)), 0),
        Reply(5000, 3, (EpochEntry(7, 10), EpochEntry(3, 20)), 0),
        Reply(5000, 0, (), 0),
    ],
)
def test_contradicting_replies_are_refused(reply: Reply) -> None:
    pair = Pair(HELLO)
    pair.exchange()
    with pytest.raises(ProtocolError):
        pair.replica.receive(own_layout.encode_reply(reply))


@pytest.mark.parametrize("size", [-1, 7, 12 * 10_001, 2**31 - 1])
def test_reply_bodies_are_bounded_before_they_are_awaited(size: int) -> None:
    pair = Pair(HELLO)
    pair.exchange()
    raw = bytearray(own_layout.encode_reply(REPLY))
    raw[4:8] = size.to_bytes(4, "big", signed=True)
    with pytest.raises(ProtocolError):
        pair.replica.receive(raw[: own_layout.REPLY.size])


def test_neither_reply_nor_transfer_is_read_before_it_is_whole() -> None:
    pair = Pair(HELLO)
    pair.exchange()
    for byte in own_layout.encode_reply(REPLY)[:-1]:
        assert pair.replica.receive(bytes((byte,))) == []
    assert pair.replica.receive(own_layout.encode_reply(REPLY)[-1:]) == [REPLY._replace(incarnation=0)]
    header = own_layout.encode_transfer_header(TransferHeader(10, 7, 4, 9), 3, 7)
    for byte in header:
        assert pair.replica.receive(bytes((byte,))) == []
    (piece,) = pair.replica.receive(b"abc")
    assert isinstance(piece, Piece)
    assert (piece.header, bytes(piece.body)) == (TransferHeader(10, 7, 4, 9), b"abc")
