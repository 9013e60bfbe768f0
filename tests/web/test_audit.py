"""The audit trail: nothing changes it, and what changed behind its back shows."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.http import HttpResponse
from django.test import Client, RequestFactory

from remoting.errors import ConnectionLost
from tasks.audit import anchor as anchor_audit
from tests.web.fakes import FakeCluster
from webapp.accounts.permissions import Actor
from webapp.audit import services
from webapp.audit.models import AppendOnlyError, AuditEntry
from webapp.audit.refusals import MOST_A_MINUTE, Refusals

seal = import_module("webapp.audit.migrations.0002_keyed").seal


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


# ---- under a key, and known to the controllers


def chained_by_a_stranger() -> None:
    """Who has the database, but not the key, makes all hashes fit as far as that goes."""
    previous = services.GENESIS
    for entry in AuditEntry.objects.order_by("sequence"):
        entry.previous_hash = previous
        entry.hash = hashlib.sha256(services.content_of(entry)).hexdigest()
        with connection.cursor() as cursor:
            fields = (entry.previous_hash, entry.hash, entry.pk)
            cursor.execute("UPDATE audit_auditentry SET previous_hash = %s, hash = %s WHERE id = %s", fields)
        previous = entry.hash
    with connection.cursor() as cursor:
        cursor.execute("UPDATE audit_audithead SET hash = %s", (previous,))


def cut(last: int) -> None:
    """Who has the database makes the head fit, too."""
    tamper(f"DELETE FROM audit_auditentry WHERE sequence > {last}")
    row_hash = AuditEntry.objects.get(sequence=last).hash
    tamper(f"UPDATE audit_audithead SET sequence = {last}, hash = '{row_hash}'")


def test_nobody_makes_a_chain_without_the_key(five: list[AuditEntry]) -> None:
    tamper("UPDATE audit_auditentry SET target = 'other' WHERE sequence = 4")
    chained_by_a_stranger()
    assert services.verify().broken_at == 1


def test_under_another_key_it_says_that_the_key_may_be_another(five: list[AuditEntry], settings: Any) -> None:
    settings.AUDIT_KEY = "drawn anew, since somebody removed the file"
    services.record(Actor(five[0].actor), "topic.create")
    found = services.verify()
    assert found.broken_at == 1
    assert "or the key of the trail is not the one that it was written with" in found.reason


@pytest.mark.parametrize(("one", "other"), [(2, 3), (1, 5)])
def test_rows_that_changed_places_show(five: list[AuditEntry], one: int, other: int) -> None:
    for old, new in ((one, 99), (other, one), (99, other)):
        tamper(f"UPDATE audit_auditentry SET sequence = {new} WHERE sequence = {old}")
    assert services.verify().broken_at == one


def test_a_tail_that_was_cut_shows_once_it_was_anchored(five: list[AuditEntry], admin: Client) -> None:
    anchor_audit()
    assert services.verify().anchored == 5
    cut(3)
    found = services.verify()
    assert (found.broken_at, "5 were there" in found.reason) == (4, True)
    assert "breaks at row 4" in admin.get("/audit/verify").content.decode()
    with pytest.raises(SystemExit) as ended:
        call_command("audit", "verify")
    assert ended.value.code == 1


def test_rows_that_were_written_anew_with_the_key_are_others_than_the_anchored(
    five: list[AuditEntry], actor: Callable[[str], Actor]
) -> None:
    anchor_audit()
    cut(3)
    for _ in range(4):
        services.record(actor("admin"), "topic.create", target="forged")
    found = services.verify()
    assert (found.broken_at, "controllers know" in found.reason) == (5, True)
    anchor_audit()
    assert FakeCluster.machine.anchors.anchors["audit"].sequence == 7, "it goes on: the break stays in the chain"


def test_who_begins_anew_is_seen(five: list[AuditEntry], capsys: pytest.CaptureFixture[str]) -> None:
    anchor_audit()
    cut(3)
    with pytest.raises(CommandError, match="had come to 5 before"):
        call_command("audit", "anchor")
    call_command("audit", "anchor", "--anew")
    found = services.verify()
    assert (found.intact, found.anchored) == (True, 3)
    assert "begun anew 1 times, last in the place of 5 " in found.anchor_problem


def test_an_anchor_is_kept_when_the_trail_has_grown(five: list[AuditEntry], actor: Callable[[str], Actor]) -> None:
    assert services.verify().anchor_problem.startswith("the controllers have not kept yet")
    anchor_audit()
    before = FakeCluster.machine.anchors
    anchor_audit()
    assert FakeCluster.machine.anchors is before
    services.record(actor("admin"), "topic.create")
    anchor_audit()
    assert FakeCluster.machine.anchors.anchors["audit"].sequence == 6


def test_without_controllers_the_chain_is_looked_at_alone(
    five: list[AuditEntry], admin: Client, caplog: pytest.LogCaptureFixture
) -> None:
    FakeCluster.error = ConnectionLost("no controller answers")
    found = services.verify()
    assert (found.intact, found.anchored) == (True, None)
    assert "were not asked" in found.anchor_problem
    assert "were not asked" in admin.get("/audit/verify").content.decode()
    anchor_audit()
    assert "the audit trail is not anchored" in caplog.text


def before_keys() -> Any:
    """The tables as that version knows them."""
    return MigrationLoader(connection).project_state(("audit", "0001_initial")).apps


def test_an_older_trail_is_sealed_as_it_stands(five: list[AuditEntry]) -> None:
    chained_by_a_stranger()
    seal(before_keys(), None)
    assert services.verify().intact


def test_an_older_trail_that_was_broken_stays_so(five: list[AuditEntry]) -> None:
    chained_by_a_stranger()
    tamper("UPDATE audit_auditentry SET target = 'other' WHERE sequence = 3")
    seal(before_keys(), None)
    assert services.verify().broken_at == 3


# ---- what is refused


def test_refused_reads_and_bad_tokens_leave_rows(viewer: Client, client: Client) -> None:
    for _ in range(5):
        assert viewer.get("/audit/").status_code == 403
        assert client.get("/api/v1/topics", headers={"Authorization": "Bearer lb_none"}).status_code == 401
    rows = AuditEntry.objects.filter(outcome="refused").values_list("action", "target", "detail")
    assert sorted(rows) == [
        ("read", "/audit/", "answered with status 403"),
        ("token.use", "/api/v1/topics", "answered with status 401"),
    ]


def test_refusals_do_not_fill_the_trail() -> None:
    now_s = [0.0]
    refusals = Refusals(lambda _request: HttpResponse(status=403), lambda: now_s[0])
    told = []
    for number in range(200):
        request = RequestFactory().get("/audit", REMOTE_ADDR=f"10.0.0.{number}")
        told.append(refusals._may_tell("read", request))
    assert sum(told) == MOST_A_MINUTE
    now_s[0] = 61
    request = RequestFactory().get("/audit", REMOTE_ADDR="10.0.0.1")
    assert [refusals._may_tell("read", request) for _ in range(3)] == [True, False, False]
