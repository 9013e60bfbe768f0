"""Whatever a client sends as a request, each call is answered with a status code, and never with the transport's UNKNOWN."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerd.proxy.protobuf import service
from tests.support.examples import examples
from tests.unit.brokerd.proxy.calls import METADATA, FakeCall
from tests.unit.brokerd.proxy.conftest import Bench

METHODS = sorted(method.name for method in service.DESCRIPTOR.services_by_name["MessagingService"].methods)
TEXT = st.sampled_from(
    ["", "Normal", "Fifo", "Mixed", "Unknown", "G", "a||b", " ", "\x01", "ä" * 70, "0 1 2 3 4 b 6 7 8", "x" * 300]
)
NUMBER = st.sampled_from([0, 1, -1, 2, 7, 1 << 30, -(1 << 31), (1 << 31) - 1])
LONG = NUMBER | st.sampled_from([1 << 62, -(1 << 63), (1 << 63) - 1, 253402300799, 253402300800])


def values(field, depth):
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            return st.dictionaries(TEXT, TEXT, max_size=3)
        return messages(field.message_type, depth + 1)
    if field.enum_type is not None:
        return st.integers(-1, 9)
    return {
        field.TYPE_STRING: TEXT,
        field.TYPE_BYTES: st.binary(max_size=20),
        field.TYPE_BOOL: st.booleans(),
        field.TYPE_FLOAT: st.floats(allow_nan=False, width=32),
        field.TYPE_INT64: LONG,
    }.get(field.type, NUMBER)


def messages(descriptor, depth=0):
    """Dictionaries of field values that protobuf's constructor takes."""
    optional = {}
    for field in descriptor.fields:
        if depth > 4 and field.message_type is not None:
            continue
        value = values(field, depth)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        optional[field.name] = st.lists(value, max_size=3) if field.is_repeated and not is_map else value
    return st.fixed_dictionaries({}, optional=optional)


def build(request_class, fields):
    """The message; of the fields of one oneof the last given wins."""
    message = request_class()
    for name, value in fields.items():
        message.MergeFrom(request_class(**{name: value}))
    return message


@pytest.mark.parametrize("method", METHODS)
@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data())
async def test_random_requests_get_a_status(method, data) -> None:
    bench = Bench()
    request_class = service.TelemetryCommand if method == "Telemetry" else getattr(service, method + "Request")
    response_class = service.TelemetryCommand if method == "Telemetry" else getattr(service, method + "Response")
    raw = data.draw(st.none() | st.binary(max_size=60))
    request = raw if raw is not None else build(request_class, data.draw(messages(request_class.DESCRIPTOR)))
    call = FakeCall(request, metadata=data.draw(st.sampled_from([METADATA, {}])))
    bench.methods.handlers[method]([call])
    bench.methods.receive.stop()
    assert call.failure is None
    if method == "Telemetry":
        for answer in call.answers:
            assert response_class.FromString(answer).status.code
    else:
        assert call.finished
        first = response_class.FromString(call.answers[0])
        assert first.status.code
        if method == "SendMessage":
            assert all(entry.status.code for entry in first.entries)
    for parked in list(bench.broker.parked):
        parked.cancel()
