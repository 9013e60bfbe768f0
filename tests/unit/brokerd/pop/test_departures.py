"""What leaves a queue is copied once, wherever the log ends when its master dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.pop.records import POP_TOPIC
from brokerd.pop.requests import AckStatus, PopStatus
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.record.codec import decode_record
from tests.support.memory_log import MemoryRecordLog
from tests.support.pop_broker import PopBroker, master
from tests.support.turns import Turns

DEAD = "%DLQ%g"
OK, INVALID = AckStatus.OK, AckStatus.INVALID_HANDLE


def dead_letters() -> PopBroker:
    """Three messages, two of them equal, were delivered once too often, and leave."""
    broker = master()
    broker.topic("t", 2)
    broker.group("g", retry_max_times=0)
    broker.send("a", "b", "b")
    broker.send("c", queue_id=1)
    broker.receive(4, invisible_time_ms=1000)
    broker.turns.run(1000)
    return broker


def moved() -> PopBroker:
    """Two equal messages of two queues are among them."""
    broker = master()
    broker.topic("t", 2)
    broker.send("a", "b", "c")
    broker.send("b", queue_id=1)
    broker.receive(4, invisible_time_ms=1000)
    broker.turns.run(1000)
    broker.log.going_offset = broker.log.end_offset
    broker.turns.run(10_000)
    return broker


def given_up() -> PopBroker:
    broker = master()
    broker.send("a", "b", "b", "c")
    for message in broker.receive(4, invisible_time_ms=1000).messages:
        assert broker.forward(message) == OK
    return broker


@pytest.mark.parametrize("dispatched", ["all", "half", "nothing"])
@pytest.mark.parametrize("story", [dead_letters, moved, given_up], ids=lambda story: story.__name__)
def test_a_master_may_die_at_any_record(story: Callable[[], PopBroker], dispatched: str) -> None:
    """Each message is finished by its consumer or in the dead-letter topic, and not twice."""
    broker = story()
    begin = _first_taken(broker.log)
    for cut in (each for each in broker.log.positions if each >= begin):
        visible = {"all": cut, "half": (begin + cut) // 2, "nothing": begin}[dispatched]
        log = broker.log.copy(cut, visible)
        log.dispatches = False
        other = PopBroker(log, Turns(start_ms=broker.turns.wall_ms())).become_master()
        other.turns.run(500)
        log.dispatches = True
        log.dispatch()
        ends: list[bytes] = []
        for _ in range(10):
            receive = other.receive(invisible_time_ms=500)
            if receive.outcome.status == PopStatus.FOUND:
                ends += [decode_record(message.record).body for message in receive.messages]
                assert other.ack(*receive.messages) == [OK] * len(receive.messages)
            other.turns.run(2000)
        ends += [record.body for record in other.stored(DEAD)]
        assert sorted(ends) == [b"a", b"b", b"b", b"c"], f"cut at {cut}"
        assert other.pop_service.ledger.in_flight("g") == 0
        assert other.pop_service.counters.lost == 0


def _first_taken(log: MemoryRecordLog) -> int:
    first = decode_record(log.bodies(POP_TOPIC)[0])
    return first.physical_offset + first.size


@pytest.mark.parametrize("refused", range(1, 5))
def test_what_is_refused_in_the_middle_is_done_later_and_once(refused: int) -> None:
    """The log takes so many appends, and then none for a while."""
    broker = master()
    broker.group("g", retry_max_times=0)
    broker.send("a", "b", "b")
    broker.receive(invisible_time_ms=1000)
    until = broker.log.appends + refused
    broker.log.refuses_after = until
    broker.turns.run(3500)
    broker.log.refuses_after = None
    broker.turns.run(5000)
    assert [record.body for record in broker.stored(DEAD)] == [b"a", b"b", b"b"]
    assert broker.pop_service.ledger.in_flight("g") == 0
    assert broker.receive().outcome.status == PopStatus.NOTHING


def test_a_message_that_cannot_be_stored_holds_up_no_others() -> None:
    broker = master()
    broker.group("g", retry_max_times=0)
    broker.topic("t", 2)
    broker.send("bad")
    broker.send("good", queue_id=1)
    broker.receive(1, invisible_time_ms=1000, queue_id=0)
    broker.receive(1, invisible_time_ms=1000, queue_id=1)
    broker.log.illegal = b"bad"
    broker.turns.run(1000)
    assert [record.body for record in broker.stored(DEAD)] == [b"good"]
    assert broker.pop_service.ledger.in_flight("g") == 1
    broker.log.illegal = None
    broker.turns.run(60_000)
    assert [record.body for record in broker.stored(DEAD)] == [b"good", b"bad"]


def test_what_leaves_an_ordered_queue_holds_up_the_next_until_its_copy_is_there() -> None:
    broker = master()
    broker.group("g", fifo=True, retry_max_times=0)
    broker.send("a", "b")
    broker.receive(1, fifo=True, invisible_time_ms=1000)
    broker.log.refuses_after = broker.log.appends + 2
    broker.turns.run(1500)
    waiting = broker.receive(fifo=True, wait_ms=10_000)
    assert waiting.waits
    broker.log.refuses_after = None
    broker.turns.run(2000)
    assert waiting.bodies == ["b"]
    assert [record.body for record in broker.stored(DEAD)] == [b"a"]


def test_acks_and_dead_letters_of_one_turn_share_a_queue() -> None:
    broker = master()
    broker.send(*"abcd")
    one, two, three, four = broker.receive(invisible_time_ms=1000).messages
    answers: list[Any] = []
    pop = broker.pop_service
    pop.change_invisible_time("g", "t", one.receipt_handle, 5000, answers.append)
    pop.forward_to_dead_letter("g", "t", two.receipt_handle, answers.append)
    pop.ack("g", "t", [three.receipt_handle, two.receipt_handle], answers.append)
    pop.change_invisible_time("g", "t", four.receipt_handle, 6000, answers.append)
    broker.turns.run()
    assert [answers[0].status, *answers[1:3], answers[3].status] == [OK, OK, [OK, OK], OK]
    assert [record.body for record in broker.stored(DEAD)] == [b"b"]
    queue = pop.ledger.queue("g", "t", 0)
    assert queue is not None
    assert queue.in_flight == 2


def test_a_client_cannot_call_its_messages_leaving() -> None:
    broker = master()
    outcome = broker.receive(invisible_time_ms=-1, attempt_id="dead 0").outcome
    assert outcome.error is not None
    assert outcome.error.code == codes.INVALID_PARAMETER


def test_the_refusals_are_what_they_say() -> None:
    log = MemoryRecordLog()
    log.refuses_after = 0
    with pytest.raises(InvalidParameter):
        log.append("t", "x", b"{}")
    log.refuses_after, log.illegal = None, b"bad"
    with pytest.raises(RequestError):
        log.append("t", "x", b"bad")
