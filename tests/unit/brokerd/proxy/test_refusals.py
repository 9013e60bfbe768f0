"""A gRPC call that is refused is freed with its answer, as requests of the remoting protocol are."""

from __future__ import annotations

import pytest

from brokerd.pop.requests import PopOutcome, PopStatus
from brokerd.proxy.protobuf import definition, service
from remoting import codes
from remoting.errors import RequestError
from tests.support.garbage import collected
from tests.unit.brokerd.proxy.calls import FakeCall
from tests.unit.brokerd.proxy.conftest import Bench
from tests.unit.brokerd.proxy.test_fuzz import METHODS
from tests.unit.brokerd.proxy.test_receive_message import receiving

BAD_NAMES = ("", "²", "Unknown", "rmq_sys_x")


def bad_requests(method: str) -> list[bytes]:
    request_class = service.TelemetryCommand if method == "Telemetry" else getattr(service, method + "Request")
    fields = set(request_class.DESCRIPTOR.fields_by_name)
    found = [b"", b"\xff"]
    for name in BAD_NAMES:
        resource = definition.Resource(name=name)
        known = {"topic": resource, "group": resource, "message_queue": definition.MessageQueue(topic=resource)}
        if method == "SendMessage":
            known["messages"] = [definition.Message(topic=resource, body=b"x")]
        found.append(request_class(**{name: known[name] for name in fields & set(known)}).SerializeToString())
    return found


@pytest.mark.parametrize("method", METHODS)
def test_refused_calls_leave_no_cycles(bench: Bench, method: str) -> None:
    for request in bad_requests(method):  # what is made once is made now
        bench.methods.handlers[method]([FakeCall(request)])
    with collected() as garbage:
        for request in bad_requests(method):
            for metadata in ({}, {"x-mq-client-id": "c"}):
                call = FakeCall(request, metadata=metadata)
                bench.methods.handlers[method]([call])
                call.on_cancel = None
        del call
    assert not garbage, {type(each) for each in garbage}


def test_a_refused_pop_leaves_no_cycles(bench: Bench) -> None:
    request = receiving()
    with collected() as garbage:
        bench.broker.pop_outcome = PopOutcome(PopStatus.REFUSED, error=RequestError(codes.NO_PERMISSION, "no"))
        call = bench.begin("ReceiveMessage", request)
        assert call.finished
        bench.broker.pop_outcome = None
        del call
    assert not garbage, {type(each) for each in garbage}
