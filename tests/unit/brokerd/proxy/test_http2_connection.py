"""The HTTP/2 connection: requests in, answers out, and what it does with peers that break the rules or flood it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.proxy.http2 import connection as http2
from brokerd.proxy.http2 import frames
from brokerd.proxy.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
    encode_frame,
    encode_rst_stream,
    encode_settings,
    encode_window_update,
)
from brokerd.proxy.http2.limits import Http2Limits
from remoting.transport.unfinished import SMALL_BYTES
from tests.support.unfinished import Budget
from tests.unit.brokerd.proxy.h2client import REQUEST, Client, Frame


def goaway_code(client: Client) -> int:
    (goaway,) = [frame for frame in client.output() if frame.kind == GOAWAY]
    return int.from_bytes(goaway.payload[4:8])


# ---- requests and answers


def test_a_request_is_one_event_and_an_answer_three_frames() -> None:
    client = Client()
    assert client.send(client.request(1, b"hello")) == [(http2.REQUEST, 1, None)]
    assert client.server.streams[1].body == b"hello"
    client.answer(1, b"world")
    head, data, trailers = client.output()
    assert (head.kind, head.flags, head.stream_id) == (HEADERS, END_HEADERS, 1)
    assert data == Frame(DATA, 0, 1, b"world")
    assert (trailers.kind, trailers.flags) == (HEADERS, END_HEADERS | END_STREAM)
    assert not client.server.streams


def test_the_handshake_announces_our_limits_and_acknowledges_the_peers_settings() -> None:
    client = Client(handshake=False)
    opening = client.output()
    assert [frame.kind for frame in opening] == [SETTINGS, WINDOW_UPDATE]
    announced = dict(frames.SETTING.iter_unpack(opening[0].payload))
    assert announced[Setting.MAX_CONCURRENT_STREAMS] == Http2Limits().max_concurrent_streams
    assert not client.server.ready
    client.send(frames.PREFACE + encode_settings([]))
    assert client.server.ready
    assert client.output() == [Frame(SETTINGS, ACK, 0, b"")]


@given(st.data())
@settings(max_examples=60)
def test_events_do_not_depend_on_how_the_bytes_are_cut(data) -> None:
    bodies = data.draw(st.lists(st.binary(max_size=50), min_size=1, max_size=6))

    def conversation(client: Client) -> bytes:
        out = frames.PREFACE + encode_settings([(Setting.INITIAL_WINDOW_SIZE, 100)])
        for number, body in enumerate(bodies):
            stream_id = 2 * number + 1
            half = len(body) // 2
            out += client.headers(stream_id)
            if number % 2:
                out += client.data(stream_id, body[:half], end=False) + client.data(stream_id, body[half:])
            else:
                out += client.data(stream_id, body)
        return out + encode_frame(PING, 0, 0, b"12345678")

    whole, pieces = Client(handshake=False), Client(handshake=False)
    expected = whole.send(conversation(whole))
    rest = conversation(pieces)
    events = []
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        events += pieces.send(rest[:cut])
        rest = rest[cut:]
    assert events == expected
    assert [stream.body for stream in pieces.server.streams.values()] == bodies
    assert whole.output() == pieces.output()


def test_the_same_headers_again_are_the_same_head_object() -> None:
    client = Client()
    client.send(client.request(1))
    client.send(client.request(3))
    client.send(client.request(5))
    streams = client.server.streams
    assert streams[3].head is streams[5].head


def test_a_changed_table_changes_what_equal_bytes_mean() -> None:
    client = Client()
    block = client.block()
    client.send(encode_frame(HEADERS, END_HEADERS | END_STREAM, 1, block))
    repeated = client.block()
    client.send(encode_frame(HEADERS, END_HEADERS | END_STREAM, 3, repeated))
    client.send(encode_frame(HEADERS, END_HEADERS | END_STREAM, 5, client.block((*REQUEST, ("new", "entry")))))
    client.send(encode_frame(HEADERS, END_HEADERS | END_STREAM, 7, repeated))
    assert client.fault() is None  # the indexes now mean other fields, a malformed request or another head
    streams = client.server.streams
    assert 7 not in streams or streams[7].head is not streams[3].head


def test_bodies_may_come_in_padded_pieces_and_end_with_trailers() -> None:
    client = Client()
    client.send(client.headers(1))
    client.send(encode_frame(DATA, PADDED, 1, b"\x03ab" + bytes(3)))
    client.send(client.data(1, b"cd", end=False))
    trailers = encode_frame(HEADERS, END_HEADERS | END_STREAM, 1, client.block((("checksum", "1"),)))
    assert client.send(trailers) == [(http2.REQUEST, 1, None)]
    assert client.server.streams[1].body == b"abcd"


def test_priorities_and_unknown_frames_are_ignored() -> None:
    client = Client()
    block = client.block()
    client.send(encode_frame(HEADERS, END_HEADERS | PRIORITY_FLAG | PADDED, 1, b"\x02" + bytes(5) + block + bytes(2)))
    client.send(encode_frame(PRIORITY, 0, 1, bytes(5)) + encode_frame(99, 0, 1, b"what"))
    assert client.send(client.data(1, b"x")) == [(http2.REQUEST, 1, None)]


def test_a_long_header_block_comes_in_continuations() -> None:
    client = Client()
    block = client.block((*REQUEST, ("long", "v" * 3000)))
    client.send(
        encode_frame(HEADERS, END_STREAM, 1, block[:10])
        + encode_frame(CONTINUATION, 0, 1, block[10:20])
        + encode_frame(CONTINUATION, END_HEADERS, 1, block[20:])
    )
    assert 1 in client.server.streams


def test_streams_that_do_not_collect_hand_over_every_piece() -> None:
    client = Client(collects=False)
    events = client.send(client.headers(1) + client.data(1, b"ab", end=False) + client.data(1, b"cd"))
    assert events == [
        (http2.OPENED, 1, None),
        (http2.CHUNK, 1, b"ab"),
        (http2.CHUNK, 1, b"cd"),
        (http2.ENDED, 1, None),
    ]


def test_an_answer_before_the_request_ended_tells_the_peer_to_stop() -> None:
    client = Client()
    client.send(client.headers(1) + client.data(1, b"part", end=False))
    client.answer(1)
    assert client.output()[-1] == Frame(RST_STREAM, 0, 1, bytes(4))
    assert client.send(client.data(1, b"late")) == []
    assert client.fault() is None


def test_a_peer_with_a_smaller_header_table_is_told_once_that_we_know() -> None:
    client = Client()
    client.send(encode_settings([(Setting.HEADER_TABLE_SIZE, 0)]) + client.request(1) + client.request(3))
    client.output()
    client.answer(1)
    client.answer(3)
    heads = [frame.payload for frame in client.output() if frame.kind == HEADERS and not frame.flags & END_STREAM]
    assert heads == [b"\x20\x88", b"\x88"]


# ---- flow control


def test_answers_stay_within_the_peers_windows_and_go_on_when_they_open() -> None:
    client = Client()
    client.send(encode_settings([(Setting.INITIAL_WINDOW_SIZE, 10)]) + client.request(1))
    client.output()
    client.answer(1, b"0123456789abcdef")
    assert [frame.payload for frame in client.output() if frame.kind == DATA] == [b"0123456789"]
    client.send(encode_window_update(1, 3))
    assert client.output() == [Frame(DATA, 0, 1, b"abc")]
    assert client.server.outgoing.blocked_bytes == 3
    client.send(encode_window_update(1, 30))
    data, trailers = client.output()
    assert (data.payload, trailers.flags) == (b"def", END_HEADERS | END_STREAM)
    assert client.server.outgoing.blocked_bytes == 0
    assert not client.server.streams


def test_the_connections_window_is_shared_in_turns() -> None:
    client = Client()
    client.send(encode_settings([(Setting.INITIAL_WINDOW_SIZE, 1 << 20)]) + client.request(1) + client.request(3))
    client.output()
    client.answer(1, b"a" * 65535)
    client.answer(3, b"b" * 100)
    client.send(b"".join(client.request(stream_id) for stream_id in (5, 7)))
    client.answer(5, b"c" * 20000)
    client.answer(7, b"d" * 20000)
    client.output()
    client.send(encode_window_update(0, 40000))
    assert [(frame.stream_id, len(frame.payload)) for frame in client.output() if frame.kind == DATA] == [
        (3, 100),
        (5, 16384),
        (7, 16384),
        (5, 3616),
        (7, 3516),
    ]


@given(
    st.lists(st.integers(1, 70000), min_size=1, max_size=5), st.lists(st.integers(1, 30000), min_size=1, max_size=60)
)
@settings(max_examples=60, deadline=None)
def test_every_byte_is_sent_once_in_order_and_never_beyond_a_window(sizes, updates) -> None:
    client = Client()
    client.send(encode_settings([(Setting.INITIAL_WINDOW_SIZE, 1000)]))
    windows = {0: 65535}
    expected, received = {}, {}
    for number, size in enumerate(sizes):
        stream_id = 2 * number + 1
        client.send(client.request(stream_id))
        expected[stream_id] = bytes(i * 31 % 251 for i in range(size))
        received[stream_id] = b""
        windows[stream_id] = 1000
        client.output()
        client.answer(stream_id, expected[stream_id])
        take(client, windows, received)
    for increment in [*updates, *[1 << 20] * 2]:
        for stream_id in list(windows):
            client.send(encode_window_update(stream_id, increment))
            windows[stream_id] += increment
            take(client, windows, received)
    assert received == expected
    assert client.server.outgoing.blocked_bytes == 0
    assert not client.server.streams


def take(client: Client, windows: dict[int, int], received: dict[int, bytes]) -> None:
    for frame in client.output():
        if frame.kind == DATA:
            assert len(frame.payload) <= frames.DEFAULT_MAX_FRAME_BYTES
            received[frame.stream_id] += frame.payload
            windows[0] -= len(frame.payload)
            windows[frame.stream_id] -= len(frame.payload)
            assert min(windows[0], windows[frame.stream_id]) >= 0


def test_receive_windows_are_replenished() -> None:
    limits = Http2Limits(stream_window_bytes=65535, connection_window_bytes=80000)
    client = Client(limits)
    client.send(announced(client, 1, 1 << 20))
    for _ in range(30):
        client.send(client.data(1, bytes(16384), end=False))
    updates = [frame for frame in client.output() if frame.kind == WINDOW_UPDATE]
    for stream_id in (0, 1):
        granted = sum(int.from_bytes(frame.payload) for frame in updates if frame.stream_id == stream_id)
        assert granted >= 30 * 16384 - 65535
    assert client.fault() is None


def test_a_changed_initial_window_applies_to_open_streams() -> None:
    client = Client()
    client.send(encode_settings([(Setting.INITIAL_WINDOW_SIZE, 5)]) + client.request(1))
    client.answer(1, b"0123456789")
    client.output()
    client.send(encode_settings([(Setting.INITIAL_WINDOW_SIZE, 2)]))  # the window is now -3
    client.send(encode_window_update(1, 3))
    assert not [frame for frame in client.output() if frame.kind == DATA]
    client.send(encode_settings([(Setting.INITIAL_WINDOW_SIZE, 4)]))
    acknowledgement, data = client.output()
    assert (acknowledgement.kind, acknowledgement.flags) == (SETTINGS, ACK), "before the data that it lets go"
    assert (data.kind, data.payload) == (DATA, b"56")


# ---- the peer goes away


def test_a_reset_ends_the_stream_and_gives_back_what_it_held() -> None:
    budget = Budget()
    client = Client(budget=budget)
    client.send(client.headers(1) + client.data(1, bytes(400), end=False))
    assert budget.held_bytes == SMALL_BYTES, "nobody said how long it would be"
    assert client.send(encode_rst_stream(1, ErrorCode.CANCEL)) == [(http2.RESET, 1, None)]
    assert budget.held_bytes == 0
    assert not client.server.streams


def test_a_lost_connection_gives_back_everything_and_names_the_live_streams() -> None:
    budget = Budget()
    client = Client(budget=budget)
    client.send(client.headers(1) + client.data(1, bytes(400), end=False) + client.request(3))
    assert {stream.stream_id for stream in client.server.close()} == {1, 3}
    assert budget.held_bytes == 0


def test_going_away_takes_no_new_streams_and_finishes_the_old_ones() -> None:
    client = Client()
    client.send(client.request(1))
    client.server.go_away("stopping")
    assert client.send(client.request(3)) == []
    client.answer(1)
    goaway, *rest = client.output()
    assert (goaway.kind, goaway.payload[:4]) == (GOAWAY, (1).to_bytes(4))
    assert [frame.kind for frame in rest] == [HEADERS, DATA, HEADERS]
    assert client.fault() is None


# ---- rules


SETTINGS_FIRST = "the first frame must be SETTINGS"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (encode_frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(DATA, 0, 5, b"x"), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(DATA, PADDED, 1, b"\x05x"), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(DATA, PADDED, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(HEADERS, END_HEADERS, 0, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(HEADERS, END_HEADERS, 2, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 3, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (encode_frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 3, b"\0\0\0\3\0\x82"), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(HEADERS, END_HEADERS, 3, b"\xff\xff\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (encode_frame(HEADERS, 0, 3, b"\x82") + encode_frame(PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(HEADERS, 0, 3, b"\x82") + encode_frame(CONTINUATION, 0, 5, b""), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(HEADERS, 0, 3, b"\x82") + encode_frame(99, 0, 3, b""), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(CONTINUATION, END_HEADERS, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(PRIORITY, 0, 9, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (encode_frame(RST_STREAM, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(RST_STREAM, 0, 9, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (encode_frame(SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(SETTINGS, ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (encode_frame(SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (encode_settings([(Setting.ENABLE_PUSH, 2)]), ErrorCode.PROTOCOL_ERROR),
        (encode_settings([(Setting.INITIAL_WINDOW_SIZE, 1 << 31)]), ErrorCode.FLOW_CONTROL_ERROR),
        (encode_settings([(Setting.MAX_FRAME_SIZE, 16383)]), ErrorCode.PROTOCOL_ERROR),
        (encode_settings([(Setting.MAX_FRAME_SIZE, 1 << 24)]), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (encode_frame(GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (encode_frame(WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (encode_frame(WINDOW_UPDATE, 0, 9, b"\0\0\0\1"), ErrorCode.PROTOCOL_ERROR),
        (encode_window_update(0, 0x7FFFFFFF), ErrorCode.FLOW_CONTROL_ERROR),
        (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_a_broken_rule_of_the_connection_ends_it_with_its_code(data, code) -> None:
    client = Client()
    client.send(client.headers(1))
    client.output()
    client.send(data)
    assert client.fault() == code
    assert goaway_code(client) == code
    assert client.send(client.request(11)) == []  # nothing is taken any more


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (encode_window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (encode_window_update(1, 0x7FFFFFFF), ErrorCode.FLOW_CONTROL_ERROR),
        (encode_frame(PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (encode_frame(PRIORITY, 0, 1, b"\0\0\0\1\0"), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(HEADERS, END_HEADERS, 1, b"\x00\x01a\x01b"), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x82"), ErrorCode.PROTOCOL_ERROR),
    ],
    ids=["window by 0", "window overflow", "short priority", "depends on itself", "headers twice", "pseudo trailers"],
)
def test_a_broken_rule_of_a_stream_resets_it_and_nothing_else(data, code) -> None:
    client = Client()
    client.send(client.headers(1) + client.headers(3))
    client.output()
    assert client.send(data) == [(http2.RESET, 1, None)]
    assert client.output() == [Frame(RST_STREAM, 0, 1, int(code).to_bytes(4))]
    assert client.send(client.data(3, b"x")) == [(http2.REQUEST, 3, None)]


@pytest.mark.parametrize(
    "fields",
    [
        REQUEST[1:],
        (*REQUEST, REQUEST[0]),
        (*REQUEST, (":status", "200")),
        (*REQUEST, (":path", "/late")),
        (*REQUEST[:2], (":path", ""), *REQUEST[3:]),
        (*REQUEST, ("Upper", "case")),
        (*REQUEST, ("connection", "close")),
        (*REQUEST, ("transfer-encoding", "chunked")),
        (*REQUEST, ("te", "gzip")),
        (*REQUEST, ("with space", "x")),
        (*REQUEST, ("nul", "a\0b")),
        (*REQUEST, ("line", "a\nb")),
        (*REQUEST, ("blank", " a")),
        (*REQUEST, ("blank", "a\t")),
        (*REQUEST, ("content-length", "x")),
        (*REQUEST, ("content-length", "1"), ("content-length", "2")),
    ],
)
def test_malformed_headers_reset_the_stream(fields) -> None:
    client = Client()
    client.send(client.headers(1, fields=fields))
    assert client.output() == [Frame(RST_STREAM, 0, 1, int(ErrorCode.PROTOCOL_ERROR).to_bytes(4))]
    assert client.send(client.request(3)) == [(http2.REQUEST, 3, None)]


@pytest.mark.parametrize(("length", "body"), [("3", b"four"), ("5", b"four"), ("0", b"four"), ("4", b"")])
def test_a_body_must_be_as_long_as_it_says(length, body) -> None:
    client = Client()
    fields = (*REQUEST, ("content-length", length))
    for stream_id in (1, 3):  # the second one's headers come from the cache
        client.send(client.headers(stream_id, fields=fields) + client.data(stream_id, body))
        assert client.output()[-1] == Frame(RST_STREAM, 0, stream_id, int(ErrorCode.PROTOCOL_ERROR).to_bytes(4))


def test_a_correct_content_length_is_fine() -> None:
    client = Client()
    fields = (*REQUEST, ("content-length", "4"))
    for stream_id in (1, 3):
        sent = client.headers(stream_id, fields=fields) + client.data(stream_id, b"four")
        assert client.send(sent) == [(http2.REQUEST, stream_id, None)]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (lambda client: client.data(1, b"x"), ErrorCode.STREAM_CLOSED),
        (lambda client: client.headers(1), ErrorCode.STREAM_CLOSED),
    ],
)
def test_an_ended_stream_takes_nothing_more(sent, code) -> None:
    half_closed = Client()
    half_closed.send(half_closed.request(1))
    half_closed.output()
    half_closed.send(sent(half_closed))
    assert half_closed.output() == [Frame(RST_STREAM, 0, 1, int(code).to_bytes(4))]

    closed = Client()
    closed.send(closed.request(1))
    closed.answer(1)
    closed.send(sent(closed))
    assert closed.fault() == code


def test_stream_ids_only_grow_and_a_skipped_one_is_never_used() -> None:
    client = Client()
    client.send(client.request(5))
    client.send(client.request(3))
    assert client.fault() == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/1.1\r\n", frames.PREFACE + encode_frame(PING, 0, 0, bytes(8))],
)
def test_a_wrong_beginning_ends_the_connection(data) -> None:
    client = Client(handshake=False)
    client.send(data)
    assert client.fault() == ErrorCode.PROTOCOL_ERROR


# ---- floods and bounds


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame(PING, 0, 0, bytes(8)),
        encode_settings([]),
        encode_frame(PRIORITY, 0, 1, bytes(5)),
        encode_frame(DATA, 0, 1, b""),
        encode_frame(99, 0, 0, b""),
        encode_frame(PING, ACK, 0, bytes(8)),
    ],
    ids=["ping", "settings", "priority", "empty data", "unknown", "ping ack"],
)
def test_a_flood_of_frames_that_mean_nothing_ends_the_connection(frame) -> None:
    client = Client()
    client.send(client.headers(1))
    for _ in range(200):
        client.send(frame * 100)
    assert client.fault() == ErrorCode.ENHANCE_YOUR_CALM


def test_requests_that_end_in_an_empty_frame_are_no_flood() -> None:
    """So .NET ends each of them, however many it sends in a second."""
    client = Client()
    for stream_id in range(1, 40001, 2):
        client.send(
            client.headers(stream_id) + client.data(stream_id, b"body", end=False) + client.data(stream_id, b"")
        )
        client.answer(stream_id)
        client.output()
    assert client.fault() is None


def test_pings_at_the_rate_of_real_clients_never_end_it() -> None:
    client = Client()
    for _ in range(5000):
        client.now_ms += 10
        client.send(encode_frame(PING, 0, 0, b"12345678"))
        assert client.output() == [Frame(PING, ACK, 0, b"12345678")]


def test_streams_opened_and_reset_again_and_again_end_the_connection() -> None:
    client = Client(Http2Limits(max_concurrent_streams=100))
    for stream_id in range(1, 2001, 2):
        client.send(client.headers(stream_id) + encode_rst_stream(stream_id, ErrorCode.CANCEL))
    assert client.fault() == ErrorCode.ENHANCE_YOUR_CALM


def test_faults_that_make_us_reset_count_like_resets() -> None:
    client = Client(Http2Limits(max_concurrent_streams=100))
    for stream_id in range(1, 2001, 2):
        client.send(client.headers(stream_id) + encode_window_update(stream_id, 0))
    assert client.fault() == ErrorCode.ENHANCE_YOUR_CALM


def test_an_endless_header_block_ends_the_connection() -> None:
    for piece in (b"", bytes(16000)):
        client = Client()
        client.send(encode_frame(HEADERS, 0, 1, piece))
        for _ in range(100):
            client.send(encode_frame(CONTINUATION, 0, 1, piece))
        assert client.fault() == ErrorCode.ENHANCE_YOUR_CALM


def test_headers_that_grow_when_decoded_end_the_connection() -> None:
    client = Client()
    client.send(client.headers(1, fields=(*REQUEST, ("bomb", "b" * 3900))))
    client.send(client.headers(3, fields=(*REQUEST, *[("bomb", "b" * 3900)] * 20)))
    assert client.fault() == ErrorCode.ENHANCE_YOUR_CALM


def test_more_streams_than_announced_are_refused() -> None:
    client = Client(Http2Limits(max_concurrent_streams=2))
    client.send(client.headers(1) + client.headers(3) + client.headers(5))
    assert client.output() == [Frame(RST_STREAM, 0, 5, int(ErrorCode.REFUSED_STREAM).to_bytes(4))]
    client.send(client.data(1, b"x"))
    client.answer(1)
    assert client.send(client.request(7)) == [(http2.REQUEST, 7, None)]


def test_a_body_over_its_bound_is_dropped_as_it_comes() -> None:
    client = Client(max_body_bytes=1000)
    client.send(client.headers(1))
    assert client.send(client.data(1, bytes(900), end=False)) == []
    assert client.send(client.data(1, bytes(900), end=False)) == [(http2.TOO_LARGE, 1, None)]
    assert client.send(client.data(1, bytes(900), end=False)) == []
    assert client.server.streams[1].chunks == []
    client.answer(1)
    assert client.output()[-1].kind == RST_STREAM


def announced(client: Client, stream_id: int, length: int) -> bytes:
    return client.headers(stream_id, fields=(*REQUEST, ("content-length", str(length))))


def test_a_body_that_waits_for_room_gets_no_window_until_there_is_some() -> None:
    budget = Budget(1_000_000)  # 800,000 for long ones
    client = Client(Http2Limits(stream_window_bytes=100_000), budget)
    for stream_id in (1, 3):
        client.send(announced(client, stream_id, 500_000) + client.data(stream_id, bytes(16_000), end=False))
    client.output()
    for stream_id in (1, 3):
        for _ in range(4):
            client.send(client.data(stream_id, bytes(16_000), end=False))
    assert [frame.stream_id for frame in client.output()] == [1], "the second gets nothing more"
    client.send(encode_rst_stream(1, ErrorCode.CANCEL))
    [stream] = client.unfinished.came
    client.server.go_on(stream)
    assert [(frame.kind, frame.stream_id) for frame in client.output()] == [(frames.WINDOW_UPDATE, 3)]
    for _ in range(26):
        client.send(client.data(3, bytes(16_000), end=False))
    assert client.send(client.data(3, bytes(4_000))) == [(http2.REQUEST, 3, None)]
    assert budget.held_bytes == 0


def test_small_bodies_that_never_end_leave_when_there_are_too_many() -> None:
    budget = Budget(100_000)  # 20,000 for small ones
    client = Client(budget=budget)
    for stream_id in range(1, 100, 2):
        client.send(announced(client, stream_id, 1000) + client.data(stream_id, bytes(900), end=False))
    assert client.unfinished.refused == list(range(1, 61, 2)), "those that began first"
    assert budget.held_bytes == 20_000


def test_a_body_that_says_it_will_be_too_long_is_not_collected() -> None:
    client = Client(max_body_bytes=1000)
    client.send(announced(client, 1, 5000))
    assert client.send(client.data(1, bytes(10), end=False)) == [(http2.TOO_LARGE, 1, None)]


def test_a_frame_and_a_header_block_that_do_not_end_are_late() -> None:
    for begun in (lambda client: client.headers(1)[:20], lambda client: client.headers(1)[:4]):
        client = Client()
        client.send(begun(client))
        for byte in (0, 1):
            client.now_ms += 10_000
            client.send(bytes((byte,)) if byte else b"")
        assert client.server.is_late(client.now_ms - 15_000), "what drips is not newer for it"
        assert not client.server.is_late(client.now_ms - 20_000)
    client = Client()
    client.send(frames.encode_frame(HEADERS, 0, 1, client.block()))
    client.now_ms += 20_000
    assert client.server.is_late(client.now_ms - 15_000)
    client.send(frames.encode_frame(frames.CONTINUATION, frames.END_HEADERS, 1, b""))
    assert not client.server.is_late(client.now_ms - 15_000)


def test_requests_that_do_not_end_are_late_and_answered_ones_are_not() -> None:
    client = Client()
    client.send(client.headers(1) + client.request(3) + client.headers(5))
    assert client.server.late_requests(0, -15_000) == []
    client.send(client.headers(7))
    assert client.server.late_requests(10_000, -5_000) == []
    assert [each.stream_id for each in client.server.late_requests(20_000, 5_000)] == [1, 5]
    assert [each.stream_id for each in client.server.late_requests(25_000, 10_000)] == [1, 5, 7]


def test_answers_that_nobody_makes_room_for_end_the_connection() -> None:
    client = Client(Http2Limits(max_blocked_bytes=100_000))
    client.send(encode_settings([(Setting.INITIAL_WINDOW_SIZE, 0)]))
    for stream_id in (1, 3, 5):
        client.send(client.request(stream_id))
        client.answer(stream_id, bytes(40_000))
    assert client.fault() == ErrorCode.ENHANCE_YOUR_CALM


@given(st.lists(st.binary(max_size=60), max_size=20))
@settings(max_examples=300)
def test_no_bytes_raise_anything(pieces) -> None:
    for opening in (b"", frames.PREFACE, frames.PREFACE + encode_settings([])):
        client = Client(handshake=False)
        client.send(opening)
        for piece in pieces:
            client.send(piece)


_FRAME = st.builds(
    encode_frame,
    st.integers(0, 11),
    st.sampled_from([0, 1, 4, 5, 8, 9, 13, 0x20, 0x2D]),
    st.integers(0, 9),
    st.sampled_from(
        [b"", bytes(4), bytes(5), bytes(6), bytes(8), b"\x82\x84\x86\x41\x01a", b"\0\0\0\1", b"\x02ab\0\0"]
    ),
)


@given(st.lists(_FRAME, max_size=30))
@settings(max_examples=300)
def test_no_frames_break_an_invariant(sequence) -> None:
    budget = Budget(1 << 20)
    client = Client(budget=budget)
    for frame in sequence:
        for event, stream_id, _ in client.send(frame):
            if event == http2.REQUEST and stream_id % 4 == 1:
                client.answer(stream_id)
        assert all(stream.state != 3 for stream in client.server.streams.values())
    client.server.close()
    assert budget.held_bytes == 0
