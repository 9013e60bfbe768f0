"""What the pop service lives among: the parts of a broker that taking, finishing and bringing back use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brokerd.journal.record_log import RecordLog
from brokerd.loop.scheduler import Scheduler
from brokerd.metadata.service import MetadataService
from brokerd.pop.settings import PopSettings
from brokerd.store.store_reads import StoreReads


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`record_log` takes the pop records and the copies of what comes back; `now_ms` is the time that handles carry."""

    broker_name: str
    metadata: MetadataService
    reads: StoreReads
    record_log: RecordLog
    scheduler: Scheduler
    now_ms: Callable[[], int]
    settings: PopSettings
