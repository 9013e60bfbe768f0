"""Pops of one turn of the loop share a look, a write and a wait with those that ask for the same; each has a batch of its own."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from brokerd.filters.budget import TurnBudget
from brokerd.pop.handles import decode_handle
from brokerd.pop.ledger import PopLedger
from brokerd.pop.plan import Found, Taking
from brokerd.pop.records import POP_TOPIC, Pop, taken, taken_batch
from brokerd.pop.requests import AckStatus, PopRequest, PopStatus
from brokerd.pop.shares import shares_of
from brokerd.store.put_status import PutStatus
from remoting.errors import InvalidParameter
from tests.support.pop_broker import PopBroker, Receive, master
from tests.support.turns import Turns

OK, INVALID = AckStatus.OK, AckStatus.INVALID_HANDLE


def started(broker: PopBroker, count: int = 1, **fields: Any) -> Receive:
    """A pop whose turn of the loop is not over."""
    receive = Receive()
    given = {"group": "g", "topic": "t", "queue_id": -1, "invisible_time_ms": 10_000, "deadline_ms": 0, **fields}
    receive.parked = broker.pop_service.pop(PopRequest(max_count=count, **given), receive.outcomes.append)
    return receive


def test_pops_of_one_turn_share_a_write_and_a_wait() -> None:
    broker = master()
    broker.send(*map(str, range(10)))
    broker.log.acknowledges = False
    before = broker.log.appends
    pops = [started(broker, 2, client_id=f"c{number}") for number in range(6)]
    broker.turns.run()
    assert broker.log.appends == before + 1
    assert broker.log.kinds(POP_TOPIC) == ["taken"] * 5
    assert all(pop.waits for pop in pops[:5])
    assert pops[5].outcome.status == PopStatus.NOTHING
    broker.log.acknowledge()
    assert [pop.bodies for pop in pops[:5]] == [[str(2 * n), str(2 * n + 1)] for n in range(5)], "in their order"


def test_each_has_handles_of_its_own() -> None:
    broker = master()
    broker.topic("t", 2)
    for number in range(8):
        broker.send(str(number), queue_id=number % 2)
    pops = [started(broker, 2, invisible_time_ms=1000 * (1 + n)) for n in range(4)]
    broker.turns.run()
    handles = [decode_handle(message.receipt_handle) for pop in pops for message in pop.messages]
    assert len({handle.proof for handle in handles if handle is not None}) == 4
    assert [pop.outcome.invisible_time_ms for pop in pops] == [1000, 2000, 3000, 4000]
    assert broker.ack(*pops[2].messages) == [OK, OK]
    broker.turns.run(1000)
    assert broker.progress.in_flight("g", "t", 0) + broker.progress.in_flight("g", "t", 1) == 6
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    assert other.ack(*pops[0].messages) == [INVALID, INVALID]
    assert other.ack(*pops[3].messages) == [OK, OK]


def test_those_that_ask_for_other_things_are_looked_at_apart() -> None:
    broker = master()
    broker.topic("u")
    broker.send("ax", tag="x")
    broker.send("ay", tag="y")
    broker.send("u", topic="u")
    x, y = started(broker, 5, expression="x", group="h"), started(broker, 5, expression="y", group="i")
    every, other = started(broker, 5), started(broker, 5, topic="u")
    broker.turns.run()
    assert [pop.bodies for pop in (x, y, every, other)] == [["ax"], ["ay"], ["ax", "ay"], ["u"]]


def test_one_batch_of_an_ordered_queue_is_taken_in_a_turn() -> None:
    broker = master()
    broker.send("a", "b", "c")
    pops = [started(broker, 1, fifo=True, attempt_id=str(number)) for number in range(3)]
    broker.turns.run()
    assert pops[0].bodies == ["a"]
    assert [pop.outcome.status for pop in pops[1:]] == [PopStatus.NOTHING] * 2


def test_an_attempt_that_is_repeated_in_the_same_turn_gets_its_batch_again() -> None:
    broker = master()
    broker.send("a", "b")
    assert started(broker, 1, fifo=True, attempt_id="one").waits
    broker.turns.run()
    pops = [started(broker, 1, fifo=True, attempt_id=each) for each in ("two", "one")]
    broker.turns.run()
    assert pops[0].outcome.status == PopStatus.NOTHING
    assert pops[1].bodies == ["a"]


def test_when_the_record_is_refused_all_are_and_the_messages_stay() -> None:
    broker = master()
    broker.receive()
    broker.send("a", "b")
    pops = [started(broker), started(broker)]
    broker.log.refusal = InvalidParameter("the disk is full")
    broker.turns.run()
    assert [pop.outcome.status for pop in pops] == [PopStatus.REFUSED] * 2
    broker.log.refusal = None
    assert broker.receive().bodies == ["a", "b"]


def test_when_it_cannot_be_acknowledged_all_messages_are_due_at_once() -> None:
    broker = master()
    broker.send("a", "b")
    broker.log.acknowledges = False
    pops = [started(broker, invisible_time_ms=3_600_000) for _ in range(2)]
    broker.turns.run()
    broker.log.acknowledge(PutStatus.FLUSH_SLAVE_TIMEOUT)
    assert [pop.outcome.status for pop in pops] == [PopStatus.REFUSED] * 2
    broker.log.acknowledges = True
    broker.turns.run(1000)
    assert sorted(broker.receive().bodies) == ["a", "b"]


def test_a_pop_that_is_cancelled_in_its_turn_takes_nothing() -> None:
    broker = master()
    broker.send("a")
    gone, there = started(broker), started(broker)
    assert gone.parked is not None
    gone.parked.cancel()
    broker.turns.run()
    assert gone.waits
    assert there.bodies == ["a"]


def test_a_pop_that_is_cancelled_when_it_has_messages_gets_them_all_the_same() -> None:
    """Who asked can make them visible again soon; nobody else knows of them."""
    broker = master()
    broker.send("a")
    broker.log.acknowledges = False
    pop = started(broker)
    broker.turns.run()
    assert pop.parked is not None
    pop.parked.cancel()
    broker.log.acknowledge()
    assert pop.bodies == ["a"]


def test_who_asks_when_the_role_changes_is_sent_to_the_new_master() -> None:
    broker = master()
    broker.send("a")
    pop = started(broker)
    broker.become_replica()
    broker.turns.run()
    assert pop.outcome.status == PopStatus.REFUSED


def test_who_asks_for_a_topic_that_is_deleted_in_that_turn_is_told() -> None:
    broker = master()
    pop = started(broker, deadline_ms=5000)
    broker.metadata.delete_topic("t", lambda _: None)
    broker.turns.run()
    assert pop.outcome.error is not None


def test_a_burst_for_those_who_wait_shares_its_writes() -> None:
    broker = master()
    pops = [started(broker, deadline_ms=5000) for _ in range(40)]
    broker.turns.run()
    assert broker.pop_service.waiting_count == 40
    before = broker.log.appends
    broker.send(*map(str, range(30)))
    broker.turns.run()
    assert [pop.bodies for pop in pops[:30]] == [[str(number)] for number in range(30)]
    assert all(pop.waits for pop in pops[30:])
    assert broker.log.appends - before <= 1 + 5
    assert broker.pop_service.waiting_count == 10


def answered_in_turns(broker: PopBroker, pops: list[Receive]) -> list[int]:
    """How many were given something by each callback of the loop that gave some."""
    counts = [0]
    while broker.turns.is_due:
        broker.turns.run_one()
        done = sum(not pop.waits for pop in pops)
        assert not any(pop.waits for pop in pops[:done]), "in their order"
        assert sum(pop.outcome.status == PopStatus.FOUND for pop in pops[counts[-1] : done]) <= 16
        if done > counts[-1]:
            counts.append(done)
    return [now - before for before, now in pairwise(counts)]


def test_a_turn_gives_a_share_of_what_many_ask_for_and_everybody_else_something() -> None:
    broker = master()
    broker.group("h")
    broker.send(*map(str, range(640)))
    pops = [started(broker, 32) for _ in range(25)]
    other = started(broker, 1, group="h")
    while pops[0].waits:
        broker.turns.run_one()
    assert not other.waits, "nobody waits for the others' shares"
    assert sum(not pop.waits for pop in pops) == 16
    late = started(broker, 32, deadline_ms=5000)
    shares = answered_in_turns(broker, [*pops, late])
    assert sum(shares) == 25, "five of them with nothing"
    assert [pop.outcome.status for pop in pops[20:]] == [PopStatus.NOTHING] * 5
    assert [pop.bodies for pop in pops[:20]] == [[str(32 * n + m) for m in range(32)] for n in range(20)]
    assert late.waits
    assert broker.pop_service.waiting_count == 1


def test_who_waits_is_given_a_share_in_each_turn_before_those_who_come_newly() -> None:
    broker = master()
    pops = [started(broker, 32, deadline_ms=5000) for _ in range(20)]
    broker.turns.run()
    broker.send(*map(str, range(640)))
    pops.append(started(broker, 32, deadline_ms=5000))
    shares = answered_in_turns(broker, pops)
    assert sum(shares) == 20
    assert pops[20].waits
    assert broker.pop_service.waiting_count == 1


@pytest.mark.parametrize("seed", range(40))
def test_shares_are_what_was_taken(seed: int) -> None:
    """Whatever is divided: each pop has what it asked for or less, in order, and the records say together what one would."""
    rng = random.Random(seed)
    counts = [rng.randint(1, 32) for _ in range(rng.randint(1, 12))]
    left = rng.randint(0, sum(counts))
    taking = Taking(0, 0, TurnBudget(Turns().call_soon).look())
    for queue_id in range(rng.randint(1, 5)):
        first = rng.randint(0, 50)
        offsets = sorted(rng.sample(range(first, first + 60), min(left, rng.randint(0, 40))))
        left -= len(offsets)
        again = rng.random() < 0.3
        times = [rng.randint(2, 9) for _ in offsets] if again else None
        end = (offsets[-1] if offsets else first) + rng.randint(1, 5)
        if offsets:
            found = Found("t", 0, queue_id, offsets, [b"%d" % offset for offset in offsets], times)
            taking.found.append(found)
        taking.batches.append(taken_batch("t", queue_id, end, offsets, times if offsets else None))
    shares = shares_of(taking, counts)
    sizes = [sum(len(found.offsets) for found in share.found) for share in shares]
    assert sizes[:-1] == counts[: len(shares) - 1]
    assert sizes[-1] <= counts[len(shares) - 1]

    def flat(pieces: list[Found]) -> list[Any]:
        return [
            (found.queue_id, offset, record, found.counts[place] if found.counts is not None else None)
            for found in pieces
            for place, (offset, record) in enumerate(zip(found.offsets, found.records, strict=True))
        ]

    assert flat([found for share in shares for found in share.found]) == flat(taking.found)
    whole, divided = PopLedger(), PopLedger()
    whole.apply("taken", taken("g", Pop(1, 10, 11), taking.batches))
    for number, share in enumerate(shares):
        divided.apply("taken", taken("g", Pop(1 + number, 10, 11), share.batches))
    for queue in whole.queues():
        other = divided.queue("g", "t", queue.queue_id)
        assert other is not None
        assert (other.next_offset, other.in_flight) == (queue.next_offset, queue.in_flight)
        assert other.committed_offset() == queue.committed_offset()
