"""What becomes of timers while others overtake them: taken back, set aside, and over a log that was cut anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import orjson
import pytest

from brokerd.timers import moving, overtaking
from brokerd.timers.cursor import AHEAD, TIMERS_TOPIC, TimerTable
from brokerd.timers.interface import Recalled
from remoting import codes
from remoting.errors import StorageError
from remoting.names import TIMER_TOPIC
from remoting.record.codec import Record, decode_record
from tests.support.turns import Turns
from tests.unit.brokerd.timers.test_overtaking import slow_log
from tests.unit.brokerd.timers.test_service import Alone

MINUTE_MS = 60_000


class Disk:
    """A broker's log of which some timers cannot be read."""

    def __init__(self, broker: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bad: set[bytes] = set()
        self._read = broker.log.record_at
        monkeypatch.setattr(broker.log, "record_at", self._record_at)

    def _record_at(self, physical_offset: int, size: int) -> bytes:
        record = self._read(physical_offset, size)
        decoded = decode_record(record)
        if decoded.topic == TIMER_TOPIC and decoded.body in self.bad:
            raise StorageError("no intact record")
        return record


def test_a_timer_that_was_set_aside_during_its_leg_comes_when_it_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its time has come by then or not, and whether the cursor has passed it."""
    for heals_after_ms in (0, 40_000, 62_000, 130_000):
        broker = Alone()
        disk = Disk(broker, monkeypatch)
        far = broker.put_in("far", 100_000)  # in two legs
        for at_ms in (61_000, 100_005, 110_000, 200_000):
            broker.put_in(f"at {at_ms}", at_ms)
        disk.bad = {b"far"}
        broker.turns.run(60_500)
        assert broker.service.state().aside == 1
        broker.turns.run(heals_after_ms)
        disk.bad.clear()
        broker.turns.run(210_000)
        assert Counter(broker.delivered) == Counter(["far", "at 61000", "at 100005", "at 110000", "at 200000"])
        (came,) = (each for each in broker.copies() if each.body == b"far")
        assert came.store_timestamp_ms >= far.due_ms
        assert broker.service.state().waiting == broker.service.state().aside == 0


def test_one_that_was_recalled_stays_so_however_long_it_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Alone()
    disk = Disk(broker, monkeypatch)
    timer, marked = broker.put_in("bad", 500), broker.put_in("marked", 2500)
    assert broker.recall(timer) is None
    broker.put_marker("marked", marked.due_ms)
    disk.bad = {b"bad", b"marked"}
    broker.put_in("another", 2 * MINUTE_MS)
    broker.put_in("one more", 3 * MINUTE_MS)
    broker.turns.run(3 * MINUTE_MS + 10)
    assert broker.service.state().aside == 2
    disk.bad.clear()
    broker.turns.run(20_000)
    assert broker.delivered == ["another", "one more"]
    assert broker.service.state().aside == 0


def test_one_that_is_set_aside_can_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not delivered when it was due."""
    broker = Alone()
    timers = [broker.put_in(key, 500) for key in ("a", "bad", "c")]
    broker.log.illegal = b"bad"
    broker.turns.run(1000)
    assert [broker.recall(each) is None for each in timers] == [False, True, False]
    broker.log.illegal = None
    broker.turns.run(20_000)
    assert broker.delivered == ["a", "c"]
    assert broker.service.state().aside == 0


def slow(monkeypatch: pytest.MonkeyPatch, **settings: int | bool) -> tuple[Alone, list[Recalled]]:
    """A broker whose log takes its time, so that it is late by much, and what waits there: a burst, and some that come behind it
    one by one."""
    monkeypatch.setattr(overtaking, "LATE_MS", 100)
    monkeypatch.setattr(overtaking, "TAIL_BATCHES", 1)
    turns = Turns()
    broker = Alone(slow_log(turns), turns, batch_messages=3, **settings)
    burst = [broker.put_in(f"burst {n}", 500 + n) for n in range(36)]
    return broker, [*burst, *(broker.put_in(f"other {n}", 560 + 20 * n) for n in range(20))]


def run_until(broker: Alone, is_there: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if is_there():
            return
        if broker.turns.is_due:
            broker.turns.run_one()
        else:
            broker.turns.run(1)
    raise AssertionError("it does not come to that")


def test_timers_are_late_while_those_that_are_due_wait_and_not_when_they_come_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, timers = slow(monkeypatch)
    assert not broker.service.is_late
    run_until(broker, lambda: len(broker.delivered) > 10)
    assert broker.service.is_late
    run_until(broker, lambda: len(broker.delivered) == len(timers) and not broker.service.state().left)
    assert not broker.service.is_late
    broker.put_in("last", 500)
    broker.turns.run(499)
    assert not broker.service.is_late
    broker.service.step_down()
    broker.turns.run(1000)
    assert not broker.service.is_late, "it is another's matter"


def test_delete_markers_whose_files_went_are_not_looked_for_when_the_newest_overtake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk was full: what is due waited, and moved before its files went. What the markers say was recorded by that."""
    monkeypatch.setattr(moving, "MOST_PART", 1000)  # this log has little else
    broker, timers = slow(monkeypatch)
    broker.turns.run(100)
    assert broker.service.state().near == len(timers), "all is in memory"
    broker.put_marker(timers[5].unique_key, timers[5].due_ms)
    broker.log.refusal, broker.log.takes_moves = StorageError("the disk is full"), True
    broker.going = broker.log.queue_range(TIMER_TOPIC, 0)[1]
    broker.turns.run(3000)
    assert broker.service.table.done.moved == broker.going
    broker.log.expire(TIMER_TOPIC, 0, broker.going)
    broker.log.refusal = None
    broker.turns.run(20_000)
    assert len(broker.delivered) == len(set(broker.delivered)) == len(timers) - 1
    assert "burst 5" not in broker.delivered
    assert broker.service.state().waiting == 0


@pytest.mark.parametrize("near_max", [3, 1000])
def test_what_is_left_behind_can_be_taken_back(monkeypatch: pytest.MonkeyPatch, near_max: int) -> None:
    """Also when it is not in memory."""
    broker, timers = slow(monkeypatch, near_max=near_max)
    run_until(broker, lambda: len(broker.service.table.done.gaps) > 1)
    came = set(broker.delivered)
    gaps = broker.service.table.done.gaps
    left = [each for each in timers if any(begin < (each.due_ms, each.place) <= end for begin, end in gaps)]
    assert len(left) > 10
    assert not came.intersection(each.unique_key for each in left)
    back = left[1::2]
    assert [broker.recall(each) for each in back] == [None] * len(back)
    for each in timers:
        if each.unique_key in came:
            refusal = broker.recall(each)
            assert refusal is not None
            assert refusal.code == codes.ILLEGAL_OPERATION
    broker.turns.run(10_000)
    assert Counter(broker.delivered) == Counter(each.unique_key for each in timers if each not in back)
    assert broker.service.table.done.fences == ()


@pytest.mark.parametrize("files", [False, True])
def test_a_log_with_parts_left_behind_may_end_at_any_record(monkeypatch: pytest.MonkeyPatch, *, files: bool) -> None:
    """The next master delivers each once, also from a table that was kept on the way."""
    first, timers = slow(monkeypatch, files=files)
    before = first.log.end_offset
    first.turns.run(10_000)
    keys = Counter(each.unique_key for each in timers)
    assert Counter(first.delivered) == keys
    records = [decode_record(each) for each in first.log.bodies(TIMERS_TOPIC)]
    assert sum(each.property_map()["TAGS"] == AHEAD for each in records) > 3
    assert_kept_alike(records)
    most_left = 0
    for cut in [end for end in first.log.positions if end >= before]:
        for dispatched in {before, cut}:
            log = first.log.copy(cut, dispatched)
            heir = Alone(log, first.turns, batch_messages=3, files=files)
            most_left = max(most_left, len(heir.service.table.done.gaps))
            log.dispatch()
            heir.turns.run(2000)
            assert Counter(heir.delivered) == keys, (cut, dispatched)
            assert heir.service.table.done.fences == ()
            assert heir.service.state().waiting == 0
    assert most_left > 1


def assert_kept_alike(records: Sequence[Record]) -> None:
    """Wherever a table is kept and read again, it ends as the one that was not."""
    for kept_behind in range(len(records)):
        table = TimerTable()
        for number, record in enumerate(records):
            table.apply(record.property_map()["TAGS"], orjson.loads(record.body), record.physical_offset + record.size)
            if number == kept_behind:
                rows = [orjson.loads(orjson.dumps(row)) for row in table.snapshot_rows()]
                again = TimerTable()
                for row in rows:
                    again.load_row(row)
                assert vars(again) | {"last": None} == vars(table) | {"last": None}
                assert again.last is not None
                assert again.last.body() == (table.last or again.last).body()
                table = again
        assert table.done.fences == ()


@pytest.mark.parametrize("wrong_s", [-2, 2, 40])
def test_a_marker_for_another_second_takes_nothing_from_the_one_that_was_there(wrong_s: int) -> None:
    """Somebody sent it again, for a time that is not that of the message."""
    broker = Alone()
    timer = broker.put_in("a", 5000)
    broker.put_in("b", 5000)
    broker.put_marker("a", timer.due_ms)
    broker.turns.run(100)
    broker.put_marker("a", timer.due_ms + 1000 * wrong_s)
    broker.turns.run(100)
    assert broker.service.table.taken_back.named == 2
    heir = Alone(broker.log.copy(), broker.turns)
    heir.turns.run(6000)
    assert heir.delivered == ["b"]
    heir.put_in("c", 3 * MINUTE_MS)
    heir.turns.run(3 * MINUTE_MS + 10)
    assert (heir.service.table.names, heir.service.table.taken_back.named) == ({}, 0)
