"""What waits inside the brokers, and what holds a consumer group up: on the pages and in REST."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from remoting.facts.snapshot import ConsumedTopic, ConsumerGroup, Topic
from tests.web.fakes import MemorySnapshots, snapshot_document
from webapp import snapshot
from webapp.audit.models import AuditEntry
from webapp.groups.returns import returns
from webapp.topics.purpose import purpose

GROUP = "/api/v1/groups/DefaultCluster/broker-a"


def put(document: dict[str, Any]) -> None:
    MemorySnapshots.put(document)
    snapshot.current(fresh=True)


def put_group(**changes: Any) -> None:
    """The broker group, with some of what waits in it changed."""
    document = snapshot_document()
    group = document["groups"][0]
    for name, change in changes.items():
        group[name] = None if change is None else {**group[name], **change}
    put(document)


def put_consumer_group(**changes: Any) -> None:
    document = snapshot_document()
    document["consumer_groups"][0].update(changes)
    put(document)


def topic(name: str, messages: int | None = 3, kind: str = "NORMAL") -> dict[str, Any]:
    queues = [{"group": "broker-a", "queue_id": 0, "min_offset": 0, "max_offset": messages, "last_store_ms": None}]
    return {
        "name": name,
        "type": kind,
        "system": False,
        "queues": queues,
        "message_count": messages,
        "in_per_s": None,
    }


def waiting_part(client: Client) -> str:
    """What the overview says about what waits; nothing when it does not say anything."""
    text = client.get("/").content.decode()
    label = 'aria-label="What waits in broker-a"'
    return " ".join(text.partition(label)[2].partition("</dl>")[0].split())


# ---- overview


def test_the_overview_is_calm_while_all_is_well(viewer: Client) -> None:
    text = waiting_part(viewer)
    assert "open transactions</a></dt><dd data-flash>2</dd>" in text
    assert "the oldest for 4.0 s" in text
    assert "delayed messages</a></dt><dd data-flash>5</dd>" in text
    assert "the last came 3 ms late" in text
    assert "tone-warn" not in text
    assert "given up" not in text
    assert "index" not in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transactions": {"overdue": True, "oldest_checks": 3}}, "checked 3 of 15 times"),
        ({"delays": {"late": True, "last_late_ms": 9000}}, "the last came 9.0 s late"),
        ({"delays": {"late": True, "last_late_ms": None, "overdue_ms": 70_000}}, "one is due for 1 min 10 s"),
        ({"index": {"lag_bytes": 2 << 30, "behind": True}}, "2.0 GiB"),
    ],
)
def test_the_overview_warns_of_what_is_wrong(viewer: Client, changes: dict[str, Any], words: str) -> None:
    put_group(**changes)
    text = waiting_part(viewer)
    assert words in text
    assert text.count("tone-warn") == 1


def test_the_overview_tells_of_small_index_lag_and_of_what_was_given_up(viewer: Client) -> None:
    put_group(index={"lag_bytes": 2048}, transactions={"given_up": 7, "open": 0, "oldest_age_ms": None})
    text = waiting_part(viewer)
    assert "<dd>2.0 KiB</dd>" in text
    assert "/transactions/?group=broker-a" in text
    assert "the oldest" not in text
    assert "tone-warn" not in text


def test_the_overview_says_nothing_about_what_is_not_known(viewer: Client) -> None:
    put_group(transactions=None, delays=None, index=None)
    assert waiting_part(viewer) == ""
    document = viewer.get(GROUP).json()
    assert (document["transactions"], document["delays"], document["index"]) == (None, None, None)


def test_a_snapshot_of_an_older_collector_is_shown_without(viewer: Client) -> None:
    document = snapshot_document()
    for name in ("transactions", "delays", "index"):
        del document["groups"][0][name]
    consumer_group = document["consumer_groups"][0]
    del consumer_group["forbidden"], consumer_group["members"][0]["version"]
    for queue in consumer_group["topics"][0]["queues"]:
        for name in ("pending_reset", "coming_back", "held_since_ms", "blocked_until_ms", "waiting_groups"):
            del queue[name]
    del document["client_times"]
    put(document)
    assert viewer.get(GROUP).json()["transactions"] is None
    assert viewer.get("/").status_code == viewer.get("/groups/billing/").status_code == 200
    assert viewer.get("/api/v1/consumer-groups/billing").json()["name"] == "billing"


def test_rest_tells_what_waits(viewer: Client) -> None:
    document = viewer.get(GROUP).json()
    assert (document["transactions"]["open"], document["transactions"]["overdue"]) == ("2", False)
    assert (document["delays"]["waiting"], document["delays"]["last_late_ms"]) == ("5", "3")
    assert document["delays"]["levels"][0] == {"level": "1", "delay_ms": "1000", "waiting": "0", "late_ms": None}
    assert document["index"] == {"lag_bytes": "0", "behind": False}
    assert viewer.get("/api/v1/cluster").json()["groups"][0]["delays"] == document["delays"]


# ---- consumer groups


def test_what_a_group_holds_and_what_is_blocked_is_shown_at_its_queue(viewer: Client) -> None:
    calm = viewer.get("/groups/billing/").content.decode()
    assert "delivered, not yet acknowledged" in calm
    assert "Blocked until" not in calm
    assert "Message group that waits" not in calm
    topics = snapshot_document()["consumer_groups"][0]["topics"]
    topics[0]["queues"][3]["held_since_ms"] = 1_763_600_000_000
    topics[0]["queues"][3]["blocked_until_ms"] = 1_763_600_060_000
    waiting = {"message_group": "customer 7", "until_ms": 1_763_600_090_000, "waiting": 12}
    topics[0]["queues"][2]["waiting_groups"] = [waiting]
    put_consumer_group(topics=topics)
    text = viewer.get("/groups/billing/").content.decode()
    assert "1 queue blocked" in text
    assert text.count("2025-11-20T") == 4, "since when, of the group and at its queue, and until when"
    assert "Message group that waits" in text
    assert "customer 7" in text
    queues = viewer.get("/api/v1/consumer-groups/billing").json()["topics"][0]["queues"]
    assert (queues[3]["held_since_ms"], queues[3]["blocked_until_ms"]) == ("1763600000000", "1763600060000")
    (told,) = queues[2]["waiting_groups"]
    assert (told["message_group"], told["until_ms"]) == ("customer 7", "1763600090000")


def test_what_waits_at_a_gate_is_shown_and_an_operator_may_give_up_on_who_is_gone(
    viewer: Client, operator: Client
) -> None:
    assert "holds new messages back" not in viewer.get("/groups/billing/").content.decode()
    topics = snapshot_document()["consumer_groups"][0]["topics"]
    gate = {"version": 3, "since_ms": 1_763_600_000_000, "sources": ["broker-y", "broker-z"], "silent": ["broker-z"]}
    gate["queue_ids"] = [2, 3]
    topics[0]["gates"] = [{"group": "broker-a", "gate": gate}]
    put_consumer_group(topics=topics)
    text = viewer.get("/groups/billing/").content.decode()
    assert "holds new messages back since" in text
    assert "broker-y, broker-z" in text
    assert text.count("does not answer") == 1
    assert "2 queues blocked" in text
    assert "Stop waiting" not in text
    name = topics[0]["topic"]
    address = f"/topics/{name}/open-gate?group=broker-a&amp;source=broker-z"
    assert address in operator.get("/groups/billing/").content.decode()
    form = operator.get(address.replace("&amp;", "&")).content.decode()
    assert 'value="broker-z"' in form
    (told,) = viewer.get("/api/v1/consumer-groups/billing").json()["topics"][0]["gates"]
    assert told["gate"]["queue_ids"] == [2, 3]
    assert (told["group"], told["gate"]["since_ms"], told["gate"]["silent"]) == (
        "broker-a",
        "1763600000000",
        ["broker-z"],
    )
    body = {"group": "broker-a", "source": "broker-z"}
    assert viewer.post(f"/api/v1/topics/{name}/open-gate", body, content_type="application/json").status_code == 403
    made = operator.post(f"/api/v1/topics/{name}/open-gate", body, content_type="application/json")
    assert made.status_code == 202, made.json()
    assert (made.json()["kind"], made.json()["target"]) == ("topic.open-gate", f"{name}/broker-a/broker-z")
    assert [entry.action for entry in AuditEntry.objects.filter(action="topic.open-gate")]
    unknown = {**body, "group": "broker-x"}
    assert (
        operator.post(f"/api/v1/topics/{name}/open-gate", unknown, content_type="application/json").status_code == 404
    )


def test_what_comes_back_to_a_group_is_told_as_a_sum(viewer: Client) -> None:
    assert coming_back(viewer) == "–", "it is not known how far the group is there"
    returned = {"topic": "%RETRY%billing", "lag": 3, "lag_at_least": False, "in_flight": 0, "queues": []}
    put_consumer_group(topics=[*snapshot_document()["consumer_groups"][0]["topics"], returned])
    assert coming_back(viewer) == "3"
    put_consumer_group(topics=[{**returned, "lag_at_least": True}])
    assert coming_back(viewer) == "at least 3"


def coming_back(viewer: Client) -> str:
    text = viewer.get("/groups/billing/").content.decode()
    found = re.search(r'data-key="coming-back"><h2>Coming back</h2><p class="number" data-flash>(.*?)</p>', text)
    assert found is not None
    return re.sub("<[^>]*>", "", found[1])


def test_what_clients_measured_is_on_the_pages_of_topic_and_group(viewer: Client) -> None:
    for page in ("/topics/orders/", "/groups/billing/"):
        assert "As clients see it" not in viewer.get(page).content.decode()
    document = snapshot_document()
    document["client_times"] = [
        {"metric": metric, "topic": "orders", "group": group, "language": "JAVA", "status": "success"}
        | {"count": 1200, "half_ms": 4.5, "most_ms": None, "limit_ms": 500}
        for metric, group in (("send", ""), ("process", "billing"), ("process", "audit_log"))
    ]
    put(document)
    topic = viewer.get("/topics/orders/").content.decode()
    assert topic.count("more than 500\u202fms") == 3
    assert "sends" in topic
    group = viewer.get("/groups/billing/").content.decode()
    assert group.count("more than 500\u202fms") == 1
    assert "consumption" in group
    told = viewer.get("/api/v1/consumer-groups/billing").json()["client_times"]
    assert [(each["metric"], each["count"], each["half_ms"], each["most_ms"]) for each in told] == [
        ("process", "1200", 4.5, None)
    ]
    assert [each["metric"] for each in viewer.get("/api/v1/topics/orders").json()["client_times"]] == [
        "send",
        "process",
        "process",
    ]


def test_a_reset_that_waits_is_shown_at_its_queue(viewer: Client) -> None:
    calm = viewer.get("/groups/billing/").content.decode()
    assert "waits to be told" not in calm
    assert "Goes on at" not in calm
    topics = snapshot_document()["consumer_groups"][0]["topics"]
    topics[0]["queues"][2]["pending_reset"] = 0
    put_consumer_group(topics=topics)
    text = viewer.get("/groups/billing/").content.decode()
    assert text.count("waits to be told") == 2, "at the topic, and at one of its four queues"
    queues = viewer.get("/api/v1/consumer-groups/billing").json()["topics"][0]["queues"]
    assert [queue["pending_reset"] for queue in queues] == [None, None, "0", None]


def test_forbidden_topics_are_shown(viewer: Client) -> None:
    assert "may not read" not in viewer.get("/groups/billing/").content.decode()
    put_consumer_group(forbidden=["gone", "orders"])
    text = viewer.get("/groups/billing/").content.decode()
    assert 'may not read <span class="mono">gone</span>, <a class="mono" href="/topics/orders/">orders</a>' in text
    assert text.count("may not read") == 2, "and at the topic"
    assert viewer.get("/api/v1/consumer-groups/billing").json()["forbidden"] == ["gone", "orders"]


def test_members_are_shown_with_their_version(viewer: Client) -> None:
    assert "<td>PYTHON</td><td>5.3.3</td>" in viewer.get("/groups/billing/").content.decode()
    assert viewer.get("/api/v1/consumer-groups/billing").json()["members"][0]["version"] == "5.3.3"


def test_retries_and_dead_letters_are_shown_and_can_be_browsed(viewer: Client) -> None:
    document = snapshot_document()
    document["topics"] += [topic("%DLQ%billing", 2), topic("%RETRY%billing+orders"), topic("%DLQ%audit_log")]
    put(document)
    text = viewer.get("/groups/billing/").content.decode()
    for name in ("%25RETRY%25billing", "%25RETRY%25billing+orders", "%25DLQ%25billing"):
        assert f'href="/topics/{name}/messages"' in text
    assert "audit_log" not in text
    assert viewer.get("/api/v1/consumer-groups/billing").json()["returns"] == [
        {"topic": "%RETRY%billing", "kind": "retry", "message_count": "3", "lag": None, "lag_at_least": False},
        {"topic": "%RETRY%billing+orders", "kind": "retry", "message_count": "3", "lag": None, "lag_at_least": False},
        {"topic": "%DLQ%billing", "kind": "dead-letter", "message_count": "2", "lag": None, "lag_at_least": False},
    ]
    listed = viewer.get("/api/v1/consumer-groups").json()["items"]
    assert [each["topic"] for each in listed[0]["returns"]] == ["%DLQ%audit_log"]


@pytest.mark.parametrize(
    ("name", "consumed", "belongs"),
    [
        ("%RETRY%a", False, True),
        ("%RETRY%a+t", False, True),
        ("%DLQ%a", False, True),
        ("%RETRY%a_t", False, False),
        ("%RETRY%a_t", True, True),
        ("%RETRY%ab", False, False),
        ("%RETRY%ab+t", False, False),
        ("%DLQ%ab", False, False),
        ("a", True, False),
    ],
)
def test_what_belongs_to_a_group(name: str, consumed: bool, belongs: bool) -> None:
    group = ConsumerGroup(name="a", topics=(ConsumedTopic(topic=name, lag=1),) if consumed else ())
    assert [each["topic"] for each in returns(group, {name: Topic(name=name)})] == ([name] if belongs else [])


def test_lag_of_retries_is_the_groups_and_dead_letters_have_none() -> None:
    consumed = (ConsumedTopic(topic="%RETRY%a", lag=4), ConsumedTopic(topic="%DLQ%a", lag=2))
    group = ConsumerGroup(name="a", topics=consumed)
    found = returns(group, {name: Topic(name=name) for name in ("%DLQ%a", "%RETRY%a")})
    assert [(each["topic"], each["lag"], each["message_count"]) for each in found] == [
        ("%RETRY%a", 4, None),
        ("%DLQ%a", None, None),
    ]


# ---- topics


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("orders", "DELAY", "names when it is to be delivered"),
        ("orders", "TRANSACTION", "until its producer commits it"),
        ("orders", "FIFO", "one after the other"),
        ("SCHEDULE_TOPIC_XXXX", "NORMAL", "a queue for each delay level"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "NORMAL", "until their producer commits them or rolls them back"),
        ("TRANS_CHECK_MAX_TIME_TOPIC", "NORMAL", "did not decide after all checks"),
        ("%RETRY%billing", "NORMAL", "that the consumer group billing gave back"),
        ("%RETRY%billing+orders", "NORMAL", "Messages of orders that the consumer group billing gave back"),
        ("%DLQ%billing", "NORMAL", "that the consumer group billing did not handle"),
    ],
)
def test_a_topics_page_says_what_is_special(viewer: Client, name: str, kind: str, words: str) -> None:
    put(snapshot_document(topics=[topic(name, kind=kind)]))
    address = name.replace("%", "%25")
    assert words in viewer.get(f"/topics/{address}/").content.decode()
    assert words in viewer.get(f"/api/v1/topics/{address}").json()["purpose"]


def test_an_ordinary_topic_needs_no_words(viewer: Client) -> None:
    assert purpose(Topic(name="orders")) is None
    assert 'class="hint purpose"' not in viewer.get("/topics/orders/").content.decode()
    assert viewer.get("/api/v1/topics/orders").json()["purpose"] is None


def test_the_topic_of_delayed_messages_shows_the_levels_in_use(viewer: Client) -> None:
    put(snapshot_document(topics=[topic("SCHEDULE_TOPIC_XXXX"), topic("orders")]))
    text = viewer.get("/topics/SCHEDULE_TOPIC_XXXX/").content.decode()
    assert 'data-key="level-3"' in text
    assert 'data-key="level-1"' not in text
    assert "Delay levels" not in viewer.get("/topics/orders/").content.decode()


def test_the_topic_of_half_messages_shows_the_transactions(viewer: Client) -> None:
    put(snapshot_document(topics=[topic("RMQ_SYS_TRANS_HALF_TOPIC"), topic("orders")]))
    text = viewer.get("/topics/RMQ_SYS_TRANS_HALF_TOPIC/").content.decode()
    assert "0 of 15 times" in text
    assert "not decided" not in text
    assert "rolled back</dt>" not in viewer.get("/topics/orders/").content.decode()
