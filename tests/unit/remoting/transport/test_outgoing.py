"""What is to be sent on a connection, and its socket while somebody else has it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import pytest

from remoting.disk import Bytes
from remoting.transport.carrying import Lender
from remoting.transport.connection import RemotingConnection
from remoting.transport.limits import ConnectionLimits
from remoting.transport.outgoing import Outgoing


class Transport(asyncio.Transport):
    def __init__(self, own_socket: socket.socket) -> None:
        super().__init__({"socket": own_socket})
        self.writes: list[list[bytes]] = []
        self.unsent_bytes = 0
        self.closes = False

    def write(self, data: Bytes) -> None:
        self.writes.append([bytes(data)])

    def writelines(self, list_of_data: Iterable[Bytes]) -> None:
        self.writes.append([bytes(each) for each in list_of_data])

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return self.closes


class Carrier:
    """Has each piece until it is through."""

    def __init__(self) -> None:
        self.through = 0

    def keeps(self, lender: Lender, ticket: int) -> bool:
        return ticket > self.through

    def finish(self, ticket: int) -> None:
        self.through = max(self.through, ticket)


class Rig:
    def __init__(self, own_socket: socket.socket, *, has_carrier: bool = True) -> None:
        self.carrier, self.transport = Carrier(), Transport(own_socket)
        self.outgoing = Outgoing(self.carrier if has_carrier else None)
        self.outgoing.open(self.transport)


@pytest.fixture
def own_socket() -> Iterable[socket.socket]:
    with socket.socket() as own_socket:
        yield own_socket


def test_what_is_given_back_leaves_first_in_the_order_in_which_it_was(own_socket: socket.socket) -> None:
    rig = Rig(own_socket)
    rig.outgoing.add(b"third")
    rig.outgoing.give_back(b"first")
    rig.outgoing.give_back(b"second")
    rig.outgoing.add(b"fourth")
    assert rig.outgoing.size == len(b"firstsecondthirdfourth")
    rig.outgoing.write_to(rig.transport)
    assert rig.transport.writes == [[b"firstsecondthirdfourth"]]
    assert (rig.outgoing.parts, rig.outgoing.size) == ([], 0)
    rig.outgoing.add(b"later")
    rig.outgoing.give_back(b"sooner")
    rig.outgoing.write_to(rig.transport)
    assert rig.transport.writes[1:] == [[b"soonerlater"]], "what was given back before is gone"


def test_long_parts_are_not_copied(own_socket: socket.socket) -> None:
    rig = Rig(own_socket)
    parts = [bytes([number]) * 4096 for number in range(3)]
    for part in parts:
        rig.outgoing.add(part)
    rig.outgoing.write_to(rig.transport)
    assert rig.transport.writes == [parts]


def test_the_socket_is_lent_when_nothing_is_to_be_written_before(own_socket: socket.socket) -> None:
    rig = Rig(own_socket)
    assert rig.outgoing.lend(1, 0) == own_socket.fileno()
    assert rig.outgoing.lend(2, 0) == -1, "the piece before is not through"
    assert rig.outgoing.lend_more() == (own_socket.fileno(), 1)
    assert rig.outgoing.lend(2, 1) == own_socket.fileno()
    rig.outgoing.add(b"answer")
    assert rig.outgoing.lend(3, 2) == rig.outgoing.lend_more()[0] == -1
    rig.outgoing.take()
    rig.transport.unsent_bytes = 1
    assert rig.outgoing.socket_to_lend == -1
    rig.transport.unsent_bytes, rig.transport.closes = 0, True
    assert rig.outgoing.socket_to_lend == -1
    rig.transport.closes = False
    assert rig.outgoing.lend(3, 2) == own_socket.fileno()


async def test_what_is_to_be_sent_waits_for_who_has_the_socket(own_socket: socket.socket) -> None:
    rig = Rig(own_socket)
    lender = RemotingConnection({}, ConnectionLimits())
    assert not rig.outgoing.is_lent
    rig.outgoing.lend(1, 0)
    assert rig.outgoing.is_lent
    assert rig.outgoing.stays_lent(lender)
    rig.carrier.through = 1
    assert not rig.outgoing.stays_lent(lender)
    assert not rig.outgoing.is_lent


def test_a_socket_is_back_before_it_is_closed(own_socket: socket.socket) -> None:
    rig = Rig(own_socket)
    rig.outgoing.lend(7, 0)
    rig.outgoing.close()
    assert rig.carrier.through == 7
    assert rig.outgoing.lend(8, 7) == rig.outgoing.lend_more()[0] == -1, "its number may be another one's"


def test_without_a_carrier_nobody_has_the_socket(own_socket: socket.socket) -> None:
    rig = Rig(own_socket, has_carrier=False)
    assert rig.outgoing.lend(1, 0) == rig.outgoing.socket_to_lend == -1
    rig.outgoing.get_back()
    assert not rig.outgoing.is_lent
