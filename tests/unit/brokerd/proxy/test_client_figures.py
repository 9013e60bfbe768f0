"""Sums of what clients measured: nothing twice, nothing of long ago, and bounded whatever comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.proxy import client_figures
from brokerd.proxy.client_figures import (
    BOUNDS_MS,
    CACHED_MESSAGES,
    MAX_SERIES,
    OTHERS,
    PROCESS,
    SEND,
    WINDOW_MS,
    Buckets,
    ClientFigures,
    Labels,
    Running,
)

START_MS = 1_763_600_000_000
BOUNDS = tuple(map(float, BOUNDS_MS[SEND]))
LABELS = Labels(SEND, "orders", "", "JAVA", "success")


def running(*counts, since_ms=START_MS, sum_ms=0.0, bounds=BOUNDS):
    filled = tuple(counts) + (0,) * (len(bounds) + 1 - len(counts))
    return Running(Buckets(bounds, filled, sum_ms), since_ms * 1_000_000)


def total(figures, labels=LABELS, now_ms=START_MS):
    found = dict(figures.series(now_ms)).get(labels)
    return (0, 0.0) if found is None else (sum(found.total.counts), found.total.sum)


def test_running_totals_are_counted_once() -> None:
    figures = ClientFigures(START_MS)
    figures.histogram("c", LABELS, running(1, 2, sum_ms=7), START_MS)
    figures.histogram("c", LABELS, running(1, 2, sum_ms=7), START_MS)
    figures.histogram("c", LABELS, running(1, 5, sum_ms=20), START_MS)
    figures.histogram("d", LABELS, running(0, 1, sum_ms=3), START_MS)
    assert total(figures) == (7, 0.023)


def test_a_client_that_counted_before_this_broker_ran_only_says_where_to_begin() -> None:
    figures = ClientFigures(START_MS)
    early = START_MS - 60_000
    figures.histogram("c", LABELS, running(1000, since_ms=early, sum_ms=500), START_MS)
    assert total(figures) == (0, 0.0)
    figures.histogram("c", LABELS, running(1003, since_ms=early, sum_ms=502), START_MS)
    assert total(figures) == (3, 0.002)


def test_a_client_that_began_anew_counts_from_there() -> None:
    figures = ClientFigures(START_MS)
    figures.histogram("c", LABELS, running(5), START_MS)
    figures.histogram("c", LABELS, running(2, since_ms=START_MS + 1000), START_MS)
    assert total(figures)[0] == 7
    figures.histogram("c", LABELS, running(1, since_ms=START_MS + 1000), START_MS)
    assert total(figures)[0] == 8, "a count that went back is one that began anew, whatever it says"


def test_what_is_new_since_the_last_export_counts_as_it_is() -> None:
    figures = ClientFigures(START_MS)
    for _ in range(3):
        figures.histogram("c", LABELS, Running(Buckets(BOUNDS, (1,) * 8, 4.0), None), START_MS)
    assert total(figures) == (24, 0.012)


def test_other_bounds_than_ours_count_at_the_next_higher_one() -> None:
    figures = ClientFigures(START_MS)
    figures.histogram("c", LABELS, running(1, 2, 3, bounds=(3.0, 30.0)), START_MS)
    (series,) = dict(figures.series(START_MS)).values()
    assert series.total.counts == [0, 1, 0, 0, 2, 0, 0, 3]


def test_a_single_duration() -> None:
    figures = ClientFigures(START_MS)
    labels = Labels(client_figures.SPAN_SEND, "orders", "", "JAVA", "failure")
    figures.duration(labels, 5.0, START_MS)
    (series,) = dict(figures.series(START_MS)).values()
    assert (series.total.counts.index(1), series.total.sum) == (1, 0.005)


def test_the_last_minutes_are_kept_beside_the_totals() -> None:
    figures = ClientFigures(START_MS)
    start = START_MS // WINDOW_MS * WINDOW_MS

    def recent(now_ms):
        series = dict(figures.series(now_ms))[LABELS]
        return sum(series.recent) + sum(series.previous)

    figures.histogram("c", LABELS, running(3), start)
    assert recent(start + WINDOW_MS - 1) == 3
    figures.histogram("c", LABELS, running(4), start + WINDOW_MS)
    assert recent(start + WINDOW_MS) == 4
    assert recent(start + 2 * WINDOW_MS) == 1
    assert recent(start + 3 * WINDOW_MS) == 0
    assert total(figures)[0] == 4


def test_gauges_are_summed_over_the_clients_that_are_heard_of() -> None:
    figures = ClientFigures(START_MS)
    labels = Labels(CACHED_MESSAGES, "orders", "g", "JAVA")
    figures.gauge("c", labels, 5, START_MS)
    figures.gauge("d", labels, 7, START_MS + 100_000)
    figures.gauge("c", labels, 6, START_MS + 120_000)
    assert figures.gauges(START_MS + 120_000) == {labels: 13}
    assert figures.gauges(START_MS + 290_000) == {labels: 6}
    assert figures.gauges(START_MS + 400_000) == {}


def test_more_series_than_there_is_room_for_are_summed_up() -> None:
    figures = ClientFigures(START_MS)
    for number in range(MAX_SERIES + 50):
        labels = Labels(PROCESS, f"t{number}", "g", "JAVA", "success")
        figures.histogram("c", labels, running(1, bounds=tuple(map(float, BOUNDS_MS[PROCESS]))), START_MS)
    found = dict(figures.series(START_MS))
    assert len(found) == MAX_SERIES + 1
    assert total(figures, Labels(PROCESS, OTHERS, OTHERS, "", "success"))[0] == 50
    late_ms = START_MS + 2 * 3600_000
    figures.duration(Labels(client_figures.SPAN_SEND, "new", "", "GO", "success"), 1, late_ms)
    assert len(dict(figures.series(late_ms))) == 1, "those that nothing came for in an hour make room"


def test_of_too_many_clients_the_longest_silent_is_forgotten_and_not_counted_twice(monkeypatch) -> None:
    monkeypatch.setattr(client_figures, "MAX_REMEMBERED", 2)
    figures = ClientFigures(START_MS)
    for client in ("a", "b", "c"):
        figures.histogram(client, LABELS, running(10), START_MS + 1000)
        figures.gauge(client, LABELS, 1, START_MS)
    assert total(figures)[0] == 20, "the third may be one that was forgotten, for all that is known"
    assert figures.gauges(START_MS) == {LABELS: 2}
    figures.histogram("a", LABELS, running(12), START_MS + 2000)
    assert total(figures)[0] == 20
    figures.histogram("c", LABELS, running(11), START_MS + 2000)
    assert total(figures)[0] == 21


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 7), st.integers(0, 5)), max_size=40))
def test_whatever_the_order_of_exports_each_value_counts_once(observed) -> None:
    figures = ClientFigures(START_MS)
    counts = {client: [0] * 8 for client in "ab"}
    for client, place, times in observed:
        counts[client][place] += times
        figures.histogram(client, LABELS, running(*counts[client]), START_MS)
    series = dict(figures.series(START_MS)).get(LABELS)
    expected = [a + b for a, b in zip(*counts.values(), strict=True)]
    assert (series.total.counts if series is not None else [0] * 8) == expected
