"""What went through by topic and group: windows, what is idle, what is gone, and the bound on their number."""

from __future__ import annotations

import random

import pytest

from brokerd.statistics import figures as module
from brokerd.statistics.figures import DAY_S, HOUR_S, MINUTE_S, Figure, Rate, Statistics
from brokerd.store.log.derive import Entry
from brokerd.store.log.laid_out import LAID_OUT, LaidOut, QueueSlots
from brokerd.store.queues.queue_offsets import TakenOffsets
from brokerd.store.run import Run


def test_windows_of_a_minute_an_hour_and_a_day() -> None:
    figure = Figure(0)
    for second in range(1, 2 * DAY_S + 1):
        if second % 5 == 0:
            figure.value += 10
            figure.size += 1000
            figure.times += 1
        if second % 10 == 0:
            figure.sample(second)
    now_s = 2 * DAY_S
    for window_s in (MINUTE_S, HOUR_S, DAY_S):
        assert figure.rate(window_s, now_s) == Rate(2 * window_s, 2.0, 10.0)
        assert figure.rate(window_s, now_s, of_bytes=True) == Rate(200 * window_s, 200.0, 1000.0)


def test_a_young_figures_rate_is_over_its_life() -> None:
    figure = Figure(100)
    figure.value, figure.times = 30, 3
    assert figure.rate(DAY_S, 115) == Rate(30, 2.0, 10.0)
    assert figure.rate(MINUTE_S, 100) == Rate(30, 30.0, 10.0)


@pytest.mark.parametrize("seed", range(20))
def test_windows_against_all_events(seed: int) -> None:
    """However rarely something happens, a window is right to within one step of its samples."""
    rng = random.Random(seed)
    figure, events, now_s = Figure(0), [], 0
    for _ in range(300):
        now_s += 10 * rng.choice((1, 1, 1, 7, 50, 400))
        if rng.random() < 0.5:
            figure.value += 1
            figure.times += 1
            events.append(now_s - 1)
        figure.sample(now_s)
        for window_s, step_s in ((MINUTE_S, 10), (HOUR_S, 600), (DAY_S, 3600)):
            total = figure.rate(window_s, now_s).total
            least = sum(1 for at_s in events if at_s > now_s - window_s)
            most = sum(1 for at_s in events if at_s > now_s - window_s - 4000 - 2 * step_s)
            assert least <= total <= most


def test_what_stood_still_for_a_day_is_forgotten() -> None:
    statistics = Statistics()
    statistics.stored_in("t", 1, 100)
    statistics.given("t", "g", 1, 100)
    for now_s in range(0, 2 * DAY_S, 10):
        statistics.sample(now_s)
        if now_s == DAY_S - 100:
            assert statistics.topic_put.keys() == {"t"}
    assert not statistics.topic_put
    assert not statistics.group_get
    statistics.stored_in("t", 2, 100)
    assert statistics.topic_put["t"].value == 2


def test_appends_of_one_topic_and_of_several() -> None:
    statistics = Statistics()
    one: list[Entry] = [("a", 0, 0, 0, 50, 0, 0, 1), ("a", 1, 0, 50, 10, 0, 0, 4)]
    statistics.stored(run_of(one, folded=3))
    statistics.stored(run_of([*one, ("b", 0, 0, 90, 7, 0, 0, 1)], folded=3))
    assert (statistics.topic_put["a"].value, statistics.topic_put["a"].size) == (10, 180)
    assert (statistics.topic_put["b"].value, statistics.topic_put["b"].size) == (1, 7)
    assert statistics.broker_put.value == 11


def test_what_c_laid_out_counts_by_topic_beside_what_others_did() -> None:
    statistics = Statistics()
    slots = QueueSlots(["a", "b"], [("a", 0), ("b", 0)])
    run = run_of([("b", 0, 0, 0, 50, 0, 0, 2)], folded=1)
    run.add_together(b"", LaidOut(LAID_OUT.pack(0, 0, 0, 0, 100, 10, 0, 3), slots, 0), 30)
    run.entries.append(("a", 0, 3, 130, 5, 0, 0, 1))
    run.end_offset += 5
    statistics.stored(run)
    assert {topic: (each.value, each.size) for topic, each in statistics.topic_put.items()} == {
        "a": (4, 35),
        "b": (2, 100),
    }
    assert statistics.broker_put.value == 6


def run_of(entries: list[Entry], folded: int) -> Run:
    """A run that has these, which stand for so many messages more."""
    run = Run(0, 1 << 20, 1 << 20, 0, TakenOffsets({}), False)
    run.entries += entries
    run.folded = folded
    run.end_offset = sum(each[4] * each[7] for each in entries)
    return run


def test_a_deleted_topic_or_group_leaves_nothing() -> None:
    statistics = Statistics()
    for topic in ("a", "b"):
        statistics.stored_in(topic, 1, 1)
        for group in ("a", "g"):
            statistics.given(topic, group, 1, 1)
            statistics.read(topic, 0, group, 1)
            statistics.note_sent_back(topic, group)
    statistics.forget_topic("a")
    assert statistics.topic_put.keys() == {"b"}
    assert statistics.group_get.keys() == statistics.sent_back.keys() == {("b", "a"), ("b", "g")}
    statistics.forget_group("a")
    assert statistics.group_get.keys() == statistics.sent_back.keys() == {("b", "g")}
    assert statistics.group_read.keys() == {("b", "g", 0)}


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FIGURES", 3)
    statistics = Statistics()
    for number in range(5):
        statistics.stored_in(str(number), 1, 1)
    assert len(statistics.topic_put) == 3
    statistics.forget_topic("0")
    statistics.stored_in("4", 1, 1)
    assert statistics.topic_put.keys() == {"1", "2", "4"}
    assert statistics.broker_put.value == 6


def test_pulls_count_like_what_was_given_and_read_also_after_their_figures_went() -> None:
    pulled, expected = Statistics(), Statistics()
    for number in range(40):
        topic, group, queue_id = "ab"[number % 2], "gh"[number % 3 % 2], number % 5
        pulled.pulled((group, topic, queue_id), number, 100 * number, number % 4)
        expected.given(topic, group, number, 100 * number)
        expected.read(topic, queue_id, group, number % 4)
        if number in (13, 29):
            for each in (pulled, expected):
                each.forget_topic("a")
        if number == 20:
            for each in (pulled, expected):
                each.forget_group("g")
        for table in ("group_get", "group_read"):
            ours, theirs = getattr(pulled, table), getattr(expected, table)
            assert {key: (each.value, each.size, each.times) for key, each in ours.items()} == {
                key: (each.value, each.size, each.times) for key, each in theirs.items()
            }
    assert (pulled.broker_get.value, pulled.broker_get.times) == (expected.broker_get.value, 40)


def test_pulls_beyond_the_bound_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FIGURES", 3)
    statistics = Statistics()
    for group in ("g", "h", "i"):
        for _ in range(2):
            statistics.pulled((group, "t", 0), 1, 100, 1)
    assert (statistics.broker_get.value, len(statistics.group_get), len(statistics.group_read)) == (6, 2, 1)
    assert statistics.group_get["t", "h"].value == 2
