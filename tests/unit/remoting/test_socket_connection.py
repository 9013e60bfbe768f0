"""The blocking connection: answers that are waited for later, frames in any pieces, peers that break the rules."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from remoting import codes, frame
from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost, RequestError, RequestTimeout
from remoting.frame import Command

Serve = Callable[[socket.socket], None]


@contextmanager
def served(serve: Serve) -> Iterator[SocketConnection]:
    """A connection to a peer that does what the test says, in a thread."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def run() -> None:
            peer, _ = listener.accept()
            with closing(peer):
                serve(peer)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            with SocketConnection(f"127.0.0.1:{listener.getsockname()[1]}") as connection:
                yield connection
        finally:
            thread.join(30)
            assert not thread.is_alive()


def requests(peer: socket.socket, count: int) -> list[Command]:
    """So many requests, whole."""
    data, found = b"", list[Command]()
    while len(found) < count:
        data += peer.recv(65536)
        found.clear()
        frame.decode_frames(data, found)
    return found


def answer_to(request: Command, body: bytes, code: int = codes.SUCCESS) -> bytes:
    return frame.encode_response(code, request.opaque, {"n": "1"}, body, "fine")


def wait_closed(peer: socket.socket) -> None:
    while peer.recv(65536):
        pass


def test_an_answer_may_wait_and_is_taken_later() -> None:
    sent = threading.Event()

    def serve(peer: socket.socket) -> None:
        for _ in range(3):
            [request] = requests(peer, 1)
            peer.sendall(answer_to(request, b"x" * 100))
            sent.set()

    with served(serve) as connection:
        for _ in range(3):
            sent.clear()
            connection.ask(77, {"a": "b"})
            assert sent.wait(10)
            found = connection.answer(timeout_ms=10_000)
            assert (found.ext, bytes(found.body)) == ({"n": "1"}, b"x" * 100)


def test_a_later_request_forgets_the_answer_to_an_earlier_one() -> None:
    def serve(peer: socket.socket) -> None:
        first, second = requests(peer, 2)
        peer.sendall(answer_to(first, b"a" * 300_000) + answer_to(second, b"b" * 300_000))

    with served(serve) as connection:
        connection.ask(77)
        connection.ask(78)
        assert bytes(connection.answer(timeout_ms=10_000).body) == b"b" * 300_000


@pytest.mark.parametrize("piece", [1, 7, 1000, 65_536, 1 << 20])
def test_frames_arrive_in_any_pieces(piece: int) -> None:
    bodies = [b"", b"x", b"y" * (100 * piece % 70_001), b"z" * min(300 * piece, 3 << 20)]

    def serve(peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for body in bodies:
            [request] = requests(peer, 1)
            data = answer_to(request, body)
            for position in range(0, len(data), piece):
                peer.sendall(data[position : position + piece])

    with served(serve) as connection:
        assert [bytes(connection.call(77, timeout_ms=20_000).body) for _ in bodies] == bodies


def test_another_code_is_raised_unless_it_is_accepted() -> None:
    def serve(peer: socket.socket) -> None:
        for _ in range(2):
            [request] = requests(peer, 1)
            peer.sendall(answer_to(request, b"", codes.PULL_NOT_FOUND))

    with served(serve) as connection:
        assert connection.call(77, accept=(codes.PULL_NOT_FOUND,)).code == codes.PULL_NOT_FOUND
        with pytest.raises(RequestError, match="fine"):
            connection.call(77)


@pytest.mark.parametrize("total", [1 << 30, -1, 3, 16 << 20])
def test_a_frame_that_nobody_sends_takes_no_memory(total: int) -> None:
    def serve(peer: socket.socket) -> None:
        requests(peer, 1)
        peer.sendall(struct.pack(">iI", total, 4))
        wait_closed(peer)

    with served(serve) as connection, pytest.raises(ConnectionLost, match=f"frame of {total} bytes"):
        connection.call(77, timeout_ms=10_000)


@pytest.mark.parametrize("kept", [0, 5, 50, 200_000])
def test_a_peer_that_leaves_in_the_middle_is_lost(kept: int) -> None:
    def serve(peer: socket.socket) -> None:
        [request] = requests(peer, 1)
        peer.sendall(answer_to(request, bytes(300_000))[:kept])

    with served(serve) as connection:
        with pytest.raises(ConnectionLost, match="closed the connection"):
            connection.call(77, timeout_ms=10_000)
        with pytest.raises(ConnectionLost):
            connection.ask(77)


def test_an_answer_that_does_not_come_is_a_timeout() -> None:
    with (
        served(wait_closed) as connection,
        pytest.raises(RequestTimeout, match="did not answer request 77 within 1 ms"),
    ):
        connection.call(77, timeout_ms=1)
