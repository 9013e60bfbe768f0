"""What goes wrong with timers in Apache RocketMQ 5.3.3, by its source, and the tests which show that it does not here."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

from brokerd.metadata.configs import TopicConfig
from brokerd.timers.codes import DELETE_KEY, RECALL
from brokerd.timers.files.layout import SLOT_BYTES
from brokerd.timers.rolling import Wait
from brokerd.timers.settings import TimerSettings
from remoting.errors import InvalidParameter
from remoting.names import TIMER_TOPIC
from remoting.settings import Live
from tests.support.disks import MemoryDisk
from tests.support.memory_log import draft
from tests.support.turns import Turns
from tests.unit.brokerd.composition.test_core import Broker
from tests.unit.brokerd.timers.files.queue_model import ListedQueue, follow, open_files, write
from tests.unit.brokerd.timers.test_broker import bodies, put, run
from tests.unit.brokerd.timers.test_service import Alone
from tests.unit.brokerd.timers.world import TOPIC

_HERE: Final = Path(__file__).parent
_OWN: Final = "test_traps.py"

TRAPS: Final = {
    "a file of the log goes while timers in it wait": (
        "test_service.py::test_a_timer_holds_its_file_only_until_its_leg_ends",
        "test_service.py::test_a_timer_further_ahead_than_the_window_is_appended_again_on_its_way",
    ),
    "what was due over a week before the start is skipped": (f"{_OWN}::test_after_a_month_all_that_was_due_comes",),
    "what was refused three times is dropped": ("test_service.py::test_a_full_disk_makes_it_late_and_nothing_else",),
    "of a slot with more than its limit, few too many are refused always, and many too many almost never": (
        f"{_OWN}::test_a_second_takes_as_many_as_its_limit_says_and_none_beyond",
        "test_slots.py::test_what_is_refused_has_no_room_and_what_is_taken_has",
    ),
    "counts are taken off before the message is stored, and once more when it is tried again": (
        f"{_OWN}::test_nothing_is_counted_twice_when_a_delivery_is_tried_again",
    ),
    "what is taken back counts as waiting for ever, and a marker that takes back nothing counts off": (
        f"{_OWN}::test_what_is_taken_back_or_takes_back_nothing_leaves_the_counts_right",
    ),
    "counts are not made again with the files": (
        f"{_OWN}::test_the_files_count_the_same_after_they_are_made_again",
    ),
    "a recall that comes too late is answered as if it had not": (
        "test_service.py::test_a_recall_that_comes_too_late_says_so",
        "test_rules.py::test_a_message_that_recalls_names_the_slot_and_has_its_effect_at_once",
    ),
    "one that fails has those beside it put into slots again": (
        "test_service.py::test_one_that_cannot_be_read_is_set_aside_and_the_others_come",
        "test_service.py::test_one_that_cannot_be_stored_does_not_hold_up_the_others",
    ),
    "a record of the timer topic that says nothing stops all that follow": (
        f"{_OWN}::test_a_record_that_says_nothing_stops_nobody",
        "test_broker.py::test_clients_neither_send_to_the_timer_topic_nor_create_it",
    ),
    "delivery stands still while timers are put into slots": (f"{_OWN}::test_files_that_follow_nothing_delay_nothing",),
    "all of a second is in memory at once": (
        "test_service.py::test_more_than_fits_into_memory_comes_in_order_all_the_same",
        "files/test_layout.py::test_millions_in_a_second_are_found_in_portions",
        "files/test_layout.py::test_no_more_keys_of_a_second_are_kept_than_said",
    ),
    "what is due at one time comes in any order": (
        f"{_OWN}::test_what_is_due_in_one_millisecond_comes_in_the_order_in_which_it_was_sent",
    ),
    "a delivered message waits again when it is passed on": (
        "test_rules.py::test_what_the_broker_appends_itself_does_not_wait_again",
    ),
    "a lost or torn checkpoint has all delivered again": (
        "files/test_power_loss.py::test_missing_files_are_made_again",
        "files/test_power_loss.py::test_power_is_lost_at_every_sync",
        "files/test_power_loss.py::test_rot_is_found",
        "files/test_power_loss.py::test_a_page_with_a_wrong_bit_is_none",
    ),
    "all 38 MB of the wheel are compared each second": (f"{_OWN}::test_what_changed_of_the_wheel_is_written_and_no_more",),
    "a delay is 32 bits of milliseconds": ("files/test_layout.py::test_any_time_fits",),
    "lateness is told in seconds for milliseconds": (f"{_OWN}::test_lateness_is_told_in_its_unit",),
    "what is due already is stored with less care than others": (
        "test_rules.py::test_what_is_due_or_asks_for_nothing_is_an_ordinary_message",
    ),
    "a new master delivers three seconds again": (
        "test_service.py::test_a_batch_that_is_torn_anywhere_is_completed_by_the_next_master",
    ),
    "a topic is deleted by halves while timers are switched off": (
        f"{_OWN}::test_no_setting_switches_timers_off",
        f"{_OWN}::test_a_topic_goes_as_a_whole_with_its_timers_and_does_not_go_twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("trap", TRAPS)
def test_each_trap_has_its_tests(trap: str) -> None:
    for each in TRAPS[trap]:
        file, name = each.split("::")
        nodes = ast.parse((_HERE / file).read_text()).body
        assert name in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}, each


def test_after_a_month_all_that_was_due_comes() -> None:
    turns = Turns()
    broker = Alone(turns=turns)
    for day in range(30):
        broker.put_in(f"d{day:02}", 86_400_000 * day + 1000)
    broker.service.step_down()
    turns.run(31 * 86_400_000)
    heir = Alone(broker.log.copy(), turns)
    heir.turns.run(2000)
    assert heir.delivered == [f"d{day:02}" for day in range(30)]


@pytest.mark.parametrize("most", [1, 5])
def test_a_second_takes_as_many_as_its_limit_says_and_none_beyond(most: int) -> None:
    """The original refuses by chance between the limit and twice of it, where the chance falls as the slot fills."""
    broker = Alone()
    broker.most = most
    slots = broker.service.slot_limit()
    assert slots is not None
    for second in range(20):
        wait = Wait(broker.service.now_ms() + 5000 + 1000 * second, None)
        taken: list[bool] = []
        while len(taken) < 3 * most:
            taken.append(slots.take(most * second + sum(taken), wait))
        assert taken == [True] * most + [False] * 2 * most


def test_no_setting_switches_timers_off() -> None:
    """One that did would have to be looked at wherever timers are asked for, as when a topic is deleted."""
    switches = [each.name for each in fields(TimerSettings) if isinstance(each.default, bool)]
    assert switches == ["files"]
    for setting in fields(TimerSettings):
        broker = Alone(**{setting.name: setting.metadata["minimum"] or 0})
        broker.put_in("a", 100)
        broker.turns.run(40_000)
        assert broker.delivered == ["a"], setting.name


@pytest.mark.parametrize("has_files", [True, False])
def test_a_topic_goes_as_a_whole_with_its_timers_and_does_not_go_twice(has_files: bool) -> None:
    broker = Broker(timers=Live(TimerSettings(files=has_files)))
    put(broker, b"in the old one", 300)
    broker.send(0)
    for _ in range(2):
        broker.change(lambda done: broker.core.metadata.delete_topic("T", done))
        assert broker.core.metadata.topic("T") is None
    broker.change(lambda done: broker.core.metadata.put_topic(TopicConfig("T", 2, 2), done))
    put(broker, b"in the new one", 400)
    run(broker, 1000)
    assert bodies(broker) == [b"in the new one"]
    state = broker.core.timers.state()
    assert (state.waiting, state.aside, state.lost) == (0, 0, 1)


def test_nothing_is_counted_twice_when_a_delivery_is_tried_again() -> None:
    broker = Alone(retry_ms=10)
    for number in range(3):
        broker.put_in(f"k{number}", 100)
    broker.log.refusal = InvalidParameter("the disk is full")
    broker.turns.run(1000)
    assert broker.service.state().failures > 50
    assert broker.service.state().waiting == 3
    broker.log.refusal = None
    broker.turns.run(100)
    state = broker.service.state()
    assert (state.waiting, state.delivered, state.recalled, state.lost) == (0, 3, 0, 0)


def test_what_is_taken_back_or_takes_back_nothing_leaves_the_counts_right() -> None:
    broker = Alone()
    for key in ("kept", "by its place", "by a marker"):
        broker.put_in(key, 5000)
    timer = broker.put_in("by its place too", 5000)
    assert broker.recall(timer) is None
    due_ms = broker.service.now_ms() + 5000
    for key in ("by a marker", "by a marker", "nobody"):
        broker.put_marker(key, due_ms)
    broker.turns.run(6000)
    state = broker.service.state()
    assert sorted(broker.delivered) == ["by its place", "kept"]
    assert (state.waiting, state.delivered, state.recalled) == (0, 2, 2)


def test_the_files_count_the_same_after_they_are_made_again() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    for number in range(9):
        queue.add(1_700_000_061_234 + 700 * number, RECALL if number % 3 == 0 else 0)
    follow(files, queue)
    write(files)
    assert files.pending_messages == 6
    again = open_files(disk, queue, clean=True)
    assert again.pending_messages == 6
    again.rebuild()
    follow(again, queue)
    assert again.pending_messages == 6


@pytest.mark.parametrize("properties", [{}, {DELETE_KEY: "no topic"}, {"REAL_TOPIC": TOPIC}, {"REAL_QID": "x"}])
def test_a_record_that_says_nothing_stops_nobody(properties: dict[str, str]) -> None:
    broker = Alone()
    broker.put_in("before", 100)
    broker.log.append_placed([draft(TIMER_TOPIC, b"odd", 0, properties=properties)])
    broker.put_in("behind", 100)
    broker.turns.run(7_200_000)
    assert [each for each in broker.delivered if each != "odd"] == ["before", "behind"]
    state = broker.service.state()
    assert (state.waiting, state.aside) == (0, 0)


def test_files_that_follow_nothing_delay_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Alone(near_s=1)
    assert broker.followed is not None
    monkeypatch.setattr(broker.followed, "follow", lambda: None)
    for ahead_ms in (100, 5000, 50_000):
        broker.put_in(f"k{ahead_ms}", ahead_ms)
    for count, ms in enumerate((101, 4900, 45_000), 1):
        broker.turns.run(ms)
        assert len(broker.delivered) == count
    assert broker.followed.files.applied == 0


def test_what_is_due_in_one_millisecond_comes_in_the_order_in_which_it_was_sent() -> None:
    broker = Alone(batch_messages=3)
    due_ms = broker.service.now_ms() + 500
    keys = [f"k{number:02}" for number in range(40)]
    for key in keys:
        broker.put(key, due_ms)
    broker.turns.run(600)
    assert broker.delivered == keys


def test_what_changed_of_the_wheel_is_written_and_no_more() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    queue.add(1_700_000_061_234)
    follow(files, queue)
    write(files)
    queue.add(1_700_000_062_234)
    follow(files, queue)
    written = files.begin_write(closing=True)
    assert written is not None
    (part,) = written.slots  # type: ignore[attr-defined]
    assert len(part[1]) <= 4096
    assert len(part[1]) % SLOT_BYTES == 0
    written.run()
    files.finish_write(written)
    assert files.begin_write(closing=True) is None


def test_lateness_is_told_in_its_unit() -> None:
    broker = Alone(retry_ms=10)
    broker.put_in("a", 100)
    broker.log.refusal = InvalidParameter("the disk is full")
    broker.turns.run(1600)
    broker.log.refusal = None
    broker.turns.run(20)
    counters = broker.service.counters
    assert 1500 <= counters.last_late_ms <= 1520
    assert counters.late_s.sum == pytest.approx(1.5, abs=0.02)
