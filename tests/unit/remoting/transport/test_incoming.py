"""What was read and waits: for the rest of its frame, or for a taker."""

from __future__ import annotations

import pytest

from remoting import frame
from remoting.frame import Command
from remoting.transport.incoming import Incoming
from remoting.transport.unfinished import SMALL_BYTES, Piece
from remoting.transport.watch import UnfinishedSettings, Watch

CODE = 105


class Holder:
    def room_came(self, piece: Piece) -> None:
        raise AssertionError("there was room from the beginning")

    def dropped(self, piece: Piece, reason: str) -> None:
        raise AssertionError(reason)


def knows_ann(head: Command) -> bool:
    return head.ext.get("name") == "ann"


@pytest.mark.parametrize("crumb_bytes", [1, 7, 1000])
def test_a_frame_is_there_when_its_last_byte_is(crumb_bytes: int) -> None:
    whole = frame.encode_request(CODE, 1, {"a": "b"}, bytes(2500))
    incoming = Incoming()
    incoming.keep_rest(whole[:3])
    at = 3
    while at < len(whole):
        crumb = whole[at : at + crumb_bytes]
        at += len(crumb)
        # with the length it is known how much is wanted; before, it is asked for that
        if incoming.add(crumb) and at < len(whole):
            incoming.keep_rest(incoming.take())
    assert incoming.take() == whole
    assert incoming.chunks == []


def test_what_comes_waits_behind_what_is_offered_up_to_a_bound() -> None:
    incoming = Incoming()
    incoming.offer(b"first", 10)
    assert not incoming.is_full
    assert not incoming.add(b"1234")
    assert incoming.add(b"5")
    assert incoming.is_full
    assert incoming.offered == incoming.offered == b"first12345"
    assert incoming.take_offered() == b"first12345"
    assert (incoming.is_offered, incoming.is_full, incoming.offered, incoming.take_offered()) == (
        False,
        False,
        b"",
        b"",
    )


def test_what_waits_may_leave_with_the_socket_when_it_is_short() -> None:
    incoming = Incoming()
    assert incoming.may_leave(0)
    incoming.keep_rest(frame.encode_request(CODE, 1, None, bytes(1000))[:100])
    assert not incoming.may_leave(500)
    assert incoming.may_leave(2000)
    incoming.take()
    incoming.offer(b"first", 10)
    assert not incoming.may_leave(2000)


async def test_a_frame_counts_until_it_is_all_there_or_not_waited_for() -> None:
    watch = Watch(UnfinishedSettings())
    incoming = Incoming(watch)
    whole = frame.encode_request(CODE, 1, None, bytes(1000))
    for end in (incoming.take, incoming.end_piece):
        incoming.chunks.clear()
        incoming.keep_rest(whole[:100])
        incoming.begin_piece(Holder(), "peer", is_proven=True)
        assert len(watch.proven) == 1
        assert incoming.add(whole[100:])
        end()
        assert len(watch.proven) == 0


def test_a_long_frame_of_a_stranger_has_to_name_somebody() -> None:
    asked = Incoming(may_send_much=knows_ann)
    for name, is_let_in in (("ann", True), ("bob", False)):
        whole = frame.encode_request(CODE, 1, {"name": name}, bytes(2 * SMALL_BYTES))
        asked.keep_rest(whole[:10])
        assert asked.refusal(is_proven=False) == "", "its header is waited for"
        assert asked.add(whole[10:300])
        asked.keep_rest(asked.take())
        refusal = asked.refusal(is_proven=False)
        assert (refusal == "") is is_let_in
        assert asked.refusal(is_proven=True) == ""
        if not is_let_in:
            assert f"{len(whole)} bytes and names no user" in refusal
        asked.take()
    whole = frame.encode_request(CODE, 1, {"name": "bob"}, bytes(100))
    asked.keep_rest(whole[:50])
    assert asked.refusal(is_proven=False) == "", "a short one may come from anybody"


def test_a_long_frame_with_a_header_that_is_none_is_refused() -> None:
    incoming = Incoming(may_send_much=knows_ann)
    whole = bytearray(frame.encode_request(CODE, 1, {"name": "ann"}, bytes(2 * SMALL_BYTES)))
    whole[8:20] = b"\xff" * 12
    incoming.keep_rest(bytes(whole[:300]))
    assert incoming.refusal(is_proven=False) != ""
