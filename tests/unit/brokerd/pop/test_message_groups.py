"""Ordered groups that keep order in each message group: what is blocked is a message group, not its queue."""

from __future__ import annotations

import pytest

from brokerd.journal.replay import decode_log_record
from brokerd.metadata.configs import GroupConfig
from brokerd.pop import queue_ledger
from brokerd.pop.ledger import PopLedger
from brokerd.pop.order import group_order, passing
from brokerd.pop.order.group_order import hash_of_group
from brokerd.pop.queue_ledger import Again
from brokerd.pop.reading import message_group_at
from brokerd.pop.records import POP_TOPIC
from brokerd.pop.requests import AckStatus, PopStatus
from remoting.errors import RequestError
from tests.support.pop_broker import PopBroker, Receive, master

OK = AckStatus.OK
IN_GROUPS = {"order.scope": "MESSAGE_GROUP"}


@pytest.fixture
def broker() -> PopBroker:
    made = master()
    made.group("g", fifo=True, attributes=IN_GROUPS)
    return made


def send(broker: PopBroker, *bodies: str, **fields: str) -> None:
    """The first letter of a body is its message group; a dot is none."""
    for body in bodies:
        named = {} if body[0] == "." else {"__SHARDINGKEY": body[0]}
        broker.send(body, **fields, **named)


def receive(broker: PopBroker, count: int = 32, **fields: object) -> Receive:
    return broker.receive(count, **fields)


def nothing(broker: PopBroker, **fields: object) -> bool:
    return receive(broker, **fields).outcome.status == PopStatus.NOTHING


def test_a_message_group_waits_for_its_own_messages_alone(broker: PopBroker) -> None:
    send(broker, "a1", "a2", "b1", "a3", "b2", ".1", "c1")
    first = receive(broker, 1)
    assert first.bodies == ["a1"]
    second = receive(broker)
    assert second.bodies == ["b1", "b2", ".1", "c1"]
    assert nothing(broker)
    broker.ack(*first.messages)
    third = receive(broker, 1)
    assert third.bodies == ["a2"]
    assert [message.delivery_attempt for message in third.messages] == [1]
    assert nothing(broker)
    broker.ack(*third.messages)
    assert receive(broker).bodies == ["a3"]


def test_messages_of_one_group_go_out_together_in_order(broker: PopBroker) -> None:
    send(broker, "a1", "b1", "a2", "b2", "a3")
    assert receive(broker).bodies == ["a1", "b1", "a2", "b2", "a3"]
    assert nothing(broker)


def test_what_came_back_is_taken_with_what_waited_for_it(broker: PopBroker) -> None:
    send(broker, "a1", "a2", "b1")
    receive(broker, 1, invisible_time_ms=1000)
    assert receive(broker, invisible_time_ms=60_000).bodies == ["b1"]
    send(broker, "a3", "b2")
    assert nothing(broker)
    broker.turns.run(1000)
    again = receive(broker)
    assert again.bodies == ["a1", "a2", "a3"]
    assert [message.delivery_attempt for message in again.messages] == [2, 1, 1]


def test_finishing_a_message_wakes_who_waits_for_its_group(broker: PopBroker) -> None:
    send(broker, "a1", "a2")
    first = receive(broker, 1)
    waiting = receive(broker, 1, wait_ms=5000)
    assert waiting.waits
    broker.ack(*first.messages)
    assert waiting.bodies == ["a2"]


def test_a_postponed_message_holds_up_its_group(broker: PopBroker) -> None:
    send(broker, "a1", "a2", "b1", "a3")
    first = receive(broker, 3, invisible_time_ms=1000)
    assert broker.change(first.messages[0], 5000).status == OK
    broker.turns.run(1000)
    assert receive(broker).bodies == ["b1"]
    assert nothing(broker)
    broker.turns.run(4000)
    assert receive(broker).bodies == ["a1", "a2", "a3"]


def test_a_dead_letter_lets_its_group_pass(broker: PopBroker) -> None:
    broker.group("g", fifo=True, retry_max_times=1, attributes=IN_GROUPS)
    send(broker, "a1", "a2", "b1")
    for _ in range(2):
        assert receive(broker, 1, invisible_time_ms=1000).bodies == ["a1"]
        broker.turns.run(1000)
    assert receive(broker).bodies == ["a2", "b1"]
    assert [dead.body for dead in broker.stored("%DLQ%g")] == [b"a1"]


def test_giving_a_message_up_lets_its_group_pass(broker: PopBroker) -> None:
    send(broker, "a1", "a2")
    first = receive(broker, 1)
    waiting = receive(broker, 1, wait_ms=5000)
    assert broker.forward(first.messages[0]) == OK
    assert waiting.bodies == ["a2"]


def test_a_repeated_attempt_gets_its_messages_again_uncounted(broker: PopBroker) -> None:
    send(broker, "a1", "a2", "b1", "b2")
    receive(broker, 1)
    lost = receive(broker, 1, attempt_id="one")
    again = receive(broker, 1, attempt_id="one")
    assert lost.bodies == again.bodies == ["b1"]
    assert again.messages[0].delivery_attempt == 1
    assert nothing(broker, attempt_id="two")


def test_a_new_master_keeps_what_was_passed_over(broker: PopBroker) -> None:
    send(broker, "a1", "a2", "b1", "a3")
    first = receive(broker, 1, invisible_time_ms=60_000)
    second = receive(broker, 1, invisible_time_ms=60_000)
    assert second.bodies == ["b1"]
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    assert nothing(other)
    other.turns.run(10)
    assert other.ack(*first.messages) == [OK]
    assert receive(other).bodies == ["a2", "a3"]


def test_passed_over_messages_are_not_consumed(broker: PopBroker) -> None:
    send(broker, "a1", "a2", "b1")
    first = receive(broker, 1)
    second = receive(broker)
    broker.ack(*second.messages)
    ledger = broker.pop_service.ledger
    assert ledger.committed_offset("g", "t", 0) == 0
    broker.ack(*first.messages)
    assert ledger.committed_offset("g", "t", 0) == 1
    broker.ack(*receive(broker).messages)
    assert ledger.committed_offset("g", "t", 0) == 3
    assert ledger.in_flight("g") == 0


def test_the_order_of_the_queue_holds_until_what_was_taken_in_it_is_finished(broker: PopBroker) -> None:
    broker.group("g", fifo=True)
    send(broker, "a1", "b1", "b2", "c1")
    first = receive(broker, 2)
    assert first.bodies == ["a1", "b1"]
    broker.group("g", fifo=True, attributes=IN_GROUPS)
    assert nothing(broker)
    broker.ack(*first.messages)
    assert receive(broker, 1).bodies == ["b2"]
    assert receive(broker, 1).bodies == ["c1"]


def test_what_was_passed_over_comes_first_when_the_queue_has_the_order(broker: PopBroker) -> None:
    send(broker, "a1", "a2", "b1", "b2")
    first = receive(broker, 1)
    second = receive(broker, 1)
    assert second.bodies == ["b1"]
    broker.group("g", fifo=True)
    assert nothing(broker)
    broker.ack(*first.messages)
    third = receive(broker)
    assert third.bodies == ["a2"], "b1 is with a client"
    broker.ack(*second.messages, *third.messages)
    assert receive(broker).bodies == ["b2"]


def test_what_was_passed_over_is_given_without_order_too(broker: PopBroker) -> None:
    send(broker, "a1", "a2", "b1")
    receive(broker, 1)
    receive(broker, 1)
    broker.group("g")
    assert receive(broker).bodies == ["a2"]


def test_a_queue_waits_when_too_many_messages_were_passed_over(
    broker: PopBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerd.pop.order.passing.MAX_PASSED_OVER", 50)
    monkeypatch.setattr("brokerd.pop.queue_ledger.MAX_PASSED_OVER", 50)
    send(broker, "a0", *["a"] * 60, "b1")
    first = receive(broker, 1)
    assert nothing(broker)
    queue = broker.pop_service.ledger.queue("g", "t", 0)
    assert queue is not None
    assert (queue.passed_over, queue.next_offset) == (50, 51)
    now_ms = broker.turns.wall_ms()
    assert queue.blocked_until_ms(now_ms) == now_ms + 10_000
    broker.ack(*first.messages)
    assert queue.blocked_until_ms(now_ms) is None
    assert receive(broker).bodies == ["a"] * 32


def test_many_blocked_groups_are_not_searched(broker: PopBroker) -> None:
    """What a pop looks at does not depend on how many groups wait."""
    for n in range(500):
        broker.send("x", __SHARDINGKEY=f"group {n}")
    for _ in range(16):
        receive(broker)
    for n in range(500):
        broker.send("y", __SHARDINGKEY=f"group {n}")
    waiting = receive(broker, wait_ms=100)
    broker.turns.run(99)
    assert waiting.waits
    queue = broker.pop_service.ledger.queue("g", "t", 0)
    assert queue is not None
    assert (queue.passed_over, len(list(queue.waiting_groups(0)))) == (500, 500)
    assert not queue._free


def test_a_filter_decides_about_what_was_passed_over(broker: PopBroker) -> None:
    send(broker, "a1", "a2", tag="x")
    send(broker, "a3", tag="y")
    send(broker, "a4", tag="x")
    first = receive(broker, 1, expression="x || y")
    assert nothing(broker, expression="x || y")
    broker.ack(*first.messages)
    assert receive(broker, expression="x").bodies == ["a2", "a4"]
    assert broker.pop_service.ledger.in_flight("g") == 2


def test_the_waiting_groups_are_known(broker: PopBroker) -> None:
    send(broker, "a1", "a2", "a3", "b1")
    receive(broker, 1, invisible_time_ms=7000)
    receive(broker)
    queue = broker.pop_service.ledger.queue("g", "t", 0)
    assert queue is not None
    now_ms = broker.turns.wall_ms()
    assert list(queue.waiting_groups(now_ms)) == [(0, now_ms + 7000, 2)]
    assert message_group_at(broker.log, "t", 0, 0) == "a"


def test_a_release_that_does_not_know_message_groups_loses_nothing(broker: PopBroker) -> None:
    send(broker, "a1", "a2", "b1", "a3", "b2")
    receive(broker, 1, invisible_time_ms=1000)
    receive(broker, 1, invisible_time_ms=1000)
    receive(broker)
    older = PopLedger()
    for encoded in broker.log.bodies(POP_TOPIC, 0):
        record = decode_log_record(encoded)
        older.apply(record.kind, {name: value for name, value in record.body.items() if name != "h"})
    queue = older.queue("g", "t", 0)
    assert queue is not None
    plan = queue.ordered_plan("", broker.turns.wall_ms() + 1000)
    assert isinstance(plan, Again)
    assert [(place.offset, place.deliveries) for place in plan.places] == [(0, 2), (1, 1), (2, 2), (3, 1), (4, 1)]


def test_an_unknown_scope_is_refused(broker: PopBroker) -> None:
    refusals: list[RequestError | None] = []
    config = GroupConfig("g", fifo=True, attributes={"order.scope": "TOPIC"})
    broker.metadata.put_group(config, refusals.append)
    assert [str(refusal) for refusal in refusals] == ["order.scope must be QUEUE or MESSAGE_GROUP"]


def test_long_names_of_message_groups_are_not_remembered() -> None:
    """Remoting clients name them as they like, up to 32 KB: 65,536 of those would be 2 GB."""

    def hash_of(name: str) -> int:
        return hash_of_group(f"__SHARDINGKEY\x01{name}\x02".encode())

    before = group_order._known_hash.cache_info().currsize
    assert len({hash_of(f"{number}" * 5000) for number in range(100)}) == 100
    assert group_order._known_hash.cache_info().currsize == before
    assert hash_of("x" * 30_000) == hash_of("x" * 30_000)


def test_what_was_passed_over_is_no_blocked_queue_while_a_new_master_looks_at_it(
    broker: PopBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as much passed over as may be, and nothing of it taken back yet by the timers of the new master."""
    monkeypatch.setattr(passing, "MAX_PASSED_OVER", 4)
    monkeypatch.setattr(queue_ledger, "MAX_PASSED_OVER", 4)
    send(broker, "a1", "a2", "a3", "a4", "a5", "b1")
    first = receive(broker, 1)
    assert receive(broker).bodies == ["b1"]
    broker.ack(*first.messages)
    ledger = PopLedger()
    for row in broker.pop_service.ledger.snapshot_rows():
        ledger.load_row(row)
    now_ms = broker.turns.wall_ms()
    ledger.resume(now_ms, 0, 0)
    queue = ledger.queue("g", "t", 0)
    assert queue is not None
    assert queue.passed_over == 4
    for batch in list(queue.batches.values()):
        if not batch.is_passed_over:
            ledger.apply("acked", {"v": 1, "a": [batch.entry(batch.remaining)]})
    assert queue.blocked_until_ms(now_ms) in (None, now_ms)
