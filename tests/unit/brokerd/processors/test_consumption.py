"""What tools ask about consumers and producers: who is connected, who consumes what, how far everybody is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from brokerd.members.consumer_groups import ClientInfo
from brokerd.pop.requests import AckStatus, PopStatus
from remoting import codes
from remoting.bare_json import loads_bare
from remoting.java_hash import java_hash
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master


@pytest.fixture
def broker() -> RemotingBroker:
    return remoting_master()


def heartbeat(
    broker: RemotingBroker, client_id: str = "c1", peer: Peer | None = None, group: str = "g", **topics: str
) -> Peer:
    """A consumer's heartbeat; `topics` are its tag expressions."""
    peer = peer or Peer(len(client_id) + sum(map(ord, client_id)))
    document = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": "pg"}],
        "consumerDataSet": [
            {
                "groupName": group,
                "subscriptionDataSet": [
                    {"topic": topic, "subString": expression, "subVersion": 7} for topic, expression in topics.items()
                ],
            }
        ],
    }
    assert broker.answer(codes.HEART_BEAT, body=orjson.dumps(document), peer=peer).code == 0
    return peer


def ask(broker: RemotingBroker, code: int, **ext: Any) -> Any:
    """The body of a successful answer."""
    answer = broker.answer(code, ext)
    assert answer.code == 0, answer.remark
    return orjson.loads(answer.body)


# ---- connections


def test_the_members_of_a_group_and_what_they_want(broker: RemotingBroker) -> None:
    heartbeat(broker, "c1", Peer(1), t="A || Bß", u="*")
    heartbeat(broker, "c2", Peer(2), t="A || Bß", u="*")
    broker.clients.heartbeat(ClientInfo("c3", "10.0.0.1:9", "GOLANG", "v5.1", group="g", subscriptions={"t": "*"}), "x")
    found = ask(broker, codes.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
    assert sorted(found["connectionSet"], key=lambda each: each["clientId"]) == [
        {"clientAddr": "127.0.0.1:1", "clientId": "c1", "language": "JAVA", "version": codes.VERSION},
        {"clientAddr": "127.0.0.1:2", "clientId": "c2", "language": "JAVA", "version": codes.VERSION},
        {"clientAddr": "10.0.0.1:9", "clientId": "c3", "language": "OTHER", "version": 479},
    ]
    assert (found["consumeType"], found["messageModel"], found["consumeFromWhere"]) == (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_LAST_OFFSET",
    )
    assert found["subscriptionTable"]["u"] == {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "TAG",
        "subString": "*",
        "subVersion": 7,
        "tagsSet": [],
        "topic": "u",
    }


def test_hashes_of_tags_are_our_own(broker: RemotingBroker) -> None:
    heartbeat(broker, t="A || 𝄞 || Bß")
    found = ask(broker, codes.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")["subscriptionTable"]["t"]
    assert found["tagsSet"] == ["A", "Bß", "𝄞"]
    # UTF-16 units, wrapped to 32 bits: 0xD834 * 31 + 0xDD1E
    assert found["codeSet"] == [65, 66 * 31 + 223, 0xD834 * 31 + 0xDD1E]
    assert java_hash("polygenelubricants") == -(1 << 31)


def test_offline_groups_have_their_own_codes(broker: RemotingBroker) -> None:
    answer = broker.answer(codes.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    assert (answer.code, answer.remark) == (codes.CONSUMER_NOT_ONLINE, "no consumer of g is connected to this broker")
    assert broker.answer(codes.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "pg"}).code == codes.SYSTEM_ERROR


def test_producers(broker: RemotingBroker) -> None:
    heartbeat(broker, "c1", Peer(1), t="*")
    heard_ms = broker.turns.wall_ms()
    broker.turns.run(5000)
    found = ask(broker, codes.GET_PRODUCER_CONNECTION_LIST, producerGroup="pg")
    assert [each["clientId"] for each in found["connectionSet"]] == ["c1"]
    entry = {"clientId": "c1", "language": "JAVA", "remoteIP": "127.0.0.1:1", "version": codes.VERSION}
    assert ask(broker, codes.GET_ALL_PRODUCER_INFO) == {"data": {"pg": [{**entry, "lastUpdateTimestamp": heard_ms}]}}


# ---- who consumes what


def commit(broker: RemotingBroker, group: str, topic: str, queue_id: int, offset: int) -> None:
    broker.metadata.commit_offset(group, topic, queue_id, offset, None)
    broker.turns.run(10)


def test_groups_of_a_topic_are_those_that_subscribe_or_did_consume(broker: RemotingBroker) -> None:
    broker.group("old")
    commit(broker, "old", "t", 0, 1)
    heartbeat(broker, t="*")
    heartbeat(broker, "c2", group="other", u="*")
    assert ask(broker, codes.QUERY_TOPIC_CONSUME_BY_WHO, topic="t") == {"groupList": ["g", "old"]}
    assert ask(broker, codes.QUERY_TOPIC_CONSUME_BY_WHO, topic="nowhere") == {"groupList": []}


def test_topics_of_a_group_come_from_its_offsets(broker: RemotingBroker) -> None:
    broker.topic("u")
    commit(broker, "g", "u", 0, 1)
    broker.send("a")
    broker.receive(1)
    expected = {"brokerAddr": "127.0.0.1:10911", "topicList": ["t", "u"]}
    assert ask(broker, codes.QUERY_TOPICS_BY_CONSUMER, group="g") == expected
    assert ask(broker, codes.QUERY_TOPICS_BY_CONSUMER, group="h")["topicList"] == []


def test_one_subscription(broker: RemotingBroker) -> None:
    heartbeat(broker, t="A")
    found = ask(broker, codes.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="t")
    assert (found["group"], found["topic"], found["subscriptionData"]["subString"]) == ("g", "t", "A")
    assert ask(broker, codes.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="u") == {"group": "g", "topic": "u"}
    assert ask(broker, codes.QUERY_SUBSCRIPTION_BY_CONSUMER, group="h", topic="u") == {"group": "h", "topic": "u"}


# ---- how far


def offsets(body: bytes) -> list[tuple[str, int, int, int, int]]:
    """(topic, queue, end, consumed, taken) of an answer whose keys are objects."""
    table = loads_bare(body)["offsetTable"]
    found = []
    for key, value in table.items():
        queue = orjson.loads(key)
        assert queue["brokerName"] == "broker-a"
        wrapper = (value["brokerOffset"], value["consumerOffset"], value["pullOffset"])
        found.append((queue["topic"], queue["queueId"], *wrapper))
    return found


def progress(broker: RemotingBroker, **ext: str) -> list[tuple[str, int, int, int, int]]:
    answer = broker.answer(codes.GET_CONSUME_STATS, {"consumerGroup": "g", **ext})
    assert answer.code == 0, answer.remark
    return offsets(answer.body)


def test_only_what_a_live_group_subscribes_to_is_told_unless_topics_are_listed(broker: RemotingBroker) -> None:
    broker.topic("u")
    commit(broker, "g", "t", 0, 1)
    commit(broker, "g", "u", 0, 2)
    commit(broker, "g", "%RETRY%g", 0, 0)
    assert [row[0] for row in progress(broker)] == ["t", "u"], "a topic that is not there is skipped"
    heartbeat(broker, t="*")
    assert [row[0] for row in progress(broker)] == ["%RETRY%g", "t"]
    assert progress(broker, topic="u") == []
    assert [row[0] for row in progress(broker, topicList="u;t;nowhere")] == ["t", "u"]


def test_what_waits_to_be_taken_again_is_shown_once() -> None:
    broker = remoting_master(retry_share_percent=100)
    broker.group("g")
    broker.send("a", "b", "c", "d")
    first = broker.receive(3, invisible_time_ms=1000).messages
    assert broker.ack(first[1]) == [AckStatus.OK]
    broker.turns.run(1000)
    assert [row[:4] for row in progress(broker)] == [("t", 0, 4, 0)]
    assert broker.progress.in_flight("g", "t", 0) == 2
    broker.log.going_offset = broker.log.end_offset
    broker.turns.run(10_000)
    again = broker.receive(1, queue_id=0).messages
    assert [row[:4] for row in progress(broker)] == [("%RETRY%g+t", 0, 2, 0), ("t", 0, 4, 3)], (
        "two have moved, one is new"
    )
    assert broker.ack(*again) == [AckStatus.OK]
    while (receive := broker.receive()).outcome.status == PopStatus.FOUND:
        broker.ack(*receive.messages)
    assert [row[:4] for row in progress(broker)] == [("%RETRY%g+t", 0, 2, 2), ("t", 0, 4, 4)]


def test_mqadmin_shows_what_waits_to_be_taken_again_as_not_consumed_where_it_is() -> None:
    """`consumerProgress` asks for the route of the retry topic, for this table of each broker, for the members of the group, and
    each of them for its queues. Its Diff is the first number less the second, its Inflight the third less the second."""
    broker = remoting_master(retry_share_percent=100)
    broker.group("g")
    heartbeat(broker, t="*")
    assert broker.metadata.topic("%RETRY%g") is not None, "whose route is asked for first"
    broker.send("a", "b", "c", "d")
    first, second, third = broker.receive(3, invisible_time_ms=1000).messages
    assert broker.ack(second) == [AckStatus.OK]
    assert progress(broker) == [("t", 0, 4, 0, 3)], "with a client"
    broker.turns.run(1000)
    assert broker.progress.coming_back("g", "t", 0) == 2
    assert progress(broker) == [("t", 0, 4, 0, 3)], "waiting, in no other topic"
    again = broker.receive(1).messages
    assert [each.queue_offset for each in again] == [first.queue_offset]
    assert broker.ack(*again) == [AckStatus.OK]
    assert progress(broker) == [("t", 0, 4, 2, 3)], "two are finished, the third waits, the fourth was never taken"
    (again,) = broker.receive(1).messages
    assert again.queue_offset == third.queue_offset
    assert broker.ack(again) == [AckStatus.OK]
    assert progress(broker) == [("t", 0, 4, 3, 3)]
    found = loads_bare(broker.answer(codes.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body)
    assert (found["totalDiff"], found["totalInflightDiff"]) == (1, 0)
    members = ask(broker, codes.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")["connectionSet"]
    assert [each["clientId"] for each in members] == ["c1"]


def test_what_is_pulled_but_not_committed_is_in_flight(broker: RemotingBroker) -> None:
    broker.send("a", "b", "c")
    ext = {"consumerGroup": "g", "topic": "t", "queueId": 0, "queueOffset": 0, "maxMsgNums": 2, "sysFlag": 4}
    broker.answer(codes.PULL_MESSAGE, {**ext, "subscription": "*", "suspendTimeoutMillis": 0, "commitOffset": 0})
    commit(broker, "g", "t", 0, 1)
    assert progress(broker) == [("t", 0, 3, 1, 2)]
    broker.answer(codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"})
    broker.group("g")
    assert progress(broker, topic="t") == [("t", 0, 3, 0, 0)]


def test_what_is_popped_but_not_acked_is_in_flight(broker: RemotingBroker) -> None:
    broker.send("a", "b", "c")
    receive = broker.receive(2)
    broker.ack(receive.messages[0])
    assert progress(broker) == [("t", 0, 3, 1, 2)]


def test_all_groups_at_once(broker: RemotingBroker) -> None:
    broker.topic("ordered", order=True)
    broker.send("a", "b", "c")
    commit(broker, "g", "t", 0, 1)
    commit(broker, "g", "ordered", 0, 0)
    for ordered, topics, behind in (("false", ["ordered", "t"], 2), ("true", ["ordered"], 0)):
        answer = broker.answer(codes.GET_BROKER_CONSUME_STATS, {"isOrder": ordered})
        found = loads_bare(answer.body)
        assert (found["brokerAddr"], found["totalDiff"], found["totalInflightDiff"]) == ("127.0.0.1:10911", behind, 0)
        listed: Sequence[dict[str, Any]] = next(each["g"] for each in found["consumeStatsList"] if "g" in each)
        assert [orjson.loads(key)["topic"] for stats in listed for key in stats["offsetTable"]] == topics


def test_how_old_the_next_message_is(broker: RemotingBroker) -> None:
    broker.topic("t", 2)
    start_ms = broker.turns.wall_ms()
    for body in "abc":
        broker.send(body)
        broker.turns.run(1000)
    commit(broker, "g", "t", 0, 2)
    first, second = ask(broker, codes.QUERY_CONSUME_TIME_SPAN, topic="t", group="g")["consumeTimeSpanSet"]
    assert first == {
        "consumeTimeStamp": start_ms + 1000,
        "delayTime": broker.turns.wall_ms() - start_ms - 2000,
        "maxTimeStamp": start_ms + 2000,
        "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "t"},
        "minTimeStamp": start_ms,
    }
    assert (second["minTimeStamp"], second["consumeTimeStamp"], second["delayTime"]) == (-1, -1, 0)
    commit(broker, "g", "t", 0, 3)
    assert ask(broker, codes.QUERY_CONSUME_TIME_SPAN, topic="t", group="g")["consumeTimeSpanSet"][0]["delayTime"] == 0
    answer = broker.answer(codes.QUERY_CONSUME_TIME_SPAN, {"topic": "nowhere", "group": "g"})
    assert answer.code == codes.TOPIC_NOT_EXIST


def test_correction_is_where_the_slowest_other_group_is(broker: RemotingBroker) -> None:
    broker.topic("t", 3)
    for group, queues in {"g": {0: 5, 1: 5, 2: 5}, "a": {0: 3, 1: 7}, "b": {0: 4, 1: 1}, "c": {0: 0}}.items():
        for queue_id, offset in queues.items():
            commit(broker, group, "t", queue_id, offset)
    ext = {"topic": "t", "compareGroup": "g", "filterGroups": "b, c,g"}
    found = ask(broker, codes.QUERY_CORRECTION_OFFSET, **ext)
    # of queue 2 no other group knows anything; in queue 1 the others are ahead
    assert found == {"correctionOffsets": {"0": 3, "1": (1 << 63) - 1, "2": (1 << 63) - 1}}
    assert ask(broker, codes.QUERY_CORRECTION_OFFSET, topic="t", compareGroup="g")["correctionOffsets"]["0"] == 0
    assert broker.metadata.consumer_offset("b", "t", 0) == 4, "who is left out loses nothing"


@pytest.mark.parametrize(
    "code",
    [
        codes.GET_CONSUMER_CONNECTION_LIST,
        codes.GET_PRODUCER_CONNECTION_LIST,
        codes.QUERY_TOPIC_CONSUME_BY_WHO,
        codes.QUERY_TOPICS_BY_CONSUMER,
        codes.QUERY_SUBSCRIPTION_BY_CONSUMER,
        codes.QUERY_CONSUME_TIME_SPAN,
        codes.QUERY_CORRECTION_OFFSET,
    ],
)
def test_fields_that_are_missing_are_named(broker: RemotingBroker, code: int) -> None:
    answer = broker.answer(code)
    assert (answer.code, "is required" in (answer.remark or "")) == (codes.INVALID_PARAMETER, True)
