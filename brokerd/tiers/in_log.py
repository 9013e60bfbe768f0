"""What the log says of the tier, as far as it is read, and reading there: made before the store is opened, which reads by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from brokerd.journal.reading import Reading
from brokerd.loop.cold_line import ColdLine
from brokerd.store.log.record_checks import FirstAstray
from brokerd.tiers.objects.counted import Counted
from brokerd.tiers.objects.interface import ObjectStore
from brokerd.tiers.reading.cold_reads import AT_FULL_SPEED, Ahead, ColdReads
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.table import TIERS_TOPIC, TierTable
from brokerd.tiers.upload.uploader import Loop
from remoting.settings import Live
from remoting.tier.contents import Queue, TierContents
from remoting.tier.segments import QueueSegments

_EMPTY: Final = QueueSegments()
# 2 MiB are memory that the event loop's thread gives back without a pause. Who has a share of its time is long busy with a window
_AHEAD_BESIDE_OTHERS: Final = Ahead(2 << 20, 1)


class TierInLog:
    """The table, and how far it is read. Empty until the service of the tier reads the log. `deleted_at` is where a topic was
    deleted last, -1 for never: messages in front of that are not the topic's. `mounted` is what a group has in the tier that is
    served in the place of its own brokers, whose log does not say it yet."""

    def __init__(self, deleted_at: Callable[[str], int], mounted: TierContents | None = None) -> None:
        self.table = TierTable()
        self.reading = Reading(TIERS_TOPIC, self.table)
        self._deleted_at = deleted_at
        self._mounted = mounted

    def segments_of(self, queue: Queue) -> QueueSegments:
        """Of the topic that there is now: those of an earlier one of its name are about to be dropped."""
        contents = self.table.contents
        if self._mounted is not None and not contents.log_id:
            contents = self._mounted
        segments = contents.queues.get(queue, _EMPTY)
        return _EMPTY if len(segments) and self.is_of_deleted(queue, segments.last.log_end) else segments

    def was_deleted(self, topic: str) -> bool:
        """Whether there was an earlier topic of the name."""
        return self._deleted_at(topic) >= 0

    def is_of_deleted(self, queue: Queue, log_end: int) -> bool:
        """Whether messages of the queue that end there in the log are of an earlier topic of the name."""
        return log_end <= self._deleted_at(queue.topic)


class TierReads(NamedTuple):
    """What a broker sees of its tier. Without an object store it is only what the log says."""

    in_log: TierInLog
    objects: Counted | None = None
    cold: ColdReads | None = None
    line: ColdLine | None = None


def tier_reads(
    in_log: TierInLog, objects: ObjectStore, loop: Loop, live: Live[TierSettings], first_astray: FirstAstray
) -> TierReads:
    """Messages are read as far as the log names them; `first_astray` as for ColdReads."""
    counted, settings = Counted(objects, loop.clocks.clock_s), live.value
    line = ColdLine(
        loop.scheduler, loop.clocks, lambda: live.value.cold_share_percent / 100, loop.shortly, loop.give_way
    )
    limits = settings.cache_bytes, settings.fetches_in_flight
    cold = ColdReads(counted, in_log.segments_of, loop, *limits, first_astray)
    cold.counted = line.counted
    cold.ahead = lambda: _AHEAD_BESIDE_OTHERS if line.is_beside_others else AT_FULL_SPEED
    in_log.table.listeners.append(cold.cache.forget)
    return TierReads(in_log, counted, cold, line)
