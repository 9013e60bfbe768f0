"""The gRPC port on real sockets: TLS and plaintext on one port, and peers that are wrong, silent, idle, slow or too many."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from brokerd.proxy import endpoint
from brokerd.proxy.endpoint import EndpointSettings, GrpcEndpoint
from brokerd.proxy.forward import ForwardSettings
from brokerd.proxy.heads import CallHeads
from brokerd.proxy.http2 import frames
from brokerd.proxy.http2.frames import ErrorCode
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.proxy import GrpcProxy, ProxyOptions
from brokerd.proxy.status import Code
from remoting.errors import SettingsError
from remoting.guarding.guard import Guard
from remoting.settings import override
from remoting.transport.client import RemotingClient
from remoting.transport.tls import DISABLED, ENFORCING, FIRST_BYTE, PERMISSIVE, TlsSettings
from tests.support.certificates import Authority, Certificate
from tests.unit.brokerd.proxy.fakes import Alone, FakeBroker
from tests.unit.brokerd.proxy.rawclient import RawClient
from tests.unit.brokerd.proxy.test_access import G, make_guard, metadata
from tests.unit.brokerd.proxy.test_methods import producer, resource, sending, settings_of
from tests.unit.brokerd.proxy.test_receive_message import receiving
from tests.unit.brokerd.proxy.waiting import until

NO_METHODS = CallHeads({}, 1)


@contextlib.asynccontextmanager
async def serving(
    broker: FakeBroker | None = None, tls: TlsSettings | None = None, guard: Guard | None = None, **settings
) -> AsyncIterator[GrpcProxy]:
    if broker is None:
        broker = FakeBroker()
    broker.add_topic("Normal")
    proxy = GrpcProxy(
        "127.0.0.1",
        0,
        broker.services(),
        RemotingClient(),
        Alone(),
        ProxyOptions(EndpointSettings(**settings), tls=tls, guard=guard),
    )
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


async def heartbeat(client: RawClient) -> int:
    return (await client.call("Heartbeat", service.HeartbeatRequest(), service.HeartbeatResponse)).status.code


async def test_a_call_over_a_socket() -> None:
    async with serving() as proxy:
        client = await RawClient.connect(proxy.endpoint.port)
        assert await heartbeat(client) == Code.OK
        await client.close()


async def test_an_unknown_method_and_an_unknown_service() -> None:
    async with serving() as proxy:
        client = await RawClient.connect(proxy.endpoint.port)
        _, fields = await client.answer(client.start("Nothing", b""), service.HeartbeatResponse)
        assert fields["grpc-status"] == "12"
        await client.close()


# ---- what a connection begins with


async def test_http_1_is_told_what_this_port_is() -> None:
    async with serving() as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.endpoint.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 505 ")
        assert b"gRPC" in answer
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head
        writer.close()


@pytest.mark.parametrize("data", [b"\x00\x01\x02", b"hello", b"\x16\x03\x01", b"PRI * HTTP/3"])
async def test_anything_else_is_closed(data) -> None:
    async with serving() as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.endpoint.port)
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await until("no connection", lambda: not proxy.endpoint.connections)
        writer.close()


async def test_a_silent_connection_is_dropped() -> None:
    async with serving(handshake_s=0.05, sweep_s=0.02) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.endpoint.port)
        half_reader, half_writer = await asyncio.open_connection("127.0.0.1", proxy.endpoint.port)
        half_writer.write(frames.PREFACE)
        with contextlib.suppress(ConnectionError):
            await reader.read()
            await half_reader.read()
        await until("no connection", lambda: not proxy.endpoint.connections)
        writer.close()
        half_writer.close()


async def test_every_silent_connection_is_dropped_however_many_there_are(monkeypatch) -> None:
    """One turn of the loop looks at some of them; those that went away before their turn are left out."""
    monkeypatch.setattr(endpoint, "_SWEPT_AT_ONCE", 2)
    async with serving(handshake_s=0.05, sweep_s=0.02) as proxy:
        opened = [await asyncio.open_connection("127.0.0.1", proxy.endpoint.port) for _ in range(7)]
        opened[0][1].close()
        await until("no connection", lambda: not proxy.endpoint.connections)
        for _, writer in opened:
            writer.close()


async def test_connections_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(max_connections=2) as proxy:
        clients = [await RawClient.connect(proxy.endpoint.port) for _ in range(2)]
        assert [await heartbeat(client) for client in clients] == [Code.OK] * 2
        third = await RawClient.connect(proxy.endpoint.port)
        await third.closed()
        assert "2 gRPC connections are open already" in caplog.text
        await clients[0].close()
        await until("one connection", lambda: len(proxy.endpoint.connections) == 1)
        fourth = await RawClient.connect(proxy.endpoint.port)
        assert await heartbeat(fourth) == Code.OK
        for client in (clients[1], third, fourth):
            await client.close()


# ---- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    directory = tmp_path_factory.mktemp("tls")
    (directory / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "key.pem").write_bytes(private)
    return {"certificate_path": str(directory / "cert.pem"), "key_path": str(directory / "key.pem")}


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def test_one_port_serves_tls_and_plaintext(certificate) -> None:
    broker = FakeBroker()
    async with serving(broker, **certificate) as proxy:
        secure = await RawClient.connect(proxy.endpoint.port, tls=trusting())
        plain = await RawClient.connect(proxy.endpoint.port)
        assert secure.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        body = bytes(range(256)) * 4096  # over many TLS records, both ways
        sent = await secure.call("SendMessage", sending(body), service.SendMessageResponse)
        assert sent.status.code == Code.OK
        assert await heartbeat(plain) == Code.OK
        secure.writer.write(frames.encode_window_update(0, 1 << 30))
        stream_id = secure.start("ReceiveMessage", receiving())
        secure.writer.write(frames.encode_window_update(stream_id, 1 << 30))
        (status, message, _), _ = await secure.answer(stream_id, service.ReceiveMessageResponse)
        assert (status.status.code, message.message.body) == (Code.OK, body)
        await secure.close()
        await plain.close()
        await until("no connection", lambda: not proxy.endpoint.connections)


async def test_broken_tls_is_closed(certificate) -> None:
    async with serving(**certificate) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.endpoint.port)
        writer.write(b"\x16\x03\x01\x00\x05hello")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await until("no connection", lambda: not proxy.endpoint.connections)
        writer.close()


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_comes_first_the_port_serves_the_next(certificate, seed) -> None:
    chance = random.Random(seed)
    async with serving(**certificate) as proxy:
        for first in (*range(256), *[FIRST_BYTE] * 64):
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.endpoint.port)
            writer.write(bytes([first]) + chance.randbytes(chance.randrange(200)))
            writer.transport.abort() if chance.random() < 0.5 else writer.close()
        for tls in (None, trusting()):
            client = await RawClient.connect(proxy.endpoint.port, tls=tls)
            assert await heartbeat(client) == Code.OK
            await client.close()


@pytest.mark.parametrize("mode", [DISABLED, PERMISSIVE, ENFORCING])
async def test_a_certificate_of_the_ports_own_changes_nothing_else(certificate, tmp_path, mode) -> None:
    authority, stranger = Authority(tmp_path / "known"), Authority(tmp_path / "stranger")
    daemons = authority.sign("daemon")
    rules = TlsSettings(
        mode=mode,
        certificate_path=str(daemons.certificate),
        key_path=str(daemons.key),
        ca_path=str(authority.ca),
        client_auth="required",
    )
    known, unknown = authority.sign("client"), stranger.sign("client")
    async with serving(tls=rules, **certificate) as proxy:
        port = proxy.endpoint.port
        client = await RawClient.connect(port, tls=showing(known))
        assert client.writer.get_extra_info("ssl_object").getpeercert(True) == shown_by(certificate)
        assert await heartbeat(client) == Code.OK
        await client.close()
        for shown in (None, unknown):
            assert await refuses(port, showing(shown))
        assert await refuses(port, None) == (mode == ENFORCING)
        await until("no connection", lambda: not proxy.endpoint.connections)


def showing(shown: Certificate | None) -> ssl.SSLContext:
    context = trusting()
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


def shown_by(certificate: dict[str, str]) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(certificate["certificate_path"]).read_text())


async def refuses(port: int, tls: ssl.SSLContext | None) -> bool:
    """Whether the port closes the connection instead of answering a call."""
    try:
        client = await RawClient.connect(port, tls=tls)
        try:
            return await heartbeat(client) != Code.OK
        finally:
            await client.close()
    except (OSError, EOFError):  # the handshake of TLS 1.3 is over for a client before it is judged
        return True


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01", b"P"])
async def test_who_does_not_come_to_the_point_is_closed_on_a_port_with_tls(certificate, begun) -> None:
    async with serving(handshake_s=0.05, sweep_s=0.01, **certificate) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.endpoint.port)
        writer.write(begun)
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 5)
        await until("no connection", lambda: not proxy.endpoint.connections)
        writer.close()


async def test_tls_settings_that_cannot_work_are_refused_at_start(tmp_path, certificate) -> None:
    with pytest.raises(SettingsError, match=r"grpc\.key_path"):
        GrpcEndpoint("127.0.0.1", 0, NO_METHODS, EndpointSettings(certificate_path="x"))
    settings = EndpointSettings(certificate_path=certificate["certificate_path"], key_path=str(tmp_path / "missing"))
    with pytest.raises(SettingsError, match="PEM"):
        GrpcEndpoint("127.0.0.1", 0, NO_METHODS, settings)


def test_settings_are_declared_with_their_bounds() -> None:
    parts = {"grpc": EndpointSettings(), "forward": ForwardSettings()}
    changed = override(parts, ["grpc.idle_s=60", "forward.hold_ms=100", "grpc.certificate_path=a", "grpc.key_path=b"])
    assert (changed["grpc"].idle_s, changed["forward"].hold_ms, changed["grpc"].key_path) == (60.0, 100, "b")
    with pytest.raises(SettingsError, match="at least 1"):
        override(parts, ["grpc.max_connections=0"])


async def test_a_taken_port_is_a_sentence() -> None:
    async with serving() as proxy:
        with pytest.raises(SettingsError, match="cannot listen on"):
            await GrpcEndpoint("127.0.0.1", proxy.endpoint.port, NO_METHODS, EndpointSettings()).start()


# ---- floods and slow readers


async def test_a_flood_is_ended_with_a_reason_and_nobody_else_notices() -> None:
    async with serving() as proxy:
        good = await RawClient.connect(proxy.endpoint.port)
        assert await heartbeat(good) == Code.OK
        bad = await RawClient.connect(proxy.endpoint.port)
        bad.writer.write(frames.encode_frame(frames.PING, 0, 0, bytes(8)) * 5000)
        last = (await bad.closed())[-1]
        assert last.kind == frames.GOAWAY
        assert int.from_bytes(last.payload[4:8]) == ErrorCode.ENHANCE_YOUR_CALM
        assert await heartbeat(good) == Code.OK
        await bad.close()
        await good.close()


async def test_a_client_that_never_reads_is_not_read_from_and_dropped_in_the_end() -> None:
    broker = FakeBroker()
    async with serving(broker, stalled_s=0.3, sweep_s=0.05) as proxy:
        good = await RawClient.connect(proxy.endpoint.port)
        await good.call("SendMessage", sending(bytes(1 << 20)), service.SendMessageResponse)
        slow = await RawClient.connect(proxy.endpoint.port, window=1 << 30)
        slow.writer.write(frames.encode_window_update(0, 1 << 30))
        for number in range(400):
            slow.start("ReceiveMessage", receiving(group=f"G{number}"))
        slow.reader._transport.pause_reading()
        (connection,) = [one for one in proxy.endpoint.connections if one.address.endswith(port_of(slow))]
        await until("a paused connection", lambda: connection._grpc is not None and connection._grpc.write_paused)
        # every call would be answered with a megabyte; only those begun before it was seen to be slow are
        popped = len(broker.pops)
        assert popped < 30
        assert connection._transport.get_write_buffer_size() < 30 << 20
        assert await heartbeat(good) == Code.OK
        await until("the slow one to be dropped", lambda: connection not in proxy.endpoint.connections)
        assert len(broker.pops) == popped
        assert await heartbeat(good) == Code.OK
        await good.close()
        slow.writer.transport.abort()


def port_of(client: RawClient) -> str:
    return f":{client.writer.get_extra_info('sockname')[1]}"


async def test_a_client_whose_windows_stay_shut_is_dropped() -> None:
    async with serving(stalled_s=0.1, sweep_s=0.02) as proxy:
        shut = await RawClient.connect(proxy.endpoint.port, window=0)
        shut.start("Heartbeat", service.HeartbeatRequest())
        await shut.closed()
        await shut.close()


async def test_a_client_that_reads_late_gets_everything() -> None:
    broker = FakeBroker()
    async with serving(broker) as proxy:
        client = await RawClient.connect(proxy.endpoint.port, window=1 << 30)
        client.writer.write(frames.encode_window_update(0, 1 << 30))
        await client.call("SendMessage", sending(bytes(1 << 20)), service.SendMessageResponse)
        client.reader._transport.pause_reading()
        streams = [client.start("ReceiveMessage", receiving(group=f"G{number}")) for number in range(40)]
        (connection,) = proxy.endpoint.connections
        await until("a paused connection", lambda: connection._grpc is not None and connection._grpc.write_paused)
        client.reader._transport.resume_reading()
        client.reader._paused = False
        ended = set()
        async with asyncio.timeout(60):
            while len(ended) < len(streams):
                frame = await client.frame()
                if frame.kind == frames.HEADERS and frame.flags & frames.END_STREAM:
                    ended.add(frame.stream_id)
        assert ended == set(streams)
        assert len(broker.pops) == 40
        await client.close()


# ---- idle, gone, stopping


async def test_an_idle_connection_is_asked_to_leave_unless_telemetry_is_open() -> None:
    async with serving(idle_s=0.05, sweep_s=0.02) as proxy:
        idle = await RawClient.connect(proxy.endpoint.port)
        watching = await RawClient.connect(proxy.endpoint.port)
        stream_id = watching.start("Telemetry", settings_of(producer("Normal")), end=False)
        assert await heartbeat(idle) == Code.OK
        last = (await idle.closed())[-1]
        assert (last.kind, int.from_bytes(last.payload[4:8])) == (frames.GOAWAY, ErrorCode.NO_ERROR)
        watching.send(stream_id, settings_of(producer("Normal")), end=True)
        commands, _ = await watching.answer(stream_id, service.TelemetryCommand)
        assert [command.status.code for command in commands] == [Code.OK] * 2
        await idle.close()
        await watching.close()


async def test_telemetry_gets_its_headers_before_it_says_anything() -> None:
    async with serving() as proxy:
        client = await RawClient.connect(proxy.endpoint.port)
        client.start("Telemetry", None)
        async with asyncio.timeout(60):
            while (frame := await client.frame()).kind != frames.HEADERS:
                pass
        assert dict(client.decoder.decode(frame.payload))[":status"] == "200"
        await client.close()


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_client_that_goes_away_leaves_no_waiter(how) -> None:
    broker = FakeBroker()
    async with serving(broker) as proxy:
        client = await RawClient.connect(proxy.endpoint.port)
        stream_id = client.start("ReceiveMessage", receiving())
        await until("a parked call", lambda: broker.parked)
        if how == "reset":
            client.writer.write(frames.encode_rst_stream(stream_id, ErrorCode.CANCEL))
        else:
            client.writer.transport.abort()
        await until("no parked call", lambda: not broker.parked)
        assert broker.cancelled == 1
        await client.close()


async def test_the_registry_learns_of_a_closed_connection() -> None:
    broker = FakeBroker()
    async with serving(broker) as proxy:
        client = await RawClient.connect(proxy.endpoint.port)
        assert await heartbeat(client) == Code.OK
        _, connection = broker.live["raw-client"]
        await client.close()
        await until("the registry to be told", lambda: broker.closed == [connection])


async def test_a_stopping_broker_answers_what_waits_and_says_goodbye() -> None:
    broker = FakeBroker()
    async with serving(broker) as proxy:
        client = await RawClient.connect(proxy.endpoint.port)
        receive = client.start("ReceiveMessage", receiving())
        telemetry = client.start("Telemetry", settings_of(producer("Normal")), end=False)
        await until("a parked call", lambda: broker.parked)
        port = proxy.endpoint.port
        closing = asyncio.ensure_future(proxy.close())
        seen = await client.closed()
        await closing
        assert frames.GOAWAY in [frame.kind for frame in seen]
        ended = {frame.stream_id for frame in seen if frame.kind == frames.HEADERS and frame.flags & frames.END_STREAM}
        assert ended == {receive, telemetry}
        assert broker.parked == []
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", port)
        await client.close()


async def test_groups_are_created_once_for_many_calls() -> None:
    broker = FakeBroker()
    created = []
    pending = []

    def put_group(config, done):
        created.append(config.name)
        pending.append(lambda: (broker.group_table.setdefault(config.name, config), done(None)))

    broker.put_group = put_group
    async with serving(broker) as proxy:
        client = await RawClient.connect(proxy.endpoint.port)
        kind = definition.ClientType.Value("SIMPLE_CONSUMER")
        request = service.HeartbeatRequest(group=resource("New"), client_type=kind)
        streams = [client.start("Heartbeat", request) for _ in range(3)]
        await until("a group to be created", lambda: created)
        await until("all calls to wait", lambda: len(broker.live) == 1)
        pending[0]()
        for stream_id in streams:
            ((response,), _) = await client.answer(stream_id, service.HeartbeatResponse)
            assert response.status.code == Code.OK
        assert created == ["New"]
        await client.close()


async def test_strangers_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where calls are signed, whoever made one stays, and whoever comes has a place: the oldest of the others goes. An open
    stream of somebody who may not is no reason to stay."""
    monkeypatch.setattr(endpoint, "MOST_STRANGERS", 3)
    async with serving(guard=make_guard(), max_connections=5) as proxy:
        connections = proxy.endpoint.connections

        async def dial() -> RawClient:
            before = set(connections)
            client = await RawClient.connect(proxy.endpoint.port)
            await until("it is there", lambda: bool(connections - before))
            return client

        async def call(client: RawClient, **fields: str) -> int:
            answer = await client.call(
                "Heartbeat", service.HeartbeatRequest(group=G), service.HeartbeatResponse, **fields
            )
            return answer.status.code

        known = [await dial() for _ in range(2)]
        for client in known:
            assert await call(client, **metadata()) == Code.OK
        strangers = [await dial() for _ in range(5)]
        for client in strangers[2:]:
            assert await call(client, **metadata(password="wrong")) == Code.UNAUTHORIZED
            client.start("Telemetry", None, end=False)
            await client.writer.drain()
        for client in strangers[:2]:
            await client.closed()
        for _ in range(3):
            known.append(await dial())
            assert await call(known[-1], **metadata()) == Code.OK
        for client in strangers[2:]:
            await client.closed()
        refused = await RawClient.connect(proxy.endpoint.port)
        await refused.closed()
        for client in known:
            assert await call(client, **metadata()) == Code.OK
        for client in (*known, *strangers, refused):
            await client.close()
