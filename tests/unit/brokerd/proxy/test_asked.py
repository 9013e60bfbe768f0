"""What is remembered of requests is what each of them says, whatever its last bytes look like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.proxy.methods import asked
from brokerd.proxy.methods.asked import asked_of
from brokerd.proxy.methods.receive_message import _delivery_timestamp
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import Refusal
from tests.unit.brokerd.proxy.test_receive_message import receiving

UUID = "7bd2c9f0-9a3e-4f0e-8a52-0a2d1c3b4e5f"


def said_by(read, message: bytes) -> object:
    try:
        return read(message)
    except Refusal as refusal:
        return refusal.code, refusal.text


@pytest.mark.parametrize(
    "message",
    [
        receiving().SerializeToString(),
        receiving(attempt_id=UUID).SerializeToString(),
        receiving(attempt_id=UUID, auto_renew=True).SerializeToString() + b"\x42\x01a",
        receiving(attempt_id="B$" + UUID[:34] + "é").SerializeToString(),
        receiving(attempt_id="x" * 200).SerializeToString(),
        receiving(topic="a" * 20 + "B_" + "c" * 36).SerializeToString(),
        receiving().SerializeToString() + b"\x42\x24" + b"\xff" * 36,
        receiving().SerializeToString() + b"\x42\x24" + UUID.encode()[:35],
        b"\x0a\x28\x12\x26" + b"\x42\x24" + b"g" * 36,
        b"\x42\x24" + UUID.encode(),
        b"\xff",
        b"",
    ],
)
def test_of_any_message_is_remembered_what_it_says(message) -> None:
    for _ in range(2):
        assert said_by(asked_of, message) == said_by(asked._take_apart, message)


@given(st.binary(max_size=30), st.binary(max_size=40))
def test_no_bytes_before_or_behind_an_attempt_id_are_taken_for_others(before, behind) -> None:
    for message in (
        before + receiving(attempt_id=UUID).SerializeToString() + behind,
        receiving().SerializeToString() + before + b"\x42\x24" + UUID.encode() + behind,
        receiving().SerializeToString() + before + b"\x42\x24" + behind,
    ):
        assert said_by(asked_of, message) == said_by(asked._take_apart, message)


def test_one_attempt_is_not_another() -> None:
    first, second = (asked_of(receiving(attempt_id=each).SerializeToString()) for each in (UUID, UUID[::-1]))
    assert (first.attempt_id, second.attempt_id) == (UUID, UUID[::-1])
    assert first.label is second.label


@pytest.mark.parametrize("now_ms", [0, 999, 1000, 1_763_600_000_000, 1_763_600_000_123])
def test_the_delivery_timestamp_is_what_protobuf_makes_of_it(now_ms) -> None:
    expected = service.ReceiveMessageResponse()
    expected.delivery_timestamp.FromMilliseconds(now_ms)
    found = service.ReceiveMessageResponse.FromString(_delivery_timestamp(now_ms))
    assert found == expected
    assert (now_ms < 1000) or _delivery_timestamp(now_ms) == expected.SerializeToString()
