"""Test messages follow the type of their topic: what each type asks for, refuses, and what is said of what became of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from remoting import codes
from remoting.errors import RequestError, RequestTimeout
from tests.web.fakes import FakeCluster, MemorySnapshots, snapshot_document
from webapp import snapshot
from webapp.messages.types import FIELDS
from webapp.operations.models import Operation

LONG = "settlements-of-the-second-warehouse-in-the-north-by-day-and-currency_" + "x" * 21
TYPES = {"plain": "NORMAL", LONG: "FIFO", "later": "DELAY", "paid": "TRANSACTION", "any": "MIXED", "urgent": "PRIORITY"}


@pytest.fixture(autouse=True)
def topics(console: None) -> None:
    """A topic of each type, one with a name of 90 characters."""
    assert len(LONG) == 90
    document = snapshot_document()
    for name, kind in TYPES.items():
        document["topics"].append({**document["topics"][0], "name": name, "type": kind})
        FakeCluster.add_topic(name)
        FakeCluster.types[name] = kind
    MemorySnapshots.put(document)
    snapshot.current(fresh=True)


def send(client: Client, topic: str, **body: Any) -> Any:
    return client.post(f"/api/v1/topics/{topic}/messages", {"body": "x", **body}, content_type="application/json")


def forget_snapshot() -> None:
    MemorySnapshots.put(None)
    snapshot.current(fresh=True)


@pytest.mark.parametrize(
    ("topic", "given", "field", "rule"),
    [
        (LONG, {}, "message_group", "the topic is FIFO, so each message names its message group"),
        (LONG, {"message_group": ""}, "message_group", "is missing"),
        (LONG, {"message_group": "g" * 64}, "message_group", "0 to 63 characters"),
        (LONG, {"message_group": "ü" * 32}, "message_group", "fewer than 64 bytes"),
        (
            LONG,
            {"message_group": "g", "delay_level": 1},
            "delay_level",
            "it is for DELAY topics, and this topic is FIFO",
        ),
        ("later", {}, "delay_level", "the topic is DELAY, so each message names the delay level"),
        ("later", {"delay_level": 0}, "delay_level", "must be from 1 to 3"),
        ("later", {"delay_level": 4}, "delay_level", "must be from 1 to 3"),
        ("later", {"delay_level": 1, "message_group": "g"}, "message_group", "it is for FIFO topics"),
        ("later", {"deliver_at": "soon"}, "deliver_at", "must be RFC 3339"),
        ("later", {"delay_level": 1, "deliver_at": "2026-01-31T12:00:00Z"}, "deliver_at", "either this or delay_level"),
        ("plain", {"deliver_at": "2026-01-31T12:00:00Z"}, "deliver_at", "it is for DELAY topics"),
        ("paid", {}, "decision", "the topic is TRANSACTION, so say what becomes of the message"),
        ("paid", {"decision": "commit", "message_group": "g"}, "message_group", "it is for FIFO topics"),
        ("plain", {"message_group": "g"}, "message_group", "it is for FIFO topics, and this topic is NORMAL"),
        ("plain", {"delay_level": 2}, "delay_level", "it is for DELAY topics"),
        ("plain", {"decision": "commit"}, "decision", "it is for TRANSACTION topics"),
        ("any", {"message_group": "g", "delay_level": 2}, "delay_level", "either this or message_group"),
        ("plain", {"properties": {"DELAY": "3"}}, "properties", "DELAY is reserved"),
        ("plain", {"properties": {"__SHARDINGKEY": "g"}}, "properties", "__SHARDINGKEY is reserved"),
    ],
)
def test_what_does_not_fit_the_type_is_refused_with_what_is_missing(
    operator: Client, topic: str, given: dict[str, Any], field: str, rule: str
) -> None:
    response = send(operator, topic, **given)
    assert response.status_code == 400
    assert rule in " ".join(response.json()["errors"][field])
    assert not FakeCluster.sent


def test_a_message_group_goes_to_the_client(operator: Client) -> None:
    response = send(operator, LONG, message_group="order 7")
    assert response.json()["result"]["message_group"] == "order 7"
    assert FakeCluster.sent == [{"properties": {}, "message_group": "order 7", "transaction": False}]


def test_a_delayed_message_says_that_it_waits_and_no_place_in_its_topic(operator: Client) -> None:
    result = send(operator, "later", delay_level=3, properties={"a": "b"}).json()["result"]
    assert FakeCluster.sent[0]["properties"] == {"a": "b", "DELAY": "3"}
    assert (result["queue_id"], result["queue_offset"], result["unique_id"]) == (None, None, "0AB1")


@pytest.mark.parametrize("given", ["2026-01-31T12:00:00.250Z", "2026-01-31T13:00:00.250+01:00", "1769860800250"])
def test_a_message_with_a_delivery_time_waits_and_can_be_recalled(operator: Client, given: str) -> None:
    FakeCluster.recall_handle = "djEgbGF0ZXI="
    result = send(operator, "later", deliver_at=given).json()["result"]
    assert FakeCluster.sent[0]["properties"] == {"TIMER_DELIVER_MS": "1769860800250"}
    assert (result["deliver_at"], result["recall_handle"]) == ("2026-01-31T12:00:00.250Z", "djEgbGF0ZXI=")
    assert (result["queue_id"], result["queue_offset"]) == (None, None)


def test_a_delivery_time_that_has_passed_stores_the_message_in_its_topic(operator: Client) -> None:
    result = send(operator, "later", deliver_at="2026-01-31T12:00:00Z").json()["result"]
    assert "recall_handle" not in result
    assert result["queue_offset"] is not None


@pytest.mark.parametrize(("decision", "is_commit"), [("commit", True), ("rollback", False)])
def test_a_transaction_is_begun_and_decided(operator: Client, decision: str, is_commit: bool) -> None:
    result = send(operator, "paid", decision=decision).json()["result"]
    assert FakeCluster.sent[0]["transaction"]
    assert FakeCluster.decided == [("0AB1", is_commit)]
    assert (result["decision"], result["queue_offset"]) == (decision, None)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestTimeout("no answer within 10 s"), 503),
        (RequestError(codes.SYSTEM_ERROR, "no half message starts at 5"), 502),
    ],
)
def test_a_decision_that_fails_says_that_the_message_is_stored(operator: Client, error: Exception, status: int) -> None:
    FakeCluster.undecided = error
    response = send(operator, "paid", decision="commit")
    assert response.status_code == status
    assert "is stored as a half message, and its commit was not confirmed" in response.json()["detail"]
    assert "half message" in Operation.objects.get().error


@pytest.mark.parametrize("given", [{}, {"message_group": "g"}, {"delay_level": 1}, {"decision": "commit"}])
def test_a_topic_of_mixed_messages_takes_each_kind(operator: Client, given: dict[str, Any]) -> None:
    assert send(operator, "any", **given).status_code == 200


def test_without_a_snapshot_the_brokers_say_the_type(operator: Client) -> None:
    forget_snapshot()
    assert "message_group" in send(operator, LONG).json()["errors"]
    assert send(operator, "plain").status_code == 200
    assert send(operator, "RMQ_SYS_TRANS_HALF_TOPIC").json()["code"] == "system-topic"
    assert send(operator, "nobody").json()["code"] == "topic-not-found"


@pytest.mark.parametrize(
    ("topic", "shown"),
    [
        ("plain", set()),
        (LONG, {"message_group"}),
        ("later", {"delay_level", "deliver_at"}),
        ("paid", {"decision"}),
        ("any", {"message_group", "delay_level", "deliver_at", "decision"}),
    ],
)
def test_the_form_asks_for_what_the_type_needs(operator: Client, topic: str, shown: set[str]) -> None:
    text = operator.get(f"/topics/{topic}/").content.decode()
    assert {field for field in FIELDS if f'name="{field}"' in text} == shown


def test_the_form_keeps_what_was_chosen_and_says_what_is_missing(operator: Client) -> None:
    asking = {"HX-Request": "true"}
    text = operator.post(f"/topics/{LONG}/send", {"body": "hello"}, headers=asking).content.decode()
    assert "is missing: the topic is FIFO" in text
    text = operator.post("/topics/later/send", {"body": "", "delay_level": "3"}, headers=asking).content.decode()
    assert '<option value="3" selected>' in text
    text = operator.post("/topics/later/send", {"body": "x", "delay_level": "3"}, headers=asking).content.decode()
    assert "It waits in broker-a for its delay level 3." in text
    assert "/topics/later/messages?key=0AB1" in text.replace("messages/?", "messages?")
    text = operator.post("/topics/paid/send", {"body": "x", "decision": "rollback"}, headers=asking).content.decode()
    assert "nobody receives it" in text
    assert "Look" not in text
