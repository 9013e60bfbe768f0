"""Timers in the tier, case by case: where they go, when they come back, and what recalls, counts and troubles make of them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from brokerd.tiers.stowage import Stowage
from brokerd.timers.codes import MOVED, PLACE
from brokerd.timers.cursor import RETURNED, STOWED, TIMERS_TOPIC
from brokerd.timers.interface import Recalled
from brokerd.timers.settings import TimerSettings
from remoting import codes
from remoting.errors import InvalidParameter
from remoting.facts.timers import HORIZON_MINUTES
from remoting.names import TIMER_TOPIC
from remoting.record.codec import Record, decode_record
from tests.support.memory_log import MemoryRecordLog
from tests.support.tiers import FaultyObjects, Steps, Stored
from tests.support.turns import Turns
from tests.unit.brokerd.timers.test_moving import end_of_queue
from tests.unit.brokerd.timers.tiered_world import Owner
from tests.unit.brokerd.timers.world import TOPIC, Node

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class Tiered(Node):
    """A master with a tier that is open, whose log is dispatched and acknowledged at once."""

    def __init__(
        self,
        log: MemoryRecordLog | None = None,
        turns: Turns | None = None,
        stored: Stored | None = None,
        epoch: int = 1,
        **settings: Any,
    ) -> None:
        turns = turns or Turns()
        self.stored, steps = stored or Stored(), Steps(turns)
        self.objects = FaultyObjects(self.stored, steps, turns, random.Random(1))
        self.stowage = Stowage(self.objects, steps.loop(), lambda: self.service.table.named_objects)
        log = log or MemoryRecordLog(turns.wall_ms)
        super().__init__(log, turns, random.Random(3), TimerSettings(files=False, **settings), tier=self.stowage)
        self.stowage.open(Owner(epoch, self.stored))
        self.lead()
        turns.run()

    def put_in(self, key: str, ahead_ms: int) -> Recalled:
        due_ms = self.service.now_ms() + ahead_ms
        return Recalled(TOPIC, key, self.put(key, due_ms), due_ms)

    def let_all_go(self, wait_ms: int = 3000) -> None:
        self.going = end_of_queue(self)
        self.turns.run(wait_ms)

    def pass_ms(self, ms: int) -> None:
        """In steps, as a loop would not look for so long."""
        for _ in range(ms // MINUTE_MS):
            self.turns.run(MINUTE_MS)
        self.turns.run(ms % MINUTE_MS)

    @property
    def delivered(self) -> list[str]:
        return [decode_record(each).body.decode() for each in self.log.bodies(TOPIC, 1)]

    def waiting(self) -> list[Record]:
        return [decode_record(each) for each in self.log.bodies(TIMER_TOPIC)]

    def kinds(self) -> list[str]:
        return [decode_record(each).property_map()["TAGS"] for each in self.log.bodies(TIMERS_TOPIC)]

    def recall(self, timer: Recalled) -> Any:
        answers: list[Any] = []
        self.service.recall(timer, answers.append)
        return answers[0]

    def counted(self) -> int:
        while self.service.counting.take(self.log.end_offset, 1 << 20):
            pass
        return self.service.counting.counts.waiting


def test_what_is_due_long_after_its_file_goes_waits_in_the_tier_and_comes_an_hour_before() -> None:
    broker = Tiered()
    keys = [f"k{number:03}" for number in range(300)]
    for number, key in enumerate(keys):
        broker.put_in(key, 2 * DAY_MS + number * MINUTE_MS)
    soon = broker.put_in("soon", 2 * HOUR_MS)
    end = broker.log.end_offset
    broker.let_all_go()
    held = broker.service.held_offset()
    assert held is not None
    assert held >= end
    state = broker.service.state()
    assert (state.waiting, state.in_tier, state.tier_objects, state.stowed, state.moved) == (301, 300, 1, 300, 1)
    assert [name.split("/")[0] for name in broker.stored.objects] == ["timers"]
    assert len(broker.waiting()) == 302, "what is due sooner went to the log's end"
    broker.pass_ms(2 * HOUR_MS)
    assert broker.delivered == ["soon"]
    broker.pass_ms(2 * DAY_MS - 3 * HOUR_MS - 2 * MINUTE_MS)
    assert broker.service.state().in_tier == 300
    broker.pass_ms(2 * MINUTE_MS)
    assert 0 < broker.service.state().returned < 300, "an hour of them at a time"
    broker.pass_ms(6 * HOUR_MS)
    assert broker.delivered == ["soon", *keys]
    state = broker.service.state()
    assert (state.waiting, state.in_tier, state.tier_objects, state.returned, state.lost) == (0, 0, 0, 300, 0)
    assert state.last_late_ms <= 1
    assert broker.stored.objects == {}
    copy = decode_record(broker.log.bodies(TOPIC, 1)[8]).property_map()
    assert copy[PLACE] == "7"
    assert MOVED not in copy
    assert soon.place == 300


def test_years_ahead() -> None:
    broker = Tiered()
    timer = broker.put_in("k", 3 * 366 * DAY_MS)
    broker.let_all_go()
    assert broker.service.state().in_tier == 1
    broker.turns.set_wall_clock(timer.due_ms - broker.turns.wall_ms() - 2 * HOUR_MS)
    broker.turns.run(120_000)  # it is believed then
    broker.pass_ms(2 * HOUR_MS)
    assert broker.delivered == ["k"]


@pytest.mark.parametrize("when", ["before", "in the tier", "after a switch", "when it is back"])
def test_a_recall_works_at_once_wherever_the_timer_is(when: str) -> None:
    broker = Tiered()
    kept, timer = broker.put_in("kept", 2 * DAY_MS), broker.put_in("taken back", 2 * DAY_MS)
    assert kept.place == 0
    if when == "before":
        assert broker.recall(timer) is None
    broker.let_all_go()
    if when == "after a switch":
        broker = Tiered(broker.log.copy(), broker.turns, broker.stored, 2)
    if when == "when it is back":
        broker.pass_ms(2 * DAY_MS - HOUR_MS + MINUTE_MS)
        assert broker.service.state().in_tier == 0
    if when != "before":
        assert broker.service.is_pending(timer.place, timer.due_ms)
        assert broker.recall(timer) is None
    assert "recalled before" in str(broker.recall(timer))
    broker.pass_ms(2 * DAY_MS)
    assert broker.delivered == ["kept"]
    assert broker.service.state().waiting == 0


def test_a_clients_own_delete_marker_reaches_the_tier() -> None:
    broker = Tiered()
    kept, timer = broker.put_in("kept", 2 * DAY_MS), broker.put_in("taken back", 2 * DAY_MS)
    broker.let_all_go()
    broker.put_marker("taken back", timer.due_ms)
    broker.pass_ms(2 * DAY_MS + MINUTE_MS)
    assert broker.delivered == ["kept"]
    assert kept.due_ms == timer.due_ms


def test_a_dead_store_makes_timers_late_and_loses_none() -> None:
    broker = Tiered()
    timer, other = broker.put_in("k", 2 * DAY_MS), broker.put_in("other", 2 * DAY_MS)
    broker.let_all_go()
    broker.objects.is_down = True
    broker.pass_ms(2 * DAY_MS + 10 * MINUTE_MS)
    state = broker.service.state()
    assert (broker.delivered, state.waiting, state.in_tier) == ([], 2, 2)
    assert state.overdue_ms > 9 * MINUTE_MS
    assert state.tier_trouble.startswith("timers cannot come back from timers/")
    assert 60 < state.tier_failures < 200, "it is asked again every minute"
    broker.put_in("later", 1)
    broker.turns.run(10)
    refusal = broker.recall(timer)
    assert refusal is not None
    assert refusal.code == codes.SYSTEM_BUSY, "others that were due since were delivered, so nobody knows"
    assert "late" in str(refusal)
    broker.objects.is_down = False
    broker.pass_ms(2 * MINUTE_MS)
    assert broker.delivered == ["later", "k", "other"]
    assert broker.service.state().tier_trouble == ""
    assert other.due_ms == timer.due_ms


def test_a_store_that_takes_nothing_holds_no_files() -> None:
    broker = Tiered()
    broker.put_in("k", 2 * DAY_MS)
    broker.log.append_placed([decode_and_again(broker)])
    broker.objects.is_refusing = True
    broker.let_all_go(10_000)
    state = broker.service.state()
    assert (state.in_tier, state.moved, state.waiting) == (0, 1, 1)
    assert state.tier_trouble == "timers cannot go to the tier: the bucket is full"
    broker.objects.is_refusing = False
    broker.pass_ms(MINUTE_MS)
    broker.let_all_go()
    assert broker.service.state().in_tier == 1
    broker.pass_ms(2 * DAY_MS)
    assert broker.delivered == ["k"]


def decode_and_again(broker: Tiered) -> Any:
    """Something large that is no timer: of a log that is mostly timers none are moved."""
    from tests.support.memory_log import draft

    return draft(TOPIC, bytes(100_000), 2)


def test_a_log_that_takes_nothing_has_it_done_later() -> None:
    broker = Tiered()
    broker.put_in("k", 2 * DAY_MS)
    broker.log.refusal = InvalidParameter("the disk is full")
    broker.let_all_go(10_000)
    assert broker.service.state().in_tier == 0
    assert len(broker.stored.objects) == 1, "it is kept for then"
    broker.log.refusal = None
    broker.turns.run(2000)
    assert broker.service.state().in_tier == 1
    broker.pass_ms(2 * DAY_MS - HOUR_MS - MINUTE_MS)
    broker.log.refusal = InvalidParameter("the disk is full")
    broker.pass_ms(30 * MINUTE_MS)
    assert broker.service.state().in_tier == 1
    broker.log.refusal = None
    broker.pass_ms(HOUR_MS)
    assert broker.delivered == ["k"]


@pytest.mark.parametrize("kind", [STOWED, RETURNED])
def test_a_record_that_is_torn_from_what_follows_is_put_right_by_the_next_master(kind: str) -> None:
    first = Tiered(tier_ahead_s=3600, tier_back_s=600)
    far = [f"f{number}" for number in range(5)]
    near = [f"n{number}" for number in range(3)]
    for number, key in enumerate(far):
        first.put_in(key, 2 * HOUR_MS + number)
    for key in near:
        first.put_in(key, 20 * MINUTE_MS)
    before = first.log.end_offset
    if kind == RETURNED:
        first.let_all_go()
        first.pass_ms(2 * HOUR_MS - 11 * MINUTE_MS)
        assert first.delivered == near
        before = first.log.end_offset
    first.log.dispatches = False
    first.stored.remove = lambda _names: None  # type: ignore[method-assign]
    first.let_all_go(2 * MINUTE_MS)
    assert first.kinds().count(kind) == 1 or not first.log.dispatch()
    assert kind in first.kinds()
    cuts = [end for end in first.log.positions if end > before]
    assert len(cuts) >= 4
    for number, cut in enumerate(cuts):
        heir = Tiered(
            first.log.copy(cut, before), Turns(), first.stored, 2 + number, tier_ahead_s=3600, tier_back_s=600
        )
        heir.turns.run(first.turns.wall_ms() - heir.turns.wall_ms())
        heir.log.dispatch()
        heir.turns.run(5000)
        assert heir.service.state().waiting == (5 if kind == RETURNED else 8), cut
        assert sum(map(sum, (days.values() for days in heir.service.table.days.values()))) == heir.service.table.stowed
        heir.pass_ms(3 * HOUR_MS)
        assert sorted(heir.delivered) == sorted(far + near), cut
        assert heir.service.state().waiting == 0
        assert heir.service.table.days == {}


@pytest.mark.parametrize("is_counted_first", [True, False])
def test_the_horizon_counts_what_is_in_the_tier(is_counted_first: bool) -> None:
    broker = Tiered()
    for number in range(5):
        broker.put_in(f"near{number}", 2 * HOUR_MS)
        broker.put_in(f"far{number}", 2 * DAY_MS)
    if is_counted_first:
        assert broker.counted() == 10
    broker.let_all_go()
    assert broker.counted() == 10
    (told,) = broker.service.waiting_by_topic()
    columns = dict(zip((*HORIZON_MINUTES, None), told.ahead, strict=True))
    assert columns[180] == 5
    assert columns[2 * 1440] + columns[7 * 1440] == 5
    heir = Tiered(broker.log.copy(), broker.turns, broker.stored, 2)
    assert heir.counted() == 10, "also by who counts anew"
    heir.pass_ms(3 * HOUR_MS)
    assert heir.counted() == 5
    heir.pass_ms(2 * DAY_MS - 3 * HOUR_MS - 30 * MINUTE_MS)
    assert heir.service.state().in_tier == 0
    assert heir.counted() == 5
    heir.pass_ms(HOUR_MS)
    assert heir.counted() == 0


def test_without_the_tier_it_had_a_broker_says_what_it_lacks(caplog: pytest.LogCaptureFixture) -> None:
    broker = Tiered()
    broker.put_in("k", 2 * DAY_MS)
    broker.let_all_go()
    heir = Node(broker.log.copy(), broker.turns, random.Random(3), TimerSettings(files=False))
    heir.lead()
    for _ in range(2 * 1440):
        heir.turns.run(MINUTE_MS)
    assert heir.service.state().waiting == 1
    (said,) = [record.message for record in caplog.records if "there is no object store" in record.message]
    assert said.startswith("1 objects of the tier have timers that are due")


def test_files_stay_until_it_is_acknowledged_that_their_timers_are_elsewhere() -> None:
    for is_refusing in (False, True):
        broker = Tiered()
        broker.log.append_placed([decode_and_again(broker)])
        broker.put_in("k", 2 * DAY_MS)
        broker.objects.is_refusing = is_refusing
        first = broker.service.held_offset()
        broker.log.acknowledges = False
        broker.let_all_go()
        assert broker.service.table.done.moved == 1
        assert broker.service.held_offset() == first
        broker.log.acknowledges = True
        broker.log.acknowledge()
        held = broker.service.held_offset()
        assert first is not None
        assert held is not None
        assert held > first


def test_legs_are_longer_while_the_tier_is_open() -> None:
    broker = Tiered()
    assert broker.service.window_ms == 7 * DAY_MS
    assert broker.service.least_window_ms == 60_000
    broker.stowage.close()
    assert broker.service.window_ms == 60_000
