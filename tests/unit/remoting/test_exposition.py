"""The text format, read back by Prometheus' own parser."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from remoting.exposition import LATENCY_BOUNDS_US, Family, Histogram, render


def parsed(text: bytes) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    return {
        family.name: [(sample.name, sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text.decode())
    }


def test_counters_and_gauges() -> None:
    families = [
        Family("a_total", "counter", "what happened").add(3, kind="x").add(4, kind="y"),
        Family("b", "gauge", "how much\nand\\why").add(1.5),
        Family("c", "gauge", "of nothing"),
    ]
    found = parsed(render(families, {"node": "n0"}))
    assert found["a"] == [("a_total", {"node": "n0", "kind": "x"}, 3), ("a_total", {"node": "n0", "kind": "y"}, 4)]
    assert found["b"] == [("b", {"node": "n0"}, 1.5)]
    assert parsed(render([Family("b", "gauge", "h").add(2)]))["b"] == [("b", {}, 2)]


@given(st.text(), st.text())
def test_any_label_value_survives(first: str, second: str) -> None:
    # The text format has lines; its readers split at every character that ends one, which a label is not to hold anyway.
    first, second = (" ".join(text.splitlines()) for text in (first, second))
    found = parsed(render([Family("m", "gauge", "help").add(1, one=first, two=second)]))
    assert found["m"] == [("m", {"one": first, "two": second}, 1)]


def test_line_ends_in_labels_are_escaped() -> None:
    assert render([Family("m", "gauge", "h").add(1, x="a\nb")]).endswith(b'm{x="a\\nb"} 1\n')


def test_a_histogram_counts_upwards() -> None:
    histogram = Histogram((10, 100))
    for value in (1, 10, 11, 100, 101):
        histogram.observe(value)
    found = parsed(render([Family("t", "histogram", "time").add(histogram, op="x")]))["t"]
    assert found == [
        ("t_bucket", {"op": "x", "le": "10"}, 2),
        ("t_bucket", {"op": "x", "le": "100"}, 4),
        ("t_bucket", {"op": "x", "le": "+Inf"}, 5),
        ("t_sum", {"op": "x"}, 223),
        ("t_count", {"op": "x"}, 5),
    ]
    assert parsed(render([Family("t", "histogram", "time").add(Histogram((10,)))]))["t"][-1] == ("t_count", {}, 0)


@given(st.lists(st.integers(0, 20_000_000)))
def test_a_histogram_against_counting(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    total = 0
    for bound, count in zip((*LATENCY_BOUNDS_US, math.inf), histogram.counts, strict=True):
        total += count
        assert total == sum(value <= bound for value in values)


def test_the_latency_bounds() -> None:
    assert LATENCY_BOUNDS_US[:7] == (1, 3, 5, 10, 30, 50, 100)
    assert LATENCY_BOUNDS_US[-3:] == (3_000_000, 5_000_000, 10_000_000)
