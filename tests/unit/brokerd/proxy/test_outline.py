"""Large requests to send are refused for the number of their parts before anything is made of them."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.proxy.methods.table import MAX_REQUEST_BYTES, max_request_bytes
from brokerd.proxy.outline import MAX_BESIDE_BODIES_BYTES, MAX_PARTS, SMALL_BYTES, check_outline
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code, Refusal, encode_length
from tests.unit.brokerd.proxy.conftest import Bench

MIB = 1024 * 1024


def field(tag: int, content: bytes) -> bytes:
    return bytes((tag,)) + encode_length(len(content)) + content


BODY = field(0x22, bytes(SMALL_BYTES))


def request(count: int, body_bytes: int) -> bytes:
    message = definition.Message(topic=definition.Resource(name="Normal"), body=bytes(body_bytes))
    message.system_properties.message_id = "01"
    message.user_properties["color"] = "blue"
    return service.SendMessageRequest(messages=[message] * count).SerializeToString()


@pytest.mark.parametrize(
    ("count", "body_bytes"),
    [(1, 4 * MIB), (32, 4 * MIB), (1024, 4096), (1024, 1), (0, 0)],
    ids=["one", "the largest", "the most", "the most small ones", "none"],
)
def test_what_clients_send_passes(count: int, body_bytes: int) -> None:
    encoded = request(count, body_bytes)  # not where every worker that collects would make it, and keep it
    check_outline(encoded)


@pytest.mark.parametrize(
    ("encoded", "code"),
    [
        (b"\x0a\x00" * (8 * MIB), Code.BAD_REQUEST),
        (field(0x0A, b"\x12\x00" * (8 * MIB)), Code.BAD_REQUEST),
        (field(0x0A, field(0x1A, b"\x12\x00" * MIB)), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (field(0x0A, BODY + b"\x0b" + b"\x0a\x00" * MIB + b"\x0c"), Code.BAD_REQUEST),
        (field(0x0A, BODY) + b"\x0b", Code.BAD_REQUEST),
        (field(0x0A, BODY) + b"\x0a\x7f", Code.BAD_REQUEST),
        (field(0x0A, BODY) + b"\x0a", Code.BAD_REQUEST),
        (b"\xff" * (SMALL_BYTES + 1), Code.BAD_REQUEST),
        (field(0x0A, BODY + b"\x0d\x00"), Code.BAD_REQUEST),
        (field(0x0A, BODY) + b"\x08" + b"\xff" * 9 + b"\x7f" + b"\x10\x01" * MAX_PARTS, Code.BAD_REQUEST),
    ],
)
def test_too_many_parts_are_refused(encoded: bytes, code: Code) -> None:
    with pytest.raises(Refusal) as refused:
        check_outline(encoded)
    assert refused.value.code == code


def test_small_requests_are_not_looked_at() -> None:
    check_outline(b"\xff" * SMALL_BYTES)


@given(st.binary(max_size=40), st.lists(st.sampled_from((b"\x0a\x02\x22\x00", b"\x22\x01x", b"\x08\x01")), max_size=3))
def test_any_bytes_pass_or_are_refused(noise: bytes, parts: list[bytes]) -> None:
    with contextlib.suppress(Refusal):
        check_outline(field(0x0A, BODY) + b"".join(parts) + noise)


@pytest.mark.parametrize("part", [b"\x0a\x00", field(0x0A, field(0x1A, b"\x12\x00" * (MAX_BESIDE_BODIES_BYTES // 2)))])
def test_a_request_of_sixteen_megabytes_of_parts_costs_little(bench: Bench, part: bytes) -> None:
    encoded = part * (16 * MIB // len(part))
    tracemalloc.start()
    try:
        answer = bench.call("SendMessage", encoded, service.SendMessageResponse)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    assert answer.status.code in (Code.BAD_REQUEST, Code.MESSAGE_PROPERTIES_TOO_LARGE)
    assert not bench.broker.sends


def test_only_messages_and_settings_may_be_long() -> None:
    assert max_request_bytes("SendMessage") == max_request_bytes("Telemetry") == 0
    assert max_request_bytes("AckMessage") == max_request_bytes("QueryRoute") == MAX_REQUEST_BYTES
