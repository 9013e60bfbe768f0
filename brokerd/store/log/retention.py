"""Which commitlog files go, and whether appends are refused, by age and by disk usage (pure).

The oldest files go first, never the last one, and none that somebody still needs: undispatched or unsynced bytes, and every
holder of a position that the store was told about (a replica in the middle of copying, pending timers, an upload).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from brokerd.store.settings import RetentionSettings
from remoting.disk import DiskUsage


class FileAge(NamedTuple):
    """One commitlog file. `newest_timestamp_ms` is at or after the store time of its last message, -1 when not known."""

    start: int
    end: int
    newest_timestamp_ms: int


class RetentionDecision(NamedTuple):
    """Remove the `remove` oldest files; refuse appends from now on, or not."""

    remove: int
    refuse: bool


def decide_retention(
    files: Sequence[FileAge],
    usage: DiskUsage,
    held_offset: int,
    now_ms: int,
    refusing: bool,
    settings: RetentionSettings,
) -> RetentionDecision:
    """`files` are all files, oldest first; `held_offset` is the smallest offset that somebody needs."""
    percent = used_percent(usage)
    roomy = 0 < settings.enough_free_bytes <= usage.free_bytes
    expired = 0
    while expired < len(files) and _is_expired(files[expired], now_ms, settings):
        expired += 1
    wanted = expired
    if percent > settings.force_percent and not roomy and files:
        surplus = usage.total_bytes - usage.free_bytes - usage.total_bytes * settings.force_percent // 100
        file_size = files[0].end - files[0].start
        wanted = max(wanted, -(-surplus // file_size))
    removable = 0
    while removable < len(files) - 1 and files[removable].end <= held_offset:
        removable += 1
    full = percent > (settings.force_percent if refusing else settings.refuse_percent)
    refuse = full and not roomy
    return RetentionDecision(min(wanted, removable, settings.files_per_round), refuse)


def refusal_text(usage: DiskUsage, settings: RetentionSettings) -> str:
    """Why no message is taken, and what ends that."""
    enough = settings.enough_free_bytes
    or_free = f", or {enough} bytes are free (retention.enough_free_bytes)" if enough else ""
    return (
        f"this broker's disk is {used_percent(usage)} % full, and retention.refuse_percent is {settings.refuse_percent}: no "
        f"message is taken until it is down to retention.force_percent, {settings.force_percent} %{or_free}; delete data or add "
        "room, it then goes on by itself"
    )


def used_percent(usage: DiskUsage) -> int:
    """Disk usage, rounded up to a whole percent."""
    if usage.total_bytes <= 0:
        return 100
    return -(-100 * (usage.total_bytes - usage.free_bytes) // usage.total_bytes)


def _is_expired(file: FileAge, now_ms: int, settings: RetentionSettings) -> bool:
    return 0 <= file.newest_timestamp_ms <= now_ms - settings.reserved_time_ms
