"""Topics: the rules of their names and sizes, the forms, deletion by typing the name, concurrent changes."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tests.web.fakes import FakeCluster, MemorySnapshots, RecordingQueue, snapshot_document
from webapp import snapshot
from webapp.operations.models import Operation


def create(client: Client, **body: Any) -> Any:
    return client.post("/api/v1/topics", body, content_type="application/json")


@pytest.mark.parametrize(
    ("body", "field", "rule"),
    [
        ({"name": ""}, "name", "may not be blank"),
        ({"name": "a b"}, "name", "letters, digits"),
        ({"name": "naïve"}, "name", "letters, digits"),
        ({"name": "x" * 128}, "name", "1 to 127 characters"),
        ({"name": "rmq_sys_mine"}, "name", "reserved"),
        ({"name": "RMQ_SYS_TRACE_TOPIC"}, "name", "reserved"),
        ({"name": "TBW102"}, "name", "reserved"),
        ({"name": "%RETRY%g"}, "name", "the cluster makes those"),
        ({"name": "%DLQ%g"}, "name", "the cluster makes those"),
        ({"name": "ok", "queues": 0}, "queues", "from 1 to 1024"),
        ({"name": "ok", "queues": 1025}, "queues", "from 1 to 1024"),
        ({"name": "ok", "queues": "many"}, "queues", "valid integer"),
        ({"name": "ok", "type": "LITE"}, "type", "not a valid choice"),
        ({"name": "ok", "perm": 7}, "perm", "one of 2, 4, 6"),
        ({"name": "ok", "group": "broker-z"}, "group", "broker-a"),
    ],
)
def test_bad_names_and_sizes_are_refused_with_the_rule(
    operator: Client, body: dict[str, Any], field: str, rule: str
) -> None:
    response = create(operator, **body)
    assert response.status_code == 400
    assert rule in " ".join(response.json()["errors"][field])
    assert not RecordingQueue.sent


def test_the_form_shows_every_broken_rule_at_its_field(operator: Client) -> None:
    response = operator.post("/topics/new", {"name": "a b", "queues": "0", "type": "NORMAL", "perm": "6"})
    text = response.content.decode()
    assert response.status_code == 400
    assert "letters, digits" in text
    assert "from 1 to 1024" in text
    assert 'value="a b"' in text


@pytest.mark.parametrize("name", ["x" * 127, "a", "A-b_c|d%e", "0", "RMQ_SYS_mine", "tbw102", "%retry%g"])
def test_names_at_the_bounds_are_taken(operator: Client, name: str) -> None:
    assert create(operator, name=name).status_code == 202


def test_a_topic_that_exists_is_a_conflict(operator: Client) -> None:
    response = create(operator, name="orders")
    assert (response.status_code, response.json()["code"]) == (409, "topic-exists")


def test_without_a_snapshot_creation_goes_on(operator: Client) -> None:
    MemorySnapshots.put(None)
    snapshot.current(fresh=True)
    assert create(operator, name="orders").status_code == 202


def test_a_change_keeps_what_is_not_asked_for(operator: Client) -> None:
    response = operator.patch("/api/v1/topics/orders", {"queues": 16}, content_type="application/json")
    assert response.status_code == 202
    assert Operation.objects.get().parameters == {
        "name": "orders",
        "type": "NORMAL",
        "queues": 16,
        "perm": 6,
        "group": None,
    }


def test_a_change_of_something_that_changed_meanwhile_is_refused(operator: Client) -> None:
    tag = operator.get("/api/v1/topics/orders")["ETag"]
    more = snapshot_document()
    more["topics"][0]["queues"].append(
        {"group": "broker-a", "queue_id": 4, "min_offset": 0, "max_offset": 0, "last_store_ms": None}
    )
    MemorySnapshots.put(more)
    snapshot.current(fresh=True)
    headers = {"If-Match": tag}
    response = operator.patch("/api/v1/topics/orders", {"queues": 8}, content_type="application/json", headers=headers)
    assert (response.status_code, response.json()["code"]) == (412, "state-moved")
    assert operator.delete("/api/v1/topics/orders", headers=headers).status_code == 412
    fresh = operator.get("/api/v1/topics/orders")["ETag"]
    assert operator.delete("/api/v1/topics/orders", headers={"If-Match": fresh}).status_code == 202


def test_new_messages_do_not_change_the_etag(operator: Client) -> None:
    before = operator.get("/api/v1/topics/orders")["ETag"]
    more = snapshot_document()
    more["topics"][0]["queues"][0]["max_offset"] = 99
    MemorySnapshots.put(more)
    snapshot.current(fresh=True)
    assert operator.get("/api/v1/topics/orders")["ETag"] == before


def test_deleting_by_form_needs_the_name_typed(operator: Client) -> None:
    response = operator.post("/topics/orders/delete", {"confirmation": "order"})
    assert response.status_code == 400
    assert b"must be the topic&#x27;s name" in response.content
    assert not RecordingQueue.sent
    operator.post("/topics/orders/delete", {"confirmation": "orders"})
    assert Operation.objects.get().parameters == {"name": "orders"}


def test_the_deletion_says_what_it_touches(operator: Client) -> None:
    text = operator.get("/topics/orders/delete").content.decode()
    assert "600 messages" in text
    assert "billing" in text


@pytest.mark.parametrize("method", ["patch", "delete"])
def test_system_topics_are_left_alone(admin: Client, method: str) -> None:
    send = getattr(admin, method)
    response = send("/api/v1/topics/rmq_sys_logboom_metadata", {"queues": 2}, content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (400, "system-topic")


def test_the_list_filters_sorts_and_pages(viewer: Client) -> None:
    plain = {"type": "NORMAL", "system": False, "queues": [], "in_per_s": None}
    topics = [{"name": f"t{index:03}", "message_count": index, **plain} for index in range(120)]
    topics.append({"name": "unknown", "message_count": None, **plain})
    MemorySnapshots.put(snapshot_document(topics=topics))
    snapshot.current(fresh=True)
    text = viewer.get("/topics/?sort=-message_count").content.decode()
    assert text.index("t119") < text.index("t071")
    assert "t069" not in text
    assert "page 1 of 3" in text
    last = viewer.get("/topics/?sort=-message_count&page=99").content.decode()
    assert "page 3 of 3" in last
    assert last.index("t000") < last.index(">unknown<"), "what is not known comes last"
    assert "t005" in viewer.get("/topics/?q=005").content.decode()
    assert "No topic has this in its name" in viewer.get("/topics/?q=nope").content.decode()
    for strange in ("?sort=__class__", "?page=-1", "?page=x", "?sort=", "?page=99999999999999999999"):
        assert viewer.get(f"/topics/{strange}").status_code == 200


def put_topics_of_groups(groups: int) -> None:
    """A topic `zebra` beside what so many consumer groups brought with them, and a topic of the system's."""
    plain = {"type": "NORMAL", "queues": [], "in_per_s": None, "message_count": 0}
    names = [
        *(f"%RETRY%group-{number:03}" for number in range(groups)),
        *(f"%RETRY%group-{number:03}+zebra" for number in range(groups)),
        *(f"%DLQ%group-{number:03}" for number in range(groups)),
        *("%RETRYnot", "zebra"),
    ]
    topics = [{"name": name, "system": False, **plain} for name in sorted(names)]
    topics.append({"name": "rmq_sys_logboom_pop", "system": True, **plain})
    MemorySnapshots.put(snapshot_document(topics=topics))
    snapshot.current(fresh=True)


def names_on(client: Client, query: str = "") -> list[str]:
    return re.findall(r'<tr data-key="([^"]+)"', client.get(f"/topics/{query}").content.decode())


def test_topics_come_before_what_consumer_groups_brought_with_them(viewer: Client) -> None:
    put_topics_of_groups(60)
    assert names_on(viewer) == ["%RETRYnot", "zebra"]
    assert names_on(viewer, "?system=on") == ["%RETRYnot", "zebra", "rmq_sys_logboom_pop"]
    assert names_on(viewer, "?sort=-name") == ["zebra", "%RETRYnot"]
    text = viewer.get("/topics/").content.decode()
    for kind, title, count in (("retry", "Retries", 120), ("dead-letter", "Dead letters", 60)):
        assert re.search(rf'href="\?kind={kind}"[^>]*>{title} <span[^>]*>{count}<', text), kind
    assert len(names_on(viewer, "?kind=retry&page=2")) == 50
    assert names_on(viewer, "?kind=dead-letter&q=007") == ["%DLQ%group-007"]
    assert names_on(viewer, "?q=zebra")[:2] == ["zebra", "%RETRY%group-000+zebra"], "a search looks through all"
    assert names_on(viewer, "?kind=nonsense") == ["%RETRYnot", "zebra"]
    landing = viewer.get("/").content.decode()
    assert re.search(r'data-key="topics">\s*<h2>Topics</h2>\s*<p class="number">2</p>', landing)
    assert "180 for retries and dead letters" in landing


def test_rest_filters_topics_by_kind_and_lists_all_but_the_system_s_as_ever(viewer: Client) -> None:
    put_topics_of_groups(2)

    def kinds(query: str) -> Counter[str]:
        return Counter(each["kind"] for each in viewer.get(f"/api/v1/topics{query}").json()["items"])

    assert kinds("") == {"ordinary": 2, "retry": 4, "dead-letter": 2}
    assert kinds("?system=true") == {"ordinary": 2, "retry": 4, "dead-letter": 2, "system": 1}
    assert kinds("?kind=ordinary&system=true") == {"ordinary": 2}
    assert kinds("?kind=system") == {"system": 1}
    assert kinds("?kind=retry&q=zebra") == {"retry": 2}
    refused = viewer.get("/api/v1/topics?kind=returns")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["kind"])


def test_the_palette_finds_topics_before_what_consumer_groups_brought_with_them(viewer: Client) -> None:
    put_topics_of_groups(60)
    text = viewer.get("/palette?q=zebra", headers={"HX-Request": "true"}).content.decode()
    assert re.findall(r'class="name">([^<]+)<', text)[0] == "zebra"


def test_names_of_others_are_escaped(viewer: Client) -> None:
    hostile = '<script>alert("x")</script>'
    MemorySnapshots.put(
        snapshot_document(timeline=[{"at": "2026-01-01T00:00:00.000Z", "kind": "topic", "text": hostile}])
    )
    snapshot.current(fresh=True)
    assert hostile not in viewer.get("/").content.decode()


def test_editing_starts_from_what_the_brokers_have(operator: Client) -> None:
    text = operator.get("/topics/orders/edit").content.decode()
    assert 'name="queues" type="number" min="1" max="1024" value="4"' in text
    FakeCluster.topics.clear()
    assert operator.get("/topics/orders/edit").status_code == 404


# ---- right after a creation or a deletion, before the collector has looked


def finish(name: str, state: str = "succeeded") -> None:
    """The worker is done with what was asked for last about a topic or group."""
    operation = Operation.objects.filter(target=name).latest("created_at")
    operation.state, operation.finished_at = state, timezone.now()
    operation.save()


LONG = "settlements-of-the-second-warehouse-in-the-north-by-day-and-currency_" + "x" * 21


@pytest.mark.parametrize(
    ("collection", "name"), [("topics", LONG), ("consumer-groups", LONG)], ids=["topic", "consumer group"]
)
def test_what_is_being_created_is_not_unknown(operator: Client, collection: str, name: str) -> None:
    address = f"/api/v1/{collection}"
    assert operator.delete(f"{address}/{name}").status_code == 404
    made = operator.post(address, {"name": name}, content_type="application/json")
    assert made.status_code == 202
    early = operator.delete(f"{address}/{name}")
    assert (early.status_code, early.json()["code"]) == (409, "creation-under-way")
    assert early.json()["detail"] == (
        f"The creation of {name} is under way; try again when its operation {made.json()['id']} is over."
    )
    finish(name)
    assert operator.delete(f"{address}/{name}").status_code == 202, "it is there, though no snapshot shows it"
    assert operator.delete(f"{address}/{name}").json()["code"] == "deletion-under-way"
    finish(name)
    assert operator.delete(f"{address}/{name}").status_code == 404


def test_a_creation_that_failed_left_nothing_to_delete(operator: Client) -> None:
    create(operator, name=LONG)
    finish(LONG, "failed")
    assert operator.delete(f"/api/v1/topics/{LONG}").status_code == 404


def test_a_topic_of_long_ago_that_no_snapshot_shows_is_not_found(operator: Client) -> None:
    create(operator, name=LONG)
    finish(LONG)
    Operation.objects.update(finished_at=timezone.now() - timedelta(minutes=1))
    assert operator.delete(f"/api/v1/topics/{LONG}").status_code == 404


def test_a_topic_can_be_changed_and_sent_to_right_after_its_creation(operator: Client) -> None:
    create(operator, name=LONG, type="FIFO")
    address = f"/api/v1/topics/{LONG}"
    assert operator.post(f"{address}/messages", {"body": "x"}, content_type="application/json").status_code == 409
    finish(LONG)
    FakeCluster.add_topic(LONG)
    FakeCluster.types[LONG] = "FIFO"
    assert operator.patch(address, {"queues": 16}, content_type="application/json").status_code == 202
    missing = operator.post(f"{address}/messages", {"body": "x"}, content_type="application/json")
    assert "message_group" in missing.json()["errors"]
    body = {"body": "x", "message_group": "g"}
    assert operator.post(f"{address}/messages", body, content_type="application/json").status_code == 200


def test_a_topic_can_be_created_again_right_after_its_deletion(operator: Client) -> None:
    assert operator.delete("/api/v1/topics/orders").status_code == 202
    again = create(operator, name="orders")
    assert (again.status_code, again.json()["code"]) == (409, "deletion-under-way")
    finish("orders")
    assert create(operator, name="orders").status_code == 202


@pytest.mark.parametrize(("pages", "permitted"), [("topics", "/topics/new"), ("groups", "/groups/new")])
def test_the_page_that_deletes_says_what_is_under_way(operator: Client, pages: str, permitted: str) -> None:
    page = f"/{pages}/{LONG}/delete"
    assert operator.get(page).status_code == 404
    operator.post(permitted, {"name": LONG, "type": "NORMAL", "queues": "8", "perm": "6", "retry_max_times": "16"})
    early = operator.get(page)
    assert early.status_code == 409
    assert "is under way" in early.content.decode()
    finish(LONG)
    assert operator.get(page).status_code == 200
    assert operator.post(page, {"confirmation": LONG}).status_code == 302


def test_a_topic_says_who_owns_its_message_groups_and_who_has_not_prepared_yet(operator: Client) -> None:
    more = snapshot_document()
    assert "Order <small>" not in operator.get("/topics/orders/").content.decode()
    more["topics"][0]["placement"] = {
        "topic": "orders",
        "revision": 7,
        "active": {"version": 3, "shares": [{"broker_name": "broker-a", "queues": 8}]},
        "proposed": {
            "version": 4,
            "shares": [{"broker_name": "broker-a", "queues": 8}, {"broker_name": "broker-b", "queues": 4}],
        },
        "voters": ["broker-a", "broker-b"],
        "prepared": ["broker-a"],
    }
    MemorySnapshots.put(more)
    snapshot.current(fresh=True)
    text = " ".join(operator.get("/topics/orders/").content.decode().split())
    assert "version 3" in text
    assert re.search(r"version 4 waits for</dt><dd class=\"mono\">broker-b<", text)
    assert "broker-a: 8, broker-b: 4" in text
    told = operator.get("/api/v1/topics/orders").json()["placement"]
    assert (told["active"]["version"], told["prepared"]) == ("3", ["broker-a"])
