"""What the pop service lives among: the parts of a broker that taking, finishing and bringing back use."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from brokerd.journal.record_log import RecordLog
from brokerd.loop.cold_line import ColdLine
from brokerd.loop.scheduler import Scheduler
from brokerd.metadata.service import MetadataService
from brokerd.placement.handovers import Handovers
from brokerd.pop.settings import PopSettings
from brokerd.store.store_reads import StoreReads


def no_placement(_topic: str) -> int:
    """The version of a topic's placement in a broker that knows of none."""
    return 0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`record_log` takes the pop records and the copies of what comes back; `now_ms` is the time that handles carry, and
    `random_bits` (of so many bits) what nobody can guess of them; `handovers` and `placement_version`, of the one in force of a
    topic, are what the placements' journal says; in `cold_line` stands who reads the tier, if there is one."""

    broker_name: str
    metadata: MetadataService
    reads: StoreReads
    record_log: RecordLog
    scheduler: Scheduler
    now_ms: Callable[[], int]
    settings: PopSettings
    random_bits: Callable[[int], int] = secrets.randbits
    handovers: Handovers = field(default_factory=Handovers)
    placement_version: Callable[[str], int] = no_placement
    cold_line: ColdLine | None = None
