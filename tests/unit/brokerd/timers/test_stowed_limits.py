"""The limit of each second and what waits in the tier: it counts there, also for a new master, and what a dead store answers."""

from __future__ import annotations

import pytest

from brokerd.timers import tier_slots
from brokerd.timers.clients import TimedMessages
from brokerd.timers.codes import slot_of
from brokerd.timers.settings import TimerSettings
from remoting import codes
from remoting.errors import RequestError
from remoting.names import TIMER_TOPIC
from tests.support.memory_log import draft
from tests.unit.brokerd.timers.test_stowing import DAY_MS, HOUR_MS, MINUTE_MS, Tiered
from tests.unit.brokerd.timers.world import TOPIC


class Limited(Tiered):
    """With a limit of three, and what clients are told."""

    def __init__(self, before: Tiered | None = None, *, is_down: bool = False, most: int = 3) -> None:
        self.first_most = most
        self.begins_down = is_down
        if before is None:
            super().__init__()
        else:
            super().__init__(before.log.copy(), before.turns, before.stored, 2)
        self.messages = TimedMessages(
            self.service, TimerSettings, "broker-a", lambda: self.log.queue_range(TIMER_TOPIC, 0)[1]
        )

    def lead(self) -> None:
        self.most = self.first_most
        self.objects.is_down = self.begins_down
        super().lead()

    def has_room(self, due_ms: int) -> bool:
        limit = self.service.slot_limit()
        assert limit is not None
        return limit.count(slot_of(due_ms)) < self.most

    def answer(self, due_ms: int) -> str:
        """What a send for that time is answered with: "" = there is room."""
        properties = {"REAL_TOPIC": TOPIC, "TIMER_DUE_MS": str(due_ms)}
        try:
            self.messages.check_room(draft(TIMER_TOPIC, b"k", 0, properties=properties), 0)
        except RequestError as error:
            busy = "busy: " if error.code == codes.SYSTEM_BUSY else ""
            return f"{busy}{error}"
        return ""


def far_ms(broker: Tiered, second: int = 0) -> int:
    """In the middle of a second, three days ahead."""
    return (broker.turns.wall_ms() + 3 * DAY_MS) // 1000 * 1000 + 500 + second * 1000


def test_what_went_to_the_tier_counts_in_its_second_and_so_it_does_when_it_is_back() -> None:
    broker = Limited()
    due_ms = far_ms(broker)
    for number in range(3):
        broker.put(f"k{number}", due_ms + number)
    broker.put("other", due_ms + 1000)
    assert "no more are accepted" in broker.answer(due_ms)
    broker.let_all_go()
    assert broker.service.state().in_tier == 4
    assert "no more are accepted" in broker.answer(due_ms)
    assert broker.has_room(due_ms + 1000)
    broker.pass_ms(3 * DAY_MS - 30 * MINUTE_MS)
    assert broker.service.state().in_tier == 0
    assert "no more are accepted" in broker.answer(due_ms)
    assert broker.has_room(due_ms + 1000)
    broker.pass_ms(HOUR_MS)
    assert len(broker.delivered) == 4
    assert broker.service._tier_slots._counts.of(slot_of(due_ms)) == 0


def test_a_new_master_reads_what_the_objects_say() -> None:
    broker = Limited(most=0)  # who makes them has no limit
    due_ms = far_ms(broker)
    for number in range(3):
        broker.put(f"k{number}", due_ms + number)
    for number in range(20):
        broker.put(f"o{number}", due_ms + 2000 + 1000 * number)
    broker.let_all_go()
    heir = Limited(broker)
    heir.turns.run(1000)
    assert "no more are accepted" in heir.answer(due_ms)
    assert heir.has_room(due_ms + 2000)
    broker.most = 3
    assert "busy: the timers that wait are still being counted" in broker.answer(due_ms), (
        "also one who has a limit from now on"
    )
    broker.turns.run(1000)
    assert "no more are accepted" in broker.answer(due_ms)
    assert broker.has_room(due_ms + 2000)
    broker.most = 0
    assert broker.service.slot_limit() is None
    assert broker.service._tier_slots._counts.of(slot_of(due_ms)) == 0, "nothing is kept without one"


def test_while_it_counts_only_days_that_may_be_full_have_to_wait() -> None:
    broker = Limited()
    due_ms = far_ms(broker)
    for number in range(3):
        broker.put(f"k{number}", due_ms + number)
    broker.let_all_go()
    heir = Limited(broker)  # no time has passed since
    heir.objects.slow_s = 60.0
    heir.service._tier_slots.begin_again()
    heir.turns.run(10)
    assert "still being counted" in heir.answer(due_ms)
    assert "still being counted" in heir.answer(due_ms + 5000), "another second of that day"
    assert heir.answer(due_ms + 2 * DAY_MS) == ""


def test_a_dead_store_refuses_nothing_and_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    broker = Limited()
    due_ms = far_ms(broker)
    for number in range(3):
        broker.put(f"k{number}", due_ms + number)
    broker.let_all_go()
    heir = Limited(broker, is_down=True)
    heir.turns.run(500)
    assert heir.answer(due_ms) == ""
    assert "do not count for timers.max_per_slot" in heir.service.state().tier_trouble
    heir.pass_ms(5 * MINUTE_MS)
    assert heir.objects.faults < 20, "it is asked less and less often"
    assert sum("do not count" in each.message for each in caplog.records) == 1
    heir.objects.is_down = False
    heir.pass_ms(2 * MINUTE_MS)
    assert heir.service.state().tier_trouble == ""
    assert "no more are accepted" in heir.answer(due_ms)


@pytest.mark.parametrize("is_read_first", [True, False])
def test_what_comes_back_while_it_is_counted_counts_once(is_read_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_slots, "_ADDED_AT_ONCE", 1)
    broker = Limited(most=0)
    due_ms = far_ms(broker)
    for number in range(60):
        broker.put(f"k{number}", due_ms + number * 1000)
    broker.let_all_go()
    broker.pass_ms(3 * DAY_MS - HOUR_MS - 2 * MINUTE_MS)
    heir = Limited(broker, most=1)
    if is_read_first:
        heir.turns.run(1000)
    heir.pass_ms(2 * MINUTE_MS)
    assert heir.service.state().in_tier == 0
    limit = heir.service.slot_limit()
    assert limit is not None
    heir.turns.run(1000)
    assert [limit.count(slot_of(due_ms + number * 1000)) for number in range(60)] == [1] * 60
    assert heir.service._tier_slots._missing == set()


def test_counts_that_are_taken_off_before_they_are_acknowledged_would_leave_room() -> None:
    broker = Limited()
    due_ms = far_ms(broker)
    for number in range(3):
        broker.put(f"k{number}", due_ms + number)
    broker.let_all_go()
    broker.log.acknowledges = broker.log.dispatches = False
    broker.pass_ms(3 * DAY_MS - HOUR_MS + MINUTE_MS)
    assert broker.service.state().returned == 3
    assert "no more are accepted" in broker.answer(due_ms)


def test_a_return_that_was_torn_counts_in_the_tier_again() -> None:
    broker = Limited(most=0)
    due_ms = far_ms(broker)
    for number in range(3):
        broker.put(f"k{number}", due_ms + number)
    broker.let_all_go()
    before = broker.log.end_offset
    broker.log.dispatches = False
    broker.stored.remove = lambda _names: None  # type: ignore[method-assign]
    broker.pass_ms(3 * DAY_MS - HOUR_MS + MINUTE_MS)
    assert broker.service.state().returned == 3
    cut = [end for end in broker.log.positions if end > before][1]  # behind the record and one timer
    heir = Tiered(broker.log.copy(cut, before), broker.turns, broker.stored, 2)
    heir.most = 3
    heir.objects.slow_s = 60.0  # it does not come back at once
    heir.log.dispatch()
    heir.turns.run(100)
    assert heir.service.slot_limit() is not None
    heir.objects.slow_s = 0.01
    heir.pass_ms(2 * MINUTE_MS)
    limit = heir.service.slot_limit()
    assert limit is not None
    assert limit.count(slot_of(due_ms)) == 3
