"""Metrics as Prometheus' text format reads them (pure)

A daemon keeps plain numbers and, at a scrape, describes them as families; nothing here is kept between scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

Labels = Mapping[str, str]

# Upper bounds in microseconds: 1, 3 and 5 of every power of ten from 1 us to 5 s, and 10 s.
LATENCY_BOUNDS_US: Final = (*(digit * 10**power for power in range(7) for digit in (1, 3, 5)), 10_000_000)
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Histogram:
    """Counts of values by upper bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_US) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, once or that often; it belongs to the first bound that is not below it."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count


@dataclass(slots=True)
class Family:
    """All samples of one metric: (labels, value) each, where the value of a histogram is a `Histogram`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[tuple[Labels, float | Histogram]] = field(default_factory=list)

    def add(self, value: float | Histogram, **labels: str) -> Family:
        """One more sample; returns the family."""
        self.samples.append((labels, value))
        return self


def render(families: Iterable[Family], common: Labels | None = None) -> bytes:
    """The text of all families; `common` labels go to every sample."""
    lines: list[str] = []
    common = common or {}
    front = _labels(common)
    for family in families:
        lines.append(f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.samples:
            if not labels or not common:
                text = front or _labels(labels)
            elif labels.keys().isdisjoint(common):
                text = f"{front},{_labels(labels)}"
            else:
                text = _labels({**common, **labels})
            if isinstance(value, Histogram):
                _render_histogram(lines, family.name, text, value)
            else:
                lines.append(f"{family.name}{{{text}}} {value}" if text else f"{family.name} {value}")
    return ("\n".join(lines) + "\n").encode()


def _render_histogram(lines: list[str], name: str, labels: str, histogram: Histogram) -> None:
    head = f'{name}_bucket{{{labels},le="' if labels else f'{name}_bucket{{le="'
    total = 0
    for bound, count in zip(_bounds_text(tuple(histogram.bounds)), histogram.counts, strict=True):
        total += count
        lines.append(f'{head}{bound}"}} {total}')
    tail = f"{{{labels}}}" if labels else ""
    lines.append(f"{name}_sum{tail} {histogram.sum}")
    lines.append(f"{name}_count{tail} {total}")


@lru_cache(maxsize=64)
def _bounds_text(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(str, bounds), "+Inf")


def _labels(labels: Labels) -> str:
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()])


def _escaped(value: str) -> str:
    return value if value.isalnum() else value.translate(_ESCAPES)
