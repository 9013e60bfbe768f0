"""A look through a filter tests so much, and the next one goes on behind it: reads, and pops turn by turn."""

from __future__ import annotations

import pytest

from brokerd.consuming.filtered_reads import read_admitted
from brokerd.filters import budget
from brokerd.filters.message_filter import MessageFilter, compile_filter
from brokerd.filters.sql import MAX_CONDITIONS
from brokerd.pop import admission
from brokerd.pop.requests import PopStatus
from brokerd.store.queues.queue_reads import GetStatus
from remoting.record.properties import decode_properties
from tests.support.pop_broker import PopBroker, body_of, master
from tests.support.turns import Turn

MOST_AT_ONCE = budget.MAX_TESTS // MAX_CONDITIONS  # messages


class Counting:
    """A filter that is as costly as one may be, and knows what it was asked about."""

    def __init__(self, wanted: str = "") -> None:
        self.tested: list[str] = []
        self._wanted = wanted
        self.filter = MessageFilter(self._admits, conditions=MAX_CONDITIONS)

    def _admits(self, properties: bytes) -> bool:
        name = decode_properties(properties)["n"]
        self.tested.append(name)
        return name == self._wanted


def send(broker: PopBroker, count: int, first: int = 0, queue_id: int = 0) -> list[str]:
    names = [str(number) for number in range(first, first + count)]
    for name in names:
        broker.send(name, queue_id=queue_id, n=name)
    return names


def turn_of(broker: PopBroker) -> budget.TurnBudget:
    return budget.TurnBudget(broker.turns.call_soon)


def test_the_cost_of_a_filter_is_that_of_its_conditions() -> None:
    assert compile_filter("SQL92", "a < 1 OR b = 2").conditions == 2
    assert compile_filter("SQL92", " OR ".join(["a < 1"] * MAX_CONDITIONS)).conditions == MAX_CONDITIONS
    assert compile_filter("TAG", "a || b").conditions == 1


def test_a_read_ends_with_its_budget_and_the_next_goes_on_there() -> None:
    broker, counting = master(), Counting(wanted="299")
    names = send(broker, 300)
    offset, reads = 0, 0
    while True:
        before = len(counting.tested)
        result = read_admitted(broker.log, "t", 0, offset, 32, 1 << 20, counting.filter, turn_of(broker).look())
        assert 0 < len(counting.tested) - before <= MOST_AT_ONCE
        reads += 1
        if result.status is GetStatus.FOUND:
            break
        assert result.status is GetStatus.NO_MATCHED_MESSAGE
        assert result.next_offset == len(counting.tested)
        offset = result.next_offset
    assert counting.tested == names
    assert reads == -(-len(names) // MOST_AT_ONCE)
    assert result.next_offset == 300


def test_what_was_found_before_the_budget_was_spent_is_given() -> None:
    broker, counting = master(), Counting(wanted="5")
    send(broker, 300)
    result = read_admitted(broker.log, "t", 0, 0, 300, 1 << 20, counting.filter, turn_of(broker).look())
    assert result.status is GetStatus.FOUND
    assert len(result.records) == 1
    assert result.next_offset == len(counting.tested) <= MOST_AT_ONCE


def test_long_properties_cost_their_decoding() -> None:
    broker = master()
    broker.send(*["x"] * 40, n="1", filling="f" * 32_000)
    counting = Counting()
    read_admitted(broker.log, "t", 0, 0, 32, 1 << 22, counting.filter, turn_of(broker).look())
    assert len(counting.tested) < MOST_AT_ONCE / 4


def test_an_exact_filter_costs_nothing() -> None:
    broker = master()
    names = send(broker, 3 * MOST_AT_ONCE)
    spent = turn_of(broker).look()
    records = broker.log.read_messages("t", 0, 0, len(names), 1 << 20).records
    assert spent.admitted(compile_filter("TAG", "*"), records) == (records, len(names))
    assert not spent.is_spent()


def test_all_looks_of_a_turn_share_a_budget_and_each_goes_on() -> None:
    broker = master()
    names = send(broker, 3 * MOST_AT_ONCE)
    turn = turn_of(broker)
    for _ in range(2):
        looks = []
        for _ in range(10):
            counting = Counting()
            read_admitted(broker.log, "t", 0, 0, len(names), 1 << 20, counting.filter, turn.look())
            looks.append(len(counting.tested))
        assert MOST_AT_ONCE - 8 <= looks[0] <= MOST_AT_ONCE
        assert all(1 <= each <= budget.LEAST_TESTS // MAX_CONDITIONS for each in looks[2:])
        broker.turns.run(0)


@pytest.fixture
def tested_by_turn(monkeypatch: pytest.MonkeyPatch) -> tuple[Counting, list[int]]:
    """What pops test, and how much of it in each turn."""
    counting, by_turn = Counting(wanted="yes"), []
    monkeypatch.setattr(admission, "compile_filter", lambda *_: counting.filter)
    run = Turn.run

    def counted(turn: Turn) -> None:
        before = len(counting.tested)
        run(turn)
        by_turn.append(len(counting.tested) - before)

    monkeypatch.setattr(Turn, "run", counted)
    return counting, by_turn


def test_a_pop_goes_on_in_later_turns(tested_by_turn: tuple[Counting, list[int]]) -> None:
    counting, by_turn = tested_by_turn
    broker = PopBroker().become_master()
    broker.topic(queues=8)
    broker.group()
    for queue_id in range(8):
        send(broker, 100, 100 * queue_id, queue_id)
    broker.send("yes", queue_id=5, n="yes")
    receive = broker.receive(wait_ms=5000, expression_type="SQL92", expression="any")
    assert [body_of(each) for each in receive.messages] == ["yes"]
    assert max(by_turn) == MOST_AT_ONCE
    assert len(set(counting.tested)) == len(counting.tested), "nothing is looked at twice"


def test_all_queues_are_looked_through_in_the_end(tested_by_turn: tuple[Counting, list[int]]) -> None:
    counting, by_turn = tested_by_turn
    broker = PopBroker().become_master()
    broker.topic(queues=8)
    broker.group()
    names = [name for queue_id in range(8) for name in send(broker, 100, 100 * queue_id, queue_id)]
    receive = broker.receive(wait_ms=5000, expression_type="SQL92", expression="any")
    assert receive.waits
    assert sorted(counting.tested) == sorted(names)
    assert max(by_turn) == MOST_AT_ONCE


def test_what_came_back_is_let_go_in_later_turns(tested_by_turn: tuple[Counting, list[int]]) -> None:
    counting, by_turn = tested_by_turn
    broker = master()
    names = send(broker, 200)
    counting.filter = compile_filter("TAG", "*")
    taken = [body_of(each) for _ in range(7) for each in broker.receive(invisible_time_ms=10_000).messages]
    assert taken == names
    broker.turns.run(11_000)
    by_turn.clear()
    counting.filter = MessageFilter(counting._admits, conditions=MAX_CONDITIONS)
    receive = broker.receive(wait_ms=5000, expression_type="SQL92", expression="any")
    broker.turns.run(6000)
    assert receive.outcome.status == PopStatus.NOTHING
    assert sorted(counting.tested) == sorted(names)
    assert max(by_turn) <= MOST_AT_ONCE


def test_a_queue_with_much_to_look_through_keeps_no_other_from_its_turn(
    tested_by_turn: tuple[Counting, list[int]],
) -> None:
    counting, _ = tested_by_turn
    broker = PopBroker().become_master()
    broker.topic(queues=4)
    broker.group()
    looks = 40
    for queue_id in range(4):
        broker.send(*[str(queue_id)] * looks * MOST_AT_ONCE, queue_id=queue_id, n=str(queue_id))
    broker.receive(wait_ms=5000, expression_type="SQL92", expression="any")
    assert set(counting.tested[: looks * MOST_AT_ONCE]) == {"0", "1", "2", "3"}
