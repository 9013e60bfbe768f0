"""The way of the history to the database: once only, whatever is killed, locked or away in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from remoting.facts.history import HistoryEntry
from remoting.facts.words import HistoryKind
from tasks import history
from tasks.history import Journal
from tasks.schedule import HISTORY_KEPT, retention
from tests.unit.tasks.fake_history import MemoryHistory
from webapp.history import store
from webapp.history.models import HistoryRow

NOW_MS = 1_790_000_000_123
LONG = "broker-" + "x" * 120


def fault(number: int = 0, **changes: Any) -> HistoryEntry:
    told: dict[str, Any] = {
        "key": f"replica-down/{LONG}/{LONG}/2/{NOW_MS + number}",
        "kind": HistoryKind.REPLICA_DOWN,
        "cluster": LONG,
        "group": LONG,
        "subject": "replica 2 (broker-a-1)",
        "text": f"{LONG}: replica 2 (broker-a-1) did not answer",
        "cause": "its process was killed by SIGKILL",
        "started_ms": NOW_MS + number,
    }
    return HistoryEntry(**told | changes)


# ---- the database


@pytest.mark.django_db
def test_an_entry_is_written_once_and_read_as_it_was() -> None:
    store.write([fault()])
    store.write([fault(), fault(1, epoch=2**40, previous="replica 1", elected="replica 2", start_unwatched=True)])
    assert HistoryRow.objects.count() == 2
    assert set(store.read_open()) == {
        fault(),
        fault(1, epoch=2**40, previous="replica 1", elected="replica 2", start_unwatched=True),
    }


@pytest.mark.django_db
def test_what_is_over_is_never_changed_any_more() -> None:
    store.write([fault()])
    over = fault(ended_ms=NOW_MS + 4100, end_unwatched=True)
    store.write([over])
    store.write([replace(over, ended_ms=NOW_MS + 9_000_000, cause="something else"), fault()])
    row = HistoryRow.objects.get()
    assert (row.duration_ms, row.cause, row.end_unwatched) == (4100, "its process was killed by SIGKILL", True)
    assert store.read_open() == ()


@pytest.mark.django_db
def test_what_is_longer_than_a_row_is_cut() -> None:
    store.write([fault(cause="c" * 5000, text="t" * 5000, subject="s" * 5000, previous="p" * 5000)])
    row = HistoryRow.objects.get()
    assert (len(row.cause), len(row.text), len(row.subject), len(row.previous)) == (1000, 1000, 300, 300)


@pytest.mark.django_db
def test_many_entries_are_written_in_pieces() -> None:
    entries = [fault(number) for number in range(450)]
    store.write(entries)
    store.write([replace(each, ended_ms=each.started_ms) for each in entries])
    assert HistoryRow.objects.filter(ended_at=None).count() == 0
    assert HistoryRow.objects.count() == 450


@pytest.mark.django_db
def test_retention_keeps_what_is_not_over_and_what_is_young(settings: Any, tmp_path: Any) -> None:
    settings.REPORTS_DIR = tmp_path
    old_ms = int((datetime.now(UTC) - HISTORY_KEPT - timedelta(days=1)).timestamp() * 1000)
    store.write(
        [
            fault(key="a/b/c/d/1", started_ms=old_ms, ended_ms=old_ms + 5),
            fault(key="a/b/c/d/2", started_ms=old_ms),
            fault(key="a/b/c/d/3", started_ms=old_ms, ended_ms=old_ms + 2 * 86_400_000),
        ]
    )
    retention()
    assert set(HistoryRow.objects.values_list("key", flat=True)) == {"a/b/c/d/2", "a/b/c/d/3"}


# ---- the journal


@asynccontextmanager
async def writing(rows: MemoryHistory, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Journal]:
    monkeypatch.setattr(history, "RETRY_S", 0.01)
    journal = Journal(rows)
    work = asyncio.create_task(journal.run())
    try:
        yield journal
    finally:
        rows.free.set()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)


async def looked(journal: Journal, entries: Iterable[HistoryEntry], is_so: Callable[[], object]) -> None:
    """Look after look with the same history, as the collector does, until it is so."""
    entries = list(entries)

    def look() -> object:
        journal.take()
        journal.note(entries)
        return is_so()

    await until(look)


async def test_a_collector_that_is_killed_in_between_writes_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = MemoryHistory()
    async with writing(rows, monkeypatch) as journal:
        await looked(journal, [fault()], lambda: rows.rows)
    async with writing(rows, monkeypatch) as journal:
        found: list[HistoryEntry] = []
        await until(lambda: found.extend(journal.take().open) or found)
        assert found == [fault()]
        assert journal.take().open == (), "it is told once"
        journal.note([fault(ended_ms=NOW_MS + 5)])
        await until(lambda: rows.rows[fault().key].ended_ms)
    assert len(rows.rows) == 1


async def test_nothing_is_written_before_it_is_known_what_was_open(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = MemoryHistory()
    rows.rows[fault().key] = fault()
    rows.free.clear()
    async with writing(rows, monkeypatch) as journal:
        assert journal.take().open == ()
        journal.note([fault(77)])
        rows.free.set()
        found: list[HistoryEntry] = []
        await until(lambda: found.extend(journal.take().open) or found)
        journal.note([fault(ended_ms=NOW_MS + 5)])
        await until(lambda: rows.rows[fault().key].ended_ms)
    assert list(rows.rows) == [fault().key]


async def test_a_database_that_refuses_is_told_and_what_happened_meanwhile_is_written_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = MemoryHistory()
    async with writing(rows, monkeypatch) as journal:
        await looked(journal, [fault()], lambda: rows.rows)
        rows.problem = "database or disk is full"
        await looked(journal, [fault(1)], lambda: journal.take().problem)
        assert journal.take().problem == "database or disk is full"
        await looked(journal, [fault(2)], lambda: True)
        rows.problem = ""
        await until(lambda: len(rows.rows) == 3)
        await until(lambda: not journal.take().problem)


async def test_a_database_that_is_locked_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = MemoryHistory()
    async with writing(rows, monkeypatch) as journal:
        await looked(journal, [fault()], lambda: rows.rows)
        rows.free.clear()
        for number in range(1, 50):
            journal.take()
            journal.note([fault(number)])
            await asyncio.sleep(0)
        assert len(rows.rows) == 1
        rows.free.set()
        await until(lambda: len(rows.rows) == 50)
