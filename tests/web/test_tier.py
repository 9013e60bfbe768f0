"""The tier of a broker group: on the first page, on the pages of topics and consumer groups, in the topic's form, and in REST."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from remoting.facts.tier_state import TieredQueueState, TierState
from remoting.facts.words import TierCondition
from remoting.tier.names import group_directory
from tests.support.documents import document
from tests.web.fakes import FakeCluster, MemorySnapshots, RecordingQueue, snapshot_document
from webapp import snapshot
from webapp.operations.models import Operation
from webapp.topics.changes import UPDATE


def put(*, is_exported: bool = False, **told: Any) -> None:
    content: dict[str, Any] = snapshot_document()
    given = {"url": "s3://bucket/prefix", "condition": TierCondition.OPEN, **told}
    content["groups"][0]["tier"] = document(TierState(**given))
    orders = next(each for each in content["topics"] if each["name"] == "orders")
    orders["tiered"] = True
    orders["tier_exported"] = is_exported
    where = TieredQueueState(local_min_offset=60, end_offset=90, bytes=5000, missing=2)
    orders["queues"][1]["tier"] = document(where)
    content["consumer_groups"][0]["topics"][0]["queues"][1]["cold"] = 50
    MemorySnapshots.put(content)
    snapshot.current(fresh=True)


def shown(client: Client, address: str) -> str:
    return " ".join(client.get(address).content.decode().split())


@pytest.mark.django_db
def test_the_first_page_shows_the_tier_of_each_group(viewer: Client) -> None:
    put(messages=12_000, bytes=5 << 20, segments=7, waiting_messages=3, oldest_waiting_ms=4000, missing_messages=9)
    text = shown(viewer, "/").partition('aria-label="Tier of broker-a"')[2].partition("</section>")[0]
    for words in ("open", "s3://bucket/prefix", "5.0", "7 segments", "for ever", "not uploaded yet", "gap"):
        assert words in text, words
    assert "Nothing is uploaded" not in text


@pytest.mark.django_db
def test_trouble_is_shown_with_what_to_do(viewer: Client) -> None:
    put(trouble="there is no such bucket: create it", trouble_since_ms=1_790_000_000_000, gone_log_bytes=4096)
    text = shown(viewer, "/")
    for words in ("in trouble", "there is no such bucket: create it", "Sends go on", "went before the tier had them"):
        assert words in text, words
    put(condition=TierCondition.FENCED, trouble="a later master has opened the tier")
    text = shown(viewer, "/")
    assert "another one&#x27;s" in text or "another one's" in text
    assert "tried again by itself" not in text


@pytest.mark.django_db
def test_without_a_tier_pages_say_nothing_of_one(viewer: Client, operator: Client) -> None:
    assert "Tier of" not in shown(viewer, "/")
    assert "In files from" not in shown(viewer, "/topics/orders/")
    assert "from the tier" not in shown(viewer, "/groups/billing/")
    assert "tier_enable" not in shown(operator, "/topics/new")


@pytest.mark.django_db
def test_a_topic_shows_what_of_it_is_where(viewer: Client) -> None:
    put(reserved_time_ms=86_400_000)
    text = shown(viewer, "/topics/orders/")
    for words in (
        "In files from",
        "In the tier to",
        "kept",
        "2 messages went before they were uploaded",
        "50 from the",
    ):
        assert words in text, words


@pytest.mark.django_db
def test_a_group_that_reads_cold_is_told_so(viewer: Client) -> None:
    put()
    text = shown(viewer, "/groups/billing/")
    assert "reads from the tier" in text
    assert "50 of the messages that the group has still to receive are not in the brokers' files any more" in text


def test_rest_tells_it(viewer: Client) -> None:
    put(messages=12, trouble="it is full")
    tier = viewer.get("/api/v1/cluster").json()["groups"][0]["tier"]
    assert (tier["messages"], tier["condition"], tier["trouble"]) == ("12", "open", "it is full")
    topic = viewer.get("/api/v1/topics/orders").json()
    assert (topic["tiered"], topic["tier_reserved_hours"], topic["tier_bytes"]) == (True, None, "5000")
    assert (topic["tier_archived"], topic["tier_exported"]) == (None, False)
    queues = viewer.get("/api/v1/topics/orders/queues").json()["items"]
    assert [queue["tier"] and queue["tier"]["local_min_offset"] for queue in queues] == [None, "60", None, None]


def test_the_form_says_what_a_change_does_and_makes_it(operator: Client) -> None:
    put()
    text = shown(operator, "/topics/orders/edit")
    assert "nothing more is uploaded, and what is there stays until its time is over" in text
    fields = {"type": "NORMAL", "queues": "4", "perm": "6", "tier_enable": "false", "tier_reserve_time": ""}
    operator.post("/topics/orders/edit", {**fields, "tier_archive": "", "tier_export": "none"})
    made = Operation.objects.get()
    assert (made.parameters["tier_enable"], made.parameters["tier_reserve_time"]) == (False, -1)
    assert "tier_archive" not in made.parameters, "the brokers say"
    assert made.parameters["tier_export"] == "none"
    (step,) = UPDATE.plan(made.parameters)
    assert step["change"] == (
        "change orders: 4 queues, NORMAL, read and write; its messages are kept in the tier no more: what is there stays until "
        "its time is over; the tier keeps them as long as the brokers say; nothing more is written as Parquet"
    )


def test_compression_and_export_are_chosen_in_the_form(operator: Client) -> None:
    put(archive=True)
    text = shown(operator, "/topics/orders/edit")
    assert '<option value="">as the brokers say</option>' in text
    assert "The brokers say: compressed." in text
    fields = {"type": "NORMAL", "queues": "4", "perm": "6", "tier_enable": "true", "tier_reserve_time": ""}
    operator.post("/topics/orders/edit", {**fields, "tier_archive": "false", "tier_export": "parquet"})
    made = Operation.objects.get()
    assert (made.parameters["tier_archive"], made.parameters["tier_export"]) == (False, "parquet")
    (step,) = UPDATE.plan(made.parameters)
    assert "merged there from now on is not compressed; workers write it as Parquet, too" in step["change"]


def test_the_form_shows_what_a_topic_says(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    put()
    tier = {"tier.enable": "false", "tier.reserve.time": "72", "tier.archive": "true", "tier.export": "parquet"}
    attributes = {"message.type": "NORMAL", **tier}
    config = {"broker-a": {"writeQueueNums": 4, "perm": 6, "attributes": attributes}}
    monkeypatch.setattr(FakeCluster, "topic_config", lambda self, name: config)
    text = shown(operator, "/topics/orders/edit")
    assert '<option value="false" selected>' in text
    assert 'max="876000" value="72"' in text
    assert '<option value="true" selected>compressed</option>' in text
    assert '<option value="parquet" selected>' in text
    assert "as the brokers say</option>" not in text


@pytest.mark.parametrize("hours", [0, -2, 876_001])
def test_bad_hours_are_refused(operator: Client, hours: int) -> None:
    body = {"name": "new", "tier_reserve_time": hours}
    response = operator.post("/api/v1/topics", body, content_type="application/json")
    assert response.status_code == 400
    assert "tier_reserve_time" in response.json()["errors"]
    assert not RecordingQueue.sent


def test_a_topic_page_says_where_its_exported_files_are(viewer: Client, operator: Client) -> None:
    put(archive=True)
    assert "compressed when merged" in shown(viewer, "/topics/orders/")
    assert "Export" not in shown(viewer, "/topics/orders/").partition("Queues")[0]
    put(is_exported=True)
    text = shown(viewer, "/topics/orders/")
    assert f"s3://bucket/prefix/{group_directory('', 'DefaultCluster', 'broker-a')}/export/orders/" in text
    assert "compressed" not in text
    assert "Export now" not in text, "a viewer may not"
    assert "Export now" in shown(operator, "/topics/orders/")


def test_what_is_due_is_exported_when_somebody_asks(operator: Client, viewer: Client) -> None:
    put(is_exported=True)
    assert "Export now" in shown(operator, "/topics/orders/export")
    operator.post("/topics/orders/export")
    made = Operation.objects.get()
    assert (made.kind, made.target, made.parameters) == ("tier.export", "orders", {"name": "orders"})
    assert RecordingQueue.sent == [("tasks.operations.run", (str(made.pk),))]
    answer = operator.post("/api/v1/topics/orders/export")
    assert (answer.status_code, answer.json()["kind"]) == (202, "tier.export")
    assert viewer.post("/api/v1/topics/orders/export").status_code == 403
    assert operator.get("/topics/nope/export").status_code == 404
    assert operator.post("/api/v1/topics/nope/export").status_code == 404


@pytest.mark.parametrize(("field", "value"), [("tier_export", "csv"), ("tier_archive", "zstd")])
def test_what_cannot_be_meant_is_refused(operator: Client, field: str, value: str) -> None:
    response = operator.patch("/api/v1/topics/orders", {field: value}, content_type="application/json")
    assert response.status_code == 400
    assert field in response.json()["errors"]


def test_rest_changes_it_and_leaves_what_is_not_asked_for(operator: Client) -> None:
    change = {"tier_reserve_time": 72, "tier_archive": True, "tier_export": "parquet"}
    operator.patch("/api/v1/topics/orders", change, content_type="application/json")
    parameters = Operation.objects.get().parameters
    assert {name: parameters[name] for name in change} == change
    assert "tier_enable" not in parameters
