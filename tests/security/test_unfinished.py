"""Frames and bodies that never end: what a stranger makes a daemon hold, for how long, and what honest clients notice of it."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hpack
import pytest

from brokerd.proxy.grpc import PREFIX, SERVICE_PATH
from brokerd.proxy.http2 import frames
from remoting import codes, frame
from remoting.access.signature import Credentials
from remoting.client.access_admin import AccessAdmin
from remoting.client.socket_connection import SocketConnection
from remoting.transport.client import split_address
from remoting.transport.identity import Identity
from remoting.transport.tls import client_context
from tests.bench.processes import memory_of
from tests.support.certificates import of_the_appliance
from tests.support.client_bytes import encode_batch_body
from tests.support.cluster import Cluster, Process, eventually

MIB = 1 << 20
TOPIC = "honest"
DEADLINE_S = 6.0  # short, so that tests see it pass
BUDGET_MIB = 64
UNPROVEN_MIB = 24
# what the budget, whole frames that are put together, and the allocator add up to at the worst
MOST_MB = BUDGET_MIB + 64
MOST_UNPROVEN_MB = UNPROVEN_MIB + 40

BOUNDS = (
    f"unfinished.max_bytes={BUDGET_MIB * MIB}",
    f"unfinished.max_unproven_bytes={UNPROVEN_MIB * MIB}",
    f"unfinished.deadline_s={DEADLINE_S}",
)
_BROKER = (*BOUNDS, f"grpc.max_message_bytes={40 * MIB}", "grpc.sweep_s=0.5")
_ASKING = ("access.authentication=true", "access.authorization=true")


def _running(root: Path, broker: Sequence[str], controller: Sequence[str]) -> Cluster:
    cluster = Cluster(root, controllers=1, replicas=1, broker_settings=broker, controller_settings=controller)
    cluster.start()
    cluster.admin.create_topic(TOPIC, 4)
    eventually("the topic's route", lambda: cluster.admin.queue_offsets(TOPIC))
    return cluster


@pytest.fixture(scope="module")
def open_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Asks nobody who he is; its ports answer TLS and plaintext."""
    root = tmp_path_factory.mktemp("open")
    tls, ca = of_the_appliance(root / "appliance")
    with _running(root / "cluster", (*_BROKER, *tls), (*BOUNDS, *tls)) as cluster:
        (root / "ca").write_text(str(ca))
        yield cluster


@pytest.fixture(scope="module")
def patient_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """As short of room, and gives as much time as by default."""
    bounds = (*BOUNDS[:2], f"grpc.max_message_bytes={40 * MIB}")
    with _running(tmp_path_factory.mktemp("patient"), bounds, ()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def asking_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Takes signed requests alone."""
    root = tmp_path_factory.mktemp("asking")
    with _running(root, (*_BROKER, *_ASKING), (*BOUNDS, *_ASKING)) as cluster:
        AccessAdmin(cluster.admin).create_user("ann", "a long secret", "Super", "enable")
        identity = Identity(Credentials("ann", b"a long secret"))
        eventually("the broker knows ann", lambda: _is_let_in(cluster.broker_addresses[0], identity))
        yield cluster


def _is_let_in(address: str, identity: Identity) -> bool:
    with SocketConnection(address, identity=identity) as connection:
        answer = connection.call(codes.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}, accept=range(-1, 10_000))
        return answer.code == codes.SUCCESS


def connected(address: str) -> socket.socket:
    made = socket.create_connection(split_address(address), timeout=5)
    made.settimeout(5)
    return made


@contextlib.contextmanager
def many(count: int, address: str) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connected(address)) for _ in range(count)]


def push(sockets: Sequence[socket.socket], data: bytes, seconds: float) -> int:
    """Send as much to all of them as they take in that time; how many bytes were taken."""
    at = dict.fromkeys(range(len(sockets)), 0)
    for each in sockets:
        each.setblocking(False)
    until = time.monotonic() + seconds
    while at and time.monotonic() < until:
        for number in list(at):
            try:
                at[number] += sockets[number].send(data[at[number] : at[number] + MIB])
            except BlockingIOError:
                continue
            except OSError:
                del at[number]
                continue
            if at[number] == len(data):
                del at[number]
    return sum(at.values())


def is_closed(each: socket.socket) -> bool:
    """Whether the other side closed it; what it said before is dropped."""
    each.setblocking(False)
    try:
        while each.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def unfinished_frame(length: int, missing: int, ext: dict[str, str] | None = None) -> bytes:
    """A send of that length, without its last bytes."""
    ext = {"b": TOPIC, "a": "g", **(ext or {})}
    header = json.dumps({"code": codes.SEND_MESSAGE_V2, "opaque": 1, "flag": 0, "extFields": ext}).encode()
    whole = struct.pack(">iI", length - 4, len(header)) + header
    return (whole + bytes(length - len(whole)))[: length - missing]


def send(address: str, body: bytes, identity: Identity | None = None) -> None:
    """An honest client's message, acknowledged or an error."""
    ext = dict(zip("abcdefghij", ("g", TOPIC, "TBW102", "4", "0", "0", "0", "0", "", "0"), strict=True))
    with SocketConnection(address, identity=identity or Identity(), timeout_ms=15_000) as connection:
        connection.call(codes.SEND_MESSAGE_V2, ext, body)


def most_memory(process: Process, seconds: float) -> float:
    """The largest resident memory that a process has in that time, in MB."""
    most, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        most = max(most, memory_of(process.pid).resident_mb)
        time.sleep(0.02)  # the reading's own pace: nothing is waited for
    return most


def attack(process: Process, sockets: Sequence[socket.socket], data: bytes, seconds: float = 2) -> float:
    """By how many MB a process grew under it."""
    before = memory_of(process.pid).resident_mb
    push(sockets, data, seconds)
    return most_memory(process, 1) - before


# ---- remoting


@pytest.mark.parametrize("daemon", ["broker", "controller"])
def test_forty_frames_that_do_not_end_are_within_the_budget(open_cluster: Cluster, daemon: str) -> None:
    address, process = _of(open_cluster, daemon)
    with many(40, address) as sockets:
        assert attack(process, sockets, unfinished_frame(15 * MIB, missing=1)) < MOST_MB
        if daemon == "broker":
            for size in (100, 100_000, 4 * MIB - 1000):
                send(address, bytes(size))
        eventually("all of them are closed", lambda: all(map(is_closed, sockets)), timeout_s=8 * DEADLINE_S)


def _of(cluster: Cluster, daemon: str) -> tuple[str, Process]:
    if daemon == "broker":
        return cluster.broker_addresses[0], cluster.brokers[0]
    return cluster.controller_addresses[0], cluster.controllers[0]


@pytest.mark.parametrize("daemon", ["broker", "controller"])
def test_a_stranger_sends_nothing_long(asking_cluster: Cluster, daemon: str) -> None:
    address, process = _of(asking_cluster, daemon)
    with many(40, address) as sockets:
        assert attack(process, sockets, unfinished_frame(15 * MIB, missing=1)) < 32
        eventually("all of them are closed", lambda: all(map(is_closed, sockets)))
    assert "names no user who is known" in process.log_text()


@pytest.mark.parametrize("name", ["ann", "logboom-inner"])
def test_a_stranger_who_knows_a_name_has_the_strangers_budget(asking_cluster: Cluster, name: str) -> None:
    address, process = _of(asking_cluster, "broker")
    claim = {"AccessKey": name, "Signature": "x"}
    with many(40, address) as sockets:
        assert attack(process, sockets, unfinished_frame(15 * MIB, missing=1, ext=claim)) < MOST_UNPROVEN_MB
        honest = Identity(Credentials("ann", b"a long secret"))
        send(address, bytes(4 * MIB - 1000), honest)  # as the first request of a connection, too


@pytest.mark.parametrize(
    ("begun", "drip"),
    [(b"\0", b""), (b"\0\0\0", b""), (unfinished_frame(1000, 990), b"\0"), (unfinished_frame(MIB, 1000), b"\0")],
    ids=["a byte", "three bytes", "a small frame", "a long frame"],
)
def test_a_frame_that_drips_ends_by_its_deadline(open_cluster: Cluster, begun: bytes, drip: bytes) -> None:
    for address in (open_cluster.broker_addresses[0], open_cluster.controller_addresses[0]):
        with connected(address) as dripping:
            dripping.sendall(begun)

            def drips(dripping: socket.socket = dripping) -> bool:
                with contextlib.suppress(OSError):
                    dripping.send(drip)
                return is_closed(dripping)

            eventually("it is closed", drips, timeout_s=2 * DEADLINE_S + 2)


def test_crumbs_cost_no_more_than_their_bytes(patient_cluster: Cluster) -> None:
    address, process = _of(patient_cluster, "broker")
    before = memory_of(process.pid).resident_mb
    begun = unfinished_frame(4 * MIB, missing=0)
    with many(4, address) as sockets:
        for each in sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.sendall(begun[:5000])
        for position in range(5000, 25_000, 2):
            for each in sockets:
                each.sendall(begun[position : position + 2])
        assert memory_of(process.pid).resident_mb - before < 8


def test_honest_clients_with_much_get_through(patient_cluster: Cluster) -> None:
    """More at once than the budget holds."""
    address, process = _of(patient_cluster, "broker")
    body = bytes(4 * MIB - 2000)
    ext = dict(zip("abcdefghij", ("g", TOPIC, "TBW102", "4", "0", "0", "0", "0", "", "0"), strict=True))
    whole = frame.encode_request(codes.SEND_MESSAGE_V2, 7, ext, body)
    before = memory_of(process.pid).resident_mb
    with many(48, address) as sockets:
        left = len(whole) * len(sockets)
        at = dict.fromkeys(range(len(sockets)), 0)
        for each in sockets:
            each.setblocking(False)
        until = time.monotonic() + 60
        while left and time.monotonic() < until:
            for number, position in list(at.items()):
                with contextlib.suppress(BlockingIOError):
                    taken = sockets[number].send(whole[position : position + 65_536])
                    at[number] += taken
                    left -= taken
        assert not left
        for each in sockets:
            each.settimeout(30)
            answers: list[frame.Command] = []
            frame.decode_frames(each.recv(65_536), answers)
            assert [answer.opaque for answer in answers] == [7]
            assert answers[0].code in (codes.SUCCESS, codes.SYSTEM_BUSY)
    assert memory_of(process.pid).resident_mb - before < 48 * 4


def test_a_batch_as_long_as_the_frame_limit_goes_through(patient_cluster: Cluster) -> None:
    address, _ = _of(patient_cluster, "broker")
    names = "abcdefghijm"
    ext = dict(zip(names, ("g", TOPIC, "TBW102", "4", "0", "0", "1700000000000", "0", "", "0", "true"), strict=True))
    full, count = 3 * MIB, 4

    def of_length(last: int) -> bytes:
        items = [(0, bytes(length), b"") for length in (*[full] * count, last)]
        return frame.encode_request(codes.SEND_BATCH_MESSAGE, 7, ext, encode_batch_body(items))

    whole = of_length(frame.MAX_FRAME_BYTES - len(of_length(0)))
    assert len(whole) == frame.MAX_FRAME_BYTES
    for _ in range(2):
        with connected(address) as producer:
            producer.settimeout(60)
            producer.sendall(whole)
            answers: list[frame.Command] = []
            frame.decode_frames(producer.recv(65_536), answers)
            assert [(answer.opaque, answer.code) for answer in answers] == [(7, codes.SUCCESS)], answers[0].remark
    with connected(address) as producer:
        producer.sendall((frame.MAX_FRAME_BYTES - 3).to_bytes(4) + whole[4:100])
        eventually("one byte more is too long", lambda: is_closed(producer))


def test_a_slow_client_on_tls_gets_through(open_cluster: Cluster) -> None:
    address, _ = _of(open_cluster, "broker")
    ca = (open_cluster.data.parent / "ca").read_text()
    ext = dict(zip("abcdefghij", ("g", TOPIC, "TBW102", "4", "0", "0", "0", "0", "", "0"), strict=True))
    whole = frame.encode_request(codes.SEND_MESSAGE_V2, 7, ext, bytes(2 * MIB))
    context: ssl.SSLContext = client_context(ca)
    with connected(address) as plain, context.wrap_socket(plain) as secure:
        pieces = 20
        for number in range(pieces):  # for more than half of the time that it has
            start, end = (len(whole) * part // pieces for part in (number, number + 1))
            secure.sendall(whole[start:end])
            time.sleep(0.6 * DEADLINE_S / pieces)  # what makes it slow
        answers: list[frame.Command] = []
        frame.decode_frames(secure.recv(65_536), answers)
    assert [answer.code for answer in answers] == [codes.SUCCESS]


# ---- gRPC

_FIELDS = (
    *((":method", "POST"), (":scheme", "http"), (":path", SERVICE_PATH + "SendMessage"), (":authority", "x")),
    *(("content-type", "application/grpc"), ("te", "trailers")),
)


def grpc_head(stream_id: int, fields: Sequence[tuple[str, str]] = _FIELDS) -> bytes:
    block = hpack.Encoder().encode(list(fields))
    return frames.encode_frame(frames.HEADERS, frames.END_HEADERS, stream_id, block)


OPENING = frames.PREFACE + frames.encode_settings([])


def unfinished_call(stream_id: int, length: int, sent: int) -> bytes:
    """A send whose message will have that length, and the first bytes of it."""
    body = (PREFIX.pack(0, length) + bytes(sent))[:sent]
    parts = [body[start : start + 16384] for start in range(0, sent, 16384)]
    return grpc_head(stream_id) + b"".join(frames.encode_frame(frames.DATA, 0, stream_id, each) for each in parts)


def test_six_connections_do_not_pin_what_grpc_has(patient_cluster: Cluster) -> None:
    """An honest client of the same address gets in long before what they began is late."""
    address, process = patient_cluster.grpc_addresses[0], patient_cluster.brokers[0]
    lengths = {1: 38 * MIB, 3: 38 * MIB, 5: 12 * MIB}
    data = OPENING + b"".join(unfinished_call(number, length, length - 1) for number, length in lengths.items())
    with many(6, address) as sockets:
        assert attack(process, sockets, data, seconds=8) < MOST_MB
        with connected(address) as honest:
            honest.sendall(OPENING + _whole_call(1, 300_000))
            assert _answered(honest, 1, 15)


def _whole_call(stream_id: int, length: int) -> bytes:
    """A call with a message that long; its bytes are no request, which the answer says."""
    body = PREFIX.pack(0, length) + b"\xff" * length
    parts = [body[start : start + 16384] for start in range(0, len(body), 16384)]
    sent = [frames.encode_frame(frames.DATA, 0, stream_id, each) for each in parts]
    return grpc_head(stream_id) + b"".join(sent) + frames.encode_frame(frames.DATA, frames.END_STREAM, stream_id)


def _answered(honest: socket.socket, stream_id: int, most_s: float) -> bool:
    """Whether an answer's end comes that is no refusal of the transport's for want of room."""
    honest.settimeout(most_s)
    data = b""
    decoder = hpack.Decoder()
    while True:
        more = honest.recv(65_536)
        if not more:
            return False
        data += more
        while len(data) >= frames.FRAME_HEADER_BYTES:
            high, low, kind, flags, got = frames.FRAME_HEADER.unpack_from(data)
            end = frames.FRAME_HEADER_BYTES + (high << 8 | low)
            if len(data) < end:
                break
            payload, data = data[frames.FRAME_HEADER_BYTES : end], data[end:]
            if kind == frames.HEADERS and got == stream_id:
                fields = dict(decoder.decode(payload))
                if flags & frames.END_STREAM:
                    return fields.get("grpc-status") not in ("8", "16")


@pytest.mark.parametrize(
    "begun",
    [
        frames.PREFACE[:10],
        OPENING + grpc_head(1)[:5],
        OPENING + frames.encode_frame(frames.HEADERS, 0, 1, b"\x83"),
    ],
    ids=["a preface", "a frame", "a header block"],
)
def test_what_begins_on_grpc_ends_by_its_deadline(open_cluster: Cluster, begun: bytes) -> None:
    with connected(open_cluster.grpc_addresses[0]) as slow:
        slow.sendall(begun)
        eventually("it is closed", lambda: is_closed(slow), timeout_s=12 + DEADLINE_S)


@pytest.mark.parametrize(
    "begun", [grpc_head(1), unfinished_call(1, 1000, 500), unfinished_call(1, MIB, 3)], ids=["head", "half", "prefix"]
)
def test_a_call_whose_body_does_not_come_is_ended(open_cluster: Cluster, begun: bytes) -> None:
    with connected(open_cluster.grpc_addresses[0]) as slow:
        slow.sendall(OPENING + begun)
        assert not _answered(slow, 1, 4 * DEADLINE_S), "with RESOURCE_EXHAUSTED"
        slow.sendall(_whole_call(3, 10))
        assert _answered(slow, 3, 5), "the connection lives on"


def test_unsigned_calls_have_no_long_body(asking_cluster: Cluster) -> None:
    address, process = asking_cluster.grpc_addresses[0], asking_cluster.brokers[0]
    with many(40, address) as sockets:
        data = OPENING + b"".join(unfinished_call(1 + 2 * number, 30 * MIB, 200_000) for number in range(5))
        assert attack(process, sockets, data) < 32
    with connected(address) as stranger:
        stranger.sendall(OPENING + unfinished_call(1, 30 * MIB, 20_000))
        assert not _answered(stranger, 1, 5), "UNAUTHENTICATED, while the body is still to come"


# ---- the other ports


def _metrics(cluster: Cluster) -> str:
    host, port = split_address(cluster.broker_addresses[0])
    return f"{host}:{port + 10_000 if port + 10_000 <= 65_535 else port - 10_000}"


OTHER_PORTS: dict[str, Callable[[Cluster], str]] = {
    "metrics": _metrics,
    "replication": lambda cluster: cluster.ha_addresses[0],
}


@pytest.mark.parametrize("port", list(OTHER_PORTS))
@pytest.mark.parametrize("begun", [b"", b"G", b"L", b"LBHA"])
def test_who_does_not_come_to_the_point_is_closed(open_cluster: Cluster, port: str, begun: bytes) -> None:
    with connected(OTHER_PORTS[port](open_cluster)) as slow:
        slow.sendall(begun)
        eventually("it is closed", lambda: is_closed(slow), timeout_s=20)


@pytest.mark.parametrize("port", list(OTHER_PORTS))
def test_other_ports_hold_nothing(open_cluster: Cluster, port: str) -> None:
    with many(40, OTHER_PORTS[port](open_cluster)) as sockets:
        data = (b"LBHA" if port == "replication" else b"GET /metrics HTTP/1.1\r\nx: ") + b"y" * (8 * MIB)
        assert attack(open_cluster.brokers[0], sockets, data) < 24
