"""A request that waits holds little of what its peer sent, however much that was."""

from __future__ import annotations

import random
import weakref

import pytest

from brokerd.filters.message_filter import MAX_EXPRESSION_LENGTH
from remoting import codes
from remoting.frame import Command
from tests.support.garbage import collected
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master

_PULL = {"queueOffset": "0", "maxMsgNums": "1", "sysFlag": "6", "suspendTimeoutMillis": "15000", "subscription": "*"}
_POP = {"maxMsgNums": "1", "invisibleTime": "30000", "pollTime": "15000", "exp": "*", "expType": "TAG"}


@pytest.fixture
def broker() -> RemotingBroker:
    made = remoting_master()
    made.topic("t")
    made.group("g")
    return made


class Fields(dict[str, str]):
    """A header's, of which it can be told whether somebody has them."""


def hand_over(broker: RemotingBroker, code: int, opaque: int, ext: dict[str, str]) -> weakref.ref[Fields]:
    """Whether somebody has the header yet."""
    now = {"bornTime": str(broker.turns.wall_ms())}
    fields = Fields({"consumerGroup": "g", "topic": "t", "queueId": "0", **now, **ext})
    request = Command(code, opaque, fields)
    broker.handlers[code](broker.peer, [request])  # type: ignore[arg-type]
    broker.turns.run()
    return weakref.ref(fields)


@pytest.mark.parametrize(
    ("code", "ext"), [(codes.PULL_MESSAGE, _PULL), (codes.POP_MESSAGE, _POP), (codes.NOTIFICATION, _POP)]
)
def test_the_header_is_let_go(broker: RemotingBroker, code: int, ext: dict[str, str]) -> None:
    fields = hand_over(broker, code, 1, {**ext, "more": "x" * 100_000})
    assert broker.peer.answers == {}
    assert fields() is None
    broker.send("a")
    broker.turns.run()
    assert broker.peer.answers[1].code == codes.SUCCESS


@pytest.mark.parametrize(
    ("code", "ext"), [(codes.PULL_MESSAGE, _PULL), (codes.POP_MESSAGE, _POP), (codes.NOTIFICATION, _POP)]
)
@pytest.mark.parametrize("end", ["answered", "in time", "closed"])
def test_what_waited_is_freed_at_once(broker: RemotingBroker, code: int, ext: dict[str, str], end: str) -> None:
    with collected() as garbage:
        for opaque in range(20):
            hand_over(broker, code, opaque, ext)
            assert opaque not in broker.peer.answers
            if end == "answered":
                broker.send("a")
                broker.turns.run()
                ext = {**ext, "queueOffset": str(opaque + 1)}
            elif end == "in time":
                broker.turns.run(20_000)
            else:
                broker.processors.connection_closed(broker.peer)
            if code == codes.NOTIFICATION and end == "answered":
                broker.receive(1)
        assert len(broker.peer.answers) == (0 if end == "closed" else 20)
    assert not garbage, {type(each) for each in garbage}


@pytest.mark.parametrize(
    ("code", "ext", "name"), [(codes.PULL_MESSAGE, _PULL, "subscription"), (codes.POP_MESSAGE, _POP, "exp")]
)
def test_long_expressions_that_wait_are_bounded_together(
    broker: RemotingBroker, code: int, ext: dict[str, str], name: str
) -> None:
    drawn = random.Random(code)

    def long_expression() -> str:
        return "||".join(str(drawn.randrange(10**9)) for _ in range(2000))[:MAX_EXPRESSION_LENGTH]

    for opaque in range(100):
        hand_over(broker, code, opaque, {**ext, name: long_expression()})
    refused = [answer for answer in broker.peer.answers.values() if answer.code == codes.SYSTEM_BUSY]
    assert 30 < len(refused) == len(broker.peer.answers) < 60
    assert "room for" in str(refused[0].remark)
    broker.processors.connection_closed(broker.peer)
    broker.peer = Peer()
    for opaque, blanks in enumerate(range(5000, 5200)):  # all mean everything, and none is alike
        hand_over(broker, code, opaque, {**ext, name: " " * blanks + "||"})
        broker.turns.run(20_000)
    broker.peer.answers.clear()
    hand_over(broker, code, 200, {**ext, name: long_expression()})
    assert broker.peer.answers == {}, "there is room again"
