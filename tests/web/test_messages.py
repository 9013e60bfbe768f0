"""Messages: browsing by offset and time, truthful bodies, sending a test message."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any
from urllib.parse import parse_qsl

import lz4.frame
import pytest
import zstandard
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from remoting import codes
from remoting.client.blocking import QueueOffsets
from remoting.errors import ConnectionLost, RequestError, RequestTimeout
from remoting.record.layout import SYS_COMPRESSED
from tests.web.fakes import FakeCluster
from webapp.audit.models import AuditEntry
from webapp.errors import NotFound
from webapp.messages import browse as browse_rules
from webapp.messages.bodies import open_body
from webapp.operations.models import Operation

START_MS = 1_790_000_000_000


@pytest.fixture
def stored(console: None) -> None:
    """A hundred messages in queue 1, one a second; the first ten are gone."""
    for number in range(100):
        FakeCluster.store(
            "orders", 1, json.dumps({"n": number}).encode(), {"KEYS": f"k{number}"}, START_MS + number * 1000
        )
    FakeCluster.min_offsets["orders", 1] = 10
    del FakeCluster.queues["orders", 1][:10]


def browse(client: Client, **asked: Any) -> Any:
    return client.get("/api/v1/topics/orders/messages", {"group": "broker-a", "queue_id": 1, **asked})


@pytest.mark.usefixtures("stored")
def test_browsing_by_offset_goes_on_to_the_end(viewer: Client) -> None:
    seen, offset = [], "50"
    while True:
        document = browse(viewer, offset=offset, count=20).json()
        seen += [item["offset"] for item in document["items"]]
        offset = document["next_offset"]
        if document["complete"]:
            break
    assert seen == [str(number) for number in range(50, 100)]
    assert (document["min_offset"], document["max_offset"]) == ("10", "100")


@pytest.mark.usefixtures("stored")
def test_an_offset_that_retention_took_goes_to_the_oldest(viewer: Client) -> None:
    document = browse(viewer, offset=0, count=2).json()
    assert [item["offset"] for item in document["items"]] == ["10", "11"]


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("time", [str(START_MS + 60_000), "2026-09-21T14:14:20Z", "2026-09-21T16:14:20+02:00"])
def test_browsing_by_time(viewer: Client, time: str) -> None:
    document = browse(viewer, time=time, count=1).json()
    assert document["items"][0]["offset"] == "60"
    assert document["items"][0]["stored_at"].startswith("2026-09-21T14:14:20")


@pytest.mark.parametrize("time", ["yesterday", "\u00b9", "9" * 15, "-1"])
def test_a_time_that_is_none_is_refused(viewer: Client, time: str) -> None:
    response = browse(viewer, time=time)
    assert response.status_code == 400
    assert "RFC 3339" in response.json()["errors"]["time"][0]


@pytest.mark.usefixtures("stored")
def test_messages_are_found_by_key_and_by_id_the_newest_first(viewer: Client) -> None:
    for number, queue_id in ((1, 0), (2, 2)):
        properties = {"KEYS": "k50 also", "UNIQ_KEY": f"ID{number}"}
        FakeCluster.store("orders", queue_id, b"again", properties, START_MS + 200_000 + number)

    def found(**asked: Any) -> list[tuple[int, str]]:
        response = viewer.get("/api/v1/topics/orders/messages/by-key", asked)
        assert response.status_code == 200
        return [(item["queue_id"], item["offset"]) for item in response.json()["items"]]

    assert found(key="k50") == [(2, "0"), (0, "0"), (1, "50")]
    assert found(key="k50", count=1) == [(2, "0")]
    assert found(key=" ID1 ") == [(0, "0")]
    assert found(key="k5") == []
    page = viewer.get("/topics/orders/messages", {"key": "k50"})
    assert page.status_code == 200
    assert b"3 found, the newest first" in page.content
    assert b"No message of this topic" in viewer.get("/topics/orders/messages", {"key": "none"}).content


@pytest.mark.parametrize(
    ("asked", "field"), [({}, "key"), ({"key": "k" * 1001}, "key"), ({"key": "k", "count": 65}, "count")]
)
def test_questions_for_a_key_have_rules(viewer: Client, asked: dict[str, Any], field: str) -> None:
    response = viewer.get("/api/v1/topics/orders/messages/by-key", asked)
    assert response.status_code == 400
    assert field in response.json()["errors"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"offset": -1}, "offset"),
        ({"offset": "x"}, "offset"),
        ({"offset": 2**63}, "offset"),
        ({"count": 0}, "count"),
        ({"count": 65}, "count"),
        ({"time": "yesterday"}, "time"),
        ({"time": "2026-01-01T00:00:00Z", "offset": 3}, "offset"),
        ({"queue_id": -1}, "queue_id"),
        ({"group": ""}, "group"),
    ],
)
def test_questions_have_rules(viewer: Client, asked: dict[str, Any], field: str) -> None:
    response = browse(viewer, **asked)
    assert response.status_code == 400
    assert field in response.json()["errors"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ConnectionLost("cannot connect to 127.0.0.1:9876"), 503, "cluster-unavailable"),
        (RequestTimeout("no answer within 3000 ms"), 503, "cluster-unavailable"),
        (RequestError(codes.SYSTEM_BUSY, "too busy"), 503, "cluster-unavailable"),
        (RequestError(codes.NO_PERMISSION, "the topic is write only"), 503, "cluster-unavailable"),
        (RequestError(codes.SYSTEM_ERROR, "disk full"), 502, "cluster-refused"),
    ],
)
def test_what_the_cluster_says_is_passed_on(viewer: Client, error: Exception, status: int, code: str) -> None:
    FakeCluster.error = error
    response = browse(viewer)
    if isinstance(error, RequestError) and not error.retriable:
        status, code = 502, "cluster-refused"
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert str(error) in response.json()["detail"]
    page = viewer.get("/topics/orders/messages")
    assert page.status_code == status
    assert b"Messages of" in page.content


@pytest.mark.usefixtures("stored")
def test_the_page_starts_with_the_newest_of_a_queue_that_has_some(viewer: Client) -> None:
    text = viewer.get("/topics/orders/messages").content.decode()
    assert "broker-a · queue 1" in text
    assert "k99" in text
    assert "k80" in text
    assert "k79" not in text


@pytest.mark.usefixtures("stored")
def test_one_message_has_its_own_page(operator: Client) -> None:
    text = operator.get("/topics/orders/messages/broker-a/1/42").content.decode()
    assert "&quot;n&quot;: 42" in text
    assert "7b 22 6e 22" in text
    response = operator.get("/api/v1/topics/orders/messages/broker-a/1/42")
    document = response.json()
    assert base64.b64decode(document["body_base64"]) == b'{"n": 42}'
    assert document["crc_ok"] is True
    assert operator.get("/api/v1/topics/orders/messages/broker-a/1/100").json()["code"] == "message-not-found"
    assert operator.get("/topics/orders/messages/broker-a/1/9999999999999999999").status_code == 404


def test_a_body_that_was_changed_on_disk_says_so(viewer: Client) -> None:
    FakeCluster.store("orders", 0, b"true", {})
    record = FakeCluster.queues["orders", 0][0]
    FakeCluster.queues["orders", 0][0] = record._replace(body=b"liar")
    assert viewer.get("/api/v1/topics/orders/messages/broker-a/0/0").json()["crc_ok"] is False
    assert b"CRC differs" in viewer.get("/topics/orders/messages/broker-a/0/0").content


# ---- bodies


@pytest.mark.parametrize(
    ("pack", "kind"),
    [(zlib.compress, 3), (zlib.compress, 0), (lz4.frame.compress, 1), (zstandard.compress, 2)],
)
def test_compressed_bodies_are_unpacked_up_to_the_limit(pack: Any, kind: int) -> None:
    bomb = pack(b"a" * 50_000_000)
    body = open_body(bomb, SYS_COMPRESSED | kind << 8, limit=1000)
    assert (body.content, body.truncated, body.problem) == (b"a" * 1000, True, "")
    small = open_body(pack(b"hello"), SYS_COMPRESSED | kind << 8)
    assert (small.text(), small.truncated) == ("hello", False)


@given(st.binary(max_size=200), st.integers(0, 7))
def test_no_body_breaks_the_page(stored: bytes, kind: int) -> None:
    for flag in (0, SYS_COMPRESSED | kind << 8):
        body = open_body(stored, flag, limit=64)
        assert len(body.content) <= 64
        body.text(), body.hex(), body.json(), body.preview(), body.encoding


def test_text_is_not_called_binary_because_of_the_cut() -> None:
    body = open_body("grün".encode() * 20_000, 0, limit=65_535)
    assert (body.encoding, body.truncated) == ("utf-8", True)
    assert open_body(b"\xff\xfe", 0).encoding == "binary"
    assert open_body(b'{"a": 1}', 0).json() == '{\n  "a": 1\n}'
    assert open_body(b"[" * 100_000, 0).json() is None


# ---- sending


def send(client: Client, **body: Any) -> Any:
    return client.post("/api/v1/topics/orders/messages", body, content_type="application/json")


def test_a_test_message_is_stored_and_its_body_not_audited(operator: Client) -> None:
    document = send(operator, body="secret stuff", keys="a b", tag="t", properties={"x": "1"}).json()
    assert document["state"] == "succeeded"
    place = {"group": "broker-a", "queue_id": 0, "queue_offset": "0"}
    assert document["result"] == {"message_id": "7F000001", "unique_id": "0AB1", **place}
    record = FakeCluster.queues["orders", 0][0]
    assert (record.body, record.property_map()) == (b"secret stuff", {"x": "1", "KEYS": "a b", "TAGS": "t"})
    assert "secret" not in json.dumps(AuditEntry.objects.get().parameters)
    assert Operation.objects.get().parameters["body_bytes"] == 12


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"),
        ({"body": "x", "body_base64": "eA=="}, "body"),
        ({"body_base64": "???"}, "body_base64"),
        ({"body": "x", "tag": "a|b"}, "tag"),
        ({"body": "x", "tag": "a b"}, "tag"),
        ({"body": "x", "keys": "a\x01b"}, "keys"),
        ({"body": "x", "properties": {"KEYS": "x"}}, "properties"),
        ({"body": "x", "properties": {"a": "b\x02"}}, "properties"),
        ({"body": "x", "properties": {f"p{n}": "v" for n in range(129)}}, "properties"),
    ],
)
def test_bad_test_messages_are_refused_with_the_rule(operator: Client, body: dict[str, Any], field: str) -> None:
    response = send(operator, **body)
    assert response.status_code == 400
    assert field in response.json()["errors"]
    assert not FakeCluster.queues["orders", 0]


def test_a_body_over_four_mebibytes_is_refused(operator: Client) -> None:
    response = send(operator, body="x" * (4 * 1024 * 1024 + 1))
    assert response.json()["errors"]["body"][0].startswith("must have 1 to 4194304 bytes")
    assert send(operator, body="x" * (7 * 1024 * 1024)).status_code == 413


def test_a_message_that_the_cluster_refuses_leaves_a_failed_operation(operator: Client) -> None:
    FakeCluster.error = RequestError(codes.SERVICE_NOT_AVAILABLE, "the group has no master")
    assert send(operator, body="x").status_code == 503
    operation = Operation.objects.get()
    assert (operation.state, operation.error_code) == ("failed", "cluster-unavailable")


def test_sending_from_the_page_keeps_the_form(operator: Client) -> None:
    response = operator.post(
        "/topics/orders/send", {"body": "hello", "properties": "a=1\nb=2"}, headers={"HX-Request": "true"}
    )
    text = response.content.decode()
    assert "offset 0" in text
    assert ">hello</textarea>" in text
    assert FakeCluster.queues["orders", 0][0].property_map() == {"a": "1", "b": "2"}
    broken = operator.post(
        "/topics/orders/send", {"body": "x", "properties": "nonsense"}, headers={"HX-Request": "true"}
    )
    assert b"must read name=value" in broken.content


def test_sending_without_javascript_ends_at_a_receipt_that_a_reload_does_not_send_again(operator: Client) -> None:
    form = operator.get("/topics/orders/send").content.decode()
    assert 'name="body"' in form
    response = operator.post("/topics/orders/send", {"body": "hello", "keys": "k" * 90})
    assert (response.status_code, response["Location"].startswith("/operations/")) == (302, True)
    for _ in range(2):
        receipt = operator.get(response["Location"]).content.decode()
        assert 'href="/topics/orders/messages/broker-a/0/0"' in receipt
        assert 'href="/topics/orders/send"' in receipt
    assert len(FakeCluster.queues["orders", 0]) == 1
    refused = operator.post("/topics/orders/send", {"body": "x", "tag": "a|b"})
    assert refused.status_code == 400
    assert b">x</textarea>" in refused.content
    FakeCluster.error = RequestError(codes.SERVICE_NOT_AVAILABLE, "the group has no master")
    failed = operator.post("/topics/orders/send", {"body": "y"})
    assert failed.status_code == 503
    assert b"the group has no master" in failed.content
    assert (
        b"Look at the message" not in operator.get(f"/operations/{Operation.objects.latest('created_at').pk}/").content
    )


# ---- the choice of a queue

LONG = "long-" * 18  # 90 characters


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"group": "nope"}, "orders has no queues in nope; the broker groups that have some: broker-a."),
        ({"group": LONG, "queue_id": "0"}, f"orders has no queues in {LONG};"),
        ({"group": "broker-a", "queue_id": "99"}, "orders has no queue 99 in broker-a; the last one is queue 3."),
        ({"queue_id": "99"}, "orders has no queue 99; the last one is queue 3."),
    ],
)
@pytest.mark.usefixtures("stored")
def test_a_queue_that_is_not_there_is_said_and_none_shown_in_its_place(
    viewer: Client, asked: dict[str, str], sentence: str
) -> None:
    response = viewer.get("/topics/orders/messages", asked)
    text = response.content.decode()
    assert response.status_code == 404
    assert sentence in text
    assert 'name="queue"' in text, "another queue can be chosen at once"
    assert "<td" not in text
    assert "selected" not in text.partition("</form>")[0].rpartition("<select")[2]


@pytest.mark.usefixtures("stored")
def test_a_queue_number_that_is_none_is_refused_at_its_field(viewer: Client) -> None:
    response = viewer.get("/topics/orders/messages", {"group": "broker-a", "queue_id": "first"})
    assert response.status_code == 400
    assert b"must be a whole number" in response.content


@pytest.mark.usefixtures("stored")
def test_the_form_without_javascript_goes_to_the_queue_that_was_chosen(viewer: Client) -> None:
    page = viewer.get("/topics/orders/messages").content.decode()
    form = page.partition('<form method="get" class="filters card"')[2].partition("</form>")[0]
    values = re.findall(r'<option value="([^"]*)"', form)
    assert values == [f"broker-a/{queue_id}" for queue_id in range(4)]
    assert 'type="hidden"' not in form
    sent = {"queue": values[2], "offset": "", "time": "", "count": "20"}
    response = viewer.get("/topics/orders/messages", sent)
    assert response.status_code == 302
    assert response["Location"] == "/topics/orders/messages?count=20&group=broker-a&queue_id=2"
    text = viewer.get(response["Location"]).content.decode()
    assert "broker-a · queue 2" in text
    assert '<option value="broker-a/2" selected>' in text
    nothing = viewer.get("/topics/orders/messages", {**sent, "queue": ""})
    assert nothing["Location"] == "/topics/orders/messages?count=20"


def test_names_that_need_quoting_survive_the_choice_of_a_queue(viewer: Client) -> None:
    FakeCluster.add_topic(f"%RETRY%{LONG}")
    response = viewer.get(f"/topics/%25RETRY%25{LONG}/messages", {"queue": "broker-a/3"})
    assert response["Location"] == f"/topics/%25RETRY%25{LONG}/messages?group=broker-a&queue_id=3"
    assert viewer.get(response["Location"]).status_code == 200


def ranges(**groups: list[int]) -> list[QueueOffsets]:
    return [
        QueueOffsets(group, number, 0, high) for group, highs in groups.items() for number, high in enumerate(highs)
    ]


def test_what_the_address_leaves_open_is_the_first_queue_with_messages() -> None:
    present = ranges(a=[0, 0], b=[0, 5, 0, 0, 0, 0, 7, 0])
    several = {"": ("b", 1), "group=b": ("b", 1), "group=a": ("a", 0), "queue_id=6": ("b", 6), "queue_id=0": ("a", 0)}
    several |= {"queue_id=1": ("b", 1), "group=a&queue_id=1": ("a", 1), "group=b&queue_id=06": ("b", 6)}
    for query, expected in several.items():
        chosen = browse_rules.choose("orders", present, dict(parse_qsl(query)))
        assert chosen is not None
        assert (chosen.group, chosen.queue_id) == expected, query
    assert browse_rules.choose("orders", [], {}) is None
    for query in ("group=a&queue_id=2", "queue_id=8", "group=c"):
        with pytest.raises(NotFound):
            browse_rules.choose("orders", present, dict(parse_qsl(query)))
    with pytest.raises(NotFound, match="it has none at all"):
        browse_rules.choose("orders", [], {"queue_id": "0"})


def test_the_form_that_sends_begins_empty_and_keeps_what_was_refused(operator: Client) -> None:
    text = operator.get("/topics/orders/send").content.decode()
    assert re.search(r'name="keys" value=""', text), "a form's data has a method of that name"
    text = operator.post("/topics/orders/send", {"body": "", "keys": "k1 k2"}).content.decode()
    assert 'name="keys" value="k1 k2"' in text
