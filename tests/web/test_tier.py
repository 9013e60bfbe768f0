"""The tier of a broker group: on the first page, on the pages of topics and consumer groups, in the topic's form, and in REST."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from remoting.facts.tier_state import TieredQueueState, TierState
from remoting.facts.words import TierCondition
from tests.support.documents import document
from tests.web.fakes import FakeCluster, MemorySnapshots, RecordingQueue, snapshot_document
from webapp import snapshot
from webapp.operations.models import Operation
from webapp.topics.changes import UPDATE


def put(**told: Any) -> None:
    content: dict[str, Any] = snapshot_document()
    given = {"url": "s3://bucket/prefix", "condition": TierCondition.OPEN, **told}
    content["groups"][0]["tier"] = document(TierState(**given))
    orders = next(each for each in content["topics"] if each["name"] == "orders")
    orders["tiered"] = True
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
    queues = viewer.get("/api/v1/topics/orders/queues").json()["items"]
    assert [queue["tier"] and queue["tier"]["local_min_offset"] for queue in queues] == [None, "60", None, None]


def test_the_form_says_what_a_change_does_and_makes_it(operator: Client) -> None:
    put()
    text = shown(operator, "/topics/orders/edit")
    assert "nothing more is uploaded, and what is there stays until its time is over" in text
    fields = {"type": "NORMAL", "queues": "4", "perm": "6", "tier_enable": "false", "tier_reserve_time": ""}
    operator.post("/topics/orders/edit", fields)
    made = Operation.objects.get()
    assert (made.parameters["tier_enable"], made.parameters["tier_reserve_time"]) == (False, -1)
    (step,) = UPDATE.plan(made.parameters)
    assert step["change"] == (
        "change orders: 4 queues, NORMAL, read and write; its messages are kept in the tier no more: what is there stays until "
        "its time is over; the tier keeps them as long as the brokers say"
    )


def test_the_form_shows_what_a_topic_says(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    put()
    attributes = {"message.type": "NORMAL", "tier.enable": "false", "tier.reserve.time": "72"}
    config = {"broker-a": {"writeQueueNums": 4, "perm": 6, "attributes": attributes}}
    monkeypatch.setattr(FakeCluster, "topic_config", lambda self, name: config)
    text = shown(operator, "/topics/orders/edit")
    assert '<option value="false" selected>' in text
    assert 'max="876000" value="72"' in text


@pytest.mark.parametrize("hours", [0, -2, 876_001])
def test_bad_hours_are_refused(operator: Client, hours: int) -> None:
    body = {"name": "new", "tier_reserve_time": hours}
    response = operator.post("/api/v1/topics", body, content_type="application/json")
    assert response.status_code == 400
    assert "tier_reserve_time" in response.json()["errors"]
    assert not RecordingQueue.sent


def test_rest_changes_it_and_leaves_what_is_not_asked_for(operator: Client) -> None:
    operator.patch("/api/v1/topics/orders", {"tier_reserve_time": 72}, content_type="application/json")
    parameters = Operation.objects.get().parameters
    assert parameters["tier_reserve_time"] == 72
    assert "tier_enable" not in parameters
