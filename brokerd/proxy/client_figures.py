"""What clients measured, summed over clients: how long sends, deliveries, waits and consumptions took as they see them (pure).

Clients export running totals since they started, once a minute. Of each client the last ones are remembered, so that what is
added is what is new. The first that is heard of a client counts as a whole if it began to count after this broker, or its memory
of that client, did; otherwise it only says where to begin, as the time that it covers is long ago. Everything here is bounded:
who reports more than there is room for is summed up under `OTHERS`, or not remembered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from remoting.exposition import Histogram

SEND, DELIVERY, AWAIT, PROCESS = "send", "delivery", "await", "process"
SPAN_SEND, SPAN_RECEIVE, SPAN_PROCESS = "span_send", "span_receive", "span_process"
CACHED_MESSAGES, CACHED_BYTES = "cached_messages", "cached_bytes"
OTHERS: Final = "(others)"

_QUICK_MS: Final = (1, 5, 10, 20, 50, 200, 500)
_SPAN_MS: Final = (1, 5, 20, 100, 500, 1000, 10_000, 60_000)
# upper bounds in milliseconds; those of the official clients, so that nothing is lost by putting theirs into ours
BOUNDS_MS: Final[Mapping[str, Sequence[int]]] = {
    SEND: _QUICK_MS,
    DELIVERY: _QUICK_MS,
    AWAIT: (1, 5, 20, 100, 1000, 5000, 10_000),
    PROCESS: (1, 5, 10, 100, 1000, 10_000, 60_000),
    SPAN_SEND: _SPAN_MS,
    SPAN_RECEIVE: _SPAN_MS,
    SPAN_PROCESS: _SPAN_MS,
}

MAX_SERIES: Final = 200  # a scrape writes ten lines of each, in one turn of the loop
MAX_REMEMBERED: Final = 20_000
WINDOW_MS: Final = 5 * 60_000
_IDLE_MS: Final = 3600_000
_GAUGE_MS: Final = 3 * 60_000  # clients export once a minute


class Labels(NamedTuple):
    """What a figure is about. `group` is empty for sends; `status` is success, failure, or empty where nobody says."""

    metric: str
    topic: str
    group: str
    language: str
    status: str = ""


class Buckets(NamedTuple):
    """A histogram as a client exports it. `counts` has one entry more than the upper `bounds_ms`, for what is above them."""

    bounds_ms: Sequence[float]
    counts: Sequence[int]
    sum_ms: float


class Running(NamedTuple):
    """Buckets, since when they count; None = they hold what is new since the last export alone."""

    buckets: Buckets
    since_ns: int | None


@dataclass(slots=True, eq=False)
class Series:
    """All clients' values for one set of labels: since ever, and of the last five to ten minutes."""

    total: Histogram
    seen_ms: int
    window: int = -1
    recent: list[int] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)

    def turn(self, window: int) -> None:
        """Begin the window if it is a new one."""
        if window == self.window:
            return
        nothing = [0] * len(self.total.counts)
        self.previous = self.recent if window == self.window + 1 and self.recent else nothing
        self.recent = list(nothing)
        self.window = window

    def add(self, place: int, count: int) -> None:
        self.total.counts[place] += count
        self.recent[place] += count


class ClientFigures:
    """Kept by the proxy of one broker."""

    def __init__(self, now_ms: int) -> None:
        self._since_ns = now_ms * 1_000_000
        self._series: dict[Labels, Series] = {}
        self._remembered: dict[tuple[str, Labels], Running] = {}
        self._gauges: dict[tuple[str, Labels], tuple[float, int]] = {}
        self.taken = 0
        self.refused = 0

    # ---- what comes

    def histogram(self, client_id: str, labels: Labels, running: Running, now_ms: int) -> None:
        """A client's histogram, checked: counts that are not negative, one more of them than bounds, which ascend."""
        self.taken += 1
        new = running.buckets if running.since_ns is None else self._news(client_id, labels, running, now_ms)
        if new is None or not any(new.counts):
            return
        series = self._get(labels, now_ms)
        bounds_ms = BOUNDS_MS[labels.metric]
        for bound_ms, count in zip((*new.bounds_ms, float("inf")), new.counts, strict=True):
            if count:
                series.add(bisect_left(bounds_ms, bound_ms), count)
        series.total.sum += new.sum_ms / 1000

    def duration(self, labels: Labels, duration_ms: float, now_ms: int) -> None:
        """How long one thing took, as a span says."""
        self.taken += 1
        series = self._get(labels, now_ms)
        series.add(bisect_left(BOUNDS_MS[labels.metric], duration_ms), 1)
        series.total.sum += duration_ms / 1000

    def gauge(self, client_id: str, labels: Labels, value: float, now_ms: int) -> None:
        """What a client has at the moment."""
        self.taken += 1
        key = client_id, labels
        self._gauges.pop(key, None)
        if len(self._gauges) >= MAX_REMEMBERED:
            del self._gauges[next(iter(self._gauges))]
        self._gauges[key] = value, now_ms

    def refuse(self, count: int) -> None:
        """Values that could not be taken: nobody knows their topic or group, or there were too many at once."""
        self.refused += count

    # ---- what is read

    def series(self, now_ms: int) -> Iterator[tuple[Labels, Series]]:
        """All of them, with their windows as of now."""
        window = now_ms // WINDOW_MS
        for labels, series in self._series.items():
            series.turn(window)
            yield labels, series

    def gauges(self, now_ms: int) -> Mapping[Labels, float]:
        """The sums over all clients that were heard of lately."""
        sums: dict[Labels, float] = {}
        while self._gauges:
            oldest = next(iter(self._gauges))
            if now_ms - self._gauges[oldest][1] <= _GAUGE_MS:
                break
            del self._gauges[oldest]
        for (_, labels), (value, _) in self._gauges.items():
            sums[labels] = sums.get(labels, 0) + value
        return sums

    # ---- inside

    def _news(self, client_id: str, labels: Labels, running: Running, now_ms: int) -> Buckets | None:
        """What of running totals is new; None = they only say where to begin."""
        key = client_id, labels
        before = self._remembered.pop(key, None)
        if len(self._remembered) >= MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
            self._since_ns = now_ms * 1_000_000  # what counts since before it may be that one, come again
        self._remembered[key] = running
        new = running.buckets
        if before is None:
            assert running.since_ns is not None
            return new if running.since_ns >= self._since_ns else None
        old = before.buckets
        if before.since_ns != running.since_ns or old.bounds_ms != new.bounds_ms:
            return new  # it began anew
        counts = [now - then for now, then in zip(new.counts, old.counts, strict=True)]
        if min(counts) < 0:
            return new
        return Buckets(new.bounds_ms, counts, max(0.0, new.sum_ms - old.sum_ms))

    def _get(self, labels: Labels, now_ms: int) -> Series:
        series = self._series.get(labels)
        if series is None:
            if len(self._series) >= MAX_SERIES:
                self._forget_idle(now_ms)
            if len(self._series) >= MAX_SERIES:
                labels = labels._replace(topic=OTHERS, group=OTHERS if labels.group else "", language="")
                series = self._series.get(labels)
            if series is None:
                bounds_s = [bound_ms / 1000 for bound_ms in BOUNDS_MS[labels.metric]]
                series = self._series[labels] = Series(Histogram(bounds_s), now_ms)
        series.seen_ms = now_ms
        series.turn(now_ms // WINDOW_MS)
        return series

    def _forget_idle(self, now_ms: int) -> None:
        idle = [labels for labels, series in self._series.items() if now_ms - series.seen_ms > _IDLE_MS]
        for labels in idle:
            del self._series[labels]
