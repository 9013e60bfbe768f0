"""Timers in files that go soon: they go on to the log's end, once, and are what they were."""

from __future__ import annotations

import random

import pytest

from brokerd.timers import moving
from brokerd.timers.codes import DUE_MS, LEG_MS, MOVED, PLACE, ROLL_TIMES
from brokerd.timers.cursor import MOVED as MOVE
from brokerd.timers.cursor import TIMERS_TOPIC
from remoting.errors import InvalidParameter, StorageError
from remoting.names import TIMER_TOPIC
from remoting.record.codec import decode_record
from remoting.record.layout import MAX_PROPERTIES_BYTES
from tests.support.memory_log import draft
from tests.support.turns import Turns
from tests.unit.brokerd.timers.test_service import Alone
from tests.unit.brokerd.timers.world import TOPIC, Node


@pytest.fixture(autouse=True)
def mostly_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """These logs have little else."""
    monkeypatch.setattr(moving, "MOST_PART", 1000)


def end_of_queue(broker: Node) -> int:
    return broker.log.queue_range(TIMER_TOPIC, 0)[1]


def let_all_go(broker: Alone, wait_ms: int = 2000) -> int:
    """All files that there are go soon; where they ended."""
    end = broker.log.end_offset
    broker.going = end_of_queue(broker)
    broker.turns.run(wait_ms)
    return end


def test_what_waits_in_files_that_go_holds_them_no_more_and_comes_when_it_is_due() -> None:
    broker = Alone(near_s=1, files=False)
    for number in range(300):
        broker.put_in(f"k{number:03}", 5000 + 10 * number)
    assert broker.service.held_offset() == 0
    end = let_all_go(broker)
    held = broker.service.held_offset()
    assert held is not None
    assert held >= end
    state = broker.service.state()
    assert (state.waiting, state.moved, state.delivered, state.lost) == (300, 300, 0, 0)
    broker.turns.run(2999)
    assert broker.delivered == []
    broker.turns.run(1)
    assert broker.delivered == ["k000"]
    broker.turns.run(3000)
    assert broker.delivered == [f"k{number:03}" for number in range(300)]
    properties = broker.copies()[7].property_map()
    assert (properties[PLACE], properties[ROLL_TIMES]) == ("7", "1")
    assert properties.keys().isdisjoint({MOVED, LEG_MS})
    assert broker.service.state().waiting == 0
    broker.turns.run(2000)
    assert broker.turns.waiting == 0


def test_what_is_in_memory_already_comes_once() -> None:
    broker = Alone(near_s=10, batch_messages=4)
    for number in range(50):
        broker.put_in(f"a{number:02}", 3000)
        broker.put_in(f"b{number:02}", 900_000)
    broker.turns.run(1)
    assert broker.service.state().near == 50
    broker.going = 41
    broker.turns.run(3010)
    assert sorted(broker.delivered) == [f"a{number:02}" for number in range(50)]
    assert broker.service.state().moved == 41
    broker.turns.run(900_000)
    assert sorted(broker.delivered[50:]) == [f"b{number:02}" for number in range(50)]
    assert broker.service.state().waiting == 0


def test_a_timer_that_moved_is_on_legs_as_before_and_is_taken_back_by_its_handle() -> None:
    broker = Alone()
    far, other = broker.put_in("far", 200_000), broker.put_in("other", 200_000)
    let_all_go(broker)
    assert broker.service.is_pending(far.place, far.due_ms)
    assert broker.recall(far) is None
    again = broker.recall(far)
    assert again is not None
    assert "recalled before" in str(again)
    broker.turns.run(200_000)
    assert broker.delivered == ["other"]
    assert int(broker.copies()[0].property_map()[DUE_MS]) == other.due_ms
    assert broker.service.state().waiting == 0


def test_what_was_taken_back_does_not_move() -> None:
    broker = Alone()
    by_place, by_name = broker.put_in("by its place", 30_000), broker.put_in("by its name", 30_000)
    broker.put_in("kept", 30_000)
    assert broker.recall(by_place) is None
    broker.put_marker("by its name", by_name.due_ms)
    let_all_go(broker)
    assert broker.service.state().moved == 1
    broker.turns.run(40_000)
    assert broker.delivered == ["kept"]


def test_a_move_that_is_torn_anywhere_is_completed_by_the_next_master() -> None:
    first = Alone()
    for number in range(5):
        first.put_in(f"k{number}", 20_000)
    before = first.log.end_offset
    first.log.dispatches = False
    let_all_go(first)
    cuts = [end for end in first.log.positions if end > before]
    assert len(cuts) == 6
    for cut in cuts:
        heir = Alone(first.log.copy(cut, before), Turns())
        heir.turns.run(first.turns.wall_ms() - heir.turns.wall_ms())
        heir.log.dispatch()
        heir.turns.run(5000)
        assert heir.delivered == [], "it is not due"
        assert heir.service.state().waiting == 5
        heir.turns.run(15_000)
        assert sorted(heir.delivered) == [f"k{number}" for number in range(5)], cut
        assert heir.service.state().waiting == 0


def test_one_that_cannot_be_read_is_set_aside_and_never_early(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Alone()
    for key in ("a", "b", "c"):
        broker.put_in(key, 60_000)
    read, damaged = broker.log.record_at, broker.log.read_units(TIMER_TOPIC, 0, 1, 1)[0][0]

    def record_at(offset: int, size: int) -> bytes:
        if offset == damaged:
            raise StorageError("no intact record")
        return read(offset, size)

    monkeypatch.setattr(broker.log, "record_at", record_at)
    let_all_go(broker)
    assert (broker.service.state().aside, broker.service.state().moved) == (1, 2)
    monkeypatch.setattr(broker.log, "record_at", read)  # it was repaired
    broker.turns.run(30_000)
    assert (broker.service.state().aside, broker.delivered) == (0, [])
    broker.turns.run(30_000)
    assert sorted(broker.delivered) == ["a", "b", "c"]


def test_one_without_room_for_more_properties_stays_where_it_is() -> None:
    broker = Alone()
    broker.put_in("a", 60_000)
    (plain,) = broker.log.bodies(TIMER_TOPIC)
    room = MAX_PROPERTIES_BYTES - len(decode_record(plain).properties) - len("KEYS") - 2
    broker.put_in("b", 60_000, KEYS="x" * room)
    broker.put_in("c", 60_000)
    let_all_go(broker, 5000)
    assert broker.service.state().moved == 1
    assert broker.service.table.done.moved == 1
    broker.turns.run(60_000)
    assert sorted(broker.delivered) == ["a", "b", "c"]


def test_where_timers_are_most_of_the_log_nothing_moves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(moving, "MOST_PART", 0.5)
    broker = Alone()
    for number in range(10):
        broker.put_in(f"k{number}", 60_000)
    let_all_go(broker, 10_000)
    assert broker.service.state().moved == 0
    assert [record.message.split(":")[0] for record in caplog.records] == ["files of the log that would go stay"]
    broker.log.append_placed([draft(TOPIC, bytes(10_000), 1)])
    broker.turns.run(2000)
    assert broker.service.state().moved == 10


def test_retention_says_what_it_moved(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    broker = Alone()
    for number in range(200):
        broker.put_in(f"k{number}", 60_000)
    let_all_go(broker)
    (said,) = [record.message for record in caplog.records if "retention moved" in record.message]
    assert said.startswith("retention moved 200 timers, ")


def test_a_log_that_takes_nothing_has_it_done_later() -> None:
    broker = Alone()
    broker.put_in("a", 60_000)
    broker.log.refusal = InvalidParameter("the disk is full")
    let_all_go(broker)
    assert broker.service.state().moved == 0
    broker.log.refusal = None
    broker.turns.run(2000)
    assert broker.service.state().moved == 1


def test_it_goes_on_where_the_disk_is_too_full_for_what_is_due() -> None:
    """That deliveries wait for room, and are tried again and again, does not keep room from being made."""
    broker = Alone(near_s=1)
    broker.put_in("due", 1000)
    broker.put_in("far", 900_000)
    broker.log.refusal = InvalidParameter("the disk is full")
    broker.log.takes_moves = True
    broker.turns.run(5000)
    assert broker.service.state().failures > 0
    end = let_all_go(broker)
    held = broker.service.held_offset()
    assert held is not None
    assert held >= end
    assert (broker.service.state().moved, broker.delivered) == (2, [])
    broker.log.refusal = None
    broker.turns.run(2000)
    assert broker.delivered == ["due"]
    broker.turns.run(900_000)
    assert broker.delivered == ["due", "far"]


def test_a_replica_moves_nothing_and_knows_what_moved() -> None:
    broker = Alone()
    for number in range(4):
        broker.put_in(f"k{number}", 60_000)
    let_all_go(broker)
    heir = Node(broker.log.copy(), broker.turns, random.Random(3), broker.service._settings)
    heir.going = end_of_queue(heir)
    heir.log.is_master = False
    heir.turns.run(5000)
    assert heir.service.table.done.moved == broker.service.table.done.moved == 4
    kinds = [decode_record(each).property_map()["TAGS"] for each in heir.log.bodies(TIMERS_TOPIC)]
    assert kinds.count(MOVE) == 1


def test_a_second_with_a_limit_counts_what_moved_once() -> None:
    broker = Alone()
    broker.most = 100
    assert broker.service.slot_limit() is not None
    due_ms = broker.service.now_ms() + 30_000
    for number in range(7):
        broker.put(f"k{number}", due_ms)
    limit = broker.service.slot_limit()
    assert limit is not None
    slot_ms = due_ms - 1 - (due_ms - 1) % 1000
    assert limit.count(slot_ms) == 7
    let_all_go(broker)
    assert broker.service.slot_limit() is limit
    assert limit.count(slot_ms) == 7


@pytest.mark.parametrize("is_counted_first", [True, False])
def test_topics_count_what_moved_once(is_counted_first: bool) -> None:
    broker = Alone()
    for number in range(5):
        broker.put_in(f"near{number}", 30_000)
        broker.put_in(f"far{number}", 500_000)
    counting = broker.service.counting

    def counted() -> int:
        while counting.take(broker.log.end_offset, 1 << 20):
            pass
        return counting.counts.waiting

    if is_counted_first:
        assert counted() == 10
    let_all_go(broker)
    assert counted() == 10
    let_all_go(broker)
    assert counted() == 10
    broker.turns.run(90_000)
    assert counted() == 5
    broker.turns.run(420_000)
    assert counted() == 0
