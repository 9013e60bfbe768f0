"""Who reads what messages say: rights per topic and role or person, which hold on every page and over REST."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.test import Client

from tests.web.conftest import actor, admin, bearer, console, operator, users, viewer  # noqa: F401
from tests.web.fakes import FakeCluster
from webapp.accounts.models import ReadRight, User
from webapp.accounts.permissions import Role
from webapp.accounts.read_rights import Reader, Right, decide
from webapp.audit.models import AuditEntry
from webapp.operations.services import submit

Bearer = Callable[..., dict[str, str]]
TOPICS = ("orders", "orders-eu", "salaries")


def right(topics: str, who: str, allows: bool = True) -> Right:
    """A right of a role, or of the person with a number."""
    return Right(topics, *(("", int(who)) if who.isdecimal() else (who, None)), allows)


# ---- what is decided


@pytest.mark.parametrize(
    ("rights", "viewer_reads", "operator_reads"),
    [
        ([], [], ["orders", "orders-eu", "salaries"]),
        ([right("orders", "viewer")], ["orders"], ["orders", "orders-eu", "salaries"]),
        ([right("orders*", "viewer")], ["orders", "orders-eu"], ["orders", "orders-eu", "salaries"]),
        ([right("*", "viewer")], ["orders", "orders-eu", "salaries"], ["orders", "orders-eu", "salaries"]),
        ([right("orders", "operator")], [], ["orders", "orders-eu", "salaries"]),  # which is no viewer's
        ([right("salaries", "operator", False)], [], ["orders", "orders-eu"]),
        (
            [right("*", "viewer"), right("salaries", "operator", False)],
            ["orders", "orders-eu"],
            ["orders", "orders-eu"],
        ),
        ([right("*", "operator", False), right("orders", "operator")], [], ["orders"]),
        ([right("*", "operator", False), right("orders", "viewer")], ["orders"], ["orders"]),
        ([right("salaries", "viewer", False)], [], ["orders", "orders-eu", "salaries"]),
        ([right("orders*", "viewer"), right("orders-eu", "viewer", False)], ["orders"], list(TOPICS)),
        (
            [right("salaries", "viewer"), right("salaries", "operator", False)],
            [],
            ["orders", "orders-eu"],
        ),  # Deny first
    ],
)
def test_the_most_specific_topic_decides(
    rights: Sequence[Right], viewer_reads: list[str], operator_reads: list[str]
) -> None:
    for order in itertools.permutations(rights):
        for role, reads in ((Role.VIEWER, viewer_reads), (Role.OPERATOR, operator_reads)):
            assert [each for each in TOPICS if decide(order, role, 7, each).allowed] == reads
        assert all(decide(order, Role.ADMIN, 1, each).allowed for each in TOPICS), "who gives the rights has all"
        assert not any(decide(order, Role.NONE, 7, each).allowed for each in TOPICS)


@pytest.mark.parametrize(
    ("rights", "reads"),
    [
        ([right("salaries", "7")], ["salaries"]),
        ([right("salaries", "8")], []),
        ([right("salaries", "7"), right("salaries", "operator", False)], ["salaries"]),  # a person's before a role's
        ([right("*", "7"), right("salaries", "operator", False)], ["orders", "orders-eu"]),  # but a topic's name first
        ([right("*", "viewer"), right("orders*", "7", False)], ["salaries"]),
    ],
)
def test_a_persons_right_comes_before_that_of_a_role(rights: Sequence[Right], reads: list[str]) -> None:
    for order in itertools.permutations(rights):
        assert [each for each in TOPICS if decide(order, Role.VIEWER, 7, each).allowed] == reads


def test_topics_of_the_brokers_are_for_who_manages_clients(actor: Callable[[str], Any]) -> None:  # noqa: F811
    for role, reads in (("viewer", False), ("operator", False), ("admin", True)):
        ReadRight.objects.all().delete()
        ReadRight.objects.create(topics="*", role="viewer", allows=True)
        assert Reader(actor(role)).may_read("RMQ_SYS_TRANS_HALF_TOPIC") is reads
        assert Reader(actor(role)).may_read("orders")


# ---- everywhere


def put(client: Client, body: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    response = client.put("/api/v1/read-rights", json.dumps(body), "application/json", headers=headers or {})
    return response.status_code, json.loads(response.content)


def sees(client: Client, topic: str = "orders") -> set[bool]:
    """Whether each place that shows messages shows what they say."""
    found = set()
    for path in (
        f"/topics/{topic}/messages",
        f"/topics/{topic}/messages/broker-a/0/0",
        f"/topics/{topic}/messages?key=o-1",
        f"/api/v1/topics/{topic}/messages?group=broker-a",
        f"/api/v1/topics/{topic}/messages/broker-a/0/0",
        f"/api/v1/topics/{topic}/messages/by-key?key=o-1",
    ):
        content = client.get(path).content
        assert b"o-1" in content, path
        found.add(b"card 4711" in content)
        assert b"card 4711" in content or b"customer" not in content, path
    return found


@pytest.fixture
def stored() -> None:
    FakeCluster.store("orders", 0, b"card 4711", {"KEYS": "o-1", "customer": "ann"})


@pytest.mark.usefixtures("stored")
def test_a_right_counts_at_once_wherever_messages_are_shown(admin: Client, viewer: Client, operator: Client) -> None:  # noqa: F811
    assert (sees(viewer), sees(operator)) == ({False}, {True})
    assert put(admin, {"topics": "order*", "role": "viewer", "decision": "allow"})[0] == 200
    assert (sees(viewer), sees(operator)) == ({True}, {True})
    assert put(admin, {"topics": "orders", "role": "operator", "decision": "deny"})[0] == 200
    assert (sees(viewer), sees(operator), sees(admin)) == ({False}, {False}, {True})
    assert put(admin, {"topics": "orders", "user": "viewer", "decision": "allow"})[0] == 200
    assert (sees(viewer), sees(operator)) == ({True}, {False})
    listed = admin.get("/api/v1/read-rights").json()["items"]
    assert [(each["topics"], each["role"], each["user"], each["decision"]) for each in listed] == [
        ("order*", "viewer", None, "allow"),
        ("orders", "operator", None, "deny"),
        ("orders", None, "viewer", "allow"),
    ]
    for each in listed:
        assert admin.delete(f"/api/v1/read-rights/{each['id']}").status_code == 200
    assert (sees(viewer), sees(operator)) == ({False}, {True})
    rows = AuditEntry.objects.filter(action__startswith="read-right.").order_by("sequence")
    assert [(row.action, row.target, row.outcome) for row in rows] == [
        ("read-right.put", "order*/every viewer", "accepted"),
        ("read-right.put", "orders/every operator", "accepted"),
        ("read-right.put", "orders/viewer", "accepted"),
        ("read-right.remove", "order*/every viewer", "accepted"),
        ("read-right.remove", "orders/every operator", "accepted"),
        ("read-right.remove", "orders/viewer", "accepted"),
    ]


@pytest.mark.usefixtures("stored")
def test_a_token_reads_what_its_owner_may_if_it_was_made_for_that(
    client: Client,
    bearer: Bearer,  # noqa: F811
) -> None:
    ReadRight.objects.create(topics="orders", role="viewer", allows=True)

    def reads(*scopes: str) -> bool:
        answer = client.get("/api/v1/topics/orders/messages?group=broker-a", headers=bearer("viewer", *scopes)).json()
        return not answer["items"][0]["body_hidden"]

    assert not reads("messages.read")
    assert reads("messages.read", "messages.bodies")
    ReadRight.objects.all().delete()
    assert not reads("messages.read", "messages.bodies")


# ---- who gives them


def test_only_admins_give_rights_and_none_that_they_do_not_use_themselves(
    client: Client,
    bearer: Bearer,  # noqa: F811
    viewer: Client,  # noqa: F811
    operator: Client,  # noqa: F811
) -> None:
    body = {"topics": "*", "role": "viewer", "decision": "allow"}
    for person in (viewer, operator):
        assert put(person, body)[0] == 403
        assert person.get("/api/v1/read-rights").status_code == 403
        assert person.get("/users/reading").status_code == 403
        assert person.post("/users/reading", body).status_code == 403
    alone = bearer("admin", "users.write")
    assert put(client, body, alone)[1]["code"] == "beyond-own-permissions", "else it would read all that it likes"
    ReadRight.objects.create(topics="orders", role="operator", allows=False)
    (present,) = ReadRight.objects.all()
    assert client.delete(f"/api/v1/read-rights/{present.pk}", headers=alone).status_code == 403
    assert ReadRight.objects.get() == present
    assert put(client, body, bearer("admin", "users.write", "messages.bodies"))[0] == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"topics": "orders", "decision": "allow"}, "role"),
        ({"topics": "orders", "role": "viewer", "user": "viewer", "decision": "allow"}, "role"),
        ({"topics": "orders", "role": "admin", "decision": "deny"}, "role"),
        ({"topics": "orders", "user": "nobody", "decision": "allow"}, "user"),
        ({"topics": "orders", "user": "admin", "decision": "deny"}, "user"),
        ({"topics": "", "role": "viewer", "decision": "allow"}, "topics"),
        ({"topics": "a*b", "role": "viewer", "decision": "allow"}, "topics"),
        ({"topics": "or ders", "role": "viewer", "decision": "allow"}, "topics"),
        ({"topics": "x" * 300, "role": "viewer", "decision": "allow"}, "topics"),
        ({"topics": "SCHEDULE_TOPIC_XXXX", "role": "viewer", "decision": "allow"}, "topics"),
        ({"topics": "orders", "role": "viewer", "decision": "perhaps"}, "decision"),
    ],
)
def test_what_cannot_be_a_right_is_refused(admin: Client, body: dict[str, Any], field: str) -> None:  # noqa: F811
    status, answer = put(admin, body)
    assert (status, field in answer["errors"]) == (400, True), answer
    assert not ReadRight.objects.exists()


def test_one_for_the_same_topics_and_readers_is_replaced(admin: Client, users: dict[str, User]) -> None:  # noqa: F811
    for decision in ("allow", "deny"):
        assert put(admin, {"topics": "orders", "role": "viewer", "decision": decision})[0] == 200
        assert put(admin, {"topics": "orders", "user": "viewer", "decision": decision})[0] == 200
    assert [each.allows for each in ReadRight.objects.all()] == [False, False]


# ---- the page, and why


def test_the_page_gives_takes_and_explains(admin: Client, viewer: Client) -> None:  # noqa: F811
    given = {"topics": "orders", "who": "role viewer", "decision": "allow"}
    assert admin.post("/users/reading", given).status_code == 302
    (present,) = ReadRight.objects.all()
    page = admin.get("/users/reading?user=viewer&topic=orders#explain").content.decode()
    assert "every viewer" in page
    assert "the right of every viewer to orders allows it" in page
    refused = admin.post("/users/reading", {**given, "topics": "a b"})
    assert (refused.status_code, "or the beginning of names" in refused.content.decode()) == (400, True)
    assert admin.post(f"/users/reading/{present.pk}/remove").status_code == 302
    assert not ReadRight.objects.exists()
    told = admin.get("/api/v1/read-rights/explain?user=viewer&topic=orders").json()
    assert (told["allowed"], told["reason"]) == (False, "no right fits, and viewers read no topic without one")
    assert admin.get("/api/v1/read-rights/explain?user=none&topic=orders").status_code == 404
    assert viewer.get("/api/v1/read-rights/explain?user=viewer&topic=orders").status_code == 403


def test_they_are_bounded(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("webapp.accounts.read_rights.MOST", 2)
    for topics in ("a", "b"):
        assert put(admin, {"topics": topics, "role": "viewer", "decision": "allow"})[0] == 200
    assert put(admin, {"topics": "c", "role": "viewer", "decision": "allow"})[1]["code"] == "too-many-read-rights"
    assert put(admin, {"topics": "a", "role": "viewer", "decision": "deny"})[0] == 200


def test_a_plan_names_who_and_what(actor: Callable[[str], Any]) -> None:  # noqa: F811
    parameters = {"topics": "orders", "role": "viewer", "decision": "allow"}
    planned = submit(actor("admin"), "read-right.put", parameters, dry_run=True)
    assert planned.plan == [{"node": "console", "change": "every viewer may read what messages of orders say"}]
