"""Who asks for what was not there a moment ago waits without a look, and misses nothing by that."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from brokerd.filters.message_filter import MessageFilter, compile_filter
from brokerd.metadata.configs import TopicConfig
from brokerd.pop.known_empty import KnownEmpty
from brokerd.pop.requests import PoppedMessage, PopRequest
from tests.support.pop_broker import PopBroker, master


class Story:
    """Whatever happens to a master, where nothing is known to be a look would find nothing."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.broker = master(min_invisible_time_ms=0)
        self.broker.topic(queues=2)
        self.held: list[PoppedMessage] = []
        self.known = 0
        waiting = self.broker.pop_service._waiting
        self._empty, waiting._empty = waiting._empty, self  # type: ignore[assignment]
        self.note, self.arrived, self.forget = self._empty.note, self._empty.arrived, self._empty.forget
        self.is_known = self._empty.is_known

    def knows(self, topic: str, question: tuple[Any, ...], message_filter: MessageFilter) -> bool:
        """As `KnownEmpty.knows`, and looks all the same."""
        knows = self._empty.knows(topic, question, message_filter)
        if knows:
            self.known += 1
            group, _, queue_id, init_mode, *_ = question
            request = PopRequest(group, topic, queue_id, 32, 1000, 0, init_mode)
            taking = self.broker.pop_service.looking._plan(request, message_filter)
            assert not taking.found
            assert not taking.more
        return knows

    def receive(self) -> None:
        expression = self.rng.choice(("*", "x", "x || y"))
        invisible_time_ms = self.rng.choice((1000, 60_000))
        receive = self.broker.receive(
            self.rng.choice((1, 32)),
            group=self.rng.choice("gh"),
            expression=expression,
            invisible_time_ms=invisible_time_ms,
        )
        self.held += receive.outcome.messages

    def wait(self) -> None:
        receive = self.broker.receive(1, wait_ms=500)
        self.broker.turns.run(self.rng.choice((100, 1000)))
        if not receive.waits:
            self.held += receive.outcome.messages

    def send(self) -> None:
        self.broker.send("body", queue_id=self.rng.randrange(2), tag=self.rng.choice("xyz"))

    def finish(self) -> None:
        if self.held:
            self.broker.ack(self.held.pop())

    def postpone(self) -> None:
        if self.held:
            self.broker.change(self.held.pop(), self.rng.choice((0, 2000)))
            self.broker.turns.run(100)

    def reset(self) -> None:
        self.broker.pop_service.reset_offset("g", "t", self.rng.randrange(2), self.rng.randrange(3))

    def commit(self) -> None:
        self.broker.metadata.commit_offset("g", "t", self.rng.randrange(2), self.rng.randrange(20), None)
        self.broker.turns.run(10)

    def resize(self) -> None:
        queues = self.rng.choice((1, 2, 3))
        self.broker.metadata.put_topic(TopicConfig("t", queues, 3), lambda _: None)

    def recreate(self) -> None:
        self.broker.metadata.delete_topic("t", lambda _: None)
        self.broker.topic(queues=2)

    def switch(self) -> None:
        self.broker.become_replica()
        self.broker.become_master()

    def pause(self) -> None:
        self.broker.turns.run(self.rng.choice((1, 1500, 70_000)))

    def go(self, steps: int) -> None:
        often: list[Callable[[], None]] = [self.receive] * 10 + [self.send, self.finish, self.postpone, self.pause] * 2
        seldom = [self.wait, self.reset, self.commit, self.resize, self.switch, self.recreate]
        for _ in range(steps):
            self.rng.choice(often + seldom)()


@pytest.mark.parametrize("seed", range(4))
def test_where_nothing_is_known_to_be_nothing_is(seed: int) -> None:
    story = Story(seed)
    story.go(250)
    assert story.known > 5


@pytest.mark.parametrize("told", ["arrivals", "metadata"])
def test_the_story_finds_out_who_does_not_hear_of_changes(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if told == "arrivals":
        monkeypatch.setattr(KnownEmpty, "arrived", lambda *_: None)
    else:
        init = KnownEmpty.__init__
        monkeypatch.setattr(KnownEmpty, "__init__", lambda self, _version: init(self, lambda: 0))
    with pytest.raises(AssertionError):
        _tell_stories(10)


def _tell_stories(count: int) -> None:
    for seed in range(count):
        Story(seed).go(250)


def looks_of(broker: PopBroker) -> list[int]:
    """How many pops each look is for, from now on."""
    waiting = broker.pop_service._waiting
    give, looks = waiting._give, []

    def look(pops: Any) -> Any:
        looks.append(len(pops))
        return give(pops)

    waiting._give = look
    return looks


def test_clients_of_a_group_that_wait_again_share_a_look() -> None:
    broker = master()
    looks = looks_of(broker)
    waiting = [broker.receive(1, wait_ms=20_000, client_id=str(number)) for number in range(5)]
    assert looks == [1]
    broker.send("a", "b")
    broker.turns.run()
    assert [each.bodies for each in waiting[:2]] == [["a"], ["b"]]
    assert all(each.waits for each in waiting[2:])
    del looks[:]
    broker.receive(1, wait_ms=20_000)
    broker.receive(1, wait_ms=20_000)
    assert looks == [1], "what arrived is to be looked for"


def test_a_message_that_is_readable_and_not_told_yet_reaches_who_waits_without_a_look() -> None:
    broker = master()
    broker.receive(1)
    looks = looks_of(broker)
    told = broker.pop_service.arrived
    arrivals: list[Any] = []
    broker.pop_service.arrived = arrivals.append  # type: ignore[method-assign]
    broker.send("a")
    receive = broker.receive(1, wait_ms=5000)
    assert receive.waits
    assert not looks
    for each in arrivals:
        told(each)
    broker.turns.run()
    assert receive.bodies == ["a"]


def test_an_ordered_group_looks_each_time() -> None:
    broker = master()
    broker.group("ordered", fifo=True)
    looks = looks_of(broker)
    for number in range(3):
        broker.receive(1, group="ordered", wait_ms=5000, fifo=True, attempt_id=str(number))
        broker.receive(1, group="ordered", wait_ms=5000)
    assert looks == [1] * 6


def test_a_long_stretch_without_a_match_is_not_known_to_be_empty() -> None:
    broker = master()
    broker.send(*["no"] * 10_000, tag="BB")
    broker.send("yes", tag="Aa")
    looks = looks_of(broker)
    receives = [broker.receive(1, expression="Aa")]
    while not receives[-1].outcome.messages:
        receives.append(broker.receive(1, expression="Aa"))
    assert receives[-1].bodies == ["yes"]
    assert looks == [1] * len(receives)
    assert len(receives) > 1


def test_what_is_known_is_bounded() -> None:
    known, wanted = KnownEmpty(lambda: 1), compile_filter("TAG", "*")
    for number in range(10_001):
        known.note(f"t{number % 7}", number, wanted)
    assert known.knows("t4", 10_000, wanted)
    assert not known.knows("t0", 0, wanted)
    known.note("t4", 10_000, wanted)
    known.arrived("t4")
    known.arrived("t4")
    assert not known.knows("t4", 10_000, wanted)
    assert known._count == 0


def test_a_filter_that_is_nobodys_is_not_kept() -> None:
    known = KnownEmpty(lambda: 1)
    known.note("t", 1, MessageFilter(bool))
    assert not known.knows("t", 1, MessageFilter(bool))


def test_what_comes_back_in_a_burst_is_given_in_one_look() -> None:
    broker = master()
    broker.send(*map(str, range(256)))
    for _ in range(8):
        broker.receive(32, invisible_time_ms=10_000)
    waiting = [broker.receive(32, wait_ms=20_000, client_id=str(number)) for number in range(10)]
    looks = looks_of(broker)
    broker.turns.run(10_001)
    assert looks == [8, 2], "the others, who get nothing"
    assert sum(len(each.messages) for each in waiting[:8]) == 256
    assert all(each.waits for each in waiting[8:])


@pytest.mark.parametrize("wait_ms", [0, 5000])
def test_what_comes_to_a_retry_topic_of_the_older_name_is_looked_for(wait_ms: int) -> None:
    broker = master()
    broker.topic("a_t")
    broker.group("my_g")
    broker.metadata.ensure_topic("%RETRY%my_g_a_t")
    waiting = broker.receive(1, group="my_g", topic="a_t", wait_ms=wait_ms)
    broker.send("older", topic="%RETRY%my_g_a_t")
    broker.turns.run()
    receive = waiting if wait_ms else broker.receive(1, group="my_g", topic="a_t", wait_ms=5000)
    assert receive.bodies == ["older"]
