"""The unary methods and the telemetry stream, one rule at a time, over a broker in memory."""

from __future__ import annotations

import pytest

from brokerd.members.registry import ClientRegistry
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.pop.requests import AckStatus
from brokerd.proxy.calls import Peer
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import RequestError
from tests.support.open_guard import yes
from tests.unit.brokerd.proxy.calls import METADATA, PEER, FakeCall
from tests.unit.brokerd.proxy.conftest import Bench

READ_WRITE, READ, WRITE, NONE = (definition.Permission.Value(name) for name in ("READ_WRITE", "READ", "WRITE", "NONE"))


def resource(name, namespace=""):
    return definition.Resource(name=name, resource_namespace=namespace)


# ---- QueryRoute and QueryAssignment


def route_of(bench, name, namespace=""):
    request = service.QueryRouteRequest(topic=resource(name, namespace))
    return bench.call("QueryRoute", request, service.QueryRouteResponse)


def test_a_route_lists_every_queue_of_the_master_with_all_addresses_of_the_group(bench) -> None:
    response = route_of(bench, "Normal")
    assert response.status.code == Code.OK
    assert [queue.id for queue in response.message_queues] == [0, 1, 2, 3]
    queue = response.message_queues[0]
    assert (queue.permission, queue.broker.name, queue.broker.id) == (READ_WRITE, "broker-a", 0)
    assert queue.broker.endpoints.scheme == definition.AddressScheme.Value("IPv4")
    assert [(address.host, address.port) for address in queue.broker.endpoints.addresses] == [
        ("127.0.0.1", 8081),
        ("127.0.0.1", 8082),
    ]


def told_to(bench, headers) -> tuple[list[tuple[str, int, tuple[int, ...]]], set[tuple[int, ...]]]:
    """What a client with these headers is told: (broker, queue, ports) in its route, and the ports in its assignments."""
    metadata = {"x-mq-client-id": "one", **headers}
    request = service.QueryRouteRequest(topic=resource("Normal"))
    route = bench.call("QueryRoute", request, service.QueryRouteResponse, metadata=metadata)
    asked = service.QueryAssignmentRequest(topic=resource("Normal"), group=resource("G"))
    assigned = bench.call("QueryAssignment", asked, service.QueryAssignmentResponse, metadata=metadata)
    assert (route.status.code, assigned.status.code) == (Code.OK, Code.OK)
    assert {queue.broker.id for queue in route.message_queues} == {0}

    def ports(queue) -> tuple[int, ...]:
        return tuple(address.port for address in queue.broker.endpoints.addresses)

    queues = [(queue.broker.name, queue.id, ports(queue)) for queue in route.message_queues]
    return queues, {ports(each.message_queue) for each in assigned.assignments}


@pytest.mark.parametrize("language", ["JAVA", "GO", "GOLANG", "PYTHON", "CPP", "RUST"])
def test_a_client_that_tries_several_addresses_gets_all_of_them(bench, language) -> None:
    queues, assigned = told_to(bench, {"x-mq-language": language})
    assert queues == [("broker-a", number, (8081, 8082)) for number in range(4)]
    assert assigned == {(8081, 8082)}


@pytest.mark.parametrize(
    "headers",
    [
        *({"x-mq-language": name} for name in ("HTTP", "DOTNET", "PHP", "of its own", "")),
        *({"x-mq-language": name, ":scheme": "https"} for name in ("PYTHON", "CPP")),
        {},
    ],
)
def test_any_other_client_gets_one_address_at_a_time(bench, headers) -> None:
    """Node.js (HTTP) makes one name of several addresses, and Python and C++ look for such a name in a certificate."""
    queues, assigned = told_to(bench, headers)
    master = [("broker-a@127.0.0.1:8081", number, (8081,)) for number in range(4)]
    assert queues == [*master, ("broker-a@127.0.0.1:8082", 0, (8082,))], (
        "the replica is where it goes when the master fails"
    )
    assert assigned == {(8081,)}
    bench.broker.grpc_addresses = lambda: ["127.0.0.1:8082", "127.0.0.1:8081"]  # another one is master
    queues, assigned = told_to(bench, headers)
    assert queues[0] == ("broker-a@127.0.0.1:8082", 0, (8082,)), "Node.js tells queues apart by name and number alone"
    assert queues[-1] == ("broker-a@127.0.0.1:8081", 0, (8081,))
    assert assigned == {(8082,)}
    bench.broker.grpc_addresses = lambda: ["127.0.0.1:8082"]
    assert told_to(bench, headers)[0] == [("broker-a@127.0.0.1:8082", number, (8082,)) for number in range(4)]
    bench.broker.grpc_addresses = lambda: []
    request = service.QueryRouteRequest(topic=resource("Normal"))
    route = bench.call("QueryRoute", request, service.QueryRouteResponse, metadata={"x-mq-client-id": "one", **headers})
    assert route.status.code == Code.TOPIC_NOT_FOUND


def test_csharp_is_not_told_of_a_replica_that_is_down(bench) -> None:
    """It does not start before it reached every address of its route; other clients go to one that is back by then."""
    bench.broker.grpc_addresses = lambda: ["127.0.0.1:8081", "127.0.0.1:8082", "127.0.0.1:8083"]
    bench.broker.down = frozenset({"127.0.0.1:8082"})
    queues, assigned = told_to(bench, {"x-mq-language": "DOTNET"})
    assert {ports for _, _, ports in queues} == {(8081,), (8083,)}
    assert assigned == {(8081,)}
    assert {ports for _, _, ports in told_to(bench, {"x-mq-language": "HTTP"})[0]} == {(8081,), (8082,), (8083,)}
    assert told_to(bench, {"x-mq-language": "JAVA"})[1] == {(8081, 8082, 8083)}


def test_clients_that_begin_with_tls_and_do_not_look_for_names_keep_their_addresses(bench) -> None:
    assert told_to(bench, {"x-mq-language": "JAVA", ":scheme": "https"})[1] == {(8081, 8082)}
    for language in ("PYTHON", "CPP"):
        assert told_to(bench, {"x-mq-language": language, ":scheme": "http"})[1] == {(8081, 8082)}


@pytest.mark.parametrize(
    ("message_type", "accepted"),
    [
        ("NORMAL", ["NORMAL"]),
        ("FIFO", ["FIFO"]),
        ("DELAY", ["DELAY"]),
        ("TRANSACTION", ["TRANSACTION"]),
        ("MIXED", ["NORMAL", "FIFO", "DELAY", "TRANSACTION"]),
        ("PRIORITY", ["PRIORITY"]),
        ("UNSPECIFIED", ["MESSAGE_TYPE_UNSPECIFIED"]),
    ],
)
def test_a_route_says_which_types_the_topic_takes(bench, message_type, accepted) -> None:
    bench.broker.add_topic("Typed", message_type)
    (kinds,) = {tuple(queue.accept_message_types) for queue in route_of(bench, "Typed").message_queues}
    assert [definition.MessageType.Name(kind) for kind in kinds] == accepted


@pytest.mark.parametrize(
    ("read", "write", "perm", "permissions"),
    [
        (2, 2, 6, [READ_WRITE, READ_WRITE]),
        (3, 2, 6, [READ_WRITE, READ_WRITE, READ]),
        (2, 3, 6, [READ_WRITE, READ_WRITE, WRITE]),
        (2, 3, 4, [READ, READ]),
        (2, 3, 2, [WRITE, WRITE, WRITE]),
        (2, 2, 0, [NONE]),
    ],
)
def test_permissions_of_queues(bench, read, write, perm, permissions) -> None:
    bench.broker.topic_table["P"] = TopicConfig("P", read, write, perm)
    queues = route_of(bench, "P").message_queues
    assert [queue.permission for queue in queues] == permissions
    assert [queue.id for queue in queues] == list(range(len(permissions)))


def test_the_namespace_is_part_of_the_name_and_echoed(bench) -> None:
    assert route_of(bench, "Normal", "ns").status.code == Code.TOPIC_NOT_FOUND
    bench.broker.add_topic("ns%Normal")
    queue = route_of(bench, "Normal", "ns").message_queues[0]
    assert (queue.topic.resource_namespace, queue.topic.name) == ("ns", "Normal")


def test_no_two_namespaces_have_a_name_in_common(bench) -> None:
    bench.broker.add_topic("a%b%c")
    assert route_of(bench, "b%c", "a").status.code == Code.OK
    assert route_of(bench, "c", "a%b").status.code == Code.ILLEGAL_TOPIC
    assert route_of(bench, "c", "%RETRY%a%b").status.code == Code.ILLEGAL_TOPIC
    request = service.HeartbeatRequest(group=definition.Resource(resource_namespace="a%b", name="c"))
    assert bench.call("Heartbeat", request, service.HeartbeatResponse).status.code == Code.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize(
    ("name", "code"), [("Unknown", Code.TOPIC_NOT_FOUND), ("", Code.ILLEGAL_TOPIC), ("a b", Code.ILLEGAL_TOPIC)]
)
def test_routes_that_there_are_not(bench, name, code) -> None:
    assert route_of(bench, name).status.code == code


def test_a_group_of_brokers_without_a_grpc_address_is_not_in_the_route(bench) -> None:
    bench.broker.grpc_addresses = lambda: []
    assert route_of(bench, "Normal").status.code == Code.TOPIC_NOT_FOUND


def assignments_of(bench, topic, group="G"):
    request = service.QueryAssignmentRequest(topic=resource(topic), group=resource(group))
    return bench.call("QueryAssignment", request, service.QueryAssignmentResponse)


def test_assignments(bench) -> None:
    normal = assignments_of(bench, "Normal")
    assert normal.status.code == Code.OK
    assert [one.message_queue.id for one in normal.assignments] == [-1]
    bench.broker.group_table["F"] = GroupConfig("F", fifo=True)
    ordered = assignments_of(bench, "Fifo", "F")
    assert [one.message_queue.id for one in ordered.assignments] == [0, 1, 2, 3]
    assert all(one.message_queue.broker.endpoints.addresses for one in ordered.assignments)


def test_assignments_that_there_are_not(bench) -> None:
    bench.broker.add_topic("Closed", perm=2)
    assert assignments_of(bench, "Closed").status.code == Code.FORBIDDEN
    assert assignments_of(bench, "Unknown").status.code == Code.TOPIC_NOT_FOUND
    assert assignments_of(bench, "Normal", "CID_RMQ_SYS_X").status.code == Code.ILLEGAL_CONSUMER_GROUP
    assert assignments_of(bench, "Normal", "g" * 121).status.code == Code.ILLEGAL_CONSUMER_GROUP


# ---- client id


@pytest.mark.parametrize(
    "method", ["QueryRoute", "Heartbeat", "SendMessage", "AckMessage", "EndTransaction", "GetOffset"]
)
def test_every_call_needs_a_client_id(bench, method) -> None:
    request = getattr(service, method + "Request")()
    response = bench.call(method, request, getattr(service, method + "Response"), metadata={})
    assert response.status.code == Code.CLIENT_ID_REQUIRED


def test_streams_need_a_client_id_too(bench) -> None:
    receive = bench.begin("ReceiveMessage", service.ReceiveMessageRequest(), metadata={})
    status, timestamp = map(service.ReceiveMessageResponse.FromString, receive.answers)
    assert status.status.code == Code.CLIENT_ID_REQUIRED
    assert timestamp.HasField("delivery_timestamp")
    telemetry = bench.begin("Telemetry", settings_of(producer()), metadata={})
    assert telemetry.response(service.TelemetryCommand).status.code == Code.CLIENT_ID_REQUIRED


# ---- SendMessage


def sending(*bodies, topic="Normal", **system):
    request = service.SendMessageRequest()
    for number, body in enumerate(bodies):
        message = request.messages.add(topic=resource(topic), body=body)
        message.system_properties.message_id = f"ID{number}"
        for name, value in system.items():
            setattr(message.system_properties, name, value)
    return request


def test_one_entry_per_message_in_order(bench) -> None:
    response = bench.call("SendMessage", sending(b"one", b"two"), service.SendMessageResponse)
    assert response.status.code == Code.OK
    assert [(entry.status.code, entry.message_id) for entry in response.entries] == [(Code.OK, "ID0"), (Code.OK, "ID1")]
    assert len(bench.broker.log) == 2


def test_the_offset_of_each_message_is_told(bench) -> None:
    bench.broker.add_topic("One", queues=1)
    response = bench.call("SendMessage", sending(b"a", b"b", b"c", topic="One"), service.SendMessageResponse)
    assert [entry.offset for entry in response.entries] == [0, 1, 2]


def test_all_calls_of_one_read_are_one_append(bench) -> None:
    calls = [FakeCall(sending(b"x", b"y")), FakeCall(sending(b"")), FakeCall(b"\xff"), FakeCall(sending(b"z"))]
    bench.methods.handlers["SendMessage"](calls)
    (drafts,) = bench.broker.sends
    assert [bytes(draft.body) for draft in drafts] == [b"x", b"y", b"z"]
    responses = [call.response(service.SendMessageResponse) for call in calls]
    assert [response.status.code for response in responses] == [
        Code.OK,
        Code.MESSAGE_BODY_EMPTY,
        Code.BAD_REQUEST,
        Code.OK,
    ]
    assert [len(response.entries) for response in responses] == [2, 1, 0, 1]


def test_a_request_is_refused_whole_and_in_the_overall_status(bench) -> None:
    response = bench.call("SendMessage", sending(b"one", b""), service.SendMessageResponse)
    assert response.status.code == Code.MESSAGE_BODY_EMPTY
    assert [entry.status.code for entry in response.entries] == [Code.MESSAGE_BODY_EMPTY] * 2
    assert bench.broker.log == []


def test_a_request_without_messages(bench) -> None:
    response = bench.call("SendMessage", service.SendMessageRequest(), service.SendMessageResponse)
    assert response.status.code == Code.MESSAGE_CORRUPTED


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (PutStatus.FLUSH_DISK_TIMEOUT, None, Code.MASTER_PERSISTENCE_TIMEOUT),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, None, Code.SLAVE_PERSISTENCE_TIMEOUT),
        (PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, None, Code.HA_NOT_AVAILABLE),
        (PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, codes.SYSTEM_ERROR, Code.HA_NOT_AVAILABLE),
        (PutStatus.SERVICE_NOT_AVAILABLE, codes.SERVICE_NOT_AVAILABLE, Code.HA_NOT_AVAILABLE),
        (PutStatus.MESSAGE_ILLEGAL, codes.MESSAGE_ILLEGAL, Code.BAD_REQUEST),
        (PutStatus.MESSAGE_ILLEGAL, codes.TOPIC_NOT_EXIST, Code.TOPIC_NOT_FOUND),
        (PutStatus.MESSAGE_ILLEGAL, codes.NO_PERMISSION, Code.FORBIDDEN),
        (PutStatus.MESSAGE_ILLEGAL, codes.SYSTEM_BUSY, Code.TOO_MANY_REQUESTS),
        (PutStatus.MESSAGE_ILLEGAL, codes.SYSTEM_ERROR, Code.INTERNAL_SERVER_ERROR),
    ],
)
def test_what_the_broker_says_of_an_append(bench, status, error, code) -> None:
    bench.broker.send_status = status
    bench.broker.send_error = None if error is None else RequestError(error, "why")
    response = bench.call("SendMessage", sending(b"x"), service.SendMessageResponse)
    assert response.status.code == code
    assert response.status.message
    assert response.entries[0].status.code == code


# ---- acks


def take_one(bench, group="G", topic="Normal"):
    bench.call("SendMessage", sending(b"x", topic=topic), service.SendMessageResponse)
    request = service.ReceiveMessageRequest(group=resource(group), batch_size=1)
    request.message_queue.topic.name = topic
    request.invisible_duration.seconds = 10
    call = bench.begin("ReceiveMessage", request)
    return service.ReceiveMessageResponse.FromString(call.answers[1]).message.system_properties.receipt_handle


def acking(*handles, group="G", topic="Normal"):
    request = service.AckMessageRequest(group=resource(group), topic=resource(topic))
    for number, handle in enumerate(handles):
        request.entries.add(message_id=f"ID{number}", receipt_handle=handle)
    return request


async def test_each_entry_of_an_ack_has_its_result(bench) -> None:
    first, second = take_one(bench), take_one(bench)
    response = bench.call("AckMessage", acking(first, "garbage", second), service.AckMessageResponse)
    assert response.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in response.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE, Code.OK]
    assert [entry.message_id for entry in response.entries] == ["ID0", "ID1", "ID2"]
    assert [entry.receipt_handle for entry in response.entries] == [first, "garbage", second]


async def test_the_overall_status_of_an_ack_is_the_common_one(bench) -> None:
    handle = take_one(bench)
    assert bench.call("AckMessage", acking(handle), service.AckMessageResponse).status.code == Code.OK
    late = bench.call("AckMessage", acking(handle), service.AckMessageResponse)
    assert late.status.code == Code.INVALID_RECEIPT_HANDLE
    assert "INVALID_RECEIPT_HANDLE" in late.status.message
    bench.broker.ack_status = AckStatus.FAILED
    failed = bench.call("AckMessage", acking(take_one(bench)), service.AckMessageResponse)
    assert failed.status.code == Code.INTERNAL_SERVER_ERROR


async def test_acks_of_one_read_for_one_group_and_topic_are_one_ack(bench) -> None:
    handles = [take_one(bench) for _ in range(3)]
    calls = [FakeCall(acking(handle)) for handle in handles]
    calls.insert(1, FakeCall(acking("other", group="H")))
    calls.insert(2, FakeCall(acking()))
    bench.methods.handlers["AckMessage"](calls)
    assert bench.broker.acks == [handles, ["other"]]
    found = [call.response(service.AckMessageResponse).status.code for call in calls]
    assert found == [Code.OK, Code.INVALID_RECEIPT_HANDLE, Code.BAD_REQUEST, Code.OK, Code.OK]


def changing(handle, seconds, nanos=0):
    request = service.ChangeInvisibleDurationRequest(
        group=resource("G"), topic=resource("Normal"), receipt_handle=handle
    )
    request.invisible_duration.seconds = seconds
    request.invisible_duration.nanos = nanos
    return request


async def test_a_change_gives_a_new_handle_and_the_old_one_is_done(bench) -> None:
    handle = take_one(bench)
    changed = bench.call("ChangeInvisibleDuration", changing(handle, 30), service.ChangeInvisibleDurationResponse)
    assert changed.status.code == Code.OK
    assert changed.receipt_handle not in ("", handle)
    again = bench.call("ChangeInvisibleDuration", changing(handle, 30), service.ChangeInvisibleDurationResponse)
    assert (again.status.code, again.receipt_handle) == (Code.INVALID_RECEIPT_HANDLE, handle)


@pytest.mark.parametrize(("seconds", "text"), [(12 * 3600 + 1, "too large"), (-1, "too small")])
async def test_a_refused_change_gives_the_old_handle_back(bench, seconds, text) -> None:
    handle = take_one(bench)
    response = bench.call("ChangeInvisibleDuration", changing(handle, seconds), service.ChangeInvisibleDurationResponse)
    assert (response.status.code, response.receipt_handle) == (Code.ILLEGAL_INVISIBLE_TIME, handle)
    assert f"the invisibleTime is {text}" in response.status.message


@pytest.mark.parametrize("seconds", [0, 1, 12 * 3600])
async def test_small_times_and_zero_are_fine(bench, seconds) -> None:
    request = changing(take_one(bench), seconds)
    response = bench.call("ChangeInvisibleDuration", request, service.ChangeInvisibleDurationResponse)
    assert response.status.code == Code.OK


async def test_a_message_goes_to_the_dead_letters(bench) -> None:
    handle = take_one(bench)
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=resource("G"), topic=resource("Normal"), receipt_handle=handle
    )
    for code in (Code.OK, Code.INVALID_RECEIPT_HANDLE):
        response = bench.call(
            "ForwardMessageToDeadLetterQueue", request, service.ForwardMessageToDeadLetterQueueResponse
        )
        assert response.status.code == code
    assert [group for group, _ in bench.broker.dead_letters] == ["G"]


# ---- clients


def test_a_heartbeat_registers_a_client_that_never_sent_settings(bench) -> None:
    request = service.HeartbeatRequest(
        group=resource("G", "ns"), client_type=definition.ClientType.Value("SIMPLE_CONSUMER")
    )
    assert bench.call("Heartbeat", request, service.HeartbeatResponse).status.code == Code.OK
    info, _ = bench.broker.live["client-1"]
    assert (info.group, info.language, info.version, info.address) == ("ns%G", "PYTHON", "5.1.2", "127.0.0.1:5000")
    assert "ns%G" in bench.broker.group_table  # groups come into being with their first client
    assert bench.broker.topic_table["%RETRY%ns%G"].read_queue_nums == 1, "tools find the group's brokers by it"


def test_a_producer_has_no_group(bench) -> None:
    request = service.HeartbeatRequest(client_type=definition.ClientType.Value("PRODUCER"))
    assert bench.call("Heartbeat", request, service.HeartbeatResponse).status.code == Code.OK
    assert bench.broker.group_table == {}


def test_a_heartbeat_knows_what_the_settings_said(bench) -> None:
    bench.begin("Telemetry", settings_of(producer("Normal", "Fifo")))
    request = service.HeartbeatRequest(client_type=definition.ClientType.Value("PRODUCER"))
    bench.call("Heartbeat", request, service.HeartbeatResponse)
    assert bench.broker.live["client-1"][0].producer_topics == {"Normal", "Fifo"}


def test_termination(bench) -> None:
    request = service.NotifyClientTerminationRequest(group=resource("G"))
    response = bench.call("NotifyClientTermination", request, service.NotifyClientTerminationResponse)
    assert response.status.code == Code.OK
    bench.call(
        "NotifyClientTermination",
        service.NotifyClientTerminationRequest(),
        service.NotifyClientTerminationResponse,
    )
    assert bench.broker.unregistered == [("client-1", "G"), ("client-1", "")]


def terminate(bench, peer, group="G") -> None:
    request = service.NotifyClientTerminationRequest(group=resource(group))
    response = bench.call("NotifyClientTermination", request, service.NotifyClientTerminationResponse, peer=peer)
    assert response.status.code == Code.OK


def beat(bench, peer, group="") -> None:
    request = service.HeartbeatRequest(client_type=definition.ClientType.Value("PRODUCER"))
    if group:
        request.group.CopyFrom(resource(group))
    assert bench.call("Heartbeat", request, service.HeartbeatResponse, peer=peer).status.code == Code.OK


def test_a_stranger_ends_nobody_and_takes_nothing_over() -> None:
    clients = ClientRegistry(lambda: 0, lambda: 0, yes)
    bench = Bench(clients)
    owner, stranger = Peer("1.1.1.1:1", b"", "owner"), Peer("2.2.2.2:2", b"", "stranger")
    bench.begin("Telemetry", settings_of(producer("Normal")), peer=owner)
    bench.begin(
        "Telemetry", settings_of(consumer("G")), peer=owner, metadata={**METADATA, "x-mq-client-id": "client-2"}
    )
    terminate(bench, stranger, "")
    terminate(bench, Peer("2.2.2.2:2", b"", "other"), "")
    assert [info.address for info in clients.producers("Normal")] == ["1.1.1.1:1"]
    beat(bench, stranger)
    assert [info.address for info in clients.producers("Normal")] == ["1.1.1.1:1"], (
        "the owner's settings are not the stranger's"
    )
    terminate(bench, stranger, "")
    assert [info.address for info in clients.producers("Normal")] == ["1.1.1.1:1"]
    assert clients.is_alive("client-1")
    terminate(bench, owner, "")
    assert not clients.is_alive("client-1")
    assert clients.is_alive("client-2")
    beat(bench, owner)
    assert clients.producers("Normal") == [], "who ended has to say anew what it is"


def test_a_client_that_returns_on_another_connection_outlives_its_old_one() -> None:
    clients = ClientRegistry(lambda: 0, lambda: 0, yes)
    bench = Bench(clients)
    gone: list[str] = []
    clients.gone_listeners.append(gone.append)
    old, new = Peer("1.1.1.1:1", b"", "old"), Peer("1.1.1.1:2", b"", "new")
    bench.begin("Telemetry", settings_of(consumer("G")), peer=old)
    beat(bench, new, "G")  # some clients send their settings only minutes later
    terminate(bench, old)
    bench.methods.sessions.connection_closed("old")
    clients.connection_closed("old")
    assert gone == []
    assert [info.address for info in clients.members("G")] == ["1.1.1.1:2"]


# ---- Telemetry


def settings_of(settings):
    return service.TelemetryCommand(settings=settings)


def producer(*topics):
    publishing = definition.Publishing(topics=map(resource, topics), max_body_size=1 << 27, validate_message_type=True)
    return definition.Settings(client_type=definition.ClientType.Value("PRODUCER"), publishing=publishing)


def consumer(group="G"):
    settings = definition.Settings(client_type=definition.ClientType.Value("PUSH_CONSUMER"))
    settings.subscription.group.CopyFrom(resource(group))
    entry = settings.subscription.subscriptions.add(topic=resource("Normal"))
    entry.expression.expression = "a || b"
    return settings


def merged(bench, settings, language="PYTHON"):
    metadata = METADATA | {"x-mq-language": language}
    response = bench.begin("Telemetry", settings_of(settings), metadata=metadata).response(service.TelemetryCommand)
    assert response.status.code == Code.OK
    return response.settings


def test_a_producers_settings(bench) -> None:
    sent = producer("Normal")
    sent.request_timeout.seconds = 3
    answer = merged(bench, sent)
    assert answer.backoff_policy.max_attempts == 3
    backoff = answer.backoff_policy.exponential_backoff
    assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds(), backoff.multiplier) == (10, 1000, 2)
    assert answer.publishing.max_body_size == 4 * 1024 * 1024
    assert answer.publishing.validate_message_type
    assert [topic.name for topic in answer.publishing.topics] == ["Normal"]
    assert answer.request_timeout.seconds == 3
    assert not answer.metric.on


def test_a_consumers_settings(bench) -> None:
    bench.broker.group_table["Ordered"] = GroupConfig("Ordered", fifo=True, retry_max_times=4)
    for group, fifo, attempts in (("G", False, 17), ("Ordered", True, 5)):
        answer = merged(bench, consumer(group))
        assert answer.subscription.fifo == fifo
        assert answer.backoff_policy.max_attempts == attempts
        delays = [delay.seconds for delay in answer.backoff_policy.customized_backoff.next]
        assert (len(delays), delays[:4], delays[-1]) == (18, [1, 5, 10, 30], 7200)
        assert answer.subscription.receive_batch_size == 32
        assert answer.subscription.long_polling_timeout.seconds == 20
    info, _ = bench.broker.live["client-1"]
    assert info.subscriptions == {"Normal": "a || b"}


def test_a_groups_retry_policy_is_what_its_consumers_are_told(bench) -> None:
    exponential = {"initial": 500, "max": 60_000, "multiplier": 3}
    bench.broker.group_table["E"] = GroupConfig(
        "E", retry_policy={"type": "EXPONENTIAL", "exponentialRetryPolicy": exponential}
    )
    backoff = merged(bench, consumer("E"), "JAVA").backoff_policy.exponential_backoff
    assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds(), backoff.multiplier) == (500, 60_000, 3)
    delays = {"customizedRetryPolicy": {"next": [100, 2500]}}
    bench.broker.group_table["C"] = GroupConfig("C", retry_policy={"type": "CUSTOMIZED", **delays})
    told = merged(bench, consumer("C"), "JAVA").backoff_policy.customized_backoff.next
    assert [each.ToMilliseconds() for each in told] == [100, 2500]
    bench.broker.group_table["X"] = GroupConfig("X", retry_policy={"type": "EXPONENTIAL"})
    assert len(merged(bench, consumer("X"), "JAVA").backoff_policy.customized_backoff.next) == 18


def test_python_is_told_delays_that_it_reads(bench) -> None:
    """It reads a list alone, and whole seconds: a half is none, and the message would come again at once."""
    delays = {"customizedRetryPolicy": {"next": [100, 2500, 3000]}}
    doubling = {"exponentialRetryPolicy": {"initial": 500, "max": 9500, "multiplier": 4}}
    bench.broker.group_table["C"] = GroupConfig("C", retry_max_times=4, retry_policy={"type": "CUSTOMIZED", **delays})
    bench.broker.group_table["E"] = GroupConfig(
        "E", retry_max_times=9, retry_policy={"type": "EXPONENTIAL", **doubling}
    )
    bench.broker.group_table["F"] = GroupConfig(
        "F", retry_max_times=1, retry_policy={"type": "EXPONENTIAL", **doubling}
    )
    for group, attempts, seconds in (("C", 5, [1, 3, 3]), ("E", 10, [1, 2, 8, 10]), ("F", 2, [1, 2])):
        policy = merged(bench, consumer(group)).backoff_policy
        assert (policy.max_attempts, policy.WhichOneof("strategy")) == (attempts, "customized_backoff")
        assert [each.seconds for each in policy.customized_backoff.next] == seconds


def test_node_is_told_delays_that_it_reads(bench) -> None:
    """It takes a list of them as no attempt beyond the first."""
    delays = {"customizedRetryPolicy": {"next": [100, 2500]}}
    bench.broker.group_table["C"] = GroupConfig("C", retry_max_times=4, retry_policy={"type": "CUSTOMIZED", **delays})
    metadata = {"x-mq-client-id": "one", "x-mq-language": "HTTP"}
    for group, attempts, first_ms, last_ms in (("G", 17, 1000, 7_200_000), ("C", 5, 100, 2500)):
        call = bench.begin("Telemetry", settings_of(consumer(group)), metadata=metadata)
        policy = call.response(service.TelemetryCommand).settings.backoff_policy
        backoff = policy.exponential_backoff
        assert (policy.max_attempts, policy.WhichOneof("strategy")) == (attempts, "exponential_backoff")
        assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds(), backoff.multiplier) == (
            first_ms,
            last_ms,
            2,
        )


@pytest.mark.parametrize(
    ("language", "topics", "told"), [("HTTP", 2, 5), ("HTTP", 1, 1), ("JAVA", 2, 1), ("PYTHON", 2, 1)]
)
def test_node_is_told_again_what_it_may_have_missed(bench, language, topics, told) -> None:
    """It waits for its settings only when it has the routes of all its topics, and forgets those that came before."""
    settings = consumer()
    for number in range(1, topics):
        settings.subscription.subscriptions.add(topic=resource(f"T{number}"))
    metadata = {"x-mq-client-id": "one", "x-mq-language": language}
    call = bench.begin("Telemetry", settings_of(settings), metadata=metadata)
    again = bench.begin("Telemetry", settings_of(settings), metadata=metadata)
    bench.turns.run(60_000)
    assert len(call.answers) == told
    assert len(set(call.answers)) == 1
    assert len(again.answers) == 1, "who asks again knows that it was told"


def test_a_stream_that_ended_is_told_nothing_more(bench) -> None:
    settings = consumer()
    settings.subscription.subscriptions.add(topic=resource("T2"))
    call = bench.begin("Telemetry", settings_of(settings), metadata={"x-mq-client-id": "one", "x-mq-language": "HTTP"})
    call.cancel()
    bench.turns.run(60_000)
    assert len(call.answers) == 1
    assert bench.turns.waiting == 0


def test_a_consumer_that_pulls_has_settings_like_the_others(bench) -> None:
    asked = consumer("Puller")
    asked.client_type = definition.ClientType.Value("PULL_CONSUMER")
    answer = merged(bench, asked)
    assert (answer.client_type, answer.subscription.receive_batch_size) == (asked.client_type, 32)
    beat = service.HeartbeatRequest(group=resource("Puller"), client_type=asked.client_type)
    assert bench.call("Heartbeat", beat, service.HeartbeatResponse).status.code == Code.OK
    assert "Puller" in bench.broker.group_table


def test_settings_are_answered_without_any_topic(bench) -> None:
    merged(bench, producer())


def test_unknown_fields_of_settings_survive(bench) -> None:
    command = settings_of(producer("Normal"))
    raw = command.settings.SerializeToString() + b"\xfa\x3e\x03new"
    command.settings.CopyFrom(definition.Settings.FromString(raw))
    assert merged(bench, command.settings).SerializeToString().find(b"\xfa\x3e\x03new") >= 0


def test_settings_of_nothing_are_refused_but_the_stream_stays(bench) -> None:
    call = bench.begin("Telemetry", settings_of(definition.Settings()))
    assert call.response(service.TelemetryCommand).status.code == Code.BAD_REQUEST
    assert not call.finished
    broken = bench.begin("Telemetry", b"\xff")
    assert broken.response(service.TelemetryCommand).status.code == Code.BAD_REQUEST


def test_answers_to_commands_that_nobody_waits_for_are_ignored(bench) -> None:
    command = service.TelemetryCommand(thread_stack_trace=service.ThreadStackTrace(nonce="1"))
    assert bench.begin("Telemetry", command).answers == []


def test_a_session_goes_with_its_connection_but_not_with_an_older_one(bench) -> None:
    old, new = Peer("a", b"", "old"), Peer("b", b"", "new")
    for peer in (old, new):
        bench.begin("Telemetry", settings_of(producer("Normal")), peer=peer)
    bench.methods.sessions.connection_closed("old")
    assert bench.methods.sessions.get("client-1", "old") is None
    assert bench.methods.sessions.get("client-1", "new") is not None
    bench.methods.sessions.connection_closed("new")
    assert bench.methods.sessions.get("client-1", "new") is None


def test_what_one_connection_makes_us_remember_is_bounded(bench) -> None:
    for number in range(300):
        metadata = {**METADATA, "x-mq-client-id": f"c{number}"}
        bench.begin("Telemetry", settings_of(producer(*map(str, range(400)))), metadata=metadata)
    sessions, connection = bench.methods.sessions, PEER.connection
    remembered = [number for number in range(300) if sessions.get(f"c{number}", connection) is not None]
    assert remembered == list(range(300 - 256, 300))
    assert len(sessions.get("c299", connection).producer_topics) == 256


# ---- the table


def test_every_method_of_the_service_has_a_handler_and_a_way_to_refuse(bench) -> None:
    described = {method.name for method in service.DESCRIPTOR.services_by_name["MessagingService"].methods}
    assert set(bench.methods.handlers) == described
    assert set(bench.methods.refusals) == described


def test_what_nobody_foresaw_is_a_status_too(bench) -> None:
    def broken(topic, done):
        raise KeyError("oops")

    bench.broker.route = broken
    assert route_of(bench, "Normal").status.code == Code.INTERNAL_SERVER_ERROR
