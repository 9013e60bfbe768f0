"""How long a topic wants its messages in the brokers' files: on its page, in its form, on the first page, and in REST."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from remoting.facts.broker_state import RetentionState
from tests.support.documents import document
from tests.web.fakes import FakeCluster, MemorySnapshots, RecordingQueue, snapshot_document
from webapp import snapshot
from webapp.operations.models import Operation
from webapp.topics.changes import UPDATE

HOUR_MS = 3_600_000
FIELDS = {"type": "NORMAL", "queues": "4", "perm": "6"}


def put(hours: int | None = None, **told: Any) -> None:
    """`hours` as orders says; the first replica tells the rest."""
    content: dict[str, Any] = snapshot_document()
    state = RetentionState(**{"reserved_ms": 72 * HOUR_MS, **told})
    content["groups"][0]["replicas"][0]["retention"] = document(state)
    next(each for each in content["topics"] if each["name"] == "orders")["local_reserved_hours"] = hours
    MemorySnapshots.put(content)
    snapshot.current(fresh=True)


def shown(client: Client, address: str) -> str:
    return " ".join(client.get(address).content.decode().split())


@pytest.mark.django_db
def test_a_topic_that_says_nothing_has_no_tile(viewer: Client) -> None:
    put()
    assert "In files" not in shown(viewer, "/topics/orders/")
    assert "that topics want kept" not in shown(viewer, "/")


@pytest.mark.django_db
@pytest.mark.parametrize(("hours", "words"), [(240, "others for 3 days"), (72, "no effect: all stay for 3 days")])
def test_a_topic_shows_how_long_its_messages_stay(viewer: Client, hours: int, words: str) -> None:
    put(hours)
    text = shown(viewer, "/topics/orders/")
    assert f"for {hours} hours at least" in text
    assert words in text


@pytest.mark.django_db
def test_files_that_stay_and_files_that_went_are_shown(viewer: Client) -> None:
    put(240, kept_files=7, kept_bytes=7 << 30, kept_topic="orders")
    text = shown(viewer, "/topics/orders/")
    assert "7 old files of replica 1 (broker-a-2) of broker-a, 7.0" in text
    assert "stay: this topic has messages in the oldest that it wants kept" in text
    assert "old files of" not in shown(viewer, "/topics/payments/")
    text = shown(viewer, "/").partition('aria-label="Files of broker-a that topics want kept"')[2].partition("</dl>")[0]
    for words in ("replica 1", "7", "7.0", "the oldest for", "orders"):
        assert words in text, words
    assert "disk full" not in text
    put(240, overruled_files=2, overruled_topic="orders", overruled_ms=1_790_000_000_000)
    assert "removed files with messages that this topic wants kept" in shown(viewer, "/topics/orders/")
    text = shown(viewer, "/").partition('aria-label="Files of broker-a that topics want kept"')[2].partition("</dl>")[0]
    for words in ("none", "disk full", "2 went that topics wanted", "orders"):
        assert words in text, words


def test_the_form_says_what_it_means_and_makes_the_change(operator: Client) -> None:
    put()
    text = shown(operator, "/topics/orders/edit")
    assert "Empty: as the brokers say, which is 3 days; less than that has no effect" in text
    operator.post("/topics/orders/edit", {**FIELDS, "local_reserve_time": "240"})
    made = Operation.objects.get()
    assert made.parameters["local_reserve_time"] == 240
    (step,) = UPDATE.plan(made.parameters)
    assert step["change"] == (
        "change orders: 4 queues, NORMAL, read and write; its messages stay in the brokers' files for 240 hours at least"
    )


@pytest.mark.parametrize(("hours", "said"), [(None, None), (240, -1)])
def test_an_empty_field_says_nothing_unless_the_topic_does(
    operator: Client, hours: int | None, said: int | None
) -> None:
    put(hours)
    operator.post("/topics/orders/edit", {**FIELDS, "local_reserve_time": ""})
    made = Operation.objects.get()
    assert made.parameters.get("local_reserve_time") == said
    (step,) = UPDATE.plan(made.parameters)
    assert ("as long as the brokers say" in step["change"]) is (said is not None)


def test_a_new_topic_says_nothing_unless_it_is_asked_to(operator: Client) -> None:
    put()
    operator.post("/topics/new", {**FIELDS, "name": "fresh", "local_reserve_time": ""})
    operator.post("/topics/new", {**FIELDS, "name": "kept", "local_reserve_time": "100"})
    made = {each.target: each.parameters for each in Operation.objects.all()}
    assert "local_reserve_time" not in made["fresh"]
    assert made["kept"]["local_reserve_time"] == 100


def test_the_form_shows_what_the_topic_says(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    put(240)
    attributes = {"message.type": "NORMAL", "local.reserve.time": "240"}
    config = {"broker-a": {"writeQueueNums": 4, "perm": 6, "attributes": attributes}}
    monkeypatch.setattr(FakeCluster, "topic_config", lambda self, name: config)
    assert 'max="876000" value="240"' in shown(operator, "/topics/orders/edit")


@pytest.mark.parametrize("hours", ["soon", "", "0", "-7", "9" * 5000])
def test_a_topic_that_was_taken_over_with_what_is_no_time_can_be_changed(
    operator: Client, monkeypatch: pytest.MonkeyPatch, hours: str
) -> None:
    put()
    attributes = {"message.type": "NORMAL", "local.reserve.time": hours, "tier.reserve.time": hours}
    config = {"broker-a": {"writeQueueNums": 4, "perm": 6, "attributes": attributes}}
    monkeypatch.setattr(FakeCluster, "topic_config", lambda self, name: config)
    assert 'name="local_reserve_time" type="number" min="1" max="876000" value=""' in shown(
        operator, "/topics/orders/edit"
    )
    operator.patch("/api/v1/topics/orders", {"queues": 6}, content_type="application/json")
    assert Operation.objects.get().parameters["queues"] == 6
    assert "local_reserve_time" not in Operation.objects.get().parameters


ODD = {
    "message.type": "QUICK",
    "local.reserve.time": "soon",
    "tier.enable": "yes",
    "tier.archive": "2",
    "tier.export": "csv",
}


def test_what_was_taken_over_and_means_nothing_is_shown_and_stays_as_it_is(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    put()
    config = {"broker-a": {"writeQueueNums": 4, "perm": 6, "attributes": {**ODD, "tier.reserve.time": "9"}}}
    monkeypatch.setattr(FakeCluster, "topic_config", lambda self, name: config)
    text = shown(operator, "/topics/orders/edit")
    for key, value in ODD.items():
        assert f"{key}={value}" in text
    assert "tier.reserve.time=" not in text
    assert "<option selected>QUICK</option>" in text
    operator.patch("/api/v1/topics/orders", {"queues": 6}, content_type="application/json")
    made = Operation.objects.get().parameters
    kept = {"type": "QUICK", "queues": 6, "perm": 6, "group": None, "tier_reserve_time": 9}
    assert made == {"name": "orders", **kept}, "nothing else is set"
    Operation.objects.all().delete()
    operator.post("/topics/orders/edit", {**FIELDS, "type": "QUICK", "local_reserve_time": ""})
    assert Operation.objects.get().parameters["type"] == "QUICK"


def test_nobody_gives_a_topic_a_type_that_there_is_not(operator: Client) -> None:
    put()
    assert "must be one of" in operator.post("/topics/orders/edit", {**FIELDS, "type": "QUICK"}).content.decode()
    assert not Operation.objects.exists()


@pytest.mark.parametrize("hours", [0, -2, 876_001])
def test_bad_hours_are_refused(operator: Client, hours: int) -> None:
    body = {"name": "new", "local_reserve_time": hours}
    response = operator.post("/api/v1/topics", body, content_type="application/json")
    assert response.status_code == 400
    assert "local_reserve_time" in response.json()["errors"]
    assert not RecordingQueue.sent


def test_rest_tells_and_changes_it(operator: Client) -> None:
    put(240, kept_files=7, kept_bytes=7 << 30, kept_topic="orders")
    answer = operator.get("/api/v1/topics/orders")
    assert answer.json()["local_reserved_hours"] == "240"
    told = operator.get("/api/v1/cluster").json()["groups"][0]["replicas"][0]["retention"]
    assert (told["kept_files"], told["kept_topic"], told["overruled_ms"]) == ("7", "orders", None)
    operator.patch("/api/v1/topics/orders", {"local_reserve_time": 480}, content_type="application/json")
    assert Operation.objects.get().parameters["local_reserve_time"] == 480
    put(480)
    assert operator.get("/api/v1/topics/orders")["ETag"] != answer["ETag"], "who changes it on that basis is refused"
