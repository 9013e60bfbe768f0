"""What is remembered of headers says the same as reading them anew: of any fields, in any order of calls."""

from __future__ import annotations

from random import Random

import hpack
import pytest

from brokerd.proxy.calls import Kind, Method
from brokerd.proxy.heads import CallHeads, GrpcHead
from brokerd.proxy.http2.blocks import PlainBlockReader
from brokerd.proxy.http2.frames import ConnectionFault
from brokerd.proxy.http2.headers import HeaderReader, MalformedHeaders
from brokerd.proxy.http2.limits import Http2Limits
from brokerd.proxy.http2.native_hpack import NewBlockReader, native_block_readers
from tests.support.native_library import native_library

CALL = [
    *(
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/s/Unary"),
        (b":authority", b"h:1"),
        (b"te", b"trailers"),
    ),
    *((b"content-type", b"application/grpc"), (b"user-agent", b"grpc-java"), (b"x-mq-language", b"JAVA")),
]
OWN = [b"x-mq-request-id", b"x-mq-date-time", b"authorization", b"x-mq-client-id", b"grpc-timeout"]
OWN_VALUES = [b"", b"a", b"b", b" a", b"a ", b"a\0", b"\xff", b"25S", b"3000m", b"1x", b"99999999H", b"0n", b"v" * 100]
METHODS = {
    "/s/Unary": Method("Unary", Kind.UNARY, lambda calls: None, 1000),
    "/s/Both": Method("Both", Kind.BIDIRECTIONAL, lambda calls: None),
}


def new_reader(kind: str) -> NewBlockReader:
    return native_block_readers(native_library()) if kind == "native" else PlainBlockReader


def fields_of_a_call(rng: Random) -> list[tuple[bytes, bytes]]:
    fields = list(CALL)
    if rng.random() < 0.3:
        fields[2] = (b":path", rng.choice((b"/s/Both", b"/s/None", b"")))
    if rng.random() < 0.1:
        fields[5] = (b"content-type", b"text/plain")
    if rng.random() < 0.1:
        fields.append((b"content-length", rng.choice((b"5", b"6", b"x"))))
    if rng.random() < 0.1:
        fields.append((b"grpc-encoding", rng.choice((b"gzip", b"identity", b"br"))))
    if rng.random() < 0.1:
        del fields[rng.randrange(len(fields))]
    for name in rng.choices(OWN, k=rng.randrange(6)):
        place = len(fields) if rng.random() < 0.9 else rng.randrange(len(fields))
        fields.insert(place, (name, rng.choice(OWN_VALUES)))
    return fields


def said_of(reader: HeaderReader[GrpcHead], block: bytes) -> object:
    try:
        head = reader.read_request(block)
    except (MalformedHeaders, ConnectionFault) as error:
        return type(error), str(error)
    return {name: getattr(head, name) for cls in type(head).__mro__[:-1] for name in cls.__slots__}


@pytest.mark.parametrize("kind", ["python", "native"])
@pytest.mark.parametrize("seed", range(10))
def test_remembered_heads_are_those_of_headers_that_are_read_anew(kind, seed) -> None:
    rng = Random(seed)
    limits = Http2Limits()
    remembered = CallHeads(METHODS, 5000, new_reader(kind))
    for _ in range(20):
        encoder, reader = hpack.Encoder(), remembered.reader(limits)
        anew = PlainBlockReader(limits.max_header_list_bytes)
        for _ in range(rng.randrange(1, 30)):
            block = encoder.encode(fields_of_a_call(rng), huffman=rng.random() < 0.5)
            found = anew.read(block)
            fresh = HeaderReader(CallHeads(METHODS, 5000)._heads, _Only(found))
            assert said_of(reader, block) == said_of(fresh, block)


def test_of_another_client_nothing_is_told() -> None:
    reader = CallHeads(METHODS, 5000).reader(Http2Limits())
    encoder = hpack.Encoder()
    own = [
        (b"authorization", b"secret"),
        (b"x-mq-date-time", b"d"),
        (b"x-mq-client-id", b"first"),
        (b"grpc-timeout", b"1S"),
    ]
    first = reader.read_request(encoder.encode([*CALL, *own]))
    assert first.metadata["authorization"] == "secret"
    second = reader.read_request(encoder.encode([*CALL, (b"x-mq-client-id", b"second"), (b"grpc-timeout", b"2S")]))
    assert "authorization" not in second.metadata
    own = [
        (b"authorization", b"other"),
        (b"x-mq-date-time", b"e"),
        (b"x-mq-client-id", b"third"),
        (b"grpc-timeout", b"3S"),
    ]
    third = reader.read_request(encoder.encode([*CALL, *own]))
    assert [each.metadata["x-mq-client-id"] for each in (first, second, third)] == ["first", "second", "third"]
    assert [each.timeout_ms for each in (first, second, third)] == [1000, 2000, 3000]
    assert (third.metadata["authorization"], third.metadata["x-mq-date-time"]) == ("other", "e")


class _Only:
    """A reader of one block, which was read before."""

    changes = 0

    def __init__(self, found: object) -> None:
        self._found = found

    def read(self, block: bytes) -> object:
        return self._found
