"""Questions that go through the broker to a consumer, and its answers back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from brokerd.members.consumer_groups import ClientInfo, ConsumerData, Subscription
from brokerd.members.streams import Answered, Told
from remoting import codes
from remoting.bare_json import loads_bare
from remoting.errors import ConnectionLost, LogboomError, RequestError, RequestTimeout
from remoting.frame import Command
from remoting.record.codec import Record, decode_record
from remoting.record.hosts import offset_message_id
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master


@pytest.fixture
def broker() -> RemotingBroker:
    return remoting_master()


def join(broker: RemotingBroker, client_id: str = "c1") -> Any:
    peer: Any = Peer(len(client_id) + 1)
    info = ClientInfo(client_id, peer.peer, "JAVA", "479")
    broker.clients.remoting_heartbeat(peer, info, [], [ConsumerData("g")])
    return peer


def the_answer(broker: RemotingBroker) -> Command:
    [answer] = broker.peer.answers.values()
    return answer


RUNNING: dict[str, Any] = {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "true"}


def test_running_info_is_relayed_there_and_back(broker: RemotingBroker) -> None:
    consumer = join(broker)
    opaque = broker.send_request(codes.GET_CONSUMER_RUNNING_INFO, RUNNING)
    [(asked, reply)] = consumer.asked
    assert (asked.code, asked.ext, consumer.timeouts_ms) == (codes.GET_CONSUMER_RUNNING_INFO, RUNNING, [10_000])
    body = b'{"mqTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{}},"jstack":"x"}'
    reply(Command(0, 99, {"a": "b"}, body, codes.FLAG_RESPONSE, "fine"))
    answer = the_answer(broker)
    assert (answer.opaque, answer.code, answer.ext, answer.body, answer.remark) == (opaque, 0, {"a": "b"}, body, "fine")


def test_errors_of_the_consumer_are_relayed_too(broker: RemotingBroker) -> None:
    consumer = join(broker)
    broker.send_request(codes.GET_CONSUMER_RUNNING_INFO, RUNNING)
    consumer.asked[0][1](Command(1, 99, {}, b"", codes.FLAG_RESPONSE, "no"))
    assert (the_answer(broker).code, the_answer(broker).remark) == (1, "no")


@pytest.mark.parametrize(
    ("failure", "code"),
    [(RequestTimeout("slow"), codes.CONSUME_MSG_TIMEOUT), (ConnectionLost("gone"), codes.SYSTEM_ERROR)],
)
def test_consumers_that_do_not_answer(broker: RemotingBroker, failure: Exception, code: int) -> None:
    consumer = join(broker)
    broker.send_request(codes.GET_CONSUMER_RUNNING_INFO, RUNNING)
    consumer.asked[0][1](failure)
    assert (the_answer(broker).code, bool(the_answer(broker).remark)) == (code, True)


def test_who_is_not_there_cannot_be_asked(broker: RemotingBroker) -> None:
    join(broker, "c2")
    broker.clients.heartbeat(ClientInfo("c1", "10.0.0.1:9", "GOLANG", "v5", group="g"), "grpc")
    answer = broker.answer(codes.GET_CONSUMER_RUNNING_INFO, RUNNING)
    assert (answer.code, "is not connected" in (answer.remark or "")) == (codes.SYSTEM_ERROR, True)
    assert broker.answer(codes.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g"}).code == codes.INVALID_PARAMETER


def direct(broker: RemotingBroker, **changes: Any) -> dict[str, Any]:
    place = decode_record(broker.log.bodies("t")[1]).physical_offset
    message_id = offset_message_id(b"\x7f\0\0\1\0\0\x2a\x9f", place)
    return {"consumerGroup": "g", "clientId": "c1", "msgId": message_id, "topic": "t", **changes}


def test_a_message_is_consumed_directly(broker: RemotingBroker) -> None:
    consumer = join(broker)
    broker.topic("t", topic_sys_flag=2)
    broker.group("g", group_sys_flag=3)
    broker.send("a", "b")
    ext = direct(broker)
    broker.send_request(codes.CONSUME_MESSAGE_DIRECTLY, ext)
    [(asked, reply)] = consumer.asked
    assert asked.ext == {**ext, "brokerName": "broker-a", "topicSysFlag": "2", "groupSysFlag": "3"}
    assert decode_record(asked.body).body == b"b"
    reply(Command(0, 7, {}, b'{"consumeResult":"CR_SUCCESS"}', codes.FLAG_RESPONSE))
    assert the_answer(broker).body == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize(
    ("message_id", "code"),
    [("", 29), ("7F000001000051A018B4AAC2", 29), ("zz", 29), (offset_message_id(bytes(8), 5), 1), ("F" * 32, 1)],
)
def test_messages_that_are_not_there(broker: RemotingBroker, message_id: str, code: int) -> None:
    join(broker)
    broker.send("a", "b")
    answer = broker.answer(codes.CONSUME_MESSAGE_DIRECTLY, direct(broker, msgId=message_id))
    assert (answer.code, bool(answer.remark)) == (code, True)


def test_a_message_of_another_topic_is_not_given_out(broker: RemotingBroker) -> None:
    consumer = join(broker)
    broker.topic("u")
    broker.send("a", "b")
    assert broker.answer(codes.CONSUME_MESSAGE_DIRECTLY, direct(broker, topic="u")).code == codes.INVALID_PARAMETER
    unnamed = direct(broker)
    del unnamed["topic"]
    assert broker.answer(codes.CONSUME_MESSAGE_DIRECTLY, unnamed).code == codes.INVALID_PARAMETER
    assert not consumer.asked
    info = ClientInfo("c1", consumer.peer, "JAVA", "479")
    data = ConsumerData("g", subscriptions={"t": Subscription("t")})
    broker.clients.remoting_heartbeat(consumer, info, [], [data])
    broker.send_request(codes.CONSUME_MESSAGE_DIRECTLY, unnamed)
    assert len(consumer.asked) == 1


STATUS = {"group": "g", "topic": "t"}
TABLE = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":1,"topic":"t"}:5}}'


def test_where_consumers_are(broker: RemotingBroker) -> None:
    one, two, three = join(broker, "c1"), join(broker, "c22"), join(broker, "c333")
    broker.send_request(codes.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    for peer in (one, two, three):
        [(asked, _)] = peer.asked
        assert (asked.code, asked.ext) == (codes.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "t", "group": "g"})
    one.asked[0][1](Command(0, 1, {}, TABLE, codes.FLAG_RESPONSE))
    two.asked[0][1](RequestTimeout("slow"))
    assert not broker.peer.answers
    three.asked[0][1](Command(0, 1, {}, b"{nonsense", codes.FLAG_RESPONSE))
    found = loads_bare(the_answer(broker).body)
    assert found["consumerTable"]["c333"] == {}
    [(key, offset)] = found["consumerTable"]["c1"].items()
    assert (orjson.loads(key), offset) == ({"brokerName": "broker-a", "queueId": 1, "topic": "t"}, 5)
    assert "c22" not in found["consumerTable"]


def test_one_consumer_of_several(broker: RemotingBroker) -> None:
    one, two = join(broker, "c1"), join(broker, "c22")
    broker.send_request(codes.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {**STATUS, "clientAddr": "c22"})
    assert not one.asked
    two.asked[0][1](Command(0, 1, {}, TABLE, codes.FLAG_RESPONSE))
    assert set(loads_bare(the_answer(broker).body)["consumerTable"]) == {"c22"}


@pytest.mark.parametrize("client_id", ["", "stranger"])
def test_nobody_to_ask(broker: RemotingBroker, client_id: str) -> None:
    answer = broker.answer(codes.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {**STATUS, "clientAddr": client_id})
    assert answer.code == codes.CONSUMER_NOT_ONLINE


# ---- consumers of gRPC


class Stream:
    """An open telemetry stream: what the client is asked."""

    is_open = True

    def __init__(self) -> None:
        self.asked: list[tuple[Record | None, int, Answered]] = []

    def recover_orphan(self, half: Record, transaction_id: str) -> bool:
        raise AssertionError("consumers begin nothing")

    def verify_message(self, record: Record, timeout_ms: int, answered: Answered) -> None:
        self.asked.append((record, timeout_ms, answered))

    def print_threads(self, timeout_ms: int, answered: Answered) -> None:
        self.asked.append((None, timeout_ms, answered))


def join_over_grpc(broker: RemotingBroker, connection: str = "one") -> Stream:
    stream = Stream()
    info = ClientInfo("c1", "10.0.0.1:9", "JAVA", "5.2.0", group="g", subscriptions={"t": "a || b"})
    broker.clients.heartbeat(info, connection, stream)
    return stream


def test_threads_of_a_grpc_consumer(broker: RemotingBroker) -> None:
    stream = join_over_grpc(broker)
    broker.send_request(codes.GET_CONSUMER_RUNNING_INFO, RUNNING)
    [(_, timeout_ms, answered)] = stream.asked
    assert timeout_ms == 10_000
    answered(Told(20000, "main at x"))
    info = loads_bare(the_answer(broker).body)
    assert (the_answer(broker).code, info["jstack"]) == (codes.SUCCESS, "main at x")
    assert [each["subString"] for each in info["subscriptionSet"]] == ["a || b"]
    assert info["properties"]["PROP_CLIENT_VERSION"] == "5.2.0"


def test_a_grpc_consumer_is_described_without_being_asked(broker: RemotingBroker) -> None:
    stream = join_over_grpc(broker)
    answer = broker.answer(codes.GET_CONSUMER_RUNNING_INFO, {**RUNNING, "jstackEnable": "false"})
    assert (answer.code, loads_bare(answer.body)["jstack"], stream.asked) == (codes.SUCCESS, "", [])


@pytest.mark.parametrize(
    ("told", "result"),
    [(Told(20000, ""), "CR_SUCCESS"), (Told(60000, "no"), "CR_LATER"), (Told(40016, ""), "CR_RETURN_NULL")],
)
def test_a_grpc_consumer_consumes_directly(broker: RemotingBroker, told: Told, result: str) -> None:
    stream = join_over_grpc(broker)
    broker.topic("t")
    broker.send("a", "b")
    broker.send_request(codes.CONSUME_MESSAGE_DIRECTLY, direct(broker))
    [(record, _, answered)] = stream.asked
    assert record is not None
    assert (record.topic, record.body) == ("t", b"b")
    answered(told)
    answer = loads_bare(the_answer(broker).body)
    assert (answer["consumeResult"], bool(answer["remark"])) == (result, True)


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (Told(50502, "in order"), codes.SYSTEM_ERROR),
        (RequestTimeout("slow"), codes.CONSUME_MSG_TIMEOUT),
        (RequestError(codes.SYSTEM_BUSY, "too many"), codes.SYSTEM_BUSY),
    ],
)
@pytest.mark.parametrize("code_of_request", [codes.CONSUME_MESSAGE_DIRECTLY, codes.GET_CONSUMER_RUNNING_INFO])
def test_grpc_consumers_that_do_not(
    broker: RemotingBroker, told: Told | LogboomError, code: int, code_of_request: int
) -> None:
    stream = join_over_grpc(broker)
    broker.topic("t")
    broker.send("a", "b")
    broker.send_request(code_of_request, {**direct(broker), "jstackEnable": "true"})
    stream.asked[0][2](told)
    assert (the_answer(broker).code, bool(the_answer(broker).remark)) == (code, True)


def test_the_latest_of_two_connections_with_a_stream_is_asked(broker: RemotingBroker) -> None:
    first, second = join_over_grpc(broker), join_over_grpc(broker, "two")
    broker.send_request(codes.GET_CONSUMER_RUNNING_INFO, RUNNING)
    assert (len(first.asked), len(second.asked)) == (0, 1)
    second.is_open = False
    broker.send_request(codes.GET_CONSUMER_RUNNING_INFO, RUNNING)
    assert (len(first.asked), len(second.asked)) == (1, 1)
