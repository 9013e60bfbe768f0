"""The internal request that carries a gRPC call from a replica to its master."""

from __future__ import annotations

import pytest

from brokerd.proxy.proxy_call import ProxyCall, decode_messages, encode_messages, take_part
from remoting.errors import ProtocolError


def test_the_description_of_a_call_survives_its_ext_fields() -> None:
    call = ProxyCall("SendMessage", 7, 3000, "127.0.0.1:5", 9, {"x-mq-client-id": "c", "authorization": "a", "te": "x"})
    assert ProxyCall.from_ext(call.to_ext()) == ProxyCall(
        "SendMessage", 7, 3000, "127.0.0.1:5", 9, {"x-mq-client-id": "c", "authorization": "a"}
    )


def test_messages_of_an_answer_survive_and_broken_ones_are_refused() -> None:
    messages = [b"", b"one", bytes(70_000)]
    encoded = encode_messages(messages)
    assert decode_messages(encoded) == messages
    for broken in (encoded[:-1], encoded + b"\0\0"):
        with pytest.raises(ProtocolError):
            decode_messages(broken)


def test_parts_have_at_least_one_message_and_otherwise_stay_small() -> None:
    large = bytes(9 << 20)
    assert take_part([large, b"x"]) == 1
    assert take_part([b"x", large]) == 1
    assert take_part([b"x", b"y"]) == 2
