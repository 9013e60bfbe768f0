"""Writing the history, and reading what was not over: for the collector, which is the only one that writes.

Entries are written by their keys, so that writing one again changes nothing, and one that is over is never changed any more.
Raises django.db.Error when the database refuses or does not answer; then nothing of the call was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import close_old_connections, transaction

from remoting.facts.history import HistoryEntry
from remoting.facts.words import HistoryKind
from webapp.history.models import HistoryRow, texts_of

_MOST_OPEN = 1000
_AT_ONCE = 200


def write(entries: Sequence[HistoryEntry]) -> None:
    """Add the entries, and change those that are there and not over."""
    for start in range(0, len(entries), _AT_ONCE):
        _write_some({each.key: each for each in entries[start : start + _AT_ONCE]})


def read_open() -> tuple[HistoryEntry, ...]:
    """What is not over by the database's word, newest first."""
    return tuple(_entry(row) for row in HistoryRow.objects.filter(ended_at=None)[:_MOST_OPEN])


class DatabaseHistory:
    """Both for a program that answers no requests, where nobody else leaves a broken or an old connection behind."""

    def write(self, entries: Sequence[HistoryEntry]) -> None:
        close_old_connections()
        write(entries)

    def read_open(self) -> tuple[HistoryEntry, ...]:
        close_old_connections()
        return read_open()


def _write_some(entries: dict[str, HistoryEntry]) -> None:
    with transaction.atomic():
        rows = {row.key: row for row in HistoryRow.objects.filter(key__in=entries)}
        for key, row in rows.items():
            if row.ended_at is None:
                for name, value in _values(entries[key]).items():
                    setattr(row, name, value)
                row.save()
        HistoryRow.objects.bulk_create(
            HistoryRow(key=key, **_values(entry)) for key, entry in entries.items() if key not in rows
        )


def _values(entry: HistoryEntry) -> dict[str, Any]:
    return {
        **texts_of(entry),
        "epoch": entry.epoch,
        "started_at": _moment(entry.started_ms),
        "ended_at": None if entry.ended_ms is None else _moment(entry.ended_ms),
        "start_unwatched": entry.start_unwatched,
        "end_unwatched": entry.end_unwatched,
    }


def _entry(row: HistoryRow) -> HistoryEntry:
    return HistoryEntry(
        key=row.key,
        kind=HistoryKind(row.kind),
        cluster=row.cluster,
        group=row.group,
        subject=row.subject,
        text=row.text,
        cause=row.cause,
        previous=row.previous,
        elected=row.elected,
        epoch=row.epoch,
        started_ms=_ms(row.started_at),
        ended_ms=None if row.ended_at is None else _ms(row.ended_at),
        start_unwatched=row.start_unwatched,
        end_unwatched=row.end_unwatched,
    )


def _moment(ms: int) -> datetime:
    seconds, rest = divmod(ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest * 1000)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000 + moment.microsecond // 1000
