"""Pull: every status, every refusal, filters, holding and waking."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from brokerd.consuming.read_place import PullSettings
from brokerd.members.consumer_groups import ClientInfo, ConsumerData, Subscription
from brokerd.processors.pulling.checks import FLAG_COMMIT, FLAG_SUBSCRIPTION, FLAG_SUSPEND
from brokerd.processors.pulling.pull import answer_of
from brokerd.store.queues.queue_reads import GetResult, GetStatus
from remoting import codes
from remoting.frame import Command
from remoting.record.codec import decode_records
from tests.support.native_library import native_library
from tests.support.pulls import pull_fields
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master

HEADER = {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"}


@pytest.fixture(autouse=True, params=["decoded", "as they come"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How pulls are taken."""
    if request.param != "decoded":
        monkeypatch.setattr(RemotingBroker, "library", native_library())
    return str(request.param)


@pytest.fixture
def broker() -> RemotingBroker:
    return remoting_master()


def pull(broker: RemotingBroker, offset: int = 0, **changes: Any) -> Command:
    answer = broker.answer(codes.PULL_MESSAGE, pull_fields(offset, **changes))
    if answer.code in (0, 19, 20, 21):
        assert set(answer.ext) >= HEADER
    return answer


def bodies(answer: Command) -> list[str]:
    return [record.body.decode() for record in decode_records(answer.body)]


def test_messages_and_where_to_go_on(broker: RemotingBroker) -> None:
    broker.send(*map(str, range(40)))
    answer = pull(broker)
    assert bodies(answer) == [str(number) for number in range(32)]
    assert answer.ext["nextBeginOffset"] == "32"
    assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "40")
    assert answer.ext["suggestWhichBrokerId"] == "0"
    assert bodies(pull(broker, 32, maxMsgNums=3)) == ["32", "33", "34"]
    assert bodies(pull(broker, 32, maxMsgNums=1000)) == [str(number) for number in range(32, 40)]
    assert (broker.counters.out_messages, broker.counters.out_bytes > 0) == (43, True)


@pytest.mark.parametrize("asked", [0, -1])
def test_who_asks_for_no_message_gets_one(broker: RemotingBroker, asked: int) -> None:
    broker.send("a", "b")
    answer = pull(broker, maxMsgNums=asked)
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == (["a"], "1")


def test_bytes_are_limited_but_one_message_always_comes(broker: RemotingBroker) -> None:
    broker.send(*["x" * 100_000] * 5)
    assert len(bodies(pull(broker))) == 2
    assert len(bodies(pull(broker, maxMsgBytes=10))) == 1


@pytest.mark.parametrize(
    ("offset", "code", "following"),
    [(5, 19, 5), (7, 21, 5), (0, 21, 2), (1, 21, 2), (-1, 21, 2), (2, 0, 5)],
    ids=["end", "beyond", "removed", "removed", "nonsense", "there"],
)
def test_offsets_beside_the_messages(broker: RemotingBroker, offset: int, code: int, following: int) -> None:
    broker.send(*map(str, range(5)))
    broker.log.expire("t", 0, 2)
    answer = pull(broker, offset)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (code, str(following))
    broker.is_master = False
    answer = pull(broker, offset)
    if code == 21:
        assert (answer.code, answer.ext["nextBeginOffset"]) == (20, str(offset)), "a replica moves nobody's offset"


@pytest.mark.parametrize(
    ("status", "asked", "expected"),
    [
        (GetStatus.FOUND, 5, (0, 9)),
        (GetStatus.NO_MATCHED_MESSAGE, 5, (20, 9)),
        (GetStatus.MESSAGE_WAS_REMOVING, 5, (20, 9)),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, (19, 0)),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, 5, (21, 0)),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 0, (19, 0)),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 5, (21, 0)),
        (GetStatus.OFFSET_OVERFLOW_ONE, 5, (19, 5)),
        (GetStatus.OFFSET_OVERFLOW_BADLY, 5, (21, 9)),
        (GetStatus.OFFSET_TOO_SMALL, 5, (21, 9)),
    ],
)
def test_every_outcome_of_a_read_has_its_answer(status: GetStatus, asked: int, expected: tuple[int, int]) -> None:
    assert answer_of(GetResult(status, 9, 0, 9, []), asked) == expected


def test_an_empty_queue(broker: RemotingBroker) -> None:
    assert pull(broker).code == 19
    answer = pull(broker, 3)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (21, "0")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"consumerGroup": "bad name"}, codes.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"consumerGroup": ""}, codes.INVALID_PARAMETER),
        ({"consumerGroup": "off"}, codes.NO_PERMISSION),
        ({"topic": "nowhere"}, codes.TOPIC_NOT_EXIST),
        ({"topic": "rmq_sys_logboom_metadata"}, codes.TOPIC_NOT_EXIST),
        ({"topic": "closed"}, codes.NO_PERMISSION),
        ({"queueId": 1}, codes.INVALID_PARAMETER),
        ({"queueId": -1}, codes.INVALID_PARAMETER),
        ({"queueId": "x"}, codes.INVALID_PARAMETER),
        ({"queueOffset": "all"}, codes.INVALID_PARAMETER),
        ({"queueOffset": "9" * 30}, codes.INVALID_PARAMETER),
        ({"expressionType": "SQL92", "subscription": "a ="}, codes.SUBSCRIPTION_PARSE_FAILED),
        ({"expressionType": "SQL92", "subscription": " OR ".join(["a<1"] * 129)}, codes.SUBSCRIPTION_PARSE_FAILED),
        ({"expressionType": "LUA"}, codes.SUBSCRIPTION_PARSE_FAILED),
        ({"sysFlag": 0}, codes.SUBSCRIPTION_NOT_EXIST),
    ],
)
def test_refusals(broker: RemotingBroker, changes: dict[str, Any], code: int) -> None:
    broker.topic("closed", perm=2)
    broker.group("off", consume_enable=False)
    answer = pull(broker, **changes)
    assert answer.code == code
    assert answer.remark


def join(broker: RemotingBroker, peer: Any, model: str = "CLUSTERING", group: str = "g", **topics: Any) -> None:
    wanted = {topic: Subscription(topic, expression, "TAG", 5) for topic, expression in topics.items()}
    info = ClientInfo("c1", "127.0.0.1:5000", "JAVA", "479")
    data = ConsumerData(group, message_model=model, subscriptions=wanted)
    broker.clients.remoting_heartbeat(peer, info, [], [data])


def test_a_client_that_names_its_subscriptions_by_fingerprint_need_not_tell_each_version(
    broker: RemotingBroker,
) -> None:
    join(broker, broker.peer, t="x")
    info = ClientInfo("c1", "127.0.0.1:5000", "JAVA", "479")
    wanted = {"t": Subscription("t", "x", "TAG", 5)}
    broker.clients.remoting_heartbeat(broker.peer, info, [], [ConsumerData("g", subscriptions=wanted)], fingerprint=9)
    broker.send("a", tag="x")
    assert bodies(pull(broker, sysFlag=0, subVersion=6)) == ["a"]


def test_the_registered_subscription_is_used(broker: RemotingBroker) -> None:
    join(broker, broker.peer, t="x")
    broker.send("a", tag="x")
    broker.send("b", tag="y")
    assert bodies(pull(broker, sysFlag=0, subVersion=5)) == ["a"]
    assert pull(broker, sysFlag=0, subVersion=6).code == codes.SUBSCRIPTION_NOT_LATEST
    broker.topic("u")
    assert pull(broker, topic="u", sysFlag=0).code == codes.SUBSCRIPTION_NOT_EXIST


def test_checks_come_in_the_order_of_the_protocol() -> None:
    """Everything is wrong at first; each time what was named is put right."""
    broker = remoting_master()
    broker.topic("closed", perm=2)
    broker.group("off", consume_enable=False, broadcast_enable=False)
    asked = {"consumerGroup": "bad name", "topic": "nowhere", "queueId": 9, "subscription": "a =", "subVersion": 6}
    asked["expressionType"] = "SQL92"

    def refused(code: int, kind: str | None = None) -> None:
        answer = pull(broker, **asked)
        assert (answer.code, answer.ext.get("forbiddenType")) == (code, kind), answer.remark

    refused(codes.SUBSCRIPTION_GROUP_NOT_EXIST)
    asked["consumerGroup"] = "off"
    refused(codes.NO_PERMISSION, "2")
    broker.group("off", broadcast_enable=False)
    refused(codes.TOPIC_NOT_EXIST)
    asked["topic"] = "closed"
    refused(codes.NO_PERMISSION, "3")
    broker.topic("closed")
    refused(codes.INVALID_PARAMETER)
    asked["queueId"] = 0
    refused(codes.SUBSCRIPTION_PARSE_FAILED)
    asked["sysFlag"] = 0
    refused(codes.SUBSCRIPTION_NOT_EXIST)
    join(broker, broker.peer, "BROADCASTING", group="off", t="*")
    forbid(broker, "off", "closed", readable=False)
    refused(codes.NO_PERMISSION, "4")
    broker.group("off")
    refused(codes.NO_PERMISSION, "5")
    forbid(broker, "off", "closed", readable=True)
    refused(codes.SUBSCRIPTION_NOT_EXIST)
    join(broker, broker.peer, "BROADCASTING", group="off", closed="*")
    refused(codes.SUBSCRIPTION_NOT_LATEST)
    asked["subVersion"] = 5
    refused(codes.PULL_NOT_FOUND)


def forbid(broker: RemotingBroker, group: str = "g", topic: str = "t", *, readable: bool | None) -> Any:
    ext = {"group": group, "topic": topic} | ({} if readable is None else {"readable": readable})
    answer = broker.answer(codes.UPDATE_AND_GET_GROUP_FORBIDDEN, ext)
    assert answer.code == 0, answer.remark
    return orjson.loads(answer.body)


def test_a_group_that_is_forbidden_reads_neither_way(broker: RemotingBroker) -> None:
    broker.send("a")
    assert forbid(broker, readable=None) == {"group": "g", "readable": True, "topic": "t"}
    assert forbid(broker, readable=False) == {"group": "g", "readable": False, "topic": "t"}
    assert pull(broker).code == codes.NO_PERMISSION
    assert broker.receive(1).outcome.error is not None
    assert pull(broker, consumerGroup="h").code == 0
    told = orjson.loads(broker.answer(codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert told["forbiddenTable"] == {"g": {"t": 4}}
    other = RemotingBroker(log=broker.log.copy(), turns=broker.turns)
    other.become_master()
    assert forbid(other, readable=None)["readable"] is False, "it is in the log"
    assert forbid(broker, readable=True)["readable"] is True
    assert pull(broker).code == 0


def test_who_waits_is_refused_when_forbidden(broker: RemotingBroker) -> None:
    opaque = broker.send_request(codes.PULL_MESSAGE, pull_fields(0, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND))
    waiting = broker.receive(1, wait_ms=10_000)
    forbid(broker, readable=False)
    broker.send("a")
    broker.turns.run()
    assert broker.peer.answers[opaque].code == codes.NO_PERMISSION
    assert waiting.waits
    broker.turns.run(10_000)
    assert waiting.outcome.messages == ()


def test_broadcast_needs_permission(broker: RemotingBroker) -> None:
    join(broker, broker.peer, "BROADCASTING", t="*")
    assert pull(broker).code == 19
    broker.group("g", broadcast_enable=False)
    assert pull(broker).code == codes.NO_PERMISSION


def test_filters_move_on_when_nothing_matches(broker: RemotingBroker) -> None:
    broker.send(*["no"] * 10, tag="y")
    answer = pull(broker, subscription="x || z")
    assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "10")
    broker.send("yes", tag="z")
    assert bodies(pull(broker, 10, subscription="x || z")) == ["yes"]


def test_sql_expressions(broker: RemotingBroker) -> None:
    for number in range(100):
        broker.send(str(number), number=str(number))
    answer = pull(broker, expressionType="SQL92", subscription="number >= 98")
    assert bodies(answer) == ["98", "99"]
    answer = pull(broker, expressionType="SQL92", subscription="number > 1000")
    assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "100")


def replica(broker: RemotingBroker, *, master_known: bool = True) -> None:
    broker.is_master, broker.is_master_known = False, master_known


def test_a_replica_refuses_pulls_while_its_master_is_there_unless_told_otherwise(broker: RemotingBroker) -> None:
    broker.send("a")
    replica(broker)
    answer = broker.answer(codes.PULL_MESSAGE, pull_fields(0))
    assert (answer.code, "slave_read" in (answer.remark or "")) == (codes.SYSTEM_BUSY, True)
    replica(broker, master_known=False)
    assert bodies(pull(broker)) == ["a"], "without a master somebody has to answer"


def test_a_replica_serves_and_sends_back_who_found_nothing() -> None:
    broker = remoting_master(pull_settings=PullSettings(slave_read=True))
    broker.send("a", "b")
    replica(broker)
    answer = pull(broker)
    assert bodies(answer) == ["a", "b"]
    assert answer.ext["suggestWhichBrokerId"] == "0"
    held = pull(broker, 2, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND)
    assert (held.code, held.ext["suggestWhichBrokerId"], held.ext["nextBeginOffset"]) == (20, "0", "2")
    replica(broker, master_known=False)
    assert broker.ask(codes.PULL_MESSAGE, pull_fields(2, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND)) is None, (
        "it is held here"
    )


@pytest.mark.parametrize("is_master", [True, False])
def test_readers_far_behind_are_sent_to_a_replica(is_master: bool) -> None:
    broker = remoting_master(pull_settings=PullSettings(slave_read=True, slow_reads_from=2))
    broker.send("a", "b")
    broker.is_master, broker.is_master_known = is_master, not is_master
    end = broker.log.end_offset
    limit = broker.memory_bytes * 40 // 100
    broker.log_end = end + limit
    assert pull(broker).ext["suggestWhichBrokerId"] == "0"
    broker.log_end = end + limit + 1
    assert pull(broker).ext["suggestWhichBrokerId"] == "2"
    assert pull(broker, 2).ext["suggestWhichBrokerId"] == "0", "who found nothing is not behind"


def test_a_group_names_the_brokers_that_it_reads_from() -> None:
    broker = remoting_master(pull_settings=PullSettings(slave_read=True, slow_reads_from=2))
    broker.group("g", read_broker_id=3, read_broker_id_when_slow=4)
    broker.send("a")
    assert pull(broker).ext["suggestWhichBrokerId"] == "3"
    broker.log_end = broker.log.end_offset + broker.memory_bytes
    assert pull(broker).ext["suggestWhichBrokerId"] == "4"
    assert pull(broker, 1).ext["suggestWhichBrokerId"] == "3"
    replica(broker)
    assert pull(broker, 1).ext["suggestWhichBrokerId"] == "0", "who found nothing at a replica asks the master"
    assert pull(remoting_master()).ext["suggestWhichBrokerId"] == "0"


def test_without_the_switch_nobody_is_sent_away(broker: RemotingBroker) -> None:
    broker.send("a")
    broker.log_end = 1 << 40
    assert pull(broker).ext["suggestWhichBrokerId"] == "0"


def test_lite_pulls_can_be_switched_off(broker: RemotingBroker) -> None:
    assert broker.answer(codes.LITE_PULL_MESSAGE, pull_fields(0)).code == 19
    strict = remoting_master(pull_settings=PullSettings(lite_pull=False))
    assert strict.answer(codes.LITE_PULL_MESSAGE, pull_fields(0)).code == codes.NO_PERMISSION
    assert strict.answer(codes.PULL_MESSAGE, pull_fields(0)).code == 19


def test_who_is_held_while_the_role_changes_is_sent_to_the_new_master(broker: RemotingBroker) -> None:
    opaque = broker.send_request(codes.PULL_MESSAGE, pull_fields(0, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND))
    assert opaque not in broker.peer.answers
    replica(broker)
    broker.pull.answer_all()
    assert (broker.peer.answers[opaque].code, broker.peer.answers[opaque].ext["suggestWhichBrokerId"]) == (20, "0")


def test_unknown_groups_are_made_on_the_master_only(broker: RemotingBroker) -> None:
    assert pull(broker, consumerGroup="new").code == 19
    assert broker.metadata.group("new") is not None
    broker.is_master = False
    assert pull(broker, consumerGroup="newer").code == codes.SUBSCRIPTION_GROUP_NOT_EXIST


def test_offsets_are_committed_on_the_way_once(broker: RemotingBroker) -> None:
    flags = FLAG_SUBSCRIPTION | FLAG_COMMIT | FLAG_SUSPEND
    broker.send("a", "b")
    broker.send_request(codes.PULL_MESSAGE, pull_fields(2, sysFlag=flags, commitOffset=2))
    broker.turns.run(50)
    assert broker.metadata.consumer_offset("g", "t", 0) == 2
    broker.metadata.commit_offset("g", "t", 0, 1, None)
    broker.turns.run(10)
    broker.send("c")
    broker.turns.run(10)
    assert broker.metadata.consumer_offset("g", "t", 0) == 1
    pull(broker, 2, sysFlag=flags, commitOffset=-1)


def test_a_pull_commits_nothing_for_a_group_of_the_broker(broker: RemotingBroker) -> None:
    group = "CID_RMQ_SYS_TRANS"
    broker.send("a", "b")
    pull(broker, consumerGroup=group, sysFlag=FLAG_SUBSCRIPTION | FLAG_COMMIT, commitOffset=2)
    broker.turns.run(10)
    assert broker.metadata.consumer_offset(group, "t", 0) is None


def held(broker: RemotingBroker, offset: int = 0, peer: Peer | None = None, **changes: Any) -> int:
    opaque = broker.send_request(
        codes.PULL_MESSAGE, pull_fields(offset, **{"sysFlag": FLAG_SUBSCRIPTION | FLAG_SUSPEND, **changes}), peer=peer
    )
    broker.turns.run()
    return opaque


def test_a_held_pull_is_woken_by_an_arrival(broker: RemotingBroker) -> None:
    one, two = held(broker), held(broker)
    assert broker.peer.answers == {}
    broker.send("a")
    broker.turns.run()
    for opaque in (one, two):
        assert bodies(broker.peer.answers[opaque]) == ["a"], "each reads for itself"
    assert broker.pull.waiting_count == 0


def test_a_held_pull_ends_in_time(broker: RemotingBroker) -> None:
    short, long = held(broker, suspendTimeoutMillis=1000), held(broker, suspendTimeoutMillis=10**9)
    broker.turns.run(999)
    assert broker.peer.answers == {}
    broker.turns.run(1)
    answer = broker.peer.answers[short]
    assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "0")
    broker.turns.run(24_000)
    assert broker.peer.answers[long].code == 19


def test_only_the_end_of_the_queue_is_held(broker: RemotingBroker) -> None:
    broker.send("a", tag="y")
    assert held(broker, subscription="x") in broker.peer.answers
    assert held(broker, 5) in broker.peer.answers
    assert held(broker, 1, sysFlag=FLAG_SUBSCRIPTION) in broker.peer.answers
    assert held(broker, 1, suspendTimeoutMillis=0) in broker.peer.answers


def test_an_arrival_that_does_not_match_wakes_nobody(broker: RemotingBroker) -> None:
    opaque = held(broker, subscription="x")
    broker.send("no", tag="y")
    broker.turns.run()
    assert opaque not in broker.peer.answers
    broker.send("yes", tag="x")
    broker.turns.run()
    assert bodies(broker.peer.answers[opaque]) == ["yes"]


def test_an_expression_that_does_not_match_keeps_waiting_behind_it(broker: RemotingBroker) -> None:
    one, two = (held(broker, expressionType="SQL92", subscription="number > 5") for _ in range(2))
    broker.send("no", number="1")
    broker.send("no", number="2")
    broker.turns.run()
    assert broker.peer.answers == {}
    broker.turns.run(15_000)
    for opaque in (one, two):
        answer = broker.peer.answers[opaque]
        assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "2"), "it does not look at them again"
    again = held(broker, 2, expressionType="SQL92", subscription="number > 5")
    broker.send("no", number="3")
    broker.turns.run()
    broker.send("yes", number="6")
    broker.turns.run()
    assert bodies(broker.peer.answers[again]) == ["yes"]


def test_a_closed_connection_is_forgotten(broker: RemotingBroker) -> None:
    gone = Peer()
    held(broker, peer=gone)
    broker.processors.connection_closed(gone)
    assert broker.pull.waiting_count == 0
    broker.send("a")
    broker.turns.run(30_000)
    assert gone.answers == {}


def test_a_change_of_the_role_answers_everybody(broker: RemotingBroker) -> None:
    opaque = held(broker)
    broker.pull.answer_all()
    assert broker.peer.answers[opaque].code == 19


def test_lite_pull_is_the_same(broker: RemotingBroker) -> None:
    broker.send("a")
    assert bodies(broker.answer(codes.LITE_PULL_MESSAGE, pull_fields(0, sysFlag=FLAG_SUBSCRIPTION | 16))) == ["a"]


def test_who_does_not_read_what_he_got_is_told_to_come_again(broker: RemotingBroker) -> None:
    """Thousands of held pulls of one connection would otherwise be answered with messages at once, read or not."""
    waiting = [
        broker.send_request(codes.PULL_MESSAGE, pull_fields(0, sysFlag=6, suspendTimeoutMillis=20_000))
        for _ in range(50)
    ]
    broker.peer.is_slow = True
    broker.send("a")
    broker.turns.run(10)
    found = [broker.peer.answers[opaque] for opaque in waiting]
    assert {answer.code for answer in found} == {codes.PULL_RETRY_IMMEDIATELY}
    assert {answer.ext["nextBeginOffset"] for answer in found} == {"0"}
    assert not any(answer.body for answer in found)
    assert all(str(answer.remark).startswith("[OVERLOAD]") for answer in found)
    broker.peer.is_slow = False
    assert bodies(pull(broker)) == ["a"]
