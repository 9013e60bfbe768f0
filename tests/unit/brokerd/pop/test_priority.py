"""PRIORITY topics: a pop takes the messages of the highest priority first, and the others get their turn as the group says."""

from __future__ import annotations

from tests.support.pop_broker import PopBroker

QUEUES = 4


def priority_broker(**group: object) -> PopBroker:
    broker = PopBroker().become_master()
    broker.topic("t", QUEUES, attributes={"message.type": "PRIORITY"})
    broker.group("g", **group)
    for number in range(3):
        for queue_id in range(QUEUES):
            broker.send(f"{queue_id}-{number}", queue_id=queue_id)
    return broker


def first_of_each(broker: PopBroker, pops: int) -> list[str]:
    return [broker.receive(1).bodies[0] for _ in range(pops)]


def test_the_highest_priority_is_taken_first_and_in_order() -> None:
    broker = priority_broker()
    bodies = first_of_each(broker, 3 * QUEUES)
    assert bodies == [f"{queue_id}-{number}" for queue_id in (3, 2, 1, 0) for number in range(3)]


def test_one_pop_goes_on_to_lower_priorities() -> None:
    assert [body[0] for body in priority_broker().receive(7).bodies] == ["3"] * 3 + ["2"] * 3 + ["1"]


def test_a_message_of_high_priority_overtakes_those_that_wait() -> None:
    broker = priority_broker()
    first_of_each(broker, 5)
    broker.send("urgent", queue_id=3)
    assert first_of_each(broker, 1) == ["urgent"]


def test_the_groups_factor_lets_lower_priorities_get_their_turn() -> None:
    firsts = set()
    broker = priority_broker(attributes={"priority.factor": "0"})
    for body in first_of_each(broker, 8):
        firsts.add(body[0])
    assert len(firsts) > 1, "queues are looked at from a random one on"
    for wrong in ("", "x", "1000", "²"):
        assert first_of_each(priority_broker(attributes={"priority.factor": wrong}), 1) == ["3-0"]


def test_other_topics_are_looked_at_from_a_random_queue_on() -> None:
    broker = PopBroker().become_master()
    broker.topic("t", QUEUES)
    broker.group()
    for queue_id in range(QUEUES):
        broker.send(str(queue_id), queue_id=queue_id)
    assert first_of_each(broker, QUEUES) != ["3", "2", "1", "0"]
