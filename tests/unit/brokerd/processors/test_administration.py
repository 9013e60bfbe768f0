"""Offsets, topics, groups, clients, state: what administration and consumers ask beside messages."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from brokerd.members.consumer_groups import ClientInfo
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.metadata.consumer_rules import RequestMode
from remoting import codes
from remoting.codes import FLAG_ONEWAY
from remoting.facts.broker_state import BrokerState
from remoting.facts.codec import decode
from remoting.facts.lag import Lag, topic_lags
from remoting.group_settings import attribute_changes
from remoting.record.codec import decode_record
from remoting.registry import ROWS, By
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master


@pytest.fixture
def broker() -> RemotingBroker:
    return remoting_master()


# ---- offsets


def query(broker: RemotingBroker, **changes: Any) -> Any:
    ext = {"consumerGroup": "g", "topic": "t", "queueId": 0, **changes}
    return broker.answer(codes.QUERY_CONSUMER_OFFSET, ext)


def test_offsets_are_updated_and_queried(broker: RemotingBroker) -> None:
    ext = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": 7}
    opaque = broker.send_request(codes.UPDATE_CONSUMER_OFFSET, ext)
    broker.turns.run(10)
    assert broker.peer.answers[opaque].code == 0
    assert query(broker).ext == {"offset": "7"}
    broker.send_request(codes.UPDATE_CONSUMER_OFFSET, {**ext, "commitOffset": 3}, flag=FLAG_ONEWAY)
    broker.turns.run(10)
    assert query(broker).ext == {"offset": "3"}


def test_a_young_queue_is_consumed_from_its_start(broker: RemotingBroker) -> None:
    assert query(broker).ext == {"offset": "0"}
    broker.send("a", "b")
    assert query(broker).ext == {"offset": "0"}
    assert query(broker, setZeroIfNotFound="false").code == codes.QUERY_NOT_FOUND
    broker.log.expire("t", 0, 1)
    assert query(broker).code == codes.QUERY_NOT_FOUND


def test_popped_offsets_are_seen_too(broker: RemotingBroker) -> None:
    broker.send("a", "b", "c")
    messages = broker.receive(2).messages
    assert query(broker).ext == {"offset": "0"}
    broker.ack(messages[0])
    assert query(broker).ext == {"offset": "1"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"consumerGroup": "h"}, codes.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"topic": "u"}, codes.TOPIC_NOT_EXIST),
        ({"queueId": 1}, codes.INVALID_PARAMETER),
        ({"commitOffset": -1}, codes.INVALID_PARAMETER),
        ({"commitOffset": ""}, codes.INVALID_PARAMETER),
        ({"consumerGroup": "CID_RMQ_SYS_TRANS"}, codes.NO_PERMISSION),
    ],
)
def test_bad_offsets_are_refused(broker: RemotingBroker, changes: dict[str, Any], code: int) -> None:
    ext = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": 7, **changes}
    assert broker.answer(codes.UPDATE_CONSUMER_OFFSET, ext).code == code


def test_ranges_of_queues(broker: RemotingBroker) -> None:
    queue = {"topic": "t", "queueId": 0}
    assert broker.answer(codes.GET_MAX_OFFSET, queue).ext == {"offset": "0"}
    assert broker.answer(codes.GET_EARLIEST_MSG_STORETIME, queue).ext == {"timestamp": "-1"}
    broker.send("a", "b", "c")
    broker.log.expire("t", 0, 1)
    assert broker.answer(codes.GET_MAX_OFFSET, queue).ext == {"offset": "3"}
    assert broker.answer(codes.GET_MIN_OFFSET, queue).ext == {"offset": "1"}
    assert int(broker.answer(codes.GET_EARLIEST_MSG_STORETIME, queue).ext["timestamp"]) == broker.turns.wall_ms()


def test_offsets_by_time(broker: RemotingBroker) -> None:
    times = []
    for body in "abc":
        broker.send(body)
        times.append(broker.turns.wall_ms())
        broker.turns.run(1000)
    for timestamp, lower, upper in ((times[1], 1, 1), (times[1] + 1, 2, 1), (0, 0, 0), (times[2] + 9999, 3, 2)):
        ext = {"topic": "t", "queueId": 0, "timestamp": timestamp}
        assert broker.answer(codes.SEARCH_OFFSET_BY_TIMESTAMP, ext).ext == {"offset": str(lower)}
        for boundary, expected in (("upper", upper), ("UPPER", upper), ("Lower", lower), ("LOWER", lower), ("", lower)):
            ext["boundaryType"] = boundary
            assert broker.answer(codes.SEARCH_OFFSET_BY_TIMESTAMP, ext).ext == {"offset": str(expected)}
    for timestamp, offset in ((-1, 0), (-(1 << 63), 0), ((1 << 63) - 1, 3)):
        ext = {"topic": "t", "queueId": 0, "timestamp": timestamp}
        assert broker.answer(codes.SEARCH_OFFSET_BY_TIMESTAMP, ext).ext == {"offset": str(offset)}
    for topic, queue_id in (("t", 77), ("nowhere", 0)):
        ext = {"topic": topic, "queueId": queue_id, "timestamp": times[1]}
        assert broker.answer(codes.SEARCH_OFFSET_BY_TIMESTAMP, ext).ext == {"offset": "0"}


def test_a_message_by_its_place(broker: RemotingBroker) -> None:
    broker.send("a", "b")
    place = decode_record(broker.log.bodies("t")[1]).physical_offset
    answer = broker.answer(codes.VIEW_MESSAGE_BY_ID, {"offset": place})
    assert decode_record(answer.body).body == b"b"
    assert broker.answer(codes.VIEW_MESSAGE_BY_ID, {"offset": place + 1}).code == codes.SYSTEM_ERROR


# ---- topics and groups

TOPIC = {
    "topic": "u",
    "defaultTopic": "TBW102",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "order": "false",
}


def test_topics_are_created_changed_and_deleted(broker: RemotingBroker) -> None:
    ext = {**TOPIC, "attributes": "+message.type=FIFO"}
    assert (broker.answer(codes.UPDATE_AND_CREATE_TOPIC, ext).code, broker.metadata.topic("u")) == (
        0,
        TopicConfig("u", 4, 4, attributes={"message.type": "FIFO"}),
    )
    assert broker.answer(codes.UPDATE_AND_CREATE_TOPIC, ext).remark == "unchanged"
    assert broker.answer(codes.UPDATE_AND_CREATE_TOPIC, TOPIC).remark == "unchanged", "attributes stay unless named"
    answer = broker.answer(codes.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "attributes": "-message.type", "perm": 4})
    assert (answer.code, answer.remark) == (0, None)
    assert broker.metadata.topic("u") == TopicConfig("u", 4, 4, 4)
    assert broker.answer(codes.DELETE_TOPIC_IN_BROKER, {"topic": "u"}).code == 0
    assert broker.metadata.topic("u") is None
    assert broker.answer(codes.DELETE_TOPIC_IN_BROKER, {"topic": "u"}).remark == "unchanged"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "TBW102"}, codes.INVALID_PARAMETER),
        ({"topic": "a b"}, codes.INVALID_PARAMETER),
        ({"topic": ""}, codes.INVALID_PARAMETER),
        ({"perm": 9}, codes.INVALID_PARAMETER),
        ({"readQueueNums": "many"}, codes.INVALID_PARAMETER),
        ({"attributes": "message.type=FIFO"}, codes.INVALID_PARAMETER),
        ({"attributes": "+message.type=X"}, codes.SYSTEM_ERROR),
    ],
)
def test_bad_topics_are_refused(broker: RemotingBroker, changes: dict[str, Any], code: int) -> None:
    answer = broker.answer(codes.UPDATE_AND_CREATE_TOPIC, {**TOPIC, **changes})
    assert answer.code == code
    assert answer.remark


def test_a_topic_does_not_shrink_over_unread_messages(broker: RemotingBroker) -> None:
    broker.topic("t", 4)
    broker.send("a", queue_id=3)
    ext = {**TOPIC, "topic": "t", "readQueueNums": 2, "writeQueueNums": 2}
    answer = broker.answer(codes.UPDATE_AND_CREATE_TOPIC, ext)
    assert answer.code == codes.INVALID_PARAMETER
    assert "queues 2 to 3 of t hold messages" in (answer.remark or "")
    broker.ack(*broker.receive(queue_id=3).messages)
    assert broker.answer(codes.UPDATE_AND_CREATE_TOPIC, ext).code == 0
    broker.receive(group="slow", queue_id=0)
    broker.send("b", queue_id=1)
    ext = {**ext, "readQueueNums": 1, "writeQueueNums": 1}
    assert broker.answer(codes.UPDATE_AND_CREATE_TOPIC, ext).code == codes.INVALID_PARAMETER


def test_groups_are_created_changed_and_deleted(broker: RemotingBroker) -> None:
    body = {"groupName": "h", "consumeMessageOrderly": True, "retryMaxTimes": "3", "unknown": 1, "attributes": None}
    put = codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert broker.answer(put, body=orjson.dumps(body)).code == 0
    assert broker.metadata.group("h") == GroupConfig("h", fifo=True, retry_max_times=3)
    assert broker.answer(put, body=orjson.dumps(body)).remark == "unchanged"
    broker.metadata.commit_offset("h", "t", 0, 5, None)
    broker.turns.run(10)
    assert broker.answer(codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "h"}).code == 0
    assert broker.metadata.consumer_offset("h", "t", 0) == 5
    assert broker.answer(codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "h"}).remark == "unchanged"
    broker.group("h")
    broker.answer(codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "h", "cleanOffset": "true"})
    assert broker.metadata.consumer_offset("h", "t", 0) is None


def test_settings_of_a_group_change_one_by_one_and_are_told(broker: RemotingBroker) -> None:
    def told() -> tuple[str | None, int | None, int | None]:
        groups = decode(BrokerState, broker.answer(codes.BROKER_STATE).body).groups
        [group] = [each for each in groups if each.name == "g"]
        return group.order_scope, group.invisible_min_ms, group.invisible_max_ms

    def change(**settings: str | int | None) -> int:
        config = orjson.loads(broker.answer(codes.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}).body)
        body = orjson.dumps({**config, "attributes": attribute_changes(settings)})
        return broker.answer(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code

    assert told() == ("QUEUE", None, None)
    assert change(order_scope="MESSAGE_GROUP", invisible_min_ms=5, invisible_max_ms=9) == 0
    assert told() == ("MESSAGE_GROUP", 5, 9)
    assert change(invisible_min_ms=10) == codes.INVALID_PARAMETER, "with what stays"
    assert change(invisible_min_ms=10, invisible_max_ms=None) == 0
    assert change(invisible_max_ms=None) == 0, "what is not there"
    assert told() == ("MESSAGE_GROUP", 10, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"groupName":5}',
        b'{"groupName":"a b"}',
        b'{"groupName":"h","retryMaxTimes":"many"}',
        b'{"groupName":"h","retryMaxTimes":true}',
        b'{"groupName":"h","consumeEnable":"yes"}',
    ],
)
def test_bad_groups_are_refused(broker: RemotingBroker, body: bytes) -> None:
    answer = broker.answer(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == codes.INVALID_PARAMETER


def test_all_topics_and_groups_in_one_page(broker: RemotingBroker) -> None:
    answer = broker.answer(codes.GET_ALL_TOPIC_CONFIG, {"topicSeq": 0})
    assert "totalTopicNum" not in answer.ext
    topics = orjson.loads(answer.body)
    assert topics["topicConfigTable"]["t"]["readQueueNums"] == 1
    assert set(topics["dataVersion"]) == {"counter", "stateVersion", "timestamp"}
    groups = orjson.loads(broker.answer(codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert groups["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 16
    assert "TOOLS_CONSUMER" in groups["subscriptionGroupTable"]
    assert groups["forbiddenTable"] == {}


def test_a_listing_leaves_out_the_type_that_a_topic_has_anyway(broker: RemotingBroker) -> None:
    for name, message_type in (("plain", "NORMAL"), ("ordered", "FIFO")):
        ext = {**TOPIC, "topic": name, "attributes": f"+message.type={message_type}"}
        assert broker.answer(codes.UPDATE_AND_CREATE_TOPIC, ext).code == 0
    listed = orjson.loads(broker.answer(codes.GET_ALL_TOPIC_CONFIG).body)["topicConfigTable"]
    assert (listed["plain"]["attributes"], listed["ordered"]["attributes"]) == ({}, {"message.type": "FIFO"})
    alone = orjson.loads(broker.answer(codes.GET_TOPIC_CONFIG, {"topic": "plain"}).body)
    assert alone["attributes"] == {"message.type": "NORMAL"}
    put_again = orjson.dumps({"topicConfigList": [listed["plain"]]})
    assert broker.answer(codes.UPDATE_AND_CREATE_TOPIC_LIST, body=put_again).remark == "unchanged"


def test_all_of_a_groups_configuration_is_kept_and_returned(broker: RemotingBroker) -> None:
    given = {
        "attributes": {"colour": "red"},
        "brokerId": 2,
        "consumeBroadcastEnable": False,
        "consumeEnable": False,
        "consumeFromMinEnable": False,
        "consumeMessageOrderly": True,
        "consumeTimeoutMinute": 5,
        "groupName": "h",
        "groupRetryPolicy": {"customizedRetryPolicy": {"next": [1000, 5000]}, "type": "CUSTOMIZED"},
        "groupSysFlag": 3,
        "notifyConsumerIdsChangedEnable": False,
        "retryMaxTimes": 7,
        "retryQueueNums": 2,
        "subscriptionDataSet": [{"expression": "A", "expressionType": "TAG", "topic": "t", "version": 9}],
        "whichBrokerWhenConsumeSlowly": 3,
    }
    put, get = codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, codes.GET_SUBSCRIPTIONGROUP_CONFIG
    assert broker.answer(put, body=orjson.dumps(given | {"somethingNew": {"x": [1]}})).code == 0
    assert orjson.loads(broker.answer(get, {"group": "h"}).body) == given
    broker.metadata.rebuild()
    assert orjson.loads(broker.answer(get, {"group": "h"}).body) == given
    every = orjson.loads(broker.answer(codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert every["subscriptionGroupTable"]["h"] == given
    policy = {"type": 1, "exponentialRetryPolicy": {"initial": 5, "max": 50, "multiplier": 3}}
    changed = {"groupName": "h", "groupRetryPolicy": policy, "attributes": {"-colour": "", "+size": "1"}}
    assert broker.answer(put, body=orjson.dumps(given | changed)).code == 0
    found = orjson.loads(broker.answer(get, {"group": "h"}).body)
    assert found["groupRetryPolicy"] == {**policy, "type": "EXPONENTIAL"}
    assert found["attributes"] == {"size": "1"}
    assert broker.answer(get, {"group": "nobody"}).code == codes.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    "changes",
    [
        {"groupRetryPolicy": "fast"},
        {"groupRetryPolicy": {"type": "SOMETIMES"}},
        {"groupRetryPolicy": {"customizedRetryPolicy": {"next": [1] * 65}}},
        {"groupRetryPolicy": {"customizedRetryPolicy": {"next": [-1]}}},
        {"groupRetryPolicy": {"exponentialRetryPolicy": {"multiplier": 0}}},
        {"subscriptionDataSet": [1]},
        {"attributes": {f"a{n}": "1" for n in range(65)}},
        {"attributes": {"": "1"}},
        {"consumeTimeoutMinute": 0},
    ],
)
def test_what_a_group_cannot_be_is_refused(broker: RemotingBroker, changes: dict[str, Any]) -> None:
    body = orjson.dumps({"groupName": "h", **changes})
    assert broker.answer(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == codes.INVALID_PARAMETER
    assert broker.metadata.group("h") is None


def test_lists_are_taken_whole_or_not_at_all(broker: RemotingBroker) -> None:
    topics = [{"topicName": f"n{n}", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for n in range(3)]
    topics[1] |= {"attributes": {"+message.type": "FIFO"}, "topicFilterType": "MULTI_TAG", "order": True}
    put = codes.UPDATE_AND_CREATE_TOPIC_LIST
    bad = orjson.dumps({"topicConfigList": [*topics, {"topicName": "TBW102"}]})
    assert broker.answer(put, body=bad).code == codes.INVALID_PARAMETER
    assert broker.metadata.topic("n0") is None
    body = orjson.dumps({"topicConfigList": topics})
    assert broker.answer(put, body=body).code == 0
    assert broker.metadata.topic("n1") == TopicConfig("n1", 2, 2, 6, 0, True, {"message.type": "FIFO"}, True)
    config = orjson.loads(broker.answer(codes.GET_TOPIC_CONFIG, {"topic": "n1", "lo": "true"}).body)
    assert (config["topicName"], config["topicFilterType"], config["order"]) == ("n1", "MULTI_TAG", True)
    assert broker.answer(codes.GET_TOPIC_CONFIG, {"topic": "nowhere"}).code == codes.TOPIC_NOT_EXIST
    groups = {"groupConfigList": [{"groupName": "h1"}, {"groupName": "h2", "retryMaxTimes": 1}]}
    put = codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    for wrong in ({"groupConfigList": [*groups["groupConfigList"], {"groupName": "h1"}]}, {"groupConfigList": []}):
        assert broker.answer(put, body=orjson.dumps(wrong)).code == codes.INVALID_PARAMETER
    assert broker.metadata.group("h1") is None
    assert broker.answer(put, body=orjson.dumps(groups)).code == 0
    assert broker.answer(put, body=orjson.dumps(groups)).remark == "unchanged"
    assert broker.metadata.group("h2") == GroupConfig("h2", retry_max_times=1)


def test_what_was_exported_can_be_put_again(broker: RemotingBroker) -> None:
    attributes = "+message.type=FIFO,+queue.type=SimpleCQ"
    assert broker.answer(codes.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "attributes": attributes}).code == 0
    exported = orjson.loads(broker.answer(codes.GET_ALL_TOPIC_CONFIG).body)["topicConfigTable"]["u"]
    put = codes.UPDATE_AND_CREATE_TOPIC_LIST
    assert broker.answer(put, body=orjson.dumps({"topicConfigList": [exported]})).remark == "unchanged"
    elsewhere = exported | {"topicName": "v"}
    assert broker.answer(put, body=orjson.dumps({"topicConfigList": [elsewhere]})).code == 0
    found = broker.metadata.topic("v")
    assert found is not None
    assert found.attributes == {"message.type": "FIFO", "queue.type": "SimpleCQ"}


def test_system_topics_by_name(broker: RemotingBroker) -> None:
    listed = orjson.loads(broker.answer(codes.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body)["topicList"]
    assert {"TBW102", "broker-a", "SCHEDULE_TOPIC_XXXX"} <= set(listed)
    assert "t" not in listed


@pytest.mark.parametrize(
    ("attributes", "rule"),
    [
        ("+message.type=FIFO,+message.type=DELAY", "named twice"),
        ("-reserve.time", "no attribute reserve.time to remove"),
        ("+queue.type=SimpleCQ", "given when a topic is created"),
        ("+colour=red", "unsupported topic attribute"),
    ],
)
def test_changes_of_attributes_that_the_protocol_refuses(broker: RemotingBroker, attributes: str, rule: str) -> None:
    answer = broker.answer(codes.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "t", "attributes": attributes})
    assert answer.code == codes.SYSTEM_ERROR
    assert rule in (answer.remark or "")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("code", "table", "sequence", "count", "total"),
    [
        (codes.GET_ALL_TOPIC_CONFIG, "topicConfigTable", "topicSeq", "maxTopicNum", "totalTopicNum"),
        (
            codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            "subscriptionGroupTable",
            "groupSeq",
            "maxGroupNum",
            "totalGroupNum",
        ),
    ],
)
def test_pages_as_the_originals_client_reads_them(
    broker: RemotingBroker, code: int, table: str, sequence: str, count: str, total: str, size: int
) -> None:
    found: dict[str, Any] = {}
    version: Any = None
    changes = 0
    while True:
        asked = {sequence: len(found), count: size, "dataVersion": orjson.dumps(version).decode() if version else ""}
        answer = broker.answer(code, asked)
        body = orjson.loads(answer.body)
        found |= body[table]
        version, before = body["dataVersion"], version or body["dataVersion"]
        if total not in answer.ext:
            break
        if version != before:
            found.clear()
            continue
        if len(found) >= int(answer.ext[total]) - 1:
            break
        if changes == 0:  # somebody changes the tables while they are read
            changes = 1
            broker.topic("late")
            broker.group("late")
    everything = orjson.loads(broker.answer(code).body)[table]
    assert found == everything


def test_statistics_have_objects_as_keys(broker: RemotingBroker) -> None:
    broker.topic("t", 2)
    broker.send("a", "b")
    now = broker.turns.wall_ms()
    assert broker.answer(codes.GET_TOPIC_STATS_INFO, {"topic": "t"}).body == (
        b'{"offsetTable":{'
        b'{"brokerName":"broker-a","queueId":0,"topic":"t"}:{"lastUpdateTimestamp":%d,"maxOffset":2,"minOffset":0},'
        b'{"brokerName":"broker-a","queueId":1,"topic":"t"}:{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}'
        b'},"topicPutTps":0.0}' % now
    )
    assert broker.answer(codes.GET_TOPIC_STATS_INFO, {"topic": "u"}).code == codes.TOPIC_NOT_EXIST


def test_progress_of_a_group(broker: RemotingBroker) -> None:
    broker.send("a", "b", "c")
    broker.metadata.commit_offset("g", "t", 0, 2, None)
    broker.turns.run(10)
    entry = (
        b'{"brokerName":"broker-a","queueId":0,"topic":"t"}:{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":%d,'
    )
    expected = b'{"consumeTps":0.0,"offsetTable":{' + entry % (broker.turns.wall_ms() - 10) + b'"pullOffset":2}}}'
    for ext in ({}, {"topic": "t"}, {"topicList": "t;nowhere"}):
        assert broker.answer(codes.GET_CONSUME_STATS, {"consumerGroup": "g", **ext}).body == expected
    empty = broker.answer(codes.GET_CONSUME_STATS, {"consumerGroup": "h"})
    assert empty.body == b'{"consumeTps":0.0,"offsetTable":{}}'


# ---- clients


def heartbeat(broker: RemotingBroker, peer: Peer | None = None, **changes: Any) -> Any:
    document = {
        "clientID": "c1",
        "producerDataSet": [{"groupName": "pg"}],
        "consumerDataSet": [
            {
                "groupName": "g",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [{"topic": "t", "subString": "A || B", "subVersion": 5, "codeSet": ["x"]}],
            }
        ],
        **changes,
    }
    return broker.answer(codes.HEART_BEAT, body=orjson.dumps(document), peer=peer)


def test_a_heartbeat_makes_a_member_and_its_retry_topic(broker: RemotingBroker) -> None:
    answer = heartbeat(broker)
    assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert broker.metadata.topic("%RETRY%g") == TopicConfig("%RETRY%g", 1, 1)
    (member,) = broker.clients.members("g")
    assert (member.client_id, member.address, member.language) == ("c1", "127.0.0.1:5000", "JAVA")
    ids = broker.answer(codes.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
    assert orjson.loads(ids.body) == {"consumerIdList": ["c1"]}
    assert broker.answer(codes.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "h"}).code == codes.SYSTEM_ERROR


def test_every_member_hears_of_a_change_once(broker: RemotingBroker) -> None:
    one, two = Peer(1), Peer(2)
    heartbeat(broker, one)
    heartbeat(broker, two, clientID="c2")
    heartbeat(broker, two, clientID="c2")
    notice = (codes.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
    assert (one.notices, two.notices) == ([notice, notice], [notice])
    broker.answer(codes.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "g", "producerGroup": ""}, peer=one)
    assert two.notices == [notice, notice]
    assert [member.client_id for member in broker.clients.members("g")] == ["c2"]
    assert [member.client_id for member in broker.clients.producers("pg")] == ["c1", "c2"]


def test_other_clients_dialects_are_understood(broker: RemotingBroker) -> None:
    consumers = [
        {
            "groupName": "g",
            "consumeType": 1,
            "messageModel": 0,
            "consumeFromWhere": 4,
            "subscriptionDataSet": [
                {"topic": "t", "subString": "*", "subVersion": "7", "tagsSet": None},
                {"topic": "t", "subString": "old", "subVersion": "6"},
            ],
        }
    ]
    answer = heartbeat(broker, consumerDataSet=consumers, producerDataSet=None)
    assert answer.code == 0
    group = broker.clients.consumer_group("g")
    assert group is not None
    assert (group.message_model, group.consume_from) == ("BROADCASTING", "CONSUME_FROM_FIRST_OFFSET")
    assert (group.subscriptions["t"].version, group.subscriptions["t"].expression) == (7, "*")


def test_heartbeats_without_content(broker: RemotingBroker) -> None:
    assert heartbeat(broker, withoutSub=True, heartbeatFingerprint=9).ext["IS_SUB_CHANGE"] == "true"
    heartbeat(broker, heartbeatFingerprint=9)
    assert heartbeat(broker, withoutSub=True, heartbeatFingerprint=9).ext["IS_SUB_CHANGE"] == "false"
    assert heartbeat(broker, withoutSub=True, heartbeatFingerprint=8).ext["IS_SUB_CHANGE"] == "true"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"clientID":""}',
        b'{"clientID":5}',
        b'{"clientID":"c","consumerDataSet":{}}',
        b'{"clientID":"c","consumerDataSet":[1]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"?"}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","subVersion":"x"}]}]}',
    ],
)
def test_bad_heartbeats_are_refused(broker: RemotingBroker, body: bytes) -> None:
    assert broker.answer(codes.HEART_BEAT, body=body).code == codes.INVALID_PARAMETER


def test_a_replica_takes_heartbeats_but_makes_nothing(broker: RemotingBroker) -> None:
    broker.is_master = False
    assert heartbeat(broker).code == 0
    assert broker.metadata.topic("%RETRY%g") is None
    assert len(broker.clients.members("g")) == 1


def test_groups_that_cannot_be_made_are_left_out(broker: RemotingBroker) -> None:
    assert heartbeat(broker, consumerDataSet=[{"groupName": "bad name"}]).code == 0
    assert broker.clients.members("bad name") == ()


def test_expressions_are_checked(broker: RemotingBroker) -> None:
    def check(**subscription: str) -> int:
        body = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "t", **subscription}}
        return broker.answer(codes.CHECK_CLIENT_CONFIG, body=orjson.dumps(body)).code

    assert check(expressionType="TAG", subString="a || b") == 0
    assert check(expressionType="SQL92", subString="a > 5") == 0
    assert check(expressionType="SQL92", subString="a >") == codes.SUBSCRIPTION_PARSE_FAILED
    too_many = " OR ".join(["a<1"] * 2300)
    assert check(expressionType="SQL92", subString=too_many) == codes.SUBSCRIPTION_PARSE_FAILED


# ---- state and registry


def test_the_state_document(broker: RemotingBroker) -> None:
    broker.send("a", "b")
    broker.receive(1)
    heartbeat(broker)
    state = orjson.loads(broker.answer(codes.BROKER_STATE).body)
    assert {name: state[name] for name in ("clusterName", "brokerName", "brokerId", "role", "masterEpoch")} == {
        "clusterName": "cluster",
        "brokerName": "broker-a",
        "brokerId": 1,
        "role": "master",
        "masterEpoch": 3,
    }
    assert state["epochs"] == [{"epoch": 1, "startOffset": 0}, {"epoch": 3, "startOffset": 5}]
    topics = {each["name"]: each for each in state["topics"]}
    assert topics["t"] == {
        "name": "t",
        "type": "NORMAL",
        "perm": 6,
        "readQueues": 1,
        "writeQueues": 1,
        "system": False,
        "localReservedHours": None,
        "tiered": None,
        "tierReservedHours": None,
        "tierArchived": None,
        "tierExported": False,
        "queues": [
            {
                "queueId": 0,
                "minOffset": 0,
                "maxOffset": 2,
                "lastStoreMs": broker.turns.wall_ms(),
                "beginsRecently": True,
                "tier": None,
            }
        ],
    }
    assert topics["SELF_TEST_TOPIC"]["system"]
    groups = {each["name"]: each for each in state["groups"]}
    (topic,) = groups["g"]["topics"]
    assert topic["queues"] == [
        {
            "queueId": 0,
            "consumerOffset": 0,
            "inFlight": 1,
            "comingBack": None,
            "pendingReset": None,
            "heldSinceMs": broker.turns.wall_ms(),
            "blockedUntilMs": None,
            "waitingGroups": [],
        }
    ]
    assert groups["g"]["members"] == [
        {"clientId": "c1", "address": "127.0.0.1:5000", "language": "JAVA", "version": "479"}
    ]
    assert groups["g"]["forbidden"] == []
    broker.metadata.forbid("g", "u", True, lambda _: None)
    broker.metadata.forbid("g", "t", True, lambda _: None)
    broker.metadata.commits.reset("g", "t", {0: 1}, lambda _: None)
    later = orjson.loads(broker.answer(codes.BROKER_STATE).body)
    [group] = [each for each in later["groups"] if each["name"] == "g"]
    assert (group["forbidden"], group["topics"][0]["queues"][0]["pendingReset"]) == (["t"], 1)
    assert state["connections"] == 7
    assert state["indexLagBytes"] == 11
    assert state["lastError"] is None


NEW = "a-consumer-group-that-has-received-nothing-yet-of-the-topic-" + "x" * 30


def starts(broker: RemotingBroker, group: str) -> list[dict[str, str]]:
    state = orjson.loads(broker.answer(codes.BROKER_STATE).body)
    [found] = [each for each in state["groups"] if each["name"] == group]
    subscriptions: list[dict[str, str]] = found["subscriptions"]
    return subscriptions


def consumer(**changes: Any) -> list[dict[str, Any]]:
    return [{"groupName": NEW, "subscriptionDataSet": [{"topic": "t", "subString": "*"}], **changes}]


@pytest.mark.parametrize(
    ("said", "mode", "start"),
    [
        ("CONSUME_FROM_LAST_OFFSET", "PULL", "end"),
        ("CONSUME_FROM_MIN_OFFSET", "PULL", "end"),  # clients take the older ways to say it for the end
        ("CONSUME_FROM_FIRST_OFFSET", "PULL", "first"),
        ("CONSUME_FROM_TIMESTAMP", "PULL", "unknown"),
        ("CONSUME_FROM_TIMESTAMP", "POP", "last-message"),
        ("CONSUME_FROM_LAST_OFFSET", "POP", "last-message"),
        ("CONSUME_FROM_FIRST_OFFSET", "POP", "first"),
    ],
)
def test_where_a_group_would_start_is_told_by_what_its_consumers_say(
    broker: RemotingBroker, said: str, mode: str, start: str
) -> None:
    heartbeat(broker, consumerDataSet=consumer(consumeFromWhere=said))
    broker.metadata.set_request_mode(NEW, "t", RequestMode(mode, 0), lambda _: None)
    assert starts(broker, NEW) == [{"topic": "t", "start": start}]
    broker.clients.heartbeat(ClientInfo("grpc", "h:1", "GO", "5", group=NEW, subscriptions={"t": "*"}), "c")
    both = starts(broker, NEW)
    assert both == [{"topic": "t", "start": start if start == "last-message" else "unknown"}]


def test_a_group_in_which_everybody_gets_everything_has_no_lag_to_tell(broker: RemotingBroker) -> None:
    heartbeat(broker, consumerDataSet=consumer(messageModel="BROADCASTING"))
    assert starts(broker, NEW) == []


def test_the_lag_of_a_broker_counts_queues_without_an_offset(broker: RemotingBroker) -> None:
    def lags() -> dict[tuple[str, str], Lag]:
        state = decode(BrokerState, broker.answer(codes.BROKER_STATE).body)
        return {(each.group, each.topic): each.lag for each in topic_lags(state)}

    broker.send("a", "b", "c")
    assert (NEW, "t") not in lags(), "nobody of the group wants the topic"
    heartbeat(broker, consumerDataSet=consumer())
    assert lags()[NEW, "t"] == Lag(3, at_least=False)
    broker.metadata.commit_offset(NEW, "t", 0, 1, None)
    broker.metadata.commits.flush()
    assert lags()[NEW, "t"] == Lag(2, at_least=False)


def test_what_is_for_the_master_a_replica_refuses(broker: RemotingBroker) -> None:
    broker.is_master = False
    for code in broker.handlers:
        if ROWS[code].by & (By.MASTER | By.MASTER_ASKED):
            assert broker.answer(code).code == codes.SERVICE_NOT_AVAILABLE
    broker.is_master = True


@pytest.mark.parametrize("code", [entry for entry in (11, 14, 15, 17, 29, 30, 33, 34, 38, 46, 200, 202, 207, 208)])
def test_requests_without_fields_get_an_answer(broker: RemotingBroker, code: int) -> None:
    assert broker.answer(code).code in (codes.INVALID_PARAMETER, codes.SYSTEM_ERROR)


def test_a_clock_that_retention_does_not_believe_is_what_is_wrong_now(broker: RemotingBroker) -> None:
    assert decode(BrokerState, broker.answer(codes.BROKER_STATE).body).last_error is None
    broker.retention_doubt = "retention does not believe this machine's clock"
    told = decode(BrokerState, broker.answer(codes.BROKER_STATE).body).last_error
    assert told == "retention does not believe this machine's clock"
