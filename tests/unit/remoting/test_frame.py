"""Frames: both header encodings, any cutting of the stream, and what must be refused."""

from __future__ import annotations

import contextlib
import struct

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting import codes, frame
from remoting.errors import ProtocolError
from remoting.frame import Command
from remoting.record.layout import MAX_PROPERTIES_BYTES
from tests.support.client_bytes import encode_compact

ext_maps = st.dictionaries(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=40), max_size=6)


def decode(data: bytes) -> list[Command]:
    commands: list[Command] = []
    assert frame.decode_frames(data, commands) == len(data)
    return commands


@given(st.integers(0, 300000), st.integers(0, 2**31 - 1), ext_maps, st.binary(max_size=200), st.booleans())
def test_a_request_survives_the_round_trip(
    code: int, opaque: int, ext: dict[str, str], body: bytes, oneway: bool
) -> None:
    [command] = decode(frame.encode_request(code, opaque, ext, body, oneway=oneway))
    assert (command.code, command.opaque, command.ext, bytes(command.body)) == (code, opaque, ext, body)
    assert command.is_oneway == oneway
    assert not command.is_response


@given(ext_maps, st.binary(max_size=100), st.text(max_size=30))
def test_the_compact_header_survives_the_round_trip(ext: dict[str, str], body: bytes, remark: str) -> None:
    command = Command(310, 7, ext, body, 0, remark or None, 317, "GO")
    [decoded] = decode(encode_compact(command))
    assert (decoded.code, decoded.opaque, decoded.ext, bytes(decoded.body)) == (310, 7, ext, body)
    assert (decoded.remark, decoded.version, decoded.language) == (remark or None, 317, "GO")


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.data())
def test_frames_come_out_however_the_stream_is_cut(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame.encode_request(11, n, {"n": str(n)}, body) for n, body in enumerate(bodies))
    commands: list[tuple[int, bytes]] = []
    rest = b""
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        rest, stream = rest + stream[:cut], stream[cut:]
        found: list[Command] = []
        consumed = frame.decode_frames(rest, found)
        commands += [(command.opaque, bytes(command.body)) for command in found]
        rest = rest[consumed:]
        assert frame.bytes_wanted(rest) > len(rest)
    assert commands == list(enumerate(bodies))


def test_a_header_may_be_long_but_not_endless() -> None:
    longest = frame.MAX_HEADER_BYTES - 200
    [command] = decode(frame.encode_request(310, 1, {"i": "x" * longest}))
    assert len(command.ext["i"]) == longest
    with pytest.raises(ProtocolError, match=str(frame.MAX_HEADER_BYTES)):
        decode(frame.encode_request(310, 1, {"i": "x" * frame.MAX_HEADER_BYTES}))


def test_the_longest_properties_fit_into_a_header() -> None:
    properties = "\x01" * MAX_PROPERTIES_BYTES  # six bytes each, escaped
    [command] = decode(frame.encode_request(310, 1, {"i": properties}))
    assert command.ext["i"] == properties


def test_ext_values_of_any_scalar_type_become_strings() -> None:
    header = orjson.dumps(
        {"code": 10, "opaque": 1, "flag": 0, "extFields": {"queueId": 3, "batch": False, "f": 1e3, "x": None, "s": "t"}}
    )
    [command] = decode(struct.pack(">iI", 4 + len(header), len(header)) + header)
    assert command.ext == {"queueId": "3", "batch": "false", "f": "1000", "s": "t"}


def test_ext_fields_may_be_missing_or_null() -> None:
    for fields in ({"code": 1, "opaque": 1, "flag": 0}, {"code": 1, "opaque": 1, "flag": 0, "extFields": None}):
        header = orjson.dumps(fields)
        [command] = decode(struct.pack(">iI", 4 + len(header), len(header)) + header)
        assert command.ext == {}


def test_a_success_always_has_ext_fields_and_only_strings() -> None:
    answer = frame.encode_response(codes.SUCCESS, 5)
    header = orjson.loads(answer[8:])
    assert header["extFields"] == {}
    assert header["flag"] == codes.FLAG_RESPONSE
    assert header["version"] >= 232


def framed(header: bytes, word: int | None = None, total: int | None = None) -> bytes:
    word = len(header) if word is None else word
    return struct.pack(">iI", 4 + len(header) if total is None else total, word) + header


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">iI", -1, 0), id="negative length"),
        pytest.param(struct.pack(">iI", 0, 0), id="no room for the header length"),
        pytest.param(struct.pack(">iI", 2**31 - 1, 10), id="huge length"),
        pytest.param(struct.pack(">iI", 20, 4000), id="header longer than the frame"),
        pytest.param(framed(b"not json"), id="no JSON"),
        pytest.param(framed(b"[1,2]"), id="no object"),
        pytest.param(framed(b'{"code":1}'), id="no opaque"),
        pytest.param(framed(b'{"code":"1","opaque":1,"flag":0}'), id="code of another type"),
        pytest.param(framed(b'{"code":1,"opaque":1,"flag":0,"extFields":{"a":[]}}'), id="a list in ext"),
        pytest.param(framed(b"{}", word=2 | 7 << 24), id="unknown encoding"),
        pytest.param(framed(b"\0" * 10, word=10 | 1 << 24), id="short compact header"),
        pytest.param(framed(b"\0" * 17 + b"\x7f\xff\xff\xff" + b"\0" * 8, word=29 | 1 << 24), id="huge remark"),
    ],
)
def test_what_no_correct_peer_sends_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        frame.decode_frames(data, [])


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        frame.decode_frames(data, [])


@given(st.binary(max_size=120), st.sampled_from([0, 1]))
def test_no_header_bytes_raise_anything_else(header: bytes, encoding: int) -> None:
    with contextlib.suppress(ProtocolError):
        frame.decode_frames(framed(header, word=len(header) | encoding << 24), [])
