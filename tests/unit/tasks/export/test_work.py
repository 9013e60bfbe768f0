"""Exports as operations: who asks for them, what they say, and what becomes of errors."""

from __future__ import annotations

from typing import Any

import pytest

from remoting.facts.cluster_view import ClusterView, GroupView
from remoting.tier.contents import Queue
from remoting.tier.names import manifest_name
from remoting.tier.object_stores import StorePlace
from tasks import due_exports
from tasks.changes import Change, ChangeFailed
from tasks.export import work
from tasks.tier.objects import Objects
from tests.support.tier_files import CLUSTER, GROUP, TierFiles
from tests.unit.tasks.tier.messages import BEGIN_MS, untidy
from webapp.lifecycle import State
from webapp.operations import progress
from webapp.operations.models import Operation

HOUR_MS = 3_600_000
VARIABLES = {"LOGBOOM_TIER_URL": "memory:///"}


class Client:
    """A cluster of one broker group, whose topics say what is to be exported."""

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {
            "orders": {"attributes": {"tier.export": "parquet"}},
            "others": {"attributes": {"tier.export": "none"}},
            "plain": {},
        }

    def topic_configs(self) -> dict[str, dict[str, Any]]:
        return {GROUP: self.topics}

    def cluster_view(self) -> ClusterView:
        return ClusterView(groups=(GroupView(cluster_name=CLUSTER, broker_name=GROUP),))


@pytest.fixture
def tier() -> TierFiles:
    files = TierFiles()
    for topic in ("orders", "others", "plain"):
        found = [untidy(topic, 0, offset, BEGIN_MS + offset * HOUR_MS) for offset in range(40)]
        files.commit(Queue(topic, 0), 0, found)
    return files


@pytest.fixture
def open_objects(tier: TierFiles, monkeypatch: pytest.MonkeyPatch) -> work.OpenObjects:
    monkeypatch.setenv("LOGBOOM_TIER_URL", "memory:///")

    def opened(place: StorePlace, cluster: str, broker_name: str) -> Objects:
        assert (place.url, cluster, broker_name) == ("memory:///", CLUSTER, GROUP)
        return Objects(tier.store, tier.directory)

    return opened


def export(client: Any, open_objects: work.OpenObjects, told: list[Any], topic: str = "orders", **more: Any) -> Any:
    change = Change(
        client, {"name": topic}, lambda *node: told.append(node), lambda *progress: told.append(progress), **more
    )
    return work.export(change, VARIABLES, open_objects)


def test_an_export_counts_and_says_how_far_it_is(tier: TierFiles, open_objects: work.OpenObjects) -> None:
    told: list[Any] = []
    result = export(Client(), open_objects, told)
    assert {name: result[name] for name in ("files", "messages", "removed", "more")} == {
        "files": 2,
        "messages": 40,
        "removed": 0,
        "more": False,
    }
    assert told == [
        (0, None, "0 files with 0 messages written"),
        (1, None, "1 file with 24 messages written"),
        (GROUP, "CONFIRMED", ""),
    ]
    assert len(tier.names("export")) == 2
    assert result["sentence"].startswith("2 files with 40 messages written (0.0 MiB)")
    assert export(Client(), open_objects, [])["sentence"].startswith("Nothing is due now")


def test_an_export_ends_in_time_and_is_gone_on_with(tier: TierFiles, open_objects: work.OpenObjects) -> None:
    now = iter([0.0, 1.0, work.WORK_FOR_S, 100.0, 101.0])
    assert export(Client(), open_objects, [], now_s=lambda: next(now))["more"]
    assert len(tier.names("export")) == 1
    assert not export(Client(), open_objects, [], now_s=lambda: next(now))["more"]
    assert len(tier.names("export")) == 2


def test_a_topic_that_does_not_ask_is_only_tidied_up(tier: TierFiles, open_objects: work.OpenObjects) -> None:
    assert export(Client(), open_objects, [], topic="others")["files"] == 0
    assert tier.names("export") == []


def test_an_export_says_why_it_failed(tier: TierFiles, open_objects: work.OpenObjects) -> None:
    tier.put(manifest_name(3, 0), b"nothing of the kind")
    told: list[Any] = []
    with pytest.raises(ChangeFailed, match=r"orders was not exported everywhere: broker-a: .*(no manifest|cut off)"):
        export(Client(), open_objects, told)
    assert told[-1][:2] == (GROUP, "REFUSED")
    with pytest.raises(ChangeFailed, match="LOGBOOM_TIER_URL"):
        work.export(Change(Client(), {"name": "orders"}, print, print), {})  # type: ignore[arg-type]


@pytest.mark.django_db
def test_what_is_due_is_asked_for_once(tier: TierFiles, open_objects: work.OpenObjects) -> None:
    client: Any = Client()
    (operation,) = due_exports.make_due(client, open_objects)
    assert (operation.kind, operation.target, operation.parameters) == ("tier.export", "orders", {"name": "orders"})
    assert due_exports.make_due(client, open_objects) == []
    progress.start(operation.pk)
    export(client, open_objects, [])
    progress.succeed(operation.pk, {})
    assert due_exports.make_due(client, open_objects) == []
    tier.write(["dropped", "orders"])
    (operation,) = due_exports.make_due(client, open_objects)
    progress.start(operation.pk)
    progress.fail(operation.pk, "export-failed", "the bucket is full")
    assert due_exports.make_due(client, open_objects) == [], "not at once again"
    Operation.objects.update(created_at=operation.created_at - due_exports.AGAIN_AFTER)
    assert [each.state for each in due_exports.make_due(client, open_objects)] == [State.QUEUED]


@pytest.mark.django_db
def test_a_tier_that_cannot_be_read_is_seen_as_an_operation(tier: TierFiles, open_objects: work.OpenObjects) -> None:
    tier.put(manifest_name(3, 0), b"nothing of the kind")
    assert [each.target for each in due_exports.make_due(Client(), open_objects)] == ["orders"]  # type: ignore[arg-type]
