"""The audit trail: nothing changes it, and what changed behind its back shows."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client

from webapp.accounts.permissions import Actor
from webapp.audit import services
from webapp.audit.models import AppendOnlyError, AuditEntry


@pytest.fixture
def five(actor: Callable[[str], Actor]) -> list[AuditEntry]:
    return [
        services.record(actor("admin"), "topic.create", target=f"t{number}", parameters={"n": number})
        for number in range(5)
    ]


def tamper(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def test_rows_are_written_once(five: list[AuditEntry]) -> None:
    entry = AuditEntry.objects.get(sequence=3)
    entry.target = "other"
    for forbidden in (
        entry.save,
        entry.delete,
        AuditEntry.objects.all().delete,
        lambda: AuditEntry.objects.update(target="x"),
        lambda: AuditEntry.objects.filter(sequence=1).update(target="x"),
        lambda: AuditEntry.objects.bulk_create([entry]),
        lambda: AuditEntry.objects.bulk_update([entry], ["target"]),
        lambda: AuditEntry.objects.get_or_create(sequence=9),
        lambda: AuditEntry.objects.update_or_create(sequence=1),
    ):
        with pytest.raises(AppendOnlyError):
            forbidden()
    assert services.verify().intact


def test_the_chain_is_whole(five: list[AuditEntry]) -> None:
    found = services.verify()
    assert (found.entries, found.intact) == (5, True)
    assert [entry.previous_hash for entry in five[1:]] == [entry.hash for entry in five[:-1]]


@pytest.mark.parametrize(
    ("sql", "broken_at", "reason"),
    [
        ("UPDATE audit_auditentry SET target = 'other' WHERE sequence = 2", 2, "changed"),
        ("UPDATE audit_auditentry SET actor_name = 'eve' WHERE sequence = 5", 5, "changed"),
        ("DELETE FROM audit_auditentry WHERE sequence = 3", 3, "missing"),
        ("DELETE FROM audit_auditentry WHERE sequence = 1", 1, "missing"),
        ("DELETE FROM audit_auditentry WHERE sequence > 3", 4, "missing at the end"),
        ("UPDATE audit_auditentry SET hash = previous_hash WHERE sequence = 4", 4, "changed"),
    ],
)
def test_tampering_shows(five: list[AuditEntry], admin: Client, sql: str, broken_at: int, reason: str) -> None:
    tamper(sql)
    found = services.verify()
    assert found.broken_at == broken_at
    assert reason in found.reason
    assert admin.get("/api/v1/audit/verify").json()["intact"] is False
    assert f"breaks at row {broken_at}" in admin.get("/audit/verify").content.decode()


@pytest.mark.django_db(transaction=True)
def test_parallel_writers_do_not_fork_the_chain(actor: Callable[[str], Actor]) -> None:
    who = actor("admin")

    def write() -> None:
        for number in range(5):
            services.record(who, "topic.create", target=str(number))
        connection.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = services.verify()
    assert (found.entries, found.intact) == (20, True)


def test_it_is_searched_and_paged(five: list[AuditEntry], admin: Client) -> None:
    page = admin.get("/api/v1/audit?limit=2").json()
    assert [item["sequence"] for item in page["items"]] == ["5", "4"]
    page = admin.get(f"/api/v1/audit?limit=2&cursor={page['next']}").json()
    assert [item["sequence"] for item in page["items"]] == ["3", "2"]
    assert len(admin.get("/api/v1/audit?q=t3").json()["items"]) == 1
    assert admin.get("/api/v1/audit?actor=nobody").json()["items"] == []
    assert "t3" in admin.get("/audit/?q=t3").content.decode()


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_there_is_no_way_to_change_it_by_rest(admin: Client, method: str) -> None:
    assert getattr(admin, method)("/api/v1/audit").status_code == 405
