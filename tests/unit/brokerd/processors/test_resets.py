"""Resets of consumer offsets: they wait in the log until the group was told, whoever is connected and whoever is master."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from brokerd.consuming.read_place import PullSettings
from brokerd.members.consumer_groups import ClientInfo, ConsumerData
from brokerd.processors.pulling.checks import FLAG_COMMIT, FLAG_SUBSCRIPTION, FLAG_SUSPEND
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.bare_json import loads_bare
from remoting.frame import Command
from remoting.record.codec import decode_records
from tests.support.pulls import pull_fields
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master


@pytest.fixture
def broker() -> RemotingBroker:
    made = remoting_master()
    made.send(*map(str, range(10)))
    return made


def reset(broker: RemotingBroker, **changes: Any) -> Command:
    ext = {"group": "g", "topic": "t", "timestamp": 0, "isForce": "true", **changes}
    return broker.answer(codes.INVOKE_BROKER_TO_RESET_OFFSET, ext)


def targets(answer: Command) -> dict[int, int]:
    assert answer.code == 0, answer.remark
    table = loads_bare(answer.body)["offsetTable"]
    return {orjson.loads(key)["queueId"]: offset for key, offset in table.items()}


def pull(broker: RemotingBroker, offset: int, **changes: Any) -> tuple[int, int]:
    """(code, next offset)."""
    answer = broker.answer(codes.PULL_MESSAGE, pull_fields(offset, **changes))
    assert {"suggestWhichBrokerId", "minOffset", "maxOffset"} <= set(answer.ext)
    return answer.code, int(answer.ext["nextBeginOffset"])


def commit(broker: RemotingBroker, offset: int) -> None:
    ext = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": offset}
    opaque = broker.send_request(codes.UPDATE_CONSUMER_OFFSET, ext)
    broker.turns.run(10)
    assert broker.peer.answers[opaque].code == 0


def committed(broker: RemotingBroker) -> str:
    ext = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    return broker.answer(codes.QUERY_CONSUMER_OFFSET, ext).ext["offset"]


def test_the_next_pull_is_told_once(broker: RemotingBroker) -> None:
    commit(broker, 8)
    assert targets(reset(broker, queueId=0, offset=3)) == {0: 3}
    assert committed(broker) == "3"
    assert pull(broker, 10) == (codes.PULL_OFFSET_MOVED, 3)
    assert pull(broker, 3) == (0, 10)
    commit(broker, 10)
    assert committed(broker) == "10"


def test_commits_do_not_count_until_then(broker: RemotingBroker) -> None:
    broker.metadata.commit_offset("g", "t", 0, 9, None)  # on its way when the reset comes
    reset(broker, queueId=0, offset=3)
    commit(broker, 10)
    broker.turns.run(100)
    assert committed(broker) == "3"
    assert pull(broker, 10, sysFlag=FLAG_SUBSCRIPTION | FLAG_COMMIT, commitOffset=10) == (21, 3)
    broker.turns.run(100)
    assert committed(broker) == "3"


def test_a_waiting_pull_hears_at_once(broker: RemotingBroker) -> None:
    opaque = broker.send_request(codes.PULL_MESSAGE, pull_fields(10, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND))
    other = broker.send_request(
        codes.PULL_MESSAGE, pull_fields(10, sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND, consumerGroup="h")
    )
    broker.turns.run()
    assert not broker.peer.answers
    reset(broker, queueId=0, offset=3)
    answer = broker.peer.answers[opaque]
    assert (answer.code, answer.ext["nextBeginOffset"]) == (21, "3")
    assert other not in broker.peer.answers


def test_a_new_master_knows_what_is_pending_and_what_was_told(broker: RemotingBroker) -> None:
    broker.topic("t", 2)
    reset(broker, queueId=0, offset=3)
    reset(broker, queueId=1, offset=0)
    assert pull(broker, 10) == (21, 3)
    for log in (broker.log.copy(), broker.log.copy(dispatched=0)):
        other = RemotingBroker(log=log, turns=broker.turns)
        other.become_master()
        log.dispatch()
        assert pull(other, 3) == (0, 10), "told already"
        assert pull(other, 5, queueId=1) == (21, 0)


def test_a_snapshot_holds_what_is_pending(broker: RemotingBroker) -> None:
    reset(broker, queueId=0, offset=3)
    broker.metadata.rolled()
    broker.turns.run()
    other = RemotingBroker(log=broker.log.copy(), turns=broker.turns)
    other.become_master()
    assert pull(other, 10) == (21, 3)


def test_a_replica_sends_the_consumer_to_the_master(broker: RemotingBroker) -> None:
    reset(broker, queueId=0, offset=3)
    broker.is_master = False
    assert pull(broker, 10) == (codes.PULL_RETRY_IMMEDIATELY, 10)
    broker.is_master = True
    assert pull(broker, 10) == (21, 3)


def test_the_answers_wait_for_their_records(broker: RemotingBroker) -> None:
    broker.log.acknowledges = False
    ext = {"group": "g", "topic": "t", "timestamp": 0, "isForce": "true", "queueId": 0, "offset": 3}
    assert broker.ask(codes.INVOKE_BROKER_TO_RESET_OFFSET, ext) is None
    broker.log.acknowledge()
    assert [answer.code for answer in broker.peer.answers.values()] == [0]
    assert broker.ask(codes.PULL_MESSAGE, pull_fields(10)) is None
    broker.log.acknowledge()
    assert [answer.code for answer in broker.peer.answers.values()] == [0, 21]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.FLUSH_SLAVE_TIMEOUT, codes.PULL_OFFSET_MOVED),
        (PutStatus.SERVICE_NOT_AVAILABLE, codes.SERVICE_NOT_AVAILABLE),
    ],
)
def test_a_consumer_is_not_left_where_it_was(broker: RemotingBroker, status: PutStatus, code: int) -> None:
    reset(broker, queueId=0, offset=3)
    broker.log.acknowledges = False
    broker.ask(codes.PULL_MESSAGE, pull_fields(10))
    broker.log.acknowledge(status)
    assert list(broker.peer.answers.values())[-1].code == code


def test_a_record_that_is_refused_leaves_the_reset_pending(broker: RemotingBroker) -> None:
    reset(broker, queueId=0, offset=3)
    broker.log.is_master = False
    assert broker.answer(codes.PULL_MESSAGE, pull_fields(10)).code == codes.SERVICE_NOT_AVAILABLE
    broker.log.is_master = True
    assert pull(broker, 10) == (21, 3)


# ---- where to


def test_by_time_in_all_queues() -> None:
    broker = remoting_master()
    broker.topic("t", 3)
    start_ms = broker.turns.wall_ms()
    for body in "abc":
        broker.send(body)
        broker.send(body, queue_id=1)
        broker.turns.run(1000)
    assert targets(reset(broker, timestamp=start_ms + 1000)) == {0: 1, 1: 1, 2: 0}
    assert targets(reset(broker, timestamp=-1)) == {0: 3, 1: 3, 2: 0}
    assert targets(reset(broker, timestamp=0, queueId=1)) == {1: 0}
    assert targets(reset(broker, timestamp=-1, offset=1)) == {0: 3, 1: 3, 2: 0}, "an offset is of one queue"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "nowhere"}, codes.TOPIC_NOT_EXIST),
        ({"group": "nobody"}, codes.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": 0, "offset": 1}, codes.SYSTEM_ERROR),
        ({"queueId": 0, "offset": 12}, codes.SYSTEM_ERROR),
        ({"queueId": 1, "offset": 0}, codes.SYSTEM_ERROR),
        ({"queueId": -2}, codes.INVALID_PARAMETER),
        ({"timestamp": ""}, codes.INVALID_PARAMETER),
        ({"timestamp": "yesterday"}, codes.INVALID_PARAMETER),
    ],
)
def test_resets_that_are_refused(broker: RemotingBroker, changes: dict[str, Any], code: int) -> None:
    broker.log.expire("t", 0, 2)
    answer = reset(broker, **changes)
    assert (answer.code, bool(answer.remark)) == (code, True)


def test_behind_the_end_is_the_end(broker: RemotingBroker) -> None:
    assert targets(reset(broker, queueId=0, offset=11)) == {0: 10}


def test_only_the_master_resets(broker: RemotingBroker) -> None:
    broker.become_replica()
    assert reset(broker).code == codes.SERVICE_NOT_AVAILABLE


# ---- groups that pop


def test_a_popping_group_goes_on_there_and_forgets_what_it_took(broker: RemotingBroker) -> None:
    old = broker.receive(5).messages
    assert targets(reset(broker, queueId=0, offset=2)) == {0: 2}
    assert broker.progress.in_flight("g", "t", 0) == 0
    assert broker.progress.consumer_offset("g", "t", 0) == 2
    assert [status.name for status in broker.ack(old[0])] == ["INVALID_HANDLE"]
    assert broker.receive(3).bodies == ["2", "3", "4"]
    assert broker.receive(2).bodies == ["5", "6"], "once"
    broker.turns.run(10)
    assert pull(broker, 7)[0] == 0, "the pop was told, so a pull is not"


def test_a_popping_group_skips_ahead(broker: RemotingBroker) -> None:
    broker.receive(2)
    reset(broker, timestamp=-1)
    assert broker.receive(1).waits is False
    broker.send("new")
    assert broker.receive(5).bodies == ["new"]
    broker.turns.run(60_000)
    assert [record.body for record in broker.stored("%RETRY%g+t")] in ([], [b"new"]), (
        "what was skipped does not come back"
    )


def test_a_pop_that_waits_is_woken(broker: RemotingBroker) -> None:
    broker.ack(*broker.receive(32).messages)
    waiting = broker.receive(32, wait_ms=10_000)
    broker.turns.run()
    assert waiting.waits
    reset(broker, queueId=0, offset=8)
    broker.turns.run()
    assert waiting.bodies == ["8", "9"]


def test_a_blocked_ordered_group_is_free_again() -> None:
    broker = remoting_master()
    broker.group("g", fifo=True)
    broker.send("a", "b", "c")
    broker.receive(1, fifo=True)
    assert broker.receive(1, fifo=True).outcome.messages == ()
    reset(broker, queueId=0, offset=1)
    assert broker.receive(1, fifo=True).bodies == ["b"]


# ---- connected consumers are told


def join(broker: RemotingBroker, client_id: str, language: str) -> Peer:
    peer: Any = Peer(len(client_id))
    info = ClientInfo(client_id, peer.peer, language, "479")
    broker.clients.remoting_heartbeat(peer, info, [], [ConsumerData("g")])
    peer.notices.clear()
    peer.notice_bodies.clear()
    return peer


@pytest.fixture
def telling() -> RemotingBroker:
    made = remoting_master(pull_settings=PullSettings(reset_at_broker=False))
    made.send(*map(str, range(10)))
    return made


def test_consumers_are_told_in_their_language(telling: RemotingBroker) -> None:
    commit(telling, 8)
    java, go, cpp = join(telling, "1", "JAVA"), join(telling, "22", "GO"), join(telling, "333", "CPP")
    java.notices.clear()
    java.notice_bodies.clear()
    go.notices.clear()
    go.notice_bodies.clear()
    assert targets(reset(telling, timestamp=0)) == {0: 0}
    raw = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:0}}'
    for peer, body in (
        (java, raw),
        (go, raw),
        (cpp, b'{"offsetTable":[{"brokerName":"broker-a","offset":0,"queueId":0,"topic":"t"}]}'),
    ):
        [(code, ext)] = peer.notices
        assert ext is not None
        assert (code, ext["topic"], ext["group"], ext["timestamp"]) == (220, "t", "g", "0")
        assert peer.notice_bodies == [body]
    assert committed(telling) == "8", "they commit it themselves"
    assert pull(telling, 8) == (0, 10)


def test_unforced_nobody_is_moved_ahead(telling: RemotingBroker) -> None:
    commit(telling, 3)
    join(telling, "1", "JAVA")
    assert targets(reset(telling, timestamp=-1, isForce="false")) == {0: 3}
    assert targets(reset(telling, timestamp=-1)) == {0: 10}


def test_nobody_to_tell(telling: RemotingBroker) -> None:
    commit(telling, 3)
    assert reset(telling).code == codes.CONSUMER_NOT_ONLINE
    telling.group("new")
    assert reset(telling, group="new").code == codes.SYSTEM_ERROR


# ---- cloning


def clone(broker: RemotingBroker, **changes: Any) -> int:
    ext = {"srcGroup": "g", "destGroup": "h", "offline": "false", **changes}
    return broker.answer(codes.CLONE_GROUP_OFFSET, ext).code


def test_a_group_gets_the_offsets_of_another(broker: RemotingBroker) -> None:
    broker.topic("u", 2)
    for topic, queue_id, offset in (("t", 0, 4), ("u", 0, 1), ("u", 1, 2), ("gone", 0, 9)):
        broker.metadata.commit_offset("g", topic, queue_id, offset, None)
    broker.turns.run(10)
    assert clone(broker, topic="u") == 0
    assert broker.metadata.tables.offsets_of_group("h") == {"u": {0: 1, 1: 2}}
    assert clone(broker) == 0
    assert broker.metadata.tables.offsets_of_group("h") == {"t": {0: 4}, "u": {0: 1, 1: 2}}


def test_topics_that_the_source_left_are_cloned_only_when_asked(broker: RemotingBroker) -> None:
    broker.topic("u")
    for topic in "tu":
        broker.metadata.commit_offset("g", topic, 0, 1, None)
    broker.turns.run(10)
    subscriptions = [{"topic": "t", "subString": "*"}]
    document = {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": subscriptions}]}
    broker.answer(codes.HEART_BEAT, body=orjson.dumps(document))
    clone(broker)
    assert set(broker.metadata.tables.offsets_of_group("h")) == {"t"}
    clone(broker, offline="true")
    assert set(broker.metadata.tables.offsets_of_group("h")) == {"t", "u"}
    assert broker.answer(codes.CLONE_GROUP_OFFSET, {"srcGroup": "g"}).code == codes.INVALID_PARAMETER


def test_what_is_read_after_a_reset(broker: RemotingBroker) -> None:
    reset(broker, queueId=0, offset=8)
    _, offset = pull(broker, 0)
    answer = broker.answer(codes.PULL_MESSAGE, pull_fields(offset))
    assert [record.body for record in decode_records(answer.body)] == [b"8", b"9"]
