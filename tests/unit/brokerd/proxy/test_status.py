"""The hand-made encodings against protobuf's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.proxy.ack_results import encode_results, result_status
from brokerd.proxy.methods.routes import endpoints
from brokerd.proxy.methods.send_message import encode_response
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code, encode_length, refusal_of, status_field
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import FlowControl


def test_the_codes_are_the_protocols() -> None:
    names = dict(definition.Code.items())
    assert {code.name: int(code) for code in Code} == {code.name: names[code.name] for code in Code}


@given(st.sampled_from(list(Code)), st.text(max_size=200))
def test_a_status_field_is_what_protobuf_makes(code, text) -> None:
    response = service.HeartbeatResponse(status=definition.Status(code=int(code), message=text))
    assert status_field(code, text) == response.SerializeToString()


def test_who_asks_for_too_much_is_told_so_by_either_protocol() -> None:
    refusal = FlowControl("full")
    assert (refusal.code, refusal_of(refusal).code) == (codes.FLOW_CONTROL, Code.TOO_MANY_REQUESTS)


def test_long_texts_are_cut_at_a_character() -> None:
    parsed = service.HeartbeatResponse.FromString(status_field(Code.BAD_REQUEST, "ä" * 5000))
    assert parsed.status.message == "ä" * 2048


@given(st.lists(st.tuples(st.text(max_size=200), st.integers(-1, 1 << 62)), min_size=1, max_size=4))
def test_a_send_response_is_what_protobuf_makes(sent) -> None:
    expected = service.SendMessageResponse()
    expected.status.code, expected.status.message = Code.OK, "OK"
    for message_id, offset in sent:
        entry = expected.entries.add(message_id=message_id, offset=max(offset, 0))
        entry.status.code, entry.status.message = Code.OK, "OK"
    outcomes = [SendOutcome(PutStatus.PUT_OK, 0, offset, 0) for _, offset in sent]
    encoded = encode_response([message_id for message_id, _ in sent], outcomes)
    assert service.SendMessageResponse.FromString(encoded) == expected


def test_different_outcomes_are_multiple_results() -> None:
    outcomes = [SendOutcome(PutStatus.PUT_OK), SendOutcome(PutStatus.FLUSH_DISK_TIMEOUT)]
    response = service.SendMessageResponse.FromString(encode_response(["a", "b"], outcomes))
    assert response.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in response.entries] == [Code.OK, Code.MASTER_PERSISTENCE_TIMEOUT]


@given(st.integers(0, 1 << 63))
def test_lengths(value) -> None:
    encoded = encode_length(value)
    assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded)) == value
    assert all(byte & 0x80 for byte in encoded[:-1])
    assert not encoded[-1] & 0x80


@pytest.mark.parametrize(
    ("addresses", "scheme", "hosts"),
    [
        (["127.0.0.1:1", "10.0.0.2:2"], "IPv4", ["127.0.0.1", "10.0.0.2"]),
        (["[::1]:1", "[fe80::2]:2"], "IPv6", ["::1", "fe80::2"]),
        (["broker.example:1", "10.0.0.2:2"], "DOMAIN_NAME", ["broker.example"]),
        (["127.0.0.1:1", "[::1]:2"], "DOMAIN_NAME", ["127.0.0.1"]),
    ],
)
def test_endpoints(addresses, scheme, hosts) -> None:
    answer = endpoints(addresses)
    assert answer.scheme == definition.AddressScheme.Value(scheme)
    assert [address.host for address in answer.addresses] == hosts


@given(
    st.lists(
        st.tuples(st.text(max_size=200), st.text(max_size=300), st.sampled_from(list(Code)), st.text(max_size=200))
    )
)
def test_results_of_acks_are_what_protobuf_makes(acked) -> None:
    request, expected = service.AckMessageRequest(), service.AckMessageResponse()
    for message_id, handle, code, text in acked:
        request.entries.add(message_id=message_id, receipt_handle=handle)
        result = expected.entries.add(message_id=message_id, receipt_handle=handle)
        result.status.code, result.status.message = code, text
    encoded = encode_results(request.entries, [result_status(code, text) for _, _, code, text in acked])
    assert service.AckMessageResponse.FromString(encoded) == expected
