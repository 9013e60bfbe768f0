"""What a start does with the log: find where it ends, cut what a crash left behind that, and make the rest durable.

`recovery` decides where to begin and whether what was found may be the whole; this reads the files and carries it out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.derive import Derived, derive_range
from brokerd.store.log.entry_columns import last_offsets, of_topic
from brokerd.store.log.layout import file_start
from brokerd.store.queues.queue_offsets import QueueKey
from brokerd.store.settings import StoreSettings
from brokerd.store.start import decisions, watermark
from brokerd.store.start.checkpoint_page import Positions
from brokerd.store.start.suspicion import SuspectEnd
from remoting.errors import CorruptedFile
from remoting.record.layout import BORDER, RECORD_OVERHEAD_BYTES

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
_MOST_ENDS = 8  # guesses at where damage ends
# How far behind the end leftovers are looked for, to mention them.
_LEFTOVER_BYTES = 1 << 16


class RecoveredLog(NamedTuple):
    """What a start found. `checked_from` is the record boundary from which it looked at every record."""

    end: int
    last_timestamp_ms: int
    checked_from: int
    gave_up_durable: bool  # bytes that had been durable are gone, and the settings said to go on without
    confirmed: (
        int  # how far the log itself says that it was confirmed, where it was read from its begin; -1: nothing says so
    )
    latest: Mapping[
        QueueKey, int
    ]  # the offset of each queue's last message among those looked at that are in its files
    suspicion: SuspectEnd | None  # the log ends at damage that is perhaps none of a crash; what is behind it is kept


class _Seen(NamedTuple):
    """What a look at the records gave: where the last whole, intact one ends, its store timestamp (0 in a log without any), from
    where on was looked; how far they say that the log was confirmed, which matters only when no checkpoint does; and as in
    `RecoveredLog.latest`."""

    end: int
    last_timestamp_ms: int
    checked_from: int
    confirmed: int
    latest: Mapping[QueueKey, int]


class Damage(NamedTuple):
    """What is damaged begins at the record boundary `start`, and ends, perhaps, at one of `ends`, which are of the same file, the
    likeliest first. Without any, nobody can be asked for it."""

    start: int
    ends: Sequence[int]


class SuspectLog(CorruptedFile):
    """The log ends at damage that is perhaps none of a crash, and somebody may be asked first who has it intact."""


def recover_log(
    commitlog: CommitLog, known: Positions | None, settings: StoreSettings, *, clean: bool, ask_first: bool = False
) -> RecoveredLog:
    """Have the log end behind its last whole, intact record, all of it durable. `known` is what the checkpoint proves; `clean`:
    the last run closed its files.

    Raises CorruptedFile when something that had been durable is damaged, unless the settings say to go on without; with
    `ask_first` also SuspectLog, with nothing changed.
    """
    provisional_end = commitlog.end_offset
    seen = _look(commitlog, known, settings.dispatch_chunk_bytes)
    end = seen.end
    if not settings.truncate_damaged_log:
        decisions.judge_end(end, known)
    is_cut_short = known is not None and end < known.flushed_offset
    if known is not None and is_cut_short:
        log.error("the log is damaged at %d; %d durable bytes are given up", end, known.flushed_offset - end)
    suspicion = None
    is_proven = known is not None and clean and end == known.flushed_offset
    if not is_cut_short and not is_proven:
        suspicion = _suspicion(commitlog, end, provisional_end, known)
    if suspicion is not None:
        log.error("%s", suspicion.sentence)
        if ask_first and not settings.truncate_damaged_log:
            raise SuspectLog(suspicion.sentence)
        is_cut_short, suspicion = settings.truncate_damaged_log, None if settings.truncate_damaged_log else suspicion
    elif any(commitlog.read(end, _LEFTOVER_BYTES)):
        log.warning("the log ends at %d; what a crash left of unsynced writes behind it is removed", end)
    commitlog.recovered(end, keep_rest=suspicion is not None)
    if known is not None:
        # When the last life ended because a sync failed, what it had written can be read, but the kernel takes it for clean
        # and would never write it: a sync alone proves nothing about it.
        commitlog.write_again(known.flushed_offset)
    commitlog.mark_flushed(commitlog.sync())
    return RecoveredLog(
        end, seen.last_timestamp_ms, seen.checked_from, is_cut_short, seen.confirmed, seen.latest, suspicion
    )


def find_damage(
    commitlog: CommitLog, known: Positions | None, settings: StoreSettings, *, clean: bool
) -> Damage | None:
    """What `recover_log` would refuse the log for, or suspect it; None when it would do neither."""
    end = _look(commitlog, known, settings.dispatch_chunk_bytes).end
    is_refused = known is not None and end < known.flushed_offset
    is_proven = known is not None and clean and end == known.flushed_offset
    if is_proven or (not is_refused and _suspicion(commitlog, end, commitlog.end_offset, known) is None):
        return None
    ends = guess_ends(commitlog, end)
    if known is not None and end < known.flushed_offset:
        ends = list(dict.fromkeys((*ends, min(known.flushed_offset, _file_end(commitlog, end)))))
    return Damage(end, ends)


def guess_ends(commitlog: CommitLog, start: int) -> list[int]:
    """Where what is damaged from the record boundary `start` on may end: as the damaged record says; where one of the next intact
    records starts, since a message may hold what looks like one; with its file, if the log goes on behind that."""
    file_end, border = _file_end(commitlog, start), commitlog.read(start, BORDER.size)
    said = start + BORDER.unpack(border)[0] if len(border) == BORDER.size else start
    ends = [said] if start + RECORD_OVERHEAD_BYTES <= said <= file_end else []
    found: int | None = start
    for _ in range(_MOST_ENDS):
        if found is not None:
            found = _next_record(commitlog, found, min(file_end, commitlog.end_offset))
        if found is not None:
            ends.append(found)
    if _next_record(commitlog, file_end - 1, commitlog.end_offset) is not None:
        ends.append(file_end)
    return list(dict.fromkeys(ends))


def _file_end(commitlog: CommitLog, offset: int) -> int:
    return file_start(offset, commitlog.segment_size_bytes) + commitlog.segment_size_bytes


def _next_record(commitlog: CommitLog, behind: int, end: int) -> int | None:
    return decisions.find_record(commitlog.read, behind + 1, end, commitlog.shape, decisions.MOST_ZEROS_BYTES)


def _suspicion(commitlog: CommitLog, end: int, provisional_end: int, known: Positions | None) -> SuspectEnd | None:
    """What speaks against a crash as the reason why no intact record starts at `end`; None when nothing does."""
    read, shape = commitlog.read, commitlog.shape
    most_zeros_bytes = None if known is None else decisions.MOST_ZEROS_BYTES  # the hole may be anywhere in an old log
    later = decisions.find_record(read, end + 1, provisional_end, shape, most_zeros_bytes)
    if later is None:
        is_torn = decisions.lacks_bytes(read, end, shape) and commitlog.unreadable_offset < end
        return None if is_torn else SuspectEnd(end, end)
    until, confirmed = later, -1
    while later is not None:
        for derived in derive_range(read, later, provisional_end, shape.checked(), _CHUNK_BYTES):
            until, confirmed = derived.end_offset, max(confirmed, _marked(commitlog, derived))
        later = decisions.find_record(read, until + 1, provisional_end, shape, decisions.MOST_ZEROS_BYTES)
    if known is None and confirmed < 0:
        confirmed = until  # nothing says what was acknowledged, so perhaps all of it
    return SuspectEnd(end, until, confirmed if confirmed > end else -1)


def _marked(commitlog: CommitLog, derived: Derived) -> int:
    """How far watermarks among the records say that the log was confirmed; -1 without one."""
    marks = of_topic(derived.entries, watermark.TOPIC)
    return max((watermark.confirmed_by(commitlog.read(entry[3], entry[4])) for entry in marks), default=-1)


def _look(commitlog: CommitLog, known: Positions | None, chunk_bytes: int) -> _Seen:
    start = checked_from = decisions.decide_start(known, commitlog.min_offset, commitlog.end_offset)
    confirmed = -1
    latest: dict[QueueKey, int] = {}
    while True:
        end, timestamp = start, -1
        for derived in derive_range(
            commitlog.read, start, commitlog.end_offset, commitlog.shape.checked(), chunk_bytes
        ):
            end, timestamp = derived.end_offset, max(timestamp, derived.store_timestamp_ms)
            if known is None:
                confirmed = max(confirmed, _marked(commitlog, derived))
            else:
                latest |= last_offsets(derived.entries, known.queues_offset)
        if timestamp >= 0 or start == commitlog.min_offset:
            return _Seen(end, max(0, timestamp), checked_from, confirmed, latest)
        # Not one record: the last store timestamp is in an earlier file.
        start = max(commitlog.min_offset, file_start(start - 1, commitlog.segment_size_bytes))
