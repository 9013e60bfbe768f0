"""Pops of messages that only the tier has: in their turns beside others, at once without."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from brokerd.filters.message_filter import compile_filter
from brokerd.loop.cold_line import SHORT_MESSAGES
from brokerd.pop.requests import PopRequest, PopStatus
from remoting import codes
from remoting.errors import RequestError
from tests.support.pop_broker import PopBroker, Receive, body_of, master

MANY = 200


class Cold:
    """Topic t has files from some offset on, topic hot has all of its messages in files; a read takes a millisecond."""

    def __init__(self, share: float = 0.01, **settings: Any) -> None:
        self.broker: PopBroker = master(share=share, **settings)
        self.broker.send(*map(str, range(MANY)))
        self.broker.topic("hot")
        self.broker.log.cold_ends["t", 0] = MANY
        assert self.broker.line is not None
        self.line = self.broker.line
        self.reads = 0
        self.failing: set[tuple[str, int]] = set()  # queues of which the store gives nothing
        self._read, self.broker.log.read_messages = self.broker.log.read_messages, self.read  # type: ignore[method-assign]

    def read(self, *arguments: Any) -> Any:
        self.reads += 1
        self.broker.turns.pass_s(0.001)
        if arguments[:2] in self.failing:
            raise RequestError(codes.SYSTEM_ERROR, "it cannot be read from the tier")
        return self._read(*arguments)

    def serve_others(self) -> None:
        """All the time from now on."""
        self.broker.others_done += 1
        tell = self.broker.pop_service.giving.when_served
        if tell is not None:
            tell()
        self.broker.turns.call_later(0.002, self.serve_others)

    def ask(self, **fields: Any) -> Receive:
        return self.broker.receive(wait_ms=20_000, **fields)


@pytest.fixture
def cold() -> Cold:
    return Cold()


def bodies(receive: Receive) -> list[str]:
    return [body_of(message) for message in receive.outcome.messages]


def test_without_others_they_are_given_at_once(cold: Cold) -> None:
    for number in range(5):
        assert bodies(cold.ask(count=8)) == [str(8 * number + each) for each in range(8)]


def test_beside_others_they_are_given_in_their_turn(cold: Cold) -> None:
    cold.serve_others()
    cold.line.charge(0.001)  # of which the line rests for a tenth of a second
    receive = cold.ask(count=8)
    cold.broker.turns.run(20)
    assert receive.waits
    cold.broker.turns.run(200)
    assert bodies(receive) == list(map(str, range(8)))


def test_who_takes_from_files_does_not_wait_for_them(cold: Cold) -> None:
    cold.serve_others()
    cold.line.charge(0.001)
    receive = cold.ask(count=8)
    cold.broker.send("new", topic="hot")
    assert bodies(cold.ask(topic="hot")) == ["new"]
    assert receive.waits


def test_who_does_not_wait_has_them_when_he_asks_again(cold: Cold) -> None:
    cold.serve_others()
    cold.line.charge(0.001)
    assert cold.broker.receive().outcome.status is PopStatus.NOTHING
    cold.broker.turns.run(200)
    assert len(bodies(cold.broker.receive())) == 32


def test_a_turn_that_nobody_uses_is_kept_for_a_moment_only(cold: Cold) -> None:
    cold.serve_others()
    cold.line.charge(0.001)
    assert cold.broker.receive().outcome.status is PopStatus.NOTHING
    cold.broker.turns.run(10_000)
    assert cold.line.turns == 1
    cold.line.charge(0.001)
    assert cold.broker.receive().outcome.status is PopStatus.NOTHING


def test_many_at_once_have_short_turns_and_all_are_answered(cold: Cold) -> None:
    cold.serve_others()
    cold.line.charge(0.001)
    fields = {"group": "g", "topic": "t", "queue_id": -1, "invisible_time_ms": 10_000}
    receives = [Receive() for _ in range(12)]
    for receive in receives:
        request = PopRequest(max_count=16, deadline_ms=20_000, **fields)  # type: ignore[arg-type]
        receive.parked = cold.broker.pop_service.pop(request, receive.outcomes.append)
    given = [0]
    for _ in range(100):
        cold.broker.turns.run(1)
        given.append(sum(len(bodies(each)) for each in receives if not each.waits))
    assert max(now - before for before, now in pairwise(given)) <= SHORT_MESSAGES
    cold.broker.turns.run(5000)
    assert sorted(int(body) for each in receives for body in bodies(each)) == list(range(192))


def test_groups_do_not_wait_for_one_another(cold: Cold) -> None:
    cold.broker.group("other")
    cold.serve_others()
    cold.line.charge(0.001)
    one, other = cold.ask(count=1), cold.ask(count=1, group="other")
    cold.broker.turns.run(1000)
    assert (bodies(one), bodies(other)) == (["0"], ["0"])


def test_what_comes_again_and_is_cold_comes_in_its_turn() -> None:
    cold = Cold(retry_share_percent=100)
    cold.broker.log.cold_ends.clear()
    assert len(bodies(cold.ask(count=8, invisible_time_ms=10_000))) == 8
    cold.broker.log.cold_ends["t", 0] = MANY
    cold.broker.turns.run(10_000)
    cold.serve_others()
    cold.line.charge(0.001)
    receive = cold.ask(count=8)
    cold.broker.turns.run(20)
    assert receive.waits
    cold.broker.turns.run(1000)
    assert bodies(receive) == list(map(str, range(8)))


def test_what_a_pop_costs_makes_the_next_one_wait() -> None:
    cold = Cold(0.01)
    cold.serve_others()
    first, busy_s = cold.ask(count=1), cold.line.busy_s
    cold.broker.turns.run(50)
    assert bodies(first) == ["0"]
    assert cold.line.busy_s - busy_s == pytest.approx(0.001 * cold.reads)
    second = cold.ask(count=1)
    cold.broker.turns.run(60)
    assert bodies(second) == ["1"], "his turn had been kept"
    third = cold.ask(count=1)
    cold.broker.turns.run(50)
    assert third.waits
    cold.broker.turns.run(500)
    assert bodies(third) == ["2"]


def test_who_waits_to_hear_of_them_hears_in_his_turn(cold: Cold) -> None:
    cold.serve_others()
    cold.line.charge(0.001)
    request = PopRequest(group="g", topic="t", queue_id=-1, max_count=1, invisible_time_ms=0, deadline_ms=20_000)
    heard: list[bool] = []
    cold.broker.pop_service.looking.notify(request, lambda notice: heard.append(notice.has_messages))
    cold.broker.turns.run(20)
    assert not heard
    cold.broker.turns.run(500)
    assert heard == [True]


def test_who_waits_for_fetches_of_several_queues_has_no_turns_meanwhile(cold: Cold) -> None:
    """Each fetch under way was looked at again whenever another queue had its turn: all the time, where looking cost nothing."""
    log = cold.broker.log
    cold.broker.topic("two", queues=2)
    for queue_id in (0, 1):
        cold.broker.send("a", topic="two", queue_id=queue_id)
        log.cold_ends["two", queue_id] = 1
        log.coming.add(("two", queue_id))
    cold.serve_others()
    receive = cold.ask(topic="two")
    cold.broker.turns.run(1000)
    assert receive.waits
    assert 2 <= cold.reads <= 4
    for queue_id in (0, 1):
        log.coming.discard(("two", queue_id))
        cold.broker.pop_service.fetched("two", queue_id)
    cold.broker.turns.run(1000)
    assert bodies(receive)[0] == "a"


@pytest.mark.parametrize("fifo", [False, True])
def test_a_store_that_gives_nothing_of_one_queue_keeps_nothing_of_others_back(cold: Cold, fifo: bool) -> None:
    broker = cold.broker
    broker.topic("two", queues=2)
    broker.group("ordered", fifo=fifo)
    for queue_id in (0, 1):
        broker.send("a", "b", topic="two", queue_id=queue_id)
    broker.log.cold_ends["two", 0] = 2
    cold.failing.add(("two", 0))
    assert bodies(cold.ask(topic="two", group="ordered", fifo=fifo)) == ["a", "b"]
    refused = cold.ask(topic="two", group="ordered", fifo=fifo)
    assert refused.outcome.status == PopStatus.REFUSED
    assert "cannot be read from the tier" in str(refused.outcome.error)
    request = PopRequest("ordered", "two", -1, max_count=1, invisible_time_ms=0, deadline_ms=0)
    with pytest.raises(RequestError, match="cannot be read"):
        broker.pop_service.giving.plan(request, compile_filter("TAG", "*"))
    cold.failing.clear()
    assert bodies(cold.ask(topic="two", group="ordered", fifo=fifo)) == ["a", "b"]


def test_while_it_is_not_its_turn_much_that_came_back_is_not_looked_through_again_and_again() -> None:
    cold = Cold(retry_share_percent=100)
    cold.broker.log.cold_ends.clear()
    assert len(bodies(cold.ask(count=32, invisible_time_ms=10_000))) == 32
    cold.broker.log.cold_ends["t", 0] = MANY
    cold.broker.turns.run(10_000)
    cold.serve_others()
    cold.line.charge(0.001)
    looks = 0
    give = cold.broker.pop_service._waiting._give

    def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return give(*arguments)

    cold.broker.pop_service._waiting._give = counted
    receive = cold.ask(count=1)
    cold.broker.turns.run(20)
    assert receive.waits
    assert 1 <= looks <= 3
    cold.broker.turns.run(1000)
    assert len(bodies(receive)) == 1
