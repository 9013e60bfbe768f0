"""No request keeps a broker's loop to itself: random ones, at a broker that has much of everything. What is counted is reads of
queues in a turn; `python -m tests.fuzz.turns` measures the processor's time, for longer and with more of everything."""

from __future__ import annotations

import pytest

from remoting import codes
from remoting.access.decision import Demand, Rights
from remoting.access.model import ALL, ALLOW, DENY, SUB, TOPIC, Entry, resource
from tests.fuzz.turns import Asker, Much, ask, broker_with, measured
from tests.support.remoting_broker import RemotingBroker

MUCH = Much(topics=2, queues=1024, groups=20, members=20, messages=200)
MOST_READS = 5000  # some milliseconds
REQUESTS = 150
ASKED = 30  # at once


@pytest.fixture(scope="module")
def broker() -> RemotingBroker:
    return broker_with(MUCH)


@pytest.mark.parametrize("seed", [1])
def test_no_random_request_reads_much_in_one_turn(broker: RemotingBroker, seed: int) -> None:
    asker = Asker(MUCH, seed, tuple(broker.handlers))
    for _ in range(REQUESTS):
        asked = asker.next()
        with measured() as turns:
            ask(broker, turns, asked)
        assert turns.most_reads <= MOST_READS, f"seed {seed}: {turns.most_reads} reads in one turn for {asked}"


@pytest.mark.parametrize(
    "code",
    [
        codes.GET_CONSUME_STATS,
        codes.GET_BROKER_CONSUME_STATS,
        codes.QUERY_CONSUME_TIME_SPAN,
        codes.INVOKE_BROKER_TO_RESET_OFFSET,
        codes.GET_TOPIC_STATS_INFO,
        codes.QUERY_CORRECTION_OFFSET,
    ],
)
def test_many_at_once_take_turns(broker: RemotingBroker, code: int) -> None:
    ext = {"topic": "t0", "group": "g3", "consumerGroup": "g0", "compareGroup": "g0", "timestamp": "1"}
    before = len(broker.peer.answers)
    with measured() as turns:
        turns.take(lambda: [broker.send_request(code, ext) for _ in range(ASKED)])
        broker.turns.run()
    assert len(broker.peer.answers) == before + ASKED
    assert all(answer.code == codes.SUCCESS for answer in list(broker.peer.answers.values())[-ASKED:])
    assert turns.most_reads <= MOST_READS


def test_a_decision_looks_at_few_of_many_permissions() -> None:
    """A heartbeat about thousands of topics is decided in one turn: with a thousand permissions it took more than a second."""
    entries = [Entry(resource(f"Topic:closed-{number}*"), (ALL,), DENY, ("10.0.0.0/8",)) for number in range(1000)]
    entries += [Entry(resource(f"Topic:own-{number}"), (ALL,), ALLOW) for number in range(1000)]
    entries += [Entry(resource("Topic:own-*"), (ALL,), ALLOW), Entry(resource("Group:*"), (ALL,), ALLOW)]
    rights = Rights(entries)
    for name, fits in (("own-7", 2), ("own-other", 1), ("closed-77-x", 2), ("closed-", 0), ("else", 0)):
        assert len(rights.candidates(TOPIC, name)) == fits, name
    assert rights.fitting(Demand(TOPIC, "own-7", (SUB,)), "10.0.0.1")[0].resource == resource("Topic:own-7")
