"""How much went through, by topic and group, in the last minute, hour and day (pure).

Counted once per append, per answered pull and per pop, never per message. A figure is two totals (its value, and how often it was
counted) and a few samples of them at each window's step; a sample is kept only when the figure changed, so that what is idle
costs nothing. Figures that stood still for a day are forgotten. All of it belongs to this process, as with the original.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from brokerd.store.log.derive import Entry
from brokerd.store.log.laid_out import LaidOut
from brokerd.store.run import Run

MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
_STEPS_S: Final = ((MINUTE_S, 10), (HOUR_S, 600), (DAY_S, HOUR_S))
MAX_FIGURES: Final = 100_000

_K = TypeVar("_K")
_topic_of = itemgetter(0)


class Rate(NamedTuple):
    """What a figure did in a window: by how much it grew, that per second, and that per time it was counted."""

    total: int
    per_second: float
    mean: float


class _Totals(NamedTuple):
    at_s: float
    value: int
    size: int
    times: int


class Figure:
    """What was counted: a number of messages (or milliseconds), their bytes, and how often; with samples of each window."""

    __slots__ = ("_since_s", "_tracks", "size", "times", "value")

    def __init__(self, now_s: float) -> None:
        self.value = self.size = self.times = 0
        self._since_s = now_s
        nothing = _Totals(now_s, 0, 0, 0)
        self._tracks = tuple([nothing] for _ in _STEPS_S)  # lists, as a deque takes room for 64 from the start

    def sample(self, now_s: float) -> bool:
        """Remember the present totals where a window's step has passed; whether the figure is still worth keeping."""
        kept = now_s - self._since_s < DAY_S
        for track, (span_s, step_s) in zip(self._tracks, _STEPS_S, strict=True):
            last = track[-1]
            if last.times != self.times:
                kept = True
                if now_s - last.at_s >= step_s:
                    track.append(_Totals(now_s, self.value, self.size, self.times))
            while len(track) > 1 and track[1].at_s <= now_s - span_s:
                del track[0]
            kept |= len(track) > 1
        return kept

    def rate(self, window_s: int, now_s: float, *, of_bytes: bool = False) -> Rate:
        """What happened in the last minute, hour or day."""
        track = next(track for track, (span_s, _) in zip(self._tracks, _STEPS_S, strict=True) if span_s == window_s)
        then = next((each for each in reversed(track) if each.at_s <= now_s - window_s), track[0])
        grown = self.size - then.size if of_bytes else self.value - then.value
        counted = self.times - then.times
        elapsed_s = max(1.0, min(window_s, now_s - self._since_s))
        return Rate(grown, grown / elapsed_s, grown / counted if counted else 0.0)


class Statistics:
    """All figures of a broker. Times are monotonic seconds; `sample` is to be called every ten."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s
        self._count = 0
        self.broker_put = Figure(now_s)
        self.broker_get = Figure(now_s)
        self.topic_put: dict[str, Figure] = {}
        self.group_get: dict[tuple[str, str], Figure] = {}  # by (topic, group)
        self.group_read: dict[tuple[str, str, int], Figure] = {}  # by (topic, group, queue id); milliseconds of reads
        self.sent_back: dict[tuple[str, str], Figure] = {}  # by (topic, group)
        self._of_groups: tuple[dict[Any, Figure], ...] = (self.group_get, self.sent_back, self.group_read)
        # The figures of `group_read` and `group_get` that a pull counts in, by (group, topic, queue id); empty after one went
        self._of_pulls: dict[tuple[str, str, int], tuple[Figure, Figure]] = {}

    # ---- counting; what there is no room for is left out

    def stored(self, run: Run) -> None:
        """One append."""
        if not run.parts:
            self._stored(run.entries, run.message_count, run.size)
            return
        for entries, _ in run.parts:
            if isinstance(entries, LaidOut):
                for tally in entries.tallies:
                    self.stored_in(*tally)
            else:
                self._stored_all(entries)
        if run.entries:
            self._stored_all(run.entries)

    def _stored_all(self, entries: Sequence[Entry]) -> None:
        messages, size = sum(each[7] for each in entries), sum(each[7] * each[4] for each in entries)
        self._stored(entries, messages, size)

    def _stored(self, entries: Sequence[Entry], messages: int, size: int) -> None:
        """Entries, and how many messages of how many bytes they stand for."""
        if len(entries) == 1:
            self.stored_in(entries[0][0], messages, size)
            return
        topics = set(map(_topic_of, entries))
        if len(topics) == 1:
            self.stored_in(topics.pop(), messages, size)
            return
        for entry in entries:
            self.stored_in(entry[0], entry[7], entry[7] * entry[4])

    def stored_in(self, topic: str, messages: int, size: int) -> None:
        """Messages of one topic were appended."""
        figure = self.topic_put.get(topic)
        if figure is None:
            self._add(self.topic_put, topic, messages, size)
        else:
            figure.value += messages
            figure.size += size
            figure.times += 1
        figure = self.broker_put
        figure.value += messages
        figure.times += 1

    def pulled(self, reader: tuple[str, str, int], messages: int, size: int, milliseconds: int, pulls: int = 1) -> None:
        """Pulls of (group, topic, queue id) were answered with messages, which reads of so long in all found."""
        figures = self._of_pulls.get(reader)
        if figures is None:
            self._first_pulled(reader, messages, size, milliseconds)
            figures = self._of_pulls.get(reader)
            if figures is None:
                return
            messages = size = milliseconds = 0
            pulls -= 1
        read, get = figures
        read.value += milliseconds
        read.times += pulls
        get.value += messages
        get.size += size
        get.times += pulls
        broker_get = self.broker_get
        broker_get.value += messages
        broker_get.times += pulls

    def _first_pulled(self, reader: tuple[str, str, int], messages: int, size: int, milliseconds: int) -> None:
        group, topic, queue_id = reader
        self.given(topic, group, messages, size)
        self.read(topic, queue_id, group, milliseconds)
        read, get = self.group_read.get((topic, group, queue_id)), self.group_get.get((topic, group))
        if read is not None and get is not None:
            self._of_pulls[reader] = read, get

    def given(self, topic: str, group: str, messages: int, size: int) -> None:
        """Messages of one topic were given to a group."""
        self.broker_get.value += messages
        self.broker_get.times += 1
        self._add(self.group_get, (topic, group), messages, size)

    def read(self, topic: str, queue_id: int, group: str, milliseconds: int) -> None:
        """A read of a queue for a group took so long."""
        self._add(self.group_read, (topic, group, queue_id), milliseconds, 0)

    def note_sent_back(self, topic: str, group: str) -> None:
        """A consumer sent a message back, to get it later."""
        self._add(self.sent_back, (topic, group), 1, 0)

    def _add(self, table: dict[_K, Figure], key: _K, value: int, size: int) -> None:
        figure = table.get(key)
        if figure is None:
            if self._count >= MAX_FIGURES:
                return
            self._count += 1
            figure = table[key] = Figure(self._now_s)
        figure.value += value
        figure.size += size
        figure.times += 1

    # ---- reading, as of the last sample

    def put_per_second(self, topic: str) -> float:
        """Messages per second that a topic got in the last minute."""
        figure = self.topic_put.get(topic)
        return figure.rate(MINUTE_S, self._now_s).per_second if figure is not None else 0.0

    def get_per_second(self, topic: str, group: str) -> float:
        """Messages per second of a topic that a group was given in the last minute."""
        figure = self.group_get.get((topic, group))
        return figure.rate(MINUTE_S, self._now_s).per_second if figure is not None else 0.0

    # ---- time and tables

    def sample(self, now_s: float) -> None:
        """Remember where all figures stand, and forget those that stood still for a day."""
        self._now_s = now_s
        self.broker_put.sample(now_s)
        self.broker_get.sample(now_s)
        for table in (self.topic_put, *self._of_groups):
            self._drop(table, lambda _, figure: not figure.sample(now_s))

    def forget_topic(self, name: str) -> None:
        """The topic is gone."""
        self._drop(self.topic_put, lambda topic, _: topic == name)
        for table in self._of_groups:
            self._drop(table, lambda key, _: key[0] == name)

    def forget_group(self, name: str) -> None:
        """The consumer group is gone."""
        for table in self._of_groups:
            self._drop(table, lambda key, _: key[1] == name)

    def _drop(self, table: dict[Any, Figure], is_over: Callable[[Any, Figure], bool]) -> None:
        for key in [key for key, figure in table.items() if is_over(key, figure)]:
            del table[key]
            self._count -= 1
            self._of_pulls.clear()


# Classes of durations as the original has them
_LIMITS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_CLASSES: Final = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)


class Durations:
    """How long something took."""

    def __init__(self) -> None:
        self.counts = [0] * len(_CLASSES)
        self.longest_ms = 0.0
        self._octaves = [0] * 64  # by the binary logarithm of microseconds, for quantiles
        self._before = list(self._octaves)

    def add(self, milliseconds: float, times: int = 1) -> None:
        self.counts[bisect_left(_LIMITS_MS, int(milliseconds)) if milliseconds >= 1 else 0] += times
        self._octaves[int(milliseconds * 1000).bit_length()] += times
        if milliseconds > self.longest_ms:
            self.longest_ms = milliseconds

    def begin_window(self) -> None:
        """Quantiles are of what is added from now on."""
        self._before = list(self._octaves)

    def quantile_ms(self, share: float) -> float:
        """What that share of all took at most, to a power of two; 0 when there was nothing."""
        counts = [now - before for now, before in zip(self._octaves, self._before, strict=True)]
        wanted, seen = share * sum(counts), 0
        for octave, count in enumerate(counts):
            seen += count
            if count and seen >= wanted:
                return min(self.longest_ms, (1 << octave) / 1000)
        return 0.0

    def distribution(self) -> str:
        """How many took how long."""
        return " ".join(f"[{name}]:{count}" for name, count in zip(_CLASSES, self.counts, strict=True))
