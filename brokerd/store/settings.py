"""Settings of the store (`--set store.key=value`) and of retention (`--set retention.key=value`)."""

from __future__ import annotations

from dataclasses import dataclass

from remoting.record.layout import FILLER_BYTES, MAX_RECORD_BYTES
from remoting.settings import check, setting

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Sizes of files and the rhythm of checkpoints."""

    segment_size_bytes: int = setting(
        1 << 30,
        "size of a commitlog file; the same on every replica of a group, fixed by the first start",
        minimum=4096,
        maximum=1 << 40,
        original="mappedFileSizeCommitLog",
    )
    max_record_bytes: int = setting(
        MAX_RECORD_BYTES, "largest stored record, all its parts together", minimum=1024, maximum=1 << 30
    )
    queue_file_units: int = setting(
        300_000, "20-byte units in a consume queue file; fixed by the first start", minimum=16, maximum=10_000_000
    )
    open_queue_files: int = setting(256, "consume queue files kept open for reading", minimum=1, maximum=100_000)
    checkpoint_interval_ms: int = setting(
        5_000,
        "how often consume queues are written; more often makes the start after a crash shorter",
        minimum=10,
        maximum=600_000,
    )
    config_interval_ms: int = setting(
        5_000, "how often config/*.json is written again when it changed", minimum=10, maximum=600_000
    )
    dispatch_chunk_bytes: int = setting(
        4 << 20, "most log bytes one dispatch round reads back", minimum=4096, maximum=1 << 30
    )
    record_checksums: bool = setting(True, "end every new record that has room for it with a checksum over all of it")
    index_enabled: bool = setting(True, "keep an index, so that messages are found by their keys and unique ids")
    index_slots: int = setting(
        5_000_000, "hash slots of an index file; changed, the index is made again", minimum=1, maximum=100_000_000
    )
    index_items: int = setting(
        20_000_000, "keys an index file has room for; changed, the index is made again", minimum=2, maximum=100_000_000
    )
    truncate_damaged_log: bool = setting(
        False, "for one start after a disk lost what it had reported durable: keep what precedes the damage"
    )

    def __post_init__(self) -> None:
        check("store", self)

    @property
    def largest_record_bytes(self) -> int:
        """The largest record that can be stored: it and the filler after it must fit into one file."""
        return min(self.max_record_bytes, self.segment_size_bytes - FILLER_BYTES)


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """When commitlog files go. Percentages are of the file system that holds the data, rounded up."""

    reserved_time_ms: int = setting(
        72 * HOUR_MS,
        "files whose newest message is older are deleted",
        minimum=1000,
        maximum=876_000 * HOUR_MS,
        live=True,
        original="fileReservedTime",
        original_unit=HOUR_MS,
    )
    force_percent: int = setting(
        85,
        "above this disk usage the oldest files go whatever their age",
        minimum=30,
        maximum=99,
        live=True,
        original="diskMaxUsedSpaceRatio",
    )
    refuse_percent: int = setting(
        90,
        "above this disk usage sends are refused, until it is back at force_percent; what waits is delivered up to half way from "
        "here to 100",
        minimum=30,
        maximum=99,
    )
    enough_free_bytes: int = setting(
        20 << 30, "while this much is free neither percentage applies; 0: they always do", minimum=0, maximum=1 << 50
    )
    files_per_round: int = setting(10, "most files deleted in one round", minimum=1, maximum=10_000)
    interval_ms: int = setting(10_000, "time between two rounds", minimum=10, maximum=24 * HOUR_MS)
    full_interval_ms: int = setting(
        200, "likewise, while appends are refused because the disk is full", minimum=10, maximum=60_000
    )

    def __post_init__(self) -> None:
        check("retention", self)
