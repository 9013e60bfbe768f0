"""Looking at what a pop would get: nothing is taken, and who waits hears of it once."""

from __future__ import annotations

from typing import Any

import pytest

from remoting import codes
from remoting.frame import Command
from remoting.record.codec import decode_records
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master


@pytest.fixture
def broker() -> RemotingBroker:
    return remoting_master()


def peek(broker: RemotingBroker, **changes: Any) -> Command:
    ext = {"consumerGroup": "g", "topic": "t", "queueId": -1, "maxMsgNums": 32, **changes}
    return broker.answer(codes.PEEK_MESSAGE, ext)


def bodies(answer: Command) -> list[str]:
    assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= set(answer.ext), "read on every answer"
    return [record.body.decode() for record in decode_records(answer.body)]


def notify(broker: RemotingBroker, peer: Peer | None = None, poll_ms: int = 10_000, **changes: Any) -> int:
    ext = {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": -1,
        "pollTime": poll_ms,
        "bornTime": broker.turns.wall_ms(),
        **changes,
    }
    opaque = broker.send_request(codes.NOTIFICATION, ext, peer=peer)
    broker.turns.run()
    return opaque


def told(broker: RemotingBroker, opaque: int, peer: Peer | None = None) -> dict[str, str] | None:
    broker.turns.run()
    answer = (peer or broker.peer).answers.get(opaque)
    if answer is None:
        return None
    assert answer.code == 0, answer.remark
    return answer.ext


YES = {"hasMsg": "true", "pollingFull": "false"}
NO = {"hasMsg": "false", "pollingFull": "false"}

# ---- peeking


def test_a_peek_takes_nothing(broker: RemotingBroker) -> None:
    assert peek(broker).code == codes.PULL_NOT_FOUND
    broker.send("a", "b", "c")
    answer = peek(broker, maxMsgNums=2)
    assert (bodies(answer), answer.ext["restNum"]) == (["a", "b"], "1")
    assert bodies(peek(broker)) == ["a", "b", "c"]
    assert broker.receive(1).bodies == ["a"]
    assert bodies(peek(broker)) == ["b", "c"]
    assert broker.progress.consumed_by("g") == [("t", 0)]


def test_a_peek_sees_what_came_back_first(broker: RemotingBroker) -> None:
    broker.send("a", "b")
    broker.receive(1, invisible_time_ms=1000)
    broker.turns.run(2000)
    assert bodies(peek(broker)) == ["a", "b"]


def test_a_peek_into_an_ordered_queue(broker: RemotingBroker) -> None:
    broker.group("g", fifo=True)
    broker.send("a", "b")
    broker.receive(1, invisible_time_ms=1000)
    assert peek(broker).code == codes.PULL_NOT_FOUND, "somebody works on it"
    broker.turns.run(1001)
    assert bodies(peek(broker)) == ["a"]


def test_one_queue_and_many(broker: RemotingBroker) -> None:
    broker.topic("t", 3)
    for queue_id in range(3):
        broker.send(str(queue_id), queue_id=queue_id)
    shown = bodies(peek(broker))
    assert sorted(shown) == ["0", "1", "2"]
    assert bodies(peek(broker, queueId=1)) == ["1"]
    answer = peek(broker, maxMsgNums=1)
    assert (bodies(answer), answer.ext["restNum"]) == (shown[:1], "2")


# ---- being told


def test_a_notice_of_what_is_there_comes_at_once(broker: RemotingBroker) -> None:
    broker.send("a")
    assert told(broker, notify(broker)) == YES
    assert broker.receive(1).bodies == ["a"]
    assert told(broker, notify(broker, poll_ms=0)) == NO


def test_a_notice_of_what_comes(broker: RemotingBroker) -> None:
    any_queue, one_queue = notify(broker), notify(broker, queueId=0)
    assert (told(broker, any_queue), told(broker, one_queue)) == (None, None)
    broker.send("a")
    assert (told(broker, any_queue), told(broker, one_queue)) == (YES, YES)
    assert broker.receive(1).bodies == ["a"], "still there"


def test_a_notice_of_nothing_comes_in_time(broker: RemotingBroker) -> None:
    opaque = notify(broker)
    broker.turns.run(9_949)
    assert told(broker, opaque) is None
    broker.turns.run(1)
    assert told(broker, opaque) == NO


def test_a_notice_of_what_comes_back(broker: RemotingBroker) -> None:
    broker.send("a")
    broker.receive(1, invisible_time_ms=1000)
    opaque = notify(broker)
    assert told(broker, opaque) is None
    broker.turns.run(1500)
    assert told(broker, opaque) == YES


def test_a_notice_of_an_ordered_queue_that_is_free_again(broker: RemotingBroker) -> None:
    broker.group("g", fifo=True)
    broker.send("a", "b")
    taken = broker.receive(1)
    opaque = notify(broker)
    assert told(broker, opaque) is None, "blocked"
    broker.ack(*taken.messages)
    assert told(broker, opaque) == YES


def test_an_old_request_does_not_wait(broker: RemotingBroker) -> None:
    born_ms = broker.turns.wall_ms()
    notify(broker, poll_ms=0)
    broker.turns.run(11_000)
    assert told(broker, notify(broker, bornTime=born_ms)) == NO


def test_waits_are_bounded_and_forgotten_with_their_connection() -> None:
    broker = remoting_master(max_waiting=2)
    peers = [Peer(1), Peer(2), Peer(3)]
    opaques = [notify(broker, peer) for peer in peers]
    assert told(broker, opaques[2], peers[2]) == {"hasMsg": "false", "pollingFull": "true"}
    broker.processors.connection_closed(peers[0])
    assert told(broker, notify(broker, peers[0]), peers[0]) is None, "there is room again"
    broker.processors.connection_closed(peers[1])
    broker.send("a")
    assert told(broker, opaques[1], peers[1]) is None


def test_who_waits_is_told_that_it_is_over(broker: RemotingBroker) -> None:
    def code(opaque: int) -> int:
        broker.turns.run()
        return broker.peer.answers[opaque].code

    broker.group("other")
    waiting = notify(broker, consumerGroup="other")
    broker.answer(codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "other"})
    assert code(waiting) == codes.SUBSCRIPTION_GROUP_NOT_EXIST
    waiting = notify(broker)
    broker.metadata.forbid("g", "t", True, lambda _: None)
    broker.send("a")
    assert code(waiting) == codes.NO_PERMISSION
    broker.metadata.forbid("g", "t", False, lambda _: None)
    broker.ack(*broker.receive(1).messages)
    waiting = notify(broker)
    broker.become_replica()
    assert code(waiting) == codes.SERVICE_NOT_AVAILABLE


# ---- how many wait


def polling(broker: RemotingBroker, **changes: Any) -> Command:
    return broker.answer(codes.POLLING_INFO, {"consumerGroup": "g", "topic": "t", "queueId": -1, **changes})


def test_how_many_pops_wait(broker: RemotingBroker) -> None:
    assert polling(broker).ext == {"pollingNum": "0"}
    broker.receive(1, wait_ms=1000)
    broker.receive(1, wait_ms=1000)
    broker.receive(1, wait_ms=1000, queue_id=0)
    notify(broker)
    assert polling(broker).ext == {"pollingNum": "2"}
    assert polling(broker, queueId=0).ext == {"pollingNum": "1"}
    broker.turns.run(1001)
    assert polling(broker).ext == {"pollingNum": "0"}


# ---- refusals


@pytest.mark.parametrize("code", [codes.PEEK_MESSAGE, codes.NOTIFICATION, codes.POLLING_INFO])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"topic": "nowhere"}, codes.TOPIC_NOT_EXIST),
        ({"topic": "closed"}, codes.NO_PERMISSION),
        ({"queueId": 1}, codes.INVALID_PARAMETER),
        ({"queueId": -2}, codes.INVALID_PARAMETER),
        ({"consumerGroup": "off"}, codes.NO_PERMISSION),
        ({"consumerGroup": ""}, codes.INVALID_PARAMETER),
    ],
)
def test_refusals(broker: RemotingBroker, code: int, changes: dict[str, Any], expected: int) -> None:
    broker.topic("closed", perm=2)
    broker.group("off", consume_enable=False)
    ext = {"consumerGroup": "g", "topic": "t", "queueId": -1, "maxMsgNums": 1, "pollTime": 0, "bornTime": 0, **changes}
    answer = broker.answer(code, ext)
    assert (answer.code, bool(answer.remark)) == (expected, True)


def test_a_peek_is_bounded(broker: RemotingBroker) -> None:
    assert peek(broker, maxMsgNums=33).code == codes.INVALID_PARAMETER
