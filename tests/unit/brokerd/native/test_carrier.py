"""Answers that a thread in C writes: in order, to their own sockets alone, and what these do not take comes back."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import accumulate
from random import Random
from typing import Any, cast

import pytest
import uvloop

from brokerd.native.carrier import LEAST_PIECES, Carrier
from remoting import frame
from remoting.disk import Bytes
from remoting.frame import Command
from remoting.transport.connection import Intake, RemotingConnection
from remoting.transport.limits import ConnectionLimits
from remoting.transport.server import Place, RemotingServer, ServerLimits
from remoting.transport.tls import TlsTransport
from remoting.transport.watch import UnfinishedSettings, Watch
from tests.support.native_library import native_library

ASK, OTHER = 900, 901
PATIENT_S = 60
Run = Callable[[Coroutine[Any, Any, None]], None]


class Held(Carrier):
    """One whose thread begins when it is let go, or waited for: what is put before that lies there."""

    def __init__(self) -> None:
        super().__init__(native_library())
        self._free = threading.Event()
        self.waited = 0

    def let_go(self) -> None:
        self._free.set()

    def finish(self, ticket: int) -> None:
        self.waited += 1
        self.let_go()
        super().finish(ticket)

    def stop(self) -> None:
        self.let_go()
        super().stop()

    def _run(self) -> None:
        self._free.wait()
        super()._run()


class Service:
    """A server that keeps what it is asked, and answers when told: all of it together."""

    def __init__(self, carrier: Carrier, limits: ConnectionLimits | None = None) -> None:
        self.carrier = carrier
        self.peers: list[Peer] = []
        self.asked: list[tuple[RemotingConnection, Command]] = []
        handlers = {ASK: self.keep, OTHER: self.other}
        intake = Intake(Watch(UnfinishedSettings()), carrier=carrier)
        server_limits = ServerLimits(limits or ConnectionLimits(), intake=intake)
        self.server = RemotingServer(Place("127.0.0.1", 0), handlers, limits=server_limits)

    def keep(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        self.asked += [(connection, request) for request in requests]

    def other(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            connection.respond(request)

    async def until_asked(self, count: int) -> None:
        async with asyncio.timeout(PATIENT_S):
            while len(self.asked) < count:
                await asyncio.sleep(0)

    def answer(self, body: bytes = b"") -> bool:
        """Answer all that was asked, one to a connection or more; whether the carrier does it."""
        asked, self.asked = self.asked, []
        parts = [frame.encode_response(0, request.opaque, None, body) for _, request in asked]
        connections = [connection for connection, _ in asked]
        if self.carrier.answer(connections, list(accumulate(map(len, parts))), [1] * len(parts), b"".join(parts)):
            return True
        for connection, part in zip(connections, parts, strict=True):
            connection.respond_encoded(part, 1)
        return False

    def finish(self) -> None:
        """Wait until all that was put is done: who has his answer may have it before that is known."""
        self.carrier.finish(self.carrier._put)


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def ask(self, opaque: int, code: int = ASK) -> None:
        self.writer.write(frame.encode_request(code, opaque))

    async def answers(self, count: int) -> list[Command]:
        found: list[Command] = []
        async with asyncio.timeout(PATIENT_S):
            while len(found) < count:
                size = int.from_bytes(await self.reader.readexactly(4))
                frame.decode_frames(size.to_bytes(4) + await self.reader.readexactly(size), found)
        return found


@asynccontextmanager
async def served(*, held: bool = False, limits: ConnectionLimits | None = None) -> AsyncIterator[Service]:
    service = Service(Held() if held else Carrier(native_library()), limits)
    service.carrier.start(asyncio.get_running_loop())
    await service.server.start()
    yield service
    await service.server.close()
    service.carrier.stop()
    for peer in service.peers:
        peer.writer.transport.abort()
        with suppress(OSError):
            await peer.writer.wait_closed()
    assert not service.carrier._batches
    assert not service.carrier._kept_bytes


def on_both_loops(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[Run], None]:
    """The test with asyncio's loop, whose transports are in Python, and with the broker's own."""

    @pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
    def each(run: Run) -> None:
        run(test())

    each.__name__, each.__doc__ = test.__name__, test.__doc__
    return each


async def connected(service: Service, count: int) -> list[Peer]:
    peers = [Peer(*await asyncio.open_connection("127.0.0.1", service.server.port)) for _ in range(count)]
    service.peers += peers
    async with asyncio.timeout(PATIENT_S):
        while len(service.server.connections) < count:
            await asyncio.sleep(0)
    return peers


def let_go(service: Service) -> None:
    assert isinstance(service.carrier, Held)
    service.carrier.let_go()


@on_both_loops
async def test_each_gets_its_own_in_order() -> None:
    async with served() as service:
        rng = Random(1)
        peers = await connected(service, 20)
        for turn in range(200):
            those = rng.sample(peers, rng.randrange(LEAST_PIECES, len(peers)))
            for peer in those:
                peer.ask(turn)
            await service.until_asked(len(those))
            body = rng.randbytes(rng.choice((0, 10, 3000)))
            assert service.answer(body)
            for peer in those:
                [answer] = await peer.answers(1)
                assert (answer.opaque, bytes(answer.body)) == (turn, body)
        assert all(each._in_flight == 0 for each in service.server.connections)


@on_both_loops
async def test_a_thousand_connections_with_one_request_each() -> None:
    async with served() as service:
        peers = await connected(service, 1000)
        for opaque in (1, 2):
            for peer in peers:
                peer.ask(opaque)
            await service.until_asked(len(peers))
            assert service.answer(b"x" * 100)
            assert [answer.opaque for peer in peers for answer in await peer.answers(1)] == [opaque] * len(peers)


@on_both_loops
async def test_few_are_left_to_the_loop() -> None:
    async with served() as service:
        peers = await connected(service, LEAST_PIECES - 1)
        for peer in peers:
            peer.ask(1)
        await service.until_asked(len(peers))
        assert not service.answer()


@on_both_loops
async def test_what_comes_behind_a_piece_leaves_behind_it() -> None:
    async with served(held=True) as held:
        peers = await connected(held, LEAST_PIECES)
        for opaque in (1, 2):  # two answers to each, for which nobody may be lent twice
            for peer in peers:
                peer.ask(opaque)
        await held.until_asked(2 * len(peers))
        held.asked.sort(key=lambda asked: asked[1].opaque)
        assert held.answer()
        for peer in peers:
            peer.ask(3)
            peer.ask(4, OTHER)
        await held.until_asked(len(peers))
        assert held.answer()
        let_go(held)
        for peer in peers:
            assert sorted(answer.opaque for answer in await peer.answers(4)) == [1, 2, 3, 4]
        assert not held.carrier._waiting


@on_both_loops
async def test_the_order_of_a_connections_answers_is_kept() -> None:
    async with served(held=True) as held:
        peers = await connected(held, LEAST_PIECES)
        for opaque in range(5):
            for peer in peers:
                peer.ask(opaque)
            await held.until_asked(len(peers))
            assert held.answer(b"x" * 1000)
        let_go(held)
        for peer in peers:
            assert [answer.opaque for answer in await peer.answers(5)] == [0, 1, 2, 3, 4]


@on_both_loops
async def test_a_peer_that_does_not_read_gets_all_of_it_later_and_others_at_once() -> None:
    async with served() as service:
        slow, *others = await connected(service, LEAST_PIECES + 1)
        body = bytes(range(256)) * 1024
        sent = 0
        connections = set(service.server.connections)
        while not any(each.is_slow for each in connections):  # its socket is full, and then the transport's buffer
            sent += 1
            for peer in (slow, *others):
                peer.ask(sent)
            await service.until_asked(len(others) + 1)
            service.answer(body)
            for peer in others:
                [answer] = await peer.answers(1)
                assert answer.opaque == sent
                assert bytes(answer.body) == body
        got = await slow.answers(sent)
        assert [answer.opaque for answer in got] == list(range(1, sent + 1))
        assert all(bytes(answer.body) == body for answer in got)


def narrow(service: Service) -> None:
    """From now on sockets take little of what nobody reads."""
    for connection in service.server.connections:
        connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # type: ignore[union-attr]


@on_both_loops
async def test_a_piece_that_is_written_in_part_is_followed_by_its_rest() -> None:
    """Though nobody puts another piece."""
    async with served() as service:
        peers = await connected(service, LEAST_PIECES)
        narrow(service)
        for peer in peers:
            peer.ask(1)
        await service.until_asked(len(peers))
        body = bytes(range(251)) * 1000
        assert service.answer(body)
        for peer in peers:
            assert [bytes(answer.body) for answer in await peer.answers(1)] == [body]


@on_both_loops
async def test_nothing_passes_what_a_socket_did_not_take() -> None:
    async with served(held=True) as service:
        peers = await connected(service, LEAST_PIECES)
        narrow(service)
        for opaque in range(4):
            for peer in peers:
                peer.ask(opaque)
            await service.until_asked(len(peers))
            assert service.answer(bytes(range(251)) * 500)
        let_go(service)
        for peer in peers:
            assert [answer.opaque for answer in await peer.answers(4)] == [0, 1, 2, 3]


@on_both_loops
async def test_nothing_passes_what_waits_for_the_next_turn() -> None:
    async with served() as service:
        peers = await connected(service, LEAST_PIECES)
        for opaque in (1, 2):
            for peer in peers:
                peer.ask(opaque)
        await service.until_asked(2 * len(peers))
        asked = sorted(service.asked, key=lambda each: each[1].opaque)
        for connection, request in asked[: len(peers)]:
            connection.respond(request)
        service.asked = asked[len(peers) :]
        assert service.answer()
        for peer in peers:
            assert [answer.opaque for answer in await peer.answers(2)] == [1, 2]


@on_both_loops
async def test_nothing_passes_what_the_transport_holds() -> None:
    """Also when the socket has room again, which the transport does not know yet."""
    async with served() as service:
        others = await connected(service, LEAST_PIECES)
        with socket.create_connection(("127.0.0.1", service.server.port)) as peer:
            peer.sendall(b"".join(frame.encode_request(ASK, opaque) for opaque in (1, 2)))
            for other in others:
                other.ask(2)
            await service.until_asked(2 + len(others))
            narrow(service)
            asked = sorted(service.asked, key=lambda each: each[1].opaque)
            connection, request = asked[0]
            body = bytes(range(251)) * 4_000
            connection.respond(request, body=body)
            await asyncio.sleep(0)
            assert connection._transport is not None
            assert connection._transport.get_write_buffer_size() > 0
            received = bytearray(peer.recv(1 << 20))
            service.asked = asked[1:]
            assert service.answer(b"behind it")
            service.finish()
            peer.setblocking(False)
            found: list[Command] = []
            async with asyncio.timeout(PATIENT_S):
                while frame.decode_frames(bytes(received), found) < len(received) or len(found) < 2:
                    found.clear()
                    received += await asyncio.get_running_loop().sock_recv(peer, 1 << 20)
            assert [bytes(answer.body) for answer in found] == [body, b"behind it"]
            for other in others:
                assert [answer.opaque for answer in await other.answers(1)] == [2]


@on_both_loops
async def test_who_never_reads_is_closed_at_the_limit() -> None:
    async with served(limits=ConnectionLimits(max_unsent_bytes=8 << 20)) as service:
        _, *others = peers = await connected(service, LEAST_PIECES + 1)
        for peer in peers:
            for opaque in range(200):
                peer.ask(opaque)
        await service.until_asked(200 * len(peers))
        asked = sorted(service.asked, key=lambda each: each[1].opaque)
        for turn in range(200):
            service.asked = asked[turn * len(peers) : (turn + 1) * len(peers)]
            service.finish()
            assert service.answer(bytes(256 << 10))
            assert [answer.opaque for peer in others for answer in await peer.answers(1)] == [turn] * len(others)
        async with asyncio.timeout(PATIENT_S):
            while len(service.server.connections) > len(others):
                await asyncio.sleep(0)


@on_both_loops
async def test_a_peer_that_is_gone_harms_nobody() -> None:
    async with served() as service:
        peers = await connected(service, LEAST_PIECES + 6)
        for turn in range(6):
            for peer in peers:
                peer.ask(turn)
            await service.until_asked(len(peers))
            gone = peers.pop()
            gone.writer.transport.abort()
            service.finish()
            assert service.answer(b"x" * 100_000)
            for peer in peers:
                [answer] = await peer.answers(1)
                assert answer.opaque == turn
        async with asyncio.timeout(PATIENT_S):
            while len(service.server.connections) > len(peers):
                await asyncio.sleep(0)


@on_both_loops
async def test_a_socket_stays_open_until_its_piece_is_done() -> None:
    """Else the piece would go to whatever got its descriptor next."""
    async with served(held=True) as held:
        assert isinstance(held.carrier, Held)
        peers = await connected(held, LEAST_PIECES)
        for peer in peers:
            peer.ask(1)
        await held.until_asked(len(peers))
        assert held.answer(b"x" * 1000)
        for connection in list(held.server.connections):
            connection.abort()
        assert held.carrier.waited == 0
        async with asyncio.timeout(PATIENT_S):
            while held.server.connections:
                await asyncio.sleep(0)
        assert held.carrier.waited == len(peers)
        for peer in peers:
            assert [answer.opaque for answer in await peer.answers(1)] == [1], "written while it was open"


@on_both_loops
async def test_closing_sends_what_was_put() -> None:
    async with served(held=True) as held:
        peers = await connected(held, LEAST_PIECES)
        for peer in peers:
            peer.ask(1)
            peer.ask(2)
        await held.until_asked(2 * len(peers))
        asked = sorted(held.asked, key=lambda each: each[1].opaque)
        for turn in (0, 1):
            held.asked = asked[turn * len(peers) : (turn + 1) * len(peers)]
            assert held.answer(b"x" * 1000)
        await held.server.close()
        for peer in peers:
            assert [answer.opaque for answer in await peer.answers(2)] == [1, 2]
            assert await peer.reader.read() == b""


@on_both_loops
async def test_the_thread_ends_when_all_is_done() -> None:
    async with served(held=True) as held:
        peers = await connected(held, LEAST_PIECES)
        for opaque in (1, 2):
            for peer in peers:
                peer.ask(opaque)
            await held.until_asked(len(peers))
            assert held.answer()
        held.carrier.stop()
        for peer in peers:
            assert [answer.opaque for answer in await peer.answers(2)] == [1, 2]
        assert not [thread for thread in threading.enumerate() if thread.name == "carrier"]
        for peer in peers:
            peer.ask(3)
        await held.until_asked(len(peers))
        assert not held.answer(), "it takes nothing any more"


@on_both_loops
async def test_no_more_is_put_than_there_is_room_for() -> None:
    async with served(held=True) as held:
        peers = await connected(held, LEAST_PIECES)
        for opaque in range(3):
            for peer in peers:
                peer.ask(opaque)
        await held.until_asked(3 * len(peers))
        asked, held.asked = sorted(held.asked, key=lambda each: each[1].opaque), []
        held.asked = asked[: len(peers)]
        assert held.answer(b"x" * 1000)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("brokerd.native.carrier._MOST_BYTES", 1000 * len(peers) + 1000)
            held.asked = asked[len(peers) : 2 * len(peers)]
            assert not held.answer(b"x" * 1000)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("brokerd.native.carrier._MOST_PIECES", 2 * len(peers) - 1)
            held.asked = asked[len(peers) : 2 * len(peers)]
            assert not held.answer()
        let_go(held)
        assert [[answer.opaque for answer in await peer.answers(1)] for peer in peers] == [[0]] * len(peers)


@on_both_loops
async def test_many_threads_worth_of_turns_lose_nothing() -> None:
    """Peers ask again as soon as they are answered, each at its own pace; between answers of the thread are those of the loop."""
    async with served() as service:
        rounds, count = 150, 16
        done = asyncio.Event()

        async def talk(peer: Peer, rng: Random) -> None:
            for opaque in range(rounds):
                peer.ask(opaque, rng.choice((ASK, ASK, ASK, OTHER)))
                [answer] = await peer.answers(1)
                assert answer.opaque == opaque

        async def serve() -> None:
            while not done.is_set():
                service.answer(b"x" * 500)
                await asyncio.sleep(0)

        peers = await connected(service, count)
        serving = asyncio.ensure_future(serve())
        async with asyncio.timeout(PATIENT_S):
            await asyncio.gather(*(talk(peer, Random(number)) for number, peer in enumerate(peers)))
        done.set()
        await serving


def test_it_is_not_lent_what_is_encrypted() -> None:
    class Socketed:
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return {"socket": "a socket", "peername": ("10.0.0.1", 1)}.get(name, default)

    transport = TlsTransport(Socketed(), None)  # type: ignore[arg-type]
    assert transport.get_extra_info("socket") is None
    assert transport.get_extra_info("peername") == ("10.0.0.1", 1)


class Full:
    """A connection whose peer reads nothing; what is asked of it."""

    def __init__(self) -> None:
        self._ends = socket.socketpair()
        self.rest = b""
        self.went_on = 0

    def lend(self, _ticket: int, _seen: int, _count: int) -> int:
        return self._ends[0].fileno()

    def give_back(self, rest: Bytes) -> None:
        self.rest = bytes(rest)

    def go_on_sending(self) -> None:
        self.went_on += 1

    def close(self) -> None:
        for end in self._ends:
            end.close()


async def test_who_waits_for_the_thread_has_nobody_go_on_meanwhile() -> None:
    """The log is cut by somebody who waits until nothing of it is looked at: no request may be handled in that moment."""
    carrier = Carrier(native_library())
    carrier.start(asyncio.get_running_loop())
    full = [Full() for _ in range(LEAST_PIECES)]
    size = 400_000  # more than a socket takes
    ends = [size * (number + 1) for number in range(len(full))]
    assert carrier.answer(cast(list[RemotingConnection], full), ends, [1] * len(full), bytes(ends[-1]))
    carrier.finish_all()
    assert all(each.rest for each in full)
    assert not any(each.went_on for each in full)
    await asyncio.sleep(0)
    assert all(each.went_on == 1 for each in full)
    carrier.stop()
    for each in full:
        each.close()
