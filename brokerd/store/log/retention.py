"""Which commitlog files go, and whether appends are refused, by age and by disk usage (pure).

The oldest files go first, never the last one, and none that somebody still needs: undispatched or unsynced bytes, and every
holder of a position that the store was told about (a replica in the middle of copying, pending timers, an upload). A file that
is old stays while a topic wants a message in it kept (`store/wanted_files.py`), unless the disk needs the room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from brokerd.store.settings import RetentionSettings
from remoting.disk import DiskUsage

_WORTH_TELLING_MS: Final = 600_000  # two clocks that are right differ by less
_AHEAD_MS: Final = 3_600_000  # "soon" is in so long, or in this part of the time for which files stay, if that is less,
_AHEAD_PART: Final = 10
_AHEAD_FILES: Final = 2  # or when so many more files are written
# What is moved out of a file takes less than that file has, and then it goes; so much room stays for what a role needs meanwhile
_MOVES_FILES: Final = 2
_LATEST_MS: Final = 253_402_300_799_000  # of a time that can be written: the year 9999


class FileAge(NamedTuple):
    """One commitlog file. `newest_timestamp_ms` is at or after the store time of its last message, -1 when not known. Until
    `wanted_until_ms` some topic wants a message in it kept, 0 = none does, or nobody looked."""

    start: int
    end: int
    newest_timestamp_ms: int
    wanted_until_ms: int = 0


class RetentionDecision(NamedTuple):
    """Remove the `remove` oldest files; refuse what clients send from now on, or not, with `refuse_own` all else, too, but for
    what lets files go, and with `refuse_moves` that as well. `kept` more would go if no topic wanted them."""

    remove: int
    refuse: bool
    refuse_own: bool = False
    refuse_moves: bool = False
    kept: int = 0


def decide_retention(
    files: Sequence[FileAge],
    usage: DiskUsage,
    held_offset: int,
    now_ms: int,
    refusing: bool,
    settings: RetentionSettings,
) -> RetentionDecision:
    """`files` are all files, oldest first; `held_offset` is the smallest offset that somebody needs."""
    removable = 0
    while removable < len(files) - 1 and files[removable].end <= held_offset:
        removable += 1
    expired = min(expired_files(files, now_ms, settings), removable)
    unwanted = 0
    while unwanted < expired and files[unwanted].wanted_until_ms <= now_ms:
        unwanted += 1
    going = min(max(unwanted, surplus_files(files, usage, settings)), removable)
    refuse = is_full(usage, refusing, settings)
    refuse_own = refuse and used_percent(usage) > own_refuse_percent(settings)
    refuse_moves = refuse_own and usage.free_bytes < _MOVES_FILES * (files[0].end - files[0].start if files else 0)
    remove, kept = min(going, settings.files_per_round), max(0, expired - going)
    return RetentionDecision(remove, refuse, refuse_own, refuse_moves, kept)


def expired_files(files: Sequence[FileAge], now_ms: int, settings: RetentionSettings) -> int:
    """How many files, from the oldest on, are older than files stay."""
    expired = 0
    while expired < len(files) and 0 <= files[expired].newest_timestamp_ms <= now_ms - settings.reserved_time_ms:
        expired += 1
    return expired


def surplus_files(files: Sequence[FileAge], usage: DiskUsage, settings: RetentionSettings) -> int:
    """How many files, from the oldest on, the disk has no room for, whatever their age and whoever wants them."""
    roomy = 0 < settings.enough_free_bytes <= usage.free_bytes
    if not files or roomy or used_percent(usage) <= settings.force_percent:
        return 0
    surplus = usage.total_bytes - usage.free_bytes - usage.total_bytes * settings.force_percent // 100
    return min(len(files), -(-surplus // (files[0].end - files[0].start)))


def decide_going(files: Sequence[FileAge], usage: DiskUsage, now_ms: int, settings: RetentionSettings) -> int:
    """Up to which position of the log files may go soon, so that what has to outlive them is stored again before that."""
    if not files:
        return 0
    fuller = soon_used(files, usage)
    going = decide_retention(files, fuller, files[-1].end, soon_ms(now_ms, settings), False, settings).remove
    return files[going].start


def soon_ms(now_ms: int, settings: RetentionSettings) -> int:
    """What goes until then goes soon."""
    return now_ms + min(_AHEAD_MS, settings.reserved_time_ms // _AHEAD_PART)


def soon_used(files: Sequence[FileAge], usage: DiskUsage) -> DiskUsage:
    """The disk when some more files are written."""
    size = files[0].end - files[0].start if files else 0
    return DiskUsage(usage.total_bytes, max(0, usage.free_bytes - _AHEAD_FILES * size))


def is_full(usage: DiskUsage, refusing: bool, settings: RetentionSettings) -> bool:
    """Whether appends are refused from now on; `refusing`: they are already."""
    full = used_percent(usage) > (settings.force_percent if refusing else settings.refuse_percent)
    return full and not 0 < settings.enough_free_bytes <= usage.free_bytes


def own_refuse_percent(settings: RetentionSettings) -> int:
    """Above this disk usage nothing is appended but what lets files go. What waits in the log is delivered, taken and
    acknowledged up to there: half of the room that is left when sends are refused."""
    return (settings.refuse_percent + 100) // 2


def claims_the_future(files: Sequence[FileAge], now_ms: int) -> bool:
    """Whether a message says that it was stored later than it is. Store times never decrease, so all behind it say so, too."""
    return any(file.newest_timestamp_ms > now_ms for file in files)


def believe_ages(files: Sequence[FileAge], written_ms: Mapping[int, int | None], now_ms: int) -> list[FileAge]:
    """The files, where store times lie in the future with the times when they were last written instead.

    `written_ms` has those by the files' starts, as the file system says; they are believed only between the last store time that
    is believed and what is known of the files behind. One message with a time of the future so keeps its file, and those behind
    it, no longer than others, and a clock that was wrong while a file was written makes it no older than it can be.
    """
    earliest_ms = max((file.newest_timestamp_ms for file in files if file.newest_timestamp_ms <= now_ms), default=-1)
    latest_ms = now_ms
    believed: list[FileAge] = []
    for file in reversed(files):
        newest_ms = file.newest_timestamp_ms
        if not 0 <= newest_ms <= now_ms:
            said_ms = written_ms.get(file.start)
            if said_ms is not None and earliest_ms <= said_ms <= latest_ms:
                latest_ms = said_ms
            newest_ms = latest_ms if newest_ms >= 0 else newest_ms
        believed.append(file._replace(newest_timestamp_ms=newest_ms))
    return believed[::-1]


def describe_doubt(now_ms: int, own_ms: int, kept: int) -> str:
    """That `kept` files stay which would go by the own clock; "" when there are none, or they go in a moment."""
    if kept <= 0 or own_ms - now_ms <= _WORTH_TELLING_MS:
        return ""
    return (
        f"retention does not believe this machine's clock, which says {_utc(own_ms)}: by what other machines say, or earlier "
        f"runs left behind, it is {_utc(now_ms)}. {kept} files of the log stay that would be removed. Set the clock right; or "
        "wait, if it is: it is believed an hour after the start, or ten minutes after it when other machines agree"
    )


def overruled_text(usage: DiskUsage, count: int, topic: str, settings: RetentionSettings) -> str:
    """That `count` files of the log go which topics want kept, one of them that topic."""
    return (
        f"this broker's disk is {used_percent(usage)} % full, and retention.force_percent is {settings.force_percent}: {count} "
        f"{'file goes' if count == 1 else 'files go'} that topics want kept (local.reserve.time), as {topic} does; add room, or "
        "have them want less"
    )


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


def _utc(time_ms: int) -> str:
    since_1970 = timedelta(milliseconds=min(max(time_ms, 0), _LATEST_MS))
    return f"{datetime(1970, 1, 1, tzinfo=UTC) + since_1970:%Y-%m-%d %H:%M} UTC"
