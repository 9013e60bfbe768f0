"""Connections on real sockets: pipelining, timeouts, hostile and slow peers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import cast

import pytest

from remoting import codes, frame
from remoting.client.socket_connection import SocketConnection
from remoting.disk import Bytes
from remoting.errors import ConnectionLost, InvalidParameter, RequestError, RequestTimeout, SettingsError
from remoting.frame import Command
from remoting.transport import client as transport_client
from remoting.transport import server as transport_server
from remoting.transport.client import RemotingClient, split_address
from remoting.transport.connection import Intake, RemotingConnection
from remoting.transport.limits import ConnectionLimits
from remoting.transport.server import Place, RemotingServer, ServerLimits, check_loopback, each, spawned
from remoting.transport.tasks import TaskOwner
from remoting.transport.watch import UnfinishedSettings, Watch
from tests.support.cluster import free_ports

ECHO = 900
FAIL = 901
SILENT = 902
REFUSE = 903
AWAITING = 904
BIG = 905
PATIENT_MS = 60_000  # a loaded machine may keep an answer longer than clients wait for it
connect = partial(transport_client.connect, timeout_ms=PATIENT_MS)


class Service:
    def __init__(self) -> None:
        self.runs: list[int] = []
        self.held: list[tuple[RemotingConnection, Command]] = []
        self.owner = TaskOwner("test")

    def echo(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        self.runs.append(len(requests))
        for request in requests:
            connection.respond(request, codes.SUCCESS, request.ext, bytes(request.body))

    def fail(self, connection: RemotingConnection, request: Command) -> None:
        raise KeyError("nothing for clients to see")

    def hold(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        self.held += [(connection, request) for request in requests]

    def refuse(self, connection: RemotingConnection, request: Command) -> None:
        raise InvalidParameter("queueId must be below 8")

    async def later(self, connection: RemotingConnection, request: Command) -> None:
        await asyncio.sleep(0)
        connection.respond(request, body=request.body)

    def big(self, connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, body=b"x" * 1_000_000)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    yield service
    await service.owner.close()


@pytest.fixture
async def server(service: Service) -> AsyncIterator[RemotingServer]:
    handlers = {
        ECHO: service.echo,
        FAIL: each(service.fail),
        SILENT: service.hold,
        REFUSE: each(service.refuse),
        AWAITING: spawned(service.owner, service.later),
        BIG: each(service.big),
    }
    server = RemotingServer(Place("127.0.0.1", 0), handlers, limits=ServerLimits(ConnectionLimits(1 << 20, 64)))
    await server.start()
    yield server
    await server.close()


async def test_requests_of_one_read_arrive_as_one_run(service: Service, server: RemotingServer) -> None:
    connection = await connect(f"127.0.0.1:{server.port}")
    answers = await asyncio.gather(*(connection.call(ECHO, {"n": str(n)}, b"b") for n in range(50)))
    assert [answer.ext["n"] for answer in answers] == [str(n) for n in range(50)]
    assert sum(service.runs) == 50
    assert max(service.runs) > 1
    connection.close()


def test_a_request_that_is_kept_holds_nothing_of_what_was_read_with_it(service: Service) -> None:
    bodies: list[bytes] = []

    def keep(connection: RemotingConnection, request: Command) -> None:
        bodies.append(bytes(request.body))
        service.hold(connection, [request])

    read = frame.encode_request(SILENT, 1, {"n": "1"}, b"a") + frame.encode_request(SILENT, 2, {}, b"b" * 100_000)
    requests: list[Command] = []
    frame.decode_frames(read, requests)
    each(keep)(cast(RemotingConnection, None), requests)
    assert bodies == [b"a", b"b" * 100_000]
    assert [request.opaque for _, request in service.held] == [1, 2]
    assert all(type(request.body) is bytes and not request.body for _, request in service.held)


async def test_errors_become_answers_and_the_connection_lives_on(server: RemotingServer) -> None:
    client = RemotingClient()
    address = f"127.0.0.1:{server.port}"
    with pytest.raises(RequestError, match="below 8") as refused:
        await client.call(address, REFUSE)
    assert refused.value.code == codes.INVALID_PARAMETER
    with pytest.raises(RequestError, match="internal error: KeyError") as failed:
        await client.call(address, FAIL)
    assert failed.value.code == codes.SYSTEM_ERROR
    with pytest.raises(RequestError, match="not supported") as unknown:
        await client.call(address, 4711)
    assert unknown.value.code == codes.REQUEST_CODE_NOT_SUPPORTED
    assert (await client.call(address, AWAITING, body=b"kept")).body == b"kept"
    assert len(server.connections) == 1
    client.close()


async def test_a_request_without_an_answer_times_out(server: RemotingServer) -> None:
    connection = await connect(f"127.0.0.1:{server.port}")
    with pytest.raises(RequestTimeout):
        await connection.call(SILENT, timeout_ms=20)
    connection.close()


async def test_what_is_in_flight_fails_when_the_connection_goes(service: Service, server: RemotingServer) -> None:
    connection = await connect(f"127.0.0.1:{server.port}")
    waiting = asyncio.ensure_future(connection.call(SILENT))
    while not service.held:
        await asyncio.sleep(0)
    service.held[0][0].abort()
    with pytest.raises(ConnectionLost):
        await waiting
    with pytest.raises(ConnectionLost):
        await connection.call(ECHO)


async def test_a_one_way_request_is_never_answered(service: Service, server: RemotingServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(frame.encode_request(ECHO, 1, oneway=True) + frame.encode_request(4711, 2, oneway=True))
    writer.write(frame.encode_request(ECHO, 3))
    commands: list[Command] = []
    data = b""
    while not commands:
        data += await reader.read(1000)
        frame.decode_frames(data, commands)
    assert [command.opaque for command in commands] == [3]
    writer.close()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">iI", 2**31 - 1, 10) + b"x" * 100,
        struct.pack(">iI", -5, 10),
        struct.pack(">iI", 12, 8) + b"notjson!",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_a_peer_that_breaks_the_protocol_is_closed_and_others_are_not(
    server: RemotingServer, data: bytes
) -> None:
    good = await connect(f"127.0.0.1:{server.port}")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    assert await reader.read() == b""
    assert (await good.call(ECHO, body=b"alive")).body == b"alive"
    writer.close()
    good.close()


async def test_a_slow_reader_is_not_read_from_any_more(service: Service, server: RemotingServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
    request = frame.encode_request(BIG, 1)
    for _ in range(200):
        writer.write(request)
    [connection] = await _connections(server)
    while not connection._reading_paused:
        await asyncio.sleep(0)
    transport = connection._transport
    assert transport is not None
    assert transport.get_write_buffer_size() < 80_000_000
    other = await connect(f"127.0.0.1:{server.port}")
    assert (await other.call(ECHO, body=b"unaffected", timeout_ms=PATIENT_MS)).body == b"unaffected"
    other.close()
    writer.transport.abort()
    del reader


async def test_too_many_open_requests_pause_reading_until_answered(service: Service, server: RemotingServer) -> None:
    connection = await connect(f"127.0.0.1:{server.port}")
    waiting = [asyncio.ensure_future(connection.call(SILENT, timeout_ms=PATIENT_MS)) for _ in range(65)]
    [accepted] = await _connections(server)
    while len(service.held) < 65:
        await asyncio.sleep(0)
    assert accepted._reading_paused
    late = asyncio.ensure_future(connection.call(ECHO, timeout_ms=PATIENT_MS))
    for held, request in service.held:
        held.respond(request)
    await asyncio.gather(*waiting)
    assert (await late).code == codes.SUCCESS
    connection.close()


async def test_a_large_frame_arrives_in_pieces(server: RemotingServer) -> None:
    connection = await connect(f"127.0.0.1:{server.port}")
    body = bytes(range(256)) * 3000
    assert (await connection.call(ECHO, body=body)).body == body
    connection.close()


async def test_the_blocking_client_speaks_the_same(server: RemotingServer) -> None:
    def use() -> tuple[bytes, str]:
        with SocketConnection(f"127.0.0.1:{server.port}") as connection:
            body = bytes(connection.call(ECHO, {"a": "b"}, b"y" * 700_000).body)
            try:
                connection.call(REFUSE)
            except RequestError as error:
                return body, error.message
        return body, ""

    body, message = await asyncio.to_thread(use)
    assert body == b"y" * 700_000
    assert "below 8" in message


async def test_a_taken_port_and_an_open_address_are_refused_with_a_sentence(server: RemotingServer) -> None:
    with pytest.raises(SettingsError, match="free the port or choose another"):
        await RemotingServer(Place("127.0.0.1", server.port), {}).start()
    with pytest.raises(SettingsError, match="bind it to 127"):
        check_loopback("0.0.0.0", "--listen")
    check_loopback("localhost", "--listen")
    with pytest.raises(InvalidParameter, match="host:port"):
        split_address("nowhere")


async def _connections(server: RemotingServer) -> list[RemotingConnection]:
    while not server.connections:
        await asyncio.sleep(0)
    return list(server.connections)


async def test_a_connection_whose_other_end_acknowledges_nothing_is_given_up() -> None:
    """A process that reads nothing stands for a machine behind a cut cable: neither acknowledges what is sent."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        closed = asyncio.Event()
        connection = await connect(
            f"127.0.0.1:{listener.getsockname()[1]}", closed=lambda _: closed.set(), unreachable_ms=300
        )
        accepted, _ = listener.accept()
        with accepted:
            began_s = loop.time()
            while connection.notify(ECHO, {}, bytes(1 << 20)):
                await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await closed.wait()
            assert loop.time() - began_s >= 0.3


async def test_a_client_dials_anew_when_the_other_end_acknowledges_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        client = RemotingClient(unreachable_ms=300)
        first = await client.connection(address)
        accepted, _ = listener.accept()
        with accepted:
            while first.notify(ECHO, {}, bytes(1 << 20)):
                await asyncio.sleep(0)
            async with asyncio.timeout(60):
                while first.is_open:
                    await asyncio.sleep(0.01)
            assert await client.connection(address) is not first
        client.close()


async def test_a_peer_with_much_to_ask_does_not_keep_others_waiting() -> None:
    handled: list[tuple[str, int]] = []

    def note(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        handled.extend((connection.peer_host, request.opaque) for request in requests)

    eager, modest = (RemotingConnection({ECHO: note}, ConnectionLimits()) for _ in range(2))
    eager.peer_host, modest.peer_host = "eager", "modest"
    eager.data_received(b"".join(frame.encode_request(ECHO, opaque, oneway=True) for opaque in range(1000)))
    modest.data_received(frame.encode_request(ECHO, 0, oneway=True))
    place = handled.index(("modest", 0))
    assert place < 500, "the modest one waited for most of what the eager one asked"
    while len(handled) < 1001:
        await asyncio.sleep(0)
    handled.pop(place)
    assert handled == [("eager", opaque) for opaque in range(1000)]


async def test_a_short_request_that_waits_keeps_no_long_frame_before_it(service: Service) -> None:
    connection = RemotingConnection({SILENT: service.hold}, ConnectionLimits(max_in_flight=0))
    short = frame.encode_request(ECHO, 2, None, b"short")
    connection.data_received(frame.encode_request(SILENT, 1, None, bytes(4 << 20)) + short)
    [waiting] = connection._backlog
    assert waiting.body == b"short"
    assert not isinstance(waiting.body, memoryview)


async def ask(writer: asyncio.StreamWriter, code: int, count: int, first: int = 0, body: bytes = b"") -> None:
    writer.write(b"".join(frame.encode_request(code, first + number, None, body) for number in range(count)))
    await writer.drain()


async def answers(reader: asyncio.StreamReader, count: int) -> dict[int, Command]:
    """So many answers, by opaque."""
    found: dict[int, Command] = {}
    data = b""
    async with asyncio.timeout(60):
        while len(found) < count:
            commands: list[Command] = []
            consumed = frame.decode_frames(data, commands)
            for command in commands:
                command.body = bytes(command.body)
                found[command.opaque] = command
            data = data[consumed:]
            if len(found) < count:
                data += await reader.read(1 << 20)
    return found


async def test_a_request_that_waited_too_long_is_refused_and_not_served_late(service: Service) -> None:
    limits = ConnectionLimits(max_in_flight=4, wait_ms={ECHO: 50}, other_wait_ms=60_000)
    handlers = {ECHO: service.echo, SILENT: service.hold, BIG: each(service.big)}
    server = RemotingServer(Place("127.0.0.1", 0), handlers, limits=ServerLimits(limits))
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    held = b"".join(frame.encode_request(SILENT, number) for number in range(5))
    late = b"".join(frame.encode_request(ECHO, number) for number in range(100, 103))
    writer.write(held + late + frame.encode_request(BIG, 200))
    async with asyncio.timeout(60):
        while len(service.held) < 5:
            await asyncio.sleep(0.001)
    [connection] = server.connections
    connection._backlog_since -= 1  # a second goes by
    for holder, request in service.held:
        holder.respond(request)
    found = await answers(reader, 9)
    assert [found[number].code for number in (100, 101, 102)] == [codes.SYSTEM_BUSY] * 3
    assert str(found[100].remark).startswith("[TIMEOUT_CLEAN_QUEUE]this request waited 1")
    assert len(found[200].body) == 1_000_000, "others may wait longer"
    assert service.runs == []
    await ask(writer, ECHO, 3, first=300)
    assert {each.code for each in (await answers(reader, 3)).values()} == {codes.SUCCESS}
    writer.close()
    await server.close()


async def test_a_peer_that_reads_nothing_is_borne_up_to_a_limit(service: Service) -> None:
    limits = ConnectionLimits(max_unsent_bytes=8 << 20)
    server = RemotingServer(
        Place("127.0.0.1", 0), {SILENT: service.hold, ECHO: service.echo}, limits=ServerLimits(limits)
    )
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    other_reader, other = await asyncio.open_connection("127.0.0.1", server.port)
    await ask(writer, SILENT, 200)
    async with asyncio.timeout(60):
        while len(service.held) < 200:
            await asyncio.sleep(0.001)
        held_bytes = []
        for connection, request in service.held:  # answered although the peer reads none of it
            connection.respond(request, body=bytes(256 << 10))
            await asyncio.sleep(0)
            if connection._transport is not None:
                held_bytes.append(connection._transport.get_write_buffer_size())
        while len(server.connections) == 2:
            await asyncio.sleep(0.001)
    assert max(held_bytes) < (8 << 20) + (512 << 10)
    await ask(other, ECHO, 3)
    assert len(await answers(other_reader, 3)) == 3
    for each_writer in (writer, other):
        each_writer.close()
    assert reader is not None
    await server.close()


async def test_who_has_much_to_ask_reads_answers_meanwhile() -> None:
    """The other side may read no more before its answers are read: if neither read, both would wait for ever."""
    answered = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(frame.PREFIX_BYTES)
        await reader.readexactly(frame.bytes_wanted(first) - len(first))
        for opaque in (1, 2):
            writer.write(frame.encode_response(codes.SUCCESS, opaque, None, bytes(8 << 20)))
        await answered.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = await connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    asking = [asyncio.create_task(connection.call(ECHO, None, bytes(12 << 20), timeout_ms=20_000)) for _ in range(2)]
    await asyncio.wait(asking)
    answered.set()
    assert [len(task.result().body) for task in asking] == [8 << 20] * 2
    connection.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(("code", "body"), [(ECHO, bytes(64 << 10)), (SILENT, b"")], ids=["answered", "held"])
async def test_who_was_dialled_asks_a_bounded_number_of_things_and_is_closed(
    service: Service, caplog: pytest.LogCaptureFixture, code: int, body: bytes
) -> None:
    """Reading never stops on such a connection, so one who floods it and reads nothing is closed when too much is held for it."""
    asked_bytes = 0
    question = frame.encode_request(code, 1, None, body) * (1 if body else 100)

    async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked_bytes
        with contextlib.suppress(ConnectionError):
            while asked_bytes < 256 << 20:
                writer.write(question)
                await writer.drain()
                asked_bytes += len(question)
        writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    closed = asyncio.Event()
    held: list[int] = []

    def noting(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        (service.echo if body else service.hold)(connection, requests)
        assert connection._transport is not None
        held.append(connection._transport.get_write_buffer_size())

    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await connect(address, handlers={code: noting}, closed=lambda _: closed.set())
    async with asyncio.timeout(60):
        await closed.wait()
    limits = ConnectionLimits()
    assert max(held) < limits.max_unsent_bytes + (9 << 20)
    assert len(service.held) < 2 * limits.max_in_flight
    assert ("does not read what is sent to it" if body else "requests open at once") in caplog.text
    server.close()
    await server.wait_closed()


async def test_large_answers_are_given_a_few_at_a_time(service: Service) -> None:
    unsent: list[int] = []

    def big(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        unsent.append(connection._outgoing.size)
        for request in requests:
            connection.respond(request, body=bytes(256 << 10))

    server = RemotingServer(
        Place("127.0.0.1", 0), {BIG: big}, limits=ServerLimits(ConnectionLimits(large_answers=frozenset({BIG})))
    )
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await ask(writer, BIG, 200)
    assert len(await answers(reader, 200)) == 200
    assert max(unsent) <= 4 << 20, "then it is looked whether they are read"
    writer.close()
    await server.close()


async def test_behind_each_long_request_others_have_their_turn() -> None:
    order: list[str] = []

    def long(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        [request] = requests
        order.append("long")
        asyncio.get_running_loop().call_soon(order.append, "others")
        connection.respond(request)

    limits = ServerLimits(ConnectionLimits(long_requests=frozenset({BIG})))
    server = RemotingServer(Place("127.0.0.1", 0), {BIG: long}, limits=limits)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await ask(writer, BIG, 20)
    assert len(await answers(reader, 20)) == 20
    assert order == ["long", "others"] * 20
    writer.close()
    await server.close()


async def test_who_reads_no_long_answer_makes_us_hold_the_limit_and_little_more(service: Service) -> None:
    unsent: list[int] = []

    def long(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        [request] = requests
        unsent.append(connection._outgoing.size)
        connection.respond(request, body=bytes(2 << 20))

    limits = ServerLimits(ConnectionLimits(long_requests=frozenset({BIG})))
    server = RemotingServer(Place("127.0.0.1", 0), {BIG: long, ECHO: service.echo}, limits=limits)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    other_reader, other = await asyncio.open_connection("127.0.0.1", server.port)
    await ask(writer, BIG, 40)
    async with asyncio.timeout(60):
        while not any(connection.is_slow for connection in server.connections):
            await asyncio.sleep(0.001)
        held = [each._transport.get_write_buffer_size() for each in server.connections if each._transport is not None]
        assert sum(held) <= (4 << 20) + 2 * ((2 << 20) + 1000)
        taken = len(unsent)
        await ask(other, ECHO, 3)
        assert len(await answers(other_reader, 3)) == 3
        assert len(unsent) == taken < 40, "nothing more is read for who does not take what is there"
        assert len(await answers(reader, 40)) == 40
    assert max(unsent) <= 4 << 20
    for each_writer in (writer, other):
        each_writer.close()
    await server.close()


async def test_long_and_short_answers_arrive_whole_and_in_order_even_if_their_buffers_are_used_again() -> None:
    lengths = [0, 10, 8191, 8192, 300_000, 5, 100_000, 8192]
    reused = bytearray()

    def serve(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            length = lengths[request.opaque % len(lengths)]
            content = bytes([65 + request.opaque % 26]) * length
            reused[:] = content
            connection.respond(request, codes.SUCCESS, {"n": "1"}, reused if request.opaque % 3 else content, "fine")
            reused[:] = bytes(length)

    server = RemotingServer(Place("127.0.0.1", 0), {BIG: serve})
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await ask(writer, BIG, 100)
    for opaque, answer in enumerate((await answers(reader, 100)).values()):
        assert (answer.opaque, answer.ext, answer.remark) == (opaque, {"n": "1"}, "fine")
        assert answer.body == bytes([65 + opaque % 26]) * lengths[opaque % len(lengths)]
    writer.close()
    await server.close()


async def test_of_many_that_read_nothing_those_who_began_first_are_closed(service: Service) -> None:
    server = RemotingServer(
        Place("127.0.0.1", 0), {BIG: each(service.big), ECHO: service.echo}, limits=ServerLimits(max_slow_readers=3)
    )
    await server.start()
    writers = []
    for number in range(6):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writers.append(writer)
        await ask(writer, BIG, 14)
        async with asyncio.timeout(60):
            while sum(connection.is_slow for connection in server.connections) < min(3, number + 1):
                await asyncio.sleep(0.001)
    async with asyncio.timeout(60):
        while len(server.connections) > 3:
            await asyncio.sleep(0.001)
    ports = {connection.peer_port for connection in server.connections}
    assert ports == {writer.get_extra_info("sockname")[1] for writer in writers[3:]}
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await ask(writer, ECHO, 3)
    assert len(await answers(reader, 3)) == 3
    for each_writer in (*writers, writer):
        each_writer.close()
    await server.close()


class Writes(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Bytes) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False


async def test_encoded_answers_leave_at_once_and_in_order_with_others() -> None:
    connection, transport = RemotingConnection({}, ConnectionLimits()), Writes()
    connection.connection_made(transport)
    connection.respond_encoded(b"1", 0)
    assert transport.written == [b"1"], "not in the next turn, behind what else was put off to it"
    connection.respond(Command(code=ECHO, opaque=2))  # waits for the end of the turn, for others to join it
    connection.respond_encoded(b"3", 0)
    assert transport.written == [b"1"]
    await asyncio.sleep(0)
    assert len(transport.written) == 2
    assert transport.written[1].endswith(b"3")
    connection.connection_lost(None)
    connection.respond_encoded(b"4", 0)
    assert len(transport.written) == 2


async def test_a_second_port_is_served_and_one_that_is_taken_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    service = Service()
    handlers = {ECHO: service.echo}
    first, second = free_ports(2)
    both = RemotingServer(Place("127.0.0.1", first, second), handlers)
    other = RemotingServer(Place("127.0.0.1", 0, second), handlers)
    await both.start()
    await other.start()
    assert f"not listening on 127.0.0.1:{second} as well" in caplog.text
    try:
        for port in (first, second, other.port):
            connection = await connect(f"127.0.0.1:{port}")
            assert (await connection.call(ECHO, {"a": "b"})).ext == {"a": "b"}
            connection.close()
    finally:
        await both.close()
        await other.close()


async def test_strangers_keep_nobody_out(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where requests are signed, whoever was let in stays, and whoever comes has a place: the oldest of the others goes."""
    monkeypatch.setattr(transport_server, "MOST_STRANGERS", 3)

    def let_in(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        connection.prove("mia")
        service.echo(connection, requests)

    intake = Intake(Watch(UnfinishedSettings()), may_send_much=lambda _: False)
    server = RemotingServer(
        Place("127.0.0.1", 0), {ECHO: let_in}, limits=ServerLimits(max_connections=5, intake=intake)
    )
    await server.start()

    async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        before = set(server.connections)
        opened = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(60):
            while not server.connections - before:
                await asyncio.sleep(0.001)
        return opened

    async def gone(*strangers: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        async with asyncio.timeout(60):
            for reader, _ in strangers:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""

    known = [await dial() for _ in range(2)]
    for reader, writer in known:
        await ask(writer, ECHO, 1)
        await answers(reader, 1)
    strangers = [await dial() for _ in range(5)]
    await gone(*strangers[:2])
    for _ in range(3):
        late_reader, late = await dial()
        await ask(late, ECHO, 1)
        assert len(await answers(late_reader, 1)) == 1, "five are open, and a stranger goes for it"
        known.append((late_reader, late))
    await gone(*strangers[2:])
    refused_reader, refused = await asyncio.open_connection("127.0.0.1", server.port)
    await gone((refused_reader, refused))
    for reader, writer in known:
        await ask(writer, ECHO, 1, first=100)
        assert len(await answers(reader, 1)) == 1, "who is known is put out for nobody"
        writer.close()
    for _, writer in strangers:
        writer.close()
    refused.close()
    await server.close()
