"""gRPC calls in front of the methods: who is refused, with which status, and what each method needs."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from brokerd.proxy.access import DEMANDS, protect
from brokerd.proxy.calls import Call, Peer
from brokerd.proxy.methods.table import build_methods
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.sessions import MAX_TOPICS_PER_SESSION
from brokerd.proxy.status import Code
from remoting.access.decision import Demand
from remoting.access.model import ALL, CUSTOM, GROUP, PUB, SUB, TOPIC, AccessState, Entry, User, resource
from remoting.access.sealing import seal
from remoting.guarding.guard import AccessSettings, Guard
from tests.support.turns import Turns
from tests.unit.brokerd.proxy.fakes import FakeBroker

SECRET = b"0123456789abcdef"
T = definition.Resource(name="T")
IN_NAMESPACE = definition.Resource(resource_namespace="ns", name="T")
G = definition.Resource(name="g")


def metadata(name: str = "u", password: str = "password") -> dict[str, str]:
    date = "20260101T120000Z"
    digest = hmac.digest(password.encode(), date.encode(), "sha1").hex().upper()
    header = f"MQv2-HMAC-SHA1 Credential={name}//RocketMQ, SignedHeaders=x-mq-date-time, Signature={digest}"
    return {"authorization": header, "x-mq-date-time": date, "x-mq-client-id": "c"}


class FakeCall:
    def __init__(self, request: Any, fields: Mapping[str, str], host: str = "10.0.0.1") -> None:
        self.message = request if isinstance(request, bytes) else request.SerializeToString()
        self.metadata = fields
        self.peer = Peer(f"{host}:5000", bytes(8), object())
        self.answers: list[bytes] = []
        self.finished = False

    def answer(self, message: bytes) -> None:
        self.answers.append(message)
        self.finished = True

    def send(self, messages: Sequence[bytes]) -> None:
        self.answers += messages

    def finish_with(self, messages: Sequence[bytes]) -> None:
        self.send(messages)
        self.finish()

    def finish(self) -> None:
        self.finished = True


def make_guard(*, on: bool = True) -> Guard:
    guard = Guard(AccessSettings(authentication=on, authorization=on), "c", (SECRET,), lambda: 0)
    users = {"u": User("u", seal(SECRET, "u", "password", bytes(12)))}
    entries = (
        Entry(resource("Topic:T"), (ALL,), "Allow", ("10.0.0.0/8",)),
        Entry(resource("Group:g"), (SUB,), "Allow"),
    )
    guard.update(AccessState(1, users, {"u": {CUSTOM: entries}}))
    return guard


@pytest.fixture(scope="module")
def methods() -> Any:
    return build_methods(FakeBroker().services(), scheduler=Turns(), monotonic_ms=lambda: 0, wall_ms=lambda: 0)


def called(methods: Any, name: str, *calls: FakeCall) -> list[Call]:
    """The calls that reach the method."""
    reached: list[Call] = []
    handlers = protect(make_guard(), {name: reached.extend}, methods.refusals)
    handlers[name](calls)  # type: ignore[arg-type]
    return reached


def test_every_method_says_what_it_needs(methods: Any) -> None:
    assert set(DEMANDS) == set(methods.handlers)


def test_off_the_handlers_are_the_very_same(methods: Any) -> None:
    assert protect(make_guard(on=False), methods.handlers, methods.refusals) is methods.handlers


def test_of_calls_that_came_together_each_is_judged_alone(methods: Any) -> None:
    request = service.SendMessageRequest(messages=[definition.Message(topic=T)])
    good, unsigned, wrong = (
        FakeCall(request, metadata()),
        FakeCall(request, {}),
        FakeCall(request, metadata(password="x")),
    )
    other = FakeCall(service.SendMessageRequest(messages=[definition.Message(topic=G)]), metadata())
    far = FakeCall(request, metadata(), host="192.168.0.1")
    assert called(methods, "SendMessage", good, unsigned, wrong, other, far) == [good]
    for call, reason in ((unsigned, "signed"), (wrong, "do not fit"), (other, "may not Pub"), (far, "192.168.0.1")):
        status = service.SendMessageResponse.FromString(call.answers[0]).status
        assert status.code == Code.UNAUTHORIZED
        assert reason in status.message


def test_streams_are_refused_in_their_own_way(methods: Any) -> None:
    call = FakeCall(service.ReceiveMessageRequest(group=G, message_queue=definition.MessageQueue(topic=G)), metadata())
    assert called(methods, "ReceiveMessage", call) == []
    assert service.ReceiveMessageResponse.FromString(call.answers[0]).status.code == Code.UNAUTHORIZED
    assert call.finished
    settings = definition.Settings(publishing=definition.Publishing(topics=[G]))
    stream = FakeCall(service.TelemetryCommand(settings=settings), metadata())
    assert called(methods, "Telemetry", stream) == []
    assert service.TelemetryCommand.FromString(stream.answers[0]).status.code == Code.UNAUTHORIZED
    assert not stream.finished


HANDLES = ("one", "two", "three")
FORBIDDEN = {
    "AckMessage": service.AckMessageRequest(
        group=G,
        topic=G,
        entries=[service.AckMessageEntry(message_id=f"ID{each}", receipt_handle=each) for each in HANDLES],
    ),
    "ChangeInvisibleDuration": service.ChangeInvisibleDurationRequest(group=G, topic=G, receipt_handle="old"),
    "SendMessage": service.SendMessageRequest(messages=[definition.Message(topic=G)] * 3),
}


@pytest.mark.parametrize("fields", [{}, metadata(password="x"), metadata()], ids=["unsigned", "wrong", "not allowed"])
def test_a_refused_ack_has_a_result_for_each_handle_and_is_not_asked_again(methods: Any, fields: Any) -> None:
    """Java's push consumer asks again every second, for ever, until the code is OK or this one."""
    call = FakeCall(FORBIDDEN["AckMessage"], fields)
    assert called(methods, "AckMessage", call) == []
    response = service.AckMessageResponse.FromString(call.answers[0])
    assert response.status.code == Code.INVALID_RECEIPT_HANDLE
    assert "UNAUTHORIZED" in response.status.message
    assert [(entry.message_id, entry.receipt_handle) for entry in response.entries] == [
        (f"ID{each}", each) for each in HANDLES
    ]
    assert {entry.status.code for entry in response.entries} == {Code.INVALID_RECEIPT_HANDLE}


@pytest.mark.parametrize("fields", [{}, metadata(password="x"), metadata()], ids=["unsigned", "wrong", "not allowed"])
def test_a_refused_change_gives_the_old_handle_back_and_is_not_asked_again(methods: Any, fields: Any) -> None:
    call = FakeCall(FORBIDDEN["ChangeInvisibleDuration"], fields)
    assert called(methods, "ChangeInvisibleDuration", call) == []
    response = service.ChangeInvisibleDurationResponse.FromString(call.answers[0])
    assert (response.status.code, response.receipt_handle) == (Code.INVALID_RECEIPT_HANDLE, "old")
    assert "UNAUTHORIZED" in response.status.message


@pytest.mark.parametrize("fields", [{}, metadata(password="x"), metadata()], ids=["unsigned", "wrong", "not allowed"])
def test_a_refused_send_has_a_result_for_each_message(methods: Any, fields: Any) -> None:
    call = FakeCall(FORBIDDEN["SendMessage"], fields)
    assert called(methods, "SendMessage", call) == []
    response = service.SendMessageResponse.FromString(call.answers[0])
    assert [each.status.code for each in (response, *response.entries)] == [Code.UNAUTHORIZED] * 4


def test_a_refused_call_that_cannot_be_read_has_a_status_all_the_same(methods: Any) -> None:
    call = FakeCall(b"\xff\xff\xff", {})
    assert called(methods, "AckMessage", call) == []
    response = service.AckMessageResponse.FromString(call.answers[0])
    assert (response.status.code, len(response.entries)) == (Code.INVALID_RECEIPT_HANDLE, 0)


def test_what_cannot_be_read_is_refused(methods: Any) -> None:
    call = FakeCall(b"\xff\xff\xff", metadata())
    assert called(methods, "AckMessage", call) == []
    assert service.AckMessageResponse.FromString(call.answers[0]).status.code == Code.BAD_REQUEST


BOTH = [Demand(GROUP, "g", (SUB,)), Demand(TOPIC, "ns%T", (SUB,))]


@pytest.mark.parametrize(
    ("name", "request_message", "wanted"),
    [
        (
            "SendMessage",
            service.SendMessageRequest(messages=[definition.Message(topic=T)] * 3),
            [Demand(TOPIC, "T", (PUB,))],
        ),
        ("AckMessage", service.AckMessageRequest(group=G, topic=IN_NAMESPACE), BOTH),
        (
            "ReceiveMessage",
            service.ReceiveMessageRequest(group=G, message_queue=definition.MessageQueue(topic=IN_NAMESPACE)),
            BOTH,
        ),
        ("QueryAssignment", service.QueryAssignmentRequest(group=G, topic=IN_NAMESPACE), BOTH),
        ("Heartbeat", service.HeartbeatRequest(), []),
        ("Heartbeat", service.HeartbeatRequest(group=G), [Demand(GROUP, "g", (SUB,))]),
        ("Telemetry", service.TelemetryCommand(), []),
        (
            "Telemetry",
            service.TelemetryCommand(
                settings=definition.Settings(
                    subscription=definition.Subscription(
                        group=G, subscriptions=[definition.SubscriptionEntry(topic=IN_NAMESPACE)]
                    )
                )
            ),
            BOTH,
        ),
    ],
)
def test_what_methods_need(name: str, request_message: Any, wanted: list[Demand]) -> None:
    assert DEMANDS[name](request_message) == wanted


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (definition.Settings(publishing=definition.Publishing(topics=[T] * 5000)), MAX_TOPICS_PER_SESSION),
        (
            definition.Settings(
                subscription=definition.Subscription(
                    group=G, subscriptions=[definition.SubscriptionEntry(topic=T)] * 5000
                )
            ),
            1 + MAX_TOPICS_PER_SESSION,
        ),
    ],
    ids=["producer", "consumer"],
)
def test_of_very_many_topics_those_are_judged_that_are_remembered(settings: Any, wanted: int) -> None:
    assert len(DEMANDS["Telemetry"](service.TelemetryCommand(settings=settings))) == wanted
