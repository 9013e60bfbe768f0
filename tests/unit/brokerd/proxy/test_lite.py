"""Lite topics and lite consumers: refused by name, at once, and nobody waits for anything."""

from __future__ import annotations

import pytest

from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code

KINDS = ("LITE_PUSH_CONSUMER", "LITE_SIMPLE_CONSUMER")


def resource(name):
    return definition.Resource(name=name)


def settings(kind):
    made = definition.Settings(client_type=definition.ClientType.Value(kind))
    made.subscription.group.CopyFrom(resource("G"))
    made.subscription.subscriptions.add(topic=resource("Normal"))
    return service.TelemetryCommand(settings=made)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lite_consumer_gets_settings_that_let_it_ask(bench, kind) -> None:
    answer = bench.begin("Telemetry", settings(kind)).response(service.TelemetryCommand)
    assert answer.status.code == Code.OK
    subscription = answer.settings.subscription
    assert (subscription.lite_subscription_quota, subscription.max_lite_topic_size) == (1, 64)
    assert subscription.long_polling_timeout.seconds == 20
    assert bench.broker.live == {}, "it is no member of its group"


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_lite_consumer_asks_for_is_refused_by_name(bench, kind) -> None:
    bench.begin("Telemetry", settings(kind))
    bench.call("SendMessage", sending("not for a lite consumer"), service.SendMessageResponse)
    beat = service.HeartbeatRequest(group=resource("G"), client_type=definition.ClientType.Value(kind))
    assigned = service.QueryAssignmentRequest(group=resource("G"), topic=resource("Normal"))
    received = service.ReceiveMessageRequest(group=resource("G"), auto_renew=True)
    received.message_queue.topic.name = "Normal"
    call = bench.begin("ReceiveMessage", received)
    assert call.finished
    statuses = [
        bench.call("Heartbeat", beat, service.HeartbeatResponse).status,
        bench.call("QueryAssignment", assigned, service.QueryAssignmentResponse).status,
        service.ReceiveMessageResponse.FromString(call.answers[0]).status,
        bench.call("SyncLiteSubscription", sync("a"), service.SyncLiteSubscriptionResponse).status,
    ]
    assert [(status.code, "lite" in status.message) for status in statuses] == [(Code.UNSUPPORTED, True)] * 4
    assert bench.broker.pops == []


def test_other_consumers_of_the_same_topic_get_their_messages(bench) -> None:
    bench.begin("Telemetry", settings("LITE_PUSH_CONSUMER"))
    assigned = service.QueryAssignmentRequest(group=resource("G"), topic=resource("Normal"))
    other = {"x-mq-client-id": "client-2"}
    response = bench.call("QueryAssignment", assigned, service.QueryAssignmentResponse, metadata=other)
    assert response.status.code == Code.OK


def sending(body):
    request = service.SendMessageRequest()
    message = request.messages.add(topic=resource("Normal"), body=body.encode())
    message.system_properties.message_id = "ID"
    return request


def sync(*names, topic="Normal", group="G"):
    return service.SyncLiteSubscriptionRequest(topic=resource(topic), group=resource(group), lite_topic_set=names)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (sync(), Code.UNSUPPORTED),
        (sync("a", "*"), Code.UNSUPPORTED),
        (sync("a", ""), Code.ILLEGAL_LITE_TOPIC),
        (sync("x" * 65), Code.ILLEGAL_LITE_TOPIC),
        (sync("a", topic="a b"), Code.ILLEGAL_TOPIC),
        (sync("a", group=""), Code.ILLEGAL_CONSUMER_GROUP),
    ],
)
def test_a_subscription_is_looked_at_before_it_is_refused(bench, request_, code) -> None:
    response = bench.call("SyncLiteSubscription", request_, service.SyncLiteSubscriptionResponse)
    assert response.status.code == code


@pytest.mark.parametrize(
    ("name", "code"), [("a", Code.UNSUPPORTED), ("", Code.ILLEGAL_LITE_TOPIC), ("x" * 65, Code.ILLEGAL_LITE_TOPIC)]
)
def test_a_client_that_says_what_a_server_would_is_refused_by_name(bench, name, code) -> None:
    command = service.TelemetryCommand()
    command.notify_unsubscribe_lite_command.lite_topic = name
    call = bench.begin("Telemetry", command)
    status = call.response(service.TelemetryCommand).status
    assert (status.code, "lite" in status.message) == (code, True)
    assert not call.finished
    answer = bench.begin("Telemetry", settings("PUSH_CONSUMER")).response(service.TelemetryCommand)
    assert answer.status.code == Code.OK, "the client goes on"
