"""What groups hold at the moment, and that a look at very many queues does not hold up the loop."""

from __future__ import annotations

from typing import Any

from brokerd.placement.handovers import Handover, Handovers
from brokerd.pop import records
from brokerd.pop.ledger import PopLedger
from brokerd.pop.order.gate import Gate
from brokerd.pop.records import Pop
from brokerd.pop.requests import PopRequest
from brokerd.pop.survey import SLICE, Held, PopSurvey
from tests.support.turns import Turns


def take(
    ledger: PopLedger, group: str, queue_id: int, pop_time_ms: int, *, ordered: bool = False, count: int = 2
) -> Any:
    pop = Pop(pop_time_ms, 10_000, pop_time_ms + 10_000, "", "", ordered)
    first = pop_time_ms  # any offset will do, as long as they do not meet
    batch = records.taken_batch("t", queue_id, first + count, list(range(first, first + count)))
    body = records.taken(group, pop, [batch])
    ledger.apply(records.TAKEN, body)


def gate(ledger: PopLedger, *handovers: Handover) -> Gate:
    """Of a broker group whose queues of topic t have ten messages each, all of them of groups that have finished nothing."""
    known = Handovers()
    for each in handovers:
        known.add(each)
    return Gate("broker-a", known, lambda *_: False, lambda topic, queue_id: 10)


def test_what_each_group_holds_and_since_when() -> None:
    turns, ledger = Turns(0), PopLedger()
    take(ledger, "a", 0, 1000)
    take(ledger, "a", 0, 3000)
    take(ledger, "a", 1, 2000, count=3)
    take(ledger, "b", 0, 4000, ordered=True)
    survey = PopSurvey(ledger, gate(ledger), turns, lambda: 5000)
    assert survey.groups() == {"a": Held(7, 1000, 0), "b": Held(2, 4000, 1)}


def test_an_ordered_queue_is_blocked_until_its_batch_is_due() -> None:
    ledger = PopLedger()
    take(ledger, "b", 0, 4000, ordered=True)
    queue = ledger.queue("b", "t", 0)
    assert queue is not None
    assert queue.blocked_until_ms(5000) == 14_000
    assert queue.blocked_until_ms(14_000) is None
    assert queue.oldest_pop_time_ms() == 4000


def test_a_group_that_holds_nothing_is_left_out_and_a_look_is_a_second_old_at_most() -> None:
    turns, ledger = Turns(0), PopLedger()
    survey = PopSurvey(ledger, gate(ledger), turns, turns.wall_ms)
    assert survey.groups() == {}
    take(ledger, "a", 0, 1000)
    turns.run(900)
    assert survey.groups() == {}
    turns.run(200)
    assert survey.groups() == {"a": Held(2, 1000, 0)}
    queue = ledger.queue("a", "t", 0)
    assert queue is not None
    ledger.apply(records.ACKED, records.finished([batch.entry(batch.remaining) for batch in queue.batches.values()]))
    turns.run(1100)
    assert survey.groups() == {}


def test_many_queues_are_looked_at_in_slices_while_the_last_look_is_told() -> None:
    turns, ledger = Turns(0), PopLedger()
    for queue_id in range(3 * SLICE):
        take(ledger, "a", queue_id, 1000, count=1)
    survey = PopSurvey(ledger, gate(ledger), turns, turns.wall_ms)
    assert survey.groups() == {}, "not before all of them were looked at"
    assert turns.waiting == 1
    turns.run()
    assert turns.waiting == 0
    assert survey.groups() == {"a": Held(3 * SLICE, 1000, 0)}
    turns.run(2000)
    take(ledger, "b", 0, 2000)
    assert "b" not in survey.groups(), "the look that this began is not over"
    turns.run()
    assert survey.groups()["b"] == Held(2, 2000, 0)
    turns.run(60_000)
    assert turns.waiting == 0, "nothing happens while nobody asks"


def test_what_waits_at_a_gate_is_blocked_and_since_when() -> None:
    turns, ledger = Turns(0), PopLedger()
    take(ledger, "a", 0, 1000, ordered=True)
    closed = gate(ledger, Handover("t", 1, {0: 5}, {0: 3, 1: 4, 2: 10}, ("broker-b",)))
    survey = PopSurvey(ledger, closed, turns, turns.wall_ms)
    turns.run(2000)
    for group in ("a", "b"):
        closed.wait(PopRequest(group, "t", -1, 32, 10_000, 0), 60_000, turns.wall_ms())
        turns.run(1000)
    assert survey.groups() == {
        "a": Held(
            2, 1000, 2, gated_ms=2000
        ),  # queue 0 is blocked by its batch as well, and queue 2 has nothing behind the gate
        "b": Held(0, None, 2, gated_ms=3000),
    }
    for question in closed.questions(turns.wall_ms()):
        closed.answered(question, turns.wall_ms(), has_passed=True)
    turns.run(1100)
    assert survey.groups() == {"a": Held(2, 1000, 1)}
