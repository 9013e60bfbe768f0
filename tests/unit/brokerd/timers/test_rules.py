"""What clients may ask for, and what becomes of it: every rule of the transform."""

from __future__ import annotations

import pytest

from brokerd.store.draft import Draft
from brokerd.timers import rules
from brokerd.timers.codes import DELETE_KEY, DUE_MS, LEG_MS, MESSAGE, OUT_MS, PLACE, RECALL, due_of, kind_of, timer_code
from brokerd.timers.rules import Clock, too_far_ahead
from remoting import codes
from remoting.errors import RequestError
from remoting.names import TIMER_TOPIC
from remoting.record.properties import decode_properties, encode_properties

NOW_MS = 1_763_600_000_000
DAY_MS = 86_400_000
CLOCK = Clock(NOW_MS, NOW_MS - 5000, 2 * DAY_MS)
MAX_AHEAD_MS = 40 * DAY_MS


def draft(topic: str = "T", **properties: str) -> Draft:
    stored = encode_properties({"UNIQ_KEY": "ABC", "TAGS": "a", **properties})
    return Draft(topic, 3, b"body", stored, NOW_MS, bytes(8))


def waiting(clock: Clock = CLOCK, **properties: str) -> dict[str, str]:
    found = rules.to_waiting_draft(draft(**properties), clock)
    assert (found.topic, found.queue_id, found.body) == (TIMER_TOPIC, 0, b"body")
    return decode_properties(found.properties)


def checked(topic: str = "T", **properties: str) -> dict[str, str]:
    rules.check_moment(properties, topic, NOW_MS, MAX_AHEAD_MS)
    return properties


def refused(**properties: str) -> str:
    with pytest.raises(RequestError) as caught:
        checked(**properties)
    assert caught.value.code == codes.MESSAGE_ILLEGAL
    return caught.value.message


@pytest.mark.parametrize(
    ("asked", "ahead_ms"),
    [
        ({"TIMER_DELAY_SEC": "7"}, 7000),
        ({"TIMER_DELAY_MS": "7"}, 7),
        ({"TIMER_DELIVER_MS": str(NOW_MS + 7)}, 7),
        ({"TIMER_DELAY_SEC": "+7"}, 7000),
        ({"TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "2", "TIMER_DELIVER_MS": str(NOW_MS + 3)}, 1000),
        ({"TIMER_DELAY_MS": "2", "TIMER_DELIVER_MS": str(NOW_MS + 3)}, 2),
    ],
)
def test_seconds_come_before_milliseconds_and_these_before_a_time(asked, ahead_ms) -> None:
    stored = waiting(**asked)
    assert stored[DUE_MS] == str(NOW_MS + ahead_ms)
    assert (stored["REAL_TOPIC"], stored["REAL_QID"]) == ("T", "3")
    assert stored.items() >= asked.items()
    assert LEG_MS not in stored


@pytest.mark.parametrize(("ahead_ms", "slot_ms"), [(1, 0), (999, 0), (1000, 0), (1001, 1000), (2000, 1000)])
def test_the_slot_is_the_originals(ahead_ms, slot_ms) -> None:
    assert waiting(TIMER_DELAY_MS=str(ahead_ms))[OUT_MS] == str(NOW_MS + slot_ms)


def test_the_entry_of_what_waits_says_when_it_is_due() -> None:
    code = timer_code(encode_properties(waiting(TIMER_DELAY_MS="123")), NOW_MS)
    assert (due_of(code), kind_of(code)) == (NOW_MS + 123, MESSAGE)


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELAY_SEC": "-5"},
        {"TIMER_DELAY_MS": "-1"},
        {"TIMER_DELIVER_MS": str(NOW_MS)},
        {"TIMER_DELIVER_MS": "-1"},
        {"TIMER_DELAY_SEC": "0", "TIMER_DELIVER_MS": str(NOW_MS + 5000)},  # the first that is there counts
        {"TIMER_DELAY_MS": "5000", OUT_MS: str(NOW_MS)},  # it was delivered before
        {},
        {"mine": "TIMER_DELAY_SEC"},
    ],
)
def test_what_is_due_or_asks_for_nothing_is_an_ordinary_message(asked) -> None:
    checked(**asked)
    message = draft(**asked)
    assert rules.to_waiting_draft(message, CLOCK) is message


def test_what_the_broker_appends_itself_does_not_wait_again() -> None:
    message = draft(TIMER_TOPIC, TIMER_DELAY_SEC="5")
    assert rules.to_waiting_draft(message, CLOCK) is message
    asks = {"TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "5000", "TIMER_DELIVER_MS": str(NOW_MS + 5000)}
    for name, value in asks.items():
        assert rules.to_waiting_draft(draft("orders", **{name: value}), CLOCK).topic == TIMER_TOPIC
        passed_on = draft("orders", TIMER_OUT_MS=str(NOW_MS - 1000), **{name: value})
        assert rules.to_waiting_draft(passed_on, CLOCK) is passed_on


def test_nothing_becomes_due_before_what_was_delivered() -> None:
    ahead = CLOCK._replace(least_due_ms=NOW_MS + 400)
    assert waiting(ahead, TIMER_DELAY_MS="300")[DUE_MS] == str(NOW_MS + 400)
    assert waiting(ahead, TIMER_DELAY_MS="500")[DUE_MS] == str(NOW_MS + 500)


@pytest.mark.parametrize(
    ("later_by_ms", "counts"), [(1, True), (5000, True), (5001, False), (DAY_MS, False), (-9, False)]
)
def test_a_delay_counts_from_the_later_time_while_that_is_in_doubt(later_by_ms: int, counts: bool) -> None:
    """As long as it is late by no more than the delay itself; a moment is a moment."""
    doubting = CLOCK._replace(later_ms=NOW_MS + later_by_ms)
    from_ms = NOW_MS + (later_by_ms if counts else 0)
    for delay in ({"TIMER_DELAY_MS": "5000"}, {"TIMER_DELAY_SEC": "5"}):
        assert waiting(doubting, **delay)[DUE_MS] == str(from_ms + 5000)
    assert waiting(doubting, TIMER_DELIVER_MS=str(NOW_MS + 5000))[DUE_MS] == str(NOW_MS + 5000)


def test_what_is_far_ahead_goes_in_legs() -> None:
    stored = waiting(TIMER_DELAY_MS=str(30 * DAY_MS))
    assert stored[DUE_MS] == str(NOW_MS + 30 * DAY_MS)
    assert stored[LEG_MS] == str(NOW_MS + 2 * DAY_MS)
    code = timer_code(encode_properties(stored), NOW_MS)
    assert (due_of(code), kind_of(code)) == (NOW_MS + 2 * DAY_MS, MESSAGE)


@pytest.mark.parametrize("value", ["", "x", "1.5", "1e3", " 5", "5 ", "--5", "+", "٥", "1" * 20])
@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_what_is_no_number_is_refused_by_name(name, value) -> None:
    assert name in refused(**{name: value})


def test_forty_days_are_taken_and_not_a_millisecond_more() -> None:
    checked(TIMER_DELAY_MS=str(MAX_AHEAD_MS))
    checked(TIMER_DELIVER_MS=str(NOW_MS + MAX_AHEAD_MS))
    for asked in (
        {"TIMER_DELAY_MS": str(MAX_AHEAD_MS + 1)},
        {"TIMER_DELIVER_MS": str(NOW_MS + MAX_AHEAD_MS + 1)},
        {"TIMER_DELAY_SEC": "9" * 19},
    ):
        assert "timers.max_ahead_s" in refused(**asked)


def test_who_asks_for_too_much_reads_exactly_how_much() -> None:
    assert too_far_ahead(400 * DAY_MS - 20, MAX_AHEAD_MS).startswith(
        "the message is to be delivered 399 d 23 h 59 min 59.98 s ahead; at most 40 d are accepted"
    )
    assert "40 d 0.001 s ahead" in too_far_ahead(MAX_AHEAD_MS + 1, MAX_AHEAD_MS)
    assert "1 h 30 min ahead; at most 5 s are" in too_far_ahead(5_400_000, 5000)
    assert "at most 0 s are" in too_far_ahead(1, 0)


def test_what_only_brokers_write_is_taken_out() -> None:
    forged = {
        PLACE: "7",
        LEG_MS: "1",
        DUE_MS: "1",
        "TIMER_ROLL_TIMES": "3",
        "TIMER_ENQUEUE_MS": "1",
        "TIMER_DEQUEUE_MS": "1",
        "TIMER_MOVED": "9",
        "TIMER_RECALLED_BY": "ann",
    }
    assert checked(**forged, mine="1") == {"mine": "1"}


def test_properties_that_leave_no_room_for_the_wait_are_refused() -> None:
    with pytest.raises(RequestError, match="at most 32767 are stored") as caught:
        rules.to_waiting_draft(draft(TIMER_DELAY_SEC="5", mine="x" * 32_690), CLOCK)
    assert caught.value.code == codes.MESSAGE_ILLEGAL


def test_what_is_appended_again_on_its_way_leaves_room_for_that() -> None:
    fits = "x" * 32_580
    rules.to_waiting_draft(draft(TIMER_DELAY_SEC="5", mine=fits), CLOCK)
    with pytest.raises(RequestError, match="at most 32703 are stored"):
        rules.to_waiting_draft(draft(TIMER_DELAY_SEC=str(3 * 86_400), mine=fits), CLOCK)


# ---- messages that recall others, as older brokers and tools send them


@pytest.mark.parametrize("ahead_ms", [5500, 30 * DAY_MS + 500])
def test_a_message_that_recalls_names_the_slot_and_has_its_effect_at_once(ahead_ms) -> None:
    asked = checked(TIMER_DELIVER_MS=str(NOW_MS + ahead_ms), TIMER_DEL_UNIQKEY="T+KEY1")
    stored = waiting(**asked)
    assert stored[DELETE_KEY] == "T+KEY1"
    assert stored[OUT_MS] == str(NOW_MS + ahead_ms - 500)
    code = timer_code(encode_properties(stored), NOW_MS)
    assert (due_of(code), kind_of(code)) == (CLOCK.least_due_ms, RECALL)


def test_the_older_form_names_the_key_alone() -> None:
    assert checked(TIMER_DELAY_SEC="5", TIMER_DEL_UNIQKEY="KEY1")[DELETE_KEY] == "T+KEY1"


@pytest.mark.parametrize("wanted", ["", "T+", "Other+KEY1", "+KEY1"])
def test_nobody_recalls_from_another_topic(wanted) -> None:
    assert "T+KEY" in refused(TIMER_DELAY_SEC="5", TIMER_DEL_UNIQKEY=wanted)


@pytest.mark.parametrize(
    "asked",
    [{}, {"TIMER_DELAY_SEC": "0"}, {"TIMER_DELIVER_MS": str(NOW_MS)}, {"TIMER_DELAY_SEC": "5", "TRAN_MSG": "true"}],
)
def test_a_recall_that_comes_too_late_or_never_is_refused(asked) -> None:
    assert DELETE_KEY in refused(TIMER_DEL_UNIQKEY="T+KEY1", **asked)
