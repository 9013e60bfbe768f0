"""Timer files that follow a log in memory: a piece at each round of dispatch, a checkpoint now and then."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from brokerd.store.unit import Unit
from brokerd.timers.codes import OUT_MS, leg_of, number_of
from brokerd.timers.far_timers import FarTimers
from brokerd.timers.files.layout import Shape
from brokerd.timers.files.source import Confirmed, Delivered, Origin
from brokerd.timers.files.timer_files import TimerFiles
from remoting.names import TIMER_TOPIC
from remoting.record.codec import decode_record
from tests.support.disks import MemoryDisk
from tests.support.memory_log import MemoryRecordLog

_SHAPE = Shape(slots=301, file_bytes=8 * 52 + 16)  # less than the times of some timers are apart


class _Source:
    """`files.source.TimerSource` of the log."""

    def __init__(self, log: MemoryRecordLog, present: Callable[[], Delivered | None]) -> None:
        self._log = log
        self.delivered = Confirmed(lambda: self.dispatch_offset, present)
        self.queue_range = partial(log.queue_range, TIMER_TOPIC, 0)

    @property
    def dispatch_offset(self) -> int:
        return min((unit[0] for _, _, unit in self._log._tail), default=self._log.end_offset)

    def log_range(self) -> tuple[int, int]:
        return 0, self._log.end_offset

    def units(self, first: int, count: int) -> Sequence[Unit]:
        return self._log.read_units(TIMER_TOPIC, 0, first, count)

    known_units = units

    def origin(self, physical_offset: int, size: int) -> Origin:
        properties = decode_record(self._log.record_at(physical_offset, size)).property_map()
        return Origin(0, 1_600_000_000_000, leg_of(properties) is not None, number_of(properties, OUT_MS))


class Followed:
    """The files of one broker, and what finds timers by them."""

    def __init__(self, log: MemoryRecordLog, rng: random.Random, present: Callable[[], Delivered | None]) -> None:
        self._rng = rng
        self._source = source = _Source(log, present)
        self.files = TimerFiles(MemoryDisk(), source, _SHAPE, 4)
        self.files.load(known=False, clean=True)
        self.far = FarTimers(self.files, source.queue_range, source.units)
        log.listeners.append(lambda _: self.follow())

    def follow(self) -> None:
        self.files.take(self._source.dispatch_offset, self._rng.choice((1, 4, 64)) << 9)
        if self._rng.random() < 0.2 and (write := self.files.begin_write(closing=True)) is not None:
            write.run()
            self.files.finish_write(write)
