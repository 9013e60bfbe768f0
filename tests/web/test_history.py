"""The history of elections and faults: its page, its REST list, and what the first page tells of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from remoting.facts.history import HistoryEntry
from remoting.facts.snapshot import Event, Recent
from remoting.facts.words import HistoryKind
from tests.support.documents import document
from tests.web.fakes import MemorySnapshots, snapshot_document
from webapp import snapshot
from webapp.history import store
from webapp.operations.models import Operation

START_MS = 1_790_000_000_123
LONG = "broker-" + "x" * 83


def entry(number: int, kind: HistoryKind = HistoryKind.REPLICA_DOWN, **changes: Any) -> HistoryEntry:
    group = changes.get("group", "broker-a")
    told: dict[str, Any] = {
        "key": f"{kind}/DefaultCluster/{group}/2/{number}",
        "cluster": "DefaultCluster",
        "group": "broker-a",
        "subject": "replica 2 (broker-a-1)",
        "text": f"{group}: replica 2 (broker-a-1) did not answer",
        "cause": "its process was killed by SIGKILL",
        "started_ms": START_MS + number * 60_000,
        "ended_ms": START_MS + number * 60_000 + 1200,
    }
    return HistoryEntry(kind=kind, **told | changes)


def election(number: int, **changes: Any) -> HistoryEntry:
    told = {
        "text": f"broker-a: replica 2 (broker-a-1) was elected master in epoch {number}",
        "previous": "replica 1 (broker-a-2)",
        "elected": "replica 2 (broker-a-1)",
        "epoch": number,
        "cause": "a person asked for it",
    }
    return entry(number, HistoryKind.ELECTION, **told | changes)


@pytest.fixture
def rows(db: None) -> None:
    """Five of a long name, an election, and one that is not over."""
    faults = [entry(number, group=LONG) for number in range(5)]
    store.write([*faults, election(7), entry(9, HistoryKind.OUT_OF_SYNC, ended_ms=None, start_unwatched=True)])


@pytest.mark.usefixtures("rows")
def test_it_is_listed_newest_first_in_pages(viewer: Client) -> None:
    address, found = "/api/v1/history?limit=3", []
    while address:
        answer = viewer.get(address).json()
        found += answer["items"]
        address = answer["next"] and f"/api/v1/history?limit=3&cursor={answer['next']}"
    assert [each["kind"] for each in found] == ["out-of-sync", "election", *["replica-down"] * 5]
    newest, *_, oldest = found
    assert (newest["ended_at"], newest["duration_ms"], newest["start_unwatched"]) == (None, None, True)
    assert oldest["started_at"] == "2026-09-21T14:13:20.123000Z"
    assert (oldest["duration_ms"], oldest["group"]) == ("1200", LONG)


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ("kind=election", 1),
        ("kind=fault", 6),
        ("kind=out-of-sync", 1),
        (f"group={LONG}", 5),
        (f"group={LONG}&kind=election", 0),
        ("cluster=other", 0),
        ("open=true", 1),
    ],
)
def test_it_is_filtered_alike_on_the_page_and_over_rest(viewer: Client, asked: str, count: int) -> None:
    assert len(viewer.get(f"/api/v1/history?{asked}").json()["items"]) == count
    text = viewer.get(f"/history/?{asked}").content.decode()
    assert text.count("did not answer") + text.count("was elected") == count


@pytest.mark.usefixtures("rows")
def test_a_wrong_filter_or_cursor_is_refused(viewer: Client) -> None:
    assert viewer.get("/api/v1/history?kind=nonsense").status_code == 400
    assert viewer.get("/api/v1/history?cursor=bm8").status_code == 400
    page = viewer.get("/history/?kind=nonsense")
    assert page.status_code == 400
    assert b"must be one of" in page.content


@pytest.mark.usefixtures("rows")
def test_the_page_shows_cause_duration_and_the_process_that_is_to_be_started(viewer: Client) -> None:
    text = viewer.get("/history/").content.decode()
    assert "replica 2 (broker-a-1) did not answer" in text
    assert "its process was killed by SIGKILL" in text
    assert "1.2\u202fs" in text
    assert "not over" in text
    assert '<time datetime="2026-09-21T14:13:20.123Z"' in text
    part = viewer.get("/history/?kind=election", headers={"HX-Request": "true", "HX-Target": "list"}).content.decode()
    assert "<html" not in part


def test_pages_turn_and_keep_the_filter(viewer: Client) -> None:
    store.write([entry(number) for number in range(120)])
    text = viewer.get("/history/?kind=fault&page=2").content.decode()
    assert "page 2 of 3" in text
    assert set(re.findall(r'href="\?kind=fault&amp;page=(\d)"', text)) == {"1", "3"}


def test_an_election_tells_who_asked_for_it(viewer: Client, bearer: Callable[..., dict[str, str]]) -> None:
    asked = Operation.objects.create(
        kind="election.elect",
        parameters={"cluster": "DefaultCluster", "group": "broker-a", "broker_id": 2},
        state="succeeded",
        result={"master_id": 2, "master_epoch": 7},
        requested_by_name="ada",
    )
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    store.write([election(number, started_ms=now_ms, ended_ms=now_ms) for number in (6, 7)])
    found = {each["epoch"]: each for each in viewer.get("/api/v1/history").json()["items"]}
    assert (found["7"]["requested_by"], found["7"]["operation_id"]) == ("ada", str(asked.pk))
    assert found["6"]["requested_by"] is None
    assert f'<a href="/operations/{asked.pk}/">ada</a>' in viewer.get("/history/").content.decode()


def test_the_first_page_names_what_was_and_topics_push_nothing_out(viewer: Client) -> None:
    at = (datetime.now(UTC) - timedelta(seconds=90)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    told = snapshot_document()
    lost = "broker-a lost its master for 1.2 s: replica 1 (broker-a-2): its process was killed by SIGKILL"
    told["verdict"] = {
        "status": "healthy",
        "reasons": [],
        "recent": [document(Recent(at=at, text=lost, link="/history/"))],
    }
    told["history"] = [document(election(4)), document(entry(3, ended_ms=None))]
    told["timeline"] = [
        document(Event(at=now, kind="topic", text=f"topic {number:02}-{LONG} was created")) for number in range(50)
    ]
    MemorySnapshots.put(told)
    snapshot.current(fresh=True)
    text = viewer.get("/").content.decode()
    assert re.search(r'<a href="/history/">1.min 3\d.s ago: broker-a lost its master for 1.2 s', text)
    happened = text.partition("What happened")[2].partition("</ol>")[0]
    assert "replica 2 (broker-a-1) was elected master in epoch 4" in happened
    assert "not over" in happened
    assert happened.count("<span>topic ") == 4
    (recent,) = viewer.get("/api/v1/cluster").json()["verdict"]["recent"]
    assert recent == {"at": at, "text": lost, "link": "/history/"}


def test_what_cuts_a_replica_off_and_which_copy_is_missing_stand_in_its_group(viewer: Client) -> None:
    told = snapshot_document()
    wrong = "a controller tells of master epoch 3, but this broker has seen 9"
    told["groups"][0]["replicas"][1] |= {"stale_view": wrong, "cut_off_since_ms": START_MS}
    told["groups"][0]["quorum"] = {
        "kind": "controllers",
        "missing": [{"broker_id": 3, "process": "broker-a-3", "reason": "it is not connected"}],
    }
    MemorySnapshots.put(told)
    snapshot.current(fresh=True)
    text = " ".join(viewer.get("/").content.decode().split())
    assert "replica 2 (broker-a-1) cannot learn its role since" in text
    assert wrong in text
    assert "replica 3 (broker-a-3): it is not connected" in text
    (group,) = viewer.get("/api/v1/groups").json()["items"]
    assert group["replicas"][1]["stale_view"] == wrong


def test_the_dialog_of_an_election_names_the_processes(operator: Client) -> None:
    asked = {"cluster": "DefaultCluster", "group": "broker-a", "broker_id": 2}
    text = operator.get("/elections/new", asked).content.decode()
    assert "Replica 2 (broker-a-1)</strong> would become master" in text
    assert "Replica 1 (broker-a-2) is the master now" in text
