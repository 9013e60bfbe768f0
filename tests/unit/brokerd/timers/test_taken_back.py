"""How much may be taken back before it is due, and whom that leaves room."""

from __future__ import annotations

import logging

import pytest

from brokerd.timers import service, taken_back
from brokerd.timers.clients import TimedMessages
from brokerd.timers.cursor import TimerTable, recalled
from brokerd.timers.interface import Recalled
from brokerd.timers.settings import TimerSettings
from brokerd.timers.taken_back import TakenBack
from remoting import codes
from remoting.errors import RequestError
from remoting.record.codec import decode_record
from tests.unit.brokerd.timers.test_service import Alone
from tests.unit.brokerd.timers.world import TOPIC

HOUR_MS = 3_600_000


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(taken_back, "MAX_RECALLED", 40)
    monkeypatch.setattr(service, "_MARKERS_ON_THEIR_WAY", 3)
    return 40


def take_back(broker: Alone, topic: str, count: int) -> tuple[int, RequestError | None]:
    """How many were, and why no more."""
    for number in range(count):
        timer = broker.put_in(f"{topic} {number}", HOUR_MS, REAL_TOPIC=topic)._replace(topic=topic)
        error = broker.recall(timer)
        if error is not None:
            return number, error
    return count, None


def test_whoever_recalls_all_that_he_may_leaves_room_for_others(most: int) -> None:
    broker = Alone()
    count, error = take_back(broker, "his", most)
    assert count == most // 2
    assert error is not None
    assert error.code == codes.SYSTEM_BUSY
    assert take_back(broker, "hers", 8) == (8, None)
    heir = Alone(broker.log.copy(), broker.turns)
    assert take_back(heir, "his", 1)[0] == 0, "whoever leads knows whose they are"
    assert take_back(heir, "hers", 1) == (1, None)
    heir.turns.run(HOUR_MS + 100)
    came = [decode_record(each).body for each in heir.log.bodies("his", 1)]
    assert came == [b"his 20", b"his 0"], "what was refused"
    heir.put_in("later", 60_000)
    heir.turns.run(70_000)
    assert heir.service.table.taken_back == TakenBack()
    assert take_back(heir, "his", 1) == (1, None)


def test_a_marker_that_would_have_no_effect_is_refused_when_it_is_sent(most: int) -> None:
    broker = Alone()
    messages = TimedMessages(broker.service, TimerSettings, "broker-a", lambda: 0)

    def send_marker(topic: str) -> None:
        messages.check_moment({"TIMER_DELAY_SEC": "3600", "TIMER_DEL_UNIQKEY": "K"}, topic)

    due_ms = broker.service.now_ms() + HOUR_MS
    for number in range(17):
        send_marker(TOPIC)
        broker.put_marker(f"k{number}", due_ms)
        broker.turns.run(10)
    with pytest.raises(RequestError, match="TIMER_DEL_UNIQKEY has no effect") as caught:
        send_marker(TOPIC)
    assert caught.value.code == codes.SYSTEM_BUSY
    send_marker("other")
    messages.check_moment({"TIMER_DELAY_SEC": "3600"}, TOPIC)


def test_many_markers_without_effect_are_a_line_of_the_log_and_not_one_each(
    most: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Alone()
    due_ms = broker.service.now_ms() + HOUR_MS
    with caplog.at_level(logging.ERROR):
        for number in range(500):
            broker.put_marker(f"k{number}", due_ms)
        broker.turns.run(100)
    state = broker.service.state()
    assert (state.lost, state.waiting) == (500 - most // 2, 0)
    lines = [each.getMessage() for each in caplog.records if "no effect" in each.getMessage()]
    assert 0 < len(lines) < 20
    broker.put_marker("k0", due_ms)
    broker.turns.run(100)
    assert broker.service.state().lost == state.lost, "it has its effect already"


def test_a_table_counts_the_same_from_rows_and_in_a_copy() -> None:
    table = TimerTable()
    for place, topic in ((1, "a"), (2, "a"), (3, "b")):
        table.apply(*recalled(place, 1000 * place, topic), 1)
    table.apply("recalled", {"v": 1, "place": 4, "due": 5000}, 1)  # as an earlier version wrote it
    table.taken_back.add_name("a+k", 7000)
    table.taken_back.add_name("a+k", 9000)
    table.taken_back.add_name("a+k", 9000)
    again = TimerTable()
    for row in table.freeze().rows():
        again.load_row(row)
    assert again.taken_back == table.taken_back == table.taken_back.copy()
    room = taken_back.MAX_RECALLED
    assert again.taken_back.room_for_places("a") == (room - 4 - 2) // 2
    assert again.taken_back.room_for_names("a") == (room - 2 - 2) // 2
    again.taken_back.forget_before(8500)
    assert (again.places, again.names) == ({}, {"a+k": (9000,)})
    assert again.taken_back.room_for_places("a") == room // 2
    again.load_row(["r", 5, 9000])
    assert again.taken_back.places == {5: 9000}


def test_a_timer_that_is_taken_back_by_two_versions_counts_once() -> None:
    taken = TakenBack()
    taken.add_place(1, 10, "a")
    taken.add_place(1, 10, "")
    assert taken.room_for_places("a") == (taken_back.MAX_RECALLED - 1 - 1) // 2
    assert Recalled(TOPIC, "k", 1, 10).place in taken.places
