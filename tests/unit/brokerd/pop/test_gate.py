"""The gate of ordered groups: what lies behind a handover is given when everything before it is finished, in every source."""

from __future__ import annotations

import pytest

from brokerd.metadata.configs import TopicConfig
from brokerd.placement.handovers import Handover, Handovers
from brokerd.pop.looking import Notice
from brokerd.pop.order.answers import Answer
from brokerd.pop.order.gate import ASK_AGAIN_MS, Gate, GateWait, Question
from brokerd.pop.requests import PopRequest, PopStatus
from brokerd.store.put_status import PutStatus
from remoting.errors import NotMaster
from tests.support.pop_broker import PopBroker, Receive
from tests.support.turns import Turns

VERSION = 7


@pytest.fixture
def handovers() -> Handovers:
    return Handovers()


@pytest.fixture
def broker(handovers: Handovers) -> PopBroker:
    made = PopBroker(handovers=handovers).become_master()
    made.topic(queues=2)
    made.group("g", fifo=True)
    made.group("any")
    return made


def hand_over(handovers: Handovers, *sources: str, ends: int = 0, starts: int = 0, version: int = VERSION) -> None:
    handovers.add(Handover("t", version, {0: ends}, {0: starts, 1: 0}, sources))


def send(broker: PopBroker, *bodies: str, queue_id: int = 0) -> None:
    for body in bodies:
        broker.send(body, queue_id=queue_id, __SHARDINGKEY=body[0])


def gate_of(broker: PopBroker) -> Gate:
    return broker.pop_service.gate


def asked(broker: PopBroker) -> list[Question]:
    return gate_of(broker).questions(broker.turns.wall_ms())


def nothing(receive: Receive) -> bool:
    return receive.outcome.status == PopStatus.NOTHING


def request(broker: PopBroker, group: str = "g", wait_ms: int = 0) -> PopRequest:
    return PopRequest(group, "t", -1, 32, 10_000, broker.turns.monotonic_ms() + wait_ms)


def test_an_ordered_group_waits_for_another_broker_group(broker: PopBroker, handovers: Handovers) -> None:
    hand_over(handovers, "broker-b")
    send(broker, "a2", "a3")
    waiting = broker.receive(wait_ms=5000)
    assert waiting.waits
    (question,) = asked(broker)
    assert (question.source, question.topic, question.version, question.group) == ("broker-b", "t", VERSION, "g")
    assert asked(broker) == [], "one at a time"
    gate_of(broker).answered(question, broker.turns.wall_ms(), has_passed=False)
    assert asked(broker) == []
    broker.turns.run(ASK_AGAIN_MS)
    assert waiting.waits
    (again,) = asked(broker)
    gate_of(broker).answered(again, broker.turns.wall_ms(), has_passed=True)
    broker.turns.run()
    assert waiting.bodies == ["a2", "a3"]
    assert asked(broker) == []
    assert not gate_of(broker).is_wanted


def test_peek_and_notify_see_the_gate_as_pop_does(broker: PopBroker, handovers: Handovers) -> None:
    hand_over(handovers, "broker-b")
    send(broker, "a2")
    looking = broker.pop_service.looking
    assert looking.peek(request(broker)).records == []
    notices: list[Notice] = []
    looking.notify(request(broker, wait_ms=5000), notices.append)
    assert notices == []
    (question,) = asked(broker)
    gate_of(broker).answered(question, broker.turns.wall_ms(), has_passed=True)
    broker.turns.run()
    assert notices == [Notice(has_messages=True)]
    assert len(looking.peek(request(broker)).records) == 1


def test_groups_without_order_and_pulls_are_not_gated(broker: PopBroker, handovers: Handovers) -> None:
    hand_over(handovers, "broker-b")
    send(broker, "a2")
    assert broker.receive(group="any").bodies == ["a2"]
    assert not gate_of(broker).is_wanted


def test_whoever_asks_for_order_is_gated_in_any_group(broker: PopBroker, handovers: Handovers) -> None:
    hand_over(handovers, "broker-b")
    send(broker, "a2")
    assert nothing(broker.receive(group="any", fifo=True))


def test_what_lies_before_the_start_is_given(broker: PopBroker, handovers: Handovers) -> None:
    send(broker, "a1", "b1")
    hand_over(handovers, "broker-b", starts=2)
    send(broker, "c1", "c2")
    assert broker.receive(1).bodies == ["a1"]
    assert nothing(broker.receive()), "a1 is not finished, and the rest is behind the gate or it"


@pytest.mark.parametrize("scope", ["QUEUE", "MESSAGE_GROUP"])
def test_a_filter_does_not_look_through_the_gate(broker: PopBroker, handovers: Handovers, scope: str) -> None:
    broker.group("g", fifo=True, attributes={"order.scope": scope})
    broker.send("a1", tag="x", __SHARDINGKEY="a")
    broker.send("b1", tag="y", __SHARDINGKEY="b")
    hand_over(handovers, "broker-b", starts=2)
    broker.send("c1", tag="y", __SHARDINGKEY="c")
    assert broker.receive(expression="y").bodies == ["b1"]
    assert nothing(broker.receive(expression="y"))
    queue = broker.pop_service.ledger.queue("g", "t", 0)
    assert queue is not None
    assert queue.next_offset == 2


def test_own_queues_have_to_be_finished_first(broker: PopBroker, handovers: Handovers) -> None:
    """A changed number of queues: what moved to another queue of this broker waits for the queue where it was."""
    send(broker, "a1", "a2")
    hand_over(handovers, "broker-a", ends=2, starts=2)
    send(broker, "a3", queue_id=1)
    first = broker.receive(queue_id=0)
    assert first.bodies == ["a1", "a2"]
    waiting = broker.receive(wait_ms=5000, queue_id=1)
    broker.ack(first.messages[0])
    assert waiting.waits
    assert asked(broker) == [], "nobody else has to be asked"
    broker.ack(first.messages[1])
    asked(broker)
    broker.turns.run()
    assert waiting.bodies == ["a3"]


def test_who_is_reset_backwards_waits_again_for_what_comes_again(broker: PopBroker, handovers: Handovers) -> None:
    """What is replayed is given in the order in which it was given first."""
    send(broker, "a1")
    hand_over(handovers, "broker-a", "broker-b", ends=1, starts=1)
    send(broker, "a2", queue_id=1)
    open_gate(broker, "a1", "a2")
    replay(broker)
    first = broker.receive()
    assert first.bodies == ["a1"]
    assert nothing(broker.receive())
    broker.ack(*first.messages)
    waiting = broker.receive(wait_ms=5000)
    assert waiting.waits
    answered(broker)
    assert waiting.bodies == ["a2"]


def test_an_answer_from_before_a_reset_does_not_open_the_gate(broker: PopBroker, handovers: Handovers) -> None:
    hand_over(handovers, "broker-b")
    send(broker, "a2")
    waiting = broker.receive(wait_ms=5000)
    (question,) = asked(broker)
    replay(broker)
    gate_of(broker).answered(question, broker.turns.wall_ms(), has_passed=True)
    broker.turns.run()
    assert waiting.waits
    broker.turns.run(ASK_AGAIN_MS)
    assert nothing(broker.receive())
    answered(broker)
    assert waiting.bodies == ["a2"]


def open_gate(broker: PopBroker, *bodies: str) -> None:
    """Receive and finish these, one after the other."""
    for body in bodies:
        receive = broker.receive(wait_ms=5000)
        if receive.waits:
            answered(broker)
        assert receive.bodies == [body]
        broker.ack(*receive.messages)


def answered(broker: PopBroker) -> None:
    """Every source says that the group passed there."""
    for question in asked(broker):
        gate_of(broker).answered(question, broker.turns.wall_ms(), has_passed=True)
    broker.turns.run()


def replay(broker: PopBroker) -> None:
    """Reset all queues of the group to their begin, as the request does."""
    for queue_id in (0, 1):
        broker.pop_service.reset_offset("g", "t", queue_id, 0)
    broker.metadata.commits.reset("g", "t", {0: 0, 1: 0}, lambda error: None)
    broker.turns.run()


def test_several_handovers_open_one_after_the_other(broker: PopBroker, handovers: Handovers) -> None:
    hand_over(handovers, "broker-b", version=1)
    send(broker, "a1")
    hand_over(handovers, "broker-a", "broker-c", ends=1, starts=1, version=2)
    send(broker, "b1")
    waiting = broker.receive(wait_ms=60_000)
    (question,) = asked(broker)
    assert (question.source, question.version) == ("broker-b", 1)
    gate_of(broker).answered(question, broker.turns.wall_ms(), has_passed=True)
    broker.turns.run()
    assert waiting.bodies == ["a1"]
    behind = broker.receive(wait_ms=60_000)
    broker.ack(*waiting.messages)
    (question,) = asked(broker)
    assert (question.source, question.version) == ("broker-c", 2)
    gate_of(broker).answered(question, broker.turns.wall_ms(), has_passed=True)
    broker.turns.run()
    assert behind.bodies == ["b1"]


def test_facts_tell_for_whom_a_group_waits_and_since_when(broker: PopBroker, handovers: Handovers) -> None:
    hand_over(handovers, "broker-b", "broker-a", "broker-c", ends=0)
    send(broker, "a2")
    since_ms = broker.turns.wall_ms()
    broker.receive(wait_ms=60_000)
    first, _ = asked(broker)
    broker.turns.run(400)
    gate_of(broker).unanswered(first, broker.turns.wall_ms())
    both = ("broker-b", "broker-c")
    assert list(gate_of(broker).waits_of("g")) == [GateWait("t", VERSION, since_ms, both, (first.source,), (0,))]
    assert list(gate_of(broker).waits_of("any")) == []


def test_nobody_is_asked_when_nobody_waits_any_more(broker: PopBroker, handovers: Handovers) -> None:
    hand_over(handovers, "broker-b")
    send(broker, "a2")
    broker.receive(wait_ms=1000)
    broker.turns.run(20_000)
    assert asked(broker) == []
    assert not gate_of(broker).is_wanted


def test_a_handover_that_is_forgotten_lets_through(broker: PopBroker, handovers: Handovers) -> None:
    hand_over(handovers, "broker-b")
    send(broker, "a2")
    waiting = broker.receive(wait_ms=5000)
    handovers.prune("t", VERSION)
    gate_of(broker).changed("t")
    broker.turns.run()
    assert waiting.bodies == ["a2"]


# ---- what a source answers


def answer(broker: PopBroker, group: str = "g", version: int = VERSION) -> Answer | None:
    answers: list[Answer] = []
    broker.pop_service.answers.answer(Question("broker-a", "t", version, group), answers.append)
    broker.turns.run()
    return answers[0] if answers else None


def passed(broker: PopBroker, group: str = "g", version: int = VERSION) -> bool:
    found = answer(broker, group, version)
    assert found is not None
    return found.has_passed


def test_a_source_says_that_a_group_passed_when_it_finished_everything(broker: PopBroker, handovers: Handovers) -> None:
    send(broker, "a1", "b1")
    hand_over(handovers, "broker-a", ends=2, starts=2)
    send(broker, "c1")
    assert not passed(broker)
    taken = broker.receive(2)
    assert not passed(broker)
    broker.ack(taken.messages[0])
    assert not passed(broker)
    assert broker.change(taken.messages[1], 500).status == 0
    broker.turns.run(1000)
    assert not passed(broker)
    broker.ack(*broker.receive(1).messages)
    assert passed(broker)


def test_a_message_that_was_moved_away_is_not_finished(broker: PopBroker, handovers: Handovers) -> None:
    hand_over(handovers, "broker-a", ends=0)
    assert passed(broker)
    broker.metadata.ensure_topic("%RETRY%g+t")
    broker.send("a1", topic="%RETRY%g+t")
    assert not passed(broker)
    broker.ack(*broker.receive().messages)
    assert passed(broker)


def test_a_dead_letter_is_finished(broker: PopBroker, handovers: Handovers) -> None:
    send(broker, "a1")
    hand_over(handovers, "broker-a", ends=1, starts=1)
    broker.forward(broker.receive().messages[0])
    assert passed(broker)


def test_a_group_that_was_never_there_passed_what_it_would_not_get(broker: PopBroker, handovers: Handovers) -> None:
    send(broker, "a1")
    hand_over(handovers, "broker-a", ends=1, starts=1)
    assert not passed(broker, "new")
    broker.log.expire("t", 0, 1)
    assert passed(broker, "new")


def test_a_change_that_a_source_has_not_heard_of_is_not_passed(broker: PopBroker, handovers: Handovers) -> None:
    assert not passed(broker)
    broker.versions["t"] = VERSION
    assert passed(broker), "it was forgotten, since nothing was left of it"


def test_a_topic_that_is_gone_is_passed(broker: PopBroker) -> None:
    answers: list[Answer] = []
    broker.pop_service.answers.answer(Question("broker-a", "gone", 3, "g"), answers.append)
    assert answers == [Answer(has_passed=True, is_nothing_left=True)]


def test_it_is_said_when_what_says_so_is_acknowledged(broker: PopBroker, handovers: Handovers) -> None:
    send(broker, "a1")
    hand_over(handovers, "broker-a", ends=1, starts=1)
    taken = broker.receive()
    broker.log.acknowledges = False
    broker.pop_service.ack("g", "t", [taken.messages[0].receipt_handle], lambda _: None)
    broker.turns.run()
    answers: list[Answer] = []
    broker.pop_service.answers.answer(Question("broker-a", "t", VERSION, "g"), answers.append)
    broker.turns.run()
    assert answers == []
    broker.log.acknowledge(PutStatus.FLUSH_SLAVE_TIMEOUT)
    assert not answers[0].has_passed


def test_a_replica_does_not_answer(broker: PopBroker) -> None:
    broker.become_replica()
    with pytest.raises(NotMaster):
        answer(broker)


def test_nothing_is_left_when_retention_took_it_and_nobody_has_it(broker: PopBroker, handovers: Handovers) -> None:
    send(broker, "a1")
    hand_over(handovers, "broker-a", ends=1, starts=1)
    found = answer(broker, "")
    assert found is not None
    assert not found.is_nothing_left
    taken = broker.receive()
    broker.log.expire("t", 0, 1)
    found = answer(broker, "")
    assert found is not None
    assert not found.is_nothing_left, "a client works on it"
    broker.ack(*taken.messages)
    found = answer(broker, "")
    assert found is not None
    assert found.is_nothing_left


def test_answers_are_few_for_many_groups(broker: PopBroker, handovers: Handovers) -> None:
    """A gate asks for so many at once, and for the others in the next look."""
    turns: Turns = broker.turns
    hand_over(handovers, "broker-b")
    gate = gate_of(broker)
    for number in range(300):
        gate.wait(request(broker, f"g{number}"), 1000, turns.wall_ms())
    assert len(asked(broker)) == 256
    assert len(asked(broker)) == 44


def test_what_went_on_from_a_source_waits_for_where_it_came_from(broker: PopBroker, handovers: Handovers) -> None:
    """A message group moved from broker-b to here without a message, and on to broker-c, which knows only of us."""
    hand_over(handovers, "broker-a", "broker-b", version=VERSION - 1)
    hand_over(handovers, "broker-a", version=VERSION)
    broker.versions["t"] = VERSION
    assert answer(broker) == Answer(has_passed=False, is_nothing_left=False)
    (question,) = asked(broker)
    assert (question.source, question.version, question.group) == ("broker-b", VERSION - 1, "g")
    gate_of(broker).answered(question, broker.turns.wall_ms(), has_passed=True)
    assert answer(broker) == Answer(has_passed=True, is_nothing_left=False)
    handovers.prune("t", VERSION - 1)
    assert answer(broker) == Answer(has_passed=True, is_nothing_left=True)


def test_a_queue_that_is_not_read_any_more_keeps_no_new_group_back(broker: PopBroker, handovers: Handovers) -> None:
    """The queues were lowered as they should be: first those to write, then, when all was consumed, those to read."""
    send(broker, "a1", queue_id=1)
    handovers.add(Handover("t", VERSION, {0: 0, 1: 1}, {0: 0, 1: 1}, ("broker-a",)))
    broker.ack(*broker.receive().messages)
    broker.topic(queues=1)
    send(broker, "a2")
    broker.group("new", fifo=True)
    assert broker.receive(group="new").bodies == ["a2"], "nobody will ever be given a1"


def test_what_a_client_has_of_a_queue_that_is_not_read_any_more_is_waited_for(
    broker: PopBroker, handovers: Handovers
) -> None:
    send(broker, "a1", queue_id=1)
    handovers.add(Handover("t", VERSION, {0: 0, 1: 1}, {0: 0, 1: 1}, ("broker-a",)))
    taken = broker.receive()
    broker.metadata.tables.topics["t"] = TopicConfig("t", 1, 1)  # somebody insists, over what the rules say
    send(broker, "a2")
    assert nothing(broker.receive())
    broker.ack(*taken.messages)
    assert broker.receive().bodies == ["a2"]


def test_everybody_who_waits_is_asked_for_in_turn(broker: PopBroker, handovers: Handovers) -> None:
    """However many never pass: sources are asked for all others too, and a look has a bound."""
    hand_over(handovers, "broker-b")
    gate, turns = gate_of(broker), broker.turns
    for number in range(3000):
        gate.wait(request(broker, f"g{number}"), 60_000, turns.wall_ms())
    named: set[str] = set()
    for _ in range(20):
        questions = asked(broker)
        assert len(questions) <= 256
        for question in questions:
            named.add(question.group)
            gate.answered(question, turns.wall_ms(), has_passed=False)
        turns.run(50)
    assert len(named) == 3000


def test_an_answer_about_a_group_that_was_deleted_meanwhile_is_left_out(
    broker: PopBroker, handovers: Handovers
) -> None:
    hand_over(handovers, "broker-b")
    send(broker, "a2")
    broker.receive(wait_ms=5000)
    (question,) = asked(broker)
    broker.metadata.delete_group("g", lambda _: None)
    gate_of(broker).answered(question, broker.turns.wall_ms(), has_passed=True)
    broker.group("g", fifo=True)
    assert nothing(broker.receive()), "the group of that name now has passed nothing"


def test_nothing_stays_of_a_topic_that_was_deleted(broker: PopBroker, handovers: Handovers) -> None:
    hand_over(handovers, "broker-b")
    send(broker, "a2")
    broker.receive(wait_ms=5000)
    (question,) = asked(broker)
    gate_of(broker).answered(question, broker.turns.wall_ms(), has_passed=True)
    handovers.drop("t")
    broker.metadata.delete_topic("t", lambda _: None)
    broker.turns.run()
    assert not gate_of(broker)._passed
