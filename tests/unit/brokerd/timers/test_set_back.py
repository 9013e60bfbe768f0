"""A clock that goes back behind what was delivered: who is late then, and who never."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from unittest.mock import ANY

import pytest

from brokerd.timers.clients import TimedMessages
from brokerd.timers.clock import PATIENCE_MS, SLACK_MS
from brokerd.timers.codes import DUE_MS, START, Key
from brokerd.timers.cursor import FENCE, TIMERS_TOPIC
from brokerd.timers.done import MAX_FENCES, Done, Fence
from brokerd.timers.interface import Recalled
from brokerd.timers.rules import DELAY_MS
from brokerd.timers.set_back import BOUND_MS
from brokerd.timers.settings import TimerSettings
from remoting.errors import InvalidParameter
from remoting.record.codec import decode_record
from remoting.record.properties import decode_properties
from tests.support.disks import MemoryDisk
from tests.support.memory_log import draft
from tests.unit.brokerd.timers.files.queue_model import ListedQueue, ask, follow, open_files
from tests.unit.brokerd.timers.test_service import Alone
from tests.unit.brokerd.timers.world import TOPIC

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def kinds(broker: Alone) -> list[str]:
    return [decode_record(each).property_map()["TAGS"] for each in broker.log.bodies(TIMERS_TOPIC)]


def follower(broker: Alone, others_ms: Callable[[], list[int] | None] = lambda: None) -> Alone:
    """The next master, with the same log."""
    broker.service.step_down()
    return Alone(broker.log.copy(), broker.turns, others_ms)


def a_day_early() -> Alone:
    """Two timers were delivered while the clock was a day ahead, which is right now; two are due later."""
    broker = Alone()
    broker.turns.set_wall_clock(DAY_MS)
    broker = follower(broker)
    for key, ahead_ms in (("a", 1000), ("b", 1000), ("later", HOUR_MS), ("latest", 2 * HOUR_MS)):
        broker.put_in(key, ahead_ms)
    broker.turns.run(1001)
    assert broker.delivered == ["a", "b"]
    broker.turns.set_wall_clock(-DAY_MS)
    return broker


def test_what_is_sent_after_a_clock_was_set_back_does_not_wait_for_it() -> None:
    broker = a_day_early()
    broker.put_in("now", 500)
    broker.turns.run(501)
    assert broker.delivered == ["a", "b", "now"]
    assert kinds(broker).count(FENCE) == 1
    state = broker.service.state()
    assert (state.waiting, state.fences, state.overdue_ms) == (2, 1, 0)


def test_a_fence_falls_when_the_cursor_has_passed_it_and_nothing_comes_twice() -> None:
    broker = a_day_early()
    broker.put_in("now", 500)
    broker.turns.run(1000)
    broker.turns.set_wall_clock(DAY_MS - 10_000)
    broker.turns.run(BOUND_MS + 20_000)
    broker.put_in("then", 1)
    broker.turns.run(10)
    assert broker.service.table.done.fences == ()
    broker.turns.run(3 * HOUR_MS)
    assert broker.delivered == ["a", "b", "now", "then", "later", "latest"]


def test_a_log_that_is_cut_anywhere_around_a_fence_loses_nothing_and_repeats_nothing() -> None:
    before = a_day_early()
    before.put_in("now", 500)
    before.turns.run(501)
    before.service.step_down()
    ends = [0, *before.log.positions]
    for number, cut in enumerate(ends):
        log = before.log.copy(cut, ends[number // 2])
        broker = Alone(log, before.turns)
        kept = set(broker.delivered)
        log.dispatch()
        broker.put_in("fresh", 1000)
        before.turns.run(1001)
        assert "fresh" in broker.delivered, f"cut at {cut}"
        assert len(broker.delivered) == len(set(broker.delivered)), f"cut at {cut}"
        assert kept <= set(broker.delivered)
        broker.service.step_down()


def test_a_recall_knows_what_lies_within_a_fence() -> None:
    broker = a_day_early()
    broker.turns.run(1)
    done = Recalled(TOPIC, "a", 0, broker.service.now_ms() + DAY_MS - 2)
    assert "it was delivered" in str(broker.recall(done))
    later = broker.put_in("much later", 2 * DAY_MS)
    assert broker.recall(later) is None


def test_a_small_step_back_needs_no_fence() -> None:
    broker = Alone()
    broker.put_in("a", 1)
    broker.turns.run(10)
    broker.turns.set_wall_clock(-BOUND_MS)
    broker.put_in("b", 1)
    broker.turns.run(BOUND_MS + 10)
    assert broker.delivered == ["a", "b"]
    assert FENCE not in kinds(broker)


def test_fences_are_bounded_and_what_waits_then_is_told(caplog: pytest.LogCaptureFixture) -> None:
    broker = Alone()
    for number in range(MAX_FENCES + 1):
        broker.put_in(f"k{number}", 1)
        broker.turns.run(2)
        broker.turns.set_wall_clock(-2 * BOUND_MS)
    assert len(broker.delivered) == MAX_FENCES + 1
    for _ in range(2):
        broker.put_in("waits", 1)
    broker.turns.run(2)
    assert kinds(broker).count(FENCE) == MAX_FENCES
    assert len(broker.delivered) == MAX_FENCES + 1
    assert caplog.text.count("no more of that is recorded") == 1
    broker.turns.run(2 * BOUND_MS)
    assert broker.delivered[MAX_FENCES + 1 :] == ["waits", "waits"]


def test_a_clock_that_goes_back_and_back_with_nothing_sent_needs_one_fence() -> None:
    broker = a_day_early()
    for _ in range(2 * MAX_FENCES):
        broker.service.follow_clock()
        broker.turns.set_wall_clock(-2 * BOUND_MS)
    assert broker.service.table.done.fences == (Fence(4, ANY),)
    broker.put_in("now", 1)
    broker.turns.run(2)
    assert broker.delivered == ["a", "b", "now"]


def test_a_log_that_refuses_the_fence_gets_it_later(caplog: pytest.LogCaptureFixture) -> None:
    broker = a_day_early()
    broker.log.refusal = InvalidParameter("the disk is full")
    broker.service.follow_clock()
    broker.service.follow_clock()
    assert caplog.text.count("the disk is full") == 1
    broker.log.refusal = None
    broker.put_in("now", 1)
    broker.turns.run(2)
    assert broker.delivered == ["a", "b", "now"]


def test_a_new_master_whose_clock_is_ahead_delivers_by_its_witnesses(caplog: pytest.LogCaptureFixture) -> None:
    broker = Alone()
    broker.put_in("first", 1)
    broker.turns.run(2)
    timer = broker.put_in("a", HOUR_MS)
    broker.turns.set_wall_clock(DAY_MS)
    again = follower(broker, lambda: [broker.turns.wall_ms() - DAY_MS])
    again.turns.run(BOUND_MS * 2)
    assert again.delivered == ["first"]
    assert "do not believe this machine's clock" in again.service.clock_doubt
    assert DAY_MS - 5000 < again.service.state().doubted_ms <= DAY_MS
    assert caplog.text.count("do not believe this machine's clock") == 1
    again.put_in("b", 1000)
    again.turns.run(1001)
    assert again.delivered == ["first", "b"]
    again.turns.set_wall_clock(-DAY_MS)
    again.turns.run(timer.due_ms - again.turns.wall_ms() + 1)
    assert again.delivered == ["first", "b", "a"]
    assert again.service.clock_doubt == ""


def test_while_it_is_not_settled_what_time_it_is_both_times_are_told() -> None:
    broker = Alone()
    now_ms = broker.service.now_ms()
    assert broker.service.later_ms() == now_ms
    broker.turns.set_wall_clock(40_000)
    assert (broker.service.now_ms(), broker.service.later_ms()) == (now_ms + SLACK_MS, now_ms + 40_000)
    broker.turns.set_wall_clock(-100_000)
    assert (broker.service.now_ms(), broker.service.later_ms()) == (now_ms - 60_000, now_ms)


def test_sends_are_laid_out_by_one_time_and_behind_a_cursor_that_followed_it() -> None:
    broker = Alone()
    sends = TimedMessages(broker.service, TimerSettings, "broker-a", lambda: 0)
    asks = draft("t", b"x", properties={DELAY_MS: "1000"})
    assert sends.terms() is None, "there is no key for handles yet"
    sends.to_waiting_draft(asks)
    assert sends.terms() is not None
    broker.turns.set_wall_clock(40_000)
    assert sends.terms() is None, "it may be two times"
    due_ms = int(decode_properties(sends.to_waiting_draft(asks).properties)[DUE_MS])
    assert due_ms == broker.service.now_ms() + 1000
    broker = a_day_early()
    broker.turns.run(1)
    broker.service.table.done = broker.service.table.done.passed(Key(broker.service.now_ms() + BOUND_MS + 1, 0))
    sends = TimedMessages(broker.service, TimerSettings, "broker-a", lambda: 0)
    broker.service.recall_key()
    appended = kinds(broker)
    assert sends.terms() is None
    assert kinds(broker) == appended, "nothing is appended while messages are laid out"
    sends.to_waiting_draft(asks)
    assert kinds(broker) == [*appended, FENCE]
    assert not broker.service.is_settled, "the clock was set back just now"
    broker.turns.run(PATIENCE_MS + 2000)
    assert sends.terms() is not None


def test_a_cluster_that_slept_for_a_week_delivers_at_once() -> None:
    broker = Alone()
    broker.put_in("a", HOUR_MS)
    broker.turns.set_wall_clock(7 * DAY_MS)
    again = follower(broker, lambda: [broker.turns.wall_ms()])
    again.turns.run(2)
    assert again.delivered == ["a"]


# ---- the set


def test_fences_say_of_any_key_what_was_done_when_they_were_made() -> None:
    rng = random.Random(18)
    done, facts, before = Done(), set[Key](), 0
    waiting = set[Key]()
    for _ in range(400):
        waiting |= {Key(done.cursor.due_ms + rng.randrange(1, 90), before + n) for n in range(rng.randrange(3))}
        before = max((key.offset + 1 for key in waiting | facts), default=0)
        if rng.random() < 0.8:
            to = Key(done.cursor.due_ms + rng.randrange(40), rng.randrange(before + 1))
            facts |= {key for key in waiting if key <= to}
            waiting -= facts
            done = done.passed(to)
        elif len(done.fences) < MAX_FENCES and done.cursor > START:
            done = done.set_back(Key(rng.randrange(done.cursor.due_ms + 1), -1), before)
        assert all(fence.key > done.cursor for fence in done.fences)
        assert all(a.before < b.before and a.key >= b.key for a, b in pairwise(done.fences))
        assert all(map(done.has, rng.sample(sorted(facts), min(20, len(facts)))))
        assert not any(map(done.has, waiting))


# ---- the files


def test_files_begin_again_when_the_cursor_went_back_and_leave_out_what_is_done() -> None:
    queue = ListedQueue()
    files = open_files(MemoryDisk(), queue, clean=True)
    for due_ms in (5_000_000, 5_001_000, 5_003_000):
        queue.add(due_ms)
    queue.deliver(Key(5_001_000, 1))
    follow(files, queue)
    assert files.pending_messages == 1
    queue.set_back(Key(4_000_000, -1))
    queue.add(4_500_000)
    assert ask(files, Key(4_000_000, -1)) == [], "they do not know it yet, and say so"
    assert files.applied == 0
    follow(files, queue)
    assert [offset for _, offset in ask(files, queue.cursor)] == [3, 2]
    assert (files.pending_messages, files.held_queue_offset(queue.history[-1].done)) == (2, 2)
