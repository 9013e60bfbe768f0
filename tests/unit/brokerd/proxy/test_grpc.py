"""gRPC over the connection: framing, deadlines, statuses, refusals, streams, and readers that are too slow."""

from __future__ import annotations

import gzip
import random
import urllib.parse
from collections.abc import Callable, Mapping

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.proxy.calls import GrpcStatus, Kind, Method, Peer
from brokerd.proxy.grpc import PREFIX, GrpcCall, GrpcConnection, GrpcLimits, Intake, encode_status_text
from brokerd.proxy.heads import CallHeads
from brokerd.proxy.http2 import frames
from brokerd.proxy.http2.frames import ErrorCode, Setting
from remoting import codes
from remoting.errors import RequestError
from tests.support.unfinished import Budget
from tests.unit.brokerd.proxy.h2client import split

UserOf = Callable[[Mapping[str, str]], str]

HEADERS = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/s/Unary",
    ":authority": "localhost",
    "content-type": "application/grpc",
    "te": "trailers",
}


def message(payload: bytes, flag: int = 0) -> bytes:
    return PREFIX.pack(flag, len(payload)) + payload


class Client:
    """A gRPC client in front of a `GrpcConnection`."""

    def __init__(
        self, *, budget: Budget | None = None, max_message_bytes: int = 100_000, user_of: UserOf | None = None
    ) -> None:
        self.now_ms = 1_000_000
        self.flushes = 0
        methods = {
            "/s/Unary": Method("Unary", Kind.UNARY, lambda calls: None),
            "/s/Other": Method("Other", Kind.UNARY, lambda calls: None),
            "/s/Stream": Method("Stream", Kind.SERVER_STREAM, lambda calls: None),
            "/s/Both": Method("Both", Kind.BIDIRECTIONAL, lambda calls: None),
        }
        self.connection = GrpcConnection(
            CallHeads(methods, max_message_bytes),
            GrpcLimits(max_message_bytes, 1000),
            Intake(budget or Budget(), user_of),
            peer=Peer("127.0.0.1:1", b"", self),
            wants_flush=self.wants_flush,
            now_ms=self.now_ms,
        )
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.next_stream_id = 1
        self.receive(frames.PREFACE + frames.encode_settings([]))
        self.connection.http2.outgoing.take()

    def wants_flush(self, connection: GrpcConnection) -> None:
        self.flushes += 1

    def receive(self, data: bytes) -> dict[str, list[GrpcCall]]:
        groups: dict[str, list[GrpcCall]] = {}
        self.connection.receive(data, self.now_ms, lambda method, calls: groups.__setitem__(method.name, calls))
        return groups

    def open(self, *, end: bool = False, **changes: str | None) -> bytes:
        """HEADERS of a new stream; keyword `path` is :path, `_` is -."""
        fields = dict(HEADERS)
        for name, value in changes.items():
            key = ":" + name if name in ("path", "method") else name.replace("_", "-")
            if value is None:
                del fields[key]
            else:
                fields[key] = value
        flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
        self.stream_id = self.next_stream_id
        self.next_stream_id += 2
        return frames.encode_frame(frames.HEADERS, flags, self.stream_id, self.encoder.encode(list(fields.items())))

    def data(self, body: bytes, *, end: bool = True) -> bytes:
        return frames.encode_frame(frames.DATA, frames.END_STREAM if end else 0, self.stream_id, body)

    def call(self, body: bytes, **changes: str | None) -> dict[str, list[GrpcCall]]:
        return self.receive(self.open(**changes) + self.data(body))

    def answers(self) -> dict[int, tuple[dict[str, str], list[bytes], int | None]]:
        """Per stream: all header fields, the messages, and the code of a reset."""
        self.connection.flush_wanted = False
        found: dict[int, tuple[dict[str, str], list[bytes], int | None]] = {}
        bodies: dict[int, bytes] = {}
        for frame in split(self.connection.http2.outgoing.take()):
            if not frame.stream_id:
                continue
            fields, _, reset = found.setdefault(frame.stream_id, ({}, [], None))
            if frame.kind == frames.HEADERS:
                fields.update(self.decoder.decode(frame.payload))
            elif frame.kind == frames.DATA:
                bodies[frame.stream_id] = bodies.get(frame.stream_id, b"") + frame.payload
            elif frame.kind == frames.RST_STREAM:
                reset = int.from_bytes(frame.payload)
            found[frame.stream_id] = fields, [], reset
        for stream_id, body in bodies.items():
            while body:
                _, length = PREFIX.unpack_from(body)
                found[stream_id][1].append(body[5 : 5 + length])
                body = body[5 + length :]
        return found

    def only_answer(self) -> tuple[dict[str, str], list[bytes], int | None]:
        (answer,) = self.answers().values()
        return answer


def test_a_unary_call_and_its_answer() -> None:
    client = Client()
    (call,) = client.call(message(b"question"), x_mq_client_id="me")["Unary"]
    assert call.message == b"question"
    assert call.metadata["x-mq-client-id"] == "me"
    assert call.live
    call.answer(b"reply")
    fields, messages, reset = client.only_answer()
    assert fields == {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}
    assert (messages, reset) == ([b"reply"], None)
    assert not call.live
    call.answer(b"again")  # nobody is there to see it
    assert client.answers() == {}


def test_the_calls_of_one_read_come_together_by_method() -> None:
    client = Client()
    data = b"".join(
        client.open(path=path) + client.data(message(body))
        for path, body in (("/s/Unary", b"1"), ("/s/Other", b"2"), ("/s/Unary", b"3"))
    )
    groups = client.receive(data)
    assert {name: [call.message for call in calls] for name, calls in groups.items()} == {
        "Unary": [b"1", b"3"],
        "Other": [b"2"],
    }


def test_the_shell_is_asked_to_flush_once_per_turn() -> None:
    client = Client()
    calls = [client.call(message(b"x"))["Unary"][0] for _ in range(3)]
    for call in calls:
        call.answer(b"y")
    assert client.flushes == 1


@pytest.mark.parametrize(
    ("timeout", "ms"),
    [
        ("3S", 3000),
        ("20m", 20),
        ("2M", 120_000),
        ("1H", 3_600_000),
        ("5000u", 5),
        ("99n", 0),
        ("8760H", 31_536_000_000),
    ],
)
def test_deadlines(timeout, ms) -> None:
    client = Client()
    (call,) = client.call(message(b"x"), grpc_timeout=timeout)["Unary"]
    assert call.deadline_ms == client.now_ms + ms


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"path": "/s/Unknown"}, GrpcStatus.UNIMPLEMENTED),
        ({"grpc_encoding": "snappy"}, GrpcStatus.UNIMPLEMENTED),
        ({"grpc_timeout": "soon"}, GrpcStatus.INTERNAL),
        ({"grpc_timeout": "123456789S"}, GrpcStatus.INTERNAL),
    ],
)
def test_refused_calls_end_with_a_status(changes, status) -> None:
    client = Client()
    assert client.call(message(b"x"), **changes) == {}
    fields, messages, _ = client.only_answer()
    assert fields[":status"] == "200"
    assert fields["grpc-status"] == str(int(status))
    assert fields["grpc-message"]
    assert messages == []
    assert ("grpc-accept-encoding" in fields) == (status == GrpcStatus.UNIMPLEMENTED)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0",
        message(b"abc")[:-1],
        message(b"abc") + b"x",
        message(b"a") + message(b"b"),
        message(b"x", 1),
        message(b"x", 7),
    ],
    ids=[
        "nothing",
        "half a prefix",
        "cut off",
        "too long",
        "two messages",
        "compressed without encoding",
        "unknown flag",
    ],
)
def test_a_unary_call_is_exactly_one_message(body) -> None:
    client = Client()
    assert client.call(body) == {}
    assert client.only_answer()[0]["grpc-status"] == str(int(GrpcStatus.INTERNAL))


def test_a_call_without_a_body_at_all_is_refused() -> None:
    client = Client()
    assert client.receive(client.open(end=True)) == {}
    assert client.only_answer()[0]["grpc-status"] == str(int(GrpcStatus.INTERNAL))


def test_gzip_messages_are_read_within_their_bound() -> None:
    client = Client(max_message_bytes=1000)
    (call,) = client.call(message(gzip.compress(b"a" * 900), 1), grpc_encoding="gzip")["Unary"]
    assert call.message == b"a" * 900
    call.answer(b"")
    client.answers()
    for body, status in (
        (gzip.compress(b"a" * 1001), GrpcStatus.RESOURCE_EXHAUSTED),
        (gzip.compress(b"a" * 900)[:-9], GrpcStatus.INTERNAL),
        (b"no gzip", GrpcStatus.INTERNAL),
    ):
        assert client.call(message(body, 1), grpc_encoding="gzip") == {}
        assert client.only_answer()[0]["grpc-status"] == str(int(status))
    (call,) = client.call(message(b"plain"), grpc_encoding="gzip")["Unary"]
    assert call.message == b"plain"


def test_gzip_messages_that_come_together_share_their_bound() -> None:
    client = Client(max_message_bytes=8 << 20)
    bomb = message(gzip.compress(bytes(3 << 20)), 1)
    data = b"".join(client.open(grpc_encoding="gzip") + client.data(bomb) for _ in range(20))
    for _ in range(2):
        (call,) = client.receive(data)["Unary"]
        assert len(call.message) == 3 << 20
        statuses = [fields["grpc-status"] for fields, _, _ in client.answers().values()]
        assert statuses == [str(int(GrpcStatus.RESOURCE_EXHAUSTED))] * 19
        data = b"".join(client.open(grpc_encoding="gzip") + client.data(bomb) for _ in range(20))


def test_a_message_over_the_limit_is_refused_before_it_has_come() -> None:
    client = Client(max_message_bytes=20_000)
    client.receive(client.open() + client.data(PREFIX.pack(0, 1 << 30) + bytes(16_000), end=False))
    client.receive(client.data(bytes(16_000), end=False))
    fields, _, reset = client.only_answer()
    assert fields["grpc-status"] == str(int(GrpcStatus.RESOURCE_EXHAUSTED))
    assert reset == ErrorCode.NO_ERROR


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"method": "GET"}, "405"),
        ({"content_type": "text/html"}, "415"),
        ({"content_type": "application/grpcx"}, "415"),
    ],
)
def test_what_is_not_grpc_is_answered_as_http(changes, status) -> None:
    client = Client()
    assert client.receive(client.open(end=True, **changes)) == {}
    fields = {}
    body = b""
    for frame in split(client.connection.http2.outgoing.take()):
        if frame.kind == frames.HEADERS:
            fields = dict(client.decoder.decode(frame.payload))
        elif frame.kind == frames.DATA:
            body += frame.payload
    assert fields[":status"] == status
    assert b"gRPC" in body
    assert not client.connection.http2.streams


@pytest.mark.parametrize(
    "content_type", ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"]
)
def test_content_types_of_grpc(content_type) -> None:
    assert "Unary" in Client().call(message(b"x"), content_type=content_type)


def test_a_stream_of_messages() -> None:
    client = Client()
    (call,) = client.call(message(b"x"), path="/s/Stream")["Stream"]
    call.send([b"one", b"", b"two"])
    call.send([b"three"])
    call.finish()
    fields, messages, _ = client.only_answer()
    assert messages == [b"one", b"", b"two", b"three"]
    assert fields["grpc-status"] == "0"


def test_a_bidirectional_stream_gets_its_headers_at_once_and_one_call_per_message() -> None:
    client = Client()
    assert client.receive(client.open(path="/s/Both")) == {}
    assert client.only_answer() == ({":status": "200", "content-type": "application/grpc"}, [], None)
    whole = message(b"one") + message(b"two") + message(b"three")
    assert client.receive(client.data(whole[:3], end=False)) == {}
    first, second = client.receive(client.data(whole[3:18], end=False))["Both"]
    (third,) = client.receive(client.data(whole[18:], end=False))["Both"]
    assert [call.message for call in (first, second, third)] == [b"one", b"two", b"three"]
    second.send([b"to two"])
    first.send([b"to one"])
    client.receive(client.data(b"", end=True))
    fields, messages, _ = client.only_answer()
    assert messages == [b"to two", b"to one"]
    assert fields == {"grpc-status": "0"}
    assert not client.connection.http2.streams


def test_the_last_message_is_answered_before_the_stream_ends() -> None:
    client = Client()
    client.receive(client.open(path="/s/Both"))
    client.connection.receive(
        client.data(message(b"last"), end=True), client.now_ms, lambda method, calls: calls[0].send([b"answer"])
    )
    fields, messages, _ = client.only_answer()
    assert messages == [b"answer"]
    assert fields["grpc-status"] == "0"


def test_streamed_messages_are_bounded() -> None:
    client = Client()
    client.receive(client.open(path="/s/Both"))
    client.receive(client.data(PREFIX.pack(0, 1001), end=False))
    assert client.only_answer()[0]["grpc-status"] == str(int(GrpcStatus.RESOURCE_EXHAUSTED))
    assert client.receive(client.data(message(b"late"), end=False)) == {}

    poor = Client(budget=Budget(4000))  # 800 for small ones
    poor.receive(poor.open(path="/s/Both"))
    poor.receive(poor.data(message(bytes(900))[:500], end=False))
    assert poor.only_answer()[0]["grpc-status"] == str(int(GrpcStatus.RESOURCE_EXHAUSTED))


def test_a_message_that_does_not_come_to_its_end_is_given_up() -> None:
    budget = Budget()
    for path in ("/s/Unary", "/s/Both"):
        client = Client(budget=budget)
        client.receive(client.open(path=path))
        client.receive(client.data(message(bytes(900))[:500], end=False))
        assert budget.held_bytes == 905
        for _ in range(11):
            client.receive(client.data(b"x", end=False))
            budget.pass_ms(2500)
        assert "grpc-status" not in str(client.answers()), path
        budget.pass_ms(2500)
        fields, _, _ = client.only_answer()
        assert fields["grpc-status"] == str(int(GrpcStatus.RESOURCE_EXHAUSTED))
        assert "30%20s" in fields["grpc-message"].replace(" ", "%20")
        assert budget.held_bytes == 0
        assert client.receive(client.data(b"late")) == {}


def test_who_sends_much_shows_first_who_he_is() -> None:
    def user_of(metadata: Mapping[str, str]) -> str:
        if "authorization" not in metadata:
            raise RequestError(codes.NO_PERMISSION, "give the client an access key")
        return "ann"

    half = message(bytes(90_000))[:10_000]
    client = Client(user_of=user_of)
    client.receive(client.open() + client.data(half, end=False))
    fields, _, _ = client.only_answer()
    assert fields["grpc-status"] == str(int(GrpcStatus.UNAUTHENTICATED))
    assert client.receive(client.data(bytes(10_000), end=False)) == {}, "the rest is nobody's"
    small = Client(user_of=user_of)
    small.receive(small.open() + small.data(message(bytes(60_000))[:10_000], end=False))
    assert small.answers() == {}, "an answer of the method's own says who is missing"
    budget = Budget()
    signed = Client(user_of=user_of, budget=budget)
    signed.receive(signed.open(authorization="x") + signed.data(half, end=False))
    assert signed.answers() == {}
    [piece] = budget.unfinished._pieces
    assert piece.peer == "ann"


def test_a_cancelled_call_is_told_once_and_answers_nobody() -> None:
    client = Client()
    (call,) = client.call(message(b"x"))["Unary"]
    told = []
    call.on_cancel = lambda: told.append(1)
    client.receive(frames.encode_rst_stream(1, ErrorCode.CANCEL))
    client.connection.close()
    assert told == [1]
    assert not call.live
    call.send([b"late"])
    call.finish()
    assert client.answers() == {}


def test_a_lost_connection_cancels_every_open_call() -> None:
    client = Client()
    told = []
    for number in range(3):
        (call,) = client.call(message(b"x"))["Unary"]
        call.on_cancel = lambda number=number: told.append(number)
        if number == 1:
            call.answer(b"done")
    client.connection.close()
    assert told == [0, 2]


def test_going_away_ends_the_streams_that_would_never_end() -> None:
    client = Client()
    client.receive(client.open(path="/s/Both"))
    client.connection.go_away()
    assert client.only_answer()[0]["grpc-status"] == str(int(GrpcStatus.UNAVAILABLE))


def test_large_work_waits_for_a_client_that_reads_slowly() -> None:
    client = Client()
    (call,) = client.call(message(b"x"), path="/s/Stream")["Stream"]
    (gone,) = client.call(message(b"x"), path="/s/Stream")["Stream"]
    began = []
    client.connection.write_paused = True
    call.when_writable(lambda: began.append("call"))
    gone.when_writable(lambda: began.append("gone"))
    client.receive(frames.encode_rst_stream(3, ErrorCode.CANCEL))
    assert began == []
    client.connection.write_paused = False
    client.connection.resume()
    assert began == ["call"]


def test_full_windows_make_a_slow_reader_too() -> None:
    client = Client()
    client.receive(frames.encode_settings([(Setting.INITIAL_WINDOW_SIZE, 0)]))
    (call,) = client.call(message(b"x"), path="/s/Stream")["Stream"]
    (second,) = client.call(message(b"x"), path="/s/Stream")["Stream"]
    call.send([bytes(17 * 1024 * 1024)])
    began = []
    second.when_writable(lambda: began.append(1))
    client.connection.flushed()
    assert began == []
    client.receive(frames.encode_window_update(1, 1 << 30) + frames.encode_window_update(0, 1 << 30))
    assert began == [1]


@pytest.mark.parametrize("path", ["/s/Unary", "/s/Both", "/s/unknown"])
def test_heads_of_calls_whose_messages_do_not_come_count(path: str) -> None:
    """A few bytes stand for a long field that the table has."""
    budget = Budget(1 << 20)  # a fifth for small ones
    client = Client(budget=budget)
    long = {f"x{number}": "v" * 900 for number in range(3)}
    sent = 0
    for _ in range(500):
        opening = client.open(path=path, **long)
        sent += len(opening)
        client.receive(opening)
    assert sent < 30_000
    assert budget.unfinished.dropped > 400
    assert 0 < budget.held_bytes <= 1 << 18
    assert len(client.connection.http2.streams) < 80
    client.connection.close()
    assert (budget.held_bytes, len(budget.unfinished)) == (0, 0)


@pytest.mark.parametrize("path", ["/s/Unary", "/s/Stream", "/s/Both"])
def test_a_message_in_a_read_of_its_own_ends_what_its_head_counted(path: str) -> None:
    budget = Budget()
    client = Client(budget=budget)
    client.receive(client.open(path=path))
    assert budget.held_bytes > 500
    (calls,) = client.receive(client.data(message(b"question"), end=path != "/s/Both")).values()
    assert [call.message for call in calls] == [b"question"]
    assert (budget.held_bytes, len(budget.unfinished)) == (0, 0)


def test_heads_that_cost_another_call_its_room_leave_the_numbers_right() -> None:
    budget = Budget(10_000)  # 2000 for small ones
    client = Client(budget=budget)
    streams = [client.open(path=path) for path in ("/s/Both", "/s/Unary", "/s/Both", "/s/Unary", "/s/Both", "/s/Unary")]
    client.receive(b"".join(streams))
    assert budget.unfinished.dropped == 3
    client.connection.close()
    assert (budget.held_bytes, len(budget.unfinished)) == (0, 0)


@pytest.mark.parametrize("seed", range(8))
def test_the_budget_is_empty_after_anything(seed: int) -> None:
    chance = random.Random(seed)
    budget = Budget(2 << 20)
    clients = [Client(budget=budget, max_message_bytes=600_000) for _ in range(3)]
    held: list[GrpcCall] = []

    def send(client: Client) -> None:
        size = chance.choice([0, 10, 1000, 16_000])
        body = chance.choice([message(bytes(size)), PREFIX.pack(0, chance.choice([size, 500_000])) + bytes(size)])
        parts = [
            client.open(path=chance.choice(["/s/Unary", "/s/Stream", "/s/Both", "/s/no"]), end=chance.random() < 0.05)
        ]
        for _ in range(chance.choice([0, 0, 1, 1, 2, 20])):
            parts.append(client.data(body[: chance.randrange(len(body) + 1)], end=False))
        if chance.random() < 0.4:
            parts.append(client.data(body, end=True))
        if chance.random() < 0.1:
            parts.append(frames.encode_rst_stream(client.stream_id, ErrorCode.CANCEL))
        data = b"".join(parts)
        cut = chance.randrange(len(data) + 1)
        for part in (data[:cut], data[cut:]):
            held.extend(call for calls in client.receive(part).values() for call in calls)

    for _ in range(400):
        number = chance.randrange(len(clients))
        client = clients[number]
        send(client)
        if held and chance.random() < 0.5:
            call = held.pop(chance.randrange(len(held)))
            chance.choice(
                [
                    call.finish,
                    lambda call=call: call.answer(b"x"),
                    lambda call=call: call.fail(GrpcStatus.INTERNAL, "no"),
                ]
            )()
        if chance.random() < 0.2:
            client.connection.end_late_requests(client.now_ms, chance.choice([0, 30_000]))
            budget.pass_ms(chance.choice([1, 1000, 31_000]))
        if client.connection.http2.fault is not None or chance.random() < 0.02:
            client.connection.close()
            clients[number] = Client(budget=budget, max_message_bytes=600_000)
        live = {stream.piece for each in clients for stream in each.connection.http2.streams.values()} - {None}
        assert len(budget.unfinished) == len(live)
        assert not any(piece.is_over for piece in live if piece is not None)
    for client in clients:
        client.connection.close()
    assert (budget.held_bytes, budget.unfinished.waiting) == (0, 0)
    assert not budget.unfinished._shares


def test_one_stream_id_far_from_the_last_costs_no_time() -> None:
    client = Client()
    client.next_stream_id = (1 << 31) - 1
    client.receive(client.open())
    assert list(client.connection.http2.streams) == [(1 << 31) - 1]


@given(st.text())
def test_status_texts_are_percent_encoded(text) -> None:
    encoded = encode_status_text(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    if len(text.encode("utf-8", "replace")) <= 1024:
        assert urllib.parse.unquote(encoded.decode()) == text.encode("utf-8", "replace").decode()


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_no_body_raises_anything(bodies) -> None:
    client = Client()
    for path in HEADERS[":path"], "/s/Both":
        client.receive(client.open(path=path))
        for body in bodies:
            client.receive(client.data(body, end=False))
        client.receive(client.data(b"", end=True))
