"""What a consumer group may be given after it was made: in what it keeps order, and its bounds of the invisible time."""

from __future__ import annotations

from typing import Any, cast

import pytest
from django.test import Client

from remoting.errors import ConnectionLost
from remoting.group_settings import GroupSettings, named_settings, settings_of
from tests.web.fakes import FakeCluster, MemorySnapshots, snapshot_document
from webapp import snapshot
from webapp.audit.models import AuditEntry
from webapp.operations.models import Operation

ADDRESS = "/api/v1/consumer-groups/billing"
BOUNDS = {"invisible_min_ms": 20_000, "invisible_max_ms": 30_000, "invisible_default_ms": 25_000}


def put_group(**settings: Any) -> None:
    """The group as the brokers have it, and tell of it."""
    document = snapshot_document()
    document["consumer_groups"][0].update(settings)
    MemorySnapshots.put(document)
    snapshot.current(fresh=True)
    FakeCluster.settings["billing"] = cast(GroupSettings, {**settings_of({}), **named_settings(settings)})


def patch(client: Client, **body: Any) -> Any:
    return client.patch(ADDRESS, body, content_type="application/json")


def test_what_an_ordered_group_keeps_the_order_of_is_shown_and_changed(viewer: Client, operator: Client) -> None:
    put_group(fifo=True, order_scope="QUEUE")
    assert "of each queue" in viewer.get("/groups/billing/").content.decode()
    assert viewer.get(ADDRESS).json()["order_scope"] == "QUEUE"
    assert '<option value="QUEUE" selected>' in operator.get("/groups/billing/edit").content.decode()
    assert '<option value="MESSAGE_GROUP" selected>' in operator.get("/groups/new").content.decode()
    body = {"order_scope": "MESSAGE_GROUP"}
    assert patch(viewer, **body).status_code == 403
    made = patch(operator, **body)
    assert made.status_code == 202, made.json()
    assert (made.json()["kind"], made.json()["parameters"]) == ("group.update", {"name": "billing", **body})
    assert patch(operator, order_scope="TOPIC").status_code == 400
    new = {"name": "made", "fifo": True, "order_scope": "QUEUE"}
    made = operator.post("/api/v1/consumer-groups", new, content_type="application/json")
    assert made.json()["parameters"]["order_scope"] == "QUEUE"


def test_the_bounds_of_the_invisible_time_are_shown(viewer: Client, operator: Client) -> None:
    assert "Invisible time" not in viewer.get("/groups/billing/").content.decode()
    assert viewer.get(ADDRESS).json()["invisible_min_ms"] is None
    put_group(**BOUNDS)
    text = viewer.get("/groups/billing/").content.decode()
    for part in ("from 20\u202f000", "up to 30\u202f000 ms", "25\u202f000 ms where a receive names none"):
        assert part in text
    assert {name: viewer.get(ADDRESS).json()[name] for name in BOUNDS} == {
        name: str(value) for name, value in BOUNDS.items()
    }
    form = operator.get("/groups/billing/edit").content.decode()
    assert all(f'max="31536000000" value="{value}"' in form for value in BOUNDS.values())


def test_a_change_names_what_changes_and_the_rest_stays(operator: Client) -> None:
    put_group(**BOUNDS)
    made = patch(operator, invisible_max_ms="60000")
    assert made.json()["parameters"] == {"name": "billing", "invisible_max_ms": 60_000}
    assert patch(operator, invisible_max_ms=None).json()["parameters"] == {"name": "billing", "invisible_max_ms": None}
    assert patch(operator, invisible_min_ms="").json()["parameters"] == {"name": "billing", "invisible_min_ms": None}
    planned = operator.patch(
        f"{ADDRESS}?dry_run=true", {"invisible_min_ms": 5, "invisible_max_ms": None}, content_type="application/json"
    )
    assert planned.json()["plan"][0]["change"] == (
        "change consumer group billing: invisible_min_ms 5, no invisible_max_ms"
    )
    assert AuditEntry.objects.filter(action="group.update", target="billing").count() == 3


def test_a_form_sets_and_empties_bounds(operator: Client) -> None:
    put_group(**BOUNDS)
    form = {"order_scope": "QUEUE", "invisible_min_ms": "", "invisible_max_ms": "40000", "invisible_default_ms": ""}
    operator.post("/groups/billing/edit", form)
    assert Operation.objects.get().parameters == {
        **{"name": "billing", "order_scope": "QUEUE"},
        **{"invisible_min_ms": None, "invisible_max_ms": 40_000, "invisible_default_ms": None},
    }
    operator.post("/groups/new", {"name": "mail", "invisible_min_ms": "", "invisible_max_ms": "40000"})
    made = Operation.objects.get(target="mail").parameters
    assert {name: made.get(name, "not named") for name in BOUNDS} == {
        **{"invisible_min_ms": "not named", "invisible_max_ms": 40_000, "invisible_default_ms": "not named"}
    }


@pytest.mark.parametrize(
    ("body", "field", "sentence"),
    [
        ({"invisible_min_ms": "soon"}, "invisible_min_ms", "must be a whole number from 1 to 31536000000"),
        ({"invisible_min_ms": 0}, "invisible_min_ms", "must be from 1 to 31536000000; it is 0"),
        ({"invisible_max_ms": 31_536_000_001}, "invisible_max_ms", "must be from 1 to 31536000000"),
        (
            {"invisible_min_ms": 2, "invisible_max_ms": 1},
            "invisible_min_ms",
            "not be more than invisible_max_ms, which is 1",
        ),
        ({"invisible_min_ms": 30_001}, "invisible_min_ms", "must not be more than invisible_max_ms, which is 30000"),
        ({"invisible_max_ms": 19_999}, "invisible_max_ms", "must not be less than invisible_min_ms, which is 20000"),
        (
            {"invisible_max_ms": 24_999},
            "invisible_max_ms",
            "must not be less than invisible_default_ms, which is 25000",
        ),
        ({"invisible_default_ms": 5}, "invisible_default_ms", "must not be less than invisible_min_ms, which is 20000"),
    ],
)
def test_bounds_that_cannot_be_meant_are_refused_with_what_to_do(
    operator: Client, body: dict[str, Any], field: str, sentence: str
) -> None:
    put_group(**BOUNDS)
    refused = patch(operator, **body)
    assert refused.status_code == 400
    assert sentence in " ".join(refused.json()["errors"][field])
    assert not Operation.objects.exists()


def test_a_default_of_0_is_none(operator: Client) -> None:
    put_group(**{**BOUNDS, "invisible_default_ms": 0})
    assert patch(operator, invisible_min_ms=10_000).status_code == 202


def test_a_change_of_nothing_and_of_a_group_of_the_protocol_is_refused(operator: Client) -> None:
    assert "invisible_max_ms" in patch(operator).json()["detail"]
    refused = operator.patch(ADDRESS.replace("billing", "nobody"), BOUNDS, content_type="application/json")
    assert refused.status_code == 404


def test_brokers_that_do_not_answer_leave_the_form_away(operator: Client) -> None:
    FakeCluster.error = ConnectionLost("no answer")
    page = operator.get("/groups/billing/edit")
    assert page.status_code == 503
    assert 'name="order_scope"' not in page.content.decode()
