"""Timers at the console: the horizon, the search, the recall, and the life of a message that waited."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

from remoting.errors import ConnectionLost
from remoting.facts.timers import TimerItem, TimerStanding
from remoting.names import TIMER_TOPIC
from tests.web.fakes import FakeCluster, MemorySnapshots, RecordingQueue, snapshot_document
from webapp.audit.models import AuditEntry
from webapp.timers.horizon import LABELS

TIMERS = "/api/v1/timers"
FOUND = "/api/v1/timers/found"
RECALL = "/api/v1/timers/recall"
DUE_MS = 1_790_000_100_000


def timer(number: int, **changes: Any) -> TimerItem:
    whole = TimerItem(
        offset=number,
        place=number,
        standing=TimerStanding.WAITING,
        topic="orders",
        queue_id=1,
        unique_key=f"K{number}",
        due_ms=DUE_MS + number,
        stored_ms=1_790_000_000_000 + number,
        born_ms=1_790_000_000_000,
        size=300,
        keys=f"order-{number}",
    )
    return replace(whole, **changes)


@pytest.fixture
def waiting() -> list[TimerItem]:
    FakeCluster.timers.extend(timer(number) for number in range(5))
    return FakeCluster.timers


def post(client: Client, address: str, **body: Any) -> Any:
    return client.post(address, json.dumps(body), content_type="application/json")


# ---- the horizon


def test_the_page_shows_when_how_much_is_due_and_how_late_it_came(viewer: Client) -> None:
    page = viewer.get("/timers/").content.decode()
    for text in (
        *LABELS,
        "no intact record starts there",
        "(other topics)",
        "85.7 %",
        "?topic=orders",
        "2 parts overtaken",
        "3 in the tier",
        "timers cannot come back from timers/0000472222-1-2: no answer",
    ):
        assert text in page, text
    of_topic = viewer.get("/timers/?topic=orders").content.decode()
    assert "(other topics)" not in of_topic
    assert "Recall all" not in of_topic


def test_the_horizon_is_told_by_rest_with_its_bounds(viewer: Client) -> None:
    document = viewer.get(TIMERS).json()
    horizon = document["horizon"]
    assert (horizon["waiting"], horizon["overdue"], horizon["oldest_late_ms"]) == ("9", "1", "61000")
    assert [each["count"] for each in horizon["columns"][:2]] == ["1", "4"]
    assert (horizon["columns"][1]["from_ms"], horizon["columns"][1]["to_ms"]) == ("1790000100000", "1790000340000")
    assert horizon["columns"][-1]["to_ms"] is None
    assert [(each["name"], each["waiting"], each["next_hour"]) for each in horizon["topics"]] == [
        ("(other topics)", "2", "2"),
        ("orders", "7", "3"),
    ]
    assert [(each["bound_ms"], each["count"]) for each in document["lateness"]] == [
        ("2", "60"),
        ("10", "9"),
        (None, "1"),
    ]
    assert viewer.get(f"{TIMERS}?topic=orders").json()["horizon"]["waiting"] == "7"
    assert viewer.get(f"{TIMERS}?group=nobody").status_code == 404


def test_a_broker_group_without_a_master_is_not_counted_as_nothing(viewer: Client) -> None:
    document = snapshot_document()
    document["groups"][0]["timers"] = None
    MemorySnapshots.put(document)
    told = viewer.get(TIMERS).json()
    assert (told["silent"], told["horizon"]["oldest_late_ms"]) == (["broker-a"], None)
    page = viewer.get("/timers/").content.decode()
    assert "no master tells" in page
    assert "Nothing is known." in page


def test_what_is_set_aside_is_counted_though_only_the_first_are_told(viewer: Client) -> None:
    document = snapshot_document()
    document["groups"][0]["timers"] |= {"aside": 10_000}
    MemorySnapshots.put(document)
    page = viewer.get("/timers/").content.decode()
    assert "1 of 10\u202f000" in page
    assert page.index("Broker groups") < page.index("no intact record starts there"), "not in the way of the rest"


def test_without_timers_the_page_says_so(viewer: Client) -> None:
    document = snapshot_document()
    document["groups"][0]["timers"] |= {"topics": [], "set_aside": [], "late_counts": []}
    MemorySnapshots.put(document)
    page = viewer.get("/timers/").content.decode()
    assert "No message waits for its moment." in page
    assert "None was delivered since" in page


def test_a_topics_page_leads_to_its_timers(viewer: Client) -> None:
    page = viewer.get("/topics/orders/").content.decode()
    assert "/timers/?topic=orders" in page


# ---- the search


def test_timers_are_found_by_topic_and_time(viewer: Client, waiting: list[TimerItem]) -> None:
    document = viewer.get(f"{FOUND}?topic=orders&due_from={DUE_MS + 1}&due_before={DUE_MS + 3}").json()
    assert [each["unique_key"] for each in document["items"]] == ["K1", "K2"]
    assert (document["complete"], document["next"], document["group"]) == (True, None, "broker-a")
    page = viewer.get("/timers/find?topic=orders").content.decode()
    assert "K4" in page
    assert "order-4" in page


def test_pages_go_on_and_admit_that_there_is_more(viewer: Client, waiting: list[TimerItem]) -> None:
    FakeCluster.timer_page = 2
    document = viewer.get(f"{FOUND}?count=2").json()
    assert ([each["unique_key"] for each in document["items"]], document["complete"]) == (["K0", "K1"], False)
    document = viewer.get(f"{FOUND}?count=2&after={document['next']}").json()
    assert [each["unique_key"] for each in document["items"]] == ["K2", "K3"]
    nothing = viewer.get(f"{FOUND}?topic=bills").json()
    assert (nothing["items"], nothing["complete"], nothing["scanned"]) == ([], True, "5")


def test_a_key_finds_every_record_of_its_message(viewer: Client) -> None:
    FakeCluster.timers.extend(
        [timer(3, standing=TimerStanding.RECALLED), timer(5, place=3, unique_key="K3", standing=TimerStanding.MARKER)]
    )
    document = viewer.get(f"{FOUND}?key=K3").json()
    assert [each["standing"] for each in document["items"]] == ["recalled", "marker"]
    assert "a recall" in viewer.get("/timers/find?key=K3").content.decode()


def test_what_waits_in_the_tier_is_found_and_has_no_message_to_look_at(viewer: Client) -> None:
    FakeCluster.timers.append(timer(0, is_in_tier=True))
    (found,) = viewer.get(f"{FOUND}?topic=orders").json()["items"]
    assert found["is_in_tier"]
    page = viewer.get("/timers/find?topic=orders").content.decode()
    assert "in the tier" in page
    assert f"/topics/{TIMER_TOPIC}/messages/" not in page


def test_what_the_tier_does_not_give_is_told(viewer: Client, operator: Client, waiting: list[TimerItem]) -> None:
    FakeCluster.timers_missed = 1234
    document = viewer.get(f"{FOUND}?topic=orders").json()
    assert (document["unread_in_tier"], document["problem"], document["complete"]) == ("1234", "no answer", False)
    assert (
        "Up to 1\u202f234 more may be in the object store" in viewer.get("/timers/find?topic=orders").content.decode()
    )
    assert viewer.get(f"{FOUND}?topic=bills").json()["unread_in_tier"] == "1234", "though nothing is found"
    plan = post(operator, f"{RECALL}?dry_run=true", topic="orders", due_from=str(DUE_MS)).json()["plan"]
    changes = [each["change"] for each in plan]
    assert changes[0] == "recalls at least 5 messages"
    assert changes[-1] == "cannot look at up to 1234 in the object store: no answer"


@pytest.mark.parametrize(
    "query", ["due_from=x", f"due_from={DUE_MS}&due_before={DUE_MS}", "count=101", "topic=a+b", "place=-1"]
)
def test_what_is_asked_wrongly_is_refused_with_its_field(viewer: Client, query: str) -> None:
    answer = viewer.get(f"{FOUND}?{query}")
    assert (answer.status_code, len(answer.json()["errors"])) == (400, 1)
    assert viewer.get(f"/timers/find?{query}").status_code == 400


def test_a_cluster_that_does_not_answer_is_told(viewer: Client) -> None:
    FakeCluster.error = ConnectionLost("nobody answers")
    assert viewer.get(f"{FOUND}?topic=orders").status_code == 503
    assert "nobody answers" in viewer.get("/timers/find?topic=orders").content.decode()


# ---- the recall


def test_a_plan_says_of_each_when_it_is_due(operator: Client) -> None:
    FakeCluster.timers += [timer(1, due_ms=1000), timer(2, due_ms=1 << 46)]
    plan = post(operator, f"{RECALL}?dry_run=true", topic="orders").json()["plan"]
    early, late = (next(each["change"] for each in plan if key in each["change"]) for key in ("K1", "K2"))
    assert early.endswith("due already")
    assert "due in " in late


def test_a_recall_is_planned_with_a_count_and_a_sample(operator: Client, waiting: list[TimerItem]) -> None:
    answer = post(operator, f"{RECALL}?dry_run=true", topic="orders", due_from=str(DUE_MS + 1))
    steps = [each["change"] for each in answer.json()["plan"]]
    assert steps[0] == "recalls 4 messages"
    assert [each.split()[2] for each in steps[1:]] == ["K1", "K2", "K3"]
    assert not RecordingQueue.sent


def test_a_recall_is_an_audited_operation_of_operators(
    operator: Client, viewer: Client, waiting: list[TimerItem]
) -> None:
    assert post(viewer, RECALL, topic="orders").status_code == 403
    answer = post(operator, RECALL, topic="orders", rate=50)
    assert answer.status_code == 202
    document = answer.json()
    assert (document["kind"], document["target"]) == ("timer.recall", "orders")
    assert document["parameters"] == {
        "topic": "orders", "chosen": "orders", "rate": 50, "recalled_by": "operator", "expected": 7
    }  # fmt: skip
    assert RecordingQueue.sent == [("tasks.operations.run", (document["id"],))]
    assert [entry.action for entry in AuditEntry.objects.order_by("pk")] == ["timer.recall"] * 2
    stopped = operator.post(f"/api/v1/operations/{document['id']}/cancel")
    assert stopped.json()["state"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"due_from": "2026-01-01T00:00:00Z"}, 400),
        ({"topic": "orders", "rate": 0}, 400),
        ({"topic": "orders", "group": "nobody"}, 404),
        ({"topic": "orders", "place": "3"}, 400),
        ({"key": "K3", "place": "3"}, 400),
    ],
)
def test_nobody_recalls_everything_or_nonsense(operator: Client, body: dict[str, Any], status: int) -> None:
    answer = post(operator, RECALL, **body)
    assert answer.status_code == status, answer.json()
    assert not RecordingQueue.sent


def test_the_dialog_shows_what_it_would_take_back(operator: Client, viewer: Client, waiting: list[TimerItem]) -> None:
    address = "/timers/recall?group=broker-a&key=K2&place=2"
    assert viewer.get(address).status_code == 403
    page = operator.get(address, headers={"HX-Request": "true"}).content.decode()
    assert "recalls 1 message<" in page
    assert 'name="place" value="2"' in page
    answer = operator.post("/timers/recall", {"group": "broker-a", "key": "K2", "place": "2"})
    assert answer.status_code == 302
    assert "/operations/" in answer["Location"]
    refused = operator.post("/timers/recall", {"topic": "orders", "rate": "x"})
    assert (refused.status_code, "must be a whole number" in refused.content.decode()) == (400, True)


def test_a_message_may_be_recalled_where_it_is_found(
    operator: Client, viewer: Client, waiting: list[TimerItem]
) -> None:
    assert "key=K2&amp;place=2" in operator.get("/timers/find?key=K2").content.decode()
    assert "place=2" not in viewer.get("/timers/find?key=K2").content.decode()


# ---- the life of a message

PROPERTIES = {"UNIQ_KEY": "K3", "TIMER_OUT_MS": str(DUE_MS - 100), "TIMER_DUE_MS": str(DUE_MS), "TIMER_PLACE": "3"}


def life(client: Client, topic: str, queue_id: int, offset: int) -> str:
    page = client.get(f"/topics/{topic}/messages/broker-a/{queue_id}/{offset}").content.decode()
    return page.partition("Its life as a timer")[2].partition("</section>")[0]


def test_a_delivered_message_tells_how_it_waited_and_how_late_it_came(viewer: Client) -> None:
    FakeCluster.timers.extend(
        [
            timer(3, standing=TimerStanding.OVER, leg_ms=1_790_000_060_000),
            timer(4, place=3, unique_key="K3", standing=TimerStanding.OVER, rolls=1),
            timer(9, unique_key="K3"),  # another message with that id
        ]
    )
    offset = FakeCluster.store("orders", 1, b"x", PROPERTIES, at_ms=DUE_MS + 7)
    text = life(viewer, "orders", 1, offset)
    assert text.index("received") < text.index("appended again (1)") < text.index("delivered")
    assert "7\u202fms late" in text
    assert "waiting" not in text
    assert text.count(f"/topics/{TIMER_TOPIC}/messages/broker-a/0/") == 2


def test_a_message_that_waits_and_one_that_was_recalled_say_so(viewer: Client) -> None:
    FakeCluster.add_topic(TIMER_TOPIC, 1)
    waits = {"UNIQ_KEY": "K0", "REAL_TOPIC": "orders"}
    FakeCluster.store(TIMER_TOPIC, 0, b"x", waits)
    FakeCluster.timers.append(timer(0))
    assert "<strong>waiting</strong>" in life(viewer, TIMER_TOPIC, 0, 0)
    FakeCluster.timers[:] = [timer(0, standing=TimerStanding.OVER), timer(0, is_in_tier=True)]
    text = life(viewer, TIMER_TOPIC, 0, 0)
    assert (text.count("received"), "in the tier" in text) == (1, True)
    FakeCluster.timers[:] = [
        timer(0, standing=TimerStanding.RECALLED),
        timer(2, place=0, unique_key="K0", standing=TimerStanding.MARKER, recalled_by="ann"),
    ]
    text = life(viewer, TIMER_TOPIC, 0, 0)
    assert "by ann" in text
    assert "never delivered" in text


def test_what_the_cluster_does_not_tell_is_said(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = FakeCluster.store("orders", 1, b"x", PROPERTIES, at_ms=DUE_MS + 7)

    def silent(*_: object, **__: object) -> None:
        raise ConnectionLost("nobody answers")

    monkeypatch.setattr(FakeCluster, "find_timers", silent)
    text = life(viewer, "orders", 1, offset)
    assert "delivered" in text
    assert "The rest is not known" in text


def test_an_ordinary_message_has_no_such_life(viewer: Client) -> None:
    offset = FakeCluster.store("orders", 1, b"x", {"UNIQ_KEY": "K"})
    assert life(viewer, "orders", 1, offset) == ""
